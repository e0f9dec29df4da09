"""A dictionary as recognition uses it: D = U diag(s) V' and B = WV, so that scores = B w (trainer.method.coding).

A model has a block for the whole face and one for each part, or one for each expert.
"""

from dataclasses import dataclass

from trainer.method.coding import Coding, code_by_factors
from trainer.method.parts import unit_part
from trainer.types import Array


@dataclass(frozen=True, eq=False)
class Basis:
    """What coding needs of a dictionary."""

    rows: Array | None
    """(k,) entries of the features that belong to a part of the face or to an expert. None: the whole face."""
    U: Array
    """(k, r) float32."""
    s: Array
    """(r,) float32, rising."""

    def code(self, X: Array, coding: Coding) -> Array:
        """Return w (r,n) of X (d,n), unit columns."""
        return code_by_factors(self.U, self.s, self.own(X), coding)

    def own(self, X: Array) -> Array:
        """Return the rows of X (d,n) that belong to it, as unit columns."""
        return X if self.rows is None else unit_part(X, self.rows)


@dataclass(frozen=True, eq=False)
class Block(Basis):
    """A basis, and the classifier on its codes."""

    B: Array
    """(C, r) float32."""
