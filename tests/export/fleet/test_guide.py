"""The commands of the publisher in docs/guide/fleet.md, one after the other, as a person types them."""

from __future__ import annotations

import re
import ssl
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.fakes.mqtt_broker import write_certificates
from tests.fixtures.command import environment
from tests.fixtures.data import ROOT
from tests.fixtures.fleet import LIST, Fleet, Terminal, served, versioned_kit
from tests.fixtures.nginx import Nginx

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
        assert terminal.kit() == versioned_kit(2), "the guide goes back to the same kit with a higher version"
        assert terminal.poll("north/main/list.toml", "south/rollout.json") == [LIST, None]


def test_configuration_of_nginx_serves_what_terminals_need_and_nothing_else(tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "guide" / "fleet.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```nginx\n(.*?)```", guide, re.DOTALL)
    fleet = Fleet(tmp_path)
    fleet.add_group()
    fleet.publish_list()
    write_certificates(tmp_path)
    server = Nginx(tmp_path, fleet.repo)
    for old, new in (
        ("listen 443 ssl", f"listen 127.0.0.1:{server.port} ssl"),
        ("/etc/ssl/fleet.pem", f"{tmp_path}/server.pem"),
        ("/etc/ssl/fleet.key", f"{tmp_path}/server.key"),
        ("/srv/fleet", str(fleet.repo)),
    ):
        assert old in block
        block = block.replace(old, new)
    file = tmp_path / "nginx.conf"
    own, _ = file.read_text().split("    server {")
    file.write_text(f"{own}{block}}}\n")
    tls = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))

    def ask(path: Path) -> tuple[int, str | None]:
        try:
            address = f"https://127.0.0.1:{server.port}/{path.relative_to(fleet.repo)}"
            with urlopen(address, timeout=60, context=tls) as answer:
                assert answer.read() == path.read_bytes()
                return answer.status, answer.headers["Cache-Control"]
        except HTTPError as error:
            return error.code, None

    server.start()
    try:
        timestamp = fleet.repo / "metadata" / "timestamp.json"
        (door_list,) = (fleet.repo / "targets").rglob("*.list.toml")
        assert ask(timestamp) == (200, "max-age=10"), "terminals must see a new one soon"
        for path in (fleet.repo / "metadata" / "1.root.json", door_list):
            assert ask(path) == (200, "max-age=86400, immutable")
        assert ask(fleet.repo / "publisher" / "settings.json") == (404, None)
    finally:
        server.stop()
