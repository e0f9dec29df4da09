"""The pages of kits, over HTTP and in Chromium: build, sign, publish, go back, compare, download, delete, roles."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

from edge.kit import format as kit_format
from edge.kit.store import Store
from edge.kit.watch import ProbationRecognizer
from tests.fixtures import liveness
from tests.fixtures.console import PHONE, Client, Console, Visitor, chromium, wait_for_job
from tests.fixtures.kits import signing_keys
from tests.fixtures.orl_door import load_on_probation
from tests.fixtures.site import site_of_orl
from trainer.site import doors, jobs, kits, liveness_files, models, publishing, training
from trainer.site.doors import Door

pytestmark = pytest.mark.slow

PRIVATE, PUBLIC = signing_keys()
KEY = {"key": ("kit-key.pem", PRIVATE)}
OPERATOR = "otto"
CHANGES = ("/kits", "/kits-key", "/kits-liveness", "/kits/{}/publish", "/kits/{}/again", "/kits/{}/delete")
NORTH = "Nordtür, \"A\" & 'B'"


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    """A console of seven people with a model, and the doors NORTH, south, and plain, which has no file."""
    folder = tmp_path_factory.mktemp("kits")
    site = site_of_orl(folder / "site", {f"s{person}": range(1, 5) for person in range(1, 8)})
    training.train(site, preset="minimal", who="anna")
    for name in (NORTH, "south"):
        (folder / name).mkdir()
        doors.add(site, Door(name=name, drop=folder / name / "door.kit"), "anna")
    doors.add(site, Door(name="plain"), "anna")
    with Console(site.path) as running:
        yield running


@pytest.fixture(scope="module")
def client(console: Console) -> Iterator[Client]:
    with console.client("operator", user=OPERATOR) as found:
        yield found


def send(client: Client, path: str, fields: dict[str, Any], **options: Any) -> Any:
    """Submit a form as a browser does that has chosen no file: with an empty one."""
    return client.submit(path, fields, **{"files": {"key": ("", b"")}} | options)


def form(console: Console, **changes: str | list[str]) -> dict[str, Any]:
    return {"model": models.list_models(console.site)[0].name, "precision": "fp32", "name": "", **changes}


def job_of(console: Console, answer: Any) -> dict[str, Any]:
    """Wait for the job that a form has started, and return it."""
    assert answer.status_code == 303, answer.text
    return wait_for_job(console, int(answer.headers["location"].rpartition("/")[2]))


@pytest.fixture(scope="module")
def first(console: Console, client: Client) -> str:
    """The name of an unsigned kit that was built by the form, and published to south."""
    job = job_of(console, send(client, "/kits", form(console, door=["south"])))
    assert job["state"] == jobs.DONE, job
    assert "south: published." in job["message"]
    return str(job["next"].rpartition("/")[2])


@pytest.fixture(scope="module")
def second(console: Console, client: Client, first: str) -> str:
    """The name of a smaller, signed kit that was built later, and published to no door."""
    job = job_of(console, send(client, "/kits", form(console, precision="int8", name="Köln 2"), files=KEY))
    assert job["state"] == jobs.DONE, job
    assert job["next"] == "/kits/K%C3%B6ln%202"
    return "Köln 2"


def test_site_without_people_says_what_to_do(tmp_path: Path) -> None:
    with Console(tmp_path / "site") as running, running.client() as own:
        page = own.get("/kits").text
        assert 'href="/train"' in page
        assert 'id="build"' not in page


def test_built_kit_is_listed_with_its_door(client: Client, console: Console, first: str) -> None:
    page = client.get("/kits").text
    kit = kits.get_kit(console.site, first)
    assert f'href="/kits/{first}"' in page
    assert f"{kit.threshold:.4f}" in page
    assert ">south<" in re.sub(r"\s", "", page[page.index("<table") :])
    with console.site.database() as database:
        rows = database.execute("SELECT who, action FROM trail WHERE subject = ? ORDER BY id", (first,)).fetchall()
    assert [tuple(row) for row in rows] == [(OPERATOR, "build kit"), (OPERATOR, "publish kit")]


def test_page_of_a_kit_says_its_facts_in_both_languages(client: Client, first: str) -> None:
    page = client.get(f"/kits/{first}").text
    assert "It recognises 7 people." in page
    assert "a photo of an enrolled person opens the door" in page
    german = client.get(f"/kits/{first}", headers={"Accept-Language": "de"}).text
    assert "Es erkennt 7 Personen." in german
    assert re.search(r"\d,\d+\N{NO-BREAK SPACE}%", german)


def test_signed_kit_is_valid_and_the_key_is_nowhere(console: Console, second: str) -> None:
    assert kit_format.read(kits.get_kit(console.site, second).path, PUBLIC).signature == "valid"
    secret = PRIVATE.splitlines()[1]
    assert not [path for path in console.site.path.rglob("*") if path.is_file() and secret in path.read_bytes()]


def test_kits_are_compared_with_the_one_before_or_another(client: Client, first: str, second: str) -> None:
    page = client.get(f"/kits/{second}").text
    assert f"Compared with {first}" in page
    assert "Size of the kit: smallest (about a quarter of the size), before exact." in page
    assert "Signed: yes, before no." in page
    assert "Signed: no, before yes." in client.get(f"/kits/{first}", params={"against": second}).text
    assert client.get(f"/kits/{first}", params={"against": "../x"}).status_code == 400


def test_download_is_the_file(client: Client, console: Console, second: str) -> None:
    answer = client.get(f"/kits/{second}/file")
    assert answer.content == kits.get_kit(console.site, second).path.read_bytes()
    assert answer.headers["content-disposition"].startswith("attachment;")
    assert "K%C3%B6ln%202.kit" in answer.headers["content-disposition"]


@pytest.mark.parametrize(
    ("fields", "files", "message"),
    [
        ({}, {"key": ("x.pem", b"no key")}, "not an Ed25519 private key"),
        ({}, {"key": ("x.pem", PUBLIC)}, "not an Ed25519 private key"),
        ({}, {"key": ("x.pem", bytes((8 << 10) + 1))}, "too large for a private key"),
        ({"model": "../x"}, {}, "no model"),
        ({"model": ""}, {}, "no model"),
        ({"precision": "int4"}, {}, "no such precision"),
        ({"name": "../x"}, {}, "not valid"),
        ({"door": ["plain"]}, {}, "has no file for new kits"),
        ({"door": ["nowhere"]}, {}, "no door"),
    ],
)
def test_wrong_form_is_a_sentence_and_no_job(
    console: Console, client: Client, fields: dict[str, Any], files: dict[str, Any], message: str
) -> None:
    with console.site.database() as database:
        before = jobs.latest(database, most=1)
        answer = send(client, "/kits", form(console, **fields), files=files or {"key": ("", b"")})
        assert answer.status_code == 400
        assert message in answer.text
        assert jobs.latest(database, most=1) == before


def test_too_large_key_form_is_refused(console: Console, client: Client) -> None:
    assert send(client, "/kits", form(console), files={"key": ("x.pem", bytes(1 << 20))}).status_code == 413


def test_older_kit_goes_back_to_the_doors_that_have_a_newer_one(
    console: Console, client: Client, first: str, second: str, tmp_path: Path
) -> None:
    site = console.site
    drop = doors.find(site, "south").drop
    assert drop is not None
    store: Store[ProbationRecognizer] = Store(tmp_path / "store", drop, load_on_probation)
    store.start()  # a terminal that has the first kit
    answer = client.submit(f"/kits/{second}/publish", {"door": ["south", NORTH]})  # type: ignore[dict-item]
    assert answer.status_code == 303
    store.activate(kit_format.read_kit_bytes(drop))
    assert publishing.doors_with(kits.get_kit(site, second), publishing.at_doors(site)) == [NORTH, "south"]

    assert client.submit(f"/kits/{first}/publish", {"door": "south"}).status_code == 400, "the terminal would refuse it"
    page = client.get(f"/kits/{first}").text
    assert f'action="/kits/{first}/again"' in page
    assert f'action="/kits/{first}/publish"' not in page
    job = job_of(console, send(client, f"/kits/{first}/again", {"door": ["south"]}))
    assert job["state"] == jobs.DONE, job
    assert store.activate(kit_format.read_kit_bytes(drop)).kit.manifest.precision == "fp32"
    newest = kits.get_kit(site, job["next"].rpartition("/")[2])
    assert publishing.doors_with(newest, publishing.at_doors(site)) == ["south"]
    assert f"It is the kit {first}, packed again" in client.get(job["next"]).text


def test_going_back_to_a_signed_kit_needs_its_key(console: Console, client: Client, second: str) -> None:
    assert send(client, f"/kits/{second}/again", {}).status_code == 400
    theirs = {"key": ("kit-key.pem", signing_keys("theirs")[0])}
    job = job_of(console, send(client, f"/kits/{second}/again", {}, files=theirs))
    assert (job["state"], "another key" in job["message"]) == (jobs.FAILED, True)
    assert "another key" in client.get("/kits").text
    job = job_of(console, send(client, f"/kits/{second}/again", {}, files=KEY))
    assert job["state"] == jobs.DONE
    name = job["next"].rpartition("/")[2]
    assert kit_format.read(kits.get_kit(console.site, name).path, PUBLIC).signature == "valid"


def test_liveness_model_is_uploaded_and_built_in(console: Console, client: Client) -> None:
    bad = client.submit("/kits-liveness", files={"file": ("x.onnx", b"no network")})
    assert (bad.status_code, "not a readable ONNX file" in bad.text) == (400, True)
    assert liveness_files.names(console.site) == []
    assert client.submit("/kits-liveness", files={"file": ("x.onnx", bytes(33 << 20))}).status_code == 413
    assert client.submit("/kits-liveness", files={"file": ("", b"")}).status_code == 400
    assert client.submit("/kits-liveness", files={"file": ("blue.onnx", liveness.network_file())}).status_code == 303
    assert 'value="blue.onnx"' in client.get("/kits").text
    chosen = {"liveness": "blue.onnx", "threshold": "0.6"}
    for wrong in ({"threshold": "1.5"}, {"threshold": "nan"}, {"settings blue.onnx": "x,../y.onnx"}):
        assert send(client, "/kits", form(console, **chosen | wrong)).status_code == 400
    settings = f"zoom=2.5, side={liveness.SIDE}"
    job = job_of(console, send(client, "/kits", form(console, **chosen, **{"settings blue.onnx": settings})))
    assert job["state"] == jobs.DONE, job
    kit = kits.get_kit(console.site, job["next"].rpartition("/")[2])
    assert kit.liveness is not None
    assert (kit.liveness.names, kit.liveness.threshold) == (("blue",), 0.6)
    assert "A living face needs a score of at least 0.60 (blue)." in client.get(job["next"]).text


def test_unknown_liveness_model_says_what_it_needs(console: Console, client: Client) -> None:
    liveness_files.add(console.site, "other.onnx", liveness.network_file(side=48), who="anna")
    answer = send(client, "/kits", form(console, liveness="other.onnx", threshold="0.5"))
    assert (answer.status_code, "other.onnx is not a known liveness model" in answer.text) == (400, True)


def test_key_pair_signs_and_is_stored_nowhere(console: Console, client: Client) -> None:
    before = set(console.site.path.rglob("*.pem*"))
    answer = client.submit("/kits-key")
    assert answer.headers["content-type"] == "application/zip"
    assert answer.headers["cache-control"] == "no-store"
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        private, public = (archive.read(f"kit-key/kit-key.pem{end}") for end in ("", ".pub"))
    assert set(console.site.path.rglob("*.pem*")) == before
    job = job_of(console, send(client, "/kits", form(console), files={"key": ("kit-key.pem", private)}))
    kit = kits.get_kit(console.site, job["next"].rpartition("/")[2])
    assert kit_format.read(kit.path, public).signature == "valid"
    assert private not in client.submit("/kits-key").content, "each pair is new"


def test_build_waits_for_the_running_job(console: Console, client: Client) -> None:
    before = sorted(console.site.kits.iterdir())
    with jobs.run(console.site, "train", "anna") as job:
        answer = send(client, "/kits", form(console))
        assert (answer.status_code, "Another job of this site is running" in answer.text) == (400, True)
        page = client.get("/kits").text
        assert (f'class="button main" href="/jobs/{job.id}"' in page, 'id="build"' in page) == (True, False)
    assert sorted(console.site.kits.iterdir()) == before


def test_viewer_sees_and_changes_nothing(console: Console, first: str) -> None:
    with console.client("viewer", user="vera") as viewer:
        for path in ("/kits", f"/kits/{first}"):
            page = viewer.get(path)
            assert (page.status_code, 'method="post"' in page.text) == (200, False)
        assert viewer.get(f"/kits/{first}/file").status_code == 403, "a kit describes faces"
        for path in (
            "/kits",
            "/kits-key",
            "/kits-liveness",
            *(f"/kits/{first}/{do}" for do in ("publish", "again", "delete")),
        ):
            assert viewer.submit(path).status_code == 403, path


@pytest.mark.parametrize(
    "path", ["/kits", "/kits-key", "/kits-liveness", "/kits/{}/publish", "/kits/{}/again", "/kits/{}/delete"]
)
def test_change_without_csrf_value_is_refused(client: Client, first: str, path: str) -> None:
    assert client.post(path.format(first)).status_code == 403


@pytest.mark.parametrize("path", ["/kits/none", "/kits/..%2fdoors", "/kits/%2e%2e", "/kits/.x", "/kits/none/file"])
def test_unknown_kits_are_not_found(client: Client, path: str) -> None:
    assert client.get(path).status_code in (404, 405)


def test_publishing_to_no_door_is_a_sentence(client: Client, first: str) -> None:
    answer = client.submit(f"/kits/{first}/publish")
    assert (answer.status_code, "No door was chosen" in answer.text) == (400, True)


def test_damaged_kit_has_a_page_and_can_be_deleted(console: Console, client: Client) -> None:
    (console.site.kits / "broken.kit").write_bytes(b"PK no kit")
    assert "broken.kit cannot be read" in client.get("/kits").text
    assert "broken.kit cannot be read" in client.get("/kits/broken").text
    assert client.submit("/kits/broken/delete").status_code == 303
    assert not (console.site.kits / "broken.kit").exists()


def test_build_publish_and_history_in_a_browser(console: Console, tmp_path: Path) -> None:
    key = tmp_path / "kit-key.pem"
    key.write_bytes(PRIVATE)
    with sync_playwright() as playwright, chromium(playwright) as browser:
        visitor = Visitor(browser, console, viewport=PHONE)
        page = visitor.enter("operator", user=OPERATOR)
        page.goto("/kits")
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        page.get_by_label("Private key").set_input_files(key)
        page.get_by_role("checkbox", name=NORTH).check()
        assert page.get_by_role("checkbox", name="plain").is_disabled()
        page.get_by_role("button", name="Build the kit").click()
        page.get_by_role("heading", name="What this kit contains").wait_for()
        page.wait_for_load_state()  # until then a page may be without its end and its style
        assert page.get_by_text(f"Published to {NORTH} on").is_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        page.get_by_role("checkbox", name="south").check()
        page.get_by_role("button", name="Publish to these doors").click()
        page.get_by_text(f"Published to {NORTH}, south.").wait_for()
        page.on("dialog", lambda dialog: dialog.accept())
        name = page.title().partition(" ")[0]
        page.get_by_role("button", name="Delete").click()
        page.get_by_text(f"The kit {name} is deleted.").wait_for()
        visitor.close()
    assert doors.find(console.site, "south").drop is not None
    assert publishing.at_doors(console.site)["south"].kit == name
