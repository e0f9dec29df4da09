"""The public names of the packages, and the pages about them, which scripts/qa/api_reference.py writes."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

from scripts.qa import api_reference
from tests.fixtures.data import ROOT

PAGES = api_reference.pages()


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_page_is_what_the_generator_writes(page: Path) -> None:
    assert (ROOT / page).read_text(encoding="utf-8") == PAGES[page], "run: python -m scripts.qa.api_reference"


def test_folder_has_no_other_pages() -> None:
    folder = api_reference.FOLDER / "api"
    assert {file.name for file in (ROOT / folder).iterdir()} == {page.name for page in PAGES if page.parent == folder}


@pytest.mark.parametrize("package", api_reference.PACKAGES)
def test_public_names_exist_and_are_described(package: str) -> None:
    module = import_module(package)
    page = PAGES[api_reference.FOLDER / "api" / f"{package}.md"]
    assert re.findall(r"^## (\w+)$", page, re.MULTILINE) == list(module.__all__)
    assert [name for name in module.__all__ if not inspect.getdoc(getattr(module, name))] == []


@pytest.mark.parametrize("package", api_reference.PACKAGES)
def test_packages_are_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").exists()


def test_headings_of_a_page_are_unique() -> None:
    """Links would lead to the first of two equal headings."""
    for page, text in PAGES.items():
        headings = [line.lower() for line in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
        assert len(set(headings)) == len(headings), page


class Base:
    """A base."""

    def area(self, *, unit: str = "m") -> float:
        """Return the area."""
        return 0.0

    def hidden(self) -> None:
        """Not replaced by a docstring."""


class Square(Base):
    """Learned: D_ (d, m), with |x|_* and a_b.

    side : a length,
        in metres
    unit : of the result

        formula = side^2
    """

    def __init__(self, side: float, *names: str, unit: str | None = None) -> None:
        """`side` is not negative."""

    def area(self, *, unit: str = "m") -> float:
        return 1.0

    @property
    def corners(self) -> int:
        """Always 4."""
        return 4

    @classmethod
    def unit(cls) -> Square:
        """Return the square of side 1."""
        return cls(1.0)


def test_description_of_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_reference, "PACKAGES", ("tests",))
    text = "\n\n".join(filter(None, api_reference.describe("Square", Square, level=2, described={"Square", "Base"})))
    assert "Square(side: float, *names: str, unit: str | None = None)\n```" in text
    assert "Learned: `D_` (d, m), with |x|_\\* and a_b." in text
    assert "- `side`: a length, in metres\n- `unit`: of the result" in text
    assert "\n    formula = side^2\n" in text
    assert "`side` is not negative." in text
    assert "- `corners`: `int` (read only). Always 4." in text
    assert "### Square.unit\n\n```python\nSquare.unit() -> Square\n```" in text
    assert "Derives from `Base`." in text
    assert ".area" not in text, "the base describes it"
    alone = "\n".join(api_reference.describe("Square", Square, level=2, described={"Square"}))
    assert "Square.area(*, unit: str = 'm') -> float\n```\nReturn the area." in alone
    assert "Square.hidden" in alone
