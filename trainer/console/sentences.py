"""Sentences that the library writes in English, in the language of a page: errors, results and logs of jobs.

The code and console.db have them in English, because commands use the same. messages/LANGUAGE.sentences.toml has each by its
text in the code, with {} for every value, or {n} for a number: "There is no kit {}." = "Es gibt kein Kit {}." The values are
translated in the same way. A sentence that the file does not have stays as it is.
"""

import re
import tomllib
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path

FILES = Path(__file__).with_name("messages")
ENDS = re.compile(r"(?<=[.!?]) ")
"""Between two sentences."""
MAX_LETTERS = 1000  # of one sentence
MAX_PARTS = 4
"""Parts that are tried together, because a value such as "Dr. Lund" has the end of a sentence in it."""
VALUE = re.compile(r"(\{n?\})")


class Sentences:
    """The sentences of one language, by the English ones."""

    def __init__(self, translations: Mapping[str, str]) -> None:
        self._whole = {english: own for english, own in translations.items() if not VALUE.search(english)}
        with_values = sorted(translations.keys() - self._whole.keys(), key=lambda english: (-len(english), english))
        self._patterns = [(_compiled(english), translations[english]) for english in with_values]
        self.translate = lru_cache(maxsize=2000)(self._translate)

    def english_with(self, part: str) -> list[str]:
        """Return the English texts without values whose translation contains a part, in any case."""
        return [english for english, own in self._whole.items() if part.casefold() in own.casefold()]

    def _translate(self, text: str) -> str:
        """Return the text with all sentences that are known in this language."""
        parts, shown = ENDS.split(text), list[str]()
        while parts:
            tried = range(1, min(len(parts), MAX_PARTS) + 1)
            found = ((number, own) for number in tried if (own := self._sentence(" ".join(parts[:number]))) is not None)
            number, own = next(found, (1, parts[0]))
            shown.append(own)
            parts = parts[number:]
        return " ".join(shown)

    def _sentence(self, text: str) -> str | None:
        if text in self._whole or len(text) > MAX_LETTERS:
            return self._whole.get(text)
        if text.endswith(")") and len(things := text.removesuffix(")").split("), ")) > 1:  # things with a note behind each
            return ", ".join(self.translate(f"{thing})") for thing in things)
        for pattern, own in self._patterns:
            if found := pattern.fullmatch(text):
                return own.format(*(self.translate(value) for value in found.groups()))
        return None


def _compiled(english: str) -> re.Pattern[str]:
    values = {"{}": "(.*?)", "{n}": "([0-9][0-9,.]*)"}
    return re.compile("".join(values.get(part) or re.escape(part) for part in VALUE.split(english)), re.DOTALL)


@cache
def sentences(code: str) -> Sentences:
    """Return the sentences of a language. English has no file, because the sentences are English."""
    file = FILES / f"{code}.sentences.toml"
    return Sentences(tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {})
