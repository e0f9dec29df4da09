"""Settings of a terminal: one TOML file in which every key is optional. docs/reference/settings.md shows all keys.

Each table is a frozen dataclass. The file holds no secrets: a table that needs one names a file (`..._file`) or an
environment variable (`..._env`) instead. `scripts/qa/settings_template.py` makes settings.template.toml from the same fields.
"""

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from ipaddress import ip_address
from itertools import combinations
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from edge.audit.crypto import Seal
from edge.audit.gate import AuditSettings
from edge.audit.head import read_head_key
from edge.camera.base import FROZEN_SECONDS, STALL_SECONDS, display_name
from edge.credentials import read_secret
from edge.decision import doorlist
from edge.decision.challenge import LivenessSettings
from edge.decision.doorlist import DoorList
from edge.decision.track import GAP_SECONDS
from edge.decision.visit import VisitRules
from edge.errors import DoorListError, EdgeError, SettingsError, require
from edge.files import read_bytes
from edge.fleet import settings as fleet
from edge.fleet.settings import FleetSettings
from edge.inputs.monitor import InputSettings
from edge.monitor.http_server import parse_address
from edge.monitor.kiosk_page import KioskSettings
from edge.monitor.metrics import MetricsSettings
from edge.osdp import numbers
from edge.osdp.settings import OsdpSettings, read_key
from edge.sinks import mqtt, webhook
from edge.sinks.command import check_seconds, split_command
from edge.sinks.gpio import GpioSettings
from edge.sinks.indicator import IndicatorSettings
from edge.sinks.mqtt import MqttSettings
from edge.sinks.webhook import WebhookSettings
from edge.text import printable
from edge.vision.detect import MIN_FACE
from edge.vision.quality import QualityLimits

MAX_BYTES = 1 << 20
MAX_THREADS = 64
MIN_FPS = 5.0
"""Frames per second that a door needs: the face must be seen again within `GAP_SECONDS`."""
_PASSWORD = re.compile(r"://([^/]*:[^/]*@|.*(pass|pwd|token|secret|auth|key)\w*=)", re.IGNORECASE)
_EXPECTED = {bool: "true or false", int: "a whole number", float: "a number", Path: "a path", str: "text"}


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
    """Frames per second taken from a live camera, at most. 5 or more: a face that is not seen for 0.3 seconds starts a new
    visit."""
    stall_seconds: float = STALL_SECONDS
    """A live camera without a frame for so long is lost, and is opened again."""
    frozen_seconds: float = FROZEN_SECONDS
    """A live camera whose frames do not change for so long is frozen. Repeated frames never count."""

    def __post_init__(self) -> None:
        require(self.source_file is None or self.source_env is None, "source_file and source_env cannot both be set")
        why = f"a face that is not seen for {GAP_SECONDS:g} seconds starts a new visit, so a slow camera grants nothing"
        require(MIN_FPS <= self.max_fps <= 1000, f"max_fps must be between {MIN_FPS:g} and 1000, not {self.max_fps:g}: {why}")
        _check_range("stall_seconds", self.stall_seconds, 0.5, 60)
        _check_range("frozen_seconds", self.frozen_seconds, 1, 60)

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
    kiosk: KioskSettings | None = None
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    audit: AuditSettings | None = None
    gpio: GpioSettings | None = None
    inputs: InputSettings | None = None
    indicator: IndicatorSettings | None = None
    osdp: OsdpSettings | None = None
    mqtt: MqttSettings | None = None
    webhook: WebhookSettings | None = None
    fleet: FleetSettings | None = None

    def __post_init__(self) -> None:
        require(self.kiosk is None or self.preview.address is not None, "[kiosk] needs the address of [preview]")
        pins = {
            "inputs": set() if self.inputs is None else {pin for pin, _ in self.inputs.pins.values()},
            "gpio": set() if self.gpio is None else {self.gpio.pin},
            "indicator": set() if self.indicator is None else set(self.indicator.pins),
        }
        for one, other in combinations(pins, 2):
            require(pins[one].isdisjoint(pins[other]), f"[{one}] and [{other}] cannot use the same pin")
        if self.inputs is not None:
            require(self.gpio is not None or not self.inputs.exit_opens, "[inputs] exit_opens needs the relay of [gpio]")

    @property
    def needs_network(self) -> bool:
        """Whether the terminal may communicate with other machines."""
        camera, address = self.camera, self.preview.address
        remote_camera = "://" in camera.source or camera.source_file is not None or camera.source_env is not None
        public_preview = address is not None and not ip_address(parse_address(address)[0]).is_loopback
        sends = any(part is not None for part in (self.events.on_grant, self.mqtt, self.webhook, self.fleet))
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
        (read_head_key, settings.audit and settings.audit.head_key_file),
        (read_key, settings.osdp),
        (lambda table: numbers.read(table.numbers_file), settings.osdp),
        (mqtt.credentials, settings.mqtt),
        (webhook.credentials, settings.webhook),
        (lambda table: read_bytes(table.root), settings.fleet),
        (fleet.credentials, settings.fleet),
    ]
    found = []
    for check, value in checks:
        try:
            if value is not None:
                check(value)
        except EdgeError as error:
            found.append(f"{path}: {error.message}")
    return found


def holds_password(text: str) -> bool:
    """Return whether the text seems to be an address with a password."""
    return _PASSWORD.search(text) is not None


class TableReader:
    """Builds a `root` dataclass, whose fields are tables, and collects all problems. Relative paths start from `folder`."""

    def __init__(self, root: type[Any], folder: Path) -> None:
        self.root, self.folder = root, folder
        self.problems: list[str] = []

    def read(self, kind: type[Any], table: dict[str, Any], where: str) -> Any:
        """Return a dataclass from a table, or None if there are problems. `where` begins each problem."""
        known, count = get_type_hints(kind), len(self.problems)
        values = {}
        for key, value in table.items():
            if key not in known:
                self.problems.append(f"{where}{self._unknown(key, list(known))}")
            elif nested := table_type(known[key]):
                if isinstance(value, dict):
                    values[key] = self.read(nested, value, f"{where}[{key}] ")
                else:
                    self.problems.append(f"{where}{key} must be a table: [{key}]")
            elif isinstance(value, str) and holds_password(value):
                self.problems.append(f"{where}{key} must not contain a password{_instead(key, list(known))}")
            else:
                try:
                    values[key] = self._value(known[key], value)
                except ValueError as expected:
                    kinds: dict[type, str] = {dict: "a table", list: "a list"}
                    shown = "such a large number" if _is_huge(value) else kinds.get(type(value)) or printable(repr(value)[:40])
                    self.problems.append(f"{where}{key} must be {expected}, not {shown}")
        required = [item.name for item in fields(kind) if item.default is item.default_factory is MISSING]
        self.problems += [f"{where}{name} is missing" for name in required if name not in table]
        if len(self.problems) > count:
            return None
        try:
            return kind(**values)
        except EdgeError as error:
            self.problems.append(f"{where}{error}")
            return None

    def _unknown(self, key: str, known: list[str]) -> str:
        shown = f"`{printable(key[:40])}`"
        if instead := _instead(key, known):
            return f"{shown} is not allowed here{instead}"
        if near := get_close_matches(key, known, n=1):
            return f"unknown key {shown}; did you mean `{near[0]}`?"
        tables = {name: get_type_hints(table_type(hint)) for name, hint in get_type_hints(self.root).items()}
        homes = [name for name, keys in tables.items() if key in keys]
        return f"unknown key {shown}; " + (f"it belongs to [{homes[0]}]" if homes else f"known keys: {', '.join(known)}")

    def _value(self, hint: Any, value: Any) -> Any:
        """Return the value in its field's type, or raise ValueError(expected type). A bool is not a number."""
        hint = _without_none(hint)
        if hint is float and type(value) in (int, float) and abs(value) <= 1e300:
            return float(value)
        if hint is Path and type(value) is str and value and "\0" not in value:
            return self.folder / value
        if hint in (bool, int, str) and type(value) is hint and not _is_huge(value):
            return value
        raise ValueError(_EXPECTED[hint])


def _instead(key: str, known: list[str]) -> str:
    names = [name for name in known if name in (f"{key}_file", f"{key}_env")]
    return f": use {' or '.join(names)}" if names else ""


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (part for part in get_args(hint) if part is not NoneType)
    return hint


def table_type(hint: Any) -> Any:
    """Return the dataclass that a type hint allows, or None."""
    kind = _without_none(hint)
    return kind if is_dataclass(kind) else None


def _is_huge(value: Any) -> bool:
    """Return whether a number exceeds TOML's 64 bits. Python raises if it prints thousands of digits."""
    return type(value) is int and not -(1 << 63) <= value < 1 << 63


def as_toml(settings: Any) -> str:
    """Return a file with all values that are set. Passwords in addresses are masked."""
    lines = []
    for name, table in vars(settings).items():
        if table is not None:
            values = {key: value for key, value in vars(table).items() if value is not None}
            lines += [f"[{name}]", *(f"{key} = {to_toml(_masked(value))}" for key, value in values.items()), ""]
    return "\n".join(lines)


def _masked(value: Any) -> Any:
    try:
        return display_name(value) if isinstance(value, str) and "://" in value else value
    except ValueError:
        return "***"


def to_toml(value: Any) -> str:
    """Return a value as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | Path):
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
