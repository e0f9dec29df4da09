"""The public names of the packages, and docs/reference/api.md, which lists them."""

from __future__ import annotations

import re
from importlib import import_module

import pytest

from tests.fixtures.data import ROOT

PAGE = (ROOT / "docs" / "reference" / "api.md").read_text()
PACKAGES = ("edge", "trainer", "export")


def documented(package: str) -> list[str]:
    """The names in the table below the heading of a package."""
    section = re.search(rf"^## {package}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return re.findall(r"^\| `(\w+)` \|", section[1], re.MULTILINE) if section else []


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_exist_and_are_documented(package: str) -> None:
    module = import_module(package)
    names = getattr(module, "__all__", [])
    assert [name for name in names if getattr(module, name, None) is None] == []
    assert sorted(documented(package)) == sorted(names), "docs/reference/api.md lists other names"


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_are_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").exists()
