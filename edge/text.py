"""Text for messages and for other programs: printable, valid JSON, one spelling of names, plurals."""

import json
import math
import re
import unicodedata
from typing import Any

NAMED = 5
_ZERO_WIDTH = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
"""Joiners, fillers and variation selectors: Unicode counts them as letters and marks, but they show nothing."""


def hxw(shape: tuple[int, ...]) -> str:
    """Return a size as 96x84."""
    return f"{shape[0]}x{shape[1]}"


def plural(number: int, one: str, many: str = "") -> str:
    """Return `1 photo` or `2 photos`. `many` is the plural if it is not `one` with an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def percent(share: float | None, digits: int = 1) -> str:
    """Return a share as `12.3 %`, and None as `-`."""
    return "-" if share is None else f"{100 * share:.{digits}f} %"


def some(names: list[str], separator: str = ", ", most: int = NAMED) -> str:
    """Return the first few names, and the number of the others."""
    more = len(names) - most
    return separator.join(names[:most]) + (f"{separator}and {more} more" if more > 0 else "")


def same_spelling(name: str) -> str:
    """Return the NFC form, in which names are stored and compared."""
    return unicodedata.normalize("NFC", name)


def strict_json(value: Any) -> str:
    """Return one line that every parser accepts: no NaN, valid UTF-8, unprintable characters escaped."""

    def finite(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: finite(inner) for key, inner in part.items()}
        if isinstance(part, list | tuple):
            return [finite(inner) for inner in part]
        return None if isinstance(part, float) and not math.isfinite(part) else part

    return escaped(json.dumps(finite(value), ensure_ascii=False, allow_nan=False).encode("utf-8", "replace").decode())


def escaped(text: str) -> str:
    """Show unprintable characters as JSON does: a line feed as \\n, a change of writing direction as \\u202e."""
    return re.sub(r"[^ -~]", lambda found: found[0] if _is_visible(found[0]) else json.dumps(found[0])[1:-1], text)


def printable(text: str) -> str:
    """Replace unprintable characters: a name may hold line breaks, terminal commands or a change of writing direction."""
    return "".join(letter if _is_visible(letter) else "?" for letter in text)


def _is_visible(letter: str) -> bool:
    return letter.isprintable() and _ZERO_WIDTH.match(letter) is None
