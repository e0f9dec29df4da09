"""Settings of a terminal that belongs to a fleet."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from edge.addresses import require_private, web_address
from edge.credentials import tls_context
from edge.errors import require
from edge.fleet.documents import check_door, check_group

DENY_ALL, LIST_ONLY, GO_ON = "deny all", "list only", "go on"
POLICIES = (DENY_ALL, LIST_ONLY, GO_ON)


@dataclass(frozen=True, kw_only=True)
class FleetSettings:
    """Kits, door lists and revocations for many doors."""

    url: str
    """Address of the repository, https://...; plain http only for the device itself."""
    root: Path
    """The file root.json of the repository. It decides which keys are trusted."""
    group: str
    """The group of doors that this door belongs to."""
    door: str
    """This door's name in its group."""
    seconds: float = 60.0
    """Longest time between two looks for changes. They are at random moments."""
    allow_http: bool = False
    """Allow plain http to other machines. Signatures still hold, but others on the network can read kits and lists."""
    ca_file: Path | None = None
    """Certificates to trust, PEM (not set: those of the system)."""
    cert_file: Path | None = None
    """The terminal's own certificate, PEM, if the server requires one."""
    key_file: Path | None = None
    """The key of that certificate, PEM."""
    max_stale_hours: float = 24.0
    """Without verified data for so long, `when_stale` applies."""
    when_stale: str = DENY_ALL
    """deny all; list only: only people that the door list names, also in a group; go on: no change."""
    folder: Path | None = None
    """Folder for what was downloaded and verified (not set: the folder fleet beside the kit store)."""

    def __post_init__(self) -> None:
        require_private(self.url, allow_http=self.allow_http)
        require(not web_address(self.url).query and "#" not in self.url, "url must not contain ? or #")
        check_group(self.group)
        check_door(self.door)
        require((self.cert_file is None) == (self.key_file is None), "cert_file and key_file must be set together")
        require(1 <= self.seconds <= 86400, f"seconds must be between 1 and 86400, not {self.seconds:g}")
        require(
            0 < self.max_stale_hours <= 8760,
            f"max_stale_hours must be more than 0 and at most 8760, not {self.max_stale_hours:g}",
        )
        require(self.when_stale in POLICIES, f"when_stale must be one of {', '.join(POLICIES)}, not {self.when_stale!r}")


def credentials(settings: FleetSettings) -> ssl.SSLContext | None:
    """Read the certificates that the settings name. None: without TLS."""
    if web_address(settings.url).scheme == "http":
        return None
    return tls_context("the fleet", settings.ca_file, settings.cert_file, settings.key_file)
