"""The kit: everything a terminal needs in one file, checked before it is used.

A kit is a zip whose parts are stored, not compressed, and which has exactly one spelling: `pack` writes it, and `parse`
accepts nothing that `pack` would have written otherwise. So each byte of the file counts, headers too, and a changed one is
noticed: in a part by its SHA-256 in the manifest, in the manifest by its checksum in the zip, anywhere else by comparison.
Against a forger, who can recompute all of these, only a signature helps: it covers the manifest, and so every part.

Nothing is unpacked to disk, no name from inside the file is used as a path, and numpy and onnxruntime are all that is needed
(plus cryptography where a signature is required).
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edge.errors import (
    KitDamagedError,
    KitError,
    KitSignatureError,
    KitSizeError,
    KitTruncatedError,
    KitUnsignedError,
    SignatureUnavailableError,
)
from edge.kit import guard as onnx_guard
from edge.kit.manifest import Manifest

MANIFEST, RECOGNIZER, DETECTOR = "manifest.json", "recognizer.onnx", "detector.onnx"
LICENSE, DETECTOR_LICENSE, SIGNATURE = "LICENSE.txt", "LICENSE-detector.txt", "signature.ed25519"
PARTS = (MANIFEST, RECOGNIZER, DETECTOR, LICENSE, DETECTOR_LICENSE, SIGNATURE)  # in this order
MAX_BYTES = 64 << 20

_COPY_AGAIN = "Copy the kit again, or build it again."
_SIGNED_FOR = b"lclrr-edge kit, format 1\n"  # so that the key's signatures mean nothing elsewhere

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_LOCAL_MARK, _CENTRAL_MARK, _END_MARK = b"PK\3\4", b"PK\1\2", b"PK\5\6"
_ZIP_VERSION, _UNIX, _FIRST_DAY, _PRIVATE_FILE = 10, 3 << 8, (1 << 5) | 1, 0o100600 << 16


@dataclass(frozen=True, kw_only=True, eq=False)
class Kit:
    """A kit whose every check has passed."""

    manifest: Manifest
    recognizer: bytes
    """ONNX."""
    detector: bytes | None
    """ONNX."""
    licenses: Mapping[str, str]
    signature: str
    """none, unchecked (no key was given) or valid."""
    sha256: str
    """Of the whole file."""
    length: int
    """Of the whole file, in bytes."""


def read(path: str | Path, public_key: bytes | None = None) -> Kit:
    """The kit at `path`. With a `public_key` (PEM) it must be signed with that key."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise KitError(f"{path} cannot be opened ({error.strerror or error}).", "Check the path.") from None
    return parse(data, public_key)


def parse(data: bytes, public_key: bytes | None = None) -> Kit:
    """The kit in these bytes."""
    parts = unpack(data)
    manifest = Manifest.from_bytes(parts[MANIFEST])
    if pack(parts) != data:
        if pack(parts).startswith(data):
            raise KitTruncatedError("The kit's end is missing.", _COPY_AGAIN)
        raise KitDamagedError("The kit is damaged: it is not as it was written.", _COPY_AGAIN)
    signature = parts.pop(SIGNATURE, None)
    if public_key is not None:
        if signature is None:
            raise KitUnsignedError("The kit is not signed, and a signature is required.", "Build it with --sign.")
        check_signature(parts[MANIFEST], signature, public_key)
    found = {name: hashlib.sha256(part).hexdigest() for name, part in parts.items() if name != MANIFEST}
    if found != manifest.parts:
        wrong = sorted(name for name in found.keys() | manifest.parts.keys() if found.get(name) != manifest.parts.get(name))
        raise KitDamagedError(f"The kit's {wrong[0][:40]} is not the one that its manifest names.", _COPY_AGAIN)
    if RECOGNIZER not in parts:
        raise KitError("The kit holds no recogniser.", "Build it again.")
    embeds = manifest.features.get("kind") == "onnx"
    operators = onnx_guard.RECOGNIZER_OPERATORS | (onnx_guard.BACKBONE_OPERATORS if embeds else frozenset())
    onnx_guard.check(parts[RECOGNIZER], operators, RECOGNIZER)
    detector = parts.get(DETECTOR)
    if detector is not None:
        onnx_guard.check(detector, onnx_guard.DETECTOR_OPERATORS, DETECTOR)
    return Kit(
        manifest=manifest,
        recognizer=parts[RECOGNIZER],
        detector=detector,
        licenses={name: parts[name].decode("utf-8", "replace") for name in (LICENSE, DETECTOR_LICENSE) if name in parts},
        signature="none" if signature is None else "unchecked" if public_key is None else "valid",
        sha256=hashlib.sha256(data).hexdigest(),
        length=len(data),
    )


def pack(parts: Mapping[str, bytes]) -> bytes:
    """The one zip file that holds these parts: stored, in the order of PARTS, dated 1980, readable by the owner alone."""
    directory = b""
    names = [name for name in PARTS if name in parts]
    chunks: list[bytes] = []
    offset = 0
    for name in names:
        part, label = parts[name], name.encode()
        # flags, method, time, date, checksum, stored and true length, lengths of name and extra field
        common = (0, 0, 0, _FIRST_DAY, zlib.crc32(part), len(part), len(part), len(label), 0)
        local = _LOCAL.pack(_LOCAL_MARK, _ZIP_VERSION, *common) + label
        directory += _CENTRAL.pack(_CENTRAL_MARK, _UNIX | _ZIP_VERSION, _ZIP_VERSION, *common, 0, 0, 0, _PRIVATE_FILE, offset)
        directory += label
        chunks += [local, part]
        offset += len(local) + len(part)
    body = b"".join(chunks)
    return body + directory + _END.pack(_END_MARK, 0, 0, len(names), len(names), len(directory), len(body), 0)


def unpack(data: bytes) -> dict[str, bytes]:
    """The parts of a kit by name, as they lie in the file one after the other; its spelling is not judged yet."""
    if len(data) > MAX_BYTES:
        raise KitSizeError(f"The kit is larger than {MAX_BYTES >> 20} MB.", "Use a file that `edge-export build` wrote.")
    if not (data.startswith(_LOCAL_MARK) or (data and _LOCAL_MARK.startswith(data))):
        raise KitError("This file is not a kit.", "Use a file that `edge-export build` wrote.")
    cut_short = KitTruncatedError("The kit's end is missing.", _COPY_AGAIN)
    parts: dict[str, bytes] = {}
    at = 0
    while data.startswith(_LOCAL_MARK, at):
        if at + _LOCAL.size > len(data):
            raise cut_short
        _, _, _, method, _, _, _, stored, length, name_length, extra_length = _LOCAL.unpack_from(data, at)
        if method != 0 or stored != length:
            raise KitSizeError(f"The kit is compressed, and would unpack to {length} bytes or more.", _COPY_AGAIN)
        start = at + _LOCAL.size + name_length + extra_length
        name = data[at + _LOCAL.size : start].decode("ascii", "replace")
        at = start + length
        if at > len(data):
            raise cut_short
        if name in parts:
            raise KitDamagedError("The kit holds a part twice.", _COPY_AGAIN)
        parts[name] = data[start:at]
    if len(data) - at < _END.size:
        raise cut_short
    if MANIFEST not in parts:
        raise KitError("This file is not a kit.", "Use a file that `edge-export build` wrote.")
    return parts


def check_signature(manifest: bytes, signature: bytes, public_key: bytes) -> None:
    """Refuse unless `signature` was made over `manifest` with the private half of `public_key` (PEM)."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError:
        raise SignatureUnavailableError(
            "The kit's signature cannot be checked: the package cryptography is missing.", "Install lclrr-edge[signed]."
        ) from None
    try:
        key = load_pem_public_key(public_key)
    except ValueError:
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise KitSignatureError(
            "The key that the kit's signature is to be checked with is no Ed25519 public key.",
            "Use the .pub file that `edge-export keygen` wrote.",
        )
    try:
        key.verify(signature, signed_message(manifest))
    except InvalidSignature:
        raise KitSignatureError(
            "The kit is signed with another key, or was changed after it was signed.", "Do not use it: ask who built it."
        ) from None


def signed_message(manifest: bytes) -> bytes:
    """What a signature covers."""
    return _SIGNED_FOR + manifest
