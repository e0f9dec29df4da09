"""Set-up of all tests: one BLAS thread, also in processes that they start, and no time limits of Hypothesis.

The matrices are small, and several thread pools on few cores slow each other down. It is set before NumPy is imported; a
setting of the caller stays.
"""

from __future__ import annotations

import os

from hypothesis import settings

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
