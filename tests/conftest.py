"""For all tests: one BLAS thread, also for what they start, because the matrices are small, and two pools on few cores fight
(set before NumPy is first imported; a caller's own setting is respected); and no test is judged by a clock."""

from __future__ import annotations

import os

from hypothesis import settings

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
