"""A key pair on disk, as kits are signed with and pictures sealed for: the private half for its owner alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edge.errors import UsageError
from edge.files import write_atomically


def write_pair(path: Path, key: Any, used: str) -> Path:
    """Write a private `key` of the package cryptography at `path`, and its public half beside it; the latter's path.

    A key that is there already is never replaced: something may be `used` with it.
    """
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    public_path = path.with_name(f"{path.name}.pub")
    for existing in (path, public_path):
        if existing.exists():
            raise UsageError(f"{existing} exists, and {used} it.", "Choose another name, or move the old key away first.")
    try:
        write_atomically(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        write_atomically(public_path, public, mode=0o644)
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}).", "Choose another place.") from None
    return public_path
