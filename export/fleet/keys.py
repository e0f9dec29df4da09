"""The private keys of a repository: KEYS/ROLE/KEYID.pem, Ed25519, only readable by their owner.

Each role has a folder of its own, so that the keys of root and targets can be moved to a medium that is kept offline.
"""

from collections.abc import Iterable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from securesystemslib.signer import CryptoSigner, Key

from edge.credentials import MAX_BYTES, load_private_key, signing_key
from edge.errors import UsageError
from edge.files import read_bytes, write_file

SHORT = 12
"""Digits of a key ID in file names and messages."""
_ENCRYPTED = b"BEGIN ENCRYPTED PRIVATE KEY"


class Keyring:
    """The folder of keys. Key files that need a password which was not given count as missing."""

    def __init__(self, folder: Path, password: bytes | None = None) -> None:
        self.folder, self.password = folder, password

    def path(self, role: str) -> Path:
        """Return the folder of the keys of a role."""
        return self.folder / role

    def make(self, role: str, *, encrypt: bool = False) -> Key:
        """Make a key, write its private half, and return its public half."""
        private = Ed25519PrivateKey.generate()
        key = CryptoSigner(private).public_key
        how: KeySerializationEncryption = NoEncryption()
        if encrypt and self.password is not None:
            how = BestAvailableEncryption(self.password)
        folder = self.path(role)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{folder} cannot be made ({error.strerror}).", "Name another folder with --keys.") from None
        write_file(folder / f"{key.keyid[:SHORT]}.pem", private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how))
        return key

    def signers(self, role: str, keyids: Iterable[str]) -> list[CryptoSigner]:
        """Return the keys of a role that are here, can be opened, and are among these."""
        wanted = set(keyids)
        found = [load(path, self.password) for path in sorted(self.path(role).glob("*.pem"))]
        return [signer for signer in found if signer is not None and signer.public_key.keyid in wanted]


def from_pem(pem: bytes) -> CryptoSigner:
    """Return what signs with a private key that needs no password. UsageError if this is not one."""
    return CryptoSigner(signing_key(pem))


def load(path: Path, password: bytes | None = None) -> CryptoSigner | None:
    """Read a private key. None: it is encrypted, and there is no password."""
    pem = read_bytes(path, MAX_BYTES)
    is_encrypted = _ENCRYPTED in pem
    if is_encrypted and password is None:
        return None
    private = load_private_key(pem, password if is_encrypted else None)
    if isinstance(private, Ed25519PrivateKey):
        return CryptoSigner(private)
    if is_encrypted:
        raise UsageError(f"The password does not open {path}.", "Give the password of this key.")
    raise UsageError(f"{path} is not an Ed25519 private key.", "Use a file that `edge-export fleet` wrote.")
