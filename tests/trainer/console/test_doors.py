"""The pages of doors and door lists, over HTTP, with the real preview of a terminal."""

from __future__ import annotations

import hashlib
import hmac
import html
import re
import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from edge import settings
from edge.credentials import read_secret
from edge.decision.doorlist import DoorList
from edge.monitor.preview import Preview
from tests.fixtures.console import Client, Console
from tests.fixtures.events import make_event
from tests.fixtures.kits import kit
from tests.fixtures.waiting import until
from trainer.site import door_lists, doors, trail
from trainer.site.doors import Door

pytestmark = pytest.mark.slow

JSON = {"Accept": "application/json"}
HEALTH: dict[str, Any] = {
    "camera_up": True,
    "kit": hashlib.sha256(kit()).hexdigest()[:12],
    "temperature_celsius": 48.3,
    "failing": ["the audit log"],
}
ODD = 'Süd "1" & <b>'
"""A name with letters that HTML, URLs and TOML must escape."""
OFFICE = '[[allow]]\npeople = ["anna"]\nweekdays = "mon-fri"\nhours = "07:00-19:00"\n'
MONDAY = datetime(2026, 11, 16, tzinfo=UTC)


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    with Console(tmp_path_factory.mktemp("doors") / "site") as running:
        for name in ("anna", "Zoë"):
            (running.site.photos / name).mkdir()
        (running.site.kits / "door-7.kit").write_bytes(kit())
        yield running


@pytest.fixture(scope="module")
def client(console: Console) -> Iterator[Client]:
    with console.client("operator", user="otto") as found:
        yield found


@pytest.fixture
def door(console: Console, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a door that only this test uses."""
    name = f"door {hashlib.sha256(request.node.name.encode()).hexdigest()[:8]}"
    doors.add(console.site, Door(name=name), "test")
    yield name
    for one in doors.load(console.site):
        doors.remove(console.site, one.name, "test")


def path(name: str, *more: str) -> str:
    return "/".join(["/doors", quote(name, safe=""), *more])


def list_text(console: Console, name: str) -> str:
    return door_lists.load(console.site, name).text


def version(client: Client, name: str) -> str:
    found = re.search(r'name="before" value="(\w+)"', client.get(path(name, "list")).text)
    assert found
    return found[1]


def submit(client: Client, name: str, action: str, **fields: Any) -> Any:
    """Submit the form of a list. `e0_day0` stands for the field e0.day0."""
    known = {key.replace("_", ".", 1) if key[:2] in ("e0", "e1", "v0", "v1") else key: value for key, value in fields.items()}
    return client.submit(path(name, "list"), {"before": version(client, name), "action": action, **known})


# Doors


def test_page_without_doors_says_what_a_door_is_and_offers_the_form(client: Client, console: Console) -> None:
    page = client.get("/doors").text
    assert "A door is a terminal" in page
    assert 'action="/doors"' in page
    with console.client("viewer", user="vera") as viewer:
        assert "role operator" in viewer.get("/doors").text


def test_door_is_added_changed_renamed_with_its_list_and_removed(client: Client, console: Console) -> None:
    answer = client.submit("/doors", {"name": ODD, "status_url": "http://127.0.0.1:9/", "drop": "/srv/south/door.kit"})
    assert answer.headers["location"] == path(ODD)
    assert doors.find(console.site, ODD) == Door(name=ODD, status_url="http://127.0.0.1:9", drop=Path("/srv/south/door.kit"))
    page = client.get(path(ODD)).text
    assert f'value="{html.escape(ODD, quote=True).replace("&quot;", "&#34;")}"' in page
    assert "<b>" not in page
    door_lists.save(console.site, ODD, OFFICE, "test")
    new = "Ökohaus (Nord)"
    assert client.submit(path(ODD, "change"), {"name": new}).headers["location"] == path(new)
    assert doors.load(console.site) == (Door(name=new),)
    assert list_text(console, new) == OFFICE
    assert client.get(path(ODD)).status_code == 404
    assert client.submit(path(new, "remove")).headers["location"] == "/doors"
    assert doors.load(console.site) == ()
    with console.site.database() as database:
        actions = {change.action for change in trail.changes(database) if change.who == "otto"}
    assert actions == {"add door", "change door", "remove door"}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": "a/b", "drop": "/srv/x.kit"}, "not a valid name"),
        ({"name": "west", "status_url": "file:///etc/passwd"}, "not an address of a preview"),
        ({"name": "west", "drop": "door.kit"}, "not a place for kits"),
        ({"name": "TAKEN"}, "two doors"),
        ({"name": "\x00"}, "not a valid name"),
    ],
)
def test_invalid_door_is_refused_and_what_was_typed_stays(
    fields: dict[str, str], problem: str, client: Client, console: Console, door: str
) -> None:
    doors.add(console.site, Door(name="taken"), "test")
    for where in ("/doors", path(door, "change")):
        answer = client.submit(where, fields)
        assert (answer.status_code, problem in answer.text) == (400, True)
        for value in fields.values():
            assert f'value="{value}"' in answer.text
    assert {one.name for one in doors.load(console.site)} == {door, "taken"}


def test_status_is_live(client: Client, console: Console, door: str) -> None:
    with Preview("127.0.0.1:0") as preview:
        preview.watch(lambda: HEALTH)
        preview.handle(make_event(label="anna"))
        client.submit(path(door, "change"), {"name": door, "status_url": preview.url})
        doors.add(console.site, Door(name="store"), "test")
        doors.add(console.site, Door(name="dark", status_url="http://127.0.0.1:9"), "test")

        def facts() -> dict[str, Any] | None:
            found = {fact["door"]: fact for fact in client.get("/doors", headers=JSON).json()["doors"]}
            return None if "waiting" in {fact["state"] for fact in found.values()} else found

        found = until(facts)
        online = found[door]
        assert [found[name]["state"] for name in (door, "store", "dark")] == ["online", "no_address", "offline"]
        assert (online["camera_text"], online["kit"], online["temperature"]) == ("Works", "door-7", "48.3 °C")
        assert online["decision"].startswith("Granted · anna · 2025-")
        assert (online["problems"], online["failing"]) == ("the audit log", "yes")
        assert "Connection refused" in found["dark"]["problems"]
        page = client.get("/doors").text
        assert all(text in page for text in ("Online: 1", "48.3 °C", "Offline", "No address"))
        one = client.get(path(door), headers=JSON).json()["doors"]
        assert [fact["door"] for fact in one] == [door]
        german = client.get("/doors", headers=JSON | {"Accept-Language": "de"}).json()["doors"]
        assert german[0]["temperature"] == "48,3 °C"


def test_secret_is_shown_once_and_the_lines_are_valid_settings(client: Client, console: Console, door: str) -> None:
    answer = client.submit(path(door, "secret"))
    file = doors.find(console.site, door).secret_file
    assert file is not None
    secret = read_secret("webhook", file, None)
    assert secret is not None
    assert (len(secret), secret in answer.text) == (64, True)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert answer.headers["cache-control"] == "no-store"
    assert secret not in client.get(path(door)).text
    found = re.search(r'<textarea id="lines"[^>]*>(.*?)</textarea>', answer.text, re.DOTALL)
    assert found
    webhook = settings.parse(html.unescape(found[1]).encode()).webhook
    assert webhook is not None
    assert (webhook.url, webhook.names) == (f"{console.url}/api/doors/{quote(door)}/events", True)
    assert posted(webhook.url, secret) == 400, "the signature is valid, and the empty list is not an event"
    client.submit(path(door, "secret"))
    assert not file.exists(), "a new secret replaces the old one"
    assert posted(webhook.url, secret) == 401


def posted(url: str, secret: str) -> int:
    """The answer to an empty list that is signed as a terminal signs its events."""
    now = int(time.time())
    signature = hmac.new(secret.encode(), f"{now}.[]".encode(), hashlib.sha256).hexdigest()
    headers = {"X-Edge-Signature": f"t={now},v1={signature}"}
    return httpx.post(url, content=b"[]", headers=headers, trust_env=False).status_code


def test_viewer_sees_and_changes_nothing(console: Console, door: str) -> None:
    door_lists.save(console.site, door, OFFICE, "test")
    with console.client("viewer", user="vera") as viewer:
        for page in ("/doors", path(door), path(door, "list"), path(door, "list?as=text")):
            answer = viewer.get(page)
            assert answer.status_code == 200
            assert "<button>" not in answer.text
            assert 'name="action" value="save"' not in answer.text
        assert viewer.get(path(door, "list.toml")).text == OFFICE
        for more in ("change", "remove", "secret", "list", "list/text", "list/remove"):
            assert viewer.submit(path(door, more)).status_code == 403, more
        assert viewer.submit("/doors", {"name": "x"}).status_code == 403
    assert list_text(console, door) == OFFICE


@pytest.mark.parametrize("more", ["change", "remove", "secret", "list", "list/text", "list/remove"])
def test_change_without_csrf_value_is_refused(more: str, client: Client, door: str) -> None:
    assert client.post(path(door, more), data={"name": "x"}).status_code == 403


@pytest.mark.parametrize("name", ["x", "..%2fx", "%2e%2e", "a%2fb"])
def test_unknown_door_is_not_found(name: str, client: Client) -> None:
    for more in ("", "/list", "/list.toml"):
        assert client.get(f"/doors/{name}{more}").status_code in (303, 404)
        assert client.submit(f"/doors/{name}/remove").status_code in (404, 405)


# Door lists


def allowed(text: str, name: str) -> list[tuple[int, int]]:
    """Day and half hour of a week in which a person may pass."""
    found = DoorList.parse(text.encode())
    halves = [(day, half) for day in range(7) for half in range(48)]
    return [
        (day, half) for day, half in halves if found.refusal(name, MONDAY + timedelta(days=day, minutes=30 * half + 1)) is None
    ]


def test_grid_gives_exactly_the_hours_that_were_chosen(client: Client, console: Console, door: str) -> None:
    fields = {
        "entry": ["0", "1"],
        "e0_who": "people",
        "e0_people": "anna\r\n Zoë \r\n\r\nanna",
        **{f"e0_day{day}": ["7", "8", "12"] for day in range(5)},
        "e0_other0": "09:00-09:30",
        "e1_who": "everyone",
        "e1_other6": "22:00-06:00",
        "timezone": "UTC",
    }
    answer = submit(client, door, "save", **fields)
    assert (answer.status_code, answer.headers["location"]) == (303, path(door, "list"))
    text = list_text(console, door)
    weekdays = {(day, half) for day in range(5) for half in (14, 15, 16, 17, 24, 25)}
    night = {(6, half) for half in range(44, 48)} | {(0, half) for half in range(12)}
    assert set(allowed(text, "Zoë")) == weekdays | {(0, 18)} | night
    assert set(allowed(text, "carl")) == night
    page = client.get(path(door, "list")).text
    assert page.count(" checked>") == 5 * 3 + 2 + 2 + 0, "the grid, the radio buttons, and the whole hours of the night"
    assert 'value="22:00-06:00"' in page
    assert client.get(path(door, "list.toml")).text == text


def test_rows_are_added_and_removed_without_losing_others(client: Client, door: str) -> None:
    typed: dict[str, Any] = {
        "entry": ["0"],
        "e0_who": "people",
        "e0_people": "anna",
        "e0_other2": "nonsense",
        "e0_day1": ["3"],
    }
    page = submit(client, door, "add entry", **typed, holidays="2026-12-25", new_holiday="2026-12-26").text
    assert page.count('name="entry"') == 2
    assert all(text in page for text in (">anna</textarea>", 'value="nonsense"', "2026-12-25\n2026-12-26</textarea>"))
    page = submit(client, door, "add visitor", **typed, e0_new="Zoë").text
    assert (page.count('name="entry"'), page.count('name="visitor"')) == (1, 1)
    assert ">anna\nZoë</textarea>" in page
    typed |= {"entry": ["0", "1"], "e1_people": "Zoë", "visitor": ["0", "1"], "v0_name": "carl", "v1_name": "dora"}
    page = submit(client, door, "remove entry 0", **typed).text
    assert (">Zoë</textarea>" in page, ">anna</textarea>" in page, page.count('name="visitor"')) == (True, False, 2)
    page = submit(client, door, "remove visitor 0", **typed).text
    assert ('value="dora"' in page, 'value="carl"' in page, page.count('name="entry"')) == (True, False, 2)


def test_form_has_a_largest_size(client: Client, door: str) -> None:
    numbers = [str(number) for number in range(door_lists.MAX_ENTRIES)]
    answer = submit(client, door, "add entry", entry=numbers)
    assert (answer.status_code, "at most 24 rows" in answer.text) == (400, True)
    assert submit(client, door, "preview", entry=[*numbers, "24"]).status_code == 400


def test_preview_shows_the_text_that_is_then_saved(client: Client, console: Console, door: str) -> None:
    fields = {
        "visitor": ["0", "1"],
        "v0_name": "bne",
        "v0_from": "2020-01-01",
        "v0_until": "2020-01-02",
        "v0_hours": "08:00-9:30",
    }
    page = submit(client, door, "preview", **fields).text
    found = re.search(r'<section class="card" id="preview".*?<pre[^>]*>(.*?)</pre>', page, re.DOTALL)
    assert found
    preview = html.unescape(found[1])
    assert 'people = ["bne"]\nhours = "08:00-09:30"\nvalid_from = 2020-01-01\nvalid_until = 2020-01-02\n' in preview
    assert list_text(console, door) == "", "a preview saves nothing"
    assert "no photos of: bne" in page
    assert "Some entries are over: bne" in page
    submit(client, door, "save", **fields)
    assert list_text(console, door) == preview
    assert 'value="2020-01-02"' in client.get(path(door, "list")).text


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, "no entries"),
        ({"entry": ["0"], "e0_who": "people", "e0_day0": ["1"]}, "Entry 1 names no person"),
        ({"entry": ["0"], "e0_who": "everyone"}, "Entry 1 has no hours"),
        ({"entry": ["0"], "e0_who": "everyone", "e0_day0": ["99", "x"]}, "Entry 1 has no hours"),
        ({"entry": ["0"], "e0_who": "everyone", "e0_other1": "7-8"}, "Entry 1, Tuesday: 7-8 are not hours"),
        ({"entry": ["0"], "e0_who": "everyone", "e0_other1": "08:00-08:00"}, "Entry 1, Tuesday"),
        ({"entry": ["0"], "e0_who": "everyone", "e0_day0": ["1"], "e0_from": "1.5.2026"}, "1.5.2026 is not a date"),
        ({"entry": ["0"], "e0_who": "everyone", "e0_day0": ["1"], "holidays": "20261225"}, "20261225 is not a date"),
        ({"entry": ["0"], "e0_who": "everyone", "e0_day0": ["1"], "timezone": "Mars/North"}, "no time zone"),
        ({"visitor": ["0"], "v0_name": "", "v0_until": "2026-12-01"}, "Visitor 1 has no name"),
        ({"visitor": ["0"], "v0_name": "carl"}, "Visitor 1 has no last day"),
        ({"visitor": ["0"], "v0_name": "carl", "v0_until": "2026-12-01", "v0_hours": "day"}, "day are not hours"),
        ({"visitor": ["0"], "v0_name": "c", "v0_from": "2026-12-02", "v0_until": "2026-12-01"}, "before the first"),
    ],
)
def test_invalid_form_is_not_saved_and_what_was_typed_stays(
    fields: dict[str, Any], problem: str, client: Client, console: Console, door: str
) -> None:
    door_lists.save(console.site, door, OFFICE, "test")
    answer = submit(client, door, "save", **fields)
    assert (answer.status_code, problem in answer.text) == (400, True), answer.text
    for key, value in fields.items():
        if isinstance(value, str) and value and not key.endswith("who"):
            assert value in answer.text
    assert list_text(console, door) == OFFICE


def test_change_of_another_person_is_reported_and_nothing_is_lost(client: Client, console: Console, door: str) -> None:
    before = version(client, door)
    door_lists.save(console.site, door, OFFICE, "olga")
    fields: Any = {"before": before, "entry": ["0"], "e0.who": "people", "e0.people": "Zoë", "e0.day6": ["5"]}
    answer = client.submit(path(door, "list"), fields | {"action": "save"})
    assert answer.status_code == 400
    assert "Another person saved this list meanwhile" in answer.text
    assert all(text in answer.text for text in ("07:00-19:00", ">Zoë</textarea>"))
    assert list_text(console, door) == OFFICE
    theirs = re.search(r'name="theirs" value="(\w+)"', answer.text)
    assert theirs
    door_lists.save(console.site, door, OFFICE + "# again\n", "olga")
    again = client.submit(path(door, "list"), fields | {"action": "overwrite", "theirs": theirs[1]})
    assert again.status_code == 400, "only the list that was shown is replaced"
    theirs = re.search(r'name="theirs" value="(\w+)"', again.text)
    assert theirs
    client.submit(path(door, "list"), fields | {"action": "overwrite", "theirs": theirs[1]})
    assert "Zoë" in list_text(console, door)


def test_list_that_the_form_cannot_show_is_edited_as_text(client: Client, console: Console, door: str) -> None:
    file = doors.list_file(console.site, doors.find(console.site, door))
    file.write_text("[[allow]]\npeople = 3\n")
    page = client.get(path(door, "list")).text
    assert "people must be" in page
    assert "The form cannot show everything" not in page, "it is not valid"
    assert "people = 3\n</textarea>" in page
    assert client.get(path(door, "list.toml")).status_code == 400, "an invalid list is not given to a terminal"
    fields: dict[str, str] = {"before": version(client, door), "text": "[[allow]\r\n<b>"}
    refused = client.submit(path(door, "list/text"), fields | {"action": "save"})
    assert (refused.status_code, "[[allow]\n&lt;b&gt;</textarea>" in refused.text) == (400, True)
    fields["text"] = '# Zoë\r\n[[allow]]\r\npeople = ["an\\nna"]'
    assert "This will be saved" in client.submit(path(door, "list/text"), fields | {"action": "preview"}).text
    assert file.read_text() == "[[allow]]\npeople = 3\n"
    client.submit(path(door, "list/text"), fields | {"action": "save"})
    assert file.read_text(encoding="utf-8") == '# Zoë\n[[allow]]\npeople = ["an\\nna"]'
    page = client.get(path(door, "list")).text
    assert '<textarea id="text"' in page
    assert "The form cannot show everything in this list" in page


def test_comments_are_kept_as_text_and_announced_in_the_form(client: Client, console: Console, door: str) -> None:
    door_lists.save(console.site, door, f"# why\n{OFFICE}", "test")
    assert "has comments" in client.get(path(door, "list")).text
    assert "# why" in client.get(path(door, "list?as=text")).text


def test_list_is_removed_only_as_it_was_shown(client: Client, console: Console, door: str) -> None:
    door_lists.save(console.site, door, OFFICE, "test")
    before = version(client, door)
    door_lists.save(console.site, door, f"# new\n{OFFICE}", "olga")
    assert client.submit(path(door, "list/remove"), {"before": before}).status_code == 400
    client.submit(path(door, "list/remove"), {"before": version(client, door)})
    assert list_text(console, door) == ""
    assert "every person in the kit may pass" in client.get(path(door, "list")).text


def test_too_large_list_is_refused(client: Client, console: Console, door: str) -> None:
    fields = {"before": version(client, door), "action": "save", "text": "#" * ((1 << 20) + 1)}
    assert client.submit(path(door, "list/text"), fields).status_code == 400
    assert client.submit(path(door, "list/text"), fields | {"text": "#" * (5 << 20)}).status_code == 413
    assert list_text(console, door) == ""


def test_every_page_of_doors_in_german(client: Client, console: Console, door: str) -> None:
    door_lists.save(console.site, door, OFFICE, "test")
    german = {"Accept-Language": "de"}
    texts = {"/doors": "Tür hinzufügen", path(door): "Besuche empfangen", path(door, "list"): "Montag 07:00-08:00"}
    for page, text in texts.items():
        assert text in client.get(page, headers=german).text
