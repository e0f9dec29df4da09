"""The door list of a running terminal on real faces: changed while a person stands there, and visitors with few entries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge.files import write_atomically
from edge.terminal.entry_counts import EntryCounts
from edge.terminal.list_watch import ListWatch
from edge.vision.detect import Face
from edge.vision.recognize import Recognizer
from tests.fakes.scene_camera import SceneCamera
from tests.fakes.sinks import RecordingSink
from tests.fixtures import orl_door
from tests.fixtures.orl_door import GUEST, OTHER, empty_room, frames
from tests.fixtures.terminals import run_to_end

pytestmark = pytest.mark.slow  # trains a kit


class HookedRecognizer(Recognizer):
    """The real recognizer with a hook after a search for faces."""

    def __init__(self, number: int, after: Callable[[], None]) -> None:
        super().__init__(orl_door.recognizer().kit)
        self._number, self._after, self._calls = number, after, 0

    def find(self, image: Any, *, min_face: int | None = None) -> list[Face]:
        self._calls += 1
        if self._calls == self._number:
            self._after()
        return super().find(image, min_face=min_face)


def listing(*people: str, more: str = "") -> bytes:
    return f"[[allow]]\npeople = {list(people)}\n{more}".encode()


def changed(tmp_path: Path, frame: int, after: bytes | None, *, before: bytes = listing(GUEST)) -> RecordingSink:
    """The guest stands there for 12 frames. In one of them, another list replaces the list; None: it is removed."""
    file = tmp_path / "list.toml"
    file.write_bytes(before)
    watch = ListWatch(file)

    def replace() -> None:
        file.unlink() if after is None else write_atomically(file, after)
        watch.check_file()
        watch.check_file()

    camera = SceneCamera(frames(GUEST, 12), empty_room(12))
    events, terminal = run_to_end(
        camera, HookedRecognizer(frame, replace), door_list=watch, admit=watch.admit, news=[watch.next_change]
    )
    assert terminal.counters["failures"] == 0
    return events


def reasons(events: RecordingSink) -> list[str | None]:
    return [event.reason for event in events if event.kind == "decision"]


def test_person_who_is_removed_before_the_decision_is_denied(tmp_path: Path) -> None:
    events = changed(tmp_path, 1, listing(OTHER))
    assert [outcome for outcome, _ in events.of("list")] == ["installed"]
    assert events.decisions == [("denied", GUEST)]
    assert reasons(events) == ["not on the door list"]


def test_person_who_is_added_before_the_decision_is_granted(tmp_path: Path) -> None:
    assert changed(tmp_path, 1, listing(GUEST), before=listing(OTHER)).decisions == [("granted", GUEST)]


def test_visit_that_is_granted_stays_granted(tmp_path: Path) -> None:
    events = changed(tmp_path, 6, listing(OTHER))
    assert events.decisions == [("granted", GUEST)]
    assert [event.kind for event in events] == ["start", "decision", "list", "stop"]


@pytest.mark.parametrize("after", [b"[[allow]]", None])
def test_list_before_decides_if_the_new_one_is_bad_or_gone(tmp_path: Path, after: bytes | None) -> None:
    events = changed(tmp_path, 1, after, before=listing(OTHER))
    assert [outcome for outcome, _ in events.of("list")] == ["rejected"]
    assert events.decisions == [("denied", GUEST)]


# Entries of visitors


def two_visits(file: Path, counts: EntryCounts) -> RecordingSink:
    """The guest comes, and comes back after twelve seconds, which is another visit."""
    watch = ListWatch(file, counts)
    camera = SceneCamera(frames(GUEST, 8), empty_room(120), frames(GUEST, 8), empty_room(12))
    events, _ = run_to_end(camera, door_list=watch, admit=watch.admit)
    return events


def test_visitor_with_one_entry_is_granted_once(tmp_path: Path) -> None:
    file, counts = tmp_path / "list.toml", EntryCounts(tmp_path / "entries.json")
    file.write_bytes(listing(GUEST, more="entries = 1"))
    events = two_visits(file, counts)
    assert reasons(events) == ["recognised", "no entries left"]
    assert reasons(two_visits(file, counts)) == ["no entries left"] * 2, "after a restart"


def test_visitor_whose_entry_cannot_be_counted_is_denied(tmp_path: Path) -> None:
    file = tmp_path / "list.toml"
    file.write_bytes(listing(GUEST, more="entries = 5"))
    events = two_visits(file, EntryCounts(tmp_path / "nowhere" / "entries.json"))
    assert reasons(events) == ["door list failed"] * 2
    assert events.decisions == [("denied", GUEST)] * 2
