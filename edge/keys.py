"""Key files (PEM). Needs the package cryptography."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edge.errors import UsageError
from edge.files import write_atomically

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey


def write_key_pair(path: Path, key: Ed25519PrivateKey | X25519PrivateKey) -> Path:
    """Write a private key to `path` and its public half beside it. Return the path of the public half.

    Existing key files are never replaced: they may be in use.
    """
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    public_path = path.with_name(f"{path.name}.pub")
    for existing in (path, public_path):
        if existing.exists():
            raise UsageError(f"{existing} already exists.", "Choose another name, or move the old key first.")
    try:
        write_atomically(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        write_atomically(public_path, public, mode=0o644)
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}).", "Choose another folder.") from None
    return public_path


def load_public_key(pem: bytes) -> PublicKeyTypes | None:
    """Return the public key, or None if this is not one."""
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        return load_pem_public_key(pem)
    except ValueError:
        return None


def load_private_key(pem: bytes) -> PrivateKeyTypes | None:
    """Return the private key, or None if this is not one or it needs a password."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(pem, password=None)
    except (ValueError, TypeError):
        return None
