"""Measure how long each stage of a frame takes on this device, and what a visit costs.

The stages are timed inside the terminal's own loop, so their ratios hold on a busy machine too. The first frame warms up.
Visits depend on the time between frames: of a faster camera or recording, only FPS frames per second are processed.
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
from edge.events.event import Event
from edge.events.health import Count
from edge.terminal.loop import Terminal
from edge.vision.recognize import Recognizer

WARM_UP = 5
WAIT_SECONDS = 5.0
FPS = 15.0
TOLERANCE = 0.1  # of the time between two frames
ROUNDING = 1e-4  # of the times in events, in seconds
BENCH_STAGES = ("read", *stages.STAGES)
GOALS = {"looks_granted": 5, "looks_denied": 12, "core_share": 0.15}
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
class VisitCost:
    """What the visits with the same outcome cost, from their first frame to their decision."""

    visits: int
    looks: float
    """Recognitions per visit: the mean."""
    most_looks: int
    processor_ms: float
    """Processor milliseconds per visit, all stages: the mean."""


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
    """Frames in which a face was recognised. In the others the faces are only tracked, or not good enough."""
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
    granted: VisitCost | None
    denied: VisitCost | None
    """What the visits cost; None if there are none."""
    core_share: float
    """Share of one processor core at FPS frames per second: the mean over all frames."""


def measure(
    recognizer: Recognizer,
    camera: Camera,
    *,
    frames: int = 200,
    report: Callable[[int, int], None] = lambda done, total: None,
    clock: Callable[[], float] = time.perf_counter,
    processor: Callable[[], float] = time.process_time,
) -> Report:
    """Time the stages on up to `frames` frames of the camera.

    With time.thread_time as the `clock`, one thread gives the same numbers on a busy machine as on an idle one. `processor`
    measures the cost of visits.
    """
    frame = _next_frame(camera)
    if frame is None:
        raise CameraError(f"{camera.name} gave no frame within {WAIT_SECONDS:g} seconds.", "Try `edge doctor`.")
    for _ in range(WARM_UP):
        recognizer.recognize(frame.image)
    height, width = frame.image.shape[:2]
    timed: list[dict[str, float]] = []  # of each frame, the seconds of its stages
    reads: list[float] = []
    costs: list[tuple[float, float]] = []  # of each frame: when it was taken, and its processor seconds
    events: list[Event] = []
    with_face = 0

    @contextmanager
    def stopwatch(stage: str) -> Iterator[None]:
        started = clock()
        yield
        timed[-1][stage] = clock() - started

    recognizer.stage = stopwatch
    terminal = Terminal(recognizer, camera, stage=stopwatch)
    while frame is not None and len(timed) < frames:
        timed.append({})
        faces, began = terminal.counters[Count.FACES], processor()
        events += terminal.look(frame)
        costs.append((frame.captured, processor() - began))
        with_face += terminal.counters[Count.FACES] > faces
        report(len(timed), frames)
        next_time = frame.captured + (1 - TOLERANCE) / FPS
        started = clock()
        frame = _next_frame(camera)
        if not camera.live and frame is not None:
            reads.append(clock() - started)
        while frame is not None and frame.captured < next_time:
            frame = _next_frame(camera)
    events += terminal.finish()
    seconds = {"read": reads} | {stage: [one[stage] for one in timed if stage in one] for stage in stages.STAGES}
    stages_ms = {stage: Times.of(values, 1000) for stage, values in seconds.items() if values}
    recognised = [one for one in timed if stages.RECOGNISE in one]
    taken = {stage: np.array([one.get(stage, 0.0) for one in recognised]) for stage in stages.STAGES}
    detect, whole = taken[stages.DETECT], taken[stages.WHOLE]
    after_detection = sum(taken[stage] for stage in (stages.ALIGN, stages.RECOGNISE, stages.LIVENESS, stages.DECIDE))
    return Report(
        camera=camera.name,
        width=width,
        height=height,
        people=len(recognizer.kit.manifest.labels),
        frames=len(timed),
        with_face=with_face,
        recognised=len(recognised),
        stages_ms=stages_ms,
        frames_per_second=1 / float(np.mean(seconds[stages.WHOLE])),
        recognition_share=Times.of(taken[stages.RECOGNISE] / whole) if recognised else None,
        after_detection_share=Times.of(after_detection / whole) if recognised else None,
        whole_to_detector=(
            Times(p50=Times.of(whole / detect).p50, p95=Times.of(whole).p95 / Times.of(detect).p95) if recognised else None
        ),
        granted=_visit_cost([event for event in events if event.outcome == "granted"], costs),
        denied=_visit_cost([event for event in events if event.outcome == "denied"], costs),
        core_share=FPS * float(np.mean([cost for _, cost in costs])),
    )


def _visit_cost(events: list[Event], costs: list[tuple[float, float]]) -> VisitCost | None:
    """Sum up the decisions `events` with the same outcome. Visits at the same time share frames, which count for each."""
    if not events:
        return None
    looks = [event.looks or 0 for event in events]
    seconds = []
    for event in events:
        now, ages = event.monotonic or 0.0, (event.seconds_from_first_sight or 0.0, event.seconds_from_capture or 0.0)
        first, last = now - ages[0] - ROUNDING, now - ages[1] + ROUNDING
        seconds.append(sum(cost for captured, cost in costs if first <= captured <= last))
    return VisitCost(
        visits=len(events), looks=float(np.mean(looks)), most_looks=max(looks), processor_ms=1000 * float(np.mean(seconds))
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
        f"{report.camera}: {report.frames} frames of {report.width}x{report.height}, faces found in {report.with_face}, "
        f"recognised in {report.recognised}; {report.people} people in the kit",
        "",
        f"{'':32}{'p50':>9}{'p95':>9}",
    ]
    lines += [f"{stage + ', ms':32}{times.p50:9.2f}{times.p95:9.2f}" for stage, times in report.stages_ms.items()]
    lines += [f"{'frames per second, at most':32}{report.frames_per_second:9.1f}"]
    if report.recognition_share is None:
        lines.append("No face was recognised, so the share of its time is unknown.")
    for name, ratio, form in (
        ("recognition / whole", report.recognition_share, ".1%"),
        ("all after the detector / whole", report.after_detection_share, ".1%"),
        ("whole / detector", report.whole_to_detector, ".2f"),
    ):
        if ratio is not None:
            lines.append(f"{name:32}{ratio.p50:>9{form}}{ratio.p95:>9{form}}")
    lines += ["", f"{'':32}{'visits':>9}{'looks':>9}{'at most':>9}{'CPU ms':>9}"]
    for outcome, cost in (("granted", report.granted), ("denied", report.denied)):
        if cost is not None:
            shown = f"{cost.visits:9}{cost.looks:9.1f}{cost.most_looks:9}{cost.processor_ms:9.0f}"
            lines.append(f"{f'{outcome}, to the decision':32}{shown}   goal: at most {GOALS[f'looks_{outcome}']} looks")
    share = f"{f'one core at {FPS:g} frames a second':32}{report.core_share:9.1%}"
    lines.append(f"{share}   goal: at most {GOALS['core_share']:.0%}")
    return "\n".join(lines)
