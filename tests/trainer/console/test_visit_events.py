"""Events that terminals post: a real webhook sink and a real console, and requests that are not from a terminal."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from edge.events.event import Event, message, notice
from edge.sinks.webhook import WebhookSettings, WebhookSink
from edge.text import strict_json
from tests.fixtures.console import Client, Console
from tests.fixtures.events import NOON, make_event
from tests.fixtures.waiting import until
from trainer.console import visit_events
from trainer.site import doors, visit_retention, visits
from trainer.site.doors import Door
from trainer.site.folder import Site
from trainer.site.visits import Search, Visit

pytestmark = pytest.mark.slow

DOORS = ("north", "Süd & 2. Stock", "no secret")


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    site = Site.create(tmp_path_factory.mktemp("events") / "site")
    for name in DOORS:
        doors.add(site, Door(name=name), "test")
    for name in DOORS[:2]:
        doors.make_secret(site, name, "test")
    with Console(site.path) as running:
        yield running


@pytest.fixture(autouse=True)
def no_visits(console: Console) -> None:
    with console.site.database() as database:
        database.execute("DELETE FROM visits")


def secret_file(console: Console, door: str = "north") -> Path:
    file = doors.find(console.site, door).secret_file
    assert file is not None
    return file


def stored(console: Console) -> list[Visit]:
    with console.site.database() as database:
        return list(visits.search(database, Search()).visits)


def signed(secret: Path, body: bytes, when: float) -> dict[str, str]:
    digest = hmac.digest(secret.read_text().strip().encode(), f"{int(when)}.".encode() + body, hashlib.sha256).hex()
    return {visit_events.HEADER: f"t={int(when)},v1={digest}"}


def body_of(event: Event) -> bytes:
    return strict_json(message(event, age_seconds=0, grant_seconds=5, names=True)).encode()


def send(
    console: Console,
    body: bytes | None = None,
    *,
    door: str = "north",
    secret: Path | None = None,
    when: float | None = None,
    headers: dict[str, str] | None = None,
) -> httpx.Response:
    """Post an event without a session. By default it is valid."""
    body = body_of(make_event()) if body is None else body
    own = signed(secret or secret_file(console), body, time.time() if when is None else when)
    with Client(console.url) as client:
        return client.post(doors.events_url("", door), content=body, headers=own | (headers or {}))


@pytest.mark.parametrize("door", DOORS[:2])
def test_terminal_posts_its_decisions(door: str, console: Console) -> None:
    url = doors.events_url(console.url, door)
    with closing(WebhookSink(WebhookSettings(url=url, secret_file=secret_file(console, door), names=True))) as sink:
        sink.handle(notice("start", now=1.0, utc=NOON))
        sink.handle(make_event(label="Zoë"))
        sink.handle(make_event(outcome="denied", label=None, reason="unknown person"))
        until(lambda: sink.health().delivered == 3)
    found = {(visit.door, visit.label, visit.outcome) for visit in stored(console)}
    assert found == {(door, "Zoë", "granted"), (door, None, "denied")}, "the start is no visit"
    assert [visit.has_picture for visit in stored(console)] == [False, False]


def test_terminal_with_the_secret_of_another_door_is_refused(console: Console) -> None:
    settings = WebhookSettings(url=doors.events_url(console.url, DOORS[1]), secret_file=secret_file(console, "north"))
    with closing(WebhookSink(settings)) as sink:
        sink.handle(make_event())
        until(lambda: sink.health().failed == 1)
    assert stored(console) == []


def test_event_that_is_sent_again_is_stored_once(console: Console) -> None:
    body, now = body_of(make_event()), time.time()
    assert [send(console, body, when=now).status_code for _ in range(3)] == [204] * 3
    assert len(stored(console)) == 1


@pytest.mark.parametrize("seconds", [-visit_events.MAX_AGE_SECONDS - 60, visit_events.MAX_AGE_SECONDS + 60])
def test_signature_of_another_time_is_refused(seconds: float, console: Console) -> None:
    assert send(console, when=time.time() + seconds).status_code == 401
    assert stored(console) == []


@pytest.mark.parametrize("name", ["no signature", "other body", "other time", "other door", "no version", "empty"])
def test_wrong_signatures_are_refused_without_a_reason(name: str, console: Console) -> None:
    body, now = body_of(make_event()), time.time()
    good = signed(secret_file(console), body, now)[visit_events.HEADER]
    stamp, _, digest = good.partition(",")
    wrong = {
        "no signature": "",
        "other body": signed(secret_file(console), body + b" ", now)[visit_events.HEADER],
        "other time": f"t={int(now) - 1},{digest}",
        "other door": signed(secret_file(console, DOORS[1]), body, now)[visit_events.HEADER],
        "no version": f"{stamp},{digest.removeprefix('v1=')}",
        "empty": f"{stamp},v1=",
    }[name]
    answer = send(console, body, headers={visit_events.HEADER: wrong})
    assert (answer.status_code, answer.content) == (401, b"")
    assert stored(console) == []


def test_unknown_door_and_door_without_a_secret_are_refused(console: Console) -> None:
    assert send(console, door="west").status_code == 404
    assert send(console, door="..").status_code in (404, 405)
    assert send(console, door="no secret").status_code == 401


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"not JSON", 400),
        (b"[]", 400),
        (b"[" * 60_000, 400),
        (b'{"a":' * 6000 + b"1" + b"}" * 6000, 400),
        (b"{}", 400),
        (b'{"kind": "decision"}', 400),
        (b"\xff\xfe", 400),
        (b" " * (visits.MAX_EVENT + 1), 413),
    ],
    ids=["text", "list", "open", "deep", "empty", "no facts", "bytes", "large"],
)
def test_bodies_that_are_no_events_are_refused(body: bytes, status: int, console: Console) -> None:
    answer = send(console, body)
    assert (answer.status_code, bool(answer.text.strip())) == (status, True)
    assert stored(console) == []


def test_body_without_a_length_is_limited(console: Console) -> None:
    body = b" " * (visits.MAX_EVENT + 1)
    with Client(console.url) as client:
        answer = client.post(
            "/api/doors/north/events", content=iter([body[:1000], body[1000:]]), headers=signed(secret_file(console), body, 0)
        )
    assert answer.status_code == 413


@pytest.mark.parametrize(
    "headers",
    [{"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}],
    ids=["host", "origin", "fetch"],
)
def test_guard_holds_for_signed_events(headers: dict[str, str], console: Console) -> None:
    assert send(console, headers=headers).status_code == 403
    assert stored(console) == []


def test_only_post_is_answered(console: Console) -> None:
    with Client(console.url) as client:
        assert client.get("/api/doors/north/events").status_code == 405
        assert client.put("/api/doors/north/events").status_code in (403, 405)


def test_secret_that_was_replaced_is_not_valid(console: Console, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_bytes(secret_file(console).read_bytes())
    doors.make_secret(console.site, "north", "test")
    assert send(console, secret=old).status_code == 401
    assert send(console).status_code == 204


def test_damaged_doors_file_makes_the_terminal_try_again(console: Console) -> None:
    secret, data = secret_file(console), console.site.doors_file.read_bytes()
    console.site.doors_file.write_bytes(b"[[")
    try:
        answer = send(console, secret=secret)
    finally:
        console.site.doors_file.write_bytes(data)
    assert (answer.status_code, answer.content) == (503, b"")


def test_events_apply_how_long_visits_are_kept(console: Console) -> None:
    old: Any = replace(make_event(), utc="2001-01-01T00:00:00.000Z")
    with console.site.database() as database:
        visit_retention.set_keep_days(database, 30, who="test", now=datetime.now(UTC) - timedelta(days=2))
        visits.store(database, "north", json.loads(old.to_json()))
    new = replace(make_event(), utc=datetime.now(UTC).isoformat())
    assert send(console, body_of(new)).status_code == 204
    assert [visit.utc[:4] > "2001" for visit in stored(console)] == [True]
