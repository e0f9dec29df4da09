"""Pieces of the sentences that tell people about their photos."""

from __future__ import annotations

NAMED = 5


def hxw(shape: tuple[int, ...]) -> str:
    return f"{shape[0]}x{shape[1]}"


def plural(number: int, one: str, many: str = "") -> str:
    """1 photo, 2 photos; `many` where an s is not all that changes."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def count(things: list[str], noun: str) -> str:
    return plural(len(things), noun)


def percent(share: float | None, digits: int = 1) -> str:
    return "-" if share is None else f"{100 * share:.{digits}f} %"


def some(names: list[str], separator: str = ", ") -> str:
    """The first few names, and how many more there are."""
    more = len(names) - NAMED
    return separator.join(names[:NAMED]) + (f"{separator}and {more} more" if more > 0 else "")
