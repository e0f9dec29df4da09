"""`edge fleet` and the check of `edge doctor`, with a real repository and server."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge.doctor.fleet import check_fleet
from edge.doctor.report import Check
from edge.errors import FleetError
from tests.fixtures.command import run_edge
from tests.fixtures.fleet import Fleet as Publisher
from tests.fixtures.fleet_door import DAY, Clock, FleetDoor, publish_kit
from tests.fixtures.nginx import Nginx, nginx
from tests.fixtures.orl_door import kit_version
from tests.fixtures.service_user import SERVICE, needs_root, service_place

pytestmark = pytest.mark.slow


@pytest.fixture
def publisher(tmp_path: Path) -> Publisher:
    made = Publisher(tmp_path / "publisher")
    made.add_group()
    return made


@pytest.fixture
def server(tmp_path: Path, publisher: Publisher) -> Iterator[Nginx]:
    with nginx(tmp_path / "nginx", publisher.repo) as running:
        yield running


@pytest.fixture
def settings(tmp_path: Path, server: Nginx, publisher: Publisher) -> Path:
    file = tmp_path / "settings.toml"
    file.write_text(
        '[kit]\npath = "door.kit"\nstore = "kits"\n'
        f'[fleet]\nurl = "{server.url}"\nroot = "{publisher.root}"\ngroup = "north"\ndoor = "d1"\n'
    )
    return file


def output(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_pull_brings_the_first_kit_and_list_of_a_new_door(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], settings: Path, publisher: Publisher
) -> None:
    publish_kit(publisher, kit_version(1))
    publisher.publish_list()
    publisher.revoke("ben")
    assert run_edge(monkeypatch, "fleet", "status", "--settings", settings) == 0
    before = output(capsys)
    assert (before["state"], before["verified"], before["policy"]) == ("stale", None, "deny all")
    assert not (settings.parent / "fleet").exists(), "status writes nothing"
    assert run_edge(monkeypatch, "fleet", "pull", "--settings", settings) == 0
    assert output(capsys)["state"] == "fresh"
    assert (settings.parent / "door.kit").read_bytes() == kit_version(1)
    assert (settings.parent / "fleet" / "list.toml").exists()
    assert run_edge(monkeypatch, "fleet", "status", "--settings", settings) == 0
    after = output(capsys)
    assert (after["state"], after["error"], after["clock_is_plausible"]) == ("fresh", "", True)
    assert all(len(after[name]) == 12 for name in ("list", "revocations"))
    assert after["rollout"]


@needs_root
def test_files_that_root_pulls_belong_to_the_user_of_the_service(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], settings: Path, publisher: Publisher
) -> None:
    publish_kit(publisher, kit_version(1))
    publisher.publish_list()
    with service_place() as place:
        root = place.root / "root.json"
        root.write_bytes(publisher.root.read_bytes())
        root.chmod(0o644)
        text = settings.read_text().replace(str(publisher.root), str(root)).replace("kits", f"{place.own}/kits")
        file = place.root / "settings.toml"
        file.write_text(text.replace("door.kit", f"{place.own}/door.kit"))
        assert run_edge(monkeypatch, "fleet", "pull", "--settings", file) == 0
        found = list(place.own.rglob("*"))
        assert {"door.kit", "list.toml", "timestamp.json", "state.json"} <= {path.name for path in found}
        assert {path.stat().st_uid for path in found} == {SERVICE}
        assert place.root_is_unchanged()
        (place.own / "door.kit").unlink()
        (place.own).chmod(0o500)
        assert run_edge(monkeypatch, "fleet", "pull", "--settings", file) == FleetError.exit_code
        assert "[kit] path" in capsys.readouterr().err


def test_pull_says_why_it_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], settings: Path, publisher: Publisher
) -> None:
    (publisher.repo / "metadata" / "timestamp.json").unlink()
    assert run_edge(monkeypatch, "fleet", "pull", "--settings", settings) == FleetError.exit_code
    found = capsys.readouterr()
    assert (found.out, "timestamp.json" in found.err) == ("", True)


def test_terminal_without_a_fleet_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text("")
    assert run_edge(monkeypatch, "fleet", "status", "--settings", tmp_path / "settings.toml") == FleetError.exit_code


def checks(door: FleetDoor) -> dict[str, Check]:
    return {check.name: check for check in check_fleet(door.fleet)}


def test_doctor_verifies_the_repository_and_stores_nothing(tmp_path: Path, publisher: Publisher, server: Nginx) -> None:
    clock = Clock()
    door = FleetDoor(tmp_path / "door", server.url, publisher.root, clock)
    found = checks(door)
    assert (found["fleet"].state, found["fleet data"].state) == ("ok", "warn")
    assert not door.folder.exists()
    door.pull()
    assert {check.state for check in checks(door).values()} == {"ok"}
    clock.wait(2 * DAY)
    assert {name: check.state for name, check in checks(door).items()} == {"fleet": "fail", "fleet data": "fail"}
    clock.utc = 0.0
    assert checks(door)["fleet data"].state == "fail"


def test_doctor_distinguishes_a_server_that_is_away_from_a_false_one(
    tmp_path: Path, publisher: Publisher, server: Nginx
) -> None:
    door = FleetDoor(tmp_path / "door", server.url, publisher.root, Clock())
    other = Publisher(tmp_path / "other")
    shutil.rmtree(publisher.repo / "metadata")
    shutil.copytree(other.repo / "metadata", publisher.repo / "metadata")
    assert checks(door)["fleet"].state == "fail"
    found = checks(FleetDoor(tmp_path / "lost", server.url, other.root, Clock()))["fleet"]
    assert (found.state, "no group north" in found.found) == ("fail", True)
    server.stop()
    assert checks(door)["fleet"].state == "warn"


def test_doctor_has_the_checks_if_there_is_a_fleet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], settings: Path
) -> None:
    (settings.parent / "door.kit").write_bytes(kit_version(1))
    run_edge(monkeypatch, "doctor", settings.parent / "door.kit", "--settings", settings, "--no-camera", "--json")
    found = {check["name"]: check["state"] for check in output(capsys)["checks"]}
    assert (found["fleet"], found["fleet data"]) == ("ok", "warn")
