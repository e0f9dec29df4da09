"""Kits of thousands of invented people, and what they cost a device: seconds to start and to reload, memory, time per face.

    python -m scripts.qa.large_kit --people 10000 --kind network

The weights are random: such a kit has the size and the graph of a real one, but recognises nobody. Each measurement runs in a
fresh process, because the peak memory of a process never falls. Seconds are wall-clock seconds of this machine.

network   SFace with the head of the preset `network`: templates C x 128, U 128 x 128, B C x 128, fp32
tiny      our own features: the whole face (rank 1024) and 8 parts (rank 388), int8
pixels    a small graph for tests: 4 x 5 pixel cells, fp32
"""

from __future__ import annotations

import hashlib
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from edge.kit import format as kits
from edge.kit import selftest
from edge.kit.manifest import RESIDUALS, Manifest, Thresholds, min_confidence
from edge.kit.store import Store
from edge.kit.watch import KitWatch, ProbationRecognizer
from edge.settings import Settings
from edge.stages import untimed
from edge.terminal import wiring
from edge.vision.preprocess import FeatureSpec

KINDS = ("network", "tiny", "pixels")
TINY_RANK, TINY_PARTS, TINY_PART_ROWS = 1024, 8, 388
FACES, VISITS = 20, 50


def label(number: int) -> str:
    return f"person {number:05d}"


def large_kit(
    people: int, kind: str = "network", *, kit_version: int = 1, seed: int = 0, detector: bytes | None = None
) -> bytes:
    """Return the bytes of a kit with random weights. Most faces get a label: the thresholds are as low as possible."""
    from export.graph import build  # not on a device: the measuring processes do not load it
    from export.run import run_graph

    spec, factors, precision = _factors(people, kind, np.random.default_rng(seed))
    graph = build(factors, spec, precision)
    parts = {kits.RECOGNIZER: graph} | ({} if detector is None else {kits.DETECTOR: detector})
    manifest = Manifest(
        labels=tuple(map(label, range(people))),
        crop={"height": spec.height, "width": spec.width} | ({"channels": 3} if spec.colour else {}),
        alignment=spec.alignment,
        features=spec.settings(),
        coding=asdict(factors.coding),
        precision=precision,
        thresholds=Thresholds(confidence=min_confidence(factors.confidence, people), residual=RESIDUALS[1], provisional=True),
        model={},
        calibration={},
        versions={name: version(name) for name in ("lclrr-edge", "numpy", "onnx")},
        parts={name: hashlib.sha256(part).hexdigest() for name, part in parts.items()},
        kit_version=kit_version,
        series="",
        confidence=factors.confidence,
        selftest=selftest.compute_results(partial(run_graph, graph), spec.crop_shape),
    )
    return kits.pack(parts | {kits.MANIFEST: manifest.to_bytes()})


def _factors(people: int, kind: str, rng: np.random.Generator) -> Any:
    """Return (spec, factors, precision)."""
    from export.graph import Factors
    from trainer.features.spec import parse_network
    from trainer.method.coding import Coding

    def matrix(rows: int, columns: int) -> Any:
        return rng.standard_normal((rows, columns), np.float32)

    def factors(d: int, r: int, **more: Any) -> Factors:
        U = np.linalg.qr(matrix(d, r))[0]
        s = np.linspace(0.1, 3, r, dtype=np.float32)
        return Factors(coding=Coding.default("l21"), U=U, s=s, B=matrix(people, r), **more)

    if kind == "network":
        spec = parse_network("sface")
        templates = matrix(people, 128)
        templates /= np.linalg.norm(templates, axis=1, keepdims=True)
        return spec, factors(128, 128, templates=templates, rows=np.arange(128)), "fp32"
    if kind == "tiny":
        own = FeatureSpec.for_crop(80, 64, "both")
        rows = [np.arange(i * TINY_PART_ROWS, (i + 1) * TINY_PART_ROWS) for i in range(TINY_PARTS)]
        parts = tuple(factors(TINY_PART_ROWS, TINY_PART_ROWS, rows=part % own.length) for part in rows)
        return own, factors(own.length, TINY_RANK, parts=parts), "int8"
    return (small := FeatureSpec(height=20, width=16, kind="pixels", cell=4)), factors(small.length, 8), "fp32"


def _load(kit: kits.Kit) -> ProbationRecognizer:
    """Load a kit as `edge recognize` does with its default settings."""
    return wiring._load(kit, Settings(), None, untimed, lambda _: None)


def _peak_mb() -> float:
    """Return the peak memory of this process. Linux counts the parent's memory in getrusage, so it is read from /proc."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) / 1024 for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # macOS: bytes


def measure_start(path: Path) -> dict[str, float]:
    """Load a kit as `edge recognize` without a store does, and recognise crops."""
    before = _peak_mb()
    started = time.perf_counter()
    recognizer = _load(kits.read(path))
    seconds = time.perf_counter() - started
    found = {"start_seconds": seconds, "imports_mb": before, "start_peak_mb": _peak_mb()}
    return found | _measure_face(recognizer)


def _measure_face(recognizer: ProbationRecognizer) -> dict[str, float]:
    """Return the milliseconds of the graph, and of all Python code around it, for one face of a visit that is granted."""
    from datetime import UTC, datetime

    from edge.decision.door import Door
    from edge.decision.visit import Sighting, VisitRules

    manifest = recognizer.kit.manifest
    crop = selftest.synthetic_crops(manifest.crop_shape, 1)
    outputs = recognizer.outputs(crop)
    graph, rest = [], []
    for _ in range(FACES):
        started = time.perf_counter()
        recognizer.outputs(crop)
        graph.append(time.perf_counter() - started)
    recognizer.outputs = lambda crops: outputs  # type: ignore[method-assign]  # only the Python part is left
    when, decided = datetime.now(UTC), 0
    for _ in range(VISITS):  # each at a door of its own: a door ignores a visit too many, and knows who was there before
        door = Door(manifest.labels, manifest.thresholds.confidence, manifest.confidence)
        for number in range(VisitRules().needed):
            started = time.perf_counter()
            (found,) = recognizer.recognize_crops(crop)
            sighting = Sighting(
                captured=number / 10,
                label=found.label,
                confidence=found.confidence,
                margin=found.margin,
                scores=found.scores,
                score_length=found.score_length,
            )
            decided += len(door.step(now=number / 10, when=when, seen={1: sighting}).decisions)
            rest.append(time.perf_counter() - started)
    assert decided == VISITS, "every visit was decided, so every frame was processed in full"
    return {"graph_ms": 1000 * float(np.median(graph)), "python_ms": 1000 * float(np.median(rest))}


def measure_reload(path: Path, newer: Path) -> dict[str, float]:
    """Start with a store, drop a newer kit, and wait until the watch hands it over. The old kit stays loaded as usual."""
    with tempfile.TemporaryDirectory() as folder:
        dropped = Path(folder) / "dropped.kit"
        dropped.write_bytes(path.read_bytes())
        started = time.perf_counter()
        with KitWatch(Store(Path(folder) / "store", dropped, _load), seconds=3600) as watch:
            seconds = time.perf_counter() - started
            while watch.next_change() is not None:
                pass
            old, peak = watch.recognizer, _peak_mb()
            crop = selftest.synthetic_crops(old.kit.manifest.crop_shape, 1)
            dropped.write_bytes(newer.read_bytes())
            running = threading.Event()
            user = threading.Thread(target=lambda: [old.outputs(crop) for _ in iter(running.is_set, True)])
            user.start()
            try:
                started = time.perf_counter()
                watch._check_files()  # sees the new file ...
                watch._check_files()  # ... which did not change since
                reload = time.perf_counter() - started
            finally:
                running.set()
                user.join()
            assert watch.recognizer is not old, "the newer kit was not used"
    return {"store_start_seconds": seconds, "store_peak_mb": peak, "reload_seconds": reload, "reload_peak_mb": _peak_mb()}


def _in_new_process(*arguments: str) -> dict[str, float]:
    command = [sys.executable, "-m", "scripts.qa.large_kit", *arguments]
    result: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return result


app = typer.Typer(add_completion=False)


@app.command()
def main(
    people: Annotated[int, typer.Option(min=2, help="Number of people.")] = 10_000,
    kind: Annotated[str, typer.Option(help=f"One of {', '.join(KINDS)}.")] = "network",
    folder: Annotated[Path | None, typer.Option(help="Keep the kits here (default: a temporary folder).")] = None,
    start: Annotated[Path | None, typer.Option(hidden=True)] = None,
    reload: Annotated[tuple[Path, Path] | None, typer.Option(hidden=True)] = None,
) -> None:
    """Build two kits and print what they cost."""
    if start is not None:
        print(json.dumps(measure_start(start)))
        return
    if reload is not None:
        print(json.dumps(measure_reload(*reload)))
        return
    from trainer.data.detector import yunet

    with tempfile.TemporaryDirectory() as temporary:
        place = folder or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        paths = [place / f"{kind}-{people}-{number}.kit" for number in (1, 2)]
        for number, path in enumerate(paths, start=1):
            if not path.exists():
                print(f"building {path.name} ...", file=sys.stderr)
                path.write_bytes(large_kit(people, kind, kit_version=number, seed=number, detector=yunet()))
        found = {"kit_mb": paths[0].stat().st_size / 1e6}
        found |= _in_new_process("--start", str(paths[0]))
        found |= _in_new_process("--reload", *map(str, paths))
    print(f"{people} people, {kind}")
    for name, value in found.items():
        print(f"  {name:<20} {value:8.2f}")


if __name__ == "__main__":
    app()
