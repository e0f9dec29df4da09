"""`trainer evaluate`: measure a model or kit on photos of enrolled people and strangers."""

import re
from collections import Counter
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from edge.errors import UsageError
from edge.text import percent
from trainer.data.gallery import load_like
from trainer.evaluation.inside import Inside, look_inside
from trainer.evaluation.measures import Point, Share, Split, det, operating_point, points_at_fpirs, splits
from trainer.evaluation.trials import NOT_NAMED, EvaluatedSystem, Trial, Trials, open_system, run_trials
from trainer.types import Array, Progress, Say, silent

REPORT_SCHEMA = 1
SHOWN = 12  # pairs and photos that are listed


@dataclass(frozen=True, kw_only=True)
class Confusion:
    """A person who is confused with another person, or a stranger with an enrolled person."""

    person: str
    taken_for: str
    photos: Share  # photos of the person in which the other is first; for a stranger, photos that get the label
    surest: Trial  # the one with the highest confidence


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """All results. The field names are keys of the JSON file, except those with repr=False."""

    system: EvaluatedSystem = field(repr=False)
    trials: Trials = field(repr=False)
    notes: tuple[str, ...]
    people: int  # enrolled people with a trial
    strangers: int  # strangers with a trial
    failed: Share  # failures to acquire: photos without a usable face
    reasons: dict[str, int]  # their reasons
    unlike: int  # photos that the kit does not name whatever their confidence, because they look unlike a face
    rank1: Share
    cmc: tuple[float, ...]  # the share of photos with the right person among the first r, for r = 1, 2...
    own: Point | None  # at the threshold of the model or kit
    strangers_named: Share | None  # strangers with at least one photo that gets a label there
    at: tuple[Point, ...]  # at the thresholds for FPIRS; empty without strangers
    det: tuple[tuple[float, float, float], ...]  # (threshold, FPIR, FNIR)
    conditions: tuple[Split, ...]
    each: tuple[Split, ...]  # enrolled people, the most often missed first
    confusions: tuple[Confusion, ...]  # pairs of enrolled people, the most frequent first
    misses: tuple[Trial, ...]  # the worst misses
    intruders: tuple[Confusion, ...]  # the strangers with the highest confidence
    inside: Inside | None = field(repr=False)  # None without a model

    def facts(self) -> dict[str, Any]:
        """Return every number of the page, for JSON."""
        about = ("kind", "file", "threshold", "provisional", "features", "coding")
        no_inside: dict[str, Any] = {"own_atoms": None, "alike": None, "examples": [], "part_splits": []}
        return {
            "schema": REPORT_SCHEMA,
            **{name: getattr(self.system, name) for name in about},
            "enrolled": len(self.system.labels),
            **_plain(self),
            **(no_inside if self.inside is None else _plain(self.inside)),
            "residuals": self.residuals,
        }

    @property
    def residuals(self) -> list[list[float]] | None:
        """Of each iteration of training (solver.Step); None if the model does not have them."""
        return None if self.system.model is None else self.system.model.training.get("residuals")


def _plain(value: Any) -> Any:
    if isinstance(value, Share):
        low, high = value.interval or (None, None)
        return {"count": value.count, "of": value.of, "share": value.value, "low": low, "high": high}
    if is_dataclass(value):
        plain = {part.name: _plain(getattr(value, part.name)) for part in fields(value) if part.repr}
        return plain | ({"bound": value.bound, "shown": value.shown} if isinstance(value, Point) else {})
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def evaluate(
    file: Path,
    data: Path,
    *,
    strangers: Path | None = None,
    model_file: Path | None = None,
    condition: str | None = None,
    progress: Progress = silent,
    say: Say = silent,
) -> Evaluation:
    """Measure the model or kit in `file` on the gallery `data`.

    People who are not enrolled are strangers, unless `strangers` are given: a gallery, or a folder of photos. `condition` is
    a regular expression; its first group in the name of a photo, or the whole match, is the condition of the photo.
    `model_file` is the model that a kit was made from: for the pictures, and to leave out training photos.
    """
    try:
        pattern = None if condition is None else re.compile(condition)
    except re.error as error:
        message = f"--condition is not a regular expression ({error})."
        raise UsageError(message, "For example --condition '_(clean|sunglasses|scarf)'.") from None
    system = open_system(file, model_file)
    how: dict[str, Any] = {"progress": progress, "say": say}
    faces = load_like(data, system.crop_shape, system.alignment, **how)
    others = None if strangers is None else load_like(strangers, system.crop_shape, system.alignment, **how)
    trials, notes = run_trials(system, faces, others, pattern)
    return measure(system, trials, (*faces.notes, *(others.notes if others else ()), *notes))


def measure(system: EvaluatedSystem, trials: Trials, notes: tuple[str, ...] = ()) -> Evaluation:
    """Compute all results from the trials."""
    trials = replace(trials, threshold=system.threshold)
    enrolled, rank, names = trials.enrolled, trials.rank, trials.people
    at = points_at_fpirs(trials)
    own = None if trials.threshold is None else operating_point(trials, trials.threshold)
    strangers = len(np.unique(names[~enrolled]))
    conditions, each = splits(trials, own, at)
    confused = (rank > 1) & (trials.nearest != trials.truth)  # in a tie, the first label is not the choice of the model
    return Evaluation(
        system=system,
        trials=trials,
        notes=notes,
        people=len(np.unique(trials.truth[enrolled])),
        strangers=strangers,
        failed=Share(len(trials.not_acquired), len(trials.not_acquired) + len(rank)),
        reasons=dict(Counter(photo.reason for photo in trials.not_acquired).most_common()),
        unlike=int(np.sum(trials.confidence == NOT_NAMED)),
        rank1=Share.among(rank[enrolled] == 1),
        cmc=tuple(float(np.mean(rank[enrolled] <= r)) for r in range(1, len(trials.labels) + 1)),
        own=own,
        strangers_named=Share(len(np.unique(names[~enrolled & trials.named])), strangers) if own and strangers else None,
        at=at,
        det=det(trials.genuine[enrolled], trials.confidence[~enrolled]),
        conditions=conditions,
        each=each,
        confusions=tuple(sorted(_pairs(trials, confused, confused), key=lambda pair: -pair.photos.count)[:SHOWN]),
        misses=_misses(trials),
        intruders=tuple(_pairs(trials, ~enrolled, trials.named)[:SHOWN]),
        inside=None if system.plain is None else look_inside(system.plain, trials),
    )


def _pairs(trials: Trials, chosen: Array, counted: Array) -> list[Confusion]:
    """Return each pair of a person and the first label in the photos `chosen`, with the number `counted`; the surest first."""
    pairs: dict[tuple[str, str], list[int]] = {}
    for i in np.flatnonzero(chosen):
        pairs.setdefault((str(trials.people[i]), trials.labels[trials.nearest[i]]), []).append(int(i))
    found = []
    for (person, other), photos in pairs.items():
        surest = max(photos, key=lambda i: trials.confidence[i])
        total = np.sum((trials.people == person) & (trials.enrolled == trials.enrolled[surest]))
        share = Share(int(counted[photos].sum()), int(total))
        found.append(Confusion(person=person, taken_for=other, photos=share, surest=trials.trial(surest)))
    return sorted(found, key=lambda pair: -trials.confidence[pair.surest.index])


def _misses(trials: Trials) -> tuple[Trial, ...]:
    """Return photos with a wrong label, then photos without a label; in each, those with the lowest own score first."""
    norm = np.linalg.norm(trials.scores, axis=1)
    own_score = np.where(norm > 0, trials.true_score / np.where(norm > 0, norm, 1), 0)
    missed = np.flatnonzero(trials.enrolled & ((trials.rank > 1) | ~trials.named))
    worst = sorted(missed, key=lambda i: (not (trials.named[i] and trials.rank[i] > 1), own_score[i]))
    return tuple(map(trials.trial, worst[:SHOWN]))


def rate_text(share: Share | None, digits: int = 1) -> str:
    """Return for example: 0.9 % (7 of 780; 0.4 % to 1.8 %)."""
    if share is None or share.interval is None:
        return "-"
    low, high = share.interval
    return f"{percent(share.value, digits)} ({share.count} of {share.of}; {percent(low, digits)} to {percent(high, digits)})"


def summary(found: Evaluation) -> str:
    """Return the main rates as a table for the terminal."""
    rows = [("rank-1", rate_text(found.rank1))]
    if found.own is not None:
        rows += [("threshold", f"{found.own.threshold:g}"), ("FNIR", rate_text(found.own.fnir))]
        rows += [("FPIR", rate_text(found.own.fpir, 2) if found.own.fpir.of else "no strangers")]
    for point in found.at:
        note = "" if point.shown else f"; too few strangers, they show {percent(point.bound, 2)} at best"
        rows.append((f"FNIR at FPIR {point.target:g}", rate_text(point.fnir) + note))
    rows.append(("failure to acquire", rate_text(found.failed)))
    for split in found.conditions:
        name = split.name or "other"
        rows += [(f"{name}: rank-1", rate_text(split.rank1))]
        rows += [(f"{name}: FNIR", rate_text(split.fnir))] if split.fnir is not None else []
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
