"""Sentences of the library in other languages: all errors that a page can show are there, and nothing else is."""

from __future__ import annotations

import ast
import errno
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from string import Formatter

import pytest

import edge
from edge import errors
from trainer.console.sentences import ENDS, FILES, VALUE, Sentences, sentences
from trainer.console.text import ENGLISH, language, languages

ROOT = Path(edge.__file__).parents[1]
FAMILY = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.EdgeError)}
OWN = {"ChangedError", "AnswerError", "HTTPException"}
"""Classes besides the family whose texts a page shows. HTTPException has a status first."""
ON_THE_COMMAND_LINE = {"server.py"}
OTHERS = [code for code in languages() if code != ENGLISH]


def pattern(node: ast.expr, named: Mapping[str, list[str]]) -> list[str]:
    """Return the texts that an expression can have, with {} for values."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return ["".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)]
    if isinstance(node, ast.Name):
        return list(named.get(node.id, ()))
    if isinstance(node, ast.IfExp):
        return pattern(node.body, named) + pattern(node.orelse, named)
    return []


def parts(text: str) -> Iterator[str]:
    """Yield the sentences of a text that have words of their own."""
    yield from (part for part in ENDS.split(text) if re.search("[A-Za-z]{2}", part.replace("{}", "")))


def raised(file: Path) -> Iterator[str]:
    """Yield the texts with which a file raises errors for people."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    named: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            named.setdefault(node.targets[0].id, []).extend(pattern(node.value, {}))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FAMILY | OWN | {"_require"}:
            given = {"HTTPException": node.args[1:2], "_require": node.args[1:3]}.get(node.func.id, node.args[:2])
            for argument in given:
                yield from pattern(argument, named)


def recorded(file: Path) -> Iterator[str]:
    """Yield the actions that a file writes to the trail."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "record":
            yield from (text for argument in node.args[:3] for text in pattern(argument, {}) if re.fullmatch("[a-z ]+", text))


@cache
def all_texts() -> frozenset[str]:
    """All sentences of all strings of the project, with {} for values."""
    found: set[str] = set()
    for package in ("edge", "trainer", "export"):
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant | ast.JoinedStr):
                    found.update(part for text in pattern(node, {}) for part in (text, *parts(text)))
    return frozenset(found)


def shown_errors() -> dict[str, str]:
    """Each text that a page can show as an error, and a file that has it."""
    files = [file for room in ("site", "console") for file in (ROOT / "trainer" / room).glob("*.py")]
    files.append(ROOT / "edge" / "decision" / "doorlist.py")
    return {text: file.name for file in files if file.name not in ON_THE_COMMAND_LINE for text in raised(file)}


def known_sentences(code: str) -> dict[str, str]:
    """The file of a language: English sentences and their translations."""
    return tomllib.loads((FILES / f"{code}.sentences.toml").read_text(encoding="utf-8"))


def is_in_the_code(text: str, texts: frozenset[str]) -> bool:
    """Whether the code has a sentence: as it is, after the name of a door or file, or as a number of things; or the system."""
    text = text.replace("{n}", "{}")
    things = text.removeprefix("{} ")
    counted = {things, things.removesuffix("s")} if things != text else set()
    has_words = re.search("[A-Za-z]", text.replace("{}", ""))
    of_the_system = text in map(os.strerror, errno.errorcode)
    return bool(texts & {text, text.removeprefix("{}: "), *counted}) or of_the_system or not has_words


@pytest.mark.parametrize("code", OTHERS)
def test_every_error_of_a_page_has_a_translation(code: str) -> None:
    known = known_sentences(code)
    missing = {text: file for text, file in shown_errors().items() if text not in known and not known.keys() >= {*parts(text)}}
    assert missing == {}


@pytest.mark.parametrize("code", OTHERS)
def test_every_action_of_the_trail_has_a_translation(code: str) -> None:
    files = [file for package in ("trainer", "export") for file in (ROOT / package).rglob("*.py")]
    actions = {text for file in files for text in recorded(file)}
    assert {"add user", "build kit", "cancel job"} <= actions
    assert sorted(actions - known_sentences(code).keys()) == []


@pytest.mark.parametrize("code", OTHERS)
def test_every_sentence_is_in_the_code(code: str) -> None:
    texts = all_texts()
    assert sorted(text for text in known_sentences(code) if not is_in_the_code(text, texts)) == []


@pytest.mark.parametrize("code", OTHERS)
def test_translations_have_the_same_values(code: str) -> None:
    wrong = []
    for english, own in known_sentences(code).items():
        names = [name for _, name, _, _ in Formatter().parse(own) if name is not None]
        numbers = list(range(len(names))) if set(names) == {""} else sorted(int(name) for name in names)
        if numbers != list(range(len(VALUE.findall(english)))) or not own.strip():
            wrong.append(english)
    assert wrong == []


def test_english_and_unknown_sentences_stay() -> None:
    for code in languages():
        assert sentences(code).translate("Zebra 17 (of another world).") == "Zebra 17 (of another world)."
    assert language(ENGLISH).said("There is no kit a. Choose one of the kits of the site.").startswith("There is no kit a.")


@pytest.mark.parametrize(
    ("english", "german"),
    [
        ("There is no kit a.", "Es gibt kein Kit a."),
        ("There is no kit a. Train again.", "Es gibt kein Kit a. Trainieren Sie noch einmal."),
        ("There is a person called Dr. Lund already.", "Es gibt schon eine Person mit dem Namen Dr. Lund."),
        ("2 new people, 1 photo.", "2 neue Personen, 1 Foto."),
        ("There are no photos of holiday photos.", "Es gibt keine Fotos von holiday photos."),
        (
            "Not used, because the names may be wrong: s1/1.png (looks like s2).",
            "Nicht benutzt, weil die Namen falsch sein könnten: s1/1.png (sieht aus wie s2).",
        ),
        (
            "The door list, [[allow]] number 3: 'x' is not a weekday.",
            "Die Türliste, [[allow]] Nummer 3: 'x' ist kein Wochentag.",
        ),
        ("a is damaged. kits/b: this kit contains the person.", "a ist beschädigt. kits/b: Dieses Kit enthält die Person."),
        (
            "1 file left out: a.txt (not a photo), b/2.png (no face found).",
            "1 Datei ausgelassen: a.txt (kein Foto), b/2.png (kein Gesicht gefunden).",
        ),
        ("There is no kit b. Zebra.", "Es gibt kein Kit b. Zebra."),
        ("This file is not a photo that can be used: too large.", "Diese Datei ist kein brauchbares Foto: zu groß."),
    ],
)
def test_sentences_in_german(english: str, german: str) -> None:
    assert language("de").said(english) == german


def test_translation_can_have_another_order() -> None:
    assert Sentences({"{} of {}": "aus {1}: {0}"}).translate("one of two") == "aus two: one"


def test_long_text_of_an_attacker_ends_soon() -> None:
    text = "a: " * 50_000
    assert language("de").said(text) == text
