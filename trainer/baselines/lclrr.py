"""LCLRR, locality-constrained low-rank representation: problem 4 of the paper. The dictionary is fixed.

    min_{Z,E} |Z|_* + lam |E| + alpha |R o Z|_1    s.t.  X = DZ + E        |E|: the l21 norm (as printed) or the l1 norm

    X (d,n)  samples, unit columns     D (d,m)  dictionary     Z (m,n)  codes     E (d,n)  error
    R (m,n)  distance between atom i and sample j (method.locality)

A single face is coded with the same problem: the nuclear norm of one column is its l2 norm.
"""

from dataclasses import KW_ONLY, dataclass

import numpy as np

from trainer.baselines.lrr import FixedDictionary
from trainer.baselines.lrrs import SparseCoding, code_sparsely
from trainer.method.coding import in_chunks
from trainer.method.locality import locality_weights
from trainer.types import Array


@dataclass(eq=False, repr=False)
class LCLRR(FixedDictionary):
    """Problem 4 with random samples as dictionary. Learned beside D_ and W_: reach_ (m, 1), each atom's largest distance."""

    _: KW_ONLY
    alpha: float = 0.02
    """Weight of locality."""
    locality: str = "exp"
    """Form of R: "exp" (as in the published experiments) or "squared" (as printed)."""

    def code(self, samples: Array) -> Array:
        D, coding = self.D_.astype(np.float32), SparseCoding(lam=self._error_weight(), beta=self.alpha)

        def coded(X: Array) -> Array:
            return code_sparsely(D, X.astype(np.float32), coding, R=self._weights(X).astype(np.float32), error=self.error)

        return in_chunks(coded, samples)

    def _choose_atoms(self, samples: Array, labels: Array) -> Array:
        D = super()._choose_atoms(samples, labels)
        self.reach_ = np.sqrt(locality_weights(samples, D, "squared").max(axis=1, keepdims=True))
        return D

    def _weights(self, samples: Array) -> Array:
        """Return R with the largest distances of training, so that no code depends on the other faces."""
        squared = np.maximum(locality_weights(samples, self.D_, "squared"), 0)
        return squared if self.locality == "squared" else np.exp(np.sqrt(squared) - self.reach_)

    def _code_weights(self, samples: Array) -> Array:
        return self.alpha * self._weights(samples)
