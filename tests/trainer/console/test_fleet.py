"""The page of a fleet, with a real broker, a real repository, and the real command."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import ViewportSize, expect

from export.fleet import contents, roles
from export.fleet.repository import opened
from tests.fakes.mqtt_broker import PASSWORD, USER, Broker
from tests.fixtures.console import Client, Console, Visitor
from tests.fixtures.fleet import Fleet, versioned_kit
from tests.fixtures.kits import digest
from tests.fixtures.waiting import until
from trainer.site import jobs

pytestmark = pytest.mark.slow

JSON = {"Accept": "application/json"}
WRONG = {"state": "failed", "error": "The <server> is wrong."}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    found = Broker(tmp_path_factory.mktemp("broker"))
    found.start()
    for door, facts in (("d1", {}), ("d2", WRONG)):
        report(found, door, **facts)
    yield found
    found.stop()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    made = Fleet(tmp_path_factory.mktemp("fleet"))
    made.add_group()
    return made


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory, broker: Broker, fleet: Fleet) -> Iterator[Console]:
    with Console(tmp_path_factory.mktemp("console") / "site") as running:
        for version in (1, 2):
            (running.site.kits / f"kit-{version}.kit").write_bytes(versioned_kit(version))
        (running.site.path / "fleet.toml").write_text(
            f'repo = "{fleet.repo}"\nbroker = "mqtts://127.0.0.1:{broker.port}"\nuser = "{USER}"\n'
            f'password_file = "{broker.folder}/password"\nca_file = "{broker.folder}/ca.pem"\n'
        )
        yield running


@pytest.fixture(scope="module")
def client(console: Console) -> Iterator[Client]:
    with console.client("operator", user="otto") as found:
        yield found


def report(broker: Broker, door: str, **facts: Any) -> None:
    """Publish what a terminal publishes."""
    from paho.mqtt import publish

    known = {"schema": 1, "group": "north", "door": door, "state": "fresh", "kit": digest(versioned_kit(1))[:12]}
    own = f"lclrr-edge/terminal-{door}"
    status = json.dumps(known | {"kit_version": 1, "decisions_per_hour": 12} | facts)
    publish.multiple(
        [(f"{own}/state", "online", 1, True), (f"{own}/status", status, 1, True)],
        port=broker.port,
        hostname="127.0.0.1",
        auth={"username": USER, "password": PASSWORD},
        tls=ssl.create_default_context(cafile=broker.folder / "ca.pem"),  # type: ignore[arg-type]
    )


def doors(client: Client) -> list[dict[str, str]]:
    found: list[dict[str, str]] = client.get("/fleet", headers=JSON).json()["doors"]
    return found


def job_of(console: Console, answer: Any) -> jobs.JobState:
    """Wait for the job that a form has started."""
    assert answer.status_code == 303, answer.text
    number = int(answer.headers["location"].rpartition("/")[2])
    with console.site.database() as database:
        job = until(lambda: (found := jobs.get(database, number)) and not found.is_running and found)
    assert isinstance(job, jobs.JobState)
    return job


def published(fleet: Fleet) -> Any:
    with opened(fleet.repo) as repository:
        return contents.Contents(repository, "north").rollout()


def test_site_without_a_fleet_has_no_such_page(tmp_path: Path) -> None:
    with Console(tmp_path / "site") as running, running.client() as own:
        assert own.get("/fleet").status_code == 404
        assert 'href="/fleet"' not in own.get("/doors").text


def test_page_shows_what_the_doors_report(client: Client) -> None:
    assert 'href="/fleet"' in client.get("/doors").text
    until(lambda: len(doors(client)) == 2)
    first, second = doors(client)
    assert (first["door"], first["state"], first["kit"], first["failing"]) == (
        "north/d1",
        "online",
        f"Version 1 · {digest(versioned_kit(1))[:12]}",
        "",
    )
    assert (second["failing"], second["problems"]) == ("yes", "The <server> is wrong.")
    page = client.get("/fleet").text
    assert "The &lt;server&gt; is wrong." in page
    assert "2 doors, 1 with problems" in page
    german = client.get("/fleet", headers={"Accept-Language": "de"}).text
    assert "2 Türen, davon 1 mit Problemen" in german


@pytest.mark.parametrize("size", [{"width": 1280, "height": 800}, {"width": 390, "height": 844}])
def test_page_in_a_browser_follows_the_doors(
    visitor: Visitor, client: Client, broker: Broker, size: ViewportSize, request: pytest.FixtureRequest
) -> None:
    until(lambda: len(doors(client)) == 2)
    visitor.page.set_viewport_size(size)
    page = visitor.visit("/fleet")
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=f"{folder}/fleet-{size['width']}.png", full_page=True)
    row = page.locator('[data-door="north/d2"]')
    expect(row).to_contain_text("The <server> is wrong.")
    request.addfinalizer(lambda: report(broker, "d2", **WRONG))
    report(broker, "d2", decisions_per_hour=77)
    expect(row).to_contain_text("77")
    expect(row).not_to_contain_text("The <server> is wrong.")
    expect(page.get_by_text("2 doors, all work")).to_be_visible()


def test_kit_is_published_stopped_and_resumed_by_forms(console: Console, client: Client, fleet: Fleet) -> None:
    fields = {"group": "north", "kit": "kit-2", "share": "0.1"}
    job = job_of(console, client.submit("/fleet/publish", fields))
    assert (job.state, job.who) == (jobs.DONE, "otto"), job.message
    assert "version 2, for 10 % of all doors" in job.message
    assert (published(fleet).kit_version, published(fleet).share) == (2, 0.1)
    for change, is_stopped in (("stop", True), ("resume", False)):
        assert job_of(console, client.submit("/fleet/change", {"group": "north", "change": change})).state == jobs.DONE
        assert published(fleet).stopped is is_stopped
    assert job_of(console, client.submit("/fleet/publish", fields | {"share": "1.0"})).state == jobs.DONE
    assert published(fleet).share == 1.0
    with console.site.database() as database:
        rows = database.execute("SELECT who, subject FROM trail WHERE action = 'publish to fleet'").fetchall()
    assert [tuple(row) for row in rows] == [("otto", "north")] * 4
    # The page is some seconds behind: it may still have what was true before the last form.
    last = "Published: kit kit-2, version 2, for 100\N{NO-BREAK SPACE}%"
    page = until(lambda: (page := client.get("/fleet").text) and last in page and page)
    assert 'value="stop"' in page


def test_key_that_is_not_on_this_computer_is_chosen_as_a_file(console: Console, client: Client, fleet: Fleet) -> None:
    with fleet.changing() as repository:
        roles.add_group(repository, "south")
    away = fleet.keys / "away"
    (fleet.keys / "group-south").rename(away)
    (file,) = away.glob("*.pem")
    (other,) = (fleet.keys / "group-north").glob("*.pem")
    fields = {"group": "south", "kit": "kit-1", "share": "1.0"}
    missing = job_of(console, client.submit("/fleet/publish", fields))
    assert (missing.state, "is not on this computer" in missing.message) == (jobs.FAILED, True)
    wrong = job_of(console, client.submit("/fleet/publish", fields, files={"key": ("key.pem", other.read_bytes())}))
    assert (wrong.state, "not the key of the group south" in wrong.message) == (jobs.FAILED, True)
    with opened(fleet.repo) as repository:
        assert not repository.waiting()
    job = job_of(console, client.submit("/fleet/publish", fields, files={"key": ("key.pem", file.read_bytes())}))
    assert job.state == jobs.DONE, job.message
    secret = file.read_bytes().splitlines()[1]
    assert not [path for path in console.site.path.rglob("*") if path.is_file() and secret in path.read_bytes()]


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [
        ("/fleet/publish", {"group": "north", "kit": "missing", "share": "1.0"}, "no kit missing"),
        ("/fleet/publish", {"group": "north", "kit": "kit-2", "share": "7"}, "no such share"),
        ("/fleet/change", {"group": "north", "change": "x"}, "stop or resume"),
    ],
)
def test_wrong_form_is_a_sentence(client: Client, path: str, fields: dict[str, str], words: str) -> None:
    answer = client.submit(path, fields)
    assert (answer.status_code, words in answer.text) == (400, True)


def test_group_that_is_not_valid_is_a_sentence(console: Console, client: Client) -> None:
    job = job_of(console, client.submit("/fleet/publish", {"group": "../x", "kit": "kit-2", "share": "1.0"}))
    assert (job.state, "not a valid name of a group" in job.message) == (jobs.FAILED, True)


def test_viewer_sees_and_does_not_change(console: Console) -> None:
    with console.client("viewer", user="vera") as viewer:
        page = viewer.get("/fleet").text
        assert "<form" not in page
        assert viewer.submit("/fleet/change", {"group": "north", "change": "stop"}).status_code == 403
