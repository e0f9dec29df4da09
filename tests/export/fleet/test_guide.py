"""The commands of the publisher in docs/guide/fleet.md, one after the other, as a person types them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.command import environment
from tests.fixtures.data import ROOT
from tests.fixtures.fleet import LIST, Fleet, Terminal, served, versioned_kit

pytestmark = pytest.mark.slow

COMMAND = re.compile(r"^    ((?:edge-export|for key|mkdir|mv) .*)$", re.MULTILINE)


def test_commands_of_the_guide_work(tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "guide" / "fleet.md").read_text(encoding="utf-8")
    lines = COMMAND.findall(guide[guide.index("## The publisher") : guide.index("## The door\n")])
    assert len(lines) > 20
    (tmp_path / "door.kit").write_bytes(versioned_kit(1))
    (tmp_path / "list.toml").write_bytes(LIST)
    command = f'edge-export() {{ "{sys.executable}" -m export "$@"; }}'
    script = "\n".join(["set -eu", command, *lines])
    run = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    fleet = Fleet.of(tmp_path)
    assert fleet.waiting() == [], "every change got its signatures"
    assert (fleet.repo / "metadata" / "3.root.json").exists()
    with served(tmp_path) as address:
        terminal = Terminal(tmp_path / "terminal", f"{address}/repo", fleet.root)
        assert terminal.kit() == versioned_kit(1)
        assert terminal.poll("north/main/list.toml", "south/rollout.json") == [LIST, None]
