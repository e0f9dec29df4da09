"""How a baseline's model codes and scores a face: one definition for the trainer, the model file and the exporter.

    src    z sparse (trainer.baselines.src)                   scores: the share of the face that each person's atoms explain
    lrrs   z low-rank and sparse (trainer.baselines.lrrs)     scores: Wz

The coder needs D (d,m) and W (C,m) only as a few matrices, the `constants`. A kit stores them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge.errors import ModelError
from trainer.baselines import lrrs, src
from trainer.baselines.lrrs import SparseCoding
from trainer.baselines.src import SRCCoding
from trainer.method.coding import Callback, Coding, in_chunks
from trainer.types import Array

BaselineCoding = SRCCoding | SparseCoding
AnyCoding = Coding | BaselineCoding
"""Settings of the coder of a model: `Coding` for LCLRRDL and LRR, the others for the baselines."""


def restored_coding(settings: Mapping[str, Any]) -> AnyCoding:
    """Return the coding that was written to a file with `asdict`."""
    if settings["kind"] == "llc":
        raise ModelError("LLC has no device form.", "Train another method with `trainer fit`.")
    return {"src": SRCCoding, "lrrs": SparseCoding}.get(settings["kind"], Coding)(**settings)


@dataclass(frozen=True, kw_only=True, eq=False)
class BaselineCoder:
    """Codes and scores faces, which are columns."""

    coding: BaselineCoding
    constants: Mapping[str, Array]
    """Dt (m,d), W (C,m), K (m,d) and M (m,m), all float32 (src.ridge_constants)."""

    @classmethod
    def of(cls, D: Array, W: Array, coding: BaselineCoding) -> "BaselineCoder":
        K, M = src.ridge_constants(D, coding.ridge)
        Dt = np.ascontiguousarray(D.T, np.float32)
        return cls(coding=coding, constants={"Dt": Dt, "W": W.astype(np.float32), "K": K, "M": M})

    def code(self, X: Array, callback: Callback | None = None) -> Array:
        """Return Z (m,n) of X (d,n). `callback` receives the number of iterations done, and Z."""
        D, K, M = self.constants["Dt"].T, self.constants["K"], self.constants["M"]

        def coded(chunk: Array) -> Array:
            if isinstance(self.coding, SRCCoding):
                return src.code(D, K, M, chunk, self.coding, callback)
            return lrrs.code_sparsely(D, chunk, self.coding, callback, constants=(K, M))

        return in_chunks(coded, X.astype(np.float32, copy=False), X.shape[1] if callback else None)

    def scores(self, X: Array, Z: Array | None = None) -> Array:
        """Return scores (C,n) of X (d,n). Z: its codes, if they are known."""
        Z = self.code(X) if Z is None else Z
        W = self.constants["W"]
        if isinstance(self.coding, SRCCoding):
            return src.scores(self.constants["Dt"].T, X, Z, W.argmax(axis=0), self.coding)
        return W @ Z
