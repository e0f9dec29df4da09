"""The clock of the door: seconds since the device started. It is never set back, and it runs on while the device is suspended.

`time.monotonic()` stands still in a suspend on Linux. A frame or a grant from before the suspend would seem fresh after it.
"""

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the second only where the platform has no such clock


def boottime() -> float:
    return time.clock_gettime(_CLOCK)
