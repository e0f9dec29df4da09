"""What a door pulls from a real server: revocations, lists and kits, and what it refuses."""

from __future__ import annotations

import errno
import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from edge.decision import reasons
from edge.fleet.fleet import STUCK_REASON, STUCK_SECONDS
from edge.fleet.problems import PullError
from export.fleet import roles
from tests.fakes.sinks import fail
from tests.fixtures.fleet import Fleet as Publisher
from tests.fixtures.fleet import versioned_kit
from tests.fixtures.fleet_door import DAY, HOUR, Clock, FleetDoor, publish
from tests.fixtures.kits import digest
from tests.fixtures.nginx import Nginx

pytestmark = pytest.mark.slow

EVERYONE = b'[[allow]]\npeople = "everyone"\n'


def test_new_door_denies_everyone_until_the_first_pull(door: FleetDoor) -> None:
    assert door.refusal("anna") == reasons.FLEET_TOO_OLD
    door.pull()
    assert door.refusal("anna") is None
    assert door.outcomes() == ["fresh"]


def test_revoked_person_is_denied_after_the_next_pull_and_after_a_restart_without_network(
    door: FleetDoor, publisher: Publisher, server: Nginx, tmp_path: Path, clock: Clock
) -> None:
    door.pull()
    publisher.revoke("anna")
    assert door.refusal("anna") is None
    door.pull()
    assert (door.refusal("anna"), door.refusal("ben")) == (reasons.REVOKED, None)
    server.stop()
    again = FleetDoor(tmp_path / "door", server.url, publisher.root, clock)
    assert (again.refusal("anna"), again.refusal("ben")) == (reasons.REVOKED, None)


def test_revoked_person_may_pass_again_when_the_publisher_says_so(door: FleetDoor, publisher: Publisher) -> None:
    publisher.revoke("anna")
    door.pull()
    publish(publisher, "north/revoked.json", None)
    door.pull()
    assert door.refusal("anna") is None


def test_name_in_another_spelling_is_revoked_too(door: FleetDoor, publisher: Publisher) -> None:
    publisher.revoke("çelik")
    door.pull()
    assert door.refusal("c\u0327elik") == reasons.REVOKED


def test_group_that_does_not_exist_is_no_group_without_revocations(
    door: FleetDoor, publisher: Publisher, server: Nginx, tmp_path: Path, clock: Clock
) -> None:
    """A group that was removed, or whose name is misspelt in the settings."""
    publisher.revoke("anna")
    door.pull()
    with publisher.changing() as repository:
        roles.remove_group(repository, "north")
    new = FleetDoor(tmp_path / "new", server.url, publisher.root, clock)
    for one in (door, new):
        with pytest.raises(PullError, match="no group north") as found:
            one.pull()
        assert (found.value.cause, one.outcomes()[-1]) == ("invalid", "failed" if one is door else "stale")
    assert (door.refusal("anna"), door.refusal("ben")) == (reasons.REVOKED, None), "it keeps what it has"
    assert new.refusal("ben") == reasons.FLEET_TOO_OLD
    clock.wait(25 * HOUR)
    assert door.refusal("ben") == reasons.FLEET_TOO_OLD


def test_list_of_the_door_wins_over_the_list_of_the_group(door: FleetDoor, publisher: Publisher) -> None:
    publisher.publish_list(b'[[allow]]\npeople = ["ben"]\n')
    door.pull()
    assert (door.refusal("anna"), door.refusal("ben")) == (reasons.NOT_LISTED, None)
    publisher.publish_list(b'[[allow]]\npeople = ["anna"]\n', door="d1")
    door.pull()
    assert (door.refusal("anna"), door.refusal("ben")) == (None, reasons.NOT_LISTED)


def test_list_of_another_door_is_not_taken(door: FleetDoor, publisher: Publisher) -> None:
    publisher.publish_list(b'[[allow]]\npeople = ["ben"]\n', door="d2")
    door.pull()
    assert not door.list_file.exists()


def test_list_that_is_no_longer_published_stays(door: FleetDoor, publisher: Publisher) -> None:
    publisher.publish_list(b'[[allow]]\npeople = ["ben"]\n')
    door.pull()
    publisher.publish_list(None)
    door.pull()
    assert door.refusal("anna") == reasons.NOT_LISTED


def test_everyone_is_denied_while_a_list_arrived_and_is_not_in_use(door: FleetDoor, publisher: Publisher) -> None:
    rules = door.rules()  # without a list
    publisher.publish_list(EVERYONE)
    door.pull()
    assert rules.refusal("anna", _now(door)) == reasons.DOOR_LIST_FAILED


def test_bad_list_is_refused_and_the_data_stay_fresh(door: FleetDoor, publisher: Publisher) -> None:
    publisher.publish_list(b'[[allow]]\npeople = ["ben"]\n')
    door.pull()
    publish(publisher, "north/list.toml", b'[[allow]]\npeople = "nobody"\n')
    publisher.revoke("carl")
    with pytest.raises(PullError, match="people must be") as found:
        door.pull()
    assert found.value.cause == "invalid"
    assert (door.refusal("anna"), door.refusal("ben"), door.refusal("carl")) == (reasons.NOT_LISTED, None, reasons.REVOKED)
    assert (door.fleet.is_stale(), door.fleet.status()["state"]) == (False, "failed")
    assert door.outcomes() == ["fresh", "failed"]


def test_bad_revocations_leave_those_before_in_use(door: FleetDoor, publisher: Publisher) -> None:
    publisher.revoke("anna")
    door.pull()
    publish(publisher, "north/revoked.json", b'{"schema": 1, "people": "anna", "kits": []}')
    with pytest.raises(PullError, match=r"revoked\.json"):
        door.pull()
    assert door.refusal("anna") == reasons.REVOKED


def test_damaged_revocations_deny_everyone_until_the_next_pull(
    door: FleetDoor, publisher: Publisher, server: Nginx, tmp_path: Path, clock: Clock
) -> None:
    publisher.revoke("anna")
    door.pull()
    (door.folder / "files" / "revoked.json").write_bytes(b"{")
    again = FleetDoor(tmp_path / "door", server.url, publisher.root, clock)
    assert (again.refusal("anna"), again.refusal("ben")) == (reasons.FLEET_TOO_OLD, reasons.FLEET_TOO_OLD)
    again.pull()
    assert (again.refusal("anna"), again.refusal("ben")) == (reasons.REVOKED, None)


def test_full_disk_is_an_alarm_and_its_data_get_too_old(
    door: FleetDoor, publisher: Publisher, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    door.pull()
    publisher.revoke("anna")
    with monkeypatch.context() as patched:
        patched.setattr("edge.fleet.client.write_atomically", full)
        with pytest.raises(PullError, match="No space left") as found:
            door.pull()
    assert (found.value.cause, door.outcomes()) == ("device", ["fresh", "failed"])
    clock.wait(25 * HOUR)
    assert door.refusal("ben") == reasons.FLEET_TOO_OLD
    with publisher.changing(datetime.fromtimestamp(clock.utc, UTC)) as repository:
        roles.refresh(repository, ["timestamp"])
    door.pull()
    assert (door.refusal("anna"), door.refusal("ben")) == (reasons.REVOKED, None)


def test_error_of_this_program_is_not_a_success(door: FleetDoor) -> None:
    door.pull()
    door.store.record = fail  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        door.pull()
    assert (door.fleet.status()["state"], door.outcomes()) == ("failed", ["fresh", "failed"])


def test_terminal_that_waited_for_its_camera_has_no_pull_that_hangs(door: FleetDoor, clock: Clock) -> None:
    clock.wait(DAY)
    door.fleet.save()
    assert door.outcomes() == []


def test_pull_that_hangs_is_an_alarm_until_one_ends(door: FleetDoor, clock: Clock) -> None:
    door.pull()
    clock.wait(2 * door.settings.seconds + STUCK_SECONDS)
    assert (door.outcomes(), door.fleet.status()["state"]) == (["fresh"], "fresh")
    clock.wait(1.0)
    (news,) = door.news()
    assert (news.kind, news.outcome, news.reason) == ("fleet", "failed", STUCK_REASON)
    status = door.fleet.status()
    assert (status["state"], status["error"], door.news()) == ("failed", STUCK_REASON, [])
    assert door.refusal("anna") is None, "the door still has its hours"
    door.pull()
    assert (door.outcomes(), door.fleet.status()["error"]) == (["fresh"], "")
    clock.wait(25 * HOUR)
    assert (door.outcomes(), door.fleet.status()["state"]) == (["failed"], "stale")
    assert door.refusal("anna") == reasons.FLEET_TOO_OLD


def test_new_kit_is_put_where_the_terminal_finds_it_once(door: FleetDoor, publisher: Publisher) -> None:
    new = publisher.publish_kit(2)
    door.pull()
    assert door.store.dropped.read_bytes() == new
    door.store.dropped.write_bytes(b"rejected")
    door.pull()
    assert door.store.dropped.read_bytes() == b"rejected"


def test_kit_is_not_offered_again_after_a_rollback_and_a_restart(
    door: FleetDoor, publisher: Publisher, server: Nginx, tmp_path: Path, clock: Clock
) -> None:
    new = publisher.publish_kit(2)
    door.pull()
    door.take_dropped()
    door.store.roll_back(digest(new), "its first frames failed")
    door.store.dropped.unlink()
    again = FleetDoor(tmp_path / "door", server.url, publisher.root, clock)
    again.pull()
    assert again.store.record().current == digest(versioned_kit(1))
    assert again.store.dropped.read_bytes() == versioned_kit(1)


def test_door_outside_of_the_share_keeps_its_kit(door: FleetDoor, publisher: Publisher) -> None:
    publisher.publish_kit(2, share=0.0)
    door.pull()
    assert door.store.dropped.read_bytes() == versioned_kit(1)


def test_stopped_rollout_is_not_taken(door: FleetDoor, publisher: Publisher) -> None:
    new = publisher.publish_kit(2)
    rollout = json.loads((_target(publisher, "rollout.json")).read_bytes())
    publish(publisher, "north/rollout.json", json.dumps(rollout | {"stopped": True}).encode())
    door.pull()
    assert door.store.dropped.read_bytes() != new


def test_door_without_a_kit_of_the_fleet_takes_the_previous_one(door: FleetDoor, publisher: Publisher) -> None:
    second = publisher.publish_kit(2)
    publisher.publish_kit(3, share=0.0)
    door.pull()
    assert door.store.dropped.read_bytes() == second


def test_older_kit_is_not_even_downloaded(door: FleetDoor, publisher: Publisher, server: Nginx) -> None:
    door.store.dropped.write_bytes(versioned_kit(5))
    door.take_dropped()
    publisher.publish_kit(4)
    with pytest.raises(PullError, match="version 4"):
        door.pull()
    assert not [path for path, *_ in server.requests() if path.endswith(".kit")]


def test_revoked_kit_is_left_for_the_previous_one(door: FleetDoor, publisher: Publisher) -> None:
    second = publisher.publish_kit(2)
    door.pull()
    door.take_dropped()
    door.store.confirm(digest(second))
    _revoke_kit(publisher, digest(second))
    door.pull()
    record = door.store.record()
    assert (record.current, record.rolled_back) == (digest(versioned_kit(1)), {digest(second): "this kit was revoked"})
    assert door.refusal("anna") is None


def test_revoked_kit_without_another_one_denies_everyone_until_a_new_one_comes(door: FleetDoor, publisher: Publisher) -> None:
    door.pull()
    _revoke_kit(publisher, digest(versioned_kit(1)))
    with pytest.raises(PullError, match="there is no other"):
        door.pull()
    assert door.refusal("anna") == reasons.KIT_REVOKED
    publisher.publish_kit(2)
    with pytest.raises(PullError, match="there is no other"):
        door.pull()
    door.take_dropped()
    door.pull()
    assert door.refusal("anna") is None


def test_rollout_of_a_revoked_kit_is_refused(door: FleetDoor, publisher: Publisher) -> None:
    second = publisher.publish_kit(2)
    publish(publisher, "north/revoked.json", _revoked(kits=[digest(second)]))
    with pytest.raises(PullError, match="was revoked"):
        door.pull()
    assert door.store.dropped.read_bytes() == versioned_kit(1)


def test_pull_without_changes_fetches_no_target_and_keeps_its_connection(
    door: FleetDoor, server: Nginx, publisher: Publisher
) -> None:
    publisher.publish_list()
    door.pull()
    before = server.requests()
    door.pull()
    door.pull()
    more = server.requests()[len(before) :]
    assert [path for path, *_ in more] == ["/metadata/2.root.json", "/metadata/timestamp.json"] * 2
    assert len({connection for *_, connection, _ in server.requests()}) == 1


def test_timestamp_that_did_not_change_is_not_sent_again(door: FleetDoor, server: Nginx, publisher: Publisher) -> None:
    timestamp = publisher.repo / "metadata" / "timestamp.json"
    os.utime(timestamp, (1_700_000_000, 1_700_000_000))  # older than a second: its ETag is unique
    door.pull()
    before = door.fleet.received
    door.pull()
    assert 0 < door.fleet.received - before < 600, "docs/guide/fleet.md says so"
    publisher.revoke("anna")
    door.pull()
    answers = [status for path, status, *_ in server.requests() if path == "/metadata/timestamp.json"]
    assert answers == ["200", "304", "200"]
    assert door.refusal("anna") == reasons.REVOKED


def test_right_timestamp_with_the_etag_of_a_refused_one_is_fetched(
    door: FleetDoor, server: Nginx, publisher: Publisher
) -> None:
    """nginx makes an ETag of size and second: publications of one second may have the same."""
    timestamp = publisher.repo / "metadata" / "timestamp.json"
    before = timestamp.read_bytes()
    publisher.revoke("anna")
    after = timestamp.read_bytes()
    assert len(before) == len(after)
    door.pull()

    def serve(content: bytes) -> None:
        timestamp.write_bytes(content)
        os.utime(timestamp, (1_700_000_000, 1_700_000_000))

    serve(before)
    with pytest.raises(PullError):
        door.pull()
    serve(after)
    door.pull()
    assert [status for path, status, *_ in server.requests() if path == "/metadata/timestamp.json"] == ["200"] * 3


def test_lost_list_file_is_written_again_without_a_download(door: FleetDoor, server: Nginx, publisher: Publisher) -> None:
    publisher.publish_list()
    door.pull()
    door.list_file.unlink()
    before = len(server.requests())
    door.pull()
    assert door.list_file.read_bytes()
    assert len(server.requests()) == before + 2


def test_files_are_private(door: FleetDoor, publisher: Publisher) -> None:
    publisher.publish_list()
    publisher.publish_kit(2)
    door.pull()
    files = [file for file in door.folder.rglob("*") if file.is_file()]
    assert len(files) > 6
    assert {file.stat().st_mode & 0o077 for file in files} == {0}


def _now(door: FleetDoor) -> datetime:
    return datetime.fromtimestamp(door.clock.utc, UTC)


def _target(publisher: Publisher, name: str) -> Path:
    (found,) = (publisher.repo / "targets" / "north").glob(f"*.{name}")
    return found


def _revoked(people: tuple[str, ...] = (), kits: list[str] | None = None) -> bytes:
    entries = [{"label": label, "since": "2026-11-18T12:00:00Z"} for label in people]
    return json.dumps({"schema": 1, "people": entries, "kits": kits or []}).encode()


def _revoke_kit(publisher: Publisher, sha256: str) -> None:
    publish(publisher, "north/revoked.json", _revoked(kits=[sha256]))
