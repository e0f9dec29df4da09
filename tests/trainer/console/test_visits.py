"""The pages of visits, over HTTP: search, facts, the second look, imports, how long visits are kept, and who may do what."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from edge.audit.crypto import write_keys
from edge.events.event import Event
from tests.fixtures.console import Client, Console
from tests.fixtures.events import NOON, make_event
from tests.fixtures.site import site_of_orl
from tests.fixtures.visits import UNKNOWN, camera_frame, size_of, write_audit_log
from trainer.site import doors, forgetting, trail, visit_retention, visits
from trainer.site.doors import Door
from trainer.site.folder import Site
from trainer.site.visits import Search, Visit

NAME = 'Jörg "O\'Hara" 100%'
pytestmark = pytest.mark.slow

MINUTE = timedelta(minutes=1)
LATER = (NOON + 2 * MINUTE).astimezone()


def decisions() -> list[tuple[Event, Any]]:
    """A grant for s1 that shows person 5, an unknown person that is s2, a denial with two faces, and one without a picture."""
    return [
        (make_event(label="s1", utc=NOON), camera_frame(5)),
        (make_event(**UNKNOWN, utc=NOON + MINUTE), camera_frame(2)),
        (make_event(label=NAME, outcome="denied", reason="holiday", utc=NOON + 2 * MINUTE), camera_frame(5, 6)),
        (
            make_event(label="<b>s3</b>", outcome="denied", reason="low image quality: face blurred", utc=NOON + 3 * MINUTE),
            None,
        ),
    ]


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("key") / "key.pem"
    write_keys(path)
    return path


@pytest.fixture(scope="module")
def audit_log(tmp_path_factory: pytest.TempPathFactory, key: Path) -> Path:
    return write_audit_log(tmp_path_factory.mktemp("log") / "audit.db", decisions(), public_key=Path(f"{key}.pub"))


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory, key: Path, audit_log: Path) -> Iterator[Console]:
    """A console with the key and the visits of an audit log that was uploaded."""
    site = site_of_orl(tmp_path_factory.mktemp("visits") / "site", {name: range(1, 4) for name in ("s1", "s2")})
    doors.add(site, Door(name="north"), "test")
    with Console(site.path, "--picture-key", key) as running:
        with running.client("operator", user="otto") as client:
            assert upload(client, audit_log.read_bytes()).status_code == 303
        yield running


@pytest.fixture
def client(console: Console) -> Iterator[Client]:
    with console.client("operator", user="otto") as found:
        yield found


def upload(client: Client, data: bytes, door: str = "north", name: str = "audit.db") -> httpx.Response:
    return client.submit("/visits/import", {"door": door}, files={"file": (name, data)})


def stored(site: Site, **wanted: Any) -> list[Visit]:
    with site.database() as database:
        return list(visits.search(database, Search(**wanted)).visits)


def number_of(console: Console, **wanted: Any) -> int:
    (visit,) = stored(console.site, **wanted)
    return visit.id


def rows(page: str) -> list[int]:
    return [int(number) for number in re.findall(r'data-visit="(\d+)"', page)]


def seen_on(page: str) -> str:
    found = re.search(r'name="seen" value="([0-9a-f]{64})"', page)
    assert found, page
    return found[1]


def notice(answer: httpx.Response, client: Client) -> str:
    """The notice of the page that follows."""
    found = re.search(r'class="notice" role="status">([^<]*)<', client.get(answer.headers["location"]).text)
    assert found
    return html.unescape(found[1])


# Search


def test_visits_are_listed_with_outcome_reason_and_confidence(client: Client, console: Console) -> None:
    page = client.get("/visits").text
    assert rows(page) == [visit.id for visit in stored(console.site)]
    for words in ("Granted", "Denied", "Unknown person", "No access on a holiday", "face blurred", "0.93, needs 0.71"):
        assert words in page, words
    assert "&lt;b&gt;s3&lt;/b&gt;" in page
    assert "<b>s3" not in page
    assert 'width="93.4"' in page
    assert 'x1="71.0"' in page
    assert "style=" not in page


@pytest.mark.parametrize(
    ("fields", "number"),
    [
        ({"person": "s1"}, 1),
        ({"person": NAME}, 1),
        ({"person": "o'hara"}, 1),
        ({"person": "%"}, 1),
        ({"person": "jörg"}, 1),
        ({"unknown": "1"}, 1),
        ({"outcome": "denied"}, 3),
        ({"door": "north"}, 4),
        ({"door": "west"}, 0),
        ({"from": f"{NOON.astimezone():%Y-%m-%d}", "until": f"{NOON.astimezone():%Y-%m-%d}"}, 4),
        ({"until": f"{NOON.astimezone() - timedelta(days=1):%Y-%m-%d}"}, 0),
        ({"from": f"{LATER:%Y-%m-%d}", "from_time": f"{LATER:%H:%M}"}, 2),
        ({"until": f"{LATER:%Y-%m-%d}", "until_time": f"{LATER:%H:%M}"}, 2),
    ],
)
def test_search_form_finds_visits_and_keeps_what_was_typed(fields: dict[str, str], number: int, client: Client) -> None:
    page = client.get("/visits", params=fields).text
    assert len(rows(page)) == number
    if "person" in fields:
        assert (
            f'name="person" value="{html.escape(fields["person"]).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")}"'
            in page
        )


def test_wrong_searches_are_sentences(client: Client) -> None:
    known = {"from=x": 400, "from_time=12:00": 400, "older=x": 400, "outcome=open": 404, "newer=2026_1": 200}
    for query, status in known.items():
        assert client.get(f"/visits?{query}").status_code == status, query
    for path in ("/visits/999999", f"/visits/{10**30}", "/visits/999999/picture.jpg"):
        assert client.get(path).status_code == 404, path


def test_pages_are_linked_and_keep_the_search(tmp_path: Path) -> None:
    site = Site.create(tmp_path / "site")
    with site.database() as database:
        for minute in range(2 * visits.PAGE_ROWS + 5):
            visits.store(database, "a & b", asdict(make_event(utc=NOON + minute * MINUTE)))
    everything = [visit.id for visit in stored(site)]
    with Console(site.path) as running, running.client("viewer") as viewer:
        shown: list[int] = []
        page, links = viewer.get("/visits?door=a+%26+b").text, []
        for _ in range(3):
            shown += rows(page)
            found = re.search(r'rel="next" href="([^"]+)"', page)
            links.append(found is not None)
            if found:
                page = viewer.get(html.unescape(found[1])).text
        assert links == [True, True, False]
        assert (len(shown), len(set(shown)), shown[: len(everything)]) == (105, 105, everything)
        back = re.search(r'rel="prev" href="([^"]+)"', page)
        assert back
        assert rows(viewer.get(html.unescape(back[1])).text) == shown[50:100]


def test_empty_page_says_how_to_get_visits(tmp_path: Path) -> None:
    with Console(tmp_path / "site") as running, running.client("operator") as client:
        page = client.get("/visits").text
        assert "two ways" in page
        assert 'href="/doors"' in page
        assert 'action="/visits/import"' not in page, "there is no door yet"
        running.site.doors_file.write_text("[[")
        answer = client.get("/visits")
        assert (answer.status_code, "doors.toml" in answer.text) == (200, True)


# One visit and its picture


def test_page_of_a_visit_has_all_facts_picture_and_photos_of_the_person(client: Client, console: Console) -> None:
    number = number_of(console, person="s1")
    page = client.get(f"/visits/{number}").text
    for words in ("Recognised", "0.93, needs 0.71", "0123456789ab", "Lead over the second person", "&#34;looks&#34;: 3"):
        assert words in page, words
    assert page.count("<rect x=") == 1, "the box of the face"
    assert page.count("/people/s1/photos/") == 3
    picture = client.get(f"/visits/{number}/picture.jpg")
    assert (picture.headers["content-type"], picture.headers["cache-control"]) == ("image/jpeg", "no-store")
    assert size_of(picture.content) == (640, 360)
    small = client.get(f"/visits/{number}/picture.jpg?small=1")
    assert size_of(small.content) == (160, 90)


def test_visit_without_a_picture_says_where_pictures_come_from(client: Client, console: Console) -> None:
    page = client.get(f"/visits/{number_of(console, person='s3')}").text
    assert "They are in the audit log" in page
    assert "/judge" not in page


def test_viewer_sees_facts_but_no_pictures_and_changes_nothing(console: Console) -> None:
    number = number_of(console, person="s1")
    with console.client("viewer", user="vera") as viewer:
        everything, page = viewer.get("/visits").text, viewer.get(f"/visits/{number}").text
        assert "Sealed picture" in everything
        assert "picture.jpg" not in everything + page
        assert ("Only operators can open it" in page, "/judge" in page) == (True, False)
        assert viewer.get(f"/visits/{number}/picture.jpg").status_code == 403
        assert viewer.get(f"/visits/{number}/judge?verdict=stranger").status_code == 403
        for path in ("import", "keep", "prune", f"{number}/judge", f"{number}/undo"):
            assert viewer.submit(f"/visits/{path}").status_code == 403, path
        assert 'action="/visits' not in everything.replace('action="/visits" class="search', "")


def test_operator_does_not_delete_visits(client: Client) -> None:
    assert 'action="/visits/prune"' not in client.get("/visits").text
    for path in ("keep", "prune"):
        assert client.submit(f"/visits/{path}", {"days": "1"}).status_code == 403


def test_console_without_the_key_or_with_another_one(tmp_path: Path, audit_log: Path) -> None:
    site = Site.create(tmp_path / "site")
    doors.add(site, Door(name="north"), "test")
    write_keys(tmp_path / "other.pem")
    for options, words in (((), "--picture-key FILE"), (("--picture-key", tmp_path / "other.pem"), "another key")):
        with Console(site.path, *options) as running, running.client("operator") as operator:
            upload(operator, audit_log.read_bytes())
            number = number_of(running, person="s1")
            page = operator.get(f"/visits/{number}").text
            assert (words in page, "/judge" in page) == (True, False)
            assert operator.get(f"/visits/{number}/picture.jpg").status_code == 404
            assert operator.get(f"/visits/{number}/judge?verdict=stranger").status_code == 400
            assert ("Sealed picture" in operator.get("/visits").text) == (not options)


# The second look


def test_stranger_is_shown_then_saved_then_undone(client: Client, console: Console) -> None:
    number = number_of(console, person="s1")
    assert "This was not s1, but a stranger" in client.get(f"/visits/{number}").text
    page = client.get(f"/visits/{number}/judge?verdict=stranger").text
    found = re.search(r"data:image/png;base64,([^\"]+)", page)
    assert found
    assert not list(console.site.strangers.iterdir()), "the first step saves nothing"
    answer = client.submit(f"/visits/{number}/judge", {"verdict": "stranger", "face": "0", "seen": seen_on(page)})
    assert "next training" in notice(answer, client)
    (file,) = console.site.strangers.rglob("*.png")
    assert file.read_bytes() == base64.b64decode(found[1]), "exactly what was shown"
    page = client.get(f"/visits/{number}").text
    assert ("This is a stranger." in page, f"/visits/{number}/undo" in page) == (True, True)
    assert "This is a stranger." in client.get("/visits").text
    answer = client.submit(f"/visits/{number}/undo")
    assert "the photo is deleted" in notice(answer, client)
    assert not list(console.site.strangers.iterdir())
    with console.site.database() as database:
        assert {change.who for change in trail.changes(database, search="verdict")} == {"otto"}


def test_unknown_person_becomes_a_photo_of_a_person(client: Client, console: Console) -> None:
    number = number_of(console, unknown=True)
    page = client.get(f"/visits/{number}/judge", params={"verdict": "is", "name": " s2 "}).text
    assert "Is this s2?" in page
    assert "/people/s2/photos/1.pgm/crop.jpg" in page
    fields = {"verdict": "is", "name": "s2", "face": "0", "seen": seen_on(page)}
    assert "Saved as a photo of s2" in notice(client.submit(f"/visits/{number}/judge", fields), client)
    assert len(list((console.site.photos / "s2").iterdir())) == 4
    assert "Photos: 4" in client.get("/people/s2").text
    client.submit(f"/visits/{number}/undo")
    assert len(list((console.site.photos / "s2").iterdir())) == 3


def test_of_several_faces_the_chosen_one_is_shown(client: Client, console: Console) -> None:
    number = number_of(console, person=NAME)
    pages = [client.get(f"/visits/{number}/judge?verdict=stranger&face={face}").text for face in (0, 1)]
    assert len({seen_on(page) for page in pages}) == 2
    assert "Which face is meant?" in pages[0]
    lefts = [float(left) for left in re.findall(r'<text x="([0-9.]+)"', pages[0])]
    assert lefts == sorted(lefts), "the numbers go from left to right, as in the command and on the page of a person"
    fields = {"verdict": "stranger", "face": "1", "seen": seen_on(pages[0])}
    assert client.submit(f"/visits/{number}/judge", fields).status_code == 400, "another face than the one that was shown"
    for face in ("2", "-1", "x", "9999999"):
        assert client.get(f"/visits/{number}/judge", params={"verdict": "stranger", "face": face}).status_code == 400


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"verdict": "is"},
        {"verdict": "is", "name": " "},
        {"verdict": "other", "name": "s2"},
        {"verdict": "is", "name": "S9"},
        {"verdict": "is", "name": "../../etc"},
        {"name": "s2"},
    ],
)
def test_unclear_verdicts_save_nothing(fields: dict[str, str], client: Client, console: Console) -> None:
    number = number_of(console, unknown=True)
    seen = seen_on(client.get(f"/visits/{number}/judge?verdict=stranger").text)
    assert client.get(f"/visits/{number}/judge", params=fields).status_code == 400
    assert client.submit(f"/visits/{number}/judge", {"face": "0", "seen": seen} | fields).status_code == 400
    assert not list(console.site.strangers.iterdir())


def test_second_browser_gets_a_sentence(console: Console) -> None:
    number = number_of(console, person="s1")
    with console.client("operator", user="otto") as first, console.client("operator", user="olga") as second:
        fields = {"verdict": "stranger", "face": "0"}
        shown = [browser.get(f"/visits/{number}/judge", params=fields).text for browser in (first, second)]
        answers = [
            browser.submit(f"/visits/{number}/judge", fields | {"seen": seen_on(page)})
            for browser, page in zip((first, second), shown, strict=True)
        ]
        assert [answer.status_code for answer in answers] == [303, 400]
        assert "has a verdict already" in answers[1].text
        assert [browser.submit(f"/visits/{number}/undo").status_code for browser in (second, first)] == [303, 400]
    assert not list(console.site.strangers.iterdir())


def test_change_without_csrf_value_is_refused(client: Client, console: Console) -> None:
    number = number_of(console, person="s1")
    for path in (f"{number}/judge", f"{number}/undo", "import", "keep"):
        assert client.post(f"/visits/{path}", data={"days": "1"}).status_code == 403, path


# Imports, and how long visits are kept


def test_upload_reports_what_it_found(client: Client, audit_log: Path, console: Console) -> None:
    assert notice(upload(client, audit_log.read_bytes()), client).startswith("New visits: 0. Completed: 0. Known before: 4.")
    lines = b"not an event\n" + make_event(label="late").to_json().encode()
    assert "not events: 1" in notice(upload(client, lines, name="events.jsonl"), client)
    with console.site.database() as database:
        database.execute("DELETE FROM visits WHERE label = 'late'")
    assert not list(console.site.path.glob(".visits*"))


def test_wrong_uploads_are_sentences_about_the_file(client: Client, console: Console) -> None:
    before = len(stored(console.site))
    for data in (b"", b"\x89PNG\r\n\x1a\n" + bytes(500), b"SQLite format 3\0" + bytes(5000)):
        answer = upload(client, data, name="<i>holiday.jpg")
        assert answer.status_code == 400
        assert "&lt;i&gt;holiday.jpg" in answer.text
        assert str(console.site.path) not in answer.text
    assert upload(client, b"{}", door="west").status_code == 400
    assert client.submit("/visits/import", {"door": "north"}).status_code == 400
    assert len(stored(console.site)) == before


def test_administrator_sets_how_long_visits_are_kept(tmp_path: Path) -> None:
    site = Site.create(tmp_path / "site")
    with site.database() as database:
        for days in (1, 40, 100):
            visits.store(database, "north", asdict(make_event(utc=datetime.now(UTC) - timedelta(days=days))))
    with Console(site.path) as running, running.client() as ada:
        for wrong in ("", "-1", "1.5", "x", "999999"):
            for path in ("keep", "prune"):
                assert ada.submit(f"/visits/{path}", {"days": wrong}).status_code == 400, (path, wrong)
        assert len(stored(site)) == 3
        assert "Deleted visits: 1." in notice(ada.submit("/visits/prune", {"days": "90"}), ada)
        forms = re.findall(r'action="(/visits/(?:keep|prune))" class="row" data-confirm', ada.get("/visits").text)
        assert forms == ["/visits/keep", "/visits/prune"], "both delete visits at once"
        assert notice(ada.submit("/visits/keep", {"days": "30"}), ada).endswith("Deleted visits: 1.")
        assert (len(stored(site)), "Visits are kept for 30 days." in ada.get("/visits").text) == (1, True)
        ada.submit("/visits/keep", {"days": "0"})
        assert "without a limit" in ada.get("/visits").text


def test_page_applies_how_long_visits_are_kept(tmp_path: Path) -> None:
    site = Site.create(tmp_path / "site")
    with site.database() as database:
        visit_retention.set_keep_days(database, 30, who="test", now=NOON)
        visits.store(database, "north", asdict(make_event(utc=NOON)))
    with Console(site.path) as running, running.client("viewer") as viewer:
        assert rows(viewer.get("/visits").text) == []


def test_forgotten_person_is_on_no_page(tmp_path: Path, key: Path, audit_log: Path) -> None:
    site = Site.create(tmp_path / "site")
    doors.add(site, Door(name="north"), "test")
    with Console(site.path, "--picture-key", key) as running, running.client("operator") as operator:
        upload(operator, audit_log.read_bytes())
        number = number_of(running, person="s1")
        with site.database() as database:
            forgetting.forget(site, database, "s1", who="test")
        upload(operator, audit_log.read_bytes())
        page = operator.get(f"/visits/{number}").text
        assert ("s1" in page, "No name" in page, "picture.jpg" in page) == (False, True, False)
        assert rows(operator.get("/visits?person=s1").text) == []


def test_pages_in_german(console: Console) -> None:
    with console.client("operator") as operator:
        operator.headers["Accept-Language"] = "de"
        page = operator.get("/visits").text
        assert "0,93, nötig 0,71" in page
        assert "Kein Zutritt an einem Feiertag" in page
        number = number_of(console, person="s1")
        assert "Zweiter Blick" in operator.get(f"/visits/{number}").text
        assert "Dieses Gesicht wird gespeichert" in operator.get(f"/visits/{number}/judge?verdict=stranger").text
