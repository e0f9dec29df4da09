"""How fast the console is with many people and visits: ./scripts/qa/console_load [--people 10000] [--visits 100000] [--json]

It makes a site, starts the real console, and requests every page as a browser does, round after round. Each round ends with
changes, so that the next one is not answered from memory alone. A time is from the request to the last byte of the answer, on
the same computer. Other programs on the computer make answers slower; the processor time of the console tells how much of a
time is its own. A new page needs one line in PAGES.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import cv2
import httpx
import numpy as np
import typer

from edge.cli import common as console
from scripts.qa import load_site
from scripts.qa.large_kit import label
from scripts.research import orl
from tests.fixtures.console import Client, Console
from trainer.site import jobs, visits
from trainer.site.folder import Site
from trainer.site.photos import checker
from trainer.site.visits import Search

LIMIT_MS = 300.0
ROUNDS = 10
NEWCOMER = "Newcomer"
JSON = {"Accept": "application/json"}
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Page:
    """A page to request. `path` may have the fields of `places`."""

    name: str
    path: str
    headers: dict[str, str] = field(default_factory=dict)


PAGES = (
    Page("people", "/people"),
    Page("people, last page", "/people?page=100000"),
    Page("people, search", "/people?q=person+01"),
    Page("people, search without result", "/people?q=nobody+here"),
    Page("people, with problems", "/people?only=problems"),
    Page("people, few photos", "/people?only=few"),
    Page("people, no consent date", "/people?only=no+consent"),
    Page("person", "/people/{person}"),
    Page("person, new", "/people/Someone%20new"),
    Page("card of a photo", "/people/{person}/photos/1.jpg/card"),
    Page("crop", "/people/{person}/photos/1.jpg/crop.jpg"),
    Page("whole photo", "/people/{person}/photos/1.jpg/photo.jpg"),
    Page("capture", "/people/{person}/capture"),
    Page("train", "/train"),
    Page("result of a training", "/train/{model}"),
    Page("result, compared", "/train/{model}?against={older}"),
    Page("job", "/jobs/{job}"),
    Page("job, progress", "/jobs/{job}", JSON),
    Page("kits", "/kits"),
    Page("kit", "/kits/{kit}"),
    Page("kit, compared", "/kits/{kit}?against={older}"),
    Page("doors", "/doors"),
    Page("doors, status", "/doors", JSON),
    Page("door", "/doors/{door}"),
    Page("list of a door", "/doors/{door}/list"),
    Page("list of a door, file", "/doors/{door}/list.toml"),
    Page("visits", "/visits"),
    Page("visits, deep page", "/visits?older={cursor}"),
    Page("visits, deep page of a name", "/visits?person=person+01&older={cursor}"),
    Page("visits of a person", "/visits?person={person}"),
    Page("visits, part of a name", "/visits?person=person+01"),
    Page("visits, no such name", "/visits?person=nobody+here"),
    Page("visits, unknown people", "/visits?unknown=1"),
    Page("visits, a door", "/visits?door={door}"),
    Page("visits, denied", "/visits?outcome=denied"),
    Page("visits, a door, denied, a month", "/visits?door={door}&outcome=denied&since=2026-09-01&until=2026-09-30"),
    Page("visit", "/visits/{visit}"),
    Page("settings", "/settings"),
    Page("users", "/users"),
    Page("trail", "/trail"),
    Page("trail, search", "/trail?q=person+00"),
    Page("style", "/static/style.css"),
)
ACTIONS = ADD, CONSENT, DELETE = "add a photo: check, looks like", "set consent", "delete a photo"
"""What a person does and waits for."""


@dataclass(frozen=True, kw_only=True)
class Timed:
    """The times of a page or action."""

    name: str
    first_ms: float
    """The first request after the start of the console."""
    median_ms: float
    slowest_ms: float
    """Of all other requests."""
    processor_ms: float
    """That the console worked for a request, all its threads together: the median."""
    bytes: int
    status: int
    """Of the answers: 200, or the first other one."""

    @property
    def ok(self) -> bool:
        return self.status == httpx.codes.OK and self.slowest_ms < LIMIT_MS


def places(site: Site, people: int) -> dict[str, Any]:
    """Return the fields that paths may have."""
    with jobs.run(site, "train", load_site.WHO) as job:
        for i in range(200):
            job.say(f"line {i}")
        job.finish("Done.")
    with site.database() as database:
        newest = visits.search(database, Search(), most=1).visits[0]
        middle = visits.get(database, newest.id // 2)
    return {
        "person": quote(label(people // 2)),
        "model": load_site.name_of(load_site.MODELS),
        "kit": load_site.name_of(load_site.MODELS),
        "older": load_site.name_of(1),
        "door": quote(load_site.door_name(7)),
        "job": job.id,
        "visit": middle.id,
        "cursor": quote(middle.cursor),
    }


def new_photos(number: int) -> Iterator[bytes]:
    """Yield real faces, each with other pixels than all others."""
    rng = np.random.default_rng()
    faces = [photo for photos in orl.people().values() for photo in photos]
    for i in range(number):
        scene = orl.scene(faces[i % len(faces)], rng)
        yield cv2.imencode(".jpg", scene, (cv2.IMWRITE_JPEG_QUALITY, 95))[1].tobytes()


@dataclass(frozen=True)
class Answer:
    """An answer and its times."""

    ms: float
    processor_ms: float
    response: httpx.Response


class Stopwatch:
    """Sends requests and keeps their times by name."""

    def __init__(self, client: Client, pid: int) -> None:
        self._client, self._pid = client, pid
        self._csrf = client.csrf()
        self._found: dict[str, list[Answer]] = {}

    def get(self, page: Page, path: str) -> httpx.Response:
        return self._keep(page.name, "GET", path, headers=page.headers)

    def post(self, name: str, path: str, fields: dict[str, str] | None = None, **options: Any) -> httpx.Response:
        headers = JSON | {"X-CSRF": self._csrf}
        return self._keep(name, "POST", path, headers=headers, data=fields, **options)

    def _keep(self, name: str, method: str, path: str, **options: Any) -> httpx.Response:
        worked, started = processor_ms(self._pid), time.perf_counter()
        try:
            response = self._client.request(method, path, **options)
        except httpx.TransportError:  # the console closes a connection after an error; browsers try again, too
            response = self._client.request(method, path, **options)
        passed = 1e3 * (time.perf_counter() - started)
        self._found.setdefault(name, []).append(Answer(passed, processor_ms(self._pid) - worked, response))
        return response

    def results(self) -> list[Timed]:
        return [_timed(name, found) for name, found in self._found.items()]


def processor_ms(pid: int) -> float:
    """Return how long the threads of a process have run (Linux). A thread that ended is not counted."""
    ran = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):
            ran += int((thread / "schedstat").read_text().split()[0])
    return ran / 1e6


def _timed(name: str, found: list[Answer]) -> Timed:
    times = [answer.ms for answer in found[1:] or found]
    return Timed(
        name=name,
        first_ms=found[0].ms,
        median_ms=statistics.median(times),
        slowest_ms=max(times),
        processor_ms=max(0.0, statistics.median(answer.processor_ms for answer in found)),
        bytes=len(found[-1].response.content),
        status=next((one.response.status_code for one in found if not one.response.is_success), httpx.codes.OK),
    )


def measure(site: Site, people: int, rounds: int) -> list[Timed]:
    """Return the times of all pages and actions."""
    known = places(site, people)
    with Console(site.path) as served, served.client() as client:
        watch = Stopwatch(client, served.process.pid)
        photos = new_photos(rounds + 1)
        for _ in range(rounds + 1):
            for page in PAGES:
                watch.get(page, page.path.format(**known))
            sent = {"photos": ("photo.jpg", next(photos), "image/jpeg")}
            path = f"/people/{NEWCOMER}/photos"
            added = watch.post(ADD, path, files=sent)
            watch.post(CONSENT, f"/people/{NEWCOMER}/consent", {"date": "2026-11-18", "note": "signed"})
            watch.post(DELETE, f"{path}/{added.json().get('file')}/delete")
    return watch.results()


def table(found: list[Timed]) -> str:
    """Return the results as lines."""
    width = max(len(one.name) for one in found)
    lines = [
        f"{'page or action':<{width}}  {'first ms':>9} {'median ms':>9} {'slowest ms':>10} {'processor ms':>12} {'kB':>7}"
    ]
    for one in found:
        judged = "OK" if one.ok else "TOO SLOW" if one.status == httpx.codes.OK else f"ANSWER {one.status}"
        times = f"{one.first_ms:>9.1f} {one.median_ms:>9.1f} {one.slowest_ms:>10.1f} {one.processor_ms:>12.1f}"
        times += f" {one.bytes / 1e3:>7.1f}"
        lines.append(f"{one.name:<{width}}  {times}  {judged}")
    return "\n".join(lines)


@app.command()
def main(
    people: Annotated[int, typer.Option(min=20, help="Enrolled people, with five photos each.")] = 10_000,
    visits: Annotated[int, typer.Option(min=100, help="Visits at 50 doors.")] = 100_000,
    rounds: Annotated[int, typer.Option(min=1, help="Requests of each page, after the first.")] = ROUNDS,
    site: Annotated[Path | None, typer.Option(help="Make the site in this new folder and keep it, or use it again.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object to stdout.")] = False,
) -> None:
    """Measure. Exit code 1 if an answer takes 300 ms or more, the first one after the start excepted."""
    checker(console.say)  # downloads the networks, once
    with tempfile.TemporaryDirectory(prefix="lclrr-load-") as place:
        folder = site or Path(place) / "site"
        made = Site.open(folder) if folder.exists() else load_site.make_site(folder, people, visits, say=console.say)
        console.say(f"{rounds + 1} rounds of {len(PAGES)} pages")
        found = measure(made, people, rounds)
    if as_json:
        pages = [vars(one) | {"ok": one.ok} for one in found]
        typer.echo(json.dumps({"people": people, "visits": visits, "limit_ms": LIMIT_MS, "pages": pages}))
    else:
        typer.echo(table(found))
    sys.exit(not all(one.ok for one in found))


if __name__ == "__main__":
    console.run(app)
