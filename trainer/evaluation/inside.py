"""What is inside a model: its codes of the test faces, faces split into DZ and E, and the votes of the parts of a face."""

from dataclasses import dataclass, field

import numpy as np

from edge.vision.preprocess import DIRECTIONS
from trainer.evaluation.measures import Share
from trainer.evaluation.trials import Trial, Trials
from trainer.features.spec import Spec
from trainer.method.parts import unit_part, unit_scores
from trainer.model import PlainModel
from trainer.types import Array

TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, kw_only=True)
class PartSplit:
    """How often each part of a face names the right person alone, in one condition."""

    name: str
    parts: tuple[Share, ...]  # row by row
    whole: Share  # the whole face alone
    together: Share


@dataclass(frozen=True)
class Vote:
    """The vote of one part of a face."""

    right: bool  # whether it names the right person
    confidence: float  # its weight among the other votes


@dataclass(frozen=True, kw_only=True, eq=False)
class Example:
    """A face x = Dz + e."""

    photo: Trial
    taken_off: float  # sum of |e| over sum of |x|, in the images below
    x: Array = field(repr=False)  # (h, w)
    recovered: Array = field(repr=False)  # (h, w): Dz
    parts: tuple[Vote, ...]  # row by row; empty if the model has no parts
    whole: Vote


@dataclass(frozen=True, kw_only=True, eq=False)
class Inside:
    """What the pictures of a model show. Fields with repr=False are not in the JSON file."""

    codes: Array = field(repr=False)  # Z (m, n) of the photos of enrolled people
    own_atoms: float  # the median share of a code, sum of |z|, on the atoms that began as photos of the same person
    alike: tuple[float, float] | None  # mean cosine between two codes of one person, and between codes of two people
    examples: tuple[Example, ...]  # faces to show as DZ and E
    part_splits: tuple[PartSplit, ...]  # by condition; empty if the model has no parts


def look_inside(model: PlainModel, trials: Trials) -> Inside:
    enrolled, truth = np.flatnonzero(trials.enrolled), trials.truth[trials.enrolled]
    crops = trials.crops[enrolled]
    X, DZ, codes = _coded(model, crops)
    size = np.abs(codes)
    share = np.where(model.atom_people[:, None] == truth, size, 0).sum(axis=0) / np.maximum(size.sum(axis=0), TINY)
    cosines = code_similarity(codes, truth)
    same, other = np.diag(cosines)[~np.isnan(np.diag(cosines))], cosines[~np.eye(len(cosines), dtype=bool)]
    votes = list(map(unit_scores, model.part_scores(crops) if model.parts else [model.scores(crops).T]))
    right = np.stack([vote.argmax(axis=0) == truth for vote in votes])  # (1 + P, n): the whole face and each part
    confidence = np.stack([vote.max(axis=0) for vote in votes])
    x, recovered = as_images(X, model.spec), as_images(DZ, model.spec)
    examples = []
    if x is not None and recovered is not None:
        taken_off = np.abs(x - recovered).sum(axis=(1, 2)) / np.maximum(np.abs(x).sum(axis=(1, 2)), TINY)
        for i in _shown_faces(trials, enrolled, taken_off, right):
            whole, *parts = map(Vote, right[:, i].tolist(), confidence[:, i].tolist())
            example = Example(
                photo=trials.trial(enrolled[i]),
                taken_off=float(taken_off[i]),
                x=x[i],
                recovered=recovered[i],
                parts=tuple(parts),
                whole=whole,
            )
            examples.append(example)
    return Inside(
        codes=codes,
        own_atoms=float(np.median(share)),
        alike=(float(same.mean()), float(other.mean())) if len(same) and len(other) else None,
        examples=tuple(examples),
        part_splits=_part_splits(trials, enrolled, right),
    )


def _coded(model: PlainModel, crops: Array) -> tuple[Array, Array, Array]:
    """Return X, DZ (d, n) and Z (m, n) of crops. With experts, X and DZ are those of each expert, and Z is the network's."""
    X = model.spec.vectors(crops).T
    if model.network_rows is None:
        Z = model.coder.code(X)
        return X, model.D @ Z, Z
    experts = [(model.network_rows, model.coder), *model.part_coders]
    own = [unit_part(X, rows) for rows, _ in experts]
    codes = [coder.code(x) for x, (_, coder) in zip(own, experts, strict=True)]
    recovered = [model.D[rows] @ Z for Z, (rows, _) in zip(codes, experts, strict=True)]
    return np.vstack(own), np.vstack(recovered), codes[0]


def code_similarity(codes: Array, truth: Array) -> Array:
    """Return (P, P), the mean cosine between the codes of each two people, minus the mean code; NaN for a single code."""
    unit = codes / np.maximum(np.linalg.norm(codes, axis=0), TINY)
    unit = unit - unit.mean(axis=1, keepdims=True)
    unit = (unit / np.maximum(np.linalg.norm(unit, axis=0), TINY)).astype(np.float64)
    people, counts = np.unique(truth, return_counts=True)
    sums = np.stack([unit[:, truth == person].sum(axis=1) for person in people])
    itself = np.array([(unit[:, truth == person] ** 2).sum() for person in people])
    pairs = np.outer(counts, counts) - np.diag(counts)  # a code is not compared with itself
    return np.where(pairs > 0, (sums @ sums.T - np.diag(itself)) / np.maximum(pairs, 1), np.nan)


def as_images(vectors: Array, spec: Spec) -> Array | None:
    """Return feature vectors (d, N) as images (N, h, w): their pixels, or for `gradient` the strength of the slope.

    None if the vectors are those of a network alone.
    """
    own = spec.own
    if own is None:
        return None
    vectors = vectors[spec.length - own.length :]
    cell = own.gradient_cell if own.kind == "gradient" else own.cell
    h, w = own.height // cell, own.width // cell
    if own.kind == "gradient":
        return vectors.T.reshape(-1, DIRECTIONS, h, w).sum(axis=1)
    return vectors[: h * w].T.reshape(-1, h, w)


def _part_splits(trials: Trials, enrolled: Array, right: Array) -> tuple[PartSplit, ...]:
    """`right` (1 + P, n) says whether the whole face and each part name the right person."""
    if len(right) == 1:
        return ()
    conditions = trials.conditions[enrolled]
    chosen = {name: conditions == name for name in trials.condition_names} or {"": np.ones(len(enrolled), bool)}
    return tuple(
        PartSplit(
            name=name,
            parts=tuple(Share.among(part[photos]) for part in right[1:]),
            whole=Share.among(right[0, photos]),
            together=Share.among(trials.rank[enrolled[photos]] == 1),
        )
        for name, photos in chosen.items()
        if photos.any()
    )


def _shown_faces(trials: Trials, enrolled: Array, taken_off: Array, right: Array) -> list[int]:
    """Choose recognised faces of up to four conditions by how much is taken off: the median and the 90 % quantile.

    With parts, also the face with the most wrong parts.
    """
    quantiles = (0.5, 0.9) if trials.condition_names else (0.1, 0.5, 0.9, 1.0)
    shown = []
    for condition in trials.condition_names[:4] or ("",):
        photos = np.flatnonzero((trials.conditions[enrolled] == condition) & (trials.rank[enrolled] == 1))
        photos = photos[np.argsort(taken_off[photos], kind="stable")]
        if len(photos):
            shown += [int(photos[round(quantile * (len(photos) - 1))]) for quantile in quantiles]
            if len(right) > 1:
                shown.append(int(photos[right[1:, photos].sum(axis=0).argmin()]))
    return list(dict.fromkeys(shown))
