"""Time of the recogniser for 100 people, one face at a time in one thread, compared with a lower bound and other networks.

The lower bound ("floor") is one float32 product of a vector and a matrix of the size of U: no coder that uses the whole
dictionary is faster. The ratios are medians over rounds in which floor and kits take turns, so that other work of the machine
slows all of them equally.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from edge.errors import UsageError
from edge.kit import format as kits
from edge.vision.recognize import Recognizer
from export.build import build_kit
from export.graph import Factors
from export.nodes import PRECISIONS
from scripts.research import peers
from trainer.data import detector
from trainer.data.gallery import Gallery
from trainer.model import Model
from trainer.paper.experiments import Cell, load_arrays, tuned_parameters
from trainer.training import fit

ROUNDS, RUNS = 40, 10


def measure(data: Path, say: Callable[[str], None]) -> dict[str, Any]:
    cell = Cell(dataset="ar", scenario="sunglasses")
    images, labels = load_arrays(data / "ar_42x30.npz", cell)
    train, test = cell.split(labels, np.random.default_rng(0))
    names = np.array([f"{label:03d}" for label in labels])
    try:
        yunet = detector.yunet(say)
    except UsageError as error:
        say(f"{error} The kits are built without a detector.")
        yunet = None

    result: dict[str, Any] = {"kits": {}}
    recognizers: dict[str, Recognizer] = {}
    for kind, coding, precisions in (
        ("both", "l21", PRECISIONS),
        ("both", "l1", PRECISIONS[:1]),
        ("pixels", "l21", PRECISIONS),
    ):
        say(f"recognizer: training on {kind}, {coding} ...")
        gallery = Gallery(images=images[train], labels=names[train], sources=tuple(map(str, train)))
        model = fit(gallery, cell.spec(kind), {"coding": coding, **tuned_parameters(cell, kind)})
        if kind == "both":
            shape = Factors.of(model).U.shape
        for precision in precisions:
            say(f"recognizer: building {kind}, {coding}, {precision} ...")
            built = build_kit(model, precision=precision, detector=yunet, allow_loss=True)
            kit = kits.parse(built.kit)
            recognizers[f"{kind} {coding} {precision}"] = Recognizer(kit)
            result["kits"][f"{kind} {coding} {precision}"] = _facts(kit, model, images[test], names[test])
    say("recognizer: timing ...")
    result["floor"] = {"shape": list(shape), **_measure_times(recognizers, shape, images[test], result["kits"])}
    say("recognizer: peers ...")
    result["peers"] = peers.times(say)
    sface_times = [peer["p50_us"] for name, peer in result["peers"].items() if name.startswith("SFace") and "p50_us" in peer]
    for facts in result["kits"].values():
        facts["faster_than_sface"] = min(sface_times) / facts["p50_us"] if sface_times else None
    return result


def _facts(kit: kits.Kit, model: Model, crops: np.ndarray, people: np.ndarray) -> dict[str, Any]:
    label = np.concatenate([Recognizer(kit).outputs(crops[i : i + 64])["label"] for i in range(0, len(crops), 64)])
    return {
        "bytes": kit.length,
        "iterations": kit.manifest.coding["iterations"],
        "accuracy": float(np.mean(np.array(model.labels)[label] == people)),
        "trainer_accuracy": float(np.mean(model.predict(crops) == people)),
    }


def _measure_times(
    recognizers: dict[str, Recognizer], shape: tuple[int, int], crops: np.ndarray, into: dict[str, Any]
) -> dict[str, float]:
    """Return the times of the floor. Add the times of the kits, and their ratios to the floor, to `into`."""
    rng = np.random.default_rng(0)
    matrix, vector = (rng.standard_normal(size).astype(np.float32) for size in (shape, shape[0]))
    runners: dict[str, Callable[[], Any]] = {"floor": lambda: vector @ matrix}
    runners |= {name: partial(recognizer.outputs, crops[:1]) for name, recognizer in recognizers.items()}
    measured: dict[str, list[list[float]]] = {name: [] for name in runners}
    with threadpool_limits(1):
        for _ in range(ROUNDS):
            for name, run in runners.items():
                run()  # loads its matrices into the cache, as in a loop over faces
                times = []
                for _ in range(RUNS):
                    start = time.perf_counter()
                    run()
                    times.append(time.perf_counter() - start)
                measured[name].append(times)
    rounds = {name: np.median(times, axis=1) for name, times in measured.items()}
    for name in recognizers:
        is_same_size = name.startswith("both")  # the matrix of the floor has the size of theirs
        ratio = float(np.median(rounds[name] / rounds["floor"])) if is_same_size else None
        into[name] |= _percentiles(measured[name]) | {"times_floor": ratio}
    return _percentiles(measured["floor"])


def _percentiles(times: list[list[float]]) -> dict[str, float]:
    p50, p95 = np.percentile(times, [50, 95]) * 1e6
    return {"p50_us": float(p50), "p95_us": float(p95)}


def table(result: dict[str, Any]) -> str:
    def times(entry: dict[str, Any]) -> str:
        return f"{entry['p50_us']:.0f} | {entry['p95_us']:.0f}"

    lines = [
        "| recogniser, 100 people, 1 thread | us p50 | us p95 | x floor | SFace / this | kit MB | accuracy | trainer |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, kit in result["kits"].items():
        faster = "-" if kit["faster_than_sface"] is None else f"{kit['faster_than_sface']:.0f}"
        ratio = "-" if kit["times_floor"] is None else f"{kit['times_floor']:.2f}"
        lines.append(
            f"| {name}, {kit['iterations']} iterations | {times(kit)} | {ratio} | {faster} | "
            f"{kit['bytes'] / 1e6:.2f} | {kit['accuracy']:.2%} | {kit['trainer_accuracy']:.2%} |"
        )
    size = "x".join(map(str, result["floor"]["shape"]))
    lines.append(f"| floor: one product with U, {size} | {times(result['floor'])} | 1 | | | | |")
    for name, peer in result["peers"].items():
        lines.append(f"| {name} | {'skipped | ' if 'skipped' in peer else times(peer)} | | | | | |")
    return "\n".join(lines)
