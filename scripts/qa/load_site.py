"""A site of thousands of invented people, for measurements: photos that were checked, models, kits, doors with lists, visits.

Nothing is recognised: vectors and weights are random, always the same (seed 0). The sizes are those of real files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from edge.decision.reasons import NOT_LISTED, RECOGNISED, UNKNOWN_PERSON
from edge.enrol.session import SIMILARITY
from scripts.qa.large_kit import label, large_kit
from trainer.site import door_lists, doors, people, visits
from trainer.site.door_lists import Entry, Form
from trainer.site.doors import Door
from trainer.site.folder import Site, transaction
from trainer.site.models import RESULT, RESULT_SCHEMA
from trainer.site.photo_index import store
from trainer.site.photos import CROP_SIDE, CheckedPhoto
from trainer.site.visits import DENIED, GRANTED

WHO = "load"
PHOTOS, MODELS, DOORS = 5, 3, 50
LISTED = 200  # people of a door list
CROPS = 64  # different small pictures
LINKS = 1000  # names that one file gets: file systems have a limit
VECTOR = 128  # entries of the vector of SFace
WIDTH, HEIGHT = 640, 480
MANY = 1000  # from so many people on, kits have the size of those of the preset network
UNKNOWN, DENIED_SHARE, PICTURES = 0.1, 0.15, 0.02  # shares of the visits
PICTURE_BYTES = 30_000
DAYS = 90


def make_site(folder: Path, number: int, visits_number: int, *, say: Callable[[str], None] = lambda _: None) -> Site:
    """Make a site with so many people and visits."""
    site, rng = Site.create(folder), np.random.default_rng(0)
    say(f"{number:,} people with {PHOTOS} photos each")
    add_people(site, number, rng)
    say(f"{MODELS} models and kits")
    for version in range(1, MODELS + 1):
        add_model(site, version, [label(i) for i in range(number - MODELS + version)], rng)
        kit = large_kit(number, "network" if number >= MANY else "pixels", kit_version=version, seed=version)
        (site.kits / f"{name_of(version)}.kit").write_bytes(kit)
    say(f"{DOORS} doors with lists")
    add_doors(site, number)
    say(f"{visits_number:,} visits")
    add_visits(site, number, visits_number, rng)
    return site


def name_of(version: int) -> str:
    """Return the name of a model or kit, as the console gives it by time."""
    return f"202611{version:02}-080000"


def add_people(site: Site, number: int, rng: np.random.Generator) -> None:
    """Add people with photos, and the rows that their check would write."""
    crops = [_picture(CROP_SIDE, CROP_SIDE, rng) for _ in range(CROPS)]
    with site.database() as database:
        for i in range(number):
            folder = site.photos / label(i)
            folder.mkdir(mode=0o700)
            for k in range(PHOTOS):
                file, n = folder / f"{k + 1}.jpg", i * PHOTOS + k
                if n % LINKS == 0:
                    original = file
                    file.write_bytes(_picture(WIDTH, HEIGHT, rng))
                else:
                    os.link(original, file)
                store(database, file, file.stat(), _checked(f"{n:064x}", crops[n % CROPS], k == 4 and i % 20 == 0, rng))
        people.sync(site, database)


def _checked(digest: str, crop: bytes, is_warned: bool, rng: np.random.Generator) -> CheckedPhoto:
    return CheckedPhoto(
        width=WIDTH,
        height=HEIGHT,
        faces=((220.0, 120.0, 420.0, 360.0),),
        meant=0,
        warnings=("face blurred",) if is_warned else (),
        digest=digest,
        crop=crop,
        likeness=_unit(SIMILARITY.length, rng),
        vector=_unit(VECTOR, rng),
    )


def _unit(length: int, rng: np.random.Generator) -> Any:
    vector = rng.standard_normal(length, np.float32)
    return vector / np.linalg.norm(vector)


def _picture(width: int, height: int, rng: np.random.Generator) -> bytes:
    """Return a smooth random picture as JPEG, about as many bytes as a photo of a face."""
    rough = rng.integers(0, 256, (height // 8, width // 8, 3), np.uint8)
    return cv2.imencode(".jpg", cv2.resize(rough, (width, height), interpolation=cv2.INTER_CUBIC))[1].tobytes()


def add_model(site: Site, version: int, labels: list[str], rng: np.random.Generator) -> None:
    """Write what the site reads of a model: its header, and the result of its training."""
    file = site.models / f"{name_of(version)}.npz"
    header = json.dumps({"labels": labels, "rejection": {"confidence": 0.41}})
    np.savez(file, header=np.array(header), crop_people=np.repeat(np.arange(len(labels)), PHOTOS))
    photos = PHOTOS * len(labels)
    share = {"count": photos - 9, "of": photos, "share": 1 - 9 / photos, "low": 0.98, "high": 0.999}
    advice = [{"key": "few", "fields": {"photos": PHOTOS, "add": 3}}]
    weak = {"photos": PHOTOS, "tested": PHOTOS, "recognised": 3, "confidence": 0.5, "advice": advice}
    each = {"photos": PHOTOS, "tested": PHOTOS, "recognised": PHOTOS, "confidence": 0.8, "taken_for": ""}
    suspect = {"file": "1.jpg", "sha256": ""}
    some = [labels[int(i)] for i in rng.integers(0, len(labels), 40)]
    result = {
        "schema": RESULT_SCHEMA,
        "people": len(labels),
        "photos": photos,
        "threshold": 0.41,
        "folds": 5,
        "recognised": share,
        "missed": share | {"share": 1 - share["share"], "count": 9},
        "wrong": 0,
        "false_accepts": share | {"share": 0.01, "given_strangers": False, "target": 0.01, "stated": 0.01},
        "single": 0,
        "weakest": [weak | {"name": name} for name in some[:20]],
        "suspected": [suspect | {"person": name, "looks_like": labels[0]} for name in some],
        "suspected_photos": len(some),
        "rejected": [],
        "notes": [],
        "each": [each | {"name": name} for name in labels],
        "who": WHO,
        "preset": None,
        "created": f"2026-11-{version:02}T08:00:00Z",
        "seconds": 900.0,
    }
    file.with_suffix(RESULT).write_text(json.dumps(result))


def door_name(number: int) -> str:
    return f"door {number + 1:02}"


def add_doors(site: Site, number: int) -> None:
    """Add doors whose terminals do not answer, each with a list."""
    folder = site.path.parent / "drop"
    folder.mkdir()
    found = [Door(name=door_name(i), status_url=f"http://127.0.0.1:9/{i}", drop=folder / f"{i}.kit") for i in range(DOORS)]
    doors.save(site, found, WHO)
    for i, door in enumerate(found):
        names = tuple(sorted({label((i * LISTED + k) % number) for k in range(LISTED)}))
        form = Form(name=door.name, entries=(Entry(people=None), Entry(people=names)))
        door_lists.save(site, door.name, door_lists.write_toml(form), before=door_lists.load(site, door.name).version, who=WHO)


def add_visits(site: Site, people_number: int, number: int, rng: np.random.Generator) -> None:
    """Add visits of the last DAYS days, some of them with a picture."""
    with site.database() as database, transaction(database):
        for event, door, picture in _events(people_number, number, rng):
            visits.store(database, door, event, picture)


def _events(people_number: int, number: int, rng: np.random.Generator) -> Iterator[tuple[dict[str, Any], str, bytes | None]]:
    now = datetime(2026, 11, 18, 12, tzinfo=UTC)
    for i in range(number):
        chance = rng.random(3)
        is_unknown, is_denied = chance[0] < UNKNOWN, chance[0] < DENIED_SHARE
        event = {
            "kind": "decision",
            "event_id": f"{i:032x}",
            "utc": (now - timedelta(days=DAYS * (1 - i / number))).isoformat(),
            "outcome": DENIED if is_denied else GRANTED,
            "label": None if is_unknown else label(int(rng.integers(people_number))),
            "reason": UNKNOWN_PERSON if is_unknown else NOT_LISTED if is_denied else RECOGNISED,
            "confidence": round(float(chance[1]), 4),
            "threshold": 0.41,
            "kit": "0" * 12,
            "frames": 12,
            "seconds_from_first_sight": 0.8,
        }
        yield event, door_name(int(rng.integers(DOORS))), rng.bytes(PICTURE_BYTES) if chance[2] < PICTURES else None
