"""The documentation: links, anchors and paths exist, and unusual words stay out of the project."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.fixtures.data import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
UNUSUAL = re.compile(r"\b(whom|whoever|lest|is well|are well|in force|somebody|everybody|anybody)\b", re.IGNORECASE)
QUOTES_OLD_WORDS = {"CHANGELOG.md", "docs/reference/events.md", "tests/test_docs.py", "trainer/data/mit_license.txt"}


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles)
    return {re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-") for title in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_of_a_page_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(#[^)]*)?\)", text):
        if not target.startswith("http"):
            file = page.parent / target if target else page
            assert file.exists(), f"link to {target}"
            assert not anchor or anchor[1:] in anchors(file), f"link to {target}{anchor}"
    for path in re.findall(r"`((?:edge|trainer|export|tests|scripts|docs)/[\w/.-]+)`", text):
        assert "NAME" in path or page.name == "CHANGELOG.md" or (ROOT / path).exists(), path


def test_tests_that_the_security_page_names_exist() -> None:
    """Each row either names its tests or says only what does not stop the attack."""
    rows = re.findall(r"^\| (?!attacker|---)(.*) \|$", (ROOT / "SECURITY.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) > 30
    for row in rows:
        attack, protection, tests, _ = (cell.strip() for cell in row.split("|"))
        named = re.findall(r"`([\w./]+\.py)::(\w+)`", tests)
        assert bool(protection) == bool(named), attack
        for file, name in named:
            code = (ROOT / "tests" / "edge" / file).read_text(encoding="utf-8")
            assert f"\ndef {name}(" in code, f"{file} has no {name}"


def test_unusual_words_are_not_used() -> None:
    folders = ("edge", "trainer", "export", "tests", "scripts", "docs")
    files = [
        file for folder in folders for file in (ROOT / folder).rglob("*") if file.suffix in {".py", ".md", ".html", ".js"}
    ]
    found = [
        f"{file.relative_to(ROOT)}: {match[0]}"
        for file in (*files, *ROOT.glob("*.md"))
        if str(file.relative_to(ROOT)) not in QUOTES_OLD_WORDS
        for match in UNUSUAL.finditer(file.read_text(encoding="utf-8"))
    ]
    assert not found, "write the usual term instead"
