"""Install paths: one definition, and the installer agrees with it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edge import paths

INSTALLER = Path(__file__).parents[2] / "scripts/install_pi.sh"


def test_used_entries_are_in_the_state_folder_of_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    assert paths.find_entry_counts(tmp_path / "list.toml") == tmp_path / "list.toml.entries.json"
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/lclrr-edge")
    assert paths.find_entry_counts(tmp_path / "list.toml") == paths.ENTRY_COUNTS


def test_installer_uses_the_paths_of_the_package() -> None:
    text = INSTALLER.read_text()
    (settings,) = re.findall(r'^write "\$etc/(\S+)"', text, re.MULTILINE)
    assert f"etc={paths.CONFIG_FOLDER} " in text
    assert f"service={paths.SERVICE_UNIT.stem}\n" in text
    assert f'"$kit" "$etc/{paths.KIT.name}"' in text
    assert paths.CONFIG_FOLDER / settings == paths.SETTINGS
    assert f'path = "{paths.AUDIT_LOG}"' in text
    assert f"--home-dir {paths.STATE_FOLDER} " in text


def test_paths_stand_in_no_other_module() -> None:
    folder = Path(paths.__file__).parent
    fixed = re.compile(r'Path\("(/etc|/var)/')
    found = [file for file in folder.rglob("*.py") if fixed.search(file.read_text()) and file.name != "paths.py"]
    assert found == []
