"""Compare numbers that could separate strangers: AR mixed, 70 people enrolled and 30 strangers, single photos.

Learned numbers (a logistic model, levels per person) are learned on half of the people and half of the strangers. Every
number is measured on the other halves: percent of enrolled photos missed at a threshold that 1 % of strangers' photos pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from edge.vision.preprocess import features
from trainer.method.classifier import one_hot, ridge
from trainer.method.coding import Coder, Coding
from trainer.method.estimator import LCLRRDL
from trainer.presets import PRESETS
from trainer.types import Array

SIGNS = {
    "confidence": 1,
    "margin": 1,
    "norm of the scores": 1,
    "norm of the code": 1,
    "residual": -1,
    "class residual ratio": -1,
}
L1, AGREE = "l1's confidence in the label", "l1 agrees"


def table(cases: Sequence[Any]) -> str:
    """Format the results as Markdown, best first. A case is a strangers.Case."""
    missed: dict[str, list[float]] = defaultdict(list)
    for split, case in enumerate(cases):
        for name, percent in measure(case, split):
            missed[name].append(percent)
    rows = sorted((float(np.mean(values)), float(np.std(values)), name) for name, values in missed.items())
    lines = [f"| {name} | {mean:.1f} ± {deviation:.1f} |" for mean, deviation, name in rows]
    return "\n".join(["| AR mixed, single photos | FNIR at FPIR 1 % |", "|---|---|", *lines])


def measure(case: Any, split: int) -> list[tuple[str, float]]:
    """FNIR of every number, on both halves in turn."""
    parameters = {name: value for name, value in PRESETS["tiny"].items() if name != "features"}
    model = LCLRRDL(features=case.spec, **parameters).fit(case.images[case.train], case.labels[case.train])
    own, named, _ = numbers(model, case, case.test)
    strange, called, others = numbers(model, case, case.strangers)
    right = model.classes_[named] == case.labels[case.test]
    rng, found = np.random.default_rng(split), []
    half = np.isin(case.labels[case.test], rng.permutation(model.classes_)[::2])
    other_half = np.isin(case.labels[case.strangers], rng.permutation(np.unique(case.labels[case.strangers]))[::2])
    for people, strangers in ((half, other_half), (~half, ~other_half)):

        def fnir(ours: Array, theirs: Array, people: Array = people, strangers: Array = strangers) -> float:
            hit = right & (ours > np.quantile(theirs[~strangers], 0.99))
            return 100 * (1 - float(hit[~people].mean()))

        for name, sign in {**SIGNS, L1: 1}.items():
            found.append((name, fnir(sign * own[name], sign * strange[name])))
        found.append(("confidence and l1's, summed", fnir(own["confidence"] + own[L1], strange["confidence"] + strange[L1])))
        agreed = own["confidence"] * own[AGREE], strange["confidence"] * strange[AGREE]
        found.append(("confidence, none where l1 disagrees", fnir(*agreed)))
        for name, used in (
            ("logistic model of all", [*SIGNS, L1, AGREE]),
            ("logistic model of those without l1", list(SIGNS)),
        ):
            X, Y = (np.column_stack([group[key] for key in used]) for group in (own, strange))
            good = people & right
            fitted = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)).fit(
                np.vstack([X[good], Y[strangers]]), np.repeat([1, 0], [good.sum(), strangers.sum()])
            )
            found.append((name, fnir(fitted.decision_function(X), fitted.decision_function(Y))))
        mean, deviation = others[strangers].mean(axis=0), others[strangers].std(axis=0)
        high = np.quantile(others[strangers], 0.95, axis=0)
        for name, level, unit in (("deviations", mean, deviation), ("less the 95th percentile", high, np.ones_like(high))):
            ours, theirs = (
                (own["confidence"] - level[named]) / unit[named],
                (strange["confidence"] - level[called]) / unit[called],
            )
            found.append((f"confidence against strangers, by person: {name}", fnir(ours, theirs)))
    return found


def numbers(model: LCLRRDL, case: Any, rows: Array) -> tuple[dict[str, Array], Array, Array]:
    """The numbers of each photo by name; its label; and its unit scores (n, C)."""
    X, photos = features(case.images[rows], case.spec).T, np.arange(len(rows))
    raw = model.decision_function(case.images[rows])
    scores = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    named, ordered, Z = scores.argmax(axis=1), np.sort(scores, axis=1), model.code(X)
    l1 = Coder(model.D_.astype(np.float32), Coding.default("l1"))
    labels = np.searchsorted(model.classes_, case.labels[case.train])
    W = ridge(l1.code(features(case.images[case.train], case.spec).T), one_hot(labels, len(model.classes_)), 1e-2)
    robust = (W @ l1.code(X)).T
    robust /= np.linalg.norm(robust, axis=1, keepdims=True)
    atoms = [model.atom_classes_ == c for c in range(len(model.classes_))]
    residuals = np.sort([np.linalg.norm(X - model.D_[:, own] @ Z[own], axis=0) for own in atoms], axis=0)
    found = {
        "confidence": ordered[:, -1],
        "margin": ordered[:, -1] - ordered[:, -2],
        "norm of the scores": np.linalg.norm(raw, axis=1),
        "norm of the code": np.linalg.norm(Z, axis=0),
        "residual": np.linalg.norm(X - model.D_ @ Z, axis=0),
        "class residual ratio": residuals[0] / residuals[1],
        L1: robust[photos, named],
        AGREE: (robust.argmax(axis=1) == named).astype(float),
    }
    return found, named, scores
