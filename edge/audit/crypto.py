"""Seal pictures: encrypt them for a public key, so that the device cannot read them back. Needs the package cryptography.

A sealed box is a new X25519 public key (32 bytes) and the data encrypted with ChaCha20-Poly1305. HKDF-SHA256 derives the
encryption key from the shared secret and both public keys. Only the holder of the private key can compute that secret.
"""

from pathlib import Path

from edge.credentials import load_private_key, load_public_key, write_key_pair
from edge.errors import SinkError, UsageError

_PURPOSE = b"lclrr-edge sealed picture 1"
_NONCE = bytes(12)  # each box has its own key, so the nonce can be constant


def write_keys(path: Path) -> Path:
    """Write a new key pair: the private key to `path`, the public key beside it. Return the path of the public key."""
    _require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return write_key_pair(path, X25519PrivateKey.generate())


class Seal:
    """Encrypts data for the holder of a private key, given its public half (PEM)."""

    def __init__(self, public_key: bytes) -> None:
        _require_cryptography()
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        key = load_public_key(public_key)
        if not isinstance(key, X25519PublicKey):
            raise UsageError("The picture key is not an X25519 public key.", "Use the .pub file of `edge audit keygen`.")
        self._key = key

    def __call__(self, data: bytes, context: bytes) -> bytes:
        """Return a box with `data`. It opens only together with the same `context`."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        ephemeral = X25519PrivateKey.generate()
        sender, receiver = ephemeral.public_key().public_bytes_raw(), self._key.public_bytes_raw()
        key = _derive_key(ephemeral.exchange(self._key), sender + receiver)
        return sender + ChaCha20Poly1305(key).encrypt(_NONCE, data, context)


def open_box(box: bytes, context: bytes, private_key: bytes) -> bytes:
    """Decrypt a box."""
    _require_cryptography()
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    key = load_private_key(private_key)
    if not isinstance(key, X25519PrivateKey):
        raise UsageError("The key is not an X25519 private key.", "Use the file that `edge audit keygen` wrote.")
    try:
        sender = box[:32]
        shared = key.exchange(X25519PublicKey.from_public_bytes(sender))
        cipher = ChaCha20Poly1305(_derive_key(shared, sender + key.public_key().public_bytes_raw()))
        return cipher.decrypt(_NONCE, box[32:], context)
    except (InvalidTag, ValueError):
        raise UsageError("The picture was sealed for another key, or was changed.", "Use the key of that time.") from None


def _derive_key(shared: bytes, salt: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), 32, salt, _PURPOSE).derive(shared)


def _require_cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise SinkError("Sealed pictures need the package cryptography.", "Run `pip install cryptography`.") from None
