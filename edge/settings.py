"""The settings of a terminal: one TOML file in which everything may be left out. docs/reference/settings.md shows all of it.

Each table is a frozen dataclass of the part that it is for, and the file is read by the fields' types: a key that is no field
is refused. What a field means is the text below it, which the template and the documentation are made of. Secrets are not
written here: a table that needs one names a file (`..._file`) or a variable of the environment (`..._env`) that holds it.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from ipaddress import ip_address
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from edge.audit.crypto import Seal
from edge.audit.gate import AuditSettings
from edge.camera.base import STALL_SECONDS, display_name
from edge.credentials import read_secret
from edge.decision.challenge import LivenessSettings
from edge.decision.doorlist import DoorList
from edge.decision.visit import VisitRules
from edge.errors import EdgeError, ParameterError, SettingsError
from edge.events.event import arguments, check_seconds
from edge.files import read_bytes
from edge.monitor.http_server import parse_address
from edge.monitor.metrics import MetricsSettings
from edge.sinks import mqtt, webhook
from edge.sinks.gpio import GpioSettings
from edge.sinks.mqtt import MqttSettings
from edge.sinks.webhook import WebhookSettings
from edge.text import printable
from edge.vision.detect import MIN_FACE
from edge.vision.quality import QualityLimits

MAX_BYTES = 1 << 20
MAX_THREADS = 64
_PASSWORD = re.compile(r"://([^/]*:[^/]*@|.*(pass|pwd|token|secret|auth|key)\w*=)", re.IGNORECASE)  # in an address


@dataclass(frozen=True, kw_only=True)
class KitSettings:
    """What recognises."""

    path: Path | None = None
    """The kit (not set: EDGE_KIT, ./door.kit, /etc/lclrr-edge/door.kit)."""
    public_key: Path | None = None
    """Require the kit to be signed with this key (PEM)."""
    min_face: int = MIN_FACE
    """Width of the smallest face, in pixels."""
    threads: int = 1
    """Threads for finding and recognising."""
    store: Path | None = None
    """A folder for the kits in force and before, of this terminal alone: with it, a new kit at `path` is taken up while
    running. Not set: the folder kits in the STATE_DIRECTORY of the service; else none. docs/guide/kit-updates.md says more."""
    series: str | None = None
    """Take kits of this series alone (not set: of the series of the kit in force)."""
    watch_seconds: float = 2.0
    """How often to look for a new kit."""

    def __post_init__(self) -> None:
        if not 0.01 <= self.watch_seconds <= 3600:
            raise ParameterError(f"watch_seconds must be between 0.01 and 3600, not {self.watch_seconds:g}")
        if self.min_face < 10 or not 1 <= self.threads <= MAX_THREADS:
            raise ParameterError(
                f"min_face must be 10 or more and threads 1 to {MAX_THREADS}, not {self.min_face} and {self.threads}"
            )


@dataclass(frozen=True, kw_only=True)
class CameraSettings:
    """Where the pictures come from."""

    source: str = "0"
    """0, /dev/video0, picamera2:0, rtsp://..., http://..., a video file or a folder of images."""
    source_file: Path | None = None
    """A file that holds the source instead: for an address with a password."""
    source_env: str | None = None
    """A variable of the environment that holds it."""
    wait: bool = False
    """Wait for a camera that is not there yet."""
    max_fps: float = 15.0
    """Frames looked at in a second, of a live camera."""
    stall_seconds: float = STALL_SECONDS
    """A live camera without a picture for so long is lost, and opened again."""

    def __post_init__(self) -> None:
        if self.source_file is not None and self.source_env is not None:
            raise ParameterError("source_file and source_env cannot both be set")
        if not 0.1 <= self.max_fps <= 1000:
            raise ParameterError(f"max_fps must be between 0.1 and 1000, not {self.max_fps:g}")
        if not 0.5 <= self.stall_seconds <= 60:
            raise ParameterError(f"stall_seconds must be between 0.5 and 60, not {self.stall_seconds:g}")

    @property
    def address(self) -> str:
        """The source, wherever it is written."""
        return read_secret("camera's address", self.source_file, self.source_env) or self.source


@dataclass(frozen=True, kw_only=True)
class DoorSettings:
    """Who may pass."""

    list: Path | None = None
    """The door list (not set: whoever is recognised may pass). docs/guide/door-list.md shows the format."""


@dataclass(frozen=True, kw_only=True)
class EventSettings:
    """Who is told, beside the tables below."""

    json_lines: bool | None = None
    """Events as JSON on stdout (not set: unless stdout is a terminal)."""
    on_grant: str | None = None
    """A command to run for each grant, the event on its stdin. There is no shell."""
    on_grant_seconds: float = 5.0
    """How long that command may take."""

    def __post_init__(self) -> None:
        check_seconds(self.on_grant_seconds)


@dataclass(frozen=True, kw_only=True)
class PreviewSettings:
    """A live page for whoever sets the terminal up."""

    address: str | None = None
    """Where to serve it, as 127.0.0.1:8080 (not set: nowhere)."""

    def __post_init__(self) -> None:
        if self.address is not None:
            parse_address(self.address)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A terminal."""

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
        """Whether it talks to other machines, or may do so."""
        camera = self.camera
        elsewhere = "://" in camera.source or camera.source_file is not None or camera.source_env is not None
        served = self.preview.address is not None and not ip_address(parse_address(self.preview.address)[0]).is_loopback
        return elsewhere or served or any(part is not None for part in (self.events.on_grant, self.mqtt, self.webhook))

    def paths(self) -> Iterator[Path]:
        """All files and folders that are named."""
        for part in fields(self):
            table = getattr(self, part.name)
            yield from (value for value in ([] if table is None else vars(table).values()) if isinstance(value, Path))

    def override(self, **tables: Mapping[str, Any]) -> Settings:
        """With other values, those that are not None: settings.override(visits={"needed": 4}, door={"list": None}).

        A `source` of the camera replaces one that is in a file or in the environment.
        """
        changed = {}
        for name, values in tables.items():
            given = {key: value for key, value in values.items() if value is not None}
            if name == "camera" and "source" in given:
                given |= {"source_file": None, "source_env": None}
            changed[name] = replace(getattr(self, name), **given)
        return replace(self, **changed)


# Reading.


def holds_password(text: str) -> bool:
    """Whether an address in the text seems to hold one."""
    return _PASSWORD.search(text) is not None


def load(path: str | Path | None) -> Settings:
    """The settings in a file, or those that hold without one."""
    if path is None:
        return Settings()
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "not a file name"
        raise SettingsError(f"The settings {path} cannot be read: {why}.") from None
    return parse(data, str(path), Path(path).absolute().parent)


def parse(data: bytes, source: str = "settings", folder: Path = Path()) -> Settings:
    """From the bytes of a file: `source` is its name in messages, `folder` what its relative paths start from."""
    if len(data) > MAX_BYTES:
        raise SettingsError(f"{source} is larger than {MAX_BYTES >> 20} MB: those are no settings.")
    try:
        contents = tomllib.loads(data.decode().removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        why = "it is not UTF-8 text" if isinstance(error, UnicodeError) else str(error) or "nested too deeply"
        raise SettingsError(f"{source} is not readable as TOML: {printable(why)}.") from None
    problems: list[str] = []
    settings = _table(Settings, contents, f"{source}: ", folder, problems)
    if settings is None:
        raise SettingsError(*problems)
    return settings


def problems(path: Path | None) -> list[str]:
    """All that is wrong with a settings file, and with the files, variables and programs that it names."""
    try:
        settings = load(path)
    except SettingsError as error:
        return list(error.problems)
    checks: list[tuple[Callable[[Any], object], Any]] = [
        (lambda camera: camera.address, settings.camera),
        (DoorList.load, settings.door.list),
        (read_bytes, settings.kit.path),
        (read_bytes, settings.kit.public_key),
        (arguments, settings.events.on_grant),
        (lambda file: Seal(read_bytes(file)), settings.audit and settings.audit.picture_key),
        (mqtt.credentials, settings.mqtt),
        (webhook.credentials, settings.webhook),
    ]
    found = []
    for check, what in checks:
        try:
            if what is not None:
                check(what)
        except EdgeError as error:
            found.append(f"{path}: {error.message}")
    return found


class _WrongType(Exception):  # noqa: N818 (never seen outside)
    """What a value should have been."""


def _table(kind: type[Any], table: dict[str, Any], where: str, folder: Path, problems: list[str]) -> Any:
    """A dataclass from a table, or None with the reasons added to `problems`."""
    hints, before = get_type_hints(kind), len(problems)
    known = {item.name: hints[item.name] for item in fields(kind)}
    values = {}
    for key, value in table.items():
        if key not in known:
            problems.append(f"{where}{_unknown(key, list(known))}")
        elif nested := _dataclass(known[key]):
            if isinstance(value, dict):
                values[key] = _table(nested, value, f"{where}[{key}] ", folder, problems)
            else:
                problems.append(f"{where}{key} must be a table: [{key}]")
        elif isinstance(value, str) and holds_password(value):
            problems.append(f"{where}{key} holds a password, which does not belong here{_instead(key, list(known))}")
        else:
            try:
                values[key] = _value(known[key], value, folder)
            except _WrongType as wrong:
                problems.append(f"{where}{key} must be {wrong}, not {_shown(value)}")
    missing = [item.name for item in fields(kind) if _default(item) is MISSING and item.name not in table]
    problems += [f"{where}{name} is missing" for name in missing]
    if len(problems) > before:
        return None
    try:
        return kind(**values)
    except EdgeError as error:
        problems.append(f"{where}{error}")
        return None


def _unknown(key: str, known: list[str]) -> str:
    word = printable(key[:40])
    if instead := _instead(key, known):
        return f"`{word}` is a secret, which does not belong here{instead}"
    near = get_close_matches(key, known, n=1)
    if near:
        return f"unknown key `{word}`; did you mean `{near[0]}`?"
    home = [item.name for item in fields(Settings) if key in _keys(item.name)]
    return f"unknown key `{word}`; " + (f"it belongs to [{home[0]}]" if home else f"known are {', '.join(known)}")


def _instead(key: str, known: list[str]) -> str:
    names = [name for name in known if name in (f"{key}_file", f"{key}_env")]
    return f": use {' or '.join(names)}" if names else ""


def _value(hint: Any, value: Any, folder: Path) -> Any:
    """The value as its field's type wants it. A bool is no number, and a number is no text."""
    hint = _without_none(hint)
    if get_origin(hint) is Literal:
        if value in get_args(hint) and type(value) is type(get_args(hint)[0]):
            return value
        raise _WrongType(" or ".join(map(repr, get_args(hint))))
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise _WrongType("a list")
        return tuple(_value(get_args(hint)[0], part, folder) for part in value)
    if hint is float and type(value) in (int, float) and abs(value) <= 1e300:
        return float(value)
    if hint is Path and type(value) is str and value and "\0" not in value:
        return folder / value
    if hint in (bool, int, str) and type(value) is hint and not _is_huge(value):
        return value
    raise _WrongType({bool: "true or false", int: "a whole number", float: "a number", Path: "a path"}.get(hint, "text"))


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (part for part in get_args(hint) if part is not NoneType)
    return hint


def _dataclass(hint: Any) -> Any:
    kind = _without_none(hint)
    return kind if is_dataclass(kind) else None


def _keys(table: str) -> list[str]:
    return [item.name for item in fields(_dataclass(get_type_hints(Settings)[table]))]


def _default(item: Any) -> Any:
    return item.default if item.default_factory is MISSING else item.default_factory()


def _shown(value: Any) -> str:
    kinds: dict[type, str] = {dict: "a table", list: "a list"}
    return kinds.get(type(value)) or ("so large a number" if _is_huge(value) else printable(repr(value)[:40]))


def _is_huge(value: Any) -> bool:
    """Beyond TOML's 64 bits: Python refuses to write numbers of thousands of digits, in messages too."""
    return type(value) is int and not -(1 << 63) <= value < 1 << 63


# Writing.


def template() -> str:
    """A file that changes nothing: each key with its meaning and its default, out of force by a # until somebody needs it."""
    return "\n".join(_lines(Settings(), documented=True))


def as_toml(settings: Settings) -> str:
    """All settings in force. What may be a password in an address is not shown."""
    return "\n".join(_lines(settings, documented=False))


def _lines(settings: Settings, *, documented: bool) -> Iterator[str]:
    for part in fields(settings):
        table, kind = getattr(settings, part.name), _dataclass(get_type_hints(Settings)[part.name])
        if documented:
            yield f"# {_sentence(kind)}"
        elif table is None:
            continue
        yield f"# [{part.name}]" if table is None else f"[{part.name}]"
        about, hints = field_docs(kind), get_type_hints(kind)
        for item in fields(kind):
            value = _default(item) if table is None else getattr(table, item.name)
            if documented:
                unset = '"..."' if _without_none(hints[item.name]) in (str, Path) else "..."
                yield f"# {item.name} = {_toml(value) if value not in (None, MISSING) else unset}"
                yield from textwrap.wrap(about[item.name], 110, initial_indent="#     ", subsequent_indent="#     ")
            elif value is not None:
                yield f"{item.name} = {_toml(_masked(value))}"
        yield ""


def _masked(value: Any) -> Any:
    """Without what may be a password in an address."""
    try:
        return display_name(value) if isinstance(value, str) and "://" in value else value
    except ValueError:
        return "***"


def _sentence(kind: type[Any]) -> str:
    return (inspect.getdoc(kind) or "").partition("\n")[0]


def field_docs(kind: type[Any]) -> dict[str, str]:
    """The text below each field of a dataclass, which Python itself does not keep."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for item, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
            docs[item.target.id] = " ".join(text.value.value.split()) if is_text else ""  # type: ignore[attr-defined]
    return docs


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str | Path):
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
