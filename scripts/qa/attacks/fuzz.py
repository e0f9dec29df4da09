"""Fuzz: damaged kits, JPEGs, MJPEG streams, settings and door lists. Each must be accepted as it is, or rejected properly.

A breach is a crash, a wrong kind of exception, a damaged kit that is accepted, or much memory. The inputs of one area run in a
process of their own, because a decoder that is written in C may end it: python -m scripts.qa.attacks.fuzz AREA INPUTS SEED
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from edge import settings as configuration
from edge.camera import mjpeg, photo
from edge.decision.doorlist import DoorList
from edge.errors import CameraError, DoorListError, EdgeError, KitError, SettingsError
from edge.kit import format as kits
from edge.kit.manifest import Manifest
from edge.vision.recognize import Recognizer
from scripts.qa.attacks.attack import MEMORY_BYTES, Range, Score, attack, peak_memory, run_child
from tests.fixtures import kits as doors
from tests.fixtures.damage import (
    ANSWERS,
    LIST,
    HostileCamera,
    damage,
    draw_changes,
    forged,
    photos,
    read_all,
    settings_file,
)
from tests.fixtures.events import NOON

WORDS: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1e308,
    float("inf"),
    float("nan"),
    2**70,
    "",
    "none",
    [],
    {},
    [[]],
    "\ud800",
    10**400,
)


class BreachError(Exception):
    """An input that did what it must not do."""


def damaged_kit(rng: random.Random) -> None:
    """Change any bytes: the kit must be rejected."""
    data = damage(doors.kit(), draw_changes(rng))
    if data != doors.kit() and is_kit(data):
        raise BreachError("a damaged kit was accepted")


def is_kit(data: bytes) -> bool:
    try:
        kits.parse(data)
    except KitError:
        return False
    return True


def forged_kit(rng: random.Random) -> None:
    """Change a part and compute the checksums again: the kit must load or be rejected."""
    parts = kits.unpack(doors.kit())
    name = rng.choice([kits.RECOGNIZER, kits.RECOGNIZER, kits.LICENSE, kits.DETECTOR])
    data = forged(name, damage(parts.get(name, parts[kits.RECOGNIZER]), draw_changes(rng)))
    Recognizer(kits.parse(data))


def forged_manifest(rng: random.Random) -> None:
    """Change fields of the manifest: the kit must load or be rejected."""
    parts = kits.unpack(doors.kit())
    contents = json.loads(parts[kits.MANIFEST])
    for _ in range(rng.randint(1, 3)):
        table = contents
        while isinstance(table.get(key := rng.choice(sorted(table) or ["x"])), dict) and rng.random() < 0.7:
            table = table[key]
        table[key] = deepcopy(rng.choice(WORDS))
    text = json.dumps(contents, sort_keys=True, ensure_ascii=False, indent=1).encode("utf-8", "surrogatepass") + b"\n"
    Recognizer(kits.parse(kits.pack(parts | {kits.MANIFEST: text})))


def damaged_manifest(rng: random.Random) -> None:
    Manifest.from_bytes(damage(kits.unpack(doors.kit())[kits.MANIFEST], draw_changes(rng)))


def jpeg(rng: random.Random) -> None:
    """Damage an image of any format. It must decode to a bounded size, or be rejected."""
    data = damage(photos()[rng.choice(sorted(photos()))], draw_changes(rng))
    image = mjpeg.decode(data)
    if image is not None and image.shape[0] * image.shape[1] > photo.MAX_PIXELS:
        raise BreachError(f"a picture of {image.shape} was decoded")
    try:
        size = photo.decode_bytes(data, colour=rng.random() < 0.5).shape
    except photo.PhotoError:
        return
    if size[0] * size[1] > photo.MAX_PIXELS:
        raise BreachError(f"a picture of {size} was decoded")


class Stream:
    """A hostile camera that is started once."""

    camera: HostileCamera | None = None

    def __call__(self, rng: random.Random) -> None:
        self.camera = self.camera or HostileCamera()
        self.camera.answer = damage(rng.choice(ANSWERS), draw_changes(rng))
        read_all(self.camera.url)


def multipart(rng: random.Random) -> None:
    """Feed damaged parts in pieces of any length, without a connection."""
    data = damage(ANSWERS[0].partition(b"\r\n\r\n")[2] * rng.randint(1, 4), draw_changes(rng))
    parts, held = mjpeg.Parts(b"frame"), 0
    while data:
        length = rng.randint(1, 4096)
        for body, _ in parts.feed(data[:length], 1.0):
            mjpeg.decode(body)
            held += len(body)
        data = data[length:]
    if held > 1 << 20:
        raise BreachError("more bytes came out than went in")


def settings(rng: random.Random) -> None:
    configuration.parse(damage(settings_file(), draw_changes(rng)))


def door_list(rng: random.Random) -> None:
    rules = DoorList.parse(damage(LIST, draw_changes(rng)))
    rules.refusal("anna", NOON)


Case = Callable[[random.Random], None]
AREAS: dict[str, tuple[tuple[Case, ...], type[EdgeError]]] = {
    "kit": ((damaged_kit, damaged_kit, forged_kit, forged_manifest, damaged_manifest), KitError),
    "jpeg": ((jpeg,), CameraError),
    "mjpeg": ((Stream(), multipart), CameraError),
    "settings": ((settings,), SettingsError),
    "door list": ((door_list,), DoorListError),
}
"""By area: its kinds of input in turn, and the error that a rejected input may raise."""
QUICK, LONG = 300, 4500


def fuzz(area: str, inputs: int, seed: str) -> dict[str, Any]:
    """Run the inputs of an area in this process."""
    cases, rejection = AREAS[area]
    for number, case in enumerate(cases):  # what a first input costs, such as imports, is no breach
        try:
            case(random.Random(f"{seed} {number}"))
        except rejection:
            continue
    before, breaches, example = peak_memory(), 0, ""
    for number in range(inputs):
        try:
            cases[number % len(cases)](random.Random(f"{seed} {area} {number}"))
        except rejection:
            continue
        except Exception as error:
            breaches += 1
            example = example or f"input {number}: {type(error).__name__}: {str(error)[:100]}"
    grown = peak_memory() - before
    if grown > MEMORY_BYTES:
        breaches, example = breaches + 1, example or f"{grown >> 20} MB more memory"
    return {"tries": inputs, "breaches": breaches, "example": example}


def fuzz_in_child(area: str, where: Range) -> Score:
    """Run an area in parts, each in a process of its own."""
    inputs = where.tries(QUICK, LONG)
    each = 500
    total = Score(tries=0, breaches=0)
    for start in range(0, inputs, each):
        number = min(each, inputs - start)
        command = [sys.executable, "-m", "scripts.qa.attacks.fuzz", area, str(number), f"{where.seed}-{start}"]
        done = run_child(command)
        if done.returncode == 0:
            found = json.loads(done.stdout)
        else:
            last = (done.stderr.strip().splitlines() or [""])[-1][:100]
            found = {"tries": number, "breaches": 1, "example": f"the process ended with code {done.returncode} {last}"}
        total = Score(
            tries=total.tries + found["tries"],
            breaches=total.breaches + found["breaches"],
            example=total.example or found["example"],
        )
        where.count(total.tries, inputs)
    return total


for name in AREAS:
    attack(f"fuzz {name}", "damaged input")(lambda where, area=name: fuzz_in_child(area, where))  # type: ignore[misc]


if __name__ == "__main__":
    print(json.dumps(fuzz(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
