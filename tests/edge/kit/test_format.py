"""A kit is complete and unchanged, or it is rejected with its own error and exit code."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
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
from edge.kit.manifest import ABSOLUTE, RELATIVE, Manifest, Thresholds, canonical_json
from edge.vision.recognize import Recognizer
from export.pack import sign
from tests.fixtures import kits as doors
from tests.fixtures.kits import signing_keys


@cache
def signed() -> bytes:
    return doors.kit(private_key=signing_keys()[0])


def rewritten(change: Callable[[dict[str, bytes]], None], data: bytes | None = None) -> bytes:
    """Return a kit whose parts were changed by an attacker who can write kits."""
    parts = kits.unpack(data or doors.kit())
    change(parts)
    return kits.pack(parts)


def with_manifest_text(old: bytes, new: bytes, data: bytes | None = None) -> bytes:
    def change(parts: dict[str, bytes]) -> None:
        assert old in parts[kits.MANIFEST]
        parts[kits.MANIFEST] = parts[kits.MANIFEST].replace(old, new, 1)

    return rewritten(change, data)


def test_kit_is_read_by_us_and_by_other_zip_programs() -> None:
    kit = kits.parse(doors.kit())
    assert kit.manifest.labels == doors.model().labels
    assert kit.manifest.size == doors.SIZE
    assert kit.signature == "none"
    assert (kit.sha256, kit.id) == (hashlib.sha256(doors.kit()).hexdigest(), kit.sha256[:12])
    assert b"MIT License" in kits.unpack(doors.kit())[kits.LICENSE]
    with zipfile.ZipFile(io.BytesIO(doors.kit())) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == [kits.MANIFEST, kits.RECOGNIZER, kits.LICENSE]
        assert all(entry.compress_type == zipfile.ZIP_STORED for entry in archive.infolist())
        manifest = json.loads(archive.read(kits.MANIFEST))
    assert manifest["format"] == 1
    assert set(manifest["parts"]) == {kits.RECOGNIZER, kits.LICENSE}


def test_any_changed_byte_is_detected() -> None:
    whole = signed()
    missed = []
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        try:
            kits.parse(bytes(damaged))
        except KitError:
            continue
        missed.append(at)
    assert missed == []


def test_any_missing_end_is_detected() -> None:
    whole = signed()
    for length in range(0, len(whole), 3):
        with pytest.raises(KitTruncatedError if length else KitError):
            kits.parse(whole[:length])


def test_added_replaced_and_missing_parts_are_detected() -> None:
    for more in (b"\0", b"PK\x05\x06" + bytes(18), doors.kit()):
        with pytest.raises(KitDamagedError):
            kits.parse(doors.kit() + more)
        with pytest.raises(KitError):
            kits.parse(more + doors.kit())
    other = kits.unpack(doors.kit("l1"))[kits.RECOGNIZER]
    with pytest.raises(KitDamagedError, match=r"recognizer\.onnx"):
        kits.parse(rewritten(lambda parts: parts.update({kits.RECOGNIZER: other})))
    with pytest.raises(KitDamagedError, match="LICENSE"):
        kits.parse(rewritten(lambda parts: parts.__delitem__(kits.LICENSE)))


def zipped(parts: dict[str, bytes], **options: Any) -> bytes:
    """Return the parts as another program would zip them."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", **options) as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    return buffer.getvalue()


def test_file_that_is_not_a_kit_is_rejected(tmp_path: Path) -> None:
    for data in (b"", b"hello", bytes(100), b"\x7fELF" + bytes(60), zipped({"holiday.txt": b"sun"})):
        with pytest.raises(KitError, match="not a kit"):
            kits.parse(data)
    for path in (tmp_path / "none.kit", tmp_path):
        with pytest.raises(KitError, match="cannot be opened"):
            kits.read(path)
    huge = tmp_path / "huge.kit"
    with huge.open("wb") as file:
        file.truncate(kits.MAX_BYTES * 100)
    with pytest.raises(KitSizeError, match="larger than"):
        kits.read(huge)


def test_kit_zipped_by_another_program_is_rejected() -> None:
    parts = kits.unpack(doors.kit())
    with pytest.raises(KitDamagedError):
        kits.parse(zipped(parts))
    with pytest.raises(KitSizeError, match="compressed"):
        kits.parse(zipped(parts, compression=zipfile.ZIP_DEFLATED))
    with pytest.raises(KitSizeError, match="compressed"):  # a zip bomb
        kits.parse(zipped({kits.MANIFEST: bytes(30 << 20)}, compression=zipfile.ZIP_DEFLATED))
    wrong_length = bytearray(doors.kit())
    wrong_length[18:26] = b"\xff\xff\xff\x7f" * 2  # the lengths in the first header
    with pytest.raises(KitTruncatedError):
        kits.parse(bytes(wrong_length))


def test_names_in_a_kit_are_never_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KitDamagedError):
        kits.parse(zipped({kits.MANIFEST: kits.unpack(doors.kit())[kits.MANIFEST], "../../evil": b"x"}))
    assert list(tmp_path.iterdir()) == []


def test_other_format_version_is_rejected() -> None:
    with pytest.raises(KitVersionError, match=r"format 2; this version reads format 1"):
        kits.parse(doors.with_manifest(doors.kit(), format=2))
    with pytest.raises(KitVersionError):
        kits.parse(doors.with_manifest(doors.kit(), format="1"))


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
        {"crop": {"height": 24, "width": 20, "channels": 2}},
        {"crop": {"height": 24, "width": 20, "channels": 3.0}},
        {"crop": {"height": 24, "width": 20, "channels": True}},
        {"crop": {"height": 24, "width": 20, "depth": 3}},
        {"crop": [24, 20]},
        {"thresholds": {"confidence": "0", "residual": 1.0, "provisional": True}},
        {"thresholds": {"confidence": 0.0, "residual": 1.0, "provisional": True}},
        {"thresholds": {"confidence": 1.0}},
        {"thresholds": {"confidence": 1.0, "residual": 1.0, "provisional": True, "more": 1}},
        {"thresholds": {"confidence": 1.0, "residual": 1.0, "provisional": True, "fpir": 1.5}},
        {"precision": "int2"},
        {"alignment": "six-points"},
        {"alignment": None},
        {"confidence": "total"},
        {"confidence": None},
        {"features": []},
        {"parts": 3},
        {"kit_version": 0},
        {"series": "a\nb"},
    ],
)
def test_invalid_manifest_is_rejected(changes: dict[str, Any]) -> None:
    with pytest.raises(KitError, match="invalid field"):
        kits.parse(doors.with_manifest(doors.kit(), **changes))


def test_manifest_says_whether_crops_are_grey_or_colour() -> None:
    for channels, shape in (({}, (24, 20)), ({"channels": 1}, (24, 20)), ({"channels": 3}, (24, 20, 3))):
        changed = kits.parse(doors.with_manifest(doors.kit(), crop={"height": 24, "width": 20, **channels}))
        assert (changed.manifest.crop_shape, changed.manifest.colour) == (shape, len(shape) == 3)
        if len(shape) == 3:  # the graph takes grey crops
            with pytest.raises(KitError, match="does not match its manifest"):
                Recognizer(changed)


def test_confidence_of_older_kits_is_relative() -> None:
    parts = kits.unpack(doors.kit())
    fields = json.loads(parts[kits.MANIFEST])
    assert fields.pop("confidence") == RELATIVE
    older = kits.pack(parts | {kits.MANIFEST: canonical_json(fields)})
    assert kits.parse(older).manifest == kits.parse(doors.kit()).manifest
    assert kits.parse(doors.with_manifest(doors.kit(), confidence=ABSOLUTE)).manifest.confidence == ABSOLUTE


def test_manifest_has_one_canonical_form() -> None:
    data = kits.unpack(doors.kit())[kits.MANIFEST]
    assert Manifest.from_bytes(data).to_bytes() == data
    for old, new in (
        (b" ", b"  "),
        (b'"confidence": 0.9', b'"confidence": NaN'),  # no number is less than NaN: every face or no face would match
        (b'{\n "', b'{\n "format": 1,\n "'),  # a duplicate key
    ):
        with pytest.raises(KitDamagedError, match="changed"):
            kits.parse(with_manifest_text(old, new))


def test_unsafe_graph_is_rejected_even_if_all_hashes_match() -> None:
    parts = kits.unpack(doors.kit())
    parts[kits.RECOGNIZER] += b"\xca\x01\x00"  # an empty entry in the field `functions`
    hashes = json.loads(parts[kits.MANIFEST])["parts"]
    hashes[kits.RECOGNIZER] = hashlib.sha256(parts[kits.RECOGNIZER]).hexdigest()
    with pytest.raises(KitUnsafeError, match="functions"):
        kits.parse(doors.with_manifest(kits.pack(parts), parts=hashes))


def test_signature_is_checked_if_a_key_is_given() -> None:
    assert kits.parse(signed(), signing_keys()[1]).signature == "valid"
    assert kits.parse(signed()).signature == "unchecked"
    manifest = kits.unpack(doors.kit())[kits.MANIFEST]
    assert sign(manifest, signing_keys()[0]) == sign(manifest, signing_keys()[0]), "signing is deterministic"
    with pytest.raises(KitUnsignedError):
        kits.parse(doors.kit(), signing_keys()[1])
    with pytest.raises(KitSignatureError, match="another key"):
        kits.parse(signed(), signing_keys("theirs")[1])
    for key in (b"", b"no key", signing_keys()[0]):
        with pytest.raises(KitSignatureError, match="not an Ed25519 public key"):
            kits.parse(signed(), key)


def test_forged_kit_does_not_keep_a_valid_signature() -> None:
    """Parts, hashes and checksums all match. Only the signature does not."""
    forged = with_manifest_text(b'"anna"', b'"mara"', signed())
    assert kits.parse(forged).manifest.labels[0] == "mara"  # not detected without a key
    with pytest.raises(KitSignatureError):
        kits.parse(forged, signing_keys()[1])


def test_invalid_signature_is_rejected() -> None:
    bare_manifest = Ed25519PrivateKey.from_private_bytes(b"ours".ljust(32)).sign(kits.unpack(doors.kit())[kits.MANIFEST])
    for signature in (b"", bytes(63), bytes(64), bytes(65), bare_manifest):
        with pytest.raises(KitSignatureError):
            kits.parse(rewritten(lambda parts, new=signature: parts.update({kits.SIGNATURE: new})), signing_keys()[1])  # type: ignore[misc]


def test_signed_kit_is_rejected_without_the_cryptography_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(SignatureUnavailableError, match="pip install cryptography"):
        kits.parse(signed(), signing_keys()[1])


def test_each_error_has_its_own_exit_code() -> None:
    errors = [
        KitError, KitDamagedError, KitTruncatedError, KitSizeError, KitVersionError, KitUnsafeError,
        KitUnsignedError, KitSignatureError, SignatureUnavailableError,
    ]  # fmt: skip
    assert [error.exit_code for error in errors] == list(range(20, 29))


def test_thresholds_are_described_in_a_sentence() -> None:
    measured: dict[str, Any] = {"fpir": 0.01, "fpir_low": 0.0018, "fpir_high": 0.0256, "strangers": 340}
    assert Thresholds(confidence=0.71, residual=1.0, provisional=False, **measured).sentence == (
        "A match needs a confidence of at least 0.71. At most 1 % of strangers' photos reach it "
        "(measured on 340 photos; 95 % interval 0.18 to 2.6 %)."
    )
    assert "is unknown" in Thresholds(confidence=0.71, residual=1.0, provisional=True).sentence
    assert "Every visit is denied" in Thresholds(confidence=1.0001, residual=1.0, provisional=False, **measured).sentence
