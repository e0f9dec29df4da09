"""A running terminal changes its kit between two frames, and keeps a kit that works."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from edge.camera.recording import Recording
from edge.errors import KitError
from edge.events.event import notice
from edge.files import write_atomically
from edge.kit import format as kits
from edge.kit import selftest
from edge.kit.format import Kit, kit_id
from edge.kit.store import RECORD, KitChange, Store
from edge.kit.watch import PROBATION_FRAMES, KitWatch, ProbationRecognizer
from edge.terminal.loop import Terminal
from edge.vision.recognize import Recognizer
from tests.fakes.scene_camera import SceneCamera
from tests.fakes.sinks import RecordingSink, RecordingViewer
from tests.fixtures.events import NOON
from tests.fixtures.kits import digest
from tests.fixtures.noise import with_noise
from tests.fixtures.orl_door import FPS, GUEST, empty_room, frames, kit_with_wrong_results, load_on_probation
from tests.fixtures.orl_door import kit_version as kit
from tests.fixtures.terminals import run_to_end
from tests.fixtures.waiting import until

pytestmark = pytest.mark.slow

INTERVAL = 0.01


def run_terminal(
    store: Store[ProbationRecognizer], *acts: Callable[[KitWatch], Any], scene: Any = None
) -> tuple[RecordingSink, Terminal, list[int]]:
    """Play the scene once before the first act and after each act. Return events, terminal and frame numbers."""
    views = RecordingViewer()
    scene = scene or empty_room(12)
    with KitWatch(store, seconds=INTERVAL) as kit_watch:

        def pictures() -> Iterator[tuple[Any, float]]:
            for i, image in enumerate(scene * (len(acts) + 1)):
                if i and i % len(scene) == 0:
                    acts[i // len(scene) - 1](kit_watch)
                yield with_noise(image, i), i / FPS

        # The recording reads one picture ahead.
        events, terminal = run_to_end(
            Recording("video", pictures()), kit_watch.recognizer, changes=kit_watch.next_change, viewers=[views]
        )
        while (change := kit_watch.next_change()) is not None:
            events.append(notice("kit", now=0.0, utc=NOON, outcome=change.outcome, reason=change.reason))
    return events, terminal, [view.frame.number for view in views]


def until_active(kit_watch: KitWatch, data: bytes) -> None:
    until(lambda: kit_watch.recognizer.kit.sha256 == digest(data), "the kit did not become active")


def drop(store: Store[ProbationRecognizer], data: bytes) -> Callable[[KitWatch], None]:
    """Drop a kit, and wait until it is active."""

    def act(kit_watch: KitWatch) -> None:
        write_atomically(store.dropped, data)
        until_active(kit_watch, data)

    return act


def drop_bad(store: Store[ProbationRecognizer], data: bytes) -> Callable[[KitWatch], None]:
    """Drop a kit, and wait until it is rejected."""

    def act(kit_watch: KitWatch) -> None:
        waiting = len(kit_watch._changes)
        write_atomically(store.dropped, data)
        until(lambda: len(kit_watch._changes) > waiting, "the kit was not rejected")

    return act


def outcomes(events: RecordingSink) -> list[str | None]:
    return [outcome for outcome, _ in events.of("kit")]


def test_kit_changes_between_two_frames_and_no_frame_is_lost(store: Store[ProbationRecognizer]) -> None:
    events, terminal, numbers = run_terminal(store, drop(store, kit(4)), drop(store, kit(5)))
    assert numbers == list(range(1, 37))
    assert terminal.counters["failures"] == 0
    assert terminal.recognizer.kit.sha256 == digest(kit(5))
    assert outcomes(events) == ["installed", "installed"]
    assert [event.kit for event in events if event.kind == "kit"] == [kit_id(digest(kit(n))) for n in (4, 5)]
    assert store.record().starts == 1, "the kit is still on probation"


def test_rejected_kit_does_not_disturb_the_active_one(store: Store[ProbationRecognizer]) -> None:
    def load_or_fail(kit: Kit) -> ProbationRecognizer:
        if kit.manifest.kit_version == 5:
            raise MemoryError
        return load_on_probation(kit)

    store._load = load_or_fail
    bad = [kit(2), kit_with_wrong_results(4), kit(5), b"no kit"]
    events, terminal, numbers = run_terminal(store, *(drop_bad(store, data) for data in bad))
    assert numbers == list(range(1, 12 * 5 + 1))
    assert terminal.recognizer.kit.sha256 == digest(kit(3))
    assert outcomes(events) == ["rejected"] * 4
    assert [(reason or "").split(":")[0] for _, reason in events.of("kit")] == [kit_id(digest(data)) for data in bad]


def test_failure_just_after_a_wait_is_noticed(store: Store[ProbationRecognizer]) -> None:
    class EventAfterWait(threading.Event):
        """Calls a function just after a wait ended without being set."""

        calls: list[Callable[[], None]]

        def wait(self, timeout: float | None = None) -> bool:
            woken = super().wait(timeout)
            if not woken and self.calls:
                self.calls.pop()()
            return woken

    kit_watch = KitWatch(store, seconds=INTERVAL)
    wake = kit_watch._wake = EventAfterWait()
    wake.calls = []
    with kit_watch:
        drop(store, kit(4))(kit_watch)
        wake.calls = [lambda: kit_watch.recognizer._count_frame("injected")]
        until_active(kit_watch, kit(3))


def test_kit_whose_first_frames_fail_is_rolled_back(store: Store[ProbationRecognizer]) -> None:
    class Faulty(ProbationRecognizer):
        def crop(self, grey: Any, face: Any) -> Any:
            if self.kit.manifest.kit_version == 4:
                raise RuntimeError("injected")
            return super().crop(grey, face)

    store._load = lambda kit: selftest.check_with_detector(Faulty(kit))
    scene = frames(GUEST, 8)
    events, terminal, numbers = run_terminal(
        store, drop(store, kit(4)), lambda kit_watch: until_active(kit_watch, kit(3)), lambda _: None, scene=scene
    )
    assert outcomes(events) == ["installed", "rolled back"]
    assert terminal.recognizer.kit.sha256 == digest(kit(3))
    assert store.record().rolled_back == {digest(kit(4)): "one of its first frames failed (RuntimeError)"}
    assert 0 < terminal.counters["failures"] <= len(scene) + 1
    assert len(numbers) + terminal.counters["failures"] == terminal.counters["frames"] == 4 * len(scene)
    assert events.decisions == [("granted", GUEST)], "one decision: the guest was there all the time"


def test_kit_passes_its_probation_after_its_first_frames(store: Store[ProbationRecognizer]) -> None:
    with KitWatch(store, seconds=INTERVAL) as kit_watch:
        drop(store, kit(4))(kit_watch)
        for _ in range(PROBATION_FRAMES):
            assert store.record().starts == 1
            kit_watch.recognizer._count_frame("")
        until(lambda: store.record().starts == 0, "the kit was not confirmed")
        kit_watch.recognizer._count_frame("injected")
        drop(store, kit(5))(kit_watch)
    assert (store.record().previous, store.record().rolled_back) == (digest(kit(4)), {})


def test_failing_kit_is_replaced_even_if_the_disk_is_full(
    store: Store[ProbationRecognizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise KitError("The kit store cannot be written.")

    with KitWatch(store, seconds=INTERVAL) as kit_watch:
        drop(store, kit(4))(kit_watch)
        monkeypatch.setattr(store, "_save", full)
        kit_watch.recognizer._count_frame("injected")
        until_active(kit_watch, kit(3))


def test_kit_that_fails_after_a_restart_is_rolled_back_from_the_store(store: Store[ProbationRecognizer]) -> None:
    store.activate(kit(4))
    store.dropped.write_bytes(kit(4))
    with KitWatch(store, seconds=INTERVAL) as kit_watch:
        assert kit_watch.recognizer.kit.sha256 == digest(kit(4))
        kit_watch.recognizer._count_frame("injected")
        until_active(kit_watch, kit(3))
    assert store.record().rolled_back == {digest(kit(4)): "injected"}


def test_kit_not_on_probation_is_not_rolled_back(store: Store[ProbationRecognizer]) -> None:
    with KitWatch(store, seconds=INTERVAL) as kit_watch:
        kit_watch.recognizer._count_frame("injected")
        drop(store, kit(4))(kit_watch)
    assert store.record().previous == digest(kit(3))
    assert store.record().rolled_back == {}


def test_refused_kit_is_known_until_another_one_is_installed(store: Store[ProbationRecognizer]) -> None:
    refused: list[str] = []

    def note(kit_watch: KitWatch) -> None:
        refused.append("" if kit_watch.refused is None else kit_watch.refused.outcome)

    run_terminal(store, note, drop_bad(store, kit_with_wrong_results(4)), note, drop(store, kit(5)), note)
    assert refused == ["", "rejected", ""]


def test_damaged_record_rejects_new_kits_and_stops_nothing(store: Store[ProbationRecognizer]) -> None:
    events, terminal, numbers = run_terminal(store, lambda _: (store.folder / RECORD).write_text("{"), drop_bad(store, kit(4)))
    ((outcome, reason),) = events.of("kit")
    assert (outcome, RECORD in (reason or "")) == ("rejected", True)
    assert terminal.recognizer.kit.sha256 == digest(kit(3))
    assert numbers == list(range(1, 37))


def test_rollback_by_another_process_reaches_the_running_terminal(store: Store[ProbationRecognizer]) -> None:
    def roll_back(kit_watch: KitWatch) -> None:
        store.roll_back(None, "by hand")
        until_active(kit_watch, kit(3))

    events, terminal, _ = run_terminal(store, drop(store, kit(4)), roll_back, drop(store, kit(5)))
    assert outcomes(events) == ["installed", "rolled back", "installed"]
    assert terminal.recognizer.kit.sha256 == digest(kit(5))


def test_copy_that_pauses_is_installed_when_complete(store: Store[ProbationRecognizer]) -> None:
    def copy(kit_watch: KitWatch) -> None:
        drop_bad(store, kit(4)[:300_000])(kit_watch)
        with open(store.dropped, "ab") as file:
            file.write(kit(4)[300_000:])
        until_active(kit_watch, kit(4))

    events, _, numbers = run_terminal(store, copy)
    assert outcomes(events) == ["rejected", "installed"]
    assert numbers == list(range(1, 25))


def load_version(version: int) -> Recognizer:
    return Recognizer(kits.parse(kit(version)))


def test_no_decision_uses_scores_of_two_kits() -> None:
    """A grant needs three frames, and the kit changes after every two: no visit is granted."""
    changes = iter(
        [KitChange(outcome="installed", reason="", recognizer=load_version(n)) if n and n % 2 == 0 else None for n in range(8)]
    )
    events, _ = run_to_end(SceneCamera(frames(GUEST, 8)), changes=partial(next, changes, None))
    assert ("granted", GUEST) not in events.decisions


def test_granted_person_gets_no_second_grant_from_the_new_kit() -> None:
    changes = iter([None] * 8 + [KitChange(outcome="installed", reason="", recognizer=load_version(1))])
    events, _ = run_to_end(SceneCamera(frames(GUEST, 8), frames(GUEST, 8)), changes=partial(next, changes, None))
    assert events.decisions == [("granted", GUEST)]
    assert [event.visit for event in events if event.kind == "decision"] == [1]


def test_failing_kit_watch_costs_no_frame() -> None:
    def fail() -> KitChange | None:
        raise RuntimeError("injected")

    events, terminal = run_to_end(SceneCamera(frames(GUEST, 8)), changes=fail)
    assert events.decisions == [("granted", GUEST)]
    assert terminal.counters["frames"] == 8
