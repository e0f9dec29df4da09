"""The bytes that terminals download, as the guide says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from export.fleet import roles
from tests.fixtures.data import ROOT
from tests.fixtures.fleet import Fleet

pytestmark = pytest.mark.slow

GUIDE = ROOT / "docs" / "guide" / "fleet.md"
TOLERANCE = 12
"""Bytes: versions and numbers of days may have more digits."""


def size(fleet: Fleet, role: str) -> int:
    files = {int(path.name.partition(".")[0]): path for path in (fleet.repo / "metadata").glob(f"*.{role}.json")}
    return files[max(files)].stat().st_size


@pytest.mark.parametrize("groups", [1, 10, 100])
def test_sizes_of_the_guide_are_right(tmp_path: Path, groups: int) -> None:
    fleet = Fleet(tmp_path)
    with fleet.changing() as repository:
        for number in range(groups):
            roles.add_group(repository, f"group{number:03}")
    group = "group000"
    fleet.publish_list(group=group)
    with_list = size(fleet, f"group-{group}")
    for version in (1, 2):
        fleet.publish_kit(version, group=group)
    fleet.revoke("anna", group=group)
    timestamp = (fleet.repo / "metadata" / "timestamp.json").stat().st_size
    found = [timestamp, size(fleet, "snapshot"), size(fleet, "targets"), with_list, size(fleet, f"group-{group}")]
    row = re.search(rf"^\| {groups} \|(.*)\|$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    assert row is not None
    printed = [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\d", row[1])]
    assert all(abs(a - b) <= TOLERANCE for a, b in zip(printed, found, strict=True)), found
