"""Our recogniser and those of others on the same faces: rank-1, misses at a fixed rate of strangers, time and size.

70 % of the people are enrolled, the others are strangers. AR: training and test images with sunglasses and scarves, as
`trainer reproduce` divides them; Yale B: 8 images of each person train, in any light, at half of full size; ORL: 5 of 10
aligned photos train. All get the same grey crops. SFace and dlib get them at the position that their networks expect,
because they fail otherwise: the images of AR and Yale B, with the eyes in nearly the same place, are all moved and scaled in
the same way, those of ORL by their landmarks.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from edge.kit.manifest import ARCFACE_ALIGNMENT
from edge.vision.confidence import score_confidence
from edge.vision.onnx_session import load_session
from edge.vision.preprocess import FeatureSpec, align
from export import graph
from scripts.research import orl, peers
from scripts.research.peer_recognizers import RECOGNIZERS
from scripts.research.results import ResultsFile
from trainer.data.gallery import Gallery, load_gallery
from trainer.features.network import SIDE
from trainer.features.spec import Spec, parse_network
from trainer.model import Model
from trainer.own_features import chosen_features
from trainer.paper.experiments import Cell, load_arrays, random_split
from trainer.presets import DEFAULT, PRESETS
from trainer.training import fit
from trainer.types import Array

FPIR, ENROLLED = 0.01, 0.7
# Eyes, nose and corners of the mouth in the mean image.
AR_POINTS = np.array([[7, 16.2], [23, 16.2], [15, 25], [9.7, 31.8], [20.3, 31.8]])
YALE_POINTS = np.array([[16.8, 23.4], [65.6, 23.4], [41.3, 50], [21, 75], [62, 75]])
# Our features and parameters.
OURS: dict[str, dict[str, Any]] = {
    "ours, `tiny`": PRESETS["tiny"],
    "ours, `minimal`": PRESETS["minimal"],
    "ours, `network`": PRESETS["network"],
}
COSINE = "SFace, nearest cosine"
TIMED = "AR mixed"  # the task that is timed, on its first split
COST, ONCE = "cost", "none"
"""The key of time and size among the tasks of a method; the task that is the same in all splits (spoiled.py)."""


@dataclass(frozen=True, kw_only=True)
class Faces:
    """A data set: each face unchanged, and aligned for networks."""

    crops: Array
    """(N, H, W) uint8."""
    aligned: Array
    """(N, 112, 112) uint8."""
    spec: FeatureSpec
    """Our features of the crops."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """Train on some faces and identify the others."""

    name: str
    """The column of the table."""
    split: int
    faces: str
    """The data set."""
    train: Array
    """Indices of the training images."""
    labels: Array
    """(len(train),) int, as given to the recogniser."""
    test: Array
    people: Array
    """(len(test),) int, the truth; -1 for strangers."""


@dataclass(frozen=True)
class Answers:
    labels: Array
    scores: Array
    """Higher is more certain."""


def measure(
    data: Path, say: Callable[[str], None], results: ResultsFile, *, splits: int = 1, cells: str = ""
) -> dict[str, Any]:
    """Measure the cells with `cells` in their name, and return all results."""
    sets, labels = faces(data, say)
    tasks = sorted(tasks_of(labels, splits), key=lambda task: task.name != TIMED)
    measure_missing("peers", sets, tasks, rates, results, say, cells)
    for method in (*OURS, COSINE):
        name = f"peers/{method}/{COST}"
        if name not in results and cells in name:
            say(f"{name} ...")
            task = tasks[0]
            cost = _sface_cost(len(task.train), say) if method == COSINE else _cost(sets["AR"], task, OURS[method], say)
            results.save(name, cost)
    found = mean_results("peers", results, splits)
    return {"splits": splits, "rates": found, "facts": {method: results.get(f"peers/{method}/{COST}", {}) for method in found}}


def mean_results(part: str, results: ResultsFile, splits: int) -> dict[str, dict[str, Any]]:
    """Return means over the splits, by method and task, of the tasks with all splits measured."""
    means: dict[str, dict[str, Any]] = {method: {} for method in (*OURS, COSINE, *RECOGNIZERS)}
    runs: dict[tuple[str, str], list[Any]] = {}
    for key, value in results.items():
        names = key.split("/")
        if names[0] == part and names[-1] != COST and int(names[3]) < splits:
            runs.setdefault((names[1], names[2]), []).append(value)
    for (method, task), values in runs.items():
        if method in means and len(values) == (1 if task == ONCE else splits):
            means[method][task] = np.mean(values, axis=0).tolist()
    return means


def faces(data: Path, say: Callable[[str], None]) -> tuple[dict[str, Faces], dict[str, Array]]:
    """The data sets, and their labels as numbers."""
    ar, yale = Cell(dataset="ar"), Cell(dataset="yaleb", per_class=8, rate=2)
    sets, labels = {}, {}
    for name, cell, file, points in (("AR", ar, "ar_42x30", AR_POINTS), ("Yale B", yale, "yaleb_96x84", YALE_POINTS)):
        crops, labels[name] = load_arrays(data / f"{file}.npz", cell)
        sets[name] = Faces(crops=crops, aligned=align_all(crops, points), spec=cell.spec("both"))
    say("Reading the photos of ORL ...")
    small = load_gallery(orl.folder(), cropped=False, say=say)
    large = load_gallery(orl.folder(), cropped=False, size=(SIDE, SIDE), alignment=ARCFACE_ALIGNMENT)
    assert small.sources == large.sources
    photos = np.array([source.endswith(".pgm") for source in small.sources])  # one folder has another file
    spec = FeatureSpec.for_crop(*small.images.shape[1:])
    sets["ORL"] = Faces(crops=small.images[photos], aligned=large.images[photos], spec=spec)
    labels["ORL"] = np.unique(small.labels[photos], return_inverse=True)[1]
    return sets, labels


def align_all(crops: Array, points: Array) -> Array:
    """Crops with the same position of the face, aligned for networks."""
    return np.stack([align(crop, points, (SIDE, SIDE), ARCFACE_ALIGNMENT) for crop in crops])


def tasks_of(labels: dict[str, Array], splits: int, share: float = ENROLLED) -> Iterator[Task]:
    """Tasks of all data sets, with this share of their people enrolled."""
    splitters: dict[str, tuple[str, Callable[[Array, np.random.Generator], tuple[Array, Array]]]] = {
        f"AR {scenario}": ("AR", Cell(dataset="ar", scenario=scenario).split) for scenario in ("sunglasses", "scarf", "mixed")
    }
    splitters["Yale B"] = ("Yale B", Cell(dataset="yaleb", per_class=8, rate=2).split)
    splitters["ORL"] = ("ORL", lambda of, rng: random_split(of, 5, rng))
    for name, (faces, split) in splitters.items():
        of = labels[faces]
        people = np.unique(of)
        for k in range(splits):
            known = np.random.default_rng([7, k]).permutation(people)[: round(share * len(people))]
            train, test = split(of, np.random.default_rng([0, k]))
            train = train[np.isin(of[train], known)]
            enrolled = np.isin(of[test], known)
            # No image of a stranger trains, so all images of the tested kinds are probes.
            kinds = np.unique(np.concatenate([train, test]) % 13) if faces == "AR" else np.arange(13)
            strangers = np.flatnonzero(~np.isin(of, known) & np.isin(np.arange(len(of)) % 13, kinds))
            truth = np.concatenate([of[test[enrolled]], np.full(len(strangers), -1)])
            probes = np.append(test[enrolled], strangers)
            yield Task(name=name, split=k, faces=faces, train=train, labels=of[train], test=probes, people=truth)


def measure_missing(
    part: str,
    sets: dict[str, Faces],
    tasks: list[Task],
    score: Callable[[Answers, Array], Any],
    results: ResultsFile,
    say: Callable[[str], None],
    cells: str = "",
) -> None:
    """Save the result of each method in each task as PART/METHOD/TASK/SPLIT, and time and size of the peers."""

    def name(method: str, task: Task) -> str:
        return f"{part}/{method}/{task.name}/{task.split}"

    methods = (*OURS, COSINE, *RECOGNIZERS)
    todo = {
        method: [k for k, task in enumerate(tasks) if name(method, task) not in results and cells in name(method, task)]
        for method in methods
    }
    done, total, began = 0, sum(map(len, todo.values())), time.monotonic()

    def keep(method: str, task: Task, answer: Answers) -> None:
        nonlocal done
        key = name(method, task)
        results.save(key, score(answer, task.people))
        done += 1
        say(f"{done} of {total}, {(time.monotonic() - began) / 60:.1f} minutes: {key}: {results[key]}")

    with threadpool_limits(1):
        for method in (*OURS, COSINE):
            for k in todo[method]:
                keep(method, tasks[k], _answer(sets[tasks[k].faces], tasks[k], OURS.get(method), say))
    wanted = {method: todo[method] for method in RECOGNIZERS if todo[method]}
    if not wanted:
        return
    with tempfile.TemporaryDirectory(prefix="lclrr-peers-") as folder:
        given = Path(folder) / "tasks.npz"
        timed = next((k for k, task in enumerate(tasks) if task.name == TIMED), -1)
        arrays: dict[str, Any] = {"todo": np.array(json.dumps(wanted)), "timed": np.array(timed)}
        for k in sorted({k for numbers in wanted.values() for k in numbers}):
            task = tasks[k]
            arrays |= {f"{task.faces}.{view}": getattr(sets[task.faces], view) for view in ("crops", "aligned")}
            arrays |= {f"{k}.set": np.array(task.faces), f"{k}.train": task.train, f"{k}.labels": task.labels}
            arrays |= {f"{k}.test": task.test}
        np.savez(given, **arrays)
        for found in peers.run(say, given):
            method = found["name"]
            if "cost" in found:
                results.save(f"{part}/{method}/{COST}", found["cost"])
            keep(method, tasks[found["task"]], Answers(np.array(found["labels"]), np.array(found["scores"])))


def _answer(own: Faces, task: Task, parameters: dict[str, Any] | None, say: Callable[[str], None]) -> Answers:
    """Answers of one of our methods; without parameters, those of SFace alone."""
    if parameters is None:
        sface = _spec("sface", None, say)
        cosines = sface.vectors(own.aligned[task.test]) @ sface.vectors(own.aligned[task.train]).T
        return Answers(task.labels[cosines.argmax(axis=1)], cosines.max(axis=1))
    return answers_of(trained(own, task, parameters, say), _view(own, parameters)[task.test])


def trained(
    own: Faces, task: Task, parameters: dict[str, Any], say: Callable[[str], None], fpir: float | None = None
) -> Model:
    """Return the model of a task. With `fpir`, it has the threshold that `trainer fit` sets."""
    images = _view(own, parameters)[task.train]
    names = np.array([f"{label:03d}" for label in task.labels])
    gallery = Gallery(images=images, labels=names, sources=tuple(map(str, task.train)))
    spec = _spec(parameters["features"], own.spec, say)
    if parameters["features"] == PRESETS[DEFAULT]["features"]:  # as `trainer fit` does
        spec, _ = chosen_features(images, names, spec)
    others = {name: value for name, value in parameters.items() if name != "features"}
    return fit(gallery, spec, others, fpir=fpir)


def answers_of(model: Model, images: Array) -> Answers:
    scores = model.scores(images)
    return Answers(np.array(model.labels, int)[scores.argmax(axis=1)], score_confidence(scores, model.confidence))


def _spec(features: str, own: FeatureSpec | None, say: Callable[[str], None]) -> Spec:
    network = parse_network(features, say)
    if network is not None:
        return replace(network, channels="grey")  # as all three data sets
    assert own is not None
    return own


def _view(own: Faces, parameters: dict[str, Any]) -> Array:
    return own.aligned if parameters["features"].startswith("sface") else own.crops


def rates(answer: Answers, people: Array) -> list[float]:
    """Percent of enrolled images recognised, and percent missed at the threshold that 1 % of strangers' images pass."""
    known = people >= 0
    right = answer.labels[known] == people[known]
    least = np.quantile(answer.scores[~known], 1 - FPIR)
    missed = 1 - np.mean(right & (answer.scores[known] > least))
    return [round(100 * float(share), 3) for share in (right.mean(), missed)]


def _sface_cost(faces: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Time of the network, in the faster of the two runtimes; size of the network and of `faces` vectors."""
    sface = parse_network("sface", say)
    assert sface is not None
    taken = [own["cpu_us"] for name, own in peers.times(say).items() if name.startswith("SFace fp32")]
    return {"cpu_us": min(taken, default=None), "bytes": len(sface.model) + 4 * sface.length * faces}


def _cost(own: Faces, task: Task, parameters: dict[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
    """Time of one face in the graph of a kit, and the size of the graph."""
    model = trained(own, task, parameters, say)
    built = graph.build(graph.factors_of(model), model.spec)
    run, taken = load_session(built, "the graph"), []
    for image in _view(own, parameters)[task.test[:65]]:
        start = time.process_time()
        run.run(None, {"crops": image[None]})
        taken.append(time.process_time() - start)
    return {"cpu_us": 1e6 * float(np.median(taken[5:])), "bytes": len(built)}


def table(result: dict[str, Any]) -> str:
    """Format the table: the best of each column in bold, empty cells if not measured."""
    shown = ("AR sunglasses", "AR scarf", "AR mixed", "Yale B", "ORL")
    pairs = {name: [own[name] for own in result["rates"].values() if name in own] for name in shown}
    best = {name: (max(right for right, _ in own), min(missed for _, missed in own)) for name, own in pairs.items() if own}

    def marked(value: float, wanted: float) -> str:
        return f"**{value:.1f}**" if f"{value:.1f}" == f"{wanted:.1f}" else f"{value:.1f}"

    lines = [
        f"| rank-1 / FNIR at FPIR 1 %, %; splits: {result['splits']} | {' | '.join(shown)} | ms per face | MB |",
        "|---" * (len(shown) + 3) + "|",
    ]
    for method, own in result["rates"].items():
        cells = [" / ".join(map(marked, own[name], best[name])) if name in own else "" for name in shown]
        facts = result["facts"].get(method, {})
        spent = "" if facts.get("cpu_us") is None else f"{facts['cpu_us'] / 1000:.2f}"
        size = "" if "bytes" not in facts else f"{facts['bytes'] / 1e6:.1f}"
        lines.append(f"| {method} | {' | '.join(cells)} | {spent} | {size} |")
    return "\n".join(lines)
