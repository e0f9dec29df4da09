"""A site to look at in the console: people of ORL, one photo under a wrong name, a model, a signed kit, two doors, visits.

It is made with the commands that anyone can use, so the terminal shows how to do the same without the console.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from edge.cli import common as console
from scripts import demo
from scripts.research import orl

SITE = "site"
PEOPLE, PHOTOS = 30, 6  # who are enrolled, and photos of each
STRANGERS, STRANGERS_PHOTOS = 5, 4  # for the threshold; the people after them are unknown visitors
WRONG_PLACE, WRONG_PERSON = 11, 7  # who has a photo, and whose photo it is
KNOWN, UNKNOWN = 5, 2  # visitors at each door
FRONT, WORKSHOP = "Front door", "Workshop"
KIT, KIT_KEY, PICTURE_KEY = "first", "kit-key.pem", "picture-key.pem"
SETTINGS = f"""\
[kit]
path = "../{SITE}/kits/{KIT}.kit"
public_key = "../{KIT_KEY}.pub"

[visits]
patience_seconds = 1.5

[audit]
path = "audit.db"
picture_key = "../{PICTURE_KEY}.pub"
"""
LIST = '[[allow]]\npeople = ["{0}"]\n\n[[allow]]\npeople = ["{1}"]\nweekdays = "mon-fri"\nhours = "07:00-18:00"\n'
People = list[list[Any]]


def label(number: int) -> str:
    return f"person {number + 1:02}"


INTRODUCTION = f"""\
This demo makes a site from public photos (ORL, AT&T Laboratories Cambridge): {PEOPLE} people with {PHOTOS} photos each,
and {STRANGERS} strangers. It trains a model, builds a signed kit, and runs two doors on invented videos.
That takes one to three minutes; then the console opens.
Each line with $ is a command that you can use yourself, in the folder demo-output."""
LOOK = f"""
The site is complete. What to look at:
  People   {label(0)} has a date of consent. {label(WRONG_PLACE)} has one photo of {label(WRONG_PERSON)}.
  Train    open the newest result: it asks about this photo. Answer, and train again.
  Kits     "{KIT}" is signed with demo-output/{KIT_KEY}. Build a second kit, and compare the two.
  Doors    the list of "{WORKSHOP}" lets two people pass. No terminal runs in this demo, so no door has a live status.
  Visits   who came to the doors, with pictures. Open a visit of an unknown person, and say who it is.
The demo makes the site again at each start. To keep it, copy the folder demo-output.
Press Ctrl-C to end the console.
"""


def start(*, browser: bool) -> None:
    """Make the site, and open its console. It does not return: this process becomes the console."""
    console.say(INTRODUCTION)
    fill()
    console.say(LOOK)
    words = ["console", SITE, "--address", "127.0.0.1:0", "--picture-key", PICTURE_KEY, *([] if browser else ["--no-browser"])]
    os.chdir(demo.OUTPUT)
    os.execv(sys.executable, [sys.executable, "-m", "trainer", *words])


def fill() -> None:
    """Make the site, with everything in it."""
    rng, people, site = np.random.default_rng(0), list(orl.people().values()), demo.OUTPUT / SITE
    write_photos(site, people)
    demo.run("trainer", "site", "check", SITE)
    demo.run("trainer", "site", "consent", SITE, label(0), "--date", "2026-05-04", "--note", "Signed at the reception.")
    demo.run("trainer", "site", "train", SITE)
    demo.run("edge-export", "keygen", "-o", KIT_KEY)
    demo.run("edge", "audit", "keygen", "-o", PICTURE_KEY)
    for door in (FRONT, WORKSHOP):
        folder = demo.OUTPUT / _folder(door)
        folder.mkdir()
        demo.run("trainer", "site", "add-door", SITE, door, "--drop", folder / "door.kit")
    list_file = demo.OUTPUT / "list.toml"
    list_file.write_text(LIST.format(label(KNOWN), label(KNOWN + 1)))
    demo.run("trainer", "site", "door-list", SITE, WORKSHOP, "--save", list_file.name)
    demo.run("edge-export", "release", SITE, "--name", KIT, "--sign", KIT_KEY, "--publish", "all")
    run_door(FRONT, visits_of(people, 0, rng), rng)
    run_door(WORKSHOP, visits_of(people, 1, rng), rng, "--door", f"{SITE}/lists/{WORKSHOP}.toml")


def write_photos(site: Path, people: People) -> None:
    """Write the photos of people and strangers, one of them under a wrong name."""
    for i, photos in enumerate(people[:PEOPLE]):
        mine = photos[:PHOTOS] + ([people[WRONG_PERSON][PHOTOS]] if i == WRONG_PLACE else [])
        _write(site / "photos" / label(i), mine)
    for i, photos in enumerate(people[PEOPLE : PEOPLE + STRANGERS], 1):
        _write(site / "strangers" / f"stranger {i}", photos[:STRANGERS_PHOTOS])


def _write(folder: Path, photos: list[Any]) -> None:
    folder.mkdir(mode=0o700, parents=True)
    for k, photo in enumerate(photos, 1):
        cv2.imwrite(str(folder / f"{k}.png"), photo)


def visits_of(people: People, door: int, rng: np.random.Generator) -> list[tuple[str, list[Any]]]:
    """Return the visits at a door in random order: name and photos of each. No training used these photos."""
    unknown = PEOPLE + STRANGERS + door * UNKNOWN
    known = [(label(i), people[i][PHOTOS:]) for i in range(door * KNOWN, (door + 1) * KNOWN)]
    visits = known + [("unknown", people[i]) for i in range(unknown, unknown + UNKNOWN)]
    return [visits[k] for k in rng.permutation(len(visits))]


def run_door(door: str, visits: list[tuple[str, list[Any]]], rng: np.random.Generator, *options: str) -> None:
    """Run a terminal on a video of these visits, and import its audit log."""
    folder = _folder(door)
    settings, video = f"{folder}/settings.toml", f"{folder}/door.mp4"
    (demo.OUTPUT / settings).write_text(SETTINGS)
    console.say(f'\nMaking a video of {len(visits)} visits at "{door}" ...')
    demo.write_video(visits, demo.OUTPUT / video, rng)
    demo.run("edge", "recognize", "--settings", settings, "--camera", video, *options, shown=f" > {folder}/events.jsonl")
    demo.run("trainer", "site", "import-visits", SITE, door, f"{folder}/audit.db")


def _folder(door: str) -> str:
    return door.lower().replace(" ", "-")
