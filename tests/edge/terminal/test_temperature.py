"""The temperature of the device is that of its hottest sensor, and the terminal reports it."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.terminal.temperature import read_temperature
from tests.fakes.scene_camera import SceneCamera
from tests.fixtures.orl_door import empty_room
from tests.fixtures.terminals import run_to_end


def sensor(root: Path, number: int) -> Path:
    file = root / f"sys/class/thermal/thermal_zone{number}/temp"
    file.parent.mkdir(parents=True)
    return file


def test_hottest_sensor_counts(tmp_path: Path) -> None:
    for number, text in enumerate(("48312\n", "51000\n", "-4000\n", "no number\n", "\xff", "9" * 5000)):
        sensor(tmp_path, number).write_text(text)
    sensor(tmp_path, 6).mkdir()  # a sensor that cannot be read
    assert read_temperature(tmp_path) == pytest.approx(51.0)


def test_frost_is_a_temperature(tmp_path: Path) -> None:
    sensor(tmp_path, 0).write_text("-4000\n")
    assert read_temperature(tmp_path) == pytest.approx(-4.0)


def test_device_without_sensors_reports_none(tmp_path: Path) -> None:
    assert read_temperature(tmp_path) is None
    sensor(tmp_path, 0).write_text("\n")
    assert read_temperature(tmp_path) is None


@pytest.mark.slow  # trains a kit
@pytest.mark.parametrize("celsius", [61.5, None])
def test_terminal_reports_the_temperature(celsius: float | None) -> None:
    _, terminal = run_to_end(SceneCamera(empty_room(1)), temperature=lambda: celsius)
    assert terminal.health()["temperature_celsius"] == celsius
