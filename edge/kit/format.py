"""The kit file format: read, check, and write the one file that a device runs.

A kit is a zip file whose parts are stored uncompressed. Its bytes are canonical: `parse` accepts only the exact bytes that
`pack` writes, so every changed byte is detected. Only a signature protects against an attacker who computes all checksums
again: it covers the manifest, and with it every part. Nothing is unpacked to disk, and no name from inside the file is used as
a path. The zip code is our own because the bytes must not depend on the version of Python's zipfile.
"""

import hashlib
import os
import stat
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from edge import errors
from edge.credentials import load_public_key
from edge.kit import guard
from edge.kit.manifest import Manifest

MANIFEST, RECOGNIZER, DETECTOR, LIVENESS = "manifest.json", "recognizer.onnx", "detector.onnx", "liveness.onnx"
LICENSE, DETECTOR_LICENSE, LIVENESS_LICENSE = "LICENSE.txt", "LICENSE-detector.txt", "LICENSE-liveness.txt"
SIGNATURE = "signature.ed25519"
# In this order.
FILES_IN_KIT = (MANIFEST, RECOGNIZER, DETECTOR, LIVENESS, LICENSE, DETECTOR_LICENSE, LIVENESS_LICENSE, SIGNATURE)
MAX_BYTES = 64 << 20
# The longest honest manifest: 10,000 people have 0.75 MB, and 3.2 MB if each name has the 255 bytes that a folder allows.
MAX_MANIFEST = 4 << 20

_COPY_AGAIN = "Copy the kit again, or build it again."
_USE_BUILT_FILE = "Use a file that `edge-export build` wrote."
_SIGNATURE_PREFIX = b"lclrr-edge kit, format 1\n"  # a signature for another purpose is not valid for a kit

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_LOCAL_MARK, _CENTRAL_MARK, _END_MARK = b"PK\3\4", b"PK\1\2", b"PK\5\6"
_ZIP_VERSION, _UNIX, _FIRST_DAY, _PRIVATE_FILE = 10, 3 << 8, (1 << 5) | 1, 0o100600 << 16


@dataclass(frozen=True, kw_only=True, eq=False)
class Kit:
    """A kit that passed all checks of the file format."""

    manifest: Manifest
    recognizer: bytes
    detector: bytes | None
    liveness: bytes | None = None
    """All three are ONNX files."""
    signature: str
    """none, unchecked (no key was given) or valid."""
    sha256: str
    length: int
    """Both are of the whole file."""

    @property
    def id(self) -> str:
        return kit_id(self.sha256)


def kit_id(sha256: str) -> str:
    """Return the short form of a kit's SHA-256 that events and messages show."""
    return sha256[:12]


def read(path: str | Path, public_key: bytes | None = None) -> Kit:
    """Read the kit at `path`. With a `public_key` (PEM), the kit must be signed with that key."""
    return parse(read_kit_bytes(path), public_key)


def read_kit_bytes(path: str | Path) -> bytes:
    """Read a file that may be a kit, up to one byte more than the maximum size."""
    try:
        # O_NONBLOCK: opening or reading a pipe must not block.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise errors.KitError(f"{path} cannot be opened (not a file).", "Check the path.")
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise errors.KitError(f"{path} cannot be opened ({error.strerror or error}).", "Check the path.") from None


def parse(data: bytes, public_key: bytes | None = None) -> Kit:
    """Check the bytes of a kit and return its contents. Large parts are copied once, at the end.

    With a `public_key`, the signature is checked before anything else is read: a forger reaches neither the JSON reader nor
    the reader of graphs.
    """
    parts = _unpack(data)
    if len(parts[MANIFEST]) > MAX_MANIFEST:
        raise errors.KitSizeError(f"The manifest of the kit is larger than {MAX_MANIFEST >> 20} MB.", _USE_BUILT_FILE)
    raw_manifest = bytes(parts[MANIFEST])
    signature = bytes(parts[SIGNATURE]) if SIGNATURE in parts else None
    if public_key is not None:
        if signature is None:
            raise errors.KitUnsignedError("The kit is not signed, and a signature is required.", "Build it with --sign.")
        check_signature(raw_manifest, signature, public_key)
    _check_canonical(data, parts)
    manifest = Manifest.from_bytes(raw_manifest)
    found = {name: hashlib.sha256(part).hexdigest() for name, part in parts.items() if name not in (MANIFEST, SIGNATURE)}
    if wrong := sorted(name for name in {**found, **manifest.parts} if found.get(name) != manifest.parts.get(name)):
        raise errors.KitDamagedError(f"{wrong[0][:40]} in the kit does not match the manifest.", _COPY_AGAIN)
    if RECOGNIZER not in parts:
        raise errors.KitError("The kit contains no recognizer.", "Build it again.")
    has_network = manifest.features.get("kind") == "onnx"
    operators = guard.RECOGNIZER_OPERATORS | (guard.NETWORK_OPERATORS if has_network else frozenset())
    recognizer = bytes(parts[RECOGNIZER])
    guard.check(recognizer, operators, RECOGNIZER)
    detector = bytes(parts[DETECTOR]) if DETECTOR in parts else None
    if detector is not None:
        guard.check(detector, guard.DETECTOR_OPERATORS, DETECTOR)
    liveness = bytes(parts[LIVENESS]) if LIVENESS in parts else None
    if (liveness is None) != (manifest.liveness is None):
        raise errors.KitError("The liveness model of the kit does not match its manifest.", "Build the kit again.")
    if liveness is not None:
        guard.check(liveness, guard.LIVENESS_OPERATORS, LIVENESS)
    return Kit(
        manifest=manifest,
        recognizer=recognizer,
        detector=detector,
        liveness=liveness,
        signature="none" if signature is None else "unchecked" if public_key is None else "valid",
        sha256=hashlib.sha256(data).hexdigest(),
        length=len(data),
    )


def pack(parts: Mapping[str, bytes]) -> bytes:
    """Write the canonical zip file of these parts: stored, in the order of FILES_IN_KIT, dated 1980, mode 0600."""
    return b"".join(_canonical_pieces(parts))


def _check_canonical(data: bytes, parts: Mapping[str, memoryview]) -> None:
    """Raise an error if `data` is not what `pack` writes. Piece by piece: a copy of the file would take much memory."""
    view, position = memoryview(data), 0
    for piece in _canonical_pieces(parts):
        found = view[position : position + len(piece)]
        if len(found) < len(piece) and found == piece[: len(found)]:
            raise errors.KitTruncatedError("The end of the kit is missing.", _COPY_AGAIN)
        if found != piece:
            raise errors.KitDamagedError("The kit is damaged: its bytes were changed after it was built.", _COPY_AGAIN)
        position += len(piece)
    if position != len(data):
        raise errors.KitDamagedError("The kit is damaged: its bytes were changed after it was built.", _COPY_AGAIN)


def _canonical_pieces(parts: Mapping[str, bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Yield the bytes that `pack` writes, in order, without copying a part."""
    length, directory = 0, b""
    names = [name for name in FILES_IN_KIT if name in parts]
    for name in names:
        part, label = parts[name], name.encode()
        # flags, method, time, date, checksum, stored and real length, length of the name and of the extra field
        common = (0, 0, 0, _FIRST_DAY, zlib.crc32(part), len(part), len(part), len(label), 0)
        versions = _UNIX | _ZIP_VERSION, _ZIP_VERSION
        directory += _CENTRAL.pack(_CENTRAL_MARK, *versions, *common, 0, 0, 0, _PRIVATE_FILE, length) + label
        head = _LOCAL.pack(_LOCAL_MARK, _ZIP_VERSION, *common) + label
        yield head
        yield part
        length += len(head) + len(part)
    yield directory + _END.pack(_END_MARK, 0, 0, len(names), len(names), len(directory), length, 0)


def unpack(data: bytes) -> dict[str, bytes]:
    """Return the parts of a kit by name. The central directory is not checked here: `parse` compares all bytes."""
    return {name: bytes(part) for name, part in _unpack(data).items()}


def _unpack(data: bytes) -> dict[str, memoryview]:
    """Return the parts of a kit by name, as views of `data`."""
    if len(data) > MAX_BYTES:
        raise errors.KitSizeError(f"The kit is larger than {MAX_BYTES >> 20} MB.", _USE_BUILT_FILE)
    if not (data.startswith(_LOCAL_MARK) or (data and _LOCAL_MARK.startswith(data))):
        raise errors.KitError("This file is not a kit.", _USE_BUILT_FILE)
    truncated = errors.KitTruncatedError("The end of the kit is missing.", _COPY_AGAIN)
    parts: dict[str, memoryview] = {}
    view, position = memoryview(data), 0
    while data.startswith(_LOCAL_MARK, position):
        if position + _LOCAL.size > len(data):
            raise truncated
        _, _, _, method, _, _, _, stored, length, name_length, extra_length = _LOCAL.unpack_from(data, position)
        if method != 0 or stored != length:
            raise errors.KitSizeError(f"The kit is compressed and would unpack to {length} bytes or more.", _COPY_AGAIN)
        start = position + _LOCAL.size + name_length + extra_length
        name = data[position + _LOCAL.size : start].decode("ascii", "replace")
        position = start + length
        if position > len(data):
            raise truncated
        if not parts and name != MANIFEST:
            raise errors.KitError("This file is not a kit.", _USE_BUILT_FILE)
        if name not in FILES_IN_KIT:
            problem = "The kit contains a part that this version does not know."
            raise errors.KitDamagedError(problem, "Copy it again, or install the version of lclrr-edge that built it.")
        if name in parts:
            raise errors.KitDamagedError("The kit contains a part twice.", _COPY_AGAIN)
        parts[name] = view[start:position]
    if len(data) - position < _END.size:
        raise truncated
    return parts


def check_signature(manifest: bytes, signature: bytes, public_key: bytes) -> None:
    """Raise an error unless `signature` was made over `manifest` with the private half of `public_key` (PEM)."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError:
        problem = "The signature of the kit cannot be checked: the package cryptography is missing."
        raise errors.SignatureUnavailableError(problem, "Run `pip install cryptography`.") from None
    key = load_public_key(public_key)
    if not isinstance(key, Ed25519PublicKey):
        problem = "The key for checking signatures is not an Ed25519 public key."
        raise errors.KitSignatureError(problem, "Use the .pub file that `edge-export keygen` wrote.")
    try:
        key.verify(signature, signed_message(manifest))
    except InvalidSignature:
        problem = "The kit is signed with another key, or was changed after signing."
        raise errors.KitSignatureError(problem, "Do not use it. Ask the person who built it.") from None


def signed_message(manifest: bytes) -> bytes:
    """Return the bytes that a signature covers."""
    return _SIGNATURE_PREFIX + manifest
