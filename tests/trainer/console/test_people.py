"""The pages of people, over HTTP: uploads, changes, roles, and photos that are not what they say."""

from __future__ import annotations

import asyncio
import io
import json
import zipfile
from collections.abc import Iterable, Iterator
from itertools import cycle, islice, repeat
from pathlib import Path

import cv2
import httpx
import numpy as np
import pytest

from edge.enrol.session import MIN_PHOTOS, CaptureSession
from edge.errors import UsageError
from tests.fixtures.console import Client, Console, wait_for_job
from tests.fixtures.enrolment import copies, frames
from tests.fixtures.site import blank_photo, orl_file, site_of_orl, two_faces
from tests.fixtures.waiting import until
from trainer.console import capture
from trainer.console.app import make_app
from trainer.console.sessions import SessionStore
from trainer.console.text import language
from trainer.site import people, trail
from trainer.site.folder import Site
from trainer.site.photos import decoded

pytestmark = pytest.mark.slow
JSON = {"Accept": "application/json"}
OPERATOR = "otto"


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    folder = tmp_path_factory.mktemp("people") / "site"
    site_of_orl(folder, {"s1": range(1, 4), "s2": range(1, 4), "s3": range(1, 4)})
    with Console(folder) as running:
        yield running


@pytest.fixture(scope="module")
def client(console: Console) -> Iterator[Client]:
    with console.client("operator", user=OPERATOR) as found:
        yield found


def send(client: Client, name: str, data: bytes) -> tuple[int, dict[str, str]]:
    answer = client.submit(f"/people/{name}/photos", files={"photos": ("x.jpg", data)}, headers=JSON)
    return answer.status_code, answer.json()


def test_grid_shows_people_and_finds_them(client: Client) -> None:
    page = client.get("/people").text
    assert [f'href="/people/s{number}"' in page for number in (1, 2, 3)] == [True] * 3
    found = client.get("/people?q=S2").text
    assert ('href="/people/s2"' in found, 'href="/people/s1"' in found) == (True, False)
    assert client.get("/people?q=nobody").status_code == 200
    assert client.get("/people?page=x&only=problems").status_code == 200
    assert client.get("/people?only=other").status_code == 404


def test_photo_gives_its_card_at_once(client: Client, console: Console) -> None:
    status, good = send(client, "Anna", orl_file(4, 1))
    assert (status, good["state"]) == (200, "good")
    assert good["file"] in good["html"]
    assert send(client, "Anna", blank_photo())[1]["state"] == "problem"
    status, both = send(client, "Anna", two_faces(5, 6))
    assert both["html"].count('name="face"') == 2
    face = client.get(f"/people/Anna/photos/{both['file']}/photo.jpg?face=1")
    assert cv2.imdecode(np.frombuffer(face.content, np.uint8), cv2.IMREAD_COLOR) is not None
    assert client.get(f"/people/Anna/photos/{both['file']}/photo.jpg?face=2").status_code == 404
    answer = client.submit(f"/people/Anna/photos/{both['file']}/face", {"face": "1"})
    assert answer.status_code == 303
    assert 'name="face"' not in client.get("/people/Anna").text
    with console.site.database() as database:
        assert OPERATOR in {change.who for change in trail.changes(database, search="Anna")}


def test_looks_like_shows_both_pictures(client: Client) -> None:
    client.get("/people/s1/photos/1.pgm/crop.jpg")
    answer = send(client, "Berta", orl_file(1, 7))[1]
    if 'class="alike"' not in answer["html"]:
        pytest.skip("needs the network SFace, which the first use downloads from PyPI")
    assert 'href="/people/s1"' in answer["html"]
    assert "/people/s1/photos/1.pgm/crop.jpg" in answer["html"]


@pytest.mark.parametrize("data", [b"", b"x" * 1000, b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"GIF89a" + bytes(100)])
def test_other_files_are_refused(data: bytes, client: Client, console: Console) -> None:
    status, answer = send(client, "Carl", data)
    assert (status, bool(answer["problem"])) == (400, True)
    assert not (console.site.photos / "Carl").exists()


def test_picture_that_claims_to_be_huge_is_refused(client: Client) -> None:
    bomb = bytearray(cv2.imencode(".png", np.zeros((8, 8), np.uint8))[1].tobytes())
    bomb[16:24] = (60_000).to_bytes(4, "big") * 2
    assert send(client, "Carl", bytes(bomb))[0] == 400


def test_too_large_request_is_refused(client: Client) -> None:
    assert send(client, "Carl", bytes(33 << 20))[0] == 413


@pytest.mark.parametrize(
    "path", ["/people/..%2f..%2fetc", "/people/%2e%2e", "/people/.x", "/people/s1/photos/..%2f1.pgm/crop.jpg"]
)
def test_paths_outside_are_refused(path: str, client: Client) -> None:
    assert client.get(path).status_code in (303, 400, 404)


def test_viewer_sees_and_changes_nothing(console: Console) -> None:
    with console.client("viewer", user="vera") as viewer:
        page = viewer.get("/people/s1")
        assert (page.status_code, "<form" in page.text) == (200, False)
        assert viewer.get("/people/s1/photos/1.pgm/crop.jpg").headers["content-type"] == "image/jpeg"
        for path in ("photos", "rename", "merge", "consent", "delete", "export", "capture/begin"):
            assert viewer.submit(f"/people/s1/{path}").status_code == 403, path
        assert viewer.get("/people/s1/capture").status_code == 403


def test_change_without_csrf_value_is_refused(client: Client) -> None:
    assert client.post("/people/s1/consent", data={"date": "2026-01-01"}).status_code == 403


def test_consent_rename_merge_move_and_delete_photo(client: Client, console: Console) -> None:
    send(client, "Dora", orl_file(7, 1))
    send(client, "Emil", orl_file(8, 1))
    client.submit("/people/Dora/consent", {"date": "2026-05-01", "note": "<b>by letter</b>"})
    page = client.get("/people/Dora").text
    assert 'value="2026-05-01"' in page
    assert "&lt;b&gt;by letter&lt;/b&gt;" in page
    answer = client.submit("/people/Dora/rename", {"new": "Dörte Öz"})
    assert answer.headers["location"] == "/people/D%C3%B6rte%20%C3%96z"
    assert client.submit("/people/Emil/rename", {"new": "s1"}).status_code == 400
    client.submit("/people/Emil/merge", {"into": "Dörte Öz"})
    with console.site.database() as database:
        found = people.get(database, "Dörte Öz")
        assert found is not None
        assert (found.photos, found.consent_date) == (2, "2026-05-01")
    first, second = sorted(path.name for path in (console.site.photos / "Dörte Öz").iterdir())
    client.submit(f"/people/Dörte Öz/photos/{first}/move", {"to": "Fritz"})
    client.submit(f"/people/Dörte Öz/photos/{second}/delete")
    assert not (console.site.photos / "Dörte Öz").exists()
    assert (console.site.photos / "Fritz" / first).is_file()


def test_export_is_a_zip_of_the_person(client: Client) -> None:
    answer = client.submit("/people/s2/export")
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert {"photos/1.pgm", "person.json", "visits.json", "changes.json"} <= set(archive.namelist())
        assert json.loads(archive.read("person.json"))["name"] == "s2"


def test_zip_is_imported_by_a_job(client: Client, console: Console) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for person in (21, 22):
            archive.writestr(f"x/z{person}/1.pgm", orl_file(person, 1))
    answer = client.submit("/people-import", files={"zip": ("people.zip", file.getvalue())}, headers=JSON)
    number = int(answer.json()["go"].rpartition("/")[2])
    assert wait_for_job(console, number)["state"] == "done"
    assert (console.site.photos / "z21" / "1.pgm").read_bytes() == orl_file(21, 1)
    assert not list(console.site.path.glob(".upload*"))


def test_deleted_person_is_gone(client: Client, console: Console) -> None:
    send(client, "Gustav Adolf", orl_file(9, 1))
    answer = client.submit("/people/Gustav Adolf/delete", headers=JSON)
    job = wait_for_job(console, int(answer.json()["go"].rpartition("/")[2]))
    assert job["state"] == "done", job
    assert "Gustav" not in json.dumps(job)
    assert "Gustav" not in client.get("/people").text
    for path in console.site.path.rglob("*"):
        assert not path.is_file() or b"Gustav" not in path.read_bytes(), path


# The camera


def test_capture_session_asks_and_takes_photos(client: Client, console: Console) -> None:
    """Frames of a person who does not follow are judged, and the answer says what to do."""
    begun = client.submit("/people/Hans/capture/begin", headers=JSON).json()
    assert (begun["taken"], begun["wanted"], bool(begun["request"])) == (0, 8, True)

    def frame(image: object, token: str = begun["token"]) -> tuple[int, dict[str, object]]:
        data = cv2.imencode(".jpg", image)[1].tobytes()  # type: ignore[call-overload]
        answer = client.submit("/people/Hans/capture/frame", {"token": token}, files={"frame": ("f.jpg", data)}, headers=JSON)
        return answer.status_code, answer.json()

    shown = cycle(image for other in frames(12) for image in (other, copies(12, 1)[0]))

    def taken() -> int:
        status, answer = frame(next(shown))
        assert status == 200, answer
        return int(str(answer["taken"]))

    assert until(taken) == 1
    assert frame(frames(12)[0], "another token")[0] == 400
    assert not (console.site.photos / "Hans").exists(), "photos are written at the end"


class Camera:
    """A browser that sends frames to an application in this process. Its clock goes on by five seconds with each frame."""

    def __init__(self, site: Site, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.path = 0.0, f"http://127.0.0.1/people/{name}/capture"
        monkeypatch.setattr(capture, "SESSIONS", capture.Sessions(lambda: self.now))
        store = SessionStore(site)
        self.cookie = store.begin("otto", "operator")
        session = store.find(self.cookie)
        assert session is not None
        self.headers = JSON | {"X-CSRF": session.csrf, "Cookie": f"{store.cookie}={self.cookie}"}
        self.transport = httpx.ASGITransport(make_app(site, store))

    def take(self, images: Iterable[object]) -> tuple[int, dict[str, object]]:
        """Send frames until there is an answer that is not the next request."""

        async def send() -> tuple[int, dict[str, object]]:
            async with httpx.AsyncClient(transport=self.transport, headers=self.headers) as client:
                token = (await client.post(f"{self.path}/begin")).json()["token"]
                for image in images:
                    self.now += 5
                    data = cv2.imencode(".jpg", image)[1].tobytes()  # type: ignore[call-overload]
                    answer = await client.post(f"{self.path}/frame", data={"token": token}, files={"frame": ("f.jpg", data)})
                    if "request" not in answer.json():
                        return answer.status_code, answer.json()
            raise AssertionError("the session did not end")

        return asyncio.run(send())


def test_capture_session_ends_with_photos_of_the_person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site.create(tmp_path / "site")
    status, answer = Camera(site, "Klara", monkeypatch).take(islice(cycle(frames(12)), 40))
    files = sorted((site.photos / "Klara").iterdir())
    assert (status, answer["go"], answer["notice"]) == (200, "/people/Klara", f"Photos added: {len(files)}.")
    assert len(files) >= MIN_PHOTOS
    with site.database() as database:
        person = people.get(database, "Klara")
        assert person is not None
        assert (person.photos, person.problems) == (len(files), 0)
        assert [(change.who, change.subject) for change in trail.changes(database)] == [("otto", "Klara")]


def test_capture_session_without_a_face_says_why_and_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site.create(tmp_path / "site")
    status, answer = Camera(site, "Klara", monkeypatch).take(repeat(decoded(blank_photo()), 40))
    assert (status, str(answer["hint"])) == (400, language("en")("people.advice_no_face"))
    assert list(site.photos.iterdir()) == []


def test_capture_sessions_are_few_and_short() -> None:
    now = 0.0
    sessions = capture.Sessions(lambda: now)
    new = [CaptureSession(detector=None, name="a") for _ in range(capture.MAX_SESSIONS + 1)]  # type: ignore[arg-type]
    tokens = [sessions.begin(one, f"owner {i}", allow_alike=False) for i, one in enumerate(new[:-1])]
    with pytest.raises(UsageError):
        sessions.begin(new[-1], "one more", allow_alike=False)
    with pytest.raises(UsageError):
        sessions.get(tokens[0], "owner 1", "a")
    with pytest.raises(UsageError):
        sessions.get(tokens[0], "owner 0", "b")
    assert sessions.get(tokens[0], "owner 0", "a").session is new[0]
    now = capture.IDLE_SECONDS + 1
    sessions.begin(new[-1], "one more", allow_alike=False)
    with pytest.raises(UsageError):
        sessions.get(tokens[1], "owner 1", "a")


def test_every_page_of_people_in_german(console: Console, tmp_path: Path) -> None:
    with console.client("operator") as client:
        client.headers["Accept-Language"] = "de"
        assert "Person hinzufügen" in client.get("/people").text
        assert "Einwilligung" in client.get("/people/s1").text
        assert "Kamera" in client.get("/people/s1/capture").text
        refused = client.submit("/people/s1/rename", {"new": "s2"}, headers={"Accept": "application/json"})
        assert refused.json()["problem"] == "Es gibt schon eine Person mit dem Namen s2."
        assert refused.json()["hint"] == "Wählen Sie einen anderen Namen, oder führen Sie die beiden zusammen."
