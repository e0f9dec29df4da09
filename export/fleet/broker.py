"""What the terminals of a fleet keep at the MQTT broker: status and state of each, and alarms about kits.

Topics: docs/guide/sinks.md. What a terminal sends is bounded in number and size, and only values of the expected type are
used. The package paho-mqtt is loaded when a connection is made.
"""

import json
import math
import queue
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from edge.errors import FleetError, UsageError
from edge.fleet.documents import check_door, check_group
from edge.fleet.status import FAILING
from edge.kit.format import kit_id
from edge.sinks.mqtt import MqttSettings, credentials
from edge.text import printable, some

if TYPE_CHECKING:
    from paho.mqtt.client import Client, MQTTMessage

PREFIX = "lclrr-edge"
STATUS, STATE, ALARM = "status", "state", "alarm"
TOPICS = {STATE: 0, STATUS: 0, ALARM: 1}
"""The quality of service with which each topic is read. The broker keeps only alarms while a reader is away. The state of a
door comes first: without it, the door counts as offline."""
PORTS = {"mqtt": 1883, "mqtts": 8883}
MAX_TERMINALS, MAX_ALARMS = 10_000, 1000
MAX_BYTES, MAX_TEXT, MAX_NUMBER = 1 << 14, 300, 1 << 53
CONNECT_SECONDS = 10.0
KEPT_SECONDS = 7 * 86400
"""For so long the broker keeps alarms for a reader with a name."""
STATES = ("fresh", "offline", *FAILING)


@dataclass(frozen=True, kw_only=True)
class Report:
    """What is known about one door. None and "": not known."""

    group: str
    door: str
    terminal: str = ""
    """Its name in topics."""
    online: bool = False
    kit: str = ""
    """Id of the active kit: the first digits of its SHA-256."""
    kit_version: int | None = None
    list: str = ""
    state: str = ""
    """One of STATES. `offline` means that its last pull found no server."""
    error: str = ""
    verified: str = ""
    """UTC of the last verified pull."""
    decisions_per_hour: int | None = None
    refused: "KitAlarm | None" = None
    """The last kit that did not work at the door."""
    has_wrong_clock: bool = False
    """Whether the door says that its clock cannot be right. It follows its fleet all the same."""

    @property
    def problem(self) -> str:
        """Why a person should look at this door; empty: it works."""
        if not self.state:
            return self.error or "has not reported"
        if not self.online:
            return "is offline"
        return (self.error or f"its data are {self.state}") if self.state in FAILING else ""


@dataclass(frozen=True, kw_only=True)
class KitAlarm:
    """A kit that a terminal rejected or rolled back."""

    terminal: str
    kit: str
    sentence: str


def parse_address(address: str, *, user: str | None, password_file: Path | None, ca_file: Path | None) -> MqttSettings:
    """Return the settings of a broker that is named mqtts://HOST[:PORT], or mqtt://... without encryption."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port or PORTS.get(parts.scheme, 0)
        is_plain = not (parts.path.strip("/") or parts.query or parts.fragment or parts.username or parts.password)
    except ValueError:
        host, port, is_plain = None, 0, False
    if not host or not port or not is_plain:
        raise UsageError(f"{address[:MAX_TEXT]!r} is not an address of a broker.", "Write mqtts://HOST or mqtts://HOST:PORT.")
    return MqttSettings(
        host=host, port=port, tls=parts.scheme == "mqtts", user=user, password_file=password_file, ca_file=ca_file
    )


class Reader:
    """Receives what terminals publish while its `with` block runs. With a `name`, alarms of the time between two readers
    of this name arrive, too."""

    def __init__(self, settings: MqttSettings, *, name: str = "") -> None:
        self._settings, self._name = settings, name
        self._lock = threading.Lock()
        self._statuses: dict[str, bytes] = {}
        self._online: dict[str, bool] = {}
        self._alarms: list[KitAlarm] = []
        self._replies: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._lost = threading.Event()
        self._client: Client | None = None

    def __enter__(self) -> "Reader":
        self._client = self._new_client()
        try:
            self._begin(self._client)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def wait(self, seconds: float) -> None:
        """Receive for some time. FleetError if the connection ends."""
        if self._lost.wait(seconds):
            raise self._error("the connection ended")

    def reports(self) -> dict[tuple[str, str], Report]:
        """Return the report of each door, by group and door. FleetError if the connection has ended."""
        self.wait(0)
        with self._lock:
            statuses, online = dict(self._statuses), dict(self._online)
        return by_door(parse(name, data, online=online.get(name, False)) for name, data in statuses.items())

    def alarms(self) -> Sequence[KitAlarm]:
        """Return the alarms about kits so far."""
        with self._lock:
            return tuple(self._alarms)

    def _new_client(self) -> "Client":
        try:
            from paho.mqtt import client as paho
        except ImportError:
            raise UsageError("This command needs the package paho-mqtt.", "Run: pip install 'lclrr-edge[mqtt]'") from None
        password, tls = credentials(self._settings)
        client = paho.Client(
            paho.CallbackAPIVersion.VERSION2, client_id=self._name, protocol=paho.MQTTv5, reconnect_on_failure=False
        )
        client.connect_timeout = CONNECT_SECONDS
        client.username_pw_set(self._settings.user, password)
        if tls is not None:
            client.tls_set_context(tls)
        client.on_message = self._receive
        client.on_connect = lambda c, u, flags, code, properties: self._reply([code])
        client.on_subscribe = lambda c, u, number, codes, properties: self._reply(codes)
        client.on_disconnect = lambda c, u, flags, code, properties: self._lost.set()
        return client

    def _begin(self, client: "Client") -> None:
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = KEPT_SECONDS if self._name else 0
        try:
            client.connect(
                self._settings.host, self._settings.port, keepalive=30, clean_start=not self._name, properties=properties
            )
        except (OSError, ValueError) as error:  # ValueError: an impossible host name
            raise self._error(str(getattr(error, "strerror", None) or error or type(error).__name__)) from None
        client.loop_start()
        self._require_reply()
        wanted = TOPICS if self._name else {topic: qos for topic, qos in TOPICS.items() if topic != ALARM}
        client.subscribe([(f"{PREFIX}/+/{topic}", qos) for topic, qos in wanted.items()])
        self._require_reply()

    def _end(self) -> None:
        if self._client is not None:
            self._client.disconnect()
            self._client.loop_stop()
            self._client = None

    def _reply(self, codes: Iterable[Any]) -> None:
        self._replies.put(next((str(code) for code in codes if code.is_failure), ""))

    def _require_reply(self) -> None:
        try:
            problem = self._replies.get(timeout=CONNECT_SECONDS)
        except queue.Empty:
            problem = "no answer in time"
        if problem:
            raise self._error(problem)

    def _error(self, why: str) -> FleetError:
        problem = f"The MQTT broker {self._settings.host} cannot be read ({printable(why)[:MAX_TEXT]})."
        return FleetError(problem, "Check the address, the user and the rights of the user.")

    def _receive(self, client: "Client", userdata: Any, message: "MQTTMessage") -> None:
        _, terminal, topic = message.topic.split("/")
        terminal = printable(terminal)[:64]
        data = bytes(message.payload)
        with self._lock:
            is_new = terminal not in self._statuses and terminal not in self._online
            if len(data) > MAX_BYTES or (is_new and len(self._statuses) + len(self._online) >= 2 * MAX_TERMINALS):
                return
            if topic == STATE:
                self._online[terminal] = data == b"online"
            elif topic == ALARM:
                fields = _object(data)
                alarm = _kit_alarm(terminal, fields) if fields.get("kind") == "kit" else None
                self._alarms += [alarm] if alarm is not None and len(self._alarms) < MAX_ALARMS else []
            elif data:
                self._statuses[terminal] = data
            else:  # an empty retained message removes a terminal
                self._statuses.pop(terminal, None)


def parse(terminal: str, data: bytes, *, online: bool) -> Report | None:
    """Return the report in a status message. None: it is not from a door of a fleet."""
    fields = _object(data)
    group, door = _text(fields.get("group")), _text(fields.get("door"))
    try:
        check_group(group)
        check_door(door)
    except UsageError:
        return None
    state = _text(fields.get("state"))
    if state not in STATES:
        return Report(group=group, door=door, terminal=terminal, online=online, error="sends a status of another version")
    return Report(
        group=group,
        door=door,
        terminal=terminal,
        online=online,
        kit=_text(fields.get("kit")),
        kit_version=_number(fields.get("kit_version")),
        list=_text(fields.get("list")),
        state=state,
        error=_text(fields.get("error")),
        verified=_text(fields.get("verified")),
        decisions_per_hour=_number(fields.get("decisions_per_hour")),
        refused=_kit_alarm(terminal, refused) if isinstance(refused := fields.get("refused_kit"), dict) else None,
        has_wrong_clock=fields.get("clock_is_plausible") is False,
    )


def by_door(reports: Iterable[Report | None]) -> dict[tuple[str, str], Report]:
    """Return reports by group and door. If several terminals say that they are the same door, none of them is believed."""
    found: dict[tuple[str, str], list[Report]] = {}
    for report in reports:
        if report is not None:
            found.setdefault((report.group, report.door), []).append(report)
    return {key: same[0] if len(same) == 1 else _contradictory(same) for key, same in sorted(found.items())}


def _contradictory(reports: Sequence[Report]) -> Report:
    names = some(sorted(report.terminal for report in reports))
    return replace(Report(group=reports[0].group, door=reports[0].door), error=f"several terminals are this door: {names}")


def _kit_alarm(terminal: str, fields: Mapping[str, Any]) -> KitAlarm | None:
    """Return an alarm if a kit did not work: the reason begins with the id of the kit."""
    outcome, (kit, _, why) = _text(fields.get("outcome")), _text(fields.get("reason")).partition(": ")
    if outcome not in ("rejected", "rolled back") or kit_id(kit) != kit:
        return None
    return KitAlarm(terminal=terminal, kit=kit, sentence=f"{outcome} the kit {kit}: {why}")


def _object(data: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(value: Any) -> str:
    return printable(value)[:MAX_TEXT] if isinstance(value, str) else ""


def _number(value: Any) -> int | None:
    """Return a whole number, if it is one that can be shown."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return round(value) if is_number and 0 <= value <= MAX_NUMBER else None
