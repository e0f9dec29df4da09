"""One BLAS thread for all tests and what they start: the matrices are small, and two pools on few cores fight.

Set before NumPy is first imported; a caller's own setting is respected.
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")
