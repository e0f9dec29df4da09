"""How a model of a baseline codes and names a face: one definition for the trainer, the model's file and the exporter.

    src    z sparse (trainer.baselines.src)              scores: the share of the face that each person's atoms explain
    lrrs   z low-rank and sparse (trainer.baselines.lrrs)    Wz
    llc    z of the nearest atoms (trainer.baselines.llc)    Wz

All that is needed of D (d,m) and W (C,m) are a few matrices, the `constants`: a kit stores them, perhaps in fewer bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.baselines import llc, lrrs, src
from trainer.baselines.llc import LLCCoding
from trainer.baselines.lrrs import SparseCoding
from trainer.baselines.src import SRCCoding
from trainer.method.coding import CHUNK, Coding
from trainer.types import Array

BaselineCoding = SRCCoding | LLCCoding | SparseCoding
CODINGS: dict[str, type[BaselineCoding]] = {"src": SRCCoding, "llc": LLCCoding, "lrrs": SparseCoding}


def restored_coding(settings: Mapping[str, Any]) -> Any:
    """A coding as it was before it went through a file."""
    return CODINGS.get(settings["kind"], Coding)(**settings)


@dataclass(frozen=True, kw_only=True, eq=False)
class BaselineCoder:
    """`code` and `scores` take faces as columns."""

    coding: BaselineCoding
    constants: Mapping[str, Array]
    """Dt (m,d), W (C,m), and but for llc K (m,d) and M (m,m)."""

    @classmethod
    def of(cls, D: Array, W: Array, coding: BaselineCoding) -> BaselineCoder:
        constants = {"Dt": np.ascontiguousarray(D.T, np.float32), "W": W.astype(np.float32)}
        if not isinstance(coding, LLCCoding):
            constants["K"], constants["M"] = src.ridge_constants(D, coding.ridge)
        return cls(coding=coding, constants=constants)

    def code(self, X: Array, callback: Callable[[int, Array], None] | None = None) -> Array:
        """Z (m,n) of X (d,n). `callback` receives the number of iterations done, and Z."""
        if callback is None and X.shape[1] > CHUNK:
            return np.hstack([self.code(X[:, i : i + CHUNK]) for i in range(0, X.shape[1], CHUNK)])
        D, coding = self.constants["Dt"].T, self.coding
        if isinstance(coding, LLCCoding):
            Z = llc.local_codes(D, X, coding.neighbours, coding.beta).astype(np.float32)
            if callback:
                callback(1, Z)
            return Z
        K, M = self.constants["K"], self.constants["M"]
        if isinstance(coding, SRCCoding):
            return src.code(D, K, M, X, coding, callback)
        return lrrs.code_sparsely(D, X, coding, callback, constants=(K, M))

    def scores(self, X: Array, Z: Array | None = None) -> Array:
        """(C,n) of X (d,n), and of its codes Z where they are there already."""
        Z = self.code(X) if Z is None else Z
        W = self.constants["W"]
        if isinstance(self.coding, SRCCoding):
            return src.scores(self.constants["Dt"].T, X, Z, W.argmax(axis=0), self.coding)
        return W @ Z
