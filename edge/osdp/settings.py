"""The settings of OSDP, and the key file."""

import secrets
from dataclasses import dataclass
from pathlib import Path

from edge.credentials import read_secret
from edge.errors import SettingsError, require
from edge.files import write_file

BAUD_RATES = (9600, 19200, 38400, 57600, 115200, 230400)
KEY_BYTES = 16
DEFAULT_KEY = bytes(range(0x30, 0x40))
"""SCBK-D of the standard, which everyone knows."""


@dataclass(frozen=True, kw_only=True)
class OsdpSettings:
    """The terminal as a reader of a door controller, over RS-485."""

    device: Path
    """The serial port, e.g. /dev/ttyUSB0."""
    key_file: Path
    """File with the key of the Secure Channel (SCBK): 32 hexadecimal digits. Only its owner may read it."""
    numbers_file: Path
    """File with the credential number of each person. docs/guide/osdp.md describes the format."""
    baud: int = 9600
    """Bits per second: 9600, 19200, 38400, 57600, 115200 or 230400."""
    address: int = 0
    """Address of this reader on the line, 0 to 126."""
    serial: int = 0
    """Serial number that the controller is given."""
    grant_seconds: float = 2.0
    """A grant that the controller did not collect within this time is not sent any more."""
    power_file: Path | None = None
    """File that contains 1 while the power supply works, e.g. /sys/class/power_supply/AC/online (not set: it always works)."""
    install_mode: bool = False
    """Allow the controller to set a new key with the key that everyone knows (SCBK-D). Only for the installation."""

    def __post_init__(self) -> None:
        require(self.baud in BAUD_RATES, f"baud must be one of {', '.join(map(str, BAUD_RATES))}, not {self.baud}")
        require(0 <= self.address <= 126, f"address must be between 0 and 126, not {self.address}")
        require(0 <= self.serial < 1 << 32, f"serial must be between 0 and {(1 << 32) - 1}, not {self.serial}")
        seconds = self.grant_seconds
        require(0.2 <= seconds <= 10, f"grant_seconds must be between 0.2 and 10, not {seconds:g}")


def read_key(settings: OsdpSettings) -> bytes:
    """Return the key of the Secure Channel. In install mode there may be none yet: then a random one, so that no key fits."""
    path = settings.key_file
    if settings.install_mode and not path.exists():
        return secrets.token_bytes(KEY_BYTES)
    text = read_secret("key of OSDP", path, None) or ""
    if path.stat().st_mode & 0o077:
        raise SettingsError(f"{path} can be read by other users. Run `chmod 600 {path}`.")
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise SettingsError(f"The first line of {path} must be {2 * KEY_BYTES} hexadecimal digits (`openssl rand -hex 16`).")
    if key == DEFAULT_KEY:
        raise SettingsError(f"{path} holds SCBK-D, the key that everyone knows. Use another one (`openssl rand -hex 16`).")
    return key


def write_key(path: Path, key: bytes) -> None:
    """Store the key that a controller has set."""
    require(len(key) == KEY_BYTES and key != DEFAULT_KEY, "the controller set a key that cannot be used")
    write_file(path, key.hex().encode() + b"\n", failure=SettingsError)
