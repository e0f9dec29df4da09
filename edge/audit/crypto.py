"""Sealing: what a device encrypts for somebody else and cannot read back itself. Needs the package cryptography.

A box is a new X25519 public key (32 bytes) and the data under ChaCha20-Poly1305, with a key that HKDF-SHA256 derives from the
shared secret and both public keys. Only the private half, which stays elsewhere, gives that secret again.
"""

from __future__ import annotations

from pathlib import Path

from edge.errors import SinkError, UsageError
from edge.keys import write_pair

_PURPOSE = b"lclrr-edge sealed picture 1"
_NONCE = bytes(12)  # each box has a key of its own, so the nonce need not differ


def write_keys(path: Path) -> Path:
    """A new key pair: the private half at `path`, to be kept away from the device, the public half beside it."""
    _need()
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return write_pair(path, X25519PrivateKey.generate(), "pictures may be sealed for")


class Seal:
    """Seals for the holder of a private key, given its public half (PEM)."""

    def __init__(self, public_key: bytes) -> None:
        _need()
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        try:
            key = load_pem_public_key(public_key)
        except ValueError:
            key = None
        if not isinstance(key, X25519PublicKey):
            raise UsageError("The key for pictures is no X25519 public key.", "Use the .pub file of `edge audit keygen`.")
        self._key = key

    def __call__(self, data: bytes, about: bytes) -> bytes:
        """A box with `data` that opens only together with `about`."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        once = X25519PrivateKey.generate()
        mine, theirs = once.public_key().public_bytes_raw(), self._key.public_bytes_raw()
        return mine + ChaCha20Poly1305(_derived(once.exchange(self._key), mine + theirs)).encrypt(_NONCE, data, about)


def open_box(box: bytes, about: bytes, private_key: bytes) -> bytes:
    """The data of a box."""
    _need()
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(private_key, password=None)
    except (ValueError, TypeError):  # no key, or one behind a password
        key = None
    if not isinstance(key, X25519PrivateKey):
        raise UsageError("The key is no X25519 private key.", "Use the file that `edge audit keygen` wrote.")
    try:
        theirs = box[:32]
        shared = key.exchange(X25519PublicKey.from_public_bytes(theirs))
        cipher = ChaCha20Poly1305(_derived(shared, theirs + key.public_key().public_bytes_raw()))
        return cipher.decrypt(_NONCE, box[32:], about)
    except (InvalidTag, ValueError):
        raise UsageError("The picture was sealed for another key, or was changed.", "Try the key of that time.") from None


def _derived(shared: bytes, salt: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), 32, salt, _PURPOSE).derive(shared)


def _need() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise SinkError("Sealed pictures need the package cryptography.", "Install lclrr-edge[signed].") from None
