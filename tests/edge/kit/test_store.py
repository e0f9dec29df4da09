"""A kit takes another's place only if it is newer, ours and works; and whatever happens, the door has one that does."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge import paths
from edge.camera.recording import Recording
from edge.errors import (
    EdgeError,
    KitDamagedError,
    KitError,
    KitForeignError,
    KitOlderError,
    KitSignatureError,
    KitUnsignedError,
    SelfTestError,
)
from edge.events.event import ForPeople, notice
from edge.kit import format as kits
from edge.kit import selftest
from edge.kit.format import Kit
from edge.kit.manifest import Thresholds
from edge.kit.store import MAX_STARTS, RECORD, Record, Store
from edge.kit.watch import FIRST_FRAMES, Change, KitWatch, OnTrial
from edge.terminal.loop import Terminal
from edge.vision.recognize import Recognizer
from export.pack import sign
from tests.edge.events.test_event import NOON
from tests.edge.kit.test_format import keys
from tests.edge.terminal.test_loop import Events, until, watch
from tests.fakes.mjpeg_server import MjpegServer
from tests.fakes.stage import Stage
from tests.fixtures import kits as doors
from tests.fixtures import orl_door
from tests.fixtures.command import command, environment, started
from tests.fixtures.data import ROOT
from tests.fixtures.orl_door import FPS, GUEST, frames, nobody, sending

QUICK = 0.01


@cache
def kit(version: int = 1, series: str = "", key: str = "", of: Callable[[], bytes] = orl_door.kit, **changes: str) -> bytes:
    """The ORL kit with another version or series, signed with the key of that name; `changes` are of the manifest, as JSON."""
    parts = kits.unpack(of())
    contents = json.loads(parts[kits.MANIFEST]) | {"kit_version": version, "series": series}
    contents |= {name: json.loads(text) for name, text in changes.items()}
    parts[kits.MANIFEST] = (json.dumps(contents, sort_keys=True, ensure_ascii=False, indent=1) + "\n").encode()
    if key:
        parts[kits.SIGNATURE] = sign(parts[kits.MANIFEST], keys(key)[0])
    return kits.pack(parts)


def digest(data: bytes) -> str:
    return kits.parse(data).sha256


def failing_selftest(version: int) -> bytes:
    answers = json.loads(kits.unpack(orl_door.kit())[kits.MANIFEST])["selftest"]
    answers["scores"][0][0] += 0.01
    return kit(version, selftest=json.dumps(answers))


def load(kit: Kit) -> OnTrial:
    return selftest.ready(OnTrial(kit))


@pytest.fixture
def store(tmp_path: Path) -> Store[OnTrial]:
    """With version 3 in force."""
    made = Store(tmp_path / "kits", tmp_path / "door.kit", load)
    made.dropped.write_bytes(kit(3))
    made.begin()
    return made


# The self-test


def test_the_crops_are_the_same_everywhere() -> None:
    crops = selftest.crops((80, 64))
    assert crops[:, 40, 32].tolist() == [139, 226, 221, 131], "a change makes all kits of the past fail"
    assert int(crops.astype(int).sum()) == 2681673


@pytest.mark.parametrize("coding", ["l1", "l21"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_a_kit_passes_its_own_test_and_its_answers_say_something(coding: str, precision: Any) -> None:
    opened = kits.parse(doors.kit(coding, precision))
    selftest.check(Recognizer(opened))
    assert np.abs(opened.manifest.selftest["scores"]).max(axis=1).min() > 0.1


def test_other_weights_and_missing_answers_fail_it() -> None:
    right, other = kits.unpack(doors.kit()), kits.unpack(doors.kit("l1"))
    answers = json.loads(other[kits.MANIFEST])["selftest"]
    wrong: dict[str, Any]
    for wrong in (answers, {}, {"scores": []}, answers | {"scores": "x"}, answers | {"confidence": [None] * 4}):
        contents = json.loads(right[kits.MANIFEST]) | {"selftest": wrong}
        manifest = (json.dumps(contents, sort_keys=True, ensure_ascii=False, indent=1) + "\n").encode()
        with pytest.raises(SelfTestError):
            selftest.check(Recognizer(kits.parse(kits.pack(right | {kits.MANIFEST: manifest}))))


# Who may take the place


def test_a_newer_kit_is_put_in_force_on_trial(store: Store[OnTrial]) -> None:
    store.install(kit(4))
    assert store.record() == Record(current=digest(kit(4)), previous=digest(kit(3)), version=4, series="", starts=1)
    assert {file.name for file in store.folder.iterdir()} == {f"{digest(kit(n))}.kit" for n in (3, 4)} | {RECORD}
    assert {file.stat().st_mode & 0o777 for file in store.folder.iterdir()} == {0o600}
    store.prove(digest(kit(4)))
    assert store.record().starts == 0


REFUSED = {
    "older": (lambda: kit(2), KitOlderError),
    "as old": (lambda: kit(3, calibration='{"another": 1}'), KitOlderError),
    "of another series": (lambda: kit(4, "the other house"), KitForeignError),
    "failing its self-test": (lambda: failing_selftest(4), SelfTestError),
    "tampered with": (lambda: kit(4)[:5000] + bytes([kit(4)[5000] ^ 1]) + kit(4)[5001:], KitDamagedError),
    "without faces to find": (lambda: kit(4, of=doors.kit), KitError),
    "no kit": (lambda: b"no kit", KitError),
    "nothing": (lambda: b"", KitError),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_kit_that_must_not_is_refused_and_nothing_changes(store: Store[OnTrial], what: str) -> None:
    make, error = REFUSED[what]
    before = store.record()
    for attempt in (store.install, store.drop):
        with pytest.raises(error):
            attempt(make())
    assert store.record() == before
    assert store.dropped.read_bytes() == kit(3)
    store.dropped.write_bytes(make())
    ready, told = store.begin()
    assert ready.kit.sha256 == digest(kit(3)), "a terminal that starts now has the one that was in force"
    assert [outcome for outcome, _ in told] == ["refused"]


def test_only_kits_of_the_right_key_where_one_is_required(tmp_path: Path) -> None:
    store = Store(tmp_path / "kits", tmp_path / "door.kit", load, public_key=keys()[1])
    store.install(kit(1, key="ours"))
    for data, error in ((kit(2, key="theirs"), KitSignatureError), (kit(2), KitUnsignedError)):
        with pytest.raises(error):
            store.install(data)
    assert store.install(kit(2, key="ours")).kit.signature == "valid"


def test_the_settings_may_name_the_series(tmp_path: Path) -> None:
    store = Store(tmp_path / "kits", tmp_path / "door.kit", load, series="north")
    with pytest.raises(KitForeignError, match="no name"):
        store.install(kit())
    store.install(kit(series="north"))
    Store(tmp_path / "kits", tmp_path / "door.kit", load, series="south").install(kit(2, "south"))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Store[OnTrial]:
    """With version 3 in force, for tests that change nothing."""
    folder = tmp_path_factory.mktemp("store")
    store = Store(folder / "kits", folder / "door.kit", load)
    store.install(kit(3))
    return store


@settings(max_examples=60)
@given(at=st.integers(0, 645_000), new=st.binary(min_size=1, max_size=40), cut=st.booleans())
def test_whatever_is_dropped_gives_a_named_error_or_is_the_kit(shared: Store[OnTrial], at: int, new: bytes, cut: bool) -> None:
    data = kit(9)[:at] + new + (b"" if cut else kit(9)[at + len(new) :])
    before = shared.record()
    try:
        shared.judge(data)
    except EdgeError:
        assert shared.record() == before
    else:
        assert data == kit(9)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numbers of a forger's overflow
@settings(max_examples=80)
@given(part=st.sampled_from([kits.RECOGNIZER, kits.DETECTOR]), where=st.floats(0, 1), new=st.binary(min_size=1, max_size=4))
def test_whatever_a_forger_changes_gives_a_named_error_or_works(
    shared: Store[OnTrial], part: str, where: float, new: bytes
) -> None:
    """One who writes the right hash beside it, where no signature is required."""
    parts = kits.unpack(kit(9))
    at = int(where * len(parts[part]))
    parts[part] = parts[part][:at] + new + parts[part][at + len(new) :]
    hashes = json.loads(parts[kits.MANIFEST])["parts"] | {part: hashlib.sha256(parts[part]).hexdigest()}
    with suppress(EdgeError):
        selftest.check(shared.judge(kit.__wrapped__(9, of=lambda: kits.pack(parts), parts=json.dumps(hashes))))


# Going back


def test_a_kit_that_was_rolled_back_does_not_come_back(store: Store[OnTrial]) -> None:
    store.install(kit(4))
    store.roll_back(None, "by hand")
    assert store.record().current == digest(kit(3))
    with pytest.raises(KitOlderError, match="this very one was rolled back: by hand"):
        store.install(kit(4))
    with pytest.raises(KitOlderError):
        store.install(kit(4, calibration='{"another": 1}'))
    with pytest.raises(KitError, match="no kit to go back to"):
        store.roll_back(None, "by hand")
    store.install(kit(5))


def test_a_second_new_kit_does_not_make_the_unproved_one_the_refuge(store: Store[OnTrial]) -> None:
    store.install(kit(4))
    store.install(kit(5))
    assert store.record().previous == digest(kit(3))


def test_a_kit_that_never_proves_itself_is_given_up(store: Store[OnTrial]) -> None:
    """As one that takes the whole process with it."""
    store.dropped.write_bytes(kit(4))
    for _ in range(MAX_STARTS):
        assert store.begin()[0].kit.sha256 == digest(kit(4))
    ready, told = store.begin()
    assert ready.kit.sha256 == digest(kit(3))
    assert [outcome for outcome, _ in told] == ["rolled back"]
    ready, told = store.begin()
    assert (ready.kit.sha256, told) == (digest(kit(3)), []), "told once, though the file is still there"


def test_a_damaged_store_is_survived_as_far_as_can_be(store: Store[OnTrial]) -> None:
    store.install(kit(4))
    store.dropped.unlink()
    (store.folder / f"{digest(kit(4))}.kit").write_bytes(kit(4)[:-1])
    ready, told = store.begin()
    assert ready.kit.sha256 == digest(kit(3))
    assert [outcome for outcome, _ in told] == ["refused", "rolled back"]
    (store.folder / f"{digest(kit(3))}.kit").write_bytes(kit(2))
    with pytest.raises(KitError, match="changed"):
        store.begin()
    for nonsense in (b"", b"[]", b"{", b'{"version": "1"}', b'{"more": 1}', b'{"rolled_back": []}', b"[" * 100_000):
        (store.folder / RECORD).write_bytes(nonsense)
        with pytest.raises(KitError, match="record"):
            store.begin()


def test_one_that_brings_any_error_at_all_does_not_keep_the_terminal_from_starting(store: Store[OnTrial]) -> None:
    ready = store._load

    def load(kit: Kit) -> OnTrial:
        if kit.manifest.kit_version == 4:
            raise MemoryError
        return ready(kit)

    store._load = load
    store.dropped.write_bytes(kit(4))
    recognizer, told = store.begin()
    assert recognizer.kit.sha256 == digest(kit(3))
    assert told == [("refused", f"{digest(kit(4))[:12]}: it cannot be used (MemoryError)")]


def test_a_pipe_or_folder_in_the_place_of_a_kit_keeps_nobody_waiting(store: Store[OnTrial]) -> None:
    for make in (os.mkfifo, os.mkdir):
        store.dropped.unlink()
        make(store.dropped)
        assert [outcome for outcome, _ in store.begin()[1]] == ["refused"]
    assert store.status()["dropped"] is None


KILLED = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from edge.kit.store import Store

folder, number = Path(sys.argv[1]), 0
store = Store(folder / "kits", folder / "door.kit", lambda kit: SimpleNamespace(kit=kit))
new = (folder / "new.kit").read_bytes()

def dying(call, at):
    def wrapper(*arguments, **options):
        global number
        number += 1
        if number == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **options)
    return wrapper

at = 0
while True:
    at += 1
    if not (child := os.fork()):
        for name in ("replace", "fsync", "fchmod", "unlink", "stat", "close"):
            setattr(os, name, dying(getattr(os, name), at))
        store.drop(new)
        store.install(new)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    print(store.record().current, (folder / "door.kit").read_bytes() == new, flush=True)
    store.stored(store.record().current)
    if status == 0:
        break
"""


def test_a_kill_at_any_moment_leaves_the_old_one_or_the_new(store: Store[OnTrial], tmp_path: Path) -> None:
    (tmp_path / "new.kit").write_bytes(kit(4))
    run = subprocess.run([sys.executable, "-c", KILLED, tmp_path], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    states = [line.split() for line in run.stdout.splitlines()]
    assert {state for state, _ in states} == {digest(kit(3)), digest(kit(4))}
    assert len(states) > 8
    assert store.begin()[0].kit.sha256 == digest(kit(4))
    assert not list(store.folder.glob(".*.part"))


def test_many_at_once_leave_the_newest(store: Store[OnTrial]) -> None:
    refused: list[EdgeError] = []

    def install(version: int) -> None:
        try:
            store.install(kit(version))
        except KitOlderError as error:
            refused.append(error)

    threads = [threading.Thread(target=install, args=(version,)) for version in (4, 7, 5, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.record().current == digest(kit(7))
    assert store.stored(store.record().previous).kit.manifest.kit_version == 3, "the one that had proved itself"


# While the terminal runs


def running(
    store: Store[OnTrial], *acts: Callable[[KitWatch], Any], length: int = 12, scene: Any = None
) -> tuple[Events, Terminal, list[int]]:
    """A recording during which things happen, one after each `length` frames; what is told, and the frames looked at."""
    numbers: list[int] = []
    scene = scene or nobody(length)
    with KitWatch(store, seconds=QUICK) as kits_watched:

        def pictures() -> Iterator[tuple[Any, float]]:
            for i, image in enumerate(scene * (len(acts) + 1)):
                if i and i % len(scene) == 0:
                    acts[i // len(scene) - 1](kits_watched)
                yield image, i / FPS

        # The recording reads one picture ahead.
        events, terminal = watch(
            Recording("video", pictures()),
            kits_watched.recognizer,
            changes=kits_watched,
            viewers=[lambda view: numbers.append(view.frame.number)],
        )
        while (change := kits_watched()) is not None:
            events.append(notice("kit", now=0.0, utc=NOON, outcome=change.outcome, reason=change.reason))
    return events, terminal, numbers


def drop(store: Store[OnTrial], data: bytes) -> Callable[[KitWatch], None]:
    """Put it in place, and wait until it runs."""

    def act(watched: KitWatch) -> None:
        store.dropped.write_bytes(data)
        until(lambda: watched.recognizer.kit.sha256 == digest(data), "it was not taken up")

    return act


def spoil(store: Store[OnTrial], data: bytes) -> Callable[[KitWatch], None]:
    """Put it in place, and wait until it was refused."""

    def act(watched: KitWatch) -> None:
        waiting = watched._changes.qsize()
        store.dropped.write_bytes(data)
        until(lambda: watched._changes.qsize() > waiting, "it was not refused")

    return act


def test_a_kit_is_swapped_between_two_frames_and_none_is_dropped(store: Store[OnTrial]) -> None:
    events, terminal, numbers = running(store, drop(store, kit(4)), drop(store, kit(5)))
    assert numbers == list(range(1, 37))
    assert terminal.counters["failures"] == 0
    assert terminal.recognizer.kit.sha256 == digest(kit(5))
    assert [outcome for outcome, _ in events.of("kit")] == ["installed", "installed"]
    assert [event.kit for event in events if event.kind == "kit"] == [digest(kit(n))[:12] for n in (4, 5)]
    assert store.record().starts == 1, "it is still on trial"


@pytest.mark.parametrize("what", REFUSED)
def test_a_bad_one_does_not_disturb_the_one_that_runs(store: Store[OnTrial], what: str) -> None:
    events, terminal, numbers = running(store, spoil(store, REFUSED[what][0]()))
    assert numbers == list(range(1, 25))
    assert terminal.recognizer.kit.sha256 == digest(kit(3))
    ((outcome, reason),) = events.of("kit")
    assert outcome == "refused"
    assert reason


def test_a_failure_at_the_very_end_of_a_wait_is_not_overheard(store: Store[OnTrial]) -> None:
    class Moment(threading.Event):
        """Something happens just after a wait was over."""

        happens: list[Callable[[], None]]

        def wait(self, timeout: float | None = None) -> bool:
            woken = super().wait(timeout)
            if not woken and self.happens:
                self.happens.pop()()
            return woken

    watched = KitWatch(store, seconds=QUICK)
    moment = watched._wake = Moment()
    moment.happens = []
    with watched:
        drop(store, kit(4))(watched)
        moment.happens = [lambda: watched.recognizer._note("injected")]
        until(lambda: watched.recognizer.kit.sha256 == digest(kit(3)), "it was not rolled back")


def test_first_frames_that_fail_bring_the_one_before_back(store: Store[OnTrial]) -> None:
    class Faulty(OnTrial):
        def crop(self, grey: Any, face: Any) -> Any:
            if self.kit.manifest.kit_version == 4:
                raise RuntimeError("injected")
            return super().crop(grey, face)

    store._load = lambda kit: selftest.ready(Faulty(kit))

    def wait(watched: KitWatch) -> None:
        until(lambda: watched.recognizer.kit.sha256 == digest(kit(3)), "it was not rolled back")

    scene = frames(GUEST, 8)
    events, terminal, numbers = running(store, drop(store, kit(4)), wait, lambda _: None, scene=scene)
    assert [outcome for outcome, _ in events.of("kit")] == ["installed", "rolled back"]
    assert "RuntimeError" in (events.of("kit")[1][1] or "")
    assert terminal.recognizer.kit.sha256 == digest(kit(3))
    assert store.record().rolled_back == {digest(kit(4)): "one of its first frames failed (RuntimeError)"}
    assert 0 < terminal.counters["failures"] <= len(scene) + 1
    assert len(numbers) + terminal.counters["failures"] == terminal.counters["frames"] == 4 * len(scene)
    assert events.decisions == [("granted", GUEST)], "once: the guest was there all the time"


def test_a_kit_that_got_through_its_first_frames_has_proved_itself(store: Store[OnTrial]) -> None:
    def proved(_: KitWatch) -> None:
        until(lambda: store.record().starts == 0, "it was not proved")

    running(store, drop(store, kit(4)), proved, length=FIRST_FRAMES + 1)
    assert store.record().current == digest(kit(4))


def test_a_full_disk_does_not_keep_a_failing_kit(store: Store[OnTrial], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise KitError("The store cannot be written.")

    with KitWatch(store, seconds=QUICK) as watched:
        drop(store, kit(4))(watched)
        monkeypatch.setattr(store, "_save", full)
        watched.recognizer._note("injected")
        until(lambda: watched.recognizer.kit.sha256 == digest(kit(3)), "it stayed")


def test_a_kit_that_fails_after_a_restart_is_rolled_back_from_the_disk(store: Store[OnTrial]) -> None:
    store.install(kit(4))
    store.dropped.write_bytes(kit(4))
    with KitWatch(store, seconds=QUICK) as watched:
        assert watched.recognizer.kit.sha256 == digest(kit(4))
        watched.recognizer._note("injected")
        until(lambda: watched.recognizer.kit.sha256 == digest(kit(3)), "it stayed")
    assert store.record().rolled_back == {digest(kit(4)): "injected"}


def test_a_kit_that_has_proved_itself_is_not_rolled_back(store: Store[OnTrial]) -> None:
    with KitWatch(store, seconds=QUICK) as watched:
        watched.recognizer._note("injected")
        drop(store, kit(4))(watched)
    assert store.record().previous == digest(kit(3))
    assert store.record().rolled_back == {}


def test_a_record_that_is_damaged_meanwhile_lets_nothing_in_and_disturbs_nothing(store: Store[OnTrial]) -> None:
    def damage(_: KitWatch) -> None:
        (store.folder / RECORD).write_text("{")

    events, terminal, numbers = running(store, damage, spoil(store, kit(4)))
    ((outcome, reason),) = events.of("kit")
    assert (outcome, "record" in (reason or "")) == ("refused", True)
    assert terminal.recognizer.kit.sha256 == digest(kit(3))
    assert numbers == list(range(1, 37))


def test_going_back_by_hand_reaches_the_terminal_that_runs(store: Store[OnTrial]) -> None:
    def back(watched: KitWatch) -> None:
        store.roll_back(None, "by hand")
        until(lambda: watched.recognizer.kit.sha256 == digest(kit(3)), "it did not hear of it")

    events, terminal, _ = running(store, drop(store, kit(4)), back, drop(store, kit(5)))
    assert [outcome for outcome, _ in events.of("kit")] == ["installed", "rolled back", "installed"]
    assert terminal.recognizer.kit.sha256 == digest(kit(5))


def test_a_copy_that_stops_half_way_and_goes_on_is_taken_up_in_the_end(store: Store[OnTrial]) -> None:
    def copy(watched: KitWatch) -> None:
        spoil(store, kit(4)[:300_000])(watched)
        with open(store.dropped, "ab") as file:
            file.write(kit(4)[300_000:])
        until(lambda: watched.recognizer.kit.sha256 == digest(kit(4)), "it was not taken up")

    events, _, numbers = running(store, copy)
    assert [outcome for outcome, _ in events.of("kit")] == ["refused", "installed"]
    assert numbers == list(range(1, 25))


def test_no_decision_rests_on_two_kits() -> None:
    """Three frames are needed, and after every two there is another kit: nobody is let in, whatever the frames say."""
    install = partial(Change, outcome="installed", reason="")
    others = iter([install(recognizer=made(n)) if n and n % 2 == 0 else None for n in range(8)])
    events, _ = watch(Stage(frames(GUEST, 8)), changes=partial(next, others, None))
    assert ("granted", GUEST) not in events.decisions


def made(version: int) -> Recognizer:
    return Recognizer(kits.parse(kit(version + 1)))


def test_one_who_was_let_in_is_not_let_in_again_by_the_new_kit() -> None:
    changes = iter([None] * 8 + [Change(outcome="installed", reason="", recognizer=made(1))])
    events, _ = watch(Stage(frames(GUEST, 8), frames(GUEST, 8)), changes=partial(next, changes, None))
    assert events.decisions == [("granted", GUEST)]
    visits = [event.visit for event in events if event.kind == "decision"]
    assert visits == [1]


def test_changes_that_fail_cost_no_frame() -> None:
    def fail() -> Change | None:
        raise RuntimeError("injected")

    events, terminal = watch(Stage(frames(GUEST, 8)), changes=fail)
    assert events.decisions == [("granted", GUEST)]
    assert terminal.counters["frames"] == 8


def test_people_read_what_became_of_a_kit(capfd: pytest.CaptureFixture[str]) -> None:
    event = notice("kit", now=0.0, utc=NOON, outcome="refused", reason="0123: The kit is damaged.")
    assert ForPeople(sys.stderr).line(event).endswith("kit refused: 0123: The kit is damaged.")


# The commands


def test_where_the_store_is() -> None:
    assert paths.find_kit_store(None, {}) is None
    assert paths.find_kit_store(None, {"STATE_DIRECTORY": "/var/lib/door:/var/lib/other"}) == Path("/var/lib/door/kits")
    assert paths.find_kit_store(Path("here"), {"STATE_DIRECTORY": "/var/lib/door"}) == Path("here")


def edge(*words: object) -> tuple[int, dict[str, Any], str]:
    run = subprocess.run(command(*words), capture_output=True, text=True, env=environment(), timeout=60)
    assert "Traceback" not in run.stderr
    return run.returncode, json.loads(run.stdout or "{}"), run.stderr


def test_a_kit_over_the_air(tmp_path: Path) -> None:
    """A service before a live camera; kits come and go by the commands, and it tells of each."""
    (tmp_path / "key.pub").write_bytes(keys()[1])
    sound = {version: kit(version, "north", "ours") for version in (1, 2, 3)}
    bad = {27: kit(4, "north", "theirs"), 45: kit(4, "south", "ours"), 44: sound[1], 21: sound[3][:-9] + bytes(9)}
    (tmp_path / "door.kit").write_bytes(sound[1])
    (tmp_path / "door.kit").chmod(0o640)
    file = tmp_path / "settings.toml"
    with MjpegServer() as server, sending(server, frames(GUEST, 8), nobody(12)):
        file.write_text(
            f'[kit]\npath = "door.kit"\nstore = "kits"\npublic_key = "key.pub"\nwatch_seconds = 0.1\n'
            f'[camera]\nsource = "{server.url}"\n[audit]\npath = "audit.db"\n'
        )
        process = started("recognize", "--settings", file, "--json")
        told: list[dict[str, Any]] = []
        assert process.stdout is not None
        lines = process.stdout
        threading.Thread(target=lambda: told.extend(map(json.loads, lines)), daemon=True).start()

        def kit_events() -> list[tuple[str, str]]:
            return [(event["outcome"], event["kit"]) for event in told if event["kind"] == "kit"]

        first, second = (digest(sound[n])[:12] for n in (1, 2))
        until(lambda: kit_events() == [("installed", first)])
        (tmp_path / "new.kit").write_bytes(sound[2])
        code, facts, _ = edge("kit", "install", tmp_path / "new.kit", "--settings", file)
        assert (code, facts["version"], facts["signature"]) == (0, 2, "valid")
        assert (tmp_path / "door.kit").stat().st_mode & 0o777 == 0o640
        until(lambda: kit_events()[1:] == [("installed", second)])
        for number, (expected, data) in enumerate(bad.items(), 1):
            (tmp_path / "new.kit").write_bytes(data)
            assert edge("kit", "install", tmp_path / "new.kit", "--settings", file)[0] == expected
            (tmp_path / "door.kit").write_bytes(data)
            until(partial(lambda wanted: kit_events()[2:] == wanted, [("refused", second)] * number))
        _, facts, words = edge("kit", "status", "--settings", file)
        assert Thresholds(**facts["current"]["thresholds"]).sentence in words
        assert (facts["current"]["version"], facts["previous"]["version"], facts["highest_version"]) == (2, 1, 2)
        assert "damaged" in facts["dropped"]["refused"]
        seen = len(kit_events())
        assert edge("kit", "rollback", "--settings", file)[0] == 0
        until(lambda: kit_events()[seen:] == [("rolled back", first)])
        code, _, words = edge("kit", "rollback", "--settings", file)
        assert (code, "no kit to go back to" in words) == (20, True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    logged = subprocess.run(
        command("audit", "export", tmp_path / "audit.db"), capture_output=True, text=True, env=environment(), check=True
    ).stdout
    entries = [json.loads(line)["entry"] for line in logged.splitlines()]
    assert [entry for entry in entries if entry["kind"] == "kit"] == [event for event in told if event["kind"] == "kit"]
    assert ("granted", GUEST) in [(event["outcome"], event["label"]) for event in told]


def test_without_a_store_the_commands_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", "")
    (tmp_path / "settings.toml").write_text("")
    if paths.STATE_FOLDER.is_dir():
        pytest.skip("this machine is a terminal")
    code, _, words = edge("kit", "status", "--settings", tmp_path / "settings.toml")
    assert (code, "[kit] store" in words) == (20, True)
