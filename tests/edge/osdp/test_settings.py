"""The settings of OSDP, and the key file."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge import settings as configuration
from edge.errors import SettingsError
from edge.osdp.settings import DEFAULT_KEY, OsdpSettings, read_key, write_key
from tests.fakes.control_panel import KEY


def chosen(folder: Path, *, install_mode: bool = False) -> OsdpSettings:
    return OsdpSettings(
        device=folder / "port", key_file=folder / "key", numbers_file=folder / "numbers.toml", install_mode=install_mode
    )


def test_key_is_read_and_written(tmp_path: Path) -> None:
    write_key(tmp_path / "key", KEY)
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert read_key(chosen(tmp_path)) == KEY


@pytest.mark.parametrize(
    ("text", "mode", "problem"),
    [
        (KEY.hex(), 0o640, "can be read by other users"),
        (KEY.hex()[:-1], 0o600, "must be 32 hexadecimal digits"),
        (KEY.hex() + "00", 0o600, "must be 32 hexadecimal digits"),
        ("secret", 0o600, "must be 32 hexadecimal digits"),
        ("", 0o600, "is empty"),
        (DEFAULT_KEY.hex(), 0o600, "SCBK-D"),
    ],
)
def test_key_that_protects_nothing_is_refused(tmp_path: Path, text: str, mode: int, problem: str) -> None:
    path = tmp_path / "key"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(SettingsError) as caught:
        read_key(chosen(tmp_path))
    assert problem in caught.value.message


def test_missing_key_is_an_error_except_in_install_mode(tmp_path: Path) -> None:
    with pytest.raises(SettingsError):
        read_key(chosen(tmp_path))
    before, after = (read_key(chosen(tmp_path, install_mode=True)) for _ in range(2))
    assert len(before) == 16
    assert before != after, "no controller can know it"


def test_problems_of_the_files_are_found_without_a_port(tmp_path: Path) -> None:
    (tmp_path / "door.toml").write_text('[osdp]\ndevice = "/dev/ttyUSB0"\nkey_file = "key"\nnumbers_file = "n.toml"\n')
    (tmp_path / "n.toml").write_text("[people]\n")
    found = configuration.problems(tmp_path / "door.toml")
    assert len(found) == 2
    assert "key cannot be read" in found[0]
    assert "no table [people]" in found[1]


@pytest.mark.parametrize("line", ["baud = 300", "address = 127", "grant_seconds = 60.0", "serial = -1"])
def test_value_that_the_standard_does_not_know_is_refused(line: str) -> None:
    text = f'[osdp]\ndevice = "/dev/ttyUSB0"\nkey_file = "key"\nnumbers_file = "n.toml"\n{line}\n'
    with pytest.raises(SettingsError):
        configuration.parse(text.encode())
