"""The messages of the console: every language is complete, every key that is used exists, and every message is used."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from string import Formatter

import pytest

from trainer.console.text import ENGLISH, FOLDER, NAMES, language, languages, preferred

TEMPLATES = FOLDER.parent / "templates"
STATIC = FOLDER.parent / "static"
PARTIAL = re.compile(r"""\bt\(\s*(["'])([a-z_]+\.[a-z_]*)\1\s*[+~]""")
"""t("topic.start" + ...): the end is known only when the page is made."""
WHOLE = re.compile(r"""\bt\(\s*(["'])([^"']+)\1\s*[,)]""")


def fields(message: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(message) if name is not None}


def strings(file: Path) -> set[str]:
    """All constant strings of a Python file, and the beginnings of its f-strings, which end with *."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
        elif isinstance(node, ast.JoinedStr) and node.values and isinstance(first := node.values[0], ast.Constant):
            found.add(f"{first.value!s}*")
    return found


def used() -> tuple[set[str], set[str]]:
    """The keys that templates and code use, and the beginnings of keys that are put together."""
    topics = {key.partition(".")[0] for key in language(ENGLISH).messages}
    pattern = re.compile(rf"(?:{'|'.join(sorted(topics))})\.[a-z0-9_]*\*?")
    keys: set[str] = set()
    starts: set[str] = set()
    for file in TEMPLATES.glob("*.html"):
        text = file.read_text(encoding="utf-8")
        starts |= {found[2] for found in PARTIAL.finditer(text)}
        keys |= {found[2] for found in WHOLE.finditer(text)}
        keys |= {word for _, word in re.findall(r"""(["'])([a-z]+\.[a-z0-9_]+)\1""", text) if pattern.fullmatch(word)}
    for file in FOLDER.parent.glob("*.py"):
        for word in strings(file):
            if pattern.fullmatch(word):
                (starts if word.endswith("*") else keys).add(word.removesuffix("*"))
    return keys, {start for start in starts if start}


def files_of_code(key: str) -> bool:
    """Return whether a word such as login.html is the name of a file."""
    return (TEMPLATES / key).exists() or (STATIC / key).exists()


@pytest.mark.parametrize("code", languages())
def test_language_has_exactly_the_keys_and_fields_of_english(code: str) -> None:
    own, english = language(code).messages, language(ENGLISH).messages
    assert sorted(own.keys() ^ english.keys()) == []
    assert not [key for key in english if fields(own[key]) != fields(english[key])]
    assert not [key for key in english if not own[key].strip()]


def test_languages_differ_and_have_names() -> None:
    german, english = language("de").messages, language(ENGLISH).messages
    same = [key for key in english if german[key] == english[key] and len(english[key]) > 25]
    assert not same, "not translated"
    assert NAMES.keys() == set(languages())


def test_every_key_that_is_used_exists() -> None:
    keys, starts = used()
    english = language(ENGLISH).messages
    assert sorted(key for key in keys if not (key in english or key in starts or files_of_code(key))) == []
    assert sorted(start for start in starts if not any(key.startswith(start) for key in english)) == []


def test_every_message_is_used() -> None:
    keys, starts = used()
    unused = [key for key in language(ENGLISH).messages if key not in keys and not key.startswith(tuple(starts))]
    assert unused == []


def test_templates_have_no_inline_code_and_no_words_of_their_own() -> None:
    wrong = []
    for file in TEMPLATES.glob("*.html"):
        text = file.read_text(encoding="utf-8")
        wrong += [f"{file.name}: {found}" for found in re.findall(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=", text)]
        wrong += [f"{file.name}: {found}" for found in re.findall(r"(?:https?:)?//[a-z][^\s\"']*", text)]
        plain = re.sub(r"\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}|<[^>]*>", " ", text, flags=re.DOTALL)
        wrong += [f"{file.name}: {word}" for word in re.findall(r"[A-Za-z]{3,}", plain) if word not in ("lclrr", "edge")]
    assert not wrong


@pytest.mark.parametrize(
    ("chosen", "accepted", "code"),
    [
        (None, "", "en"),
        (None, "de-AT,de;q=0.9,en;q=0.8", "de"),
        (None, "fr,en;q=0.5", "en"),
        ("de", "en", "de"),
        ("xx", "de", "de"),
        ("../en", "", "en"),
    ],
)
def test_language_of_a_person(chosen: str | None, accepted: str, code: str) -> None:
    assert preferred(chosen, accepted).code == code
