"""The part of docs/guide/fleet.md that leads from one door to fifty: settings, rights and commands, with simulated doors."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from edge import settings as configuration
from export.fleet.broker import Reader
from tests.fakes.mqtt_broker import Broker
from tests.fixtures.command import environment
from tests.fixtures.data import ROOT
from tests.fixtures.fleet import Fleet, served, versioned_kit
from tests.fixtures.programs import find_program
from tests.fixtures.simulated_doors import SharedClock, SimulatedDoor, SimulatedDoors
from tests.fixtures.waiting import until
from trainer.site.fleet import load
from trainer.site.folder import Site

pytestmark = pytest.mark.slow

DOORS = 4  # of the fifty that run
PASSWORD = "of each user"


@pytest.fixture
def page() -> str:
    text = (ROOT / "docs" / "guide" / "fleet.md").read_text(encoding="utf-8")
    return text[text.index("## From one door to fifty") :]


@pytest.fixture
def broker(tmp_path: Path, page: str) -> Iterator[Broker]:
    """A broker with the rights of the page."""
    folder = tmp_path / "broker"
    folder.mkdir()
    found = Broker(folder)
    (rights,) = re.findall(r"```\n(pattern write .*?)```", page, re.DOTALL)
    (folder / "rights").write_text(rights)
    for user in ("publisher", *(f"north-door-{number:02}" for number in range(1, DOORS + 1))):
        program = find_program("mosquitto_passwd", package="mosquitto")
        subprocess.run([program, "-b", str(folder / "passwords"), user, PASSWORD], check=True)
    found.start()
    yield found
    found.stop()


def run(folder: Path, *lines: str, **words: str) -> subprocess.CompletedProcess[str]:
    """Run commands of the page, with these words of the page replaced."""
    script = "\n".join(["set -eu", f'edge-export() {{ "{sys.executable}" -m export "$@"; }}', *lines])
    for old, new in words.items():
        script = script.replace(old.replace("_", "."), new)
    return subprocess.run(["bash", "-c", script], cwd=folder, env=environment(), capture_output=True, text=True, timeout=300)


def test_settings_and_commands_for_fifty_doors_work(tmp_path: Path, page: str, broker: Broker) -> None:
    template = re.search(r"```toml\n(\[kit\].*?)```", page, re.DOTALL)
    assert template
    (tmp_path / "template.toml").write_text(template[1])
    (tmp_path / "mqtt-password").write_text(PASSWORD)
    lines = re.findall(r"^    ((?:edge-export|for|mkdir) .*)$", page, re.MULTILINE)
    make, status, publish, advance = lines[:2], lines[2], lines[3], lines[4]
    assert run(tmp_path, *make).returncode == 0
    files = sorted((tmp_path / "settings").iterdir())
    assert len(files) == 50
    fleet = Fleet(tmp_path)
    fleet.add_group()
    (tmp_path / "door.kit").write_bytes(versioned_kit(2))
    clock = SharedClock()
    with ExitStack() as stack:
        url = stack.enter_context(served(tmp_path / "repo"))
        doors = []
        for file in files[:DOORS]:
            found = configuration.load(file)
            assert found.fleet is not None
            assert found.mqtt is not None
            own = replace(found.fleet, url=url, root=fleet.root, seconds=1.0)
            mqtt = replace(
                found.mqtt,
                host="127.0.0.1",
                port=broker.port,
                password_file=tmp_path / "mqtt-password",
                ca_file=broker.folder / "ca.pem",
            )
            doors.append(SimulatedDoor(tmp_path / "doors" / file.stem, own, mqtt, clock, set(), versioned_kit(1)))
        running = stack.enter_context(SimulatedDoors(doors))
        publisher = replace(mqtt, user="publisher")
        with Reader(publisher) as reader:
            until(lambda: len(reader.reports()) == DOORS and not any(door.problem for door in reader.reports().values()))
        words = {
            "mqtts://broker_example_org": f"mqtts://127.0.0.1:{broker.port} --ca-file {broker.folder}/ca.pem",
            "--watch": "--watch --after 0 --every 0.2",
        }
        shown = run(tmp_path, status, **words)
        assert shown.returncode == 0, shown.stderr
        assert shown.stdout.count("north/door-0") == DOORS
        rolled = run(tmp_path, publish, advance, **words)
        assert rolled.returncode == 0, rolled.stderr
        assert "complete at 100 %" in rolled.stderr
        assert {door.kit_version for door in running} == {2}


def test_fleet_of_a_site_is_read_as_the_page_shows_it(tmp_path: Path, page: str) -> None:
    site = Site.create(tmp_path / "site")
    (toml,) = re.findall(r"```toml\n(repo = .*?)```", page, re.DOTALL)
    (site.path / "fleet.toml").write_text(toml)
    assert load(site).broker == "mqtts://broker.example.org"
