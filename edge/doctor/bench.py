"""How long each stage takes on this device, with this kit, on frames of this camera or recording.

All stages run on the same frame one after the other, and the whole way of a frame beside them, in turns before and after: a
machine that is busy with something else slows all of them alike, so that their ratios hold. The first frame warms up.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.camera.base import Camera, Frame
from edge.doctor.child_process import run_python
from edge.errors import CameraError
from edge.terminal.loop import Terminal
from edge.vision.detect import Face
from edge.vision.quality import assess
from edge.vision.recognize import Recognition, Recognizer

WARM_UP = 5
WAIT_SECONDS = 5.0
STARTS, START_SECONDS = 3, 60.0
# The memory is the process's own: what getrusage says may be that of the process that started it.
START = """
import json, sys, time
began = time.perf_counter()
from edge import Recognizer
imported = time.perf_counter()
Recognizer.load(sys.argv[1]).detector
loaded = time.perf_counter()
with open("/proc/self/status") as status:
    peak = next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))
print(json.dumps({
    "import_seconds": imported - began,
    "load_seconds": loaded - imported,
    "peak_mb": peak,
    "strangers": sorted({"onnx", "scipy", "sklearn"} & set(sys.modules)),
}))
"""

READ, DETECT, ALIGN, RECOGNISE, DECIDE, WHOLE = "read", "detect", "align and quality", "recognise", "track and decide", "whole"
STAGES = (READ, DETECT, ALIGN, RECOGNISE, DECIDE, WHOLE)
"""What is timed: to decode a frame (of a recording), to find the faces, to cut them out and judge them, to recognise them, to
follow and decide; and a frame's whole way from the camera to the decision."""


@dataclass(frozen=True, kw_only=True)
class Times:
    """How long something took, or how many times as long as something else."""

    p50: float
    p95: float

    @classmethod
    def of(cls, values: list[float] | NDArray[Any], unit: float = 1.0) -> Times:
        p50, p95 = np.percentile(values, [50, 95]) * unit
        return cls(p50=float(p50), p95=float(p95))


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a fresh process needs until it is ready for the first frame: medians over a few."""

    import_seconds: float
    """To `from edge import Recognizer`."""
    load_seconds: float
    """To read and check the kit, and make its detector and recogniser."""
    peak_mb: float
    """Memory, at most so far."""
    strangers: tuple[str, ...]
    """Packages it loaded that a device has no need of."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was measured."""

    camera: str
    width: int
    height: int
    people: int
    """In the kit."""
    frames: int
    with_face: int
    """Frames in which a face was found."""
    recognised: int
    """Frames with a face good enough to be recognised: those that the shares and ratios are of."""
    stages_ms: dict[str, Times]
    """By stage, those of STAGES that took place."""
    frames_per_second: float
    """That the device could look at, were nothing else to do."""
    recognition_share: Times | None
    """Recognition over the frame's whole time; None where no face was recognised."""
    after_detection_share: Times | None
    """All that follows the detector, over the frame's whole time."""
    whole_to_detector: Times | None
    """p50: of a frame's whole time over the detector's in that frame; p95: of the one's p95 over the other's."""
    start: Start | None
    """None where no process could be started."""

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


GOALS = {"recognition_share": 0.05, "whole_to_detector": 1.3, "start_seconds": 0.5, "peak_mb": 120.0}
"""At most; the last two on a workstation."""


class _Replay(Recognizer):
    """Has the answer already, so that a terminal with it only follows and decides."""

    def __init__(self, recognizer: Recognizer) -> None:
        self.kit = recognizer.kit
        self.found: list[Recognition] = []

    def recognize(self, image: NDArray[np.uint8], *, min_face: int | None = None) -> list[Recognition]:
        return self.found


def measure(
    recognizer: Recognizer,
    camera: Camera,
    *,
    frames: int = 200,
    kit: str | Path | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Report:
    """Time the stages on so many frames of the camera, or all that a recording has; and the start, with the file `kit`.

    With time.thread_time as the `clock`, a busy machine gives the same figures as an idle one, for one thread.
    """
    frame = _next(camera)
    if frame is None:
        raise CameraError(f"{camera.name} gave no picture within {WAIT_SECONDS:g} seconds.", "Try `edge doctor`.")
    for _ in range(WARM_UP):
        recognizer.recognize(frame.image)
    height, width = frame.image.shape[:2]
    bench = _Bench(recognizer, camera, clock)
    for done in range(frames):
        if frame is None:
            break
        bench.look(frame, whole_first=done % 2 == 0)
        report(done + 1, frames)
        started = clock()
        frame = _next(camera)
        if not camera.live and frame is not None:
            bench.reads.append(clock() - started)
    return bench.report(camera=camera.name, width=width, height=height, start=None if kit is None else start(kit))


class _Bench:
    def __init__(self, recognizer: Recognizer, camera: Camera, clock: Callable[[], float]) -> None:
        self.recognizer, self.clock = recognizer, clock
        self.terminal = Terminal(recognizer, camera)
        self.replay = _Replay(recognizer)
        self.decider = Terminal(self.replay, camera)
        self.reads: list[float] = []
        self.taken: list[dict[str, float]] = []
        """Seconds by stage, of each frame."""

    def look(self, frame: Frame, *, whole_first: bool) -> None:
        taken: dict[str, float] = {}

        def timed(stage: str, action: Callable[[], Any]) -> Any:
            started = self.clock()
            result = action()
            taken[stage] = self.clock() - started
            return result

        if whole_first:
            timed(WHOLE, lambda: self.terminal.look(frame))
        faces = timed(DETECT, lambda: self.recognizer.detector.detect(frame.image))
        if faces:
            crops = timed(ALIGN, lambda: self._crops(frame.image, faces))
            if len(crops):
                timed(RECOGNISE, lambda: self.recognizer.recognize_crops(crops))
        self.replay.found = self.recognizer.recognize(frame.image) if faces else []
        timed(DECIDE, lambda: self.decider.look(frame))
        if not whole_first:
            timed(WHOLE, lambda: self.terminal.look(frame))
        self.taken.append(taken)

    def _crops(self, image: NDArray[np.uint8], faces: list[Face]) -> NDArray[np.uint8]:
        """Those of the faces that are good enough, as in Recognizer.recognize."""
        grey: NDArray[Any] = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
        crops = [self.recognizer.crop(grey, face) for face in faces]
        limits = self.recognizer.limits
        good = [crop for face, crop in zip(faces, crops, strict=True) if assess(grey, face, limits, crop).reason is None]
        return np.array(good)

    def report(self, **facts: Any) -> Report:
        taken: dict[str, list[float]] = {READ: self.reads}
        for stage in STAGES[1:]:
            taken[stage] = [frame[stage] for frame in self.taken if stage in frame]
        stages_ms = {stage: Times.of(seconds, 1000) for stage, seconds in taken.items() if seconds}
        seen = [frame for frame in self.taken if RECOGNISE in frame]
        detect, crop, recognise, decide, whole = (np.array([frame[stage] for frame in seen]) for stage in STAGES[1:])
        return Report(
            people=len(self.recognizer.kit.manifest.labels),
            frames=len(self.taken),
            with_face=len(taken[ALIGN]),
            recognised=len(seen),
            stages_ms=stages_ms,
            frames_per_second=1000 / stages_ms[WHOLE].p50,
            recognition_share=Times.of(recognise / whole) if seen else None,
            after_detection_share=Times.of((crop + recognise + decide) / whole) if seen else None,
            whole_to_detector=(
                Times(p50=Times.of(whole / detect).p50, p95=Times.of(whole).p95 / Times.of(detect).p95) if seen else None
            ),
            **facts,
        )


def _next(camera: Camera) -> Frame | None:
    """The next frame, also of a camera that takes its time."""
    until = time.monotonic() + WAIT_SECONDS
    while not camera.ended and time.monotonic() < until:
        if (frame := camera.frame(0.25)) is not None:
            return frame
    return None


def start(kit: str | Path) -> Start | None:
    """How long a fresh process takes to be ready, and how much memory."""
    runs = []
    for _ in range(STARTS):
        try:
            done = run_python(START, kit, seconds=START_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            return None
        if done.returncode != 0:
            return None
        runs.append(json.loads(done.stdout))
    middle = {name: float(np.median([run[name] for run in runs])) for name in ("import_seconds", "load_seconds", "peak_mb")}
    return Start(**middle, strangers=tuple(sorted({name for run in runs for name in run["strangers"]})))


def table(report: Report) -> str:
    """For people, with the goals beside the figures."""
    lines = [
        f"{report.camera}: {report.frames} frames of {report.width}x{report.height}, {report.with_face} with a face, "
        f"{report.recognised} with one good enough to be recognised; {report.people} people in the kit",
        "",
        f"{'':42}{'p50':>9}{'p95':>9}",
    ]
    lines += [f"{stage + ', ms':42}{taken.p50:9.2f}{taken.p95:9.2f}" for stage, taken in report.stages_ms.items()]
    lines += [f"{'frames a second, at most':42}{report.frames_per_second:9.1f}", ""]
    if report.recognition_share is None:
        lines.append("No face was good enough to be recognised, so nothing can be said about recognition beside detection.")
    for name, ratio, form, goal in (
        ("recognition, of the whole", report.recognition_share, ".1%", f"{GOALS['recognition_share']:.0%}"),
        ("all after the detector, of the whole", report.after_detection_share, ".1%", ""),
        ("whole, times the detector", report.whole_to_detector, ".2f", f"{GOALS['whole_to_detector']:g}"),
    ):
        if ratio is not None:
            lines.append(f"{name:42}{ratio.p50:>9{form}}{ratio.p95:>9{form}}{f'   goal: at most {goal}' if goal else ''}")
    if report.start is not None:
        start = report.start
        seconds = start.import_seconds + start.load_seconds
        lines += [
            f"{'start, s: import + kit':42}{seconds:9.2f}   ({start.import_seconds:.2f} + {start.load_seconds:.2f})"
            f"   goal on a workstation: at most {GOALS['start_seconds']:g}",
            f"{'memory after the start, MB':42}{start.peak_mb:9.0f}   goal on a workstation: at most {GOALS['peak_mb']:g}",
            f"{'packages it should not load':42}{', '.join(start.strangers) or 'none':>9}",
        ]
    return "\n".join(lines)
