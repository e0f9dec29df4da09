"""The commands for a door in docs/guide/fleet.md, with the settings of the page, as a person types them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.command import environment
from tests.fixtures.data import ROOT
from tests.fixtures.fleet import Fleet as Publisher
from tests.fixtures.fleet_door import publish_kit
from tests.fixtures.nginx import Nginx
from tests.fixtures.orl_door import kit_version

pytestmark = pytest.mark.slow


def test_commands_for_a_door_work(tmp_path: Path, publisher: Publisher, server: Nginx) -> None:
    page = (ROOT / "docs" / "guide" / "fleet.md").read_text(encoding="utf-8")
    section = page[page.index("## The door\n") : page.index("## From one door to fifty")]
    commands = re.findall(r"^    (edge .*)$", section, re.MULTILINE)
    assert commands[:2] == [line for line in commands if line.startswith("edge fleet")]
    (toml,) = re.findall(r"```toml\n(.*?)```", section, re.DOTALL)
    settings = toml.replace("https://fleet.example.org", server.url)
    settings = settings.replace("/var/lib/lclrr-edge", str(tmp_path)).replace("/etc/lclrr-edge/root.json", str(publisher.root))
    (tmp_path / "settings.toml").write_text(settings)
    publish_kit(publisher, kit_version(1))
    publisher.publish_list()
    script = "\n".join(["set -eu", f'edge() {{ "{sys.executable}" -m edge "$@"; }}', *commands[:2]])
    run = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=environment() | {"EDGE_SETTINGS": str(tmp_path / "settings.toml")},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    pulled, status = map(json.loads, run.stdout.splitlines())
    assert pulled["state"] == status["state"] == "fresh"
    assert (tmp_path / "door.kit").read_bytes() == kit_version(1)
