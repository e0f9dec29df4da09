"""A kit is whole and as it was written, or it is refused: with its own sentence and its own exit code."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from edge.errors import (
    KitDamagedError,
    KitError,
    KitSignatureError,
    KitSizeError,
    KitTruncatedError,
    KitUnsafeError,
    KitUnsignedError,
    KitVersionError,
    SignatureUnavailableError,
)
from edge.kit import format as kits
from edge.kit.manifest import Manifest, Thresholds
from export import pack as writing
from tests.fixtures import kits as doors


@cache
def keys(name: str = "ours") -> tuple[bytes, bytes]:
    """(private, public), PEM."""
    key = Ed25519PrivateKey.from_private_bytes(name.encode().ljust(32))
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return private, key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)


@cache
def signed() -> bytes:
    return doors.kit(private_key=keys()[0])


def rewritten(change: Callable[[dict[str, bytes]], None], data: bytes | None = None) -> bytes:
    """A kit whose parts were changed by somebody who knows how kits are written."""
    parts = kits.unpack(data or doors.kit())
    change(parts)
    return kits.pack(parts)


def with_manifest(**changes: Any) -> bytes:
    def change(parts: dict[str, bytes]) -> None:
        contents = json.loads(parts[kits.MANIFEST]) | changes
        parts[kits.MANIFEST] = (json.dumps(contents, sort_keys=True, ensure_ascii=False, indent=1) + "\n").encode()

    return rewritten(change)


def test_a_kit_opens() -> None:
    kit = kits.parse(doors.kit())
    assert kit.manifest.labels == doors.model().labels
    assert kit.manifest.size == doors.SIZE
    assert kit.signature == "none"
    assert "MIT License" in kit.licenses[kits.LICENSE]


def test_other_programs_can_open_it_too() -> None:
    with zipfile.ZipFile(io.BytesIO(doors.kit())) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == [kits.MANIFEST, kits.RECOGNIZER, kits.LICENSE]
        assert all(entry.compress_type == zipfile.ZIP_STORED for entry in archive.infolist())
        manifest = json.loads(archive.read(kits.MANIFEST))
    assert manifest["format"] == 1
    assert set(manifest["parts"]) == {kits.RECOGNIZER, kits.LICENSE}


@pytest.mark.parametrize("flip", [0x01, 0xFF])
def test_any_changed_byte_is_noticed(flip: int) -> None:
    whole = signed()
    missed = []
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= flip
        try:
            kits.parse(bytes(damaged))
        except KitError:
            continue
        missed.append(at)
    assert missed == []


def test_any_missing_end_is_noticed() -> None:
    whole = signed()
    for length in range(len(whole)):
        with pytest.raises(KitTruncatedError if length else KitError):
            kits.parse(whole[:length])


def test_anything_added_is_noticed() -> None:
    for more in (b"\0", b"PK\x05\x06" + bytes(18), doors.kit()):
        with pytest.raises(KitDamagedError):
            kits.parse(doors.kit() + more)
        with pytest.raises(KitError):
            kits.parse(more + doors.kit())


def test_another_graph_is_noticed() -> None:
    other = kits.unpack(doors.kit("l1"))[kits.RECOGNIZER]
    with pytest.raises(KitDamagedError, match=r"recognizer\.onnx"):
        kits.parse(rewritten(lambda parts: parts.update({kits.RECOGNIZER: other})))


def test_a_missing_part_is_noticed() -> None:
    with pytest.raises(KitDamagedError, match="LICENSE"):
        kits.parse(rewritten(lambda parts: parts.__delitem__(kits.LICENSE)))


def test_what_is_no_kit_is_refused(tmp_path: Path) -> None:
    for data in (b"", b"hello", bytes(100), b"\x7fELF" + bytes(60)):
        with pytest.raises(KitError, match="not a kit"):
            kits.parse(data)
    stranger = io.BytesIO()
    with zipfile.ZipFile(stranger, "w") as archive:
        archive.writestr("holiday.txt", "sun")
    with pytest.raises(KitError, match="not a kit"):
        kits.parse(stranger.getvalue())
    with pytest.raises(KitError, match="cannot be opened"):
        kits.read(tmp_path / "none.kit")
    with pytest.raises(KitError, match="cannot be opened"):
        kits.read(tmp_path)


def zipped(**options: Any) -> bytes:
    """The parts of a kit as another program would zip them."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", **options) as archive:
        for name, part in kits.unpack(doors.kit()).items():
            archive.writestr(name, part)
    return buffer.getvalue()


def test_a_kit_that_was_zipped_again_is_refused() -> None:
    with pytest.raises(KitDamagedError):
        kits.parse(zipped())


def test_a_zip_bomb_is_refused_unexploded() -> None:
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(kits.MANIFEST, bytes(300 << 20))
    assert len(bomb.getvalue()) < 1 << 20
    with pytest.raises(KitSizeError, match="compressed"):
        kits.parse(bomb.getvalue())
    with pytest.raises(KitSizeError, match="compressed"):
        kits.parse(zipped(compression=zipfile.ZIP_DEFLATED))


def test_a_length_that_lies_is_refused() -> None:
    lying = bytearray(doors.kit())
    lying[18:26] = b"\xff\xff\xff\x7f" * 2  # the lengths in the first header
    with pytest.raises(KitTruncatedError):
        kits.parse(bytes(lying))


def test_a_huge_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    huge = tmp_path / "huge.kit"
    with huge.open("wb") as file:
        file.truncate(kits.MAX_BYTES * 100)
    with pytest.raises(KitSizeError, match="larger than"):
        kits.read(huge)


def test_names_from_inside_are_never_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("manifest.json", kits.unpack(doors.kit())[kits.MANIFEST])
        archive.writestr("../../evil", "x")
    with pytest.raises(KitDamagedError):
        kits.parse(buffer.getvalue())
    assert list(tmp_path.iterdir()) == []


def test_another_version_is_named() -> None:
    with pytest.raises(KitVersionError, match=r"format 2, and this version reads 1"):
        kits.parse(with_manifest(format=2))
    with pytest.raises(KitVersionError):
        kits.parse(with_manifest(format="1"))


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": []},
        {"labels": ["anna", "anna"]},
        {"labels": ["anna", 3]},
        {"labels": None},
        {"crop": {"height": 24}},
        {"crop": {"height": 24, "width": -1}},
        {"crop": {"height": 24.0, "width": 20}},
        {"thresholds": {"confidence": "0", "residual": 1.0, "provisional": True}},
        {"thresholds": {"confidence": 0.0, "residual": 1.0, "provisional": True}},
        {"thresholds": {"confidence": 1.0}},
        {"thresholds": {"confidence": 1.0, "residual": 1.0, "provisional": True, "more": 1}},
        {"precision": "int2"},
        {"alignment": "six-points"},
        {"alignment": None},
        {"features": []},
        {"parts": 3},
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(KitError):
        kits.parse(with_manifest(**changes))


def test_a_threshold_that_is_not_a_number_is_refused() -> None:
    """Nothing compares as less than NaN: it would open the door to everybody, or to nobody."""

    def change(parts: dict[str, bytes]) -> None:
        parts[kits.MANIFEST] = parts[kits.MANIFEST].replace(b'"confidence": 0.9', b'"confidence": NaN')

    with pytest.raises(KitDamagedError):
        kits.parse(rewritten(change))


def test_a_key_that_occurs_twice_is_refused() -> None:
    def change(parts: dict[str, bytes]) -> None:
        parts[kits.MANIFEST] = parts[kits.MANIFEST].replace(b'{\n "', b'{\n "format": 1,\n "', 1)

    with pytest.raises(KitDamagedError, match="changed"):
        kits.parse(rewritten(change))


def test_an_unsafe_graph_is_refused_even_where_all_hashes_fit() -> None:
    def change(parts: dict[str, bytes]) -> None:
        import hashlib

        parts[kits.RECOGNIZER] += b"\xca\x01\x00"  # an empty entry in the field `functions`
        contents = json.loads(parts[kits.MANIFEST])
        contents["parts"][kits.RECOGNIZER] = hashlib.sha256(parts[kits.RECOGNIZER]).hexdigest()
        parts[kits.MANIFEST] = (json.dumps(contents, sort_keys=True, ensure_ascii=False, indent=1) + "\n").encode()

    with pytest.raises(KitUnsafeError, match="functions"):
        kits.parse(rewritten(change))


# --- Signatures ---


def test_a_signature_is_checked_where_a_key_is_given() -> None:
    assert kits.parse(signed(), keys()[1]).signature == "valid"
    assert kits.parse(signed()).signature == "unchecked"


def test_unsigned_is_refused_where_a_signature_is_required() -> None:
    with pytest.raises(KitUnsignedError):
        kits.parse(doors.kit(), keys()[1])


def test_another_key_is_refused() -> None:
    with pytest.raises(KitSignatureError, match="another key"):
        kits.parse(signed(), keys("theirs")[1])


def test_a_forger_cannot_keep_the_signature() -> None:
    """Parts, hashes and checksums all fit, and still the signature tells."""

    def change(parts: dict[str, bytes]) -> None:
        parts[kits.MANIFEST] = parts[kits.MANIFEST].replace(b'"anna"', b'"mara"')

    forged = rewritten(change, signed())
    assert kits.parse(forged).manifest.labels[0] == "mara"  # without a key nobody can tell
    with pytest.raises(KitSignatureError):
        kits.parse(forged, keys()[1])


@pytest.mark.parametrize("signature", [b"", bytes(63), bytes(64), bytes(65)])
def test_what_is_no_signature_is_refused(signature: bytes) -> None:
    with pytest.raises(KitSignatureError):
        kits.parse(rewritten(lambda parts: parts.update({kits.SIGNATURE: signature})), keys()[1])


def test_a_signature_for_something_else_is_refused() -> None:
    """The key's signature over the bare manifest, made for another purpose, does not make a kit."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = load_pem_private_key(keys()[0], None)
    assert isinstance(key, Ed25519PrivateKey)
    signature = key.sign(kits.unpack(doors.kit())[kits.MANIFEST])
    with pytest.raises(KitSignatureError):
        kits.parse(rewritten(lambda parts: parts.update({kits.SIGNATURE: signature})), keys()[1])


@pytest.mark.parametrize("key", [b"", b"no key", keys()[0]])
def test_what_is_no_public_key_is_refused(key: bytes) -> None:
    with pytest.raises(KitSignatureError, match="no Ed25519 public key"):
        kits.parse(signed(), key)


def test_without_the_package_nothing_signed_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(SignatureUnavailableError, match="signed"):
        kits.parse(signed(), keys()[1])


def test_signing_is_deterministic() -> None:
    manifest = kits.unpack(doors.kit())[kits.MANIFEST]
    assert writing.sign(manifest, keys()[0]) == writing.sign(manifest, keys()[0])


def test_each_refusal_has_its_own_exit_code() -> None:
    errors = [
        KitError, KitDamagedError, KitTruncatedError, KitSizeError, KitVersionError, KitUnsafeError,
        KitUnsignedError, KitSignatureError, SignatureUnavailableError,
    ]  # fmt: skip
    assert [error.exit_code for error in errors] == list(range(20, 29))


def test_the_manifest_has_one_spelling() -> None:
    data = kits.unpack(doors.kit())[kits.MANIFEST]
    assert Manifest.from_bytes(data).to_bytes() == data
    with pytest.raises(KitDamagedError):
        Manifest.from_bytes(data.replace(b" ", b"  ", 1))


def test_what_is_promised_of_strangers_is_a_sentence() -> None:
    measured: dict[str, Any] = {"fpir": 0.01, "fpir_low": 0.0018, "fpir_high": 0.0256, "strangers": 340}
    assert Thresholds(confidence=0.71, residual=1.0, provisional=False, **measured).sentence == (
        "A name takes a confidence of 0.71; of strangers' photos at most 1 % reach it, as far as 340 of them tell "
        "(95 % interval 0.18 to 2.6 %)."
    )
    assert "is not known" in Thresholds(confidence=0.71, residual=1.0, provisional=True).sentence
    assert "so nobody is let in" in Thresholds(confidence=1.0001, residual=1.0, provisional=False, **measured).sentence
