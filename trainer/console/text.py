"""Messages of the console in several languages: messages/LANGUAGE/TOPIC.toml, with the keys of English in each.

A message is named `topic.key` and may have fields: `{number} photos`. A key that a language lacks is shown in English.
For what the library says in English, see trainer.console.sentences.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from starlette.requests import Request

from trainer.console.sentences import sentences

FOLDER = Path(__file__).with_name("messages")
ENGLISH = "en"
NAMES = {"en": "English", "de": "Deutsch"}
COOKIE = "language"  # with the language that a person chose


@dataclass(frozen=True)
class Language:
    """The messages of one language: `language("people.title")`."""

    code: str
    messages: Mapping[str, str]

    def __call__(self, key: str, **fields: Any) -> str:
        text = self.messages.get(key) or language(ENGLISH).messages[key]
        return text.format(**fields) if fields else text

    def said(self, text: str) -> str:
        """Return sentences of the library in this language: of an error, a job, or the trail."""
        return sentences(self.code).translate(text)

    def said_with(self, part: str) -> list[str]:
        """Return what the library says if `said` returns a text with this part."""
        return sentences(self.code).english_with(part) if part else []

    @staticmethod
    def name_of(code: str) -> str:
        """The name of a language in that language."""
        return NAMES.get(code, code)


@cache
def languages() -> tuple[str, ...]:
    """The codes of all languages, English first."""
    found = sorted(path.name for path in FOLDER.iterdir() if path.is_dir())
    return (ENGLISH, *(code for code in found if code != ENGLISH))


@cache
def language(code: str) -> Language:
    messages: dict[str, str] = {}
    for file in sorted((FOLDER / code).glob("*.toml")):
        own = tomllib.loads(file.read_text(encoding="utf-8"))
        messages |= {f"{file.stem}.{key}": text for key, text in own.items()}
    return Language(code, messages)


def language_of(request: Request) -> Language:
    """Return the language of the pages for a request."""
    return preferred(request.cookies.get(COOKIE), request.headers.get("accept-language", ""))


def preferred(chosen: str | None, accept_language: str) -> Language:
    """Return the language that a person chose, else the first one that the browser asks for and that we have."""
    wanted = [chosen or "", *(part.partition(";")[0].strip().lower()[:2] for part in accept_language[:200].split(","))]
    return language(next((code for code in wanted if code in languages()), ENGLISH))
