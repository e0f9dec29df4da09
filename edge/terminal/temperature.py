"""The temperature of the device."""

import re
from pathlib import Path

SENSORS = "sys/class/thermal/thermal_zone*/temp"


def read_temperature(root: Path = Path("/")) -> float | None:
    """Return the temperature of the hottest sensor in degrees Celsius. None: the device reports none.

    `root` is the root of the file system.
    """
    degrees = []
    for sensor in root.glob(SENSORS):
        try:
            text = sensor.read_text(errors="replace").strip()
        except OSError:  # a sensor that is switched off
            continue
        if re.fullmatch(r"-?[0-9]{1,7}", text):
            degrees.append(int(text) / 1000)
    return max(degrees, default=None)
