"""Secrets, certificates and key files (PEM). Keys need the package cryptography.

Secrets are never in the settings, which are shown and copied, but in a file or an environment variable.
"""

import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from edge.errors import SettingsError, SinkError, UsageError
from edge.files import read_bytes, write_atomically

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

MAX_BYTES = 1 << 16


def read_secret(name: str, file: str | Path | None, variable: str | None) -> str | None:
    """Return the first line of the file, or the value of the environment variable; None if neither is named."""
    if file is not None:
        line = read_bytes(file, MAX_BYTES, SettingsError).partition(b"\n")[0].strip(b"\r")
        try:
            secret = line.decode()
        except UnicodeError:
            secret = ""
        if not secret:
            raise SettingsError(f"The first line of {file}, for the {name}, is empty or not UTF-8 text.")
        return secret
    if variable is not None and not os.environ.get(variable):
        raise SettingsError(f"The environment variable {variable}, for the {name}, is not set.")
    return None if variable is None else os.environ[variable]


def tls_context(
    name: str, ca_file: Path | None, cert_file: Path | None = None, key_file: Path | None = None
) -> ssl.SSLContext:
    """Return a TLS context that trusts `ca_file` (None: the system's certificates) and shows `cert_file`."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
        if cert_file is not None:
            context.load_cert_chain(cert_file, key_file)
    except OSError as error:
        why = error.strerror or "not in PEM form"
        raise SinkError(
            f"The certificates for {name} cannot be used ({why}).", "Check ca_file, cert_file, key_file."
        ) from None
    return context


def key_pair_pem(key: "Ed25519PrivateKey | X25519PrivateKey") -> tuple[bytes, bytes]:
    """Return a private key and its public half in PEM."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), public


def write_key_pair(path: Path, key: "Ed25519PrivateKey | X25519PrivateKey") -> Path:
    """Write a private key to `path` and its public half beside it. Return the path of the public half.

    Existing key files are never replaced: they may be in use.
    """
    private, public = key_pair_pem(key)
    public_path = path.with_name(f"{path.name}.pub")
    for existing in (path, public_path):
        if existing.exists():
            raise UsageError(f"{existing} already exists.", "Choose another name, or move the old key first.")
    try:
        write_atomically(path, private)
        write_atomically(public_path, public, mode=0o644)
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}).", "Choose another folder.") from None
    return public_path


def load_public_key(pem: bytes) -> "PublicKeyTypes | None":
    """Return the public key, or None if this is not one."""
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        return load_pem_public_key(pem)
    except ValueError:
        return None


def load_private_key(pem: bytes, password: bytes | None = None) -> "PrivateKeyTypes | None":
    """Return the private key, or None if this is not one, or the password is missing, wrong or not needed."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(pem, password)
    except (ValueError, TypeError):
        return None


def signing_key(pem: bytes) -> "Ed25519PrivateKey":
    """Return the private key that signs kits. UsageError if this is not one."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = load_private_key(pem)
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError("The signing key is not an Ed25519 private key.", "Make one with `edge-export keygen`.")
    return key
