"""Measure how long each stage of a frame takes on this device.

The stages are timed inside the terminal's own loop, so their ratios hold on a busy machine too. The first frame warms up.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge import stages
from edge.camera.base import Camera, Frame
from edge.errors import CameraError
from edge.terminal.loop import Terminal
from edge.vision.recognize import Recognizer

WARM_UP = 5
WAIT_SECONDS = 5.0
BENCH_STAGES = ("read", *stages.STAGES)
GOALS = {"recognition_share": 0.05, "whole_to_detector": 1.3}
"""Upper limits."""


@dataclass(frozen=True, kw_only=True)
class Times:
    """Median and 95th percentile of durations or of ratios."""

    p50: float
    p95: float

    @classmethod
    def of(cls, values: list[float] | NDArray[Any], unit: float = 1.0) -> "Times":
        p50, p95 = np.percentile(values, [50, 95]) * unit
        return cls(p50=float(p50), p95=float(p95))


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of a measurement. Shares and ratios are about the `recognised` frames; None if there are none."""

    camera: str
    width: int
    height: int
    people: int
    """People in the kit."""
    frames: int
    with_face: int
    recognised: int
    """Frames with a face that is good enough for recognition."""
    stages_ms: dict[str, Times]
    """Milliseconds by stage, for the stages that ran; `read` is the time to read a frame of a recording."""
    frames_per_second: float
    """Frames that the device could process if it did nothing else."""
    recognition_share: Times | None
    """Recognition time as a share of the whole frame."""
    after_detection_share: Times | None
    """Time of all stages after the detector, as a share of the whole frame."""
    whole_to_detector: Times | None
    """p50: median of whole time over detector time; p95: ratio of the two 95th percentiles."""


def measure(
    recognizer: Recognizer,
    camera: Camera,
    *,
    frames: int = 200,
    report: Callable[[int, int], None] = lambda done, total: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Report:
    """Time the stages on up to `frames` frames of the camera.

    With time.thread_time as the `clock`, one thread gives the same numbers on a busy machine as on an idle one.
    """
    frame = _next_frame(camera)
    if frame is None:
        raise CameraError(f"{camera.name} gave no frame within {WAIT_SECONDS:g} seconds.", "Try `edge doctor`.")
    for _ in range(WARM_UP):
        recognizer.recognize(frame.image)
    height, width = frame.image.shape[:2]
    timed: list[dict[str, float]] = []  # of each frame, the seconds of its stages
    reads: list[float] = []

    @contextmanager
    def stopwatch(stage: str) -> Iterator[None]:
        started = clock()
        yield
        timed[-1][stage] = clock() - started

    recognizer.stage = stopwatch
    terminal = Terminal(recognizer, camera, stage=stopwatch)
    while frame is not None and len(timed) < frames:
        timed.append({})
        terminal.look(frame)
        report(len(timed), frames)
        started = clock()
        frame = _next_frame(camera)
        if not camera.live and frame is not None:
            reads.append(clock() - started)
    seconds = {"read": reads} | {stage: [one[stage] for one in timed if stage in one] for stage in stages.STAGES}
    stages_ms = {stage: Times.of(values, 1000) for stage, values in seconds.items() if values}
    recognised = [one for one in timed if stages.RECOGNISE in one]
    detect, align, recognise, decide, whole = (np.array([one[stage] for one in recognised]) for stage in stages.STAGES)
    return Report(
        camera=camera.name,
        width=width,
        height=height,
        people=len(recognizer.kit.manifest.labels),
        frames=len(timed),
        with_face=len(seconds[stages.ALIGN]),
        recognised=len(recognised),
        stages_ms=stages_ms,
        frames_per_second=1000 / stages_ms[stages.WHOLE].p50,
        recognition_share=Times.of(recognise / whole) if recognised else None,
        after_detection_share=Times.of((align + recognise + decide) / whole) if recognised else None,
        whole_to_detector=(
            Times(p50=Times.of(whole / detect).p50, p95=Times.of(whole).p95 / Times.of(detect).p95) if recognised else None
        ),
    )


def _next_frame(camera: Camera) -> Frame | None:
    """Return the next frame, or None if the recording ended or no frame came in time."""
    until = time.monotonic() + WAIT_SECONDS
    while not camera.ended and time.monotonic() < until:
        if (frame := camera.frame(0.25)) is not None:
            return frame
    return None


def table(report: Report) -> str:
    """Return the report as text, with the goals."""
    lines = [
        f"{report.camera}: {report.frames} frames of {report.width}x{report.height}, {report.with_face} with a face, "
        f"{report.recognised} with a face good enough for recognition; {report.people} people in the kit",
        "",
        f"{'':32}{'p50':>9}{'p95':>9}",
    ]
    lines += [f"{stage + ', ms':32}{times.p50:9.2f}{times.p95:9.2f}" for stage, times in report.stages_ms.items()]
    lines += [f"{'frames per second, at most':32}{report.frames_per_second:9.1f}"]
    if report.recognition_share is None:
        lines.append("No face was good enough for recognition, so its share of the time is unknown.")
    for name, ratio, form, goal in (
        ("recognition / whole", report.recognition_share, ".1%", f"   goal: at most {GOALS['recognition_share']:.0%}"),
        ("all after the detector / whole", report.after_detection_share, ".1%", ""),
        ("whole / detector", report.whole_to_detector, ".2f", f"   goal: at most {GOALS['whole_to_detector']:g}"),
    ):
        if ratio is not None:
            lines.append(f"{name:32}{ratio.p50:>9{form}}{ratio.p95:>9{form}}{goal}")
    return "\n".join(lines)
