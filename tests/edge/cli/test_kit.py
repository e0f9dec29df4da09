"""`edge kit` installs, shows and rolls back the kits of a running terminal."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from edge import paths
from edge.kit import format as kits
from edge.kit.manifest import Thresholds
from tests.fakes.mjpeg_server import MjpegServer
from tests.fixtures.command import command, environment, started
from tests.fixtures.kits import signing_keys
from tests.fixtures.liveness import with_liveness
from tests.fixtures.orl_door import GUEST, empty_room, frames, kit_version, sending
from tests.fixtures.waiting import until

pytestmark = pytest.mark.slow


def edge(*words: object) -> tuple[int, dict[str, Any], str]:
    run = subprocess.run(command(*words), capture_output=True, text=True, env=environment(), timeout=60)
    assert "Traceback" not in run.stderr
    return run.returncode, json.loads(run.stdout or "{}"), run.stderr


def test_kits_are_changed_on_a_running_terminal(tmp_path: Path) -> None:
    """A terminal runs with a live camera. Kits come and go by commands, and it reports each change."""
    (tmp_path / "key.pub").write_bytes(signing_keys()[1])
    good = {version: kit_version(version, series="north", key="ours") for version in (1, 2, 3)}
    bad = {
        27: kit_version(4, series="north", key="theirs"),
        45: kit_version(4, series="south", key="ours"),
        44: good[1],
        21: good[3][:-9] + bytes(9),
    }
    (tmp_path / "door.kit").write_bytes(good[1])
    (tmp_path / "door.kit").chmod(0o640)
    file = tmp_path / "settings.toml"
    with MjpegServer() as server, sending(server, frames(GUEST, 8), empty_room(12)):
        file.write_text(
            f'[kit]\npath = "door.kit"\nstore = "kits"\npublic_key = "key.pub"\nwatch_seconds = 0.1\n'
            f'[camera]\nsource = "{server.url}"\n[audit]\npath = "audit.db"\n'
        )
        process = started("recognize", "--settings", file, "--json")
        events: list[dict[str, Any]] = []
        assert process.stdout is not None
        lines = process.stdout
        threading.Thread(target=lambda: events.extend(map(json.loads, lines)), daemon=True).start()

        def kit_events() -> list[tuple[str, str]]:
            return [(event["outcome"], event["kit"]) for event in events if event["kind"] == "kit"]

        first, second = (kits.parse(good[n]).id for n in (1, 2))
        until(lambda: kit_events() == [("installed", first)])
        (tmp_path / "new.kit").write_bytes(good[2])
        code, facts, _ = edge("kit", "install", tmp_path / "new.kit", "--settings", file)
        assert (code, facts["version"], facts["signature"]) == (0, 2, "valid")
        assert (tmp_path / "door.kit").stat().st_mode & 0o777 == 0o640
        until(lambda: kit_events()[1:] == [("installed", second)])
        for number, (expected, data) in enumerate(bad.items(), 1):
            (tmp_path / "new.kit").write_bytes(data)
            assert edge("kit", "install", tmp_path / "new.kit", "--settings", file)[0] == expected
            (tmp_path / "door.kit").write_bytes(data)
            until(partial(lambda wanted: kit_events()[2:] == wanted, [("rejected", second)] * number))
        _, facts, text = edge("kit", "status", "--settings", file)
        assert Thresholds(**facts["current"]["thresholds"]).sentence in text
        assert (facts["current"]["version"], facts["previous"]["version"], facts["highest_version"]) == (2, 1, 2)
        assert "damaged" in facts["dropped"]["rejected"]
        seen = len(kit_events())
        assert edge("kit", "rollback", "--settings", file)[0] == 0
        until(lambda: kit_events()[seen:] == [("rolled back", first)])
        assert edge("kit", "rollback", "--settings", file)[0] == 20
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    logged = subprocess.run(
        command("audit", "export", tmp_path / "audit.db"), capture_output=True, text=True, env=environment(), check=True
    ).stdout
    entries = [json.loads(line)["entry"] for line in logged.splitlines()]
    sent = [{name: value for name, value in event.items() if not name.startswith("head")} for event in events]
    assert [entry for entry in entries if entry["kind"] == "kit"] == [event for event in sent if event["kind"] == "kit"]
    assert ("granted", GUEST) in [(event["outcome"], event["label"]) for event in events]


def test_commands_without_a_store_name_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", "")
    (tmp_path / "settings.toml").write_text("")
    if paths.STATE_FOLDER.is_dir():
        pytest.skip("this machine is a terminal")
    code, _, text = edge("kit", "status", "--settings", tmp_path / "settings.toml")
    assert (code, "[kit] store" in text) == (20, True)


def test_required_liveness_model_is_checked_by_install(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text('[kit]\npath = "door.kit"\nstore = "kits"\n[liveness]\nrequired = true\n')
    (tmp_path / "plain.kit").write_bytes(kit_version(1))
    (tmp_path / "live.kit").write_bytes(with_liveness(kit_version(1)))
    code, _, err = edge("kit", "install", tmp_path / "plain.kit", "--settings", tmp_path / "settings.toml")
    assert code == 20
    assert "no liveness model" in err
    assert not (tmp_path / "door.kit").exists()
    assert edge("kit", "install", tmp_path / "live.kit", "--settings", tmp_path / "settings.toml")[0] == 0
