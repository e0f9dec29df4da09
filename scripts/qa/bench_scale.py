"""Time, memory and size by the number of people: training, its threshold, and the kit.

5 photos per person (morphs.py). Each step runs in a process of its own.
- fit_s: seconds of `training.train` without a threshold. calibrated_s: with the threshold, at an FPIR of 1 %.
  fit_cpu_s, calibrated_cpu_s: the same in seconds of the processors, for a machine that does other work, too.
- rss_mb: highest resident memory of training, with its worker processes, as the sum over them: shared pages count in each,
  and so do the pages of crops that are read from the file. private_mb: the same without pages of files.
- kit_mb, build_s: an int8 kit with the detector. model_mb: the file that `trainer fit` writes.
- face_ms: median time of one face in the graph of the kit, with one thread; for `network` without the network, because it
  takes the same time for any number of people.
- load: processes that wanted a core before the first step. More than a few tenths: other work of the machine slows this down.
In `network` crops and vectors are given, so training does not run the network.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from timeit import Timer
from typing import Any

import numpy as np

from edge.errors import GalleryError, UsageError
from edge.kit import format as kits
from edge.vision.onnx_session import load_session
from edge.vision.preprocess import SIZE, FeatureSpec
from export.build import build_kit
from export.graph import has_network, head
from scripts.qa.morphs import PHOTOS, Morphs, VectorMorphs, filled_up, unpack_people
from trainer import training
from trainer.data import detector
from trainer.data.gallery import Gallery, crop_digests, load_like
from trainer.features.network import EMBEDDING
from trainer.features.spec import Spec, parse_network
from trainer.method.estimator import LCLRRDL
from trainer.model import Model
from trainer.presets import PRESETS
from trainer.shards import fit as sharded
from trainer.shards.model import ShardedModel
from trainer.shards.training import Training
from trainer.shards.work import work_folder
from trainer.thresholds import FPIR
from trainer.types import Array, Say

PEOPLE = (100, 1000)
MEASURED = ("tiny", "network")  # presets
ARCHIVE = "lfw_dev.zip"
READ = 8  # photos of a real person, at most
EMBEDDED = 400  # real people whose vectors SFace computes: the others are morphs
SAMPLED = 0.1  # seconds between two looks at the memory
TIMED = 200  # faces
REFERENCE = 1000  # people whose seconds per person the others are compared with
GOALS: dict[tuple[str, int], dict[str, float]] = {
    ("tiny", 1000): {"fit_s": 60, "calibrated_s": 120, "rss_mb": 1000},
    ("network", 1000): {"fit_s": 15, "calibrated_s": 30, "rss_mb": 1000},
    ("tiny", 10000): {"fit_s": 600, "rss_mb": 2000, "kit_mb": 64, "face_ms": 8, "fit_ratio": 1.3, "calibrated_ratio": 1.3},
    ("network", 10000): {"fit_s": 600, "rss_mb": 2000, "kit_mb": 50, "face_ms": 1, "fit_ratio": 1.3, "calibrated_ratio": 1.3},
}
_PAGE = os.sysconf("SC_PAGE_SIZE")


def measure(data: Path, say: Say, people: Iterable[int] = PEOPLE) -> dict[str, Any]:
    """Return the figures by preset and number of people."""
    numbers = sorted(set(people))
    result: dict[str, Any] = {}
    for preset in MEASURED:
        with tempfile.TemporaryDirectory(prefix="lclrr-scale-") as place:
            folder = Path(place)
            say(f"scale: photos of {numbers[-1]} people for {preset} ...")
            prepare(preset, data / ARCHIVE, folder, numbers[-1], say)
            result[preset] = {}
            for number in numbers:
                say(f"scale: {preset}, {number} people ...")
                result[preset][str(number)] = measured(preset, folder, number, say)
                say(f"scale: {preset}, {number} people: {json.dumps(result[preset][str(number)])}")
    return result


def measured(preset: str, folder: Path, people: int, say: Say) -> dict[str, Any]:
    """Return the figures of one preset and number of people. The folder has their photos."""
    found: dict[str, Any] = {"load": os.getloadavg()[0]}
    steps = [
        _in_process(train, folder, preset, people, calibrate) for calibrate in (False, True)[_in_shards(preset, people) :]
    ]
    for step in steps:
        found |= step
    found |= {name: max(step[name] for step in steps) for name in ("rss_mb", "private_mb")}
    found |= {f"{name}_per_person_ms": 1000 * found[f"{name}_s"] / people for name in ("fit", "calibrated")}
    built = _in_process(build, folder, preset, people)
    if built["kit_mb"] is None:
        say(f"scale: no kit of {people} people: {built.pop('reason')}")
    found |= {"build_rss_mb" if name == "rss_mb" else name: value for name, value in built.items() if name != "private_mb"}
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in found.items()}


# --- The photos ---


def prepare(preset: str, archive: Path, folder: Path, people: int, say: Say) -> None:
    """Write crops (and the vectors of a network) of so many people into arrays in the folder."""
    if not archive.is_file():
        raise GalleryError(f"There is no {archive}.", "Name the folder of lfw_dev.zip with --data.")
    spec = spec_of(preset)
    with tempfile.TemporaryDirectory(prefix="lclrr-lfw-") as photos:
        names = unpack_people(archive, Path(photos), min(people, EMBEDDED) if spec.network else people, READ)
        gallery = load_like(Path(photos), spec.crop_shape, spec.alignment)
    real = [gallery.images[gallery.labels == name] for name in names]
    write(spec, [own for own in real if len(own)], folder, people, say)


def write(spec: Spec, real: list[Array], folder: Path, people: int, say: Say) -> None:
    """Write the arrays of so many people, given crops of real ones. With a network, crops of real people are repeated."""

    def new(name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        return np.lib.format.open_memmap(folder / f"{name}.npy", "w+", dtype, (people * PHOTOS, *shape))

    crops = new("crops", spec.crop_shape, np.uint8)
    if spec.network is None:
        made = Morphs(real)
        for number in range(people):
            crops[number * PHOTOS : (number + 1) * PHOTOS] = made.crops(number)
        return
    filled = np.concatenate([filled_up(own, number) for number, own in enumerate(real[:people])])
    for start in range(0, len(crops), len(filled)):
        crops[start : start + len(filled)] = filled[: len(crops) - start]
    vectors = sharded.embedded(filled, spec, covered=True, stage=_tenths(say))
    embeddings, of_vectors = new("embeddings", vectors.shape[1:], np.float32), vectors.reshape(-1, PHOTOS, *vectors.shape[1:])
    morphs = VectorMorphs(of_vectors)
    for number in range(people):
        embeddings[number * PHOTOS : (number + 1) * PHOTOS] = morphs.vectors(number)


def spec_of(preset: str) -> Spec:
    """Return the features of a preset. Those of `network` are of the network alone, as on photographs (own_features)."""
    if preset != "network":
        return FeatureSpec.for_crop(*SIZE, PRESETS[preset]["features"])
    network = parse_network("sface")
    assert network is not None
    return network


def _parameters(preset: str) -> dict[str, Any]:
    return {name: value for name, value in PRESETS[preset].items() if name != "features"}


def _in_shards(preset: str, people: int) -> bool:
    return training.needs_shards(people, LCLRRDL, _parameters(preset))


def _tenths(say: Say) -> Callable[[str, int, int], None]:
    """Report each tenth of the work."""
    last = -1

    def stage(name: str, done: int, total: int) -> None:
        nonlocal last
        if 10 * done // total > last:
            last = 10 * done // total
            say(f"scale: {name}, {done} of {total} photos")

    return stage


# --- The steps, each in a process of its own ---


def train(folder: Path, preset: str, people: int, calibrate: bool) -> dict[str, Any]:
    """Train and save a model. Return the seconds; with shards, those of training and of the threshold are added."""
    spec, parameters, count = spec_of(preset), _parameters(preset), people * PHOTOS
    crops = np.load(folder / "crops.npy", mmap_mode="r")[:count]
    labels = np.array([f"{number:06d}" for number in range(people)]).repeat(PHOTOS)
    gallery = Gallery(images=crops, labels=labels, sources=tuple(map(str, range(count))), alignment=spec.alignment)
    where: dict[str, Any] = {}
    if spec.network is not None:
        embeddings = np.load(folder / "embeddings.npy", mmap_mode="r")[:count]
        if _in_shards(preset, people):
            where["embeddings"] = embeddings
        else:
            _remember(spec, crops, embeddings)
    fpir = FPIR if calibrate and not _in_shards(preset, people) else None
    found: dict[str, Any] = {}
    with work_folder(folder / "model.npz") as work:
        with _timed(found, "calibrated" if fpir else "fit"):
            model = training.train(gallery, spec, parameters, fpir=fpir, work=work, **where)
        if isinstance(model, ShardedModel):
            with _timed(found, "calibrated"):
                sharded.calibrated(model, Training.of(model.samples, spec, parameters), FPIR)
            for kind in ("s", "cpu_s"):
                found[f"calibrated_{kind}"] += found[f"fit_{kind}"]
        model.save(folder / "model.npz")
    return found | {
        "model_mb": (folder / "model.npz").stat().st_size / 1e6,
        "training_accuracy": model.training["accuracy"],
        "doubted": len(model.training["doubted"]),
    }


@contextmanager
def _timed(found: dict[str, Any], name: str) -> Iterator[None]:
    """Write seconds of the clock and of the processors."""
    start, used = time.perf_counter(), usage_of_tree(os.getpid()).cpu_s
    yield
    found[f"{name}_s"] = time.perf_counter() - start
    found[f"{name}_cpu_s"] = usage_of_tree(os.getpid()).cpu_s - used


def _remember(spec: Spec, crops: Array, embeddings: Array) -> None:
    """Put the vectors of crops and of their covered copies where the network looks before it computes them."""
    assert spec.network is not None
    digests = list(crop_digests(crops))
    spec.network.known.update(zip(digests, np.asarray(embeddings[:, 0]), strict=True))
    spec.network.known_copies.update(zip(digests, np.asarray(embeddings[:, 1:]), strict=True))


def build(folder: Path, preset: str, people: int) -> dict[str, Any]:
    """Build the kit of the saved model. The figures are None if the kit would be too large."""
    model = Model.load(folder / "model.npz")
    start = time.perf_counter()
    try:
        kit = build_kit(model, precision="int8", allow_loss=True, detector=detector.yunet()).kit
    except UsageError as error:
        return {"kit_mb": None, "build_s": None, "face_ms": None, "reason": str(error)}
    seconds = time.perf_counter() - start
    vector = np.load(folder / "embeddings.npy", mmap_mode="r")[0, 0] if model.spec.network else None
    return {
        "kit_mb": len(kit) / 1e6,
        "build_s": seconds,
        "face_ms": face_ms(kits.parse(kit).recognizer, np.asarray(model.crops[0]), vector),
    }


def face_ms(graph: bytes, crop: Array, vector: Array | None) -> float:
    """Return the median time of one face with one thread: from the crop, or from the network's vector of it."""
    given = {"crops": crop[None]}
    if has_network(graph):
        assert vector is not None
        graph, given = head(graph), given | {EMBEDDING: np.asarray(vector)[None]}
    session = load_session(graph, "the graph")
    timer = Timer(lambda: session.run(None, given))
    timer.timeit(10)  # warms up
    return 1000 * float(np.median(timer.repeat(TIMED, number=1)))


@dataclass(frozen=True)
class Usage:
    """What a process and its descendants use together."""

    resident_mb: float
    private_mb: float
    """Without pages of files."""
    cpu_s: float
    """Processor seconds so far, with those of descendants that have ended."""


def usage_of_tree(root: int) -> Usage:
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))  # in user and kernel mode, own and of ended children
    tree, waiting = [], [root]
    while waiting:
        tree.append(waiting.pop())
        waiting += children.get(tree[-1], [])
    resident = files = 0
    for process in tree:
        try:
            _, pages, of_files = map(int, Path(f"/proc/{process}/statm").read_text().split()[:3])
        except OSError:
            continue
        resident, files = resident + pages, files + of_files
    cpu = sum(ticks.get(process, 0) for process in tree) / os.sysconf("SC_CLK_TCK")
    return Usage(resident * _PAGE / 1e6, (resident - files) * _PAGE / 1e6, cpu)


def _in_process(step: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Return the result of a step that runs in a process of its own, with the highest memory of its processes."""
    command = [sys.executable, "-m", "scripts.qa.bench_scale", step.__name__, *map(str, arguments)]
    resident = private = 0.0
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        root = Path(__file__).resolve().parents[2]
        process = subprocess.Popen(command, stdout=output, stderr=errors, cwd=root, start_new_session=True)
        try:
            while process.poll() is None:
                now = usage_of_tree(process.pid)
                resident, private = max(resident, now.resident_mb), max(private, now.private_mb)
                time.sleep(SAMPLED)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # workers, too
            process.wait()
        errors.seek(0)
        if process.returncode:
            raise ChildProcessError((errors.read().strip().splitlines() or [f"exit code {process.returncode}"])[-1])
        output.seek(0)
        found: dict[str, Any] = json.loads(output.read().splitlines()[-1])
    return found | {"rss_mb": resident, "private_mb": private}


# --- The table ---

COLUMNS = {
    "fit_s": "fit, s",
    "calibrated_s": "calibrated, s",
    "rss_mb": "memory, MB",
    "kit_mb": "kit, MB",
    "face_ms": "one face, ms",
    "fit_ratio": "s per person, fit",
    "calibrated_ratio": "calibrated",
}


def table(result: dict[str, Any]) -> str:
    """Format the figures with their goals. A figure that misses its goal is bold."""
    lines = [f"| preset | people | {' | '.join(COLUMNS.values())} |", "|---" * (2 + len(COLUMNS)) + "|"]
    for preset, by_people in result.items():
        for people, found in by_people.items():
            goals = GOALS.get((preset, int(people)), {})
            figures = found | ratios(by_people, people)
            cells = (_cell(figures.get(name), goals.get(name)) for name in COLUMNS)
            lines.append(f"| `{preset}` | {int(people):,} | {' | '.join(cells)} |")
    notes = f"In brackets: the goal. Bold: missed. Seconds per person are relative to those of {REFERENCE:,} people."
    return "\n".join([*lines, "", notes])


def ratios(by_people: dict[str, Any], people: str) -> dict[str, float]:
    """Return the seconds per person, relative to those of REFERENCE people, if these were measured."""
    first, own = by_people.get(str(REFERENCE)), by_people[people]
    if first is None:
        return {}
    return {
        f"{name}_ratio": own[f"{name}_s"] / int(people) / (first[f"{name}_s"] / REFERENCE) for name in ("fit", "calibrated")
    }


def _cell(value: float | None, goal: float | None) -> str:
    if value is None:
        return "" if goal is None else f"({goal:g})"
    text = f"{value:.0f}" if value >= 100 else f"{value:.3g}"
    if goal is None:
        return text
    return f"{text} ({goal:g})" if value <= goal else f"**{text}** ({goal:g})"


if __name__ == "__main__":
    step, place, preset, number, *calibrate = sys.argv[1:]
    if step == train.__name__:
        print(json.dumps(train(Path(place), preset, int(number), calibrate == ["True"])))
    else:
        print(json.dumps(build(Path(place), preset, int(number))))
