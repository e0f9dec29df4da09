"""Ours and what others use, on the same faces: who is recognised, who is missed if strangers must stay out, time and size.

70 % of the people are enrolled, the others are strangers. AR: training and test images with sunglasses and scarves, as
`trainer reproduce` divides them; Yale B: 8 images of each person train, in any light, at half of full size; ORL: 5 of 10
aligned photos train. All get the same grey crops. SFace and dlib get them where their networks expect a face, without which
they do badly: AR's and Yale B's images, which have the eyes in nearly the same place, are moved and scaled all alike, ORL's by
their landmarks.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orl
import peers
from threadpoolctl import threadpool_limits

from edge.manifest import ARCFACE_ALIGNMENT
from edge.preprocess import FeatureSpec, align
from edge.runtime import session
from export import graph
from export.build import factorise
from trainer.backbone import SIDE, Backbone, Spec, chosen
from trainer.benchmark import Cell, load_arrays, random_split
from trainer.calibrate import top_confidence
from trainer.estimator import LCLRRDL
from trainer.gallery import Gallery, load
from trainer.model import fit
from trainer.presets import PRESETS
from trainer.prox import Array

FPIR, ENROLLED = 0.01, 0.7
# Eyes, nose and corners of the mouth in the mean image.
AR_POINTS = np.array([[7, 16.2], [23, 16.2], [15, 25], [9.7, 31.8], [20.3, 31.8]])
YALE_POINTS = np.array([[16.8, 23.4], [65.6, 23.4], [41.3, 50], [21, 75], [62, 75]])
# Features and parameters of each of ours. A network alone wants a larger ridge than one with our features beside it.
OURS: dict[str, dict[str, Any]] = {
    "ours, `door`": PRESETS["door"],
    "ours, `light`": PRESETS["light"],
    "ours, SFace in front": PRESETS["sface"] | {"features": "sface", "eta": 0.1},
    "ours, `sface`: fused": PRESETS["sface"],
}
COSINE = "SFace, nearest cosine"
TIMED = "AR mixed"  # on the first split of this


@dataclass(frozen=True, kw_only=True)
class Faces:
    """A data set: each face as it is, and as networks expect it."""

    crops: Array
    """(N, H, W) uint8."""
    aligned: Array
    """(N, 112, 112) uint8."""
    spec: FeatureSpec
    """Of our features of the crops."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """Train on some faces, and say who the others are."""

    name: str
    """The column of the table."""
    faces: str
    """The data set."""
    train: Array
    """Indices of the training images."""
    labels: Array
    """(len(train),) int, as told to the recogniser."""
    test: Array
    people: Array
    """(len(test),) int, the truth; -1 for strangers."""


@dataclass(frozen=True)
class Answers:
    labels: Array
    scores: Array
    """More is surer."""


def measure(data: Path, say: Callable[[str], None], splits: int = 5) -> dict[str, Any]:
    sets, labels = faces(data, say)
    tasks = sorted(_tasks(labels, splits), key=lambda task: task.name != TIMED)
    answers, facts = answered(sets, tasks, say, OURS)
    rates: dict[str, dict[str, Any]] = {}
    for way, given in answers.items():
        found: dict[str, list[tuple[float, float]]] = {}
        for task, answer in zip(tasks, given, strict=True):
            found.setdefault(task.name, []).append(_rates(answer, task.people))
        rates[way] = {name: np.mean(values, axis=0).round(2).tolist() for name, values in found.items()}
    first = tasks[0]
    facts[COSINE] = _sface_cost(len(first.train), say)
    for way, parameters in OURS.items():
        facts[way] = _cost(sets[first.faces], first, parameters, say)
    return {"splits": splits, "rates": rates, "facts": facts}


def faces(data: Path, say: Callable[[str], None]) -> tuple[dict[str, Faces], dict[str, Array]]:
    """The data sets, and the people in them as numbers."""
    ar, yale = Cell(dataset="ar"), Cell(dataset="yaleb", per_class=8, rate=2)
    sets, labels = {}, {}
    for name, cell, file, points in (("AR", ar, "ar_42x30", AR_POINTS), ("Yale B", yale, "yaleb_96x84", YALE_POINTS)):
        crops, labels[name] = load_arrays(data / f"{file}.npz", cell)
        sets[name] = Faces(crops=crops, aligned=placed(crops, points), spec=cell.spec("both"))
    say("The photos of ORL ...")
    small = load(orl.folder(), cropped=False, skip_bad=True, say=say)
    large = load(orl.folder(), cropped=False, skip_bad=True, size=(SIDE, SIDE), alignment=ARCFACE_ALIGNMENT)
    assert small.sources == large.sources
    photos = np.array([source.endswith(".pgm") for source in small.sources])  # one person has another picture beside the ten
    spec = FeatureSpec.for_crop(*small.images.shape[1:])
    sets["ORL"] = Faces(crops=small.images[photos], aligned=large.images[photos], spec=spec)
    labels["ORL"] = np.unique(small.labels[photos], return_inverse=True)[1]
    return sets, labels


def placed(crops: Array, points: Array) -> Array:
    """Crops that all show the face in the same place, as networks expect it."""
    return np.stack([align(crop, points, (SIDE, SIDE), ARCFACE_ALIGNMENT) for crop in crops])


def _tasks(labels: dict[str, Array], splits: int) -> Iterator[Task]:
    ways: dict[str, tuple[str, Callable[[Array, np.random.Generator], tuple[Array, Array]]]] = {
        f"AR {scenario}": ("AR", Cell(dataset="ar", scenario=scenario).split) for scenario in ("sunglasses", "scarf", "mixed")
    }
    ways["Yale B"] = ("Yale B", Cell(dataset="yaleb", per_class=8, rate=2).split)
    ways["ORL"] = ("ORL", lambda of, rng: random_split(of, 5, rng))
    for name, (faces, split) in ways.items():
        of = labels[faces]
        people = np.unique(of)
        for k in range(splits):
            known = np.random.default_rng([7, k]).permutation(people)[: round(ENROLLED * len(people))]
            train, test = split(of, np.random.default_rng([0, k]))
            train = train[np.isin(of[train], known)]
            asked = np.isin(of[test], known)
            # Of the strangers no image trains, so all images of the kinds that are tested may be asked about.
            kinds = np.unique(np.concatenate([train, test]) % 13) if faces == "AR" else np.arange(13)
            strangers = np.flatnonzero(~np.isin(of, known) & np.isin(np.arange(len(of)) % 13, kinds))
            truth = np.concatenate([of[test[asked]], np.full(len(strangers), -1)])
            yield Task(
                name=name, faces=faces, train=train, labels=of[train], test=np.append(test[asked], strangers), people=truth
            )


def answered(
    sets: dict[str, Faces], tasks: list[Task], say: Callable[[str], None], ours: dict[str, dict[str, Any]]
) -> tuple[dict[str, list[Answers]], dict[str, Any]]:
    """What ours and the peers say of each task; and what a face costs the peers, {"cpu_us": .., "bytes": ..}."""
    answers: dict[str, list[Answers]] = {way: [] for way in (*ours, COSINE)}
    sface = _spec("sface", None, say)
    assert isinstance(sface, Backbone)
    with threadpool_limits(1):
        for number, task in enumerate(tasks, start=1):
            own = sets[task.faces]
            for way, parameters in ours.items():
                say(f"{way}: {task.name}, task {number} of {len(tasks)} ...")
                estimator = _estimator(own, parameters, say).fit(_view(own, parameters)[task.train], task.labels)
                scores = estimator.decision_function(_view(own, parameters)[task.test])
                answers[way].append(Answers(estimator.classes_[scores.argmax(axis=1)], top_confidence(scores)))
            cosines = sface.vectors(own.aligned[task.test]) @ sface.vectors(own.aligned[task.train]).T
            answers[COSINE].append(Answers(task.labels[cosines.argmax(axis=1)], cosines.max(axis=1)))
    with tempfile.TemporaryDirectory(prefix="lclrr-peers-") as folder:
        given, out = Path(folder) / "tasks.npz", Path(folder) / "answers.npz"
        arrays = {f"{name}.{view}": getattr(own, view) for name, own in sets.items() for view in ("crops", "aligned")}
        for k, task in enumerate(tasks):
            arrays |= {f"{k}.set": np.array(task.faces), f"{k}.train": task.train, f"{k}.labels": task.labels}
            arrays |= {f"{k}.test": task.test}
        np.savez(given, **arrays)
        facts = {name: own for name, own in peers.run(say, given, out).items() if "skipped" not in own}
        if facts:
            with np.load(out) as found:
                for name in facts:
                    answers[name] = [
                        Answers(found[f"{name}.{k}.labels"], found[f"{name}.{k}.scores"]) for k in range(len(tasks))
                    ]
    return answers, facts


def _spec(features: str, own: FeatureSpec | None, say: Callable[[str], None]) -> Spec:
    found = chosen(features, say)
    if isinstance(found, Backbone):
        return found
    assert own is not None
    return own


def _view(own: Faces, parameters: dict[str, Any]) -> Array:
    return own.aligned if parameters["features"].startswith("sface") else own.crops


def _estimator(own: Faces, parameters: dict[str, Any], say: Callable[[str], None]) -> LCLRRDL:
    others = {name: value for name, value in parameters.items() if name != "features"}
    return LCLRRDL(features=_spec(parameters["features"], own.spec, say), **others)


def _rates(answer: Answers, people: Array) -> tuple[float, float]:
    """Percent of the enrolled recognised; and missed, at the threshold that 1 % of the strangers' images pass."""
    known = people >= 0
    right = answer.labels[known] == people[known]
    least = np.quantile(answer.scores[~known], 1 - FPIR)
    return 100 * float(right.mean()), 100 * (1 - float(np.mean(right & (answer.scores[known] > least))))


def _sface_cost(faces: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Time of the network, in the quicker of the two runtimes; its size, and that of the vectors of so many faces."""
    sface = chosen("sface", say)
    assert isinstance(sface, Backbone)
    taken = [own["cpu_us"] for name, own in peers.run(say).items() if name.startswith("SFace fp32") and "cpu_us" in own]
    return {"cpu_us": min(taken, default=None), "bytes": len(sface.model) + 4 * sface.length * faces}


def _cost(own: Faces, task: Task, parameters: dict[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
    """Time of a face in the graph that a kit would hold, and its size."""
    images = _view(own, parameters)
    gallery = Gallery(
        images=images[task.train],
        labels=np.array([f"{label:03d}" for label in task.labels]),
        sources=tuple(map(str, task.train)),
    )
    others = {name: value for name, value in parameters.items() if name != "features"}
    model = fit(gallery, _spec(parameters["features"], own.spec, say), others)
    built = graph.build(factorise(model), model.spec, model.coding)
    run, taken = session(built, "the graph"), []
    for image in images[task.test[:65]]:
        start = time.process_time()
        run.run(None, {"crops": image[None]})
        taken.append(time.process_time() - start)
    return {"cpu_us": 1e6 * float(np.median(taken[5:])), "bytes": len(built)}


def table(result: dict[str, Any]) -> str:
    """Each column's best in bold."""
    columns = list(next(iter(result["rates"].values())))
    columns = sorted(columns, key=lambda name: (name[:2] != "AR", name == TIMED, name == "ORL"))
    best = {
        name: (max(own[name][0] for own in result["rates"].values()), min(own[name][1] for own in result["rates"].values()))
        for name in columns
    }

    def marked(value: float, wanted: float) -> str:
        return f"**{value:.1f}**" if f"{value:.1f}" == f"{wanted:.1f}" else f"{value:.1f}"

    lines = [
        f"| rank-1 / FNIR at FPIR 1 %, % | {' | '.join(columns)} | ms a face | MB |",
        "|---" * (len(columns) + 3) + "|",
    ]
    for way, own in result["rates"].items():
        cells = [" / ".join(map(marked, own[name], best[name])) for name in columns]
        facts = result["facts"].get(way, {})
        spent = "" if facts.get("cpu_us") is None else f"{facts['cpu_us'] / 1000:.2f}"
        size = "" if "bytes" not in facts else f"{facts['bytes'] / 1e6:.1f}"
        lines.append(f"| {way} | {' | '.join(cells)} | {spent} | {size} |")
    return "\n".join(lines)
