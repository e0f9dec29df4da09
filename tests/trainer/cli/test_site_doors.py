"""`trainer site doors` and its family: they do what the pages of doors do."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from edge import settings
from edge.monitor.preview import Preview
from tests.fixtures.events import make_event
from tests.fixtures.trainer_command import TrainerCommand
from trainer.site import door_lists, doors
from trainer.site.doors import Door
from trainer.site.folder import Site

OFFICE = '[[allow]]\npeople = ["anna"]\nhours = "07:00-19:00"\n'


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site.create(tmp_path / "site")


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> TrainerCommand:
    return TrainerCommand(monkeypatch, capsys)


def test_door_is_added_listed_changed_and_removed(site: Site, trainer: TrainerCommand) -> None:
    assert "add-door" in trainer("site", "doors", site.path)[2]
    options = ("--status-url", "http://127.0.0.1:9", "--drop", "/srv/north.kit")
    assert trainer("site", "add-door", site.path, "Nord/Süd")[0] == 2
    assert trainer("site", "add-door", site.path, "Nord Süd", *options)[0] == 0
    code, out, _ = trainer("site", "doors", site.path, "--json")
    assert (code, json.loads(out)) == (
        0,
        {
            "door": "Nord Süd",
            "status_url": "http://127.0.0.1:9",
            "drop": "/srv/north.kit",
            "has_secret": False,
            "has_list": False,
        },
    )
    door_lists.save(site, "Nord Süd", OFFICE, "test")
    trainer("site", "change-door", site.path, "Nord Süd", "--name", "gate", "--status-url", "")
    assert doors.load(site) == (Door(name="gate", drop=Path("/srv/north.kit")),), "options not given stay"
    assert trainer("site", "door-list", site.path, "gate")[1] == OFFICE
    assert trainer("site", "remove-door", site.path, "gate")[0] == 0
    assert doors.load(site) == ()


@pytest.mark.slow
def test_status_is_asked_now(site: Site, trainer: TrainerCommand) -> None:
    with Preview("127.0.0.1:0") as preview:
        preview.watch(lambda: {"camera_up": True, "temperature_celsius": 48.3})
        preview.handle(make_event(label="anna"))
        doors.save(site, [Door(name="north", status_url=preview.url), Door(name="store")], "test")
        lines = trainer("site", "doors", site.path, "--status")[1].splitlines()
        found = [json.loads(line) for line in trainer("site", "doors", site.path, "--status", "--json")[1].splitlines()]
    assert "online" in lines[0]
    assert "granted anna" in lines[0]
    assert "no address" in lines[1]
    assert [(one["door"], one["state"], one["temperature_celsius"]) for one in found] == [
        ("north", "online", 48.3),
        ("store", "no address", None),
    ]


def test_secret_is_printed_and_the_lines_are_valid_settings(site: Site, trainer: TrainerCommand) -> None:
    doors.add(site, Door(name="north gate"), "test")
    code, secret, _ = trainer("site", "door-secret", site.path, "north gate")
    file = doors.find(site, "north gate").secret_file
    assert file is not None
    assert (code, secret) == (0, file.read_text())
    lines = trainer("site", "door-webhook", site.path, "north gate", "--console", "https://console.example:8765/")[1]
    webhook = settings.parse(lines.encode()).webhook
    assert webhook is not None
    assert webhook.url == "https://console.example:8765/api/doors/north%20gate/events"
    assert secret.strip() not in lines
    for wrong in ("console.example", "http://console.example", "ftp://x"):
        assert trainer("site", "door-webhook", site.path, "north gate", "--console", wrong)[0] == 2, wrong


def test_list_is_printed_checked_replaced_and_removed(
    site: Site, trainer: TrainerCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    doors.add(site, Door(name="north"), "test")
    assert "has no list" in trainer("site", "door-list", site.path, "north")[2]
    file = tmp_path / "list.toml"
    file.write_text(OFFICE)
    code, _, said = trainer("site", "door-list", site.path, "north", "--check", file)
    assert (code, "Valid: 1 entry" in said, "no photos of anna" in said) == (0, True, True)
    assert door_lists.load(site, "north").text == ""
    trainer("site", "door-list", site.path, "north", "--save", file)
    file.write_text("[[allow]]\n")
    assert trainer("site", "door-list", site.path, "north", "--save", file)[0] == 33
    file.write_bytes(b"\xff")
    assert trainer("site", "door-list", site.path, "north", "--save", file)[0] == 2
    assert trainer("site", "door-list", site.path, "north")[1] == OFFICE
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"# Zoë\n{OFFICE}".encode())))
    trainer("site", "door-list", site.path, "north", "--save", "-")
    assert door_lists.load(site, "north").text == f"# Zoë\n{OFFICE}"
    assert trainer("site", "door-list", site.path, "north", "--save", file, "--remove")[0] == 2
    assert trainer("site", "door-list", site.path, "north", "--remove")[0] == 0
    assert door_lists.load(site, "north").text == ""


def test_invalid_list_on_the_disk_is_printed_with_its_problem(site: Site, trainer: TrainerCommand) -> None:
    doors.add(site, Door(name="north"), "test")
    (site.lists / "north.toml").write_text("[[allow]]\n")
    code, out, said = trainer("site", "door-list", site.path, "north")
    assert (code, out, "not valid" in said, "--save FILE" in said) == (2, "[[allow]]\n", True, True)
