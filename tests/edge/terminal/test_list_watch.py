"""A changed door list is taken up while the terminal runs; a bad one never replaces a good one."""

from __future__ import annotations

import os
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from edge.decision.doorlist import DoorList
from edge.decision.reasons import NO_ENTRIES_LEFT, NOT_LISTED
from edge.errors import DoorListError
from edge.events.event import News
from edge.files import write_atomically
from edge.terminal.entry_counts import EntryCounts
from edge.terminal.list_watch import ListWatch
from tests.fixtures.waiting import until

NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)


def listing(*people: str, more: str = "") -> bytes:
    names = ", ".join(f'"{name}"' for name in people)
    return f"[[allow]]\npeople = [{names}]\n{more}".encode()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "list.toml"
    path.write_bytes(listing("anna"))
    return path


def look_twice(watch: ListWatch) -> list[News]:
    """Let the watch look twice, and use what it found, as the loop does."""
    watch.check_file()
    watch.check_file()
    found = []
    while (news := watch.next_change()) is not None:
        found.append(news)
    return found


def may_pass(watch: ListWatch, *people: str) -> list[bool]:
    return [watch.refusal(name, NOON) is None for name in people]


def test_start_uses_the_list_or_fails(file: Path) -> None:
    watch = ListWatch(file)
    assert may_pass(watch, "anna", "ben") == [True, False]
    assert look_twice(watch) == []
    file.write_bytes(b"[[allow]]")
    with pytest.raises(DoorListError, match="people must be"):
        ListWatch(file)
    file.unlink()
    with pytest.raises(DoorListError, match="cannot be read"):
        ListWatch(file)


@pytest.mark.parametrize("in_place", [False, True])
def test_changed_list_is_installed(file: Path, in_place: bool) -> None:
    watch = ListWatch(file)
    changed = listing("ben", "carla", more='[[allow]]\npeople = ["ben"]\nhours = "07:00-08:00"\n')
    file.write_bytes(changed) if in_place else write_atomically(file, changed)
    (news,) = look_twice(watch)
    version = DoorList.parse(changed).version
    assert news == News(kind="list", outcome="installed", reason=f"{version}: 2 entries, 2 people")
    assert watch.version == version
    assert may_pass(watch, "anna", "ben", "carla") == [False, True, True]
    assert look_twice(watch) == []


def test_list_is_used_only_when_the_loop_asks(file: Path) -> None:
    watch = ListWatch(file)
    write_atomically(file, listing("ben"))
    watch.check_file()
    watch.check_file()
    assert may_pass(watch, "anna", "ben") == [True, False], "not in the middle of a frame"
    watch.next_change()
    assert may_pass(watch, "anna", "ben") == [False, True]


def test_list_that_is_still_written_waits(file: Path) -> None:
    watch = ListWatch(file)
    whole = listing("ben", more="# end\n")
    for length in (5, 20, len(whole)):
        file.write_bytes(whole[:length])
        watch.check_file()
        assert watch.next_change() is None
    watch.check_file()
    news = watch.next_change()
    assert news is not None
    assert news.outcome == "installed"


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"[[allow]]\n", "number 1: people must be"),
        (b"", "allows no person to pass"),
        (b"\xff", "not UTF-8"),
        (b"#" * ((1 << 20) + 1), "larger than 1 MB"),
    ],
)
def test_bad_list_is_rejected_and_the_one_before_stays(file: Path, data: bytes, sentence: str) -> None:
    watch = ListWatch(file)
    version = watch.version
    write_atomically(file, data)
    (news,) = look_twice(watch)
    assert (news.kind, news.outcome) == ("list", "rejected")
    assert sentence in (news.reason or "")
    assert (news.reason or "").endswith("The list before stays in use.")
    assert (watch.version, may_pass(watch, "anna", "ben")) == (version, [True, False])
    assert look_twice(watch) == [], "reported once"


def test_list_that_disappears_stays_in_use_until_another_appears(file: Path) -> None:
    watch = ListWatch(file)
    file.unlink()
    (news,) = look_twice(watch)
    assert news.outcome == "rejected"
    assert "cannot be read" in (news.reason or "")
    assert may_pass(watch, "anna", "ben") == [True, False]
    file.write_bytes(listing("ben"))
    (news,) = look_twice(watch)
    assert news.outcome == "installed"
    assert may_pass(watch, "anna", "ben") == [False, True]


def test_same_list_that_comes_back_ends_the_alarm(file: Path) -> None:
    watch = ListWatch(file)
    write_atomically(file, b"x")
    assert [news.outcome for news in look_twice(watch)] == ["rejected"]
    write_atomically(file, listing("anna"))
    assert [news.outcome for news in look_twice(watch)] == ["installed"]


def test_same_bytes_in_a_new_file_are_no_news(file: Path) -> None:
    watch = ListWatch(file)
    write_atomically(file, listing("anna"))
    assert look_twice(watch) == []


def test_list_that_is_not_required_may_appear_later(tmp_path: Path) -> None:
    file = tmp_path / "list.toml"
    watch = ListWatch(file, required=False)
    assert (watch.version, may_pass(watch, "anna", "ben"), look_twice(watch)) == ("", [True, True], [])
    write_atomically(file, listing("anna"))
    assert [news.outcome for news in look_twice(watch)] == ["installed"]
    assert may_pass(watch, "anna", "ben") == [True, False]
    file.unlink()
    assert [news.outcome for news in look_twice(watch)] == ["rejected"]
    assert may_pass(watch, "anna", "ben") == [True, False]


def test_list_that_is_not_required_must_be_valid(tmp_path: Path) -> None:
    (tmp_path / "list.toml").write_bytes(b"x")
    with pytest.raises(DoorListError, match="not valid TOML"):
        ListWatch(tmp_path / "list.toml", required=False)


def test_thread_finds_a_change(file: Path) -> None:
    found: list[DoorList] = []
    watch = ListWatch(file, seconds=0.01)
    watch.on_list = found.append
    with watch:
        write_atomically(file, listing("ben"))
        assert until(watch.next_change).outcome == "installed"
        until(lambda: found)
    assert found[0].people == {"ben"}
    until(lambda: "door list" not in {thread.name for thread in threading.enumerate()})


def test_error_of_a_look_does_not_end_the_watch(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = threading.Event()
    watch = ListWatch(file, seconds=0.01)

    def fail(_: object) -> None:
        failed.set()
        raise MemoryError

    watch.on_list = fail
    with watch:
        write_atomically(file, listing("ben"))
        assert failed.wait(60)
        write_atomically(file, listing("carla"))
        until(lambda: watch.next_change() is not None and may_pass(watch, "carla") == [True])


# Entries of visitors


@pytest.fixture
def counts(tmp_path: Path) -> EntryCounts:
    return EntryCounts(tmp_path / "entries.json")


def pass_often(watch: ListWatch, times: int, label: str = "anna") -> list[str | None]:
    return [watch.refusal(label, NOON) or watch.admit(label, NOON) for _ in range(times)]


def test_each_person_has_the_number_of_entries(file: Path, counts: EntryCounts) -> None:
    file.write_bytes(listing("anna", "ben", more="entries = 2\n"))
    watch = ListWatch(file, counts)
    assert pass_often(watch, 3) == [None, None, NO_ENTRIES_LEFT]
    assert pass_often(watch, 3, "ben") == [None, None, NO_ENTRIES_LEFT]
    assert pass_often(watch, 1, "carla") == [NOT_LISTED]


def test_used_entries_survive_a_restart_and_changes_of_other_entries(file: Path, counts: EntryCounts) -> None:
    file.write_bytes(listing("anna", more="entries = 2\n"))
    assert pass_often(ListWatch(file, counts), 1) == [None]
    file.write_bytes(listing("ben", more="entries = 9\n") + listing("anna", "carla", more="entries = 2\n"))
    watch = ListWatch(file, EntryCounts(counts.path))
    assert pass_often(watch, 2) == [None, NO_ENTRIES_LEFT]
    file.write_bytes(listing("anna", more="entries = 3\n"))
    look_twice(watch)
    assert pass_often(watch, 2) == [None, NO_ENTRIES_LEFT], "one more than before"


def test_asking_uses_no_entry(file: Path, counts: EntryCounts) -> None:
    file.write_bytes(listing("anna", more="entries = 1\n"))
    watch = ListWatch(file, counts)
    assert [watch.refusal("anna", NOON) for _ in range(3)] == [None] * 3
    assert not counts.path.exists()


def test_file_of_the_counts_is_private_and_has_no_names(file: Path, counts: EntryCounts) -> None:
    file.write_bytes(listing("anna", more="entries = 2\n"))
    pass_often(ListWatch(file, counts), 1)
    assert counts.path.stat().st_mode & 0o777 == 0o600
    assert b"anna" not in counts.path.read_bytes()


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"x", b"[]", b"{}", b'{"schema": 2, "used": {}}', b'{"schema": 1, "used": {"a": -1}}', b"\xff"),
        *(b'{"schema": 1, "used": {"a": true}}', b'{"schema": 1, "used": []}', b"[" * 99_999),
    ],
)
def test_damaged_counts_are_an_error(file: Path, counts: EntryCounts, data: bytes) -> None:
    file.write_bytes(listing("anna", more="entries = 2\n"))
    counts.path.write_bytes(data)
    watch = ListWatch(file, counts)
    for ask in (watch.refusal, watch.admit):
        with pytest.raises(DoorListError, match="damaged"):
            ask("anna", NOON)
    with pytest.raises(DoorListError, match="damaged"):
        counts.check()


def test_entry_that_cannot_be_stored_is_an_error(file: Path, tmp_path: Path) -> None:
    file.write_bytes(listing("anna", more="entries = 2\n"))
    watch = ListWatch(file, EntryCounts(tmp_path / "nowhere" / "entries.json"))
    assert watch.refusal("anna", NOON) is None
    with pytest.raises(DoorListError, match="cannot be written"):
        watch.admit("anna", NOON)


def test_people_without_a_limit_need_no_counts(file: Path, tmp_path: Path) -> None:
    os.mkdir(tmp_path / "entries.json")
    watch = ListWatch(file, EntryCounts(tmp_path / "entries.json"))
    assert pass_often(watch, 3) == [None] * 3


def test_limit_without_counts_denies(file: Path) -> None:
    file.write_bytes(listing("anna", more="entries = 2\n"))
    with pytest.raises(DoorListError, match="not counted"):
        ListWatch(file).admit("anna", NOON)


def test_oldest_counts_are_forgotten_first(counts: EntryCounts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.terminal.entry_counts.MAX_KEYS", 3)
    for key in ("a", "b", "c", "a", "d"):
        counts.add(key)
    assert [counts.used(key) for key in "abcd"] == [2, 0, 1, 1]
