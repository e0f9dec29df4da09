"""Credential numbers: which card of the controller's database a person has.

The terminal reports a grant as if a card with this number had been read, because this is what door controllers understand.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge.errors import SettingsError
from edge.files import file_stamp, read_bytes
from edge.text import printable, same_spelling

MAX_BYTES = 16 << 20
MAX_BITS = 512
FORMATS = {"wiegand-26": (8, 16), "wiegand-34": (16, 16), "wiegand-37": (16, 19)}
"""Bits of the facility code and of the number. A parity bit stands before and after them."""
DEFAULTS = {"format", "facility"}
KEYS = {"number", "facility", "format", "bits"}


@dataclass(frozen=True, kw_only=True)
class Card:
    """What the controller receives."""

    bits: str
    """0 and 1, the first bit first."""
    is_wiegand: bool
    """Whether it has parity bits as the format Wiegand; otherwise the controller knows what the bits mean."""

    @property
    def data(self) -> bytes:
        """The bits from the left, filled with zeros to whole bytes."""
        size = -(-len(self.bits) // 8)
        return int(self.bits.ljust(8 * size, "0"), 2).to_bytes(size, "big")


def wiegand(number: int, facility: int, form: str) -> Card:
    """Return a card with parity bits: even over the first half of the data, odd over the last half.

    With an odd number of data bits, the one in the middle belongs to both halves.
    """
    facility_bits, number_bits = FORMATS[form]
    data = f"{facility:0{facility_bits}b}{number:0{number_bits}b}"
    half = -(-len(data) // 2)
    even, odd = data[:half].count("1") % 2, 1 - data[-half:].count("1") % 2
    return Card(bits=f"{even}{data}{odd}", is_wiegand=True)


def parse(data: bytes, source: str = "credential numbers") -> dict[str, Card]:
    """Return the card of each person. `source` names the file in messages."""
    if len(data) > MAX_BYTES:
        raise SettingsError(f"{source} is larger than {MAX_BYTES >> 20} MB. This is not a file with credential numbers.")
    try:
        contents = tomllib.loads(data.decode().removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{source} is not valid TOML: {printable(str(error))}.") from None
    people = contents.pop("people", None)
    if not isinstance(people, dict) or not people:
        raise SettingsError(f"{source} has no table [people] with at least one person.")
    if unknown := contents.keys() - DEFAULTS:
        raise SettingsError(f"{source}: unknown key `{printable(min(unknown))}`; known are people, facility and format.")
    cards: dict[str, Card] = {}
    owners: dict[str, str] = {}
    for name, entry in people.items():
        where = f"{source}: {printable(name)}"
        card = _card(entry, contents, where)
        label = same_spelling(name)
        if label in cards:
            raise SettingsError(f"{where} is there twice.")
        if other := owners.get(card.bits):
            raise SettingsError(f"{where} has the same card as {printable(other)}. Each person needs one.")
        cards[label], owners[card.bits] = card, name
    return cards


def _card(entry: object, defaults: Mapping[str, Any], where: str) -> Card:
    if not isinstance(entry, dict) or not ("number" in entry) ^ ("bits" in entry):
        raise SettingsError(f"{where} needs a table with number or bits, such as {{ number = 4711 }}.")
    if unknown := entry.keys() - KEYS:
        raise SettingsError(f"{where}: unknown key `{printable(min(unknown))}`; known are {', '.join(sorted(KEYS))}.")
    if "bits" in entry:
        bits = entry["bits"]
        if len(entry) > 1 or not isinstance(bits, str) or not re.fullmatch(f"[01]{{1,{MAX_BITS}}}", bits):
            raise SettingsError(f"{where}: bits must be 1 to {MAX_BITS} digits 0 and 1, and the only key.")
        return Card(bits=bits, is_wiegand=False)
    form = entry.get("format", defaults.get("format", "wiegand-26"))
    if not isinstance(form, str) or form not in FORMATS:
        raise SettingsError(f"{where}: format must be one of {', '.join(FORMATS)}; for others use bits.")
    facility = _number(entry.get("facility", defaults.get("facility", 0)), FORMATS[form][0], f"{where}: facility")
    return wiegand(_number(entry["number"], FORMATS[form][1], f"{where}: number"), facility, form)


def _number(value: object, bits: int, what: str) -> int:
    if type(value) is not int or not 0 <= value < 1 << bits:
        raise SettingsError(f"{what} must be a whole number from 0 to {(1 << bits) - 1}.")
    return value


def read(path: Path) -> dict[str, Card]:
    """Return the cards of a file."""
    return parse(read_bytes(path, MAX_BYTES + 1, SettingsError), str(path))


class NumberFile:
    """The cards of a file that may be replaced while the terminal runs. An invalid file is refused, and the old cards stay."""

    def __init__(self, path: Path) -> None:
        self._path, self._stamp = path, file_stamp(path)
        self.cards = read(path)

    def refresh(self) -> str | None:
        """Read the file again if it has changed. Return the problem of a changed file that cannot be used."""
        if (stamp := file_stamp(self._path)) == self._stamp:
            return None
        self._stamp = stamp
        try:
            self.cards = read(self._path)
        except SettingsError as error:
            return f"{error.message} The numbers from before are still used."
        return None

    def unknown(self, labels: Iterable[str]) -> list[str]:
        """Return the people of the file who are not among the labels of a kit."""
        return sorted(self.cards.keys() - {same_spelling(label) for label in labels})

    def without_card(self, labels: Iterable[str]) -> int:
        """Return how many labels of a kit have no card."""
        return len({same_spelling(label) for label in labels} - self.cards.keys())
