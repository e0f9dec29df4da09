"""Ordinary photographs: every preset, and what a user would write instead (sface_cosine.py), on a folder per person.

photo_draw.py says who is enrolled and who is a stranger. All systems get the same draw; each detects the faces by its own
rules.
What is printed, in percent, except for milliseconds:
- rank-1: test photos whose best score is that of the right person.
- FNIR at an FPIR: test photos with a wrong name, or with a confidence that does not exceed the threshold. The threshold is
  the lowest that at most this share of the strangers' photos exceeds: one for a system, from bare and occluded photos
  together.
- three: the same for three photos of a person and of one kind, scored as one visit. There are up to 30 different triples for
  each kind and each person with three photos of it. Strangers with fewer photos of a kind give one visit of what there is,
  because in some sets they have a single photo. The threshold is that of the strangers' visits, again both kinds together.
- as set: the strangers' photos that get a name, and the test photos of both kinds that are missed, at the threshold that
  `trainer fit` sets without these strangers. For the cosine it is 0.363, the threshold of OpenCV's example.
- failure to acquire: photos of all kinds without a usable face, enrolment included. They are left out of the other figures,
  and a visit consists of its usable photos. But if a system cannot enrol a person at all, the test photos of this person are
  missed.
- ms: processor time of one face from crop to scores, with one thread, without detection.
In JSON, a share of no photos is null.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from math import floor
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np
import typer
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from edge.cli import common as console
from edge.errors import EdgeError, GalleryError, UsageError
from edge.kit.manifest import ALIGNMENT, RELATIVE
from edge.vision.confidence import BLANK, score_length, score_norm
from edge.vision.detect import Face, FaceDetector, YuNetDetector
from edge.vision.preprocess import SIZE
from scripts.research.options import OccludedPrefix, People, Photographs, Photos, Seed, Strangers
from scripts.research.photo_draw import Draw, Visit, draw, with_wrong_names
from scripts.research.sface_cosine import COSINE, SFaceCosine, to_means, to_nearest
from trainer import training
from trainer.baselines.registry import method_of
from trainer.data import detector
from trainer.data.gallery import Gallery, load_like
from trainer.features.network import Network
from trainer.model import Model
from trainer.presets import DEFAULT, PRESETS
from trainer.thresholds import FPIR
from trainer.training import TrainingPlan
from trainer.types import Say

COSINES = {"sface_cosine_mean": to_means, "sface_cosine_nearest": to_nearest}
FPIRS = (0.01, 0.003)
MANY = 300  # people: beyond, not the preset paper, whose training time grows with the third power of their number
TIMED, WARM_UP = 50, 5  # faces
BATCH = 256
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


# --- The systems ---


@dataclass(frozen=True, kw_only=True, eq=False)
class Answers:
    """What a system says about the photos of a draw."""

    labels: NDArray[np.str_]
    """(C,), the people that could be enrolled."""
    scores: dict[int, NDArray[Any]]
    """(C,) for each usable test and stranger's photo. The highest score is the confidence."""
    summed: Callable[[NDArray[Any]], NDArray[Any]]
    """Scores (C,) of a visit from those of its photos (n, C)."""
    unusable: int
    """Photos without a usable face: enrolment, test and strangers."""
    threshold: float | None
    """The confidence that a name needs, as set without the strangers."""
    ms: float


class RememberedFaces:
    """A detector that looks at each photo once, for all presets."""

    def __init__(self, finder: FaceDetector) -> None:
        self.finder = finder
        self.found: dict[tuple[bytes, int | None], list[Face]] = {}

    def detect(self, image: NDArray[np.uint8], min_face: int | None = None) -> list[Face]:
        key = hashlib.sha256(repr(image.shape).encode() + image.tobytes()).digest(), min_face
        if key not in self.found:
            self.found[key] = self.finder.detect(image, min_face)
        return self.found[key]


class Presets:
    """The presets, trained and asked with the code of `trainer fit`, which reads links to the photos."""

    def __init__(self, drawn: Draw, folder: Path, say: Say) -> None:
        self.drawn, self.folder, self.say = drawn, folder, say
        for name, rows in (("enrolled", drawn.enrolled), ("others", drawn.tests + drawn.strangers)):
            for row in rows:
                link = folder / name / drawn.people[row] / f"{row}{drawn.files[row].suffix}"
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(drawn.files[row].resolve())
        finder = RememberedFaces(YuNetDetector(detector.yunet(say)))

        @cache
        def read(name: str, crop_shape: tuple[int, ...], alignment: str) -> Gallery:
            return load_like(folder / name, crop_shape, alignment, finder=finder)

        self.read = read
        self.trained = cache(self._trained)

    def _load(self, network: Network | None) -> Gallery:
        crop_shape, alignment = (SIZE, ALIGNMENT) if network is None else (network.crop_shape, network.alignment)
        return self.read("enrolled", crop_shape, alignment)

    def plan(self, preset: str) -> TrainingPlan:
        """Return what `trainer fit` would train for a preset."""
        return training.prepare(
            self._load,
            None,
            method=method_of("lclrrdl"),
            preset=preset,
            config=None,
            options={"random_state": 0},
            say=self.say,
        )

    def _trained(self, preset: str) -> tuple[Model, Gallery]:
        """Return the model of a preset, with the threshold that `trainer fit` sets, and its training photos."""
        plan = self.plan(preset)
        model = training.train(plan.gallery, plan.spec, plan.parameters, fpir=FPIR)
        wrong = set(self.drawn.misnamed)
        doubted = {int(Path(plan.gallery.sources[crop]).stem) for crop, _ in model.training["doubted"]}
        if wrong or doubted:
            counts = f"{len(doubted & wrong)} of {len(wrong)} wrong names, and {len(doubted - wrong)} right ones"
            self.say(f"{preset} doubts {counts}.")
        return model, plan.gallery

    def answers(self, preset: str) -> Answers:
        return self.answers_of(*self.trained(preset), preset)

    def answers_of(self, model: Model, enrolled: Gallery, preset: str) -> Answers:
        """Return the answers of a model of a preset, which was trained on `enrolled`."""
        others = self.read("others", enrolled.crop_shape, enrolled.alignment)
        rows = [int(Path(source).stem) for source in others.sources]
        batches = [model.scores(others.images[start : start + BATCH]) for start in range(0, len(rows), BATCH)]
        scores = np.concatenate(batches)
        lengths = score_length(scores, model.confidence)
        # The network remembers its crops: the lowest bits are changed for the timing.
        rng = np.random.default_rng(list(preset.encode()))
        crops = others.images[:TIMED] ^ rng.integers(0, 2, others.images[:TIMED].shape, np.uint8)
        return Answers(
            labels=np.array(model.labels),
            scores=dict(zip(rows, scores / score_norm(scores)[:, None] * lengths[:, None], strict=True)),
            summed=partial(_as_in_a_visit, kind=model.confidence),
            unusable=len(enrolled.rejected) + len(others.rejected),
            threshold=None if model.calibration is None else model.calibration.confidence,
            ms=milliseconds(lambda crop: model.scores(crop[None]), crops),
        )


def _as_in_a_visit(scores: NDArray[Any], kind: str) -> NDArray[Any]:
    """Return the scores of a visit with these photos, each weighted by its confidence (edge.decision.visit)."""
    weights = np.clip(scores.max(axis=1), 0, 1)
    total = weights @ scores
    return np.asarray(total / (score_norm(total) if kind == RELATIVE else max(weights.sum(), BLANK)))


class Cosines:
    """The cosines: each photo is looked at once for both."""

    def __init__(self, drawn: Draw, folder: Path, say: Say) -> None:
        self.drawn, self.folder, self.say = drawn, folder, say

    @cached_property
    def system(self) -> SFaceCosine:
        return SFaceCosine(self.folder, self.say)

    @cached_property
    def crops(self) -> dict[int, NDArray[np.uint8]]:
        return {row: crop for row in self.drawn.used if (crop := self.system.crop(self.drawn.files[row])) is not None}

    @cached_property
    def vectors(self) -> dict[int, NDArray[np.float32]]:
        return {row: self.system.vector(crop) for row, crop in self.crops.items()}

    def answers(self, name: str) -> Answers:
        enrolled = [row for row in self.drawn.enrolled if row in self.vectors]
        rows = [row for row in self.drawn.tests + self.drawn.strangers if row in self.vectors]
        labels, whose = np.unique(self.drawn.people[enrolled], return_inverse=True)
        if not (enrolled and rows):
            raise GalleryError("No face was found.", "Check the photos.")
        score = COSINES[name](np.stack([self.vectors[row] for row in enrolled]), whose)
        return Answers(
            labels=labels,
            scores=dict(zip(rows, score(np.stack([self.vectors[row] for row in rows])), strict=True)),
            summed=lambda scores: np.asarray(scores.mean(axis=0)),
            unusable=len(self.drawn.used) - len(self.vectors),
            threshold=COSINE,
            ms=milliseconds(lambda crop: score(self.system.vector(crop)[None]), (self.crops[row] for row in rows[:TIMED])),
        )


def milliseconds(call: Callable[[NDArray[np.uint8]], Any], crops: Iterable[NDArray[np.uint8]]) -> float:
    """Return the median processor time of a call, with one thread. The first calls prepare things, and do not count."""
    taken, threads = [], cv2.getNumThreads()
    cv2.setNumThreads(1)
    with threadpool_limits(1):
        for crop in crops:
            start = time.process_time()
            call(crop)
            taken.append(time.process_time() - start)
    cv2.setNumThreads(threads)
    return 1000 * float(np.median(taken[min(WARM_UP, len(taken) - 1) :]))


# --- The rates ---


def bound(strangers: NDArray[Any], fpir: float) -> float:
    """Return the confidence that a trial must exceed, so that at most the share `fpir` of the strangers' trials does."""
    allowed = floor(fpir * len(strangers) + 1e-9)  # 0.29 * 100 is less than 29
    return float(np.sort(strangers)[::-1][allowed])


@dataclass(frozen=True, kw_only=True, eq=False)
class Trials:
    """Visits of one or more photos, and the answer to each."""

    right: NDArray[np.bool_]
    """The best score is that of the person in the photos."""
    confidence: NDArray[np.float64]

    @classmethod
    def of(cls, visits: Iterable[Visit], people: NDArray[np.str_], answers: Answers) -> Trials:
        """Visits without a usable photo are left out."""
        right, confidence = [], []
        for visit in visits:
            usable = [answers.scores[row] for row in visit if row in answers.scores]
            if usable:
                scores = usable[0] if len(usable) == 1 else answers.summed(np.stack(usable))
                right.append(answers.labels[scores.argmax()] == people[visit[0]])
                confidence.append(scores.max())
        return cls(right=np.array(right, bool), confidence=np.array(confidence, float))

    def rates(self, strangers: NDArray[np.float64]) -> dict[str, float | None]:
        """Return rank-1, and FNIR at each FPIR; `strangers` are the confidences of their trials."""
        rates = {"rank1": percent(self.right)}
        for fpir in FPIRS:
            hit = self.right & (self.confidence > bound(strangers, fpir)) if len(strangers) else np.zeros(0, bool)
            rates[f"fnir_{fpir:g}"] = percent(~hit)
        return rates


def percent(outcomes: NDArray[np.bool_]) -> float | None:
    """Return the share of true outcomes in percent, or None if there are no outcomes."""
    return round(100 * float(outcomes.mean()), 4) if len(outcomes) else None


def result(drawn: Draw, answers: Answers) -> dict[str, Any]:
    """Return the results of a system, in percent."""

    def trials(visits: Iterable[Visit]) -> Trials:
        return Trials.of(visits, drawn.people, answers)

    def singles(rows: Iterable[int]) -> Trials:
        return trials((row,) for row in rows)

    strangers, three = singles(drawn.strangers).confidence, trials(drawn.visits["strangers"]).confidence
    as_set: dict[str, float | None] = {"fpir": None, "fnir": None}
    if answers.threshold is not None:
        tests = singles(drawn.tests)
        hit = tests.right & (tests.confidence >= answers.threshold)
        as_set = {"fpir": percent(strangers >= answers.threshold), "fnir": percent(~hit)}
    return {
        "bare": singles(drawn.kind(False)).rates(strangers),
        "occluded": singles(drawn.kind(True)).rates(strangers),
        "bare_three": trials(drawn.visits["bare"]).rates(three),
        "occluded_three": trials(drawn.visits["occluded"]).rates(three),
        "as_set": as_set,
        "failure_to_acquire": round(100 * answers.unusable / len(drawn.used), 4),
        "ms": round(answers.ms, 2),
    }


# --- The command ---


def table(results: dict[str, dict[str, Any]]) -> str:
    """Return the results as a Markdown table, without the kinds of photos that the set does not have."""
    titles = {"rank1": "rank-1", "fnir_0.01": "FNIR at 1 %", "fnir_0.003": "0.3 %", "fpir": "FPIR", "fnir": "FNIR"}
    columns = [["", "---", *results]]
    for group, values in next(iter(results.values())).items():
        own = [found[group] for found in results.values()]
        name = group.replace("_", " ")
        if not isinstance(values, dict):
            columns.append([name, "---", *(f"{value:.1f}" for value in own)])
        elif any(value is not None for found in own for value in found.values()):
            for key in values:
                cells = ("" if found[key] is None else f"{found[key]:.2f}" for found in own)
                columns.append([f"{name}: {titles[key]}" if key in ("rank1", "fpir") else titles[key], "---", *cells])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in zip(*columns, strict=True))


def chosen_systems(only: Sequence[str], people: int, say: Say) -> list[str]:
    """Return the systems to measure: those of --only, or all; for many people without the preset paper."""
    known = [*PRESETS, *COSINES]
    unknown = [name for name in only if name not in known]
    if unknown:
        raise UsageError(f"--only {unknown[0]} is not a system.", f"Choose from {', '.join(known)}.")
    if only:
        return [name for name in known if name in only]
    if people > MANY:
        say(f"More than {MANY} people: the preset paper is left out. Name it with --only.")
        return [name for name in known if name != "paper"]
    return known


@app.command()
def main(
    data: Photographs,
    people: People,
    photos: Photos,
    strangers: Strangers,
    seed: Seed = 0,
    occluded_prefix: OccludedPrefix = None,
    wrong_names: Annotated[float, typer.Option(min=0, max=1, help="Share of enrolled photos with another person's name.")] = 0,
    only: Annotated[list[str] | None, typer.Option(help="Measure this preset or cosine alone; may be repeated.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Measure all presets, and the cosine of SFace, on ordinary photographs; beyond 300 people not the preset paper."""
    drawn = draw(data, people=people, photos=photos, strangers=strangers, seed=seed, prefix=occluded_prefix, say=console.say)
    names = chosen_systems(only or [], len(set(drawn.people[list(drawn.enrolled)])), console.say)
    drawn = with_wrong_names(drawn, wrong_names, seed)
    console.say(drawn.summary())
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="lclrr-wild-") as folder:
        presets, cosines = (kind(drawn, Path(folder), console.say) for kind in (Presets, Cosines))
        for name in names:
            console.say(f"Measuring {name} ...")
            try:
                results[name] = result(drawn, (presets if name in PRESETS else cosines).answers(name))
            except (EdgeError, MemoryError, np.linalg.LinAlgError) as error:
                console.say(f"{name} is left out: {error}")
    if not results:
        raise UsageError("No system could be measured.", "See the messages above.")
    if as_json:
        typer.echo(json.dumps({"default": DEFAULT, "results": results}))
    else:
        typer.echo(f"{drawn.summary()}\n\n{table(results)}")


if __name__ == "__main__":
    console.run(app)
