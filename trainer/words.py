"""Pieces of the sentences that tell people about their photos."""

from __future__ import annotations

NAMED = 5


def hxw(shape: tuple[int, ...]) -> str:
    return f"{shape[0]}x{shape[1]}"


def count(things: list[str], noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


def some(names: list[str], separator: str = ", ") -> str:
    """The first few names, and how many more there are."""
    more = len(names) - NAMED
    return separator.join(names[:NAMED]) + (f"{separator}and {more} more" if more > 0 else "")
