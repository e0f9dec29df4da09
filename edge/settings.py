"""Settings of a terminal: one TOML file in which every key is optional. docs/reference/settings.md shows all keys.

Each table is a frozen dataclass. The file holds no secrets: a table that needs one names a file (`..._file`) or an
environment variable (`..._env`) instead.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from edge.audit.crypto import Seal
from edge.audit.gate import AuditSettings
from edge.camera.base import STALL_SECONDS
from edge.credentials import read_secret
from edge.decision import doorlist
from edge.decision.challenge import LivenessSettings
from edge.decision.doorlist import DoorList
from edge.decision.visit import VisitRules
from edge.errors import DoorListError, EdgeError, SettingsError, require
from edge.files import read_bytes
from edge.monitor.http_server import parse_address
from edge.monitor.metrics import MetricsSettings
from edge.settings_file import TableReader
from edge.settings_file import holds_password as holds_password
from edge.sinks import mqtt, webhook
from edge.sinks.command import check_seconds, split_command
from edge.sinks.gpio import GpioSettings
from edge.sinks.mqtt import MqttSettings
from edge.sinks.webhook import WebhookSettings
from edge.text import printable
from edge.vision.detect import MIN_FACE
from edge.vision.quality import QualityLimits

MAX_BYTES = 1 << 20
MAX_THREADS = 64


@dataclass(frozen=True, kw_only=True)
class KitSettings:
    """The kit."""

    path: Path | None = None
    """The kit file (not set: EDGE_KIT, ./door.kit, /etc/lclrr-edge/door.kit)."""
    public_key: Path | None = None
    """Accept only kits that are signed with this key (PEM)."""
    min_face: int = MIN_FACE
    """Smallest face to look for: its width in pixels."""
    threads: int = 1
    """Threads for detection and recognition."""
    store: Path | None = None
    """Folder for the active and the previous kit of this terminal. With it, a new kit at `path` is loaded while the
    terminal runs. Not set: the folder kits in the STATE_DIRECTORY of the service, else none. See docs/guide/kit-updates.md."""
    series: str | None = None
    """Accept only kits of this series (not set: the series of the active kit)."""
    watch_seconds: float = 2.0
    """Time between two looks for a new kit."""

    def __post_init__(self) -> None:
        _check_range("watch_seconds", self.watch_seconds, 0.01, 3600)
        _check_range("threads", self.threads, 1, MAX_THREADS)
        require(self.min_face >= 10, f"min_face must be 10 or more, not {self.min_face}")


@dataclass(frozen=True, kw_only=True)
class CameraSettings:
    """The camera."""

    source: str = "0"
    """0, /dev/video0, picamera2:0, rtsp://..., http://..., a video file or a folder of images."""
    source_file: Path | None = None
    """A file that holds the source: for an address with a password."""
    source_env: str | None = None
    """An environment variable that holds the source."""
    wait: bool = False
    """Wait for a camera that is not connected yet."""
    max_fps: float = 15.0
    """Frames per second taken from a live camera, at most."""
    stall_seconds: float = STALL_SECONDS
    """A live camera without a frame for so long is lost, and is opened again."""

    def __post_init__(self) -> None:
        require(self.source_file is None or self.source_env is None, "source_file and source_env cannot both be set")
        _check_range("max_fps", self.max_fps, 0.1, 1000)
        _check_range("stall_seconds", self.stall_seconds, 0.5, 60)

    @property
    def address(self) -> str:
        """The source, from the file or the environment if one is named."""
        return read_secret("camera source", self.source_file, self.source_env) or self.source


@dataclass(frozen=True, kw_only=True)
class DoorSettings:
    """Who may pass."""

    list: Path | None = None
    """The door list (not set: every enrolled person may pass). docs/guide/door-list.md describes the format."""


@dataclass(frozen=True, kw_only=True)
class EventSettings:
    """Where events go, besides the tables below."""

    json_lines: bool | None = None
    """Write events as JSON to stdout (not set: only if stdout is not a terminal)."""
    on_grant: str | None = None
    """Command to run for each grant, without a shell. It gets the event on stdin."""
    on_grant_seconds: float = 5.0
    """Time limit of that command."""

    def __post_init__(self) -> None:
        check_seconds(self.on_grant_seconds)


@dataclass(frozen=True, kw_only=True)
class PreviewSettings:
    """A live page for setting up the terminal."""

    address: str | None = None
    """Address to serve it at, e.g. 127.0.0.1:8080 (not set: no preview)."""

    def __post_init__(self) -> None:
        if self.address is not None:
            parse_address(self.address)


def _check_range(name: str, value: float, low: float, high: float) -> None:
    require(low <= value <= high, f"{name} must be between {low:g} and {high:g}, not {value:g}")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of a terminal."""

    kit: KitSettings = field(default_factory=KitSettings)
    camera: CameraSettings = field(default_factory=CameraSettings)
    door: DoorSettings = field(default_factory=DoorSettings)
    visits: VisitRules = field(default_factory=VisitRules)
    quality: QualityLimits = field(default_factory=QualityLimits)
    liveness: LivenessSettings = field(default_factory=LivenessSettings)
    events: EventSettings = field(default_factory=EventSettings)
    preview: PreviewSettings = field(default_factory=PreviewSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    audit: AuditSettings | None = None
    gpio: GpioSettings | None = None
    mqtt: MqttSettings | None = None
    webhook: WebhookSettings | None = None

    @property
    def needs_network(self) -> bool:
        """Whether the terminal may communicate with other machines."""
        camera, address = self.camera, self.preview.address
        remote_camera = "://" in camera.source or camera.source_file is not None or camera.source_env is not None
        public_preview = address is not None and not ip_address(parse_address(address)[0]).is_loopback
        sends = any(part is not None for part in (self.events.on_grant, self.mqtt, self.webhook))
        return remote_camera or public_preview or sends

    def paths(self) -> list[Path]:
        """Return all files and folders that the settings name."""
        tables = [vars(table) for table in vars(self).values() if table is not None]
        return [value for table in tables for value in table.values() if isinstance(value, Path)]

    def override(self, **tables: Mapping[str, Any]) -> "Settings":
        """Return settings with other values; None keeps a value. A camera `source` replaces `source_file` and `source_env`."""
        changed = {}
        for name, values in tables.items():
            given = {key: value for key, value in values.items() if value is not None}
            if name == "camera" and "source" in given:
                given |= {"source_file": None, "source_env": None}
            changed[name] = replace(getattr(self, name), **given)
        return replace(self, **changed)


def load(path: str | Path | None) -> Settings:
    """Return the settings of a file; without a file, the defaults."""
    if path is None:
        return Settings()
    return parse(read_bytes(path, MAX_BYTES + 1, SettingsError), str(path), Path(path).absolute().parent)


def parse(data: bytes, source: str = "settings", folder: Path = Path()) -> Settings:
    """Return the settings in the bytes of a file. `source` names it in messages; relative paths start from `folder`."""
    if len(data) > MAX_BYTES:
        raise SettingsError(f"{source} is larger than {MAX_BYTES >> 20} MB. This is not a settings file.")
    try:
        contents = tomllib.loads(data.decode().removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        why = "it is not UTF-8 text" if isinstance(error, UnicodeError) else str(error) or "it is nested too deeply"
        raise SettingsError(f"{source} is not valid TOML: {printable(why)}.") from None
    reader = TableReader(Settings, folder)
    settings: Settings | None = reader.read(Settings, contents, f"{source}: ")
    if settings is None:
        raise SettingsError(*reader.problems)
    return settings


def read_door_list(path: str | Path) -> DoorList:
    """Read a door list from a file."""
    return DoorList.parse(read_bytes(path, doorlist.MAX_BYTES + 1, DoorListError), str(path))


def problems(path: Path | None) -> list[str]:
    """Return all problems of a settings file, and of the files, variables and programs that it names."""
    try:
        settings = load(path)
    except SettingsError as error:
        return list(error.problems)
    checks: list[tuple[Callable[[Any], object], Any]] = [
        (lambda camera: camera.address, settings.camera),
        (read_door_list, settings.door.list),
        (read_bytes, settings.kit.path),
        (read_bytes, settings.kit.public_key),
        (split_command, settings.events.on_grant),
        (lambda file: Seal(read_bytes(file)), settings.audit and settings.audit.picture_key),
        (mqtt.credentials, settings.mqtt),
        (webhook.credentials, settings.webhook),
    ]
    found = []
    for check, value in checks:
        try:
            if value is not None:
                check(value)
        except EdgeError as error:
            found.append(f"{path}: {error.message}")
    return found
