"""How good a model or a kit is: identification with strangers among the visitors, in the terms of ISO/IEC 19795 and NIST.

Every photo is one trial, by itself. One of an enrolled person is missed (counted in FNIR) unless that person's score is the
highest of all and the confidence reaches the threshold; one of a stranger is a false positive (FPIR) if its confidence does.
Rank-1 and CMC ask enrolled people only, and no threshold. Photos in which no usable face is found are failures to acquire,
counted apart. Intervals are Clopper and Pearson's at 95 %, as if photos were independent; those of one person are not quite,
so what can be counted per person is counted per person as well. Zero in N claims no better than 3/N.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edge.text import percent
from edge.vision.preprocess import DIRECTIONS
from trainer import thresholds as calibrate
from trainer.data import gallery
from trainer.data.gallery import Gallery
from trainer.evaluation.trials import REFUSED, Subject, Trials, open_subject, pattern_of, try_out
from trainer.features.parts import unit_scores
from trainer.features.spec import Spec
from trainer.model import Model
from trainer.types import Array

SCHEMA = 1
FPIRS = (0.01, 0.003, 0.001)
DET_POINTS = 500
SHOWN = 12  # pairs and photos that are listed one by one
TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class Share:
    """So many of so many."""

    count: int
    of: int

    @property
    def value(self) -> float | None:
        return self.count / self.of if self.of else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Where the true share lies, at 95 %."""
        return calibrate.interval(self.count, self.of) if self.of else None

    @classmethod
    def among(cls, hits: Array) -> Share:
        return cls(int(np.sum(hits)), len(hits))


@dataclass(frozen=True, kw_only=True)
class Point:
    """What a threshold does."""

    target: float | None
    """The FPIR that was asked for; None for the threshold of the model or kit itself."""
    threshold: float
    fpir: Share
    """Strangers' photos that get a name."""
    fnir: Share
    """Enrolled people's photos that do not get the right name; of these..."""
    wrong: int
    """...so many get a wrong one."""

    @property
    def bound(self) -> float | None:
        """The FPIR below which nothing can be claimed with so many strangers: 3/N."""
        return min(3 / self.fpir.of, 1.0) if self.fpir.of else None

    @property
    def shown(self) -> bool:
        """Whether there are strangers enough to show the target."""
        return self.target is None or (self.bound is not None and self.bound <= self.target)


@dataclass(frozen=True, kw_only=True)
class Split:
    """One condition or one person."""

    name: str
    failed: Share
    """Photos without a usable face."""
    rank1: Share
    fnir: Share | None
    """At the threshold of the model or kit."""
    fnir_at: tuple[Share, ...]
    """At the thresholds of `Evaluation.at`."""
    fpir: Share | None
    """Of strangers in this condition, at the threshold of the model or kit."""
    taken_for: str = ""
    """A person: whom they are most often taken for."""


@dataclass(frozen=True, kw_only=True)
class Photo:
    """A photo that is worth looking at."""

    index: int
    """In the trials."""
    person: str
    source: str
    condition: str
    nearest: str
    """Whose score is highest."""
    confidence: float | None
    """None where the kit gives no name for another reason."""
    rank: int
    """Place of the right person; 0 for a stranger."""
    named: bool
    """Whether that name would be given."""


@dataclass(frozen=True, kw_only=True)
class Confusion:
    """A person who is taken for another, or a stranger who is."""

    person: str
    taken_for: str
    photos: Share
    """Of the person's photos those where the other comes first; of a stranger's, those that are given the name."""
    surest: Photo


@dataclass(frozen=True, kw_only=True)
class PartSplit:
    """How often the parts of a face name the right person, each by itself: in one condition."""

    name: str
    parts: tuple[Share, ...]
    """Row by row."""
    whole: Share
    """The whole face, by itself."""
    together: Share


@dataclass(frozen=True)
class Vote:
    """What a part of a face says by itself."""

    right: bool
    """Whether it names the right person."""
    confidence: float
    """Its weight among the others."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Example:
    """A face x = Dz + e."""

    photo: Photo
    taken_off: float
    """Sum of |e| over sum of |x|, of what is shown of them."""
    x: Array = field(repr=False)
    """(h, w), as an image..."""
    recovered: Array = field(repr=False)
    """...and Dz likewise; e is what it lacks."""
    parts: tuple[Vote, ...]
    """Row by row; none where the model has no parts..."""
    whole: Vote
    """...beside the whole face."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """All that was measured."""

    subject: Subject
    trials: Trials
    model: Model | None
    """For the pictures that explain the method."""
    notes: tuple[str, ...]
    people: int
    """Enrolled people who were seen."""
    strangers: int
    """Strangers who were seen."""
    failed: Share
    """To acquire: photos without a usable face."""
    reasons: dict[str, int]
    """Why."""
    unlike: int
    """Photos that the kit refuses whatever their confidence: no face that its dictionary can explain."""
    rank1: Share
    cmc: tuple[float, ...]
    """The right person is among the first r, for r = 1, 2..."""
    own: Point | None
    """At the threshold of the model or kit."""
    strangers_named: Share | None
    """Strangers of whom at least one photo gets a name there."""
    at: tuple[Point, ...]
    """At the thresholds that give an FPIR of at most FPIRS; empty without strangers."""
    det: tuple[tuple[float, float, float], ...]
    """(threshold, FPIR, FNIR)."""
    conditions: tuple[Split, ...]
    each: tuple[Split, ...]
    """Enrolled people, the most often missed first."""
    confusions: tuple[Confusion, ...]
    misses: tuple[Photo, ...]
    """The worst."""
    intruders: tuple[Confusion, ...]
    """The strangers with the highest confidence."""
    codes: Array | None
    """Z (m, n) of the enrolled people's photos."""
    own_atoms: float | None
    """The part of a code that lies on the atoms that began as the person's own photos, sum of |z|: the median."""
    alike: tuple[float, float] | None
    """Mean cosine between two codes of one person, and of two people."""
    examples: tuple[Example, ...]
    """Faces to show taken apart into DZ and E."""
    part_splits: tuple[PartSplit, ...]
    """By condition; empty where the model has no parts."""

    def facts(self) -> dict[str, Any]:
        """For JSON: every number of the page."""
        held_back = {"subject", "trials", "model", "codes"}
        told = ("kind", "file", "threshold", "provisional", "features", "coding")
        return {
            "schema": SCHEMA,
            **{name: getattr(self.subject, name) for name in told},
            "enrolled": len(self.subject.labels),
            **{part.name: _plain(getattr(self, part.name)) for part in fields(self) if part.name not in held_back},
            "residuals": self.residuals,
        }

    @property
    def residuals(self) -> list[list[float]] | None:
        """Of each iteration of training (solver.Step); None where the model does not tell."""
        return None if self.model is None else self.model.training.get("residuals")


def _plain(value: Any) -> Any:
    if isinstance(value, Share):
        low, high = value.interval or (None, None)
        return {"count": value.count, "of": value.of, "share": value.value, "low": low, "high": high}
    if is_dataclass(value):
        plain = {part.name: _plain(getattr(value, part.name)) for part in fields(value) if part.repr}
        return plain | ({"bound": value.bound, "shown": value.shown} if isinstance(value, Point) else {})
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def run(
    file: Path,
    data: Path,
    *,
    strangers: Path | None = None,
    model_file: Path | None = None,
    condition: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Evaluation:
    """Measure the model or kit in `file` on the gallery `data`.

    People whom it does not know are strangers, unless there are `strangers`: a gallery, or a folder of photos. `condition`
    is a regular expression; what its first group, or else all of it, finds in the name of a photo is the photo's condition.
    `model_file` is the model that a kit was made from: for the pictures, and to leave out photos that it was trained on.
    """
    pattern = pattern_of(condition)
    subject, model = open_subject(file, model_file)

    def read(path: Path) -> Gallery:
        return gallery.load_like(path, size=subject.size, alignment=subject.alignment, progress=progress, say=say)

    faces = read(data)
    others = None if strangers is None else read(strangers)
    trials, notes = try_out(subject, faces, others, model=model, pattern=pattern)
    return measure(subject, trials, model=model, notes=(*faces.notes, *(others.notes if others else ()), *notes))


# --- From trials to measures ---


def measure(subject: Subject, trials: Trials, *, model: Model | None = None, notes: tuple[str, ...] = ()) -> Evaluation:
    """Everything that is counted."""
    enrolled, rank = trials.enrolled, trials.rank
    strange = trials.confidence[~enrolled]
    at = tuple(_point(trials, calibrate.threshold(strange, rate).confidence, rate) for rate in FPIRS) if len(strange) else ()
    own = None if subject.threshold is None else _point(trials, subject.threshold)
    named = np.zeros(len(rank), bool) if own is None else trials.confidence >= own.threshold
    people = [person for i, person in enumerate(trials.labels) if (trials.truth == i).any() or _refused(trials, person)]
    each = [_split(trials, person, trials.people == person, own, at, person=person) for person in people]
    conditions = [_split(trials, name, trials.conditions == name, own, at) for name in trials.condition_names]
    inside: dict[str, Any] = {"codes": None, "own_atoms": None, "alike": None, "examples": (), "part_splits": ()}
    return Evaluation(
        subject=subject,
        trials=trials,
        model=model,
        notes=notes,
        people=len(np.unique(trials.truth[enrolled])),
        strangers=len(np.unique(trials.people[~enrolled])),
        failed=Share(len(trials.refused), len(trials.refused) + len(rank)),
        reasons=dict(Counter(photo.reason for photo in trials.refused).most_common()),
        unlike=int(np.sum(trials.confidence == REFUSED)),
        rank1=Share.among(rank[enrolled] == 1),
        cmc=tuple(float(np.mean(rank[enrolled] <= r)) for r in range(1, len(trials.labels) + 1)),
        own=own,
        strangers_named=_strangers_named(trials, named) if own is not None and len(strange) else None,
        at=at,
        det=det(trials.genuine[enrolled], strange),
        conditions=tuple(conditions),
        each=tuple(sorted(each, key=_how_often_missed)),
        confusions=_confusions(trials, named)[:SHOWN],
        misses=_misses(trials, named),
        intruders=_intruders(trials, named)[:SHOWN],
        **(inside if model is None else _look_inside(model, trials, named)),
    )


def det(genuine: Array, strangers: Array) -> tuple[tuple[float, float, float], ...]:
    """(threshold, FPIR, FNIR), the FPIR rising: the lowest threshold that lets k strangers pass, for some DET_POINTS k.

    `genuine` is the confidence with which the right name is given, `strangers` that of any name.
    """
    if not len(strangers):
        return ()
    falling, rising = np.sort(strangers[strangers > REFUSED])[::-1], np.sort(genuine)
    counts = np.unique([0, *np.geomspace(1, max(len(falling), 1), DET_POINTS).astype(int)])
    # Just above the first that must not pass; the last, with nobody left to keep out, is where the lowest passes.
    thresholds = np.append(np.nextafter(falling, np.inf), falling[-1:] if len(falling) else [-1.0, -1.0])[counts]
    passed = np.searchsorted(-falling, -thresholds, side="right") / len(strangers)
    missed = np.searchsorted(rising, thresholds, side="left") / max(len(rising), 1)
    return tuple(zip(thresholds.tolist(), passed.tolist(), missed.tolist(), strict=True))


def _point(trials: Trials, threshold: float, target: float | None = None) -> Point:
    enrolled, passes = trials.enrolled, trials.confidence >= threshold
    return Point(
        target=target,
        threshold=threshold,
        fpir=Share.among(passes[~enrolled]),
        fnir=Share.among(trials.genuine[enrolled] < threshold),
        wrong=int(np.sum(passes & enrolled & (trials.rank > 1))),
    )


def _refused(trials: Trials, person: str) -> int:
    return sum(photo.person == person for photo in trials.refused)


def _split(
    trials: Trials, name: str, chosen: Array, own: Point | None, at: tuple[Point, ...], *, person: str | None = None
) -> Split:
    enrolled = chosen & trials.enrolled
    if person is None:
        strangers = trials.confidence[chosen & ~trials.enrolled]
        refused = sum(photo.condition == name for photo in trials.refused)
        seen = int(chosen.sum())
    else:
        strangers, refused, seen = np.zeros(0), _refused(trials, person), int(enrolled.sum())
    others = Counter(trials.named[enrolled & (trials.rank > 1)].tolist())
    return Split(
        name=name,
        failed=Share(refused, refused + seen),
        rank1=Share.among(trials.rank[enrolled] == 1),
        fnir=None if own is None else Share.among(trials.genuine[enrolled] < own.threshold),
        fnir_at=tuple(Share.among(trials.genuine[enrolled] < point.threshold) for point in at),
        fpir=None if own is None or not len(strangers) else Share.among(strangers >= own.threshold),
        taken_for=trials.labels[others.most_common(1)[0][0]] if others and person is not None else "",
    )


def _how_often_missed(person: Split) -> tuple[float, float, str]:
    fnir = None if person.fnir is None else person.fnir.value
    return -(0 if fnir is None else fnir), person.rank1.value or 0, person.name


def _strangers_named(trials: Trials, named: Array) -> Share:
    strange = ~trials.enrolled
    return Share(len(np.unique(trials.people[strange & named])), len(np.unique(trials.people[strange])))


def _photo(trials: Trials, i: Any, named: Array) -> Photo:
    return Photo(
        index=int(i),
        person=str(trials.people[i]),
        source=trials.sources[i],
        condition=str(trials.conditions[i]),
        nearest=trials.labels[trials.named[i]],
        confidence=None if trials.confidence[i] == REFUSED else float(trials.confidence[i]),
        rank=int(trials.rank[i]),
        named=bool(named[i]),
    )


def _pairs(trials: Trials, chosen: Array, counted: Array, named: Array) -> list[Confusion]:
    """Who is taken for whom in the photos `chosen`; photos are those `counted`."""
    pairs: dict[tuple[str, str], list[int]] = {}
    for i in np.flatnonzero(chosen):
        pairs.setdefault((str(trials.people[i]), trials.labels[trials.named[i]]), []).append(int(i))
    return [
        Confusion(
            person=person,
            taken_for=other,
            photos=Share(int(counted[photos].sum()), int(np.sum((trials.people == person) & (trials.enrolled == enrolled)))),
            surest=_photo(trials, max(photos, key=lambda i: trials.confidence[i]), named),
        )
        for (person, other), photos in pairs.items()
        for enrolled in [trials.enrolled[photos[0]]]
    ]


def _confusions(trials: Trials, named: Array) -> tuple[Confusion, ...]:
    """Pairs of enrolled people, the most frequent and then the surest first."""
    lost = (trials.rank > 1) & (trials.named != trials.truth)  # where all scores tie, the first is nobody's choice
    return tuple(
        sorted(_pairs(trials, lost, lost, named), key=lambda pair: (-pair.photos.count, -trials.confidence[pair.surest.index]))
    )


def _misses(trials: Trials, named: Array) -> tuple[Photo, ...]:
    """First those who get a wrong name, then those who get none; in each the ones farthest from their own name first."""
    missed = np.flatnonzero(trials.enrolled & ((trials.rank > 1) | ~named))
    worst = sorted(missed, key=lambda i: (not (named[i] and trials.rank[i] > 1), trials.own_score[i]))
    return tuple(_photo(trials, i, named) for i in worst[:SHOWN])


def _intruders(trials: Trials, named: Array) -> tuple[Confusion, ...]:
    """Pairs of a stranger and an enrolled person, the surest first."""
    return tuple(
        sorted(_pairs(trials, ~trials.enrolled, named, named), key=lambda pair: -trials.confidence[pair.surest.index])
    )


# --- Inside the model ---


def _look_inside(model: Model, trials: Trials, named: Array) -> dict[str, Any]:
    own, truth = np.flatnonzero(trials.enrolled), trials.truth[trials.enrolled]
    X = model.spec.vectors(trials.crops[own]).T
    codes = model.coder.code(X)
    size = np.abs(codes)
    share = np.where(model.atom_people[:, None] == truth, size, 0).sum(axis=0) / np.maximum(size.sum(axis=0), TINY)
    alike = likeness(codes, truth)
    same, others = np.diag(alike)[~np.isnan(np.diag(alike))], alike[~np.eye(len(alike), dtype=bool)]
    x, recovered = as_images(X, model.spec), as_images(model.D @ codes, model.spec)
    votes = [unit_scores(scores) for scores in model.part_scores(trials.crops[own])]
    right = np.stack([vote.argmax(axis=0) == truth for vote in votes])
    sure = np.stack([vote.max(axis=0) for vote in votes])
    return {
        "codes": codes,
        "own_atoms": float(np.median(share)),
        "alike": (float(same.mean()), float(others.mean())) if len(same) and len(others) else None,
        "examples": () if x is None or recovered is None else _examples(trials, own, x, recovered, right, sure, named),
        "part_splits": _part_splits(trials, own, right),
    }


def likeness(codes: Array, truth: Array) -> Array:
    """(P, P) mean cosine between the codes of each two people, less what all codes share; not a number for one code alone."""
    unit = codes / np.maximum(np.linalg.norm(codes, axis=0), TINY)
    unit = unit - unit.mean(axis=1, keepdims=True)
    unit = (unit / np.maximum(np.linalg.norm(unit, axis=0), TINY)).astype(np.float64)
    people, counts = np.unique(truth, return_counts=True)
    sums = np.stack([unit[:, truth == person].sum(axis=1) for person in people])
    itself = np.array([(unit[:, truth == person] ** 2).sum() for person in people])
    pairs = np.outer(counts, counts) - np.diag(counts)  # a code is not compared with itself
    return np.where(pairs > 0, (sums @ sums.T - np.diag(itself)) / np.maximum(pairs, 1), np.nan)


def as_images(vectors: Array, spec: Spec) -> Array | None:
    """(N, h, w): the pixels in feature vectors (d, N); of `gradient`, which has none, how much slope there is in each cell.

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


def _part_splits(trials: Trials, own: Array, right: Array) -> tuple[PartSplit, ...]:
    """From whether the whole face and each part (1 + P, n) name the right person."""
    if len(right) == 1:
        return ()
    chosen = {name: trials.conditions[own] == name for name in trials.condition_names} or {"": np.ones(len(own), bool)}
    return tuple(
        PartSplit(
            name=name,
            parts=tuple(Share.among(part[ours]) for part in right[1:]),
            whole=Share.among(right[0, ours]),
            together=Share.among(trials.rank[own[ours]] == 1),
        )
        for name, ours in chosen.items()
        if ours.any()
    )


def _examples(
    trials: Trials, own: Array, x: Array, recovered: Array, right: Array, sure: Array, named: Array
) -> tuple[Example, ...]:
    """Recognised faces of up to four conditions, two each, chosen by how much is taken off and not by eye: of half of the
    others less is, and of nine in ten. With parts, also the one in which most of them are wrong.

    `right` and `sure` (1 + P, n) are of the whole face and each part.
    """
    taken = np.abs(x - recovered).sum(axis=(1, 2)) / np.maximum(np.abs(x).sum(axis=(1, 2)), TINY)
    found: dict[int, Example] = {}
    for condition in trials.condition_names[:4] or ("",):
        ours = np.flatnonzero((trials.conditions[own] == condition) & (trials.rank[own] == 1))
        ours = ours[np.argsort(taken[ours], kind="stable")]
        if not len(ours):
            continue
        quantiles = (0.5, 0.9) if trials.condition_names else (0.1, 0.5, 0.9, 1.0)
        shown = [int(ours[round(quantile * (len(ours) - 1))]) for quantile in quantiles]
        if len(right) > 1:
            shown.append(int(ours[right[1:, ours].sum(axis=0).argmin()]))
        for i in shown:
            whole, *parts = (Vote(bool(agrees), float(weight)) for agrees, weight in zip(right[:, i], sure[:, i], strict=True))
            found[i] = Example(
                photo=_photo(trials, own[i], named),
                taken_off=float(taken[i]),
                x=x[i],
                recovered=recovered[i],
                parts=tuple(parts),
                whole=whole,
            )
    return tuple(found.values())


# --- In a few lines, for the terminal ---


def spelled(share: Share | None, digits: int = 1) -> str:
    """0.9 % (7 of 780; 0.4 % to 1.8 %)"""
    if share is None or share.interval is None:
        return "-"
    low, high = share.interval
    return f"{percent(share.value, digits)} ({share.count} of {share.of}; {percent(low, digits)} to {percent(high, digits)})"


def table(found: Evaluation) -> str:
    rows = [("rank-1", spelled(found.rank1))]
    if found.own is not None:
        rows += [("threshold", f"{found.own.threshold:g}"), ("FNIR", spelled(found.own.fnir))]
        rows += [("FPIR", spelled(found.own.fpir, 2) if found.own.fpir.of else "no strangers")]
    for point in found.at:
        note = "" if point.shown else f"; too few strangers: no better than {percent(point.bound, 2)} can be claimed"
        rows.append((f"FNIR at FPIR {point.target:g}", spelled(point.fnir) + note))
    rows.append(("failure to acquire", spelled(found.failed)))
    for split in found.conditions:
        name = split.name or "other"
        rows += [(f"{name}: rank-1", spelled(split.rank1))]
        rows += [(f"{name}: FNIR", spelled(split.fnir))] if split.fnir is not None else []
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
