"""The page for visitors, without a browser: what it shows for which views and events, and what its server answers."""

from __future__ import annotations

import http.client
import json
import re
import tomllib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import httpx
import numpy as np
import pytest

from edge.audit.gate import AuditGate, AuditSettings
from edge.camera.base import Frame
from edge.errors import SettingsError
from edge.events.event import Event, notice
from edge.events.view import WELCOME_SECONDS, Guidance, Mark, View
from edge.monitor import kiosk_page
from edge.monitor import preview as previews
from edge.monitor.kiosk_page import LANGUAGES, MAX_HELP, OUT_OF_ORDER, Kiosk, KioskSettings, choose
from edge.monitor.preview import KIOSK_WIDTH, Preview
from edge.settings import parse
from edge.terminal.wiring import open_terminal
from tests.fakes.scene_camera import SceneCamera
from tests.fakes.sinks import CallbackSink
from tests.fixtures import orl_door
from tests.fixtures.events import NOON, make_event
from tests.fixtures.orl_door import GUEST, STRANGER, empty_room, frames, together
from tests.fixtures.terminals import run_to_end
from tests.fixtures.waiting import until

MESSAGES = Path(kiosk_page.__file__).with_name("kiosk") / "messages"
BOX = (10.0, 10.0, 110.0, 140.0)


def view(*faces: Guidance | Mark, captured: float = 11.0, image: Any = None) -> View:
    """A view of faces, the nearest first, of the visits 1, 2, ..."""
    marks = [
        face if isinstance(face, Mark) else Mark(box_xyxy=BOX, guidance=face, visit=number)
        for number, face in enumerate(faces, 1)
    ]
    image = np.full((480, 640, 3), 80, np.uint8) if image is None else image
    return View(frame=Frame(image=image, captured=captured, number=1), marks=marks)


def denial(**changes: Any) -> Event:
    return make_event(**{"outcome": "denied", "reason": "unknown person", "label": None} | changes)


# What is shown


def test_empty_room_asks_to_look_here() -> None:
    assert choose(view(), []) == (Guidance.LOOK, None)


def test_nearest_face_counts() -> None:
    assert choose(view(Guidance.CLOSER, Guidance.BACK), []) == (Guidance.CLOSER, None)


@pytest.mark.parametrize("prompt", [Guidance.LEFT, Guidance.RIGHT, Guidance.DOWN])
def test_prompt_comes_before_everything(prompt: Guidance) -> None:
    assert choose(view(Guidance.WAIT, prompt), [make_event(now=11.0, visit=9)]) == (prompt, None)


def test_welcome_waits_for_the_event_of_the_grant() -> None:
    shown = view(Guidance.GRANTED)
    assert choose(shown, []) == (Guidance.WAIT, None)
    assert choose(shown, [make_event(now=10.9)]) == (Guidance.GRANTED, "anna")


def test_welcome_stays_while_the_person_turns_to_the_door_but_not_longer() -> None:
    grant = make_event(now=10.0)
    assert choose(view(captured=10.0 + WELCOME_SECONDS), [grant]) == (Guidance.GRANTED, "anna")
    assert choose(view(captured=10.1 + WELCOME_SECONDS), [grant]) == (Guidance.LOOK, None)
    assert choose(view(Guidance.AGAIN, captured=10.1 + WELCOME_SECONDS), [grant]) == (Guidance.AGAIN, None)


@pytest.mark.parametrize("monotonic", [None, 1e6])
def test_grant_without_a_valid_time_is_no_welcome(monotonic: float | None) -> None:
    assert choose(view(), [replace(make_event(), monotonic=monotonic)]) == (Guidance.LOOK, None)


@pytest.mark.parametrize("guidance", [Guidance.GRANTED, Guidance.AGAIN])
def test_withheld_grant_is_no_access(guidance: Guidance) -> None:
    assert choose(view(guidance), [denial(reason="audit log not written", label="anna")]) == (Guidance.DENIED, None)


def test_denial_is_shown_while_the_person_is_there() -> None:
    assert choose(view(Guidance.DENIED), [denial()]) == (Guidance.DENIED, None)
    assert choose(view(), [denial()]) == (Guidance.LOOK, None), "the next visitor must not see it"


def test_denial_of_another_person_does_not_end_the_welcome_of_the_nearest() -> None:
    decisions = [denial(visit=2), make_event(now=10.9, visit=1)]
    assert choose(view(Guidance.GRANTED, Guidance.DENIED), decisions) == (Guidance.GRANTED, "anna")


# The state that the browser gets


def test_names_are_off_by_default() -> None:
    for names, expected in ((False, None), (True, "anna")):
        kiosk = Kiosk(KioskSettings(names=names))
        kiosk.handle(make_event(now=11.0))
        state = kiosk.state(view(Guidance.GRANTED))
        assert (state["state"], state["name"]) == (Guidance.GRANTED, expected)
        assert names or "anna" not in json.dumps(state)


def test_state_has_no_reason_of_a_denial() -> None:
    kiosk = Kiosk(KioskSettings(names=True))
    kiosk.handle(denial(reason="revoked", label="anna"))
    state = kiosk.state(view(Guidance.DENIED))
    assert (state["state"], state["name"]) == (Guidance.DENIED, None)
    assert "revoked" not in json.dumps(state)


def test_other_events_do_not_displace_decisions() -> None:
    kiosk = Kiosk(KioskSettings())
    kiosk.handle(make_event(now=11.0))
    for _ in range(200):
        kiosk.handle(notice("camera", now=11.0, utc=NOON, outcome="lost"))
    assert kiosk.state(view(Guidance.GRANTED))["state"] == Guidance.GRANTED


def test_each_language_has_all_messages_with_the_same_fields() -> None:
    def fields(text: str) -> list[str]:
        return re.findall(r"{\w*}", text)

    english, *others = (tomllib.loads((MESSAGES / f"{code}.toml").read_text()) for code in LANGUAGES)
    assert {path.stem for path in MESSAGES.iterdir()} == set(LANGUAGES)
    states = {key for key, value in english.items() if isinstance(value, dict)}
    assert states == {*Guidance, OUT_OF_ORDER}
    for other in others:
        assert other.keys() == english.keys()
        for state in states:
            assert other[state].keys() == english[state].keys()
            assert all(fields(other[state][key]) == fields(text) for key, text in english[state].items())


def test_every_state_has_an_icon() -> None:
    page = Kiosk(KioskSettings()).files["/kiosk"][0].decode()
    assert set(re.findall(r'<symbol id="(\w+)"', page)) == {*Guidance, OUT_OF_ORDER}


# Settings


@pytest.mark.parametrize(
    "table", ["language = 'fr'", "help = ''", f"help = '{'a' * (MAX_HELP + 1)}'", 'help = "two\\nlines"', "names = 1"]
)
def test_wrong_settings_are_rejected(table: str) -> None:
    with pytest.raises(SettingsError):
        parse(f"[preview]\naddress = '127.0.0.1:8080'\n[kiosk]\n{table}".encode())


def test_kiosk_needs_the_preview() -> None:
    with pytest.raises(SettingsError, match=r"\[preview\]"):
        parse(b"[kiosk]\nlanguage = 'de'")


# The server


@pytest.fixture
def served() -> Iterator[Preview]:
    with Preview("127.0.0.1:0", Kiosk(KioskSettings())) as preview:
        preview.watch(lambda: {"camera_up": True})
        yield preview


def request(preview: Preview, path: str, method: str = "GET") -> tuple[http.client.HTTPResponse, bytes]:
    host, port = re.findall(r"//(.*):(\d+)/", preview.url)[0]
    with closing(http.client.HTTPConnection(host, int(port), timeout=30)) as connection:
        connection.request(method, path)
        response = connection.getresponse()
        return response, response.read()


def state(preview: Preview) -> str:
    return str(json.loads(request(preview, "/kiosk/state.json")[1])["state"])


@pytest.mark.parametrize("path", ["", "?lang=de", "/app.js", "/style.css", "/messages.json", "/state.json"])
def test_files_are_served_and_cannot_be_changed(served: Preview, path: str) -> None:
    response, body = request(served, f"/kiosk{path}")
    assert response.status == 200
    assert body
    assert "default-src 'self'" in response.headers["Content-Security-Policy"]
    assert request(served, f"/kiosk{path}", "POST")[0].status == 405


def test_nothing_is_served_without_the_settings() -> None:
    with Preview("127.0.0.1:0") as preview:
        preview.show(view())
        for path in ("/kiosk", "/kiosk/app.js", "/kiosk/state.json", "/kiosk/frame.jpg"):
            assert request(preview, path)[0].status == 404


def test_picture_has_no_marks_and_is_not_larger_than_a_display(served: Preview) -> None:
    assert request(served, "/kiosk/frame.jpg")[0].status == 503
    mark = Mark(box_xyxy=(400, 300, 900, 900), text="anna", detail="0.93 of 0.71", state="granted", visit=1)
    served.show(view(mark, image=np.full((1080, 1920, 3), 80, np.uint8)))
    image = cv2.imdecode(np.frombuffer(request(served, "/kiosk/frame.jpg")[1], np.uint8), cv2.IMREAD_COLOR)
    assert image is not None
    assert image.shape == (KIOSK_WIDTH * 9 // 16, KIOSK_WIDTH, 3)
    assert image.min() >= 75
    assert image.max() <= 85


def test_events_reach_the_page(served: Preview) -> None:
    served.show(view(Guidance.GRANTED))
    assert state(served) == Guidance.WAIT
    served.handle(make_event(now=11.0))
    assert state(served) == Guidance.GRANTED


@pytest.mark.parametrize("health", [{"camera_up": False}, {"camera_up": None}, {}])
def test_lost_camera_is_out_of_order(served: Preview, health: dict[str, Any]) -> None:
    served.show(view())
    assert state(served) == Guidance.LOOK
    served.watch(lambda: health)
    assert state(served) == OUT_OF_ORDER


def test_terminal_that_is_starting_is_out_of_order() -> None:
    with Preview("127.0.0.1:0", Kiosk(KioskSettings())) as preview:
        preview.show(view())
        assert state(preview) == OUT_OF_ORDER


def test_view_that_is_not_renewed_is_out_of_order(served: Preview, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(previews, "MAX_AGE_SECONDS", 0.1)
    served.handle(make_event(now=11.0))
    served.show(view(Guidance.GRANTED))
    until(lambda: state(served) == OUT_OF_ORDER)
    assert request(served, "/kiosk/frame.jpg")[0].status == 503


def test_client_that_does_not_read_its_picture_delays_no_view(served: Preview) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (720, 960, 3), np.uint8)
    served.show(view(image=noise))
    host, port = re.findall(r"//(.*):(\d+)/", served.url)[0]
    with closing(http.client.HTTPConnection(host, int(port), timeout=30)) as slow:
        slow.request("GET", "/kiosk/frame.jpg")
        for _ in range(100):
            served.show(view(Guidance.CLOSER, image=noise))
        assert state(served) == Guidance.CLOSER
        assert slow.getresponse().status == 200


# A terminal with a real kit


@pytest.mark.slow
@pytest.mark.parametrize("mirrored", [False, True])
def test_settings_open_the_page(tmp_path: Path, mirrored: bool) -> None:
    (tmp_path / "door.kit").write_bytes(orl_door.kit())
    orl_door.video(tmp_path / "visit.avi", empty_room(3))
    text = f"""
        camera.source = "{tmp_path}/visit.avi"
        liveness.mirrored = {str(mirrored).lower()}
        preview.address = "127.0.0.1:0"
        kiosk.language = "de"
    """
    said: list[str] = []
    with open_terminal(parse(text.encode()), tmp_path / "door.kit", say=said.append):
        (url,) = re.findall(r"visitors at (http://[\d.:]+)/kiosk", "\n".join(said))
        assert httpx.get(f"{url}/kiosk").status_code == 200
        found = httpx.get(f"{url}/kiosk/state.json").json()
    assert (found["language"], found["mirror"]) == ("de", not mirrored)


class Visits:
    """A viewer that keeps the different states of the page, in order."""

    def __init__(self) -> None:
        self.kiosk = Kiosk(KioskSettings(names=True))
        self.shown: list[tuple[str, str | None]] = []
        self.last = view()

    def show(self, view: View) -> None:
        self.last = view
        state = self.kiosk.state(view)
        if not self.shown or self.shown[-1] != (state["state"], state["name"]):
            self.shown.append((state["state"], state["name"]))


def visit(*scenes: Any) -> list[tuple[str, str | None]]:
    visits = Visits()
    run_to_end(SceneCamera(*scenes), viewers=[visits], sinks=[CallbackSink(visits.kiosk.handle)])
    return visits.shown


@pytest.mark.slow
def test_visit_of_an_enrolled_person() -> None:
    stays = frames(GUEST, 8) * 6
    assert visit(empty_room(5), stays, empty_room(12)) == [
        (Guidance.LOOK, None),
        (Guidance.WAIT, None),
        (Guidance.GRANTED, GUEST),
        (Guidance.AGAIN, None),
        (Guidance.LOOK, None),
    ]


@pytest.mark.slow
def test_visit_of_a_stranger() -> None:
    assert visit(empty_room(5), frames(STRANGER, 8) * 8, empty_room(12)) == [
        (Guidance.LOOK, None),
        (Guidance.WAIT, None),
        (Guidance.DENIED, None),
        (Guidance.LOOK, None),
    ]


@pytest.mark.slow
def test_person_who_comes_back_at_once_is_not_welcomed_again() -> None:
    shown = visit(frames(GUEST, 8), empty_room(40), frames(GUEST, 8) * 2)
    assert shown.count((Guidance.GRANTED, GUEST)) == 1
    assert shown[-1] == (Guidance.AGAIN, None)


@pytest.mark.slow
def test_two_people_get_the_welcome_of_one() -> None:
    assert (Guidance.GRANTED, GUEST) in visit(together(GUEST, STRANGER, 8), empty_room(12))


@pytest.mark.slow
@pytest.mark.parametrize(("is_logged", "expected"), [(True, Guidance.GRANTED), (False, Guidance.DENIED)])
def test_only_a_grant_that_is_logged_is_a_welcome(tmp_path: Path, is_logged: bool, expected: Guidance) -> None:
    visits = Visits()
    with closing(AuditGate(AuditSettings(path=tmp_path / "audit.db"), [CallbackSink(visits.kiosk.handle)])) as gate:
        if not is_logged:
            (tmp_path / "audit.db").unlink()
        run_to_end(SceneCamera(frames(GUEST, 8)), viewers=[visits], sinks=[gate])
    assert visits.last.marks[0].guidance is Guidance.GRANTED
    assert visits.kiosk.state(visits.last)["state"] == expected
