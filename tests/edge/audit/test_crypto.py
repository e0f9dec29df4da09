"""Sealed pictures open only with the private key, the same context and unchanged bytes."""

from __future__ import annotations

import stat
from functools import cache
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edge.audit.crypto import Seal, open_box, write_keys
from edge.errors import UsageError


@cache
def keys() -> tuple[bytes, bytes]:
    """Return (private, public) keys in PEM."""
    key = X25519PrivateKey.from_private_bytes(b"a" * 32)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private, key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@given(data=st.binary(max_size=300), at=st.integers(0, 10_000), bit=st.integers(0, 7))
@example(data=b"", at=31, bit=7)  # X25519 ignores this bit of a public key
@settings(max_examples=30)
def test_box_opens_only_unchanged(data: bytes, at: int, bit: int) -> None:
    private, public = keys()
    seal = Seal(public)
    box = seal(data, b"context")
    assert box != seal(data, b"context")
    assert open_box(box, b"context", private) == data
    changed = bytearray(box)
    changed[at % len(box)] ^= 1 << bit
    for wrong, context in ((bytes(changed), b"context"), (box[:20], b"context"), (box, b"other")):
        with pytest.raises(UsageError, match="sealed for another key"):
            open_box(wrong, context, private)


def test_only_the_private_key_opens_a_box(key: Path) -> None:
    box = Seal(keys()[1])(b"picture", b"context")
    for private in (key.read_bytes(), keys()[1], b"no key"):
        with pytest.raises(UsageError):
            open_box(box, b"context", private)


def test_key_files_are_private_and_never_replaced(key: Path) -> None:
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    with pytest.raises(UsageError, match="exists"):
        write_keys(key)
    with pytest.raises(UsageError, match="X25519 public"):
        Seal(key.read_bytes())
    with pytest.raises(UsageError, match="cannot be written"):
        write_keys(key / "key.pem")
