"""The power fails at any moment of a pull: what was verified stays, and the next pull completes it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edge.decision import reasons
from edge.decision.doorlist import DoorList
from tests.fixtures.command import environment
from tests.fixtures.data import ROOT
from tests.fixtures.fleet import Fleet as Publisher
from tests.fixtures.fleet import versioned_kit
from tests.fixtures.fleet_door import Clock, FleetDoor
from tests.fixtures.nginx import Nginx

pytestmark = pytest.mark.slow

MOMENTS = 200  # more than a pull has
DRIVER = """
import os, shutil, signal, sys
from pathlib import Path
from tests.fixtures.fleet_door import Clock, FleetDoor

template, url, root, moments = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
for number in range(1, moments):
    folder = template.with_name(f"door-{number}")
    shutil.copytree(template, folder)
    if os.fork() == 0:
        door = FleetDoor(folder, url, root, Clock())
        left = [number]

        def failing(real):
            def call(*arguments, **options):
                for moment in ("before", "after"):
                    left[0] -= 1
                    if left[0] == 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    if moment == "before":
                        result = real(*arguments, **options)
                return result
            return call

        for name in ("replace", "unlink", "fsync"):
            setattr(os, name, failing(getattr(os, name)))
        door.pull()
        os._exit(0)
    _, status = os.wait()
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0
        break
print(number)
"""


def test_power_failure_between_any_two_writes(tmp_path: Path, publisher: Publisher, server: Nginx, clock: Clock) -> None:
    publisher.publish_list(b'[[allow]]\npeople = ["anna", "ben", "carl"]\n')
    publisher.revoke("ben")
    FleetDoor(tmp_path / "door", server.url, publisher.root, clock).pull()
    publisher.rotate("root")
    publisher.publish_list(b'[[allow]]\npeople = ["anna", "ben"]\n')
    publisher.revoke("dora")
    publisher.publish_kit(2)
    driver = [sys.executable, "-c", DRIVER, tmp_path / "door", server.url, publisher.root, MOMENTS]
    run = subprocess.run([str(word) for word in driver], capture_output=True, text=True, env=environment(), cwd=ROOT)
    assert run.returncode == 0, run.stderr
    moments = int(run.stdout)
    assert 20 < moments < MOMENTS - 1
    for number in range(1, moments):
        folder = tmp_path / f"door-{number}"
        door = FleetDoor(folder, server.url, publisher.root, clock)
        assert door.refusal("ben") == reasons.REVOKED, "this was verified before"
        assert not door.fleet.is_stale()
        assert DoorList.parse(door.list_file.read_bytes()).people in ({"anna", "ben", "carl"}, {"anna", "ben"})
        assert door.store.dropped.read_bytes() in (versioned_kit(1), versioned_kit(2))
        door.pull()
        assert [door.refusal(name) for name in ("anna", "ben", "carl", "dora")] == [
            None,
            reasons.REVOKED,
            reasons.NOT_LISTED,
            reasons.REVOKED,
        ]
        assert door.store.dropped.read_bytes() == versioned_kit(2)
        door.pull()
        assert not [file for file in door.folder.rglob("*") if file.name.endswith(".part") or file.name == "download"]
        shutil.rmtree(folder)
