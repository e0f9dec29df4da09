"""The table [fleet], and what a terminal refuses at its start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edge import settings as configuration
from edge.errors import FleetError, ParameterError, UsageError
from edge.fleet.settings import FleetSettings
from edge.terminal import service, wiring

GOOD: dict[str, Any] = {"url": "https://fleet.example.org/doors", "root": Path("root.json"), "group": "north", "door": "d1"}


def test_defaults_are_safe() -> None:
    settings = FleetSettings(**GOOD)
    assert (settings.seconds, settings.max_stale_hours, settings.when_stale) == (60.0, 24.0, "deny all")


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "http://fleet.example.org/"},
        {"url": "ftp://fleet.example.org/"},
        {"url": "https://user:password@fleet.example.org/"},
        {"url": "https://fleet.example.org/?a=b"},
        {"url": "https://fleet.example.org/#a"},
        {"url": "https://"},
        {"seconds": 0.5},
        {"seconds": 1e6},
        {"max_stale_hours": 0},
        {"max_stale_hours": float("nan")},
        {"when_stale": "allow all"},
        {"cert_file": Path("a")},
    ],
)
def test_wrong_values_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        FleetSettings(**GOOD | wrong)


@pytest.mark.parametrize("wrong", [{"group": "all"}, {"group": "../x"}, {"door": "kits"}, {"door": "d 1"}])
def test_names_that_are_no_names_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        FleetSettings(**GOOD | wrong)


@pytest.mark.parametrize("more", [{"url": "http://127.0.0.1:80"}, {"url": "http://fleet.lan/", "allow_http": True}])
def test_plain_http_is_for_the_device_itself_or_allowed(more: dict[str, Any]) -> None:
    assert FleetSettings(**GOOD | more).url == more["url"]


def write(folder: Path, more: str = "", kit: str = 'path = "door.kit"\nstore = "kits"') -> Path:
    file = folder / "settings.toml"
    file.write_text(
        f'[kit]\n{kit}\n[fleet]\nurl = "https://fleet.example.org"\nroot = "root.json"\ngroup = "north"\ndoor = "d1"\n{more}'
    )
    return file


def test_config_check_names_files_that_are_missing(tmp_path: Path) -> None:
    (tmp_path / "door.kit").write_bytes(b"")
    found = configuration.problems(write(tmp_path, 'ca_file = "ca.pem"'))
    assert len(found) == 2
    assert "root.json" in found[0]
    assert "certificates" in found[1]


def test_terminal_without_a_kit_store_is_refused(tmp_path: Path) -> None:
    settings = configuration.load(write(tmp_path, kit='path = "door.kit"'))
    with pytest.raises(FleetError, match="kit store"), wiring.open_terminal(settings, tmp_path / "door.kit"):
        pass


def test_terminal_that_cannot_put_a_kit_in_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "root.json").write_bytes(b"{}")
    settings = configuration.load(write(tmp_path))
    with pytest.raises(FleetError, match=r"\[kit\] path"), wiring.open_terminal(settings, tmp_path / "nowhere" / "door.kit"):
        pass


def test_unit_of_the_service_may_write_where_kits_and_lists_come(tmp_path: Path) -> None:
    file = write(tmp_path, 'folder = "/srv/fleet"\n[door]\nlist = "/srv/lists/door.toml"\n')
    text = service.unit_text(kit=None, settings=file, camera=None, user="edge", watchdog_seconds=30)
    assert {"/srv/fleet", "/srv/lists", str(tmp_path)} <= {
        line.partition("=-")[2] for line in text.splitlines() if line.startswith("ReadWritePaths=")
    }
    assert "IPAddressDeny" not in text
