"""LCLRR, locality-constrained low-rank representation: problem 4 of the paper, the dictionary being fixed.

    min_{Z,E} |Z|_* + lam |E| + alpha |R o Z|_1    s.t.  X = DZ + E        |E| its l21 norm as printed, or its l1 norm

    X (d,n)  samples, unit columns     D (d,m)  dictionary     Z (m,n)  codes     E (d,n)  error
    R (m,n)  locality: how far sample j is from atom i (solver.locality_weights)

A face is coded by itself, by the same problem: the nuclear norm of one column is its l2 norm.
"""

from __future__ import annotations

import numpy as np

from edge.errors import ParameterError
from trainer.baselines.lrr import ERRORS, FixedDictionary, Representation, represent
from trainer.baselines.lrrs import SparseCoding, code_sparsely
from trainer.features.spec import Spec
from trainer.method.base import check_positive
from trainer.method.coding import CHUNK
from trainer.method.solver import locality_weights
from trainer.types import Array


class LCLRR(FixedDictionary):
    """Problem 4 with random samples as dictionary.

    Parameters
    ----------
    atoms_per_class : samples of each class in D; a class with fewer gives all it has.
    lam, alpha : weights of the error and of locality; that of an l1 error is lam/sqrt(d), so that one lam serves every size
        of image.
    locality : form of R, "exp" (as in the published experiments) or "squared" (as printed).
    error : norm of the error, "l1" (as in the published coding) or "l21" (as printed; it wants a lam of 5 or so).
    eta : ridge of the classifier.
    classifier_codes : W is learned on codes made face by face ("coder", the more accurate) or on the Z of problem 4 for all
        training samples together ("training", as printed).
    features, random_state : as in LCLRRDL.

    Attributes: classes_, D_ (d, m), W_ (C, m), atom_classes_ (m,), reach_ (m, 1), codes_ (m, n).
    """

    def __init__(
        self,
        atoms_per_class: int = 5,
        *,
        lam: float = 4.0,
        alpha: float = 0.02,
        locality: str = "exp",
        error: str = "l1",
        eta: float = 1e-3,
        classifier_codes: str = "coder",
        features: Spec | None = None,
        random_state: int | None = 0,
    ) -> None:
        self.atoms_per_class = atoms_per_class
        self.lam = lam
        self.alpha = alpha
        self.locality = locality
        self.error = error
        self.eta = eta
        self.classifier_codes = classifier_codes
        self.features = features
        self.random_state = random_state

    def code(self, samples: Array) -> Array:
        D, coding = self.D_.astype(np.float32), SparseCoding(lam=self._error_weight(), beta=self.alpha)
        chunks = [samples[:, i : i + CHUNK] for i in range(0, samples.shape[1], CHUNK)]
        codes = [
            code_sparsely(D, chunk.astype(np.float32), coding, R=self._weights(chunk).astype(np.float32), error=self.error)
            for chunk in chunks
        ]
        return np.hstack(codes)

    def _prepare(self, samples: Array) -> None:
        squared = locality_weights(samples, self.D_, "squared")
        self.reach_ = np.sqrt(squared.max(axis=1, keepdims=True))

    def _weights(self, samples: Array) -> Array:
        """R, where the largest distance of an atom is the one in training: no face depends on those coded with it."""
        squared = np.maximum(locality_weights(samples, self.D_, "squared"), 0)
        return squared if self.locality == "squared" else np.exp(np.sqrt(squared) - self.reach_)

    def _represent(self, samples: Array) -> Representation:
        return represent(samples, self.D_, lam=self._error_weight(), error=self.error, R=self.alpha * self._weights(samples))

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_positive(self, "alpha")
        if self.error not in ERRORS:
            raise ParameterError(f"error must be one of {', '.join(ERRORS)}, not {self.error!r}")
        if self.locality not in ("exp", "squared"):
            raise ParameterError(f"locality must be exp or squared, not {self.locality!r}")
