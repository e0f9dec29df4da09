"""Our features, SFace, and both together: who is recognised, who is missed if strangers must stay out, and what a face costs.

AR: training and test images with sunglasses and scarves, as `trainer reproduce` divides them; 70 of the 100 people are
enrolled, the others are strangers. The images are cropped to 42x30, all with the eyes in nearly the same place: for SFace they
are moved and scaled, all alike, to where it expects a face. ORL: aligned photos, 28 people enrolled by five photos each, 12
strangers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import orl

from edge.detect import Detector, photo_min_face
from edge.manifest import ARCFACE_ALIGNMENT
from edge.preprocess import SIZE, FeatureSpec, align, unit_rows
from edge.runtime import session
from export import graph
from export.build import factorise
from trainer import detector
from trainer.backbone import SIDE, Backbone, chosen
from trainer.benchmark import Cell, load_arrays
from trainer.estimator import LCLRRDL
from trainer.gallery import Gallery
from trainer.model import fit
from trainer.presets import PRESETS
from trainer.prox import Array

SPLITS, FPIR = 3, 0.01
AR_POINTS = np.array([[7, 16.2], [23, 16.2], [15, 25], [9.7, 31.8], [20.3, 31.8]])  # eyes, nose, mouth of the mean image
WAYS = ("door", "light", "sface, nearest cosine", "sface", "sface+both")


def measure(data: Path, say: Callable[[str], None]) -> dict[str, Any]:
    models = {way: _backbone(way, say) for way in WAYS if way.startswith("sface")}
    result: dict[str, Any] = {"rates": {}, "milliseconds": {}}
    for name, (small, aligned, labels, splits) in _sets(data, say).items():
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        for k in range(SPLITS):
            train, test, strangers = splits(k)
            for way in WAYS:
                say(f"backbone: {name}, split {k + 1} of {SPLITS}, {way} ...")
                faces = aligned if way in models else small
                scores = _scores(way, models.get(way), faces[train], labels[train], (faces[test], faces[strangers]))
                found[way].append(_rates(way, *scores, np.unique(labels[train]), labels[test]))
        result["rates"][name] = {way: np.mean(values, axis=0).tolist() for way, values in found.items()}
    result["milliseconds"] = _times(models, small, aligned, labels)
    return result


def _backbone(way: str, say: Callable[[str], None]) -> Backbone:
    model = chosen(way.partition(",")[0], say)
    assert isinstance(model, Backbone)
    return model


def _sets(data: Path, say: Callable[[str], None]) -> dict[str, Any]:
    cells = {scenario: Cell(dataset="ar", scenario=scenario) for scenario in ("sunglasses", "scarf", "mixed")}
    small, labels = load_arrays(data / "ar_42x30.npz", cells["mixed"])
    aligned = np.stack([align(image, AR_POINTS, (SIDE, SIDE), ARCFACE_ALIGNMENT) for image in small])
    finder = Detector(detector.yunet(say))
    photos = [(name, photo) for name, own in orl.people().items() for photo in own]
    points = []
    for _, photo in photos:
        image = np.asarray(cv2.cvtColor(photo, cv2.COLOR_GRAY2BGR), np.uint8)
        points.append(finder.detect(image, photo_min_face(image))[0].landmarks)
    names = np.array([name for name, _ in photos])
    crops, large = (
        np.stack([align(photo, five, size, *how) for (_, photo), five in zip(photos, points, strict=True)])
        for size, how in ((SIZE, ()), ((SIDE, SIDE), (ARCFACE_ALIGNMENT,)))
    )
    sets: dict[str, Any] = {
        f"AR {scenario}": (small, aligned, labels, lambda k, cell=cell: _ar_split(labels, cell, k))
        for scenario, cell in cells.items()
    }
    return sets | {"ORL": (crops, large, names, lambda k: _orl_split(names, k))}


def _ar_split(labels: Array, cell: Cell, k: int) -> tuple[Array, Array, Array]:
    """Training and test images of 70 people; of the others, the kinds of image that are tested."""
    known = np.random.default_rng([7, k]).permutation(np.unique(labels))[:70]
    train, test = cell.split(labels, np.random.default_rng([0, k]))
    enrolled = np.isin(labels, known)
    kinds = np.unique(np.concatenate([train, test]) % 13)
    strangers = np.flatnonzero(~enrolled & np.isin(np.arange(len(labels)) % 13, kinds))
    return train[enrolled[train]], test[enrolled[test]], strangers


def _orl_split(names: Array, k: int) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng([3, k])
    known = rng.permutation(np.unique(names))[:28]
    own = [rng.permutation(np.flatnonzero(names == name)) for name in known]
    train, test = (np.concatenate([photos[part] for photos in own]) for part in (slice(5), slice(5, None)))
    return train, test, np.flatnonzero(~np.isin(names, known))


def _parameters(way: str) -> dict[str, Any]:
    parameters = PRESETS[way if way in PRESETS else "sface"] | ({"eta": 0.1} if way == "sface" else {})
    return {name: value for name, value in parameters.items() if name != "features"}


def _spec(model: Backbone | None, faces: Array) -> FeatureSpec | Backbone:
    """AR's small images in the cells of `trainer reproduce`."""
    height, width = faces.shape[1:]
    small = Cell(dataset="ar").spec("both")
    ours = small if (height, width) == (small.height, small.width) else FeatureSpec.for_crop(height, width)
    return model or ours


def _scores(way: str, model: Backbone | None, faces: Array, labels: Array, others: tuple[Array, Array]) -> tuple[Array, Array]:
    if way.endswith("cosine"):
        assert model is not None
        known = model.vectors(faces)
        ours, theirs = ((model.vectors(crops) @ known.T) for crops in others)
        first, second = (
            np.stack([cosines[:, labels == label].max(axis=1) for label in np.unique(labels)], axis=1)
            for cosines in (ours, theirs)
        )
        return first, second
    estimator = LCLRRDL(features=_spec(model, faces), **_parameters(way)).fit(faces, labels)
    first, second = (estimator.decision_function(crops) for crops in others)
    return first, second


def _rates(way: str, known: Array, strangers: Array, people: Array, labels: Array) -> tuple[float, float]:
    """Percent of the enrolled recognised; and missed, at the threshold that 1 % of the strangers' images pass."""
    right = people[known.argmax(axis=1)] == labels
    sure, strange = ((scores if way.endswith("cosine") else unit_rows(scores)).max(axis=1) for scores in (known, strangers))
    return 100 * float(right.mean()), 100 * (1 - float(np.mean(right & (sure > np.quantile(strange, 1 - FPIR)))))


def _times(models: dict[str, Backbone], small: Array, aligned: Array, labels: Array) -> dict[str, float]:
    """Milliseconds of the whole graph for a face of ORL, one thread, 40 people; the kits take turns."""
    runs = {}
    for way in WAYS:
        if way.endswith("cosine"):
            continue
        faces = aligned if way in models else small
        names = np.array([str(label) for label in labels])
        people = Gallery(images=faces, labels=names, sources=tuple(map(str, range(len(faces)))))
        model = fit(people, _spec(models.get(way), faces), _parameters(way))
        run = session(graph.build(factorise(model), model.spec, model.coding), way)
        runs[way] = lambda run=run, face=faces[:1]: run.run(None, {"crops": face})
    taken: dict[str, list[float]] = {way: [] for way in runs}
    for _ in range(50):
        for way, run in runs.items():
            start = time.perf_counter()
            run()
            taken[way].append(time.perf_counter() - start)
    return {way: 1000 * float(np.median(times)) for way, times in taken.items()}


def table(result: dict[str, Any]) -> str:
    names = list(result["rates"])
    lines = [
        f"| recognised / missed at 1 % of strangers, % | {' | '.join(names)} | ms a face |",
        "|---" * (len(names) + 2) + "|",
    ]
    for way in WAYS:
        cells = [f"{right:.1f} / {missed:.1f}" for right, missed in (result["rates"][name][way] for name in names)]
        taken = result["milliseconds"].get(way)
        lines.append(f"| {way} | {' | '.join(cells)} | {'' if taken is None else f'{taken:.1f}'} |")
    return "\n".join(lines)
