"""The whole path on real faces: enrol 30 people of ORL, train, export, verify, and run a door with these people and 10
strangers; then the error rate on ordinary photographs, if there are some. All files of the door are left in demo-output/."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from zipfile import ZipFile

import cv2
import numpy as np
import typer

from edge.cli import common as console
from scripts.research import options, orl, wild
from scripts.research.photo_draw import draw
from trainer.presets import DEFAULT

OUTPUT = Path(__file__).resolve().parents[1] / "demo-output"
ENROLLED, PHOTOS = 30, 6  # people, and training photos of each; the other photos and people appear only at the door
FPS, LOOKS, FRAMES, PAUSE = 10, 4, 5, 14  # a visit shows LOOKS photos for FRAMES frames each, then PAUSE empty frames
GOAL = 0.9
PHOTOGRAPHS = "lfw_dev.zip"  # a folder per person
PEOPLE, EACH, MOST, STRANGERS = 20, 3, 8, 100  # enrolled people and their photos, photos of a person in all, strangers
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Visitor:
    """A person in the video, from frame `first` to frame `last`."""

    name: str
    enrolled: bool
    first: int
    last: int


def divide_people(rng: np.random.Generator) -> list[tuple[str, list[Any]]]:
    """Write the training photos to OUTPUT/photos/NAME. Return the visits: name and photos of each, in random order."""
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


def write_video(visits: list[tuple[str, list[Any]]], path: Path, rng: np.random.Generator) -> list[Visitor]:
    """Write the video of the door, and return the visitors in it."""
    video = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), FPS, (640, 480))
    visitors, at = [], 0
    for name, photos in visits:
        stand = orl.Stand.anywhere(rng)
        for photo in photos[:LOOKS]:
            for _ in range(FRAMES):
                video.write(orl.scene(photo, rng, stand.jittered(rng)))
        for _ in range(PAUSE):
            video.write(orl.empty_scene(rng, stand))
        length = LOOKS * FRAMES
        visitors.append(Visitor(name, (OUTPUT / "photos" / name).is_dir(), at, at + length - 1))
        at += length + PAUSE
    video.release()
    return visitors


def run(command: str, *words: str | Path, shown: str = "") -> str:
    """Run one of the three commands as a user would. Return its stdout."""
    arguments = [str(word) for word in words]
    console.say(f"\n$ {shlex.join([command, *arguments])}{shown}")
    module = {"edge-export": "export"}.get(command, command)
    done = subprocess.run([sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE, text=True, cwd=OUTPUT)
    if done.returncode != 0:
        sys.exit(done.returncode)  # it has printed the reason
    return done.stdout


def outcome(visitor: Visitor, events: list[tuple[float, dict[str, Any]]]) -> tuple[str, dict[str, Any] | None]:
    """The result of a visit and its event. With several events, the worst counts."""
    mine = [event for frame, event in events if visitor.first <= frame <= visitor.last + PAUSE - 1]
    wrong = [event for event in mine if event["outcome"] == "granted" and event["label"] != visitor.name]
    granted = [event for event in mine if event["outcome"] == "granted" and event not in wrong]
    if wrong:
        return "wrong grant", wrong[0]
    return ("correct grant", granted[0]) if granted else ("denied", mine[0] if mine else None)


def report(visitors: list[Visitor], lines: list[str]) -> int:
    """Print the table of visits. Return 0 if the goals are met, else 1."""
    events = [json.loads(line) for line in lines]
    start = next(event["monotonic"] for event in events if event["kind"] == "start")
    decisions = [
        ((event["monotonic"] - event["seconds_from_capture"] - start) * FPS, event)
        for event in events
        if event["kind"] == "decision"
    ]
    counts: Counter[tuple[bool, str]] = Counter()
    console.say(f"\n{'visitor':<10}  {'result':<16} {'confidence':>10}  {'frames':>6}  {'seconds':>7}  reason")
    for visitor in visitors:
        result, event = outcome(visitor, decisions)
        counts[visitor.enrolled, result] += 1
        name = visitor.name if visitor.enrolled else "stranger"
        if event is None:
            console.say(f"{name:<10}  {result:<16} {'':>27}  no decision")
            continue
        reason = f"as {event['label']}" if "grant" in result else event["reason"]
        seconds = event["seconds_from_first_sight"]
        console.say(f"{name:<10}  {result:<16} {event['confidence']:>10.2f}  {event['frames']:>6}  {seconds:>7.1f}  {reason}")
    console.say(f"\n{'visits':<24} {'correct grant':>16} {'wrong grant':>16} {'denied':>8}")
    for enrolled, words in ((True, "by enrolled people"), (False, "by strangers")):
        number = sum(n for (known, _), n in counts.items() if known == enrolled)
        right, wrong, denied = (counts[enrolled, result] for result in ("correct grant", "wrong grant", "denied"))
        console.say(f"{number:>3} {words:<20} {right:>16} {wrong:>16} {denied:>8}")
    known = sum(n for (enrolled, _), n in counts.items() if enrolled)
    wrong_grants = counts[True, "wrong grant"] + counts[False, "wrong grant"]
    good = counts[True, "correct grant"] >= GOAL * known and not wrong_grants
    console.say(
        f"\nGoals (at least {GOAL:.0%} of the enrolled people granted, no wrong grant): {'met' if good else 'MISSED'}."
    )
    console.say(f"{OUTPUT.name}/seen.mp4 is the video with the marks of the terminal.")
    return 0 if good else 1


def unpack_some(archive: Path, folder: Path, rng: np.random.Generator) -> None:
    """Unpack people with enough photos to be enrolled, and strangers with one photo."""
    with ZipFile(archive) as packed:
        people: dict[str, list[str]] = defaultdict(list)
        for name in sorted(packed.namelist()):
            if not name.endswith("/"):
                people[Path(name).parent.name].append(name)
        enough = [name for name, photos in people.items() if len(photos) > EACH]
        single = [name for name, photos in people.items() if len(photos) == 1]
        for name in (*rng.permutation(enough)[:PEOPLE], *rng.permutation(single)[:STRANGERS]):
            for photo in people[name][:MOST]:
                (folder / name).mkdir(exist_ok=True)
                (folder / name / Path(photo).name).write_bytes(packed.read(photo))


def photographs(archive: Path) -> str:
    """Measure the default preset and the cosine of SFace on a small draw of ordinary photographs. Return a sentence."""
    with tempfile.TemporaryDirectory(prefix="lclrr-demo-") as place:
        photos, work = Path(place) / "photos", Path(place) / "work"
        photos.mkdir()
        work.mkdir()
        unpack_some(archive, photos, np.random.default_rng(0))
        drawn = draw(photos, people=PEOPLE, photos=EACH, strangers=STRANGERS, seed=0, prefix=None, say=console.say)
        ours = wild.result(drawn, wild.Presets(drawn, work, console.say).answers(DEFAULT))
        cosine = wild.result(drawn, wild.Cosines(drawn, work, console.say).answers("sface_cosine_mean"))
    missed, by_cosine = (found["bare"]["fnir_0.01"] for found in (ours, cosine))
    return (
        f"Ordinary photographs (LFW, {PEOPLE} people, {len(drawn.tests)} test photos, {STRANGERS} strangers): "
        f"missed at FPIR 1 %: {DEFAULT} {missed:.1f} %, SFace and cosine {by_cosine:.1f} %."
    )


@app.command()
def main(
    data: Annotated[Path, typer.Option(help=f"Folder with {PHOTOGRAPHS} (LFW, a folder per person).")] = options.DATA,
    with_console: Annotated[bool, typer.Option("--console", help="Make a site instead, and open its console.")] = False,
    browser: Annotated[bool, typer.Option(help="Open the console in a browser, or only print its link.")] = True,
) -> None:
    """Train on ORL, build a kit, run a door with strangers; then measure ordinary photographs, if there are some."""
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir(mode=0o700)
    if with_console:
        from scripts import demo_console  # it needs this module

        return demo_console.start(browser=browser)
    rng = np.random.default_rng(0)
    console.say(
        f"ORL (AT&T Laboratories Cambridge): {ENROLLED} of 40 people are enrolled with {PHOTOS} photos each; 10 are strangers."
    )
    visits = divide_people(rng)
    run("trainer", "fit", "photos", "-o", "door.npz")
    run("edge-export", "build", "door.npz", "-o", "door.kit")
    run("edge-export", "verify", "door.kit")
    console.say(f"\nWriting door.mp4: {len(visits)} visits, made of photos that were not used for training ...")
    visitors = write_video(visits, OUTPUT / "door.mp4", rng)
    events = run("edge", "recognize", "door.kit", "--camera", "door.mp4", "--annotate", "seen.mp4", shown=" > events.jsonl")
    (OUTPUT / "events.jsonl").write_text(events)
    failed = report(visitors, events.splitlines())
    if (data / PHOTOGRAPHS).is_file():
        console.say(f"\nMeasuring ordinary photographs of {PHOTOGRAPHS} ...")
        console.say(photographs(data / PHOTOGRAPHS))
    else:
        console.say(
            f"\nOrdinary photographs: left out. There is no {PHOTOGRAPHS} (LFW, a folder per person) in {data}. "
            "Name its folder with --data or LCLRR_DATA."
        )
    sys.exit(failed)


if __name__ == "__main__":
    console.run(app)
