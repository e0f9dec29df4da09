"""The scalar iteration of the coding l21 (trainer.method.coding) for faces that are already projected on U."""

import numpy as np

from trainer.method.coding import Callback, Coding
from trainer.method.prox import column_norms
from trainer.types import Array

SETTLED = 1e-6  # relative change of tau below which more iterations change nothing but rounding errors
FIRST_TAU = np.float32(1e-2)


def code_projected(
    c: Array, outside: Array, s: Array, coding: Coding, callback: Callback | None = None, *, settle: bool = False
) -> Array:
    """Return w (r,n) of c (r,n) and outside (n,), as trainer.method.coding._l21. `settle` stops when tau does not change."""
    tiny, s_ = np.finfo(c.dtype).tiny, s[:, None]
    s_c, s_squared = s_ * c, s_ * s_
    w: Array = s_c / (s_squared + FIRST_TAU)
    before = np.zeros_like(outside)
    for k in range(coding.iterations):
        error = c - s_ * w
        tau = np.sqrt(outside + np.einsum("ij,ij->j", error, error))
        tau /= np.maximum(coding.lam * column_norms(w), tiny)
        w = s_c / (s_squared + tau)
        if callback:
            callback(k + 1, w)
        if settle and bool(np.all(np.abs(tau - before) <= SETTLED * tau)):
            break
        before = tau
    return w
