"""The head of an audit log: number and hash of an entry, as text. It covers this entry and all entries before it.

With a key, the terminal adds the HMAC-SHA256 of the head. A person without the key cannot make it for another head.
"""

import hashlib
import hmac
import re
from pathlib import Path

from edge.credentials import read_secret
from edge.errors import SettingsError

MIN_KEY = 16  # characters


def head_text(seq: int, digest: str) -> str:
    return f"{seq}:{digest}"


def parse_head(head: str) -> tuple[int, str] | None:
    """Return number and hash, or None if the text is not a head."""
    found = re.fullmatch(r"([0-9]{1,18}):([0-9a-f]{64})", head.lower())
    return None if found is None else (int(found[1]), found[2])


def read_head_key(file: Path) -> bytes:
    """Return the secret in the first line of the file."""
    secret = read_secret("key of the head", file, None) or ""
    if len(secret) < MIN_KEY:
        raise SettingsError(f"The key in {file} is shorter than {MIN_KEY} characters. Create one: openssl rand -hex 32")
    return secret.encode()


def head_mac(key: bytes, head: str) -> str:
    """Return the HMAC-SHA256 of a head, in hexadecimal digits."""
    return hmac.new(key, head.encode(), hashlib.sha256).hexdigest()
