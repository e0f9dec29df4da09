"""Time of each stage of a frame, of a visit and of a start: 36 people of ORL, trained on five photos each, and 4 strangers.

The kits are built as a user builds them, and timed on a video of 640x480 by the same code as `edge bench`. In the video, four
enrolled people and the strangers stand in front of the camera, one after the other.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from edge.camera.sources import open_camera
from edge.doctor import bench
from edge.vision.preprocess import FeatureSpec
from edge.vision.recognize import Recognizer
from export.build import build_kit
from scripts.research import orl
from trainer.data import detector, gallery
from trainer.presets import PRESETS
from trainer.training import fit

KITS = ("tiny", "minimal")
TRAINING = 5  # of the ten photos of each person
STRANGERS = 4
STAND_SECONDS, EMPTY_SECONDS = 8.0, 2.0
PHOTO_SECONDS = 0.4  # a standing person changes to the next photo
# Processor time does not depend on other work of the machine.
CLOCKS = {"elapsed time": time.perf_counter, "processor time": time.thread_time}

STARTS = 3
START_GOALS = {"start_seconds": 0.5, "peak_mb": 120.0}
# VmHWM is the memory of this process alone; getrusage may include its parent.
START = """
import json, sys, time
began = time.perf_counter()
from edge import Recognizer
imported = time.perf_counter()
Recognizer.load(sys.argv[1]).detector
loaded = time.perf_counter()
with open("/proc/self/status") as status:
    peak = next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))
print(json.dumps({"import_seconds": imported - began, "load_seconds": loaded - imported, "peak_mb": peak}))
"""


def measure(data: Path, say: Callable[[str], None]) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="lclrr-bench-") as folder:
        root = Path(folder)
        say("edge: drawing frames of the ORL faces ...")
        faces = orl.people()
        enrolled, strangers = list(faces)[:-STRANGERS], list(faces)[-STRANGERS:]
        for person in enrolled:
            (root / "photos" / person).mkdir(parents=True)
            for i, photo in enumerate(faces[person][:TRAINING]):
                cv2.imwrite(str(root / "photos" / person / f"{i}.png"), orl.scene(photo, rng))
        video = root / "door.avi"
        frames = [frame for name in (*enrolled[:STRANGERS], *strangers) for frame in visit(faces[name][TRAINING:], rng)]
        write_video(video, frames)
        people = gallery.load_gallery(root / "photos", cropped=False, say=say)
        for preset in KITS:
            say(f"edge: training and building the kit {preset} ...")
            parameters = {name: value for name, value in PRESETS[preset].items() if name != "features"}
            model = fit(people, FeatureSpec.for_crop(*people.images.shape[1:]), parameters)
            kit = root / f"{preset}.kit"
            kit.write_bytes(build_kit(model, detector=detector.yunet(say)).kit)
            say("edge: timing ...")
            for name, clock in CLOCKS.items():
                with open_camera(str(video)) as camera:
                    report = bench.measure(Recognizer.load(kit), camera, frames=len(frames), clock=clock)
                result[f"{preset}, {name}"] = {
                    **asdict(report),
                    "start": measure_start(kit),
                    "camera": video.name,
                    "goals": bench.GOALS | START_GOALS,
                }
    return result


def measure_start(kit: Path) -> dict[str, float]:
    """Return time and peak memory of a new process until it is ready for the first frame: medians of STARTS runs."""
    runs = [json.loads(subprocess.check_output([sys.executable, "-c", START, str(kit)])) for _ in range(STARTS)]
    return {name: float(np.median([run[name] for run in runs])) for name in runs[0]}


def visit(photos: list[Any], rng: np.random.Generator) -> Iterator[Any]:
    """Yield the frames of a person who stands in front of the camera, and of the empty place afterwards."""
    stand = orl.Stand.anywhere(rng)
    for i in range(round(STAND_SECONDS * bench.FPS)):
        photo = photos[int(i / bench.FPS / PHOTO_SECONDS) % len(photos)]
        yield orl.scene(photo, rng, stand.jittered(rng))
    for _ in range(round(EMPTY_SECONDS * bench.FPS)):
        yield orl.empty_scene(rng, stand)


def write_video(path: Path, frames: list[Any], fps: float = bench.FPS) -> None:
    """Write Motion JPEG, which every OpenCV can write and read."""
    height, width = frames[0].shape[:2]
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), fps, (width, height))
    for frame in frames:
        writer.write(frame)
    writer.release()


def _visits(kit: dict[str, Any], outcome: str) -> str:
    cost = kit[outcome]
    return "-" if cost is None else f"{cost['visits']}; {cost['looks']:.1f} / {cost['most_looks']}; {cost['processor_ms']:.0f}"


def table(result: dict[str, Any]) -> str:
    first = next(iter(result.values()))
    size = f"{first['width']}x{first['height']}"
    lines = [
        f"| frame of {size}, {first['people']} people, 1 thread; p50 / p95 | {' | '.join(result)} | goal |",
        "|---|" + "---|" * (len(result) + 1),
    ]

    def row(name: str, cell: Callable[[dict[str, Any]], str], goal: str = "") -> None:
        lines.append(f"| {name} | {' | '.join(cell(kit) for kit in result.values())} | {goal} |")

    def pair(times: dict[str, float] | None, form: str) -> str:
        return "-" if times is None else f"{times['p50']:{form}} / {times['p95']:{form}}"

    row("frames, with faces found, recognised", lambda kit: f"{kit['frames']}, {kit['with_face']}, {kit['recognised']}")
    for stage in bench.BENCH_STAGES:
        row(f"{stage}, ms", lambda kit, stage=stage: pair(kit["stages_ms"].get(stage), ".2f"))  # type: ignore[misc]
    row("frames per second, maximum", lambda kit: f"{kit['frames_per_second']:.0f}")
    goals = first["goals"]
    row("recognition / total", lambda kit: pair(kit["recognition_share"], ".1%"))
    row("all stages after the detector / total", lambda kit: pair(kit["after_detection_share"], ".1%"))
    row("total / detector", lambda kit: pair(kit["whole_to_detector"], ".2f"))
    for outcome in ("granted", "denied"):
        row(
            f"{outcome} visits; looks, mean / most; processor ms",
            partial(_visits, outcome=outcome),
            f"{goals[f'looks_{outcome}']}",
        )
    row("one core at 15 frames per second", lambda kit: f"{kit['core_share']:.1%}", f"{goals['core_share']:.0%}")
    row(
        "import + kit load, s",
        lambda kit: f"{kit['start']['import_seconds']:.2f} + {kit['start']['load_seconds']:.2f}",
        f"{goals['start_seconds']:g}",
    )
    row("memory after the start, MB", lambda kit: f"{kit['start']['peak_mb']:.0f}", f"{goals['peak_mb']:g}")
    return "\n".join(lines)
