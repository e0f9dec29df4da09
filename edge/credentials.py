"""Read secrets. They are never in the settings, which are shown and copied, but in a file or an environment variable."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from edge.errors import SettingsError, SinkError
from edge.files import read_bytes

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
