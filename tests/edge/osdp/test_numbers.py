"""Credential numbers: the bits of a card, and the file that gives each person one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.errors import SettingsError
from edge.files import write_atomically
from edge.osdp.numbers import FORMATS, NumberFile, parse, wiegand


def test_bits_of_a_card_are_those_computed_by_hand() -> None:
    """Of the first 12 data bits 8 are 1, so the first bit is 0; of the last 12, 3 are 1, so the last bit is 0."""
    card = wiegand(24680, 159, "wiegand-26")
    assert card.bits == "0" + "10011111" + "0110000001101000" + "0"
    assert card.data == int(card.bits + "000000", 2).to_bytes(4, "big")


@given(form=st.sampled_from(sorted(FORMATS)), data=st.data())
def test_a_controller_can_decode_every_card(form: str, data: st.DataObject) -> None:
    facility_bits, number_bits = FORMATS[form]
    facility = data.draw(st.integers(0, (1 << facility_bits) - 1))
    number = data.draw(st.integers(0, (1 << number_bits) - 1))
    bits = wiegand(number, facility, form).bits
    assert len(bits) == int(form.rpartition("-")[2])
    assert (int(bits[1 : 1 + facility_bits], 2), int(bits[1 + facility_bits : -1], 2)) == (facility, number)
    half = 1 + -(-(facility_bits + number_bits) // 2)
    assert bits[:half].count("1") % 2 == 0
    assert bits[-half:].count("1") % 2 == 1


def test_one_wrong_bit_is_seen_by_the_parity() -> None:
    bits = wiegand(4711, 12, "wiegand-26").bits
    for place in range(26):
        wrong = bits[:place] + str(1 - int(bits[place])) + bits[place + 1 :]
        assert wrong[:13].count("1") % 2 == 1 or wrong[13:].count("1") % 2 == 0


def test_entry_of_a_person_replaces_what_is_usual() -> None:
    cards = parse(
        b'facility = 12\nformat = "wiegand-34"\n[people]\nanna = { number = 1 }\nben = { number = 1, facility = 13 }\n'
        b'cleo = { number = 1, format = "wiegand-26" }\n"Dora M." = { bits = "0101" }\n'
    )
    assert cards["anna"] == wiegand(1, 12, "wiegand-34")
    assert cards["ben"] == wiegand(1, 13, "wiegand-34")
    assert cards["cleo"] == wiegand(1, 12, "wiegand-26")
    assert (cards["Dora M."].bits, cards["Dora M."].data, cards["Dora M."].is_wiegand) == ("0101", b"\x50", False)


def test_names_have_one_spelling() -> None:
    cards = parse('[people]\n"Ame\u0301lie" = { number = 1 }\n'.encode())
    assert list(cards) == ["Am\u00e9lie"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no table [people]"),
        ("[people]\n", "no table [people]"),
        ("people = 3", "no table [people]"),
        ("facilty = 3\n[people]\na = { number = 1 }", "unknown key `facilty`"),
        ("[people]\na = 1", "needs a table with number or bits"),
        ("[people]\na = { facility = 1 }", "needs a table with number or bits"),
        ('[people]\na = { number = 1, bits = "1" }', "needs a table with number or bits"),
        ("[people]\na = { number = 1, nummer = 2 }", "unknown key `nummer`"),
        ("[people]\na = { number = 65536 }", "number must be a whole number from 0 to 65535"),
        ("[people]\na = { number = -1 }", "number must be a whole number"),
        ("[people]\na = { number = true }", "number must be a whole number"),
        ("facility = 256\n[people]\na = { number = 1 }", "facility must be a whole number from 0 to 255"),
        ('[people]\na = { number = 1, format = "wiegand-99" }', "format must be one of"),
        ("[people]\na = { number = 1, format = 3 }", "format must be one of"),
        ('[people]\na = { bits = "012" }', "bits must be 1 to 512 digits"),
        ('[people]\na = { bits = "1", facility = 1 }', "bits must be 1 to 512 digits"),
        (f'[people]\na = {{ bits = "{"1" * 513}" }}', "bits must be 1 to 512 digits"),
        ("[people]\na = { number = 1 }\nb = { number = 1 }", "b has the same card as a"),
        ('[people]\n"\\u00e9" = { number = 1 }\n"e\\u0301" = { number = 2 }', "is there twice"),
        ("[people", "not valid TOML"),
        (b"\xff".decode("latin-1"), "not valid TOML"),
    ],
)
def test_invalid_file_is_refused_with_a_sentence(text: str, problem: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse(text.encode("latin-1"), "numbers.toml")
    assert problem in caught.value.message


def test_changed_file_is_used_and_a_bad_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "numbers.toml"
    path.write_text("[people]\nanna = { number = 1 }\n")
    file = NumberFile(path)
    assert file.refresh() is None
    write_atomically(path, b"[people]\nben = { number = 2 }\n")
    assert file.refresh() is None
    assert list(file.cards) == ["ben"]
    write_atomically(path, b"[people]\n")
    assert "The numbers from before are still used." in (file.refresh() or "")
    assert list(file.cards) == ["ben"]
    assert file.refresh() is None, "one problem is said once"


def test_people_without_a_card_and_cards_without_a_person_are_found(tmp_path: Path) -> None:
    path = tmp_path / "numbers.toml"
    path.write_text("[people]\nanna = { number = 1 }\nzoe = { number = 2 }\n")
    file = NumberFile(path)
    assert file.unknown(["anna", "ben"]) == ["zoe"]
    assert file.without_card(["anna", "ben"]) == 1
