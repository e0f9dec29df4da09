"""The whole story on real faces: enrol 30 people of ORL, train, export, verify, and watch a door to which they come, and 10
strangers. Everything that is made is left in demo-output/."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from edge.cli import common as console
from scripts.research import orl

OUTPUT = Path(__file__).resolve().parents[1] / "demo-output"
ENROLLED, PHOTOS = 30, 6  # people, and photos of each; the other photos, and the other people, are seen at the door only
FPS, LOOKS, FRAMES, PAUSE = 10, 4, 5, 14  # a visit shows so many photos for so many frames each, then nobody
GOAL = 0.9


@dataclass(frozen=True)
class Guest:
    """Somebody before the camera from one frame of the video to another."""

    name: str
    enrolled: bool
    first: int
    last: int


def divide(rng: np.random.Generator) -> list[tuple[str, list[Any]]]:
    """OUTPUT/photos/NAME, the photos of the enrolled; the visits to come, each with its photos."""
    visits = []
    for i, (name, photos) in enumerate(sorted(orl.people().items(), key=lambda _: rng.random())):
        mixed = [photos[k] for k in rng.permutation(len(photos))]
        if i < ENROLLED:
            folder = OUTPUT / "photos" / name
            folder.mkdir(parents=True)
            for k, photo in enumerate(mixed[:PHOTOS]):
                cv2.imwrite(str(folder / f"{k}.png"), photo)
            visits.append((name, mixed[PHOTOS:]))
        else:
            visits += [(name, mixed[:LOOKS]), (name, mixed[LOOKS : 2 * LOOKS])]
    return [visits[k] for k in rng.permutation(len(visits))]


def film(visits: list[tuple[str, list[Any]]], path: Path, rng: np.random.Generator) -> list[Guest]:
    """The door's video, and who is in it."""
    video = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), FPS, (640, 480))
    guests, at = [], 0
    for name, photos in visits:
        stand = orl.Stand.anywhere(rng)
        for photo in photos[:LOOKS]:
            for _ in range(FRAMES):
                video.write(orl.scene(photo, rng, stand.jittered(rng)))
        for _ in range(PAUSE):
            video.write(orl.nobody(rng, stand))
        length = LOOKS * FRAMES
        guests.append(Guest(name, (OUTPUT / "photos" / name).is_dir(), at, at + length - 1))
        at += length + PAUSE
    video.release()
    return guests


def run(command: str, *words: str | Path, shown: str = "") -> str:
    """Run one of the three commands as a user would, and return what it wrote to stdout."""
    arguments = [str(word) for word in words]
    console.say(f"\n$ {shlex.join([command, *arguments])}{shown}")
    module = {"edge-export": "export"}.get(command, command)
    done = subprocess.run([sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE, text=True, cwd=OUTPUT)
    if done.returncode != 0:
        sys.exit(done.returncode)  # it has said why
    return done.stdout


def outcome(guest: Guest, events: list[tuple[float, dict[str, Any]]]) -> tuple[str, dict[str, Any] | None]:
    """What became of a visit: the event, and what it means. Several events of one visit count as the worst of them."""
    mine = [event for frame, event in events if guest.first <= frame <= guest.last + PAUSE - 1]
    wrong = [event for event in mine if event["outcome"] == "granted" and event["label"] != guest.name]
    granted = [event for event in mine if event["outcome"] == "granted" and event not in wrong]
    if wrong:
        return "granted wrongly", wrong[0]
    return ("granted rightly", granted[0]) if granted else ("refused", mine[0] if mine else None)


def report(guests: list[Guest], lines: list[str]) -> int:
    """The table of visits; 0 if the goals are met."""
    events = [json.loads(line) for line in lines]
    start = next(event["monotonic"] for event in events if event["kind"] == "start")
    decisions = [
        ((event["monotonic"] - event["seconds_from_capture"] - start) * FPS, event)
        for event in events
        if event["kind"] == "decision"
    ]
    counts: Counter[tuple[bool, str]] = Counter()
    console.say(f"\n{'visitor':<10}  {'what happened':<16} {'confidence':>10}  {'frames':>6}  {'seconds':>7}  reason")
    for guest in guests:
        what, event = outcome(guest, decisions)
        counts[guest.enrolled, what] += 1
        who = guest.name if guest.enrolled else "stranger"
        if event is None:
            console.say(f"{who:<10}  {what:<16} {'':>27}  no decision")
            continue
        reason = f"as {event['label']}" if "granted" in what else event["reason"]
        seconds = event["seconds_from_first_sight"]
        console.say(f"{who:<10}  {what:<16} {event['confidence']:>10.2f}  {event['frames']:>6}  {seconds:>7.1f}  {reason}")
    console.say(f"\n{'visits':<24} {'granted rightly':>16} {'granted wrongly':>16} {'refused':>8}")
    for enrolled, words in ((True, "of enrolled people"), (False, "of strangers")):
        number = sum(n for (known, _), n in counts.items() if known == enrolled)
        right, wrong, refused = (counts[enrolled, what] for what in ("granted rightly", "granted wrongly", "refused"))
        console.say(f"{number:>3} {words:<20} {right:>16} {wrong:>16} {refused:>8}")
    known = sum(n for (enrolled, _), n in counts.items() if enrolled)
    wrongly = counts[True, "granted wrongly"] + counts[False, "granted wrongly"]
    good = counts[True, "granted rightly"] >= GOAL * known and not wrongly
    console.say(f"\nGoals ({GOAL:.0%} of the enrolled let in, nobody wrongly): {'met' if good else 'MISSED'}.")
    console.say(f"Look at {OUTPUT.name}/seen.mp4 for what the terminal saw.")
    return 0 if good else 1


def main() -> int:
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir(mode=0o700)
    rng = np.random.default_rng(0)
    console.say(
        f"ORL (AT&T Laboratories Cambridge): {ENROLLED} of 40 people are enrolled with {PHOTOS} photos each, 10 are strangers."
    )
    visits = divide(rng)
    run("trainer", "fit", "photos", "-o", "door.npz")
    run("edge-export", "build", "door.npz", "-o", "door.kit")
    run("edge-export", "verify", "door.kit")
    console.say(f"\nMaking door.mp4: {len(visits)} visits, from photos that training has not seen ...")
    guests = film(visits, OUTPUT / "door.mp4", rng)
    events = run("edge", "recognize", "door.kit", "--camera", "door.mp4", "--annotate", "seen.mp4", shown=" > events.jsonl")
    (OUTPUT / "events.jsonl").write_text(events)
    return report(guests, events.splitlines())


if __name__ == "__main__":
    sys.exit(main())
