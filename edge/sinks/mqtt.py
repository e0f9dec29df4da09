"""Events to an MQTT 5 broker, and through it to Home Assistant. The package paho-mqtt is loaded when a sink is opened.

`lclrr-edge/<terminal>/event` carries every event as JSON (QoS 1, never retained: late subscribers must not see a grant), and
`.../alarm` those that are alarms. Retained: `.../state` is online or offline, `.../camera`, `.../contact` and `.../tamper` are
ON or OFF, `.../head` is the head of the audit log, and in a fleet `.../status` is what the door has.
docs/guide/sinks.md: what receivers must check.
"""

import json
import logging
import math
import queue
import re
import socket
import ssl
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from edge.clock import boottime
from edge.credentials import read_secret, tls_context
from edge.errors import HeadUnavailableError, SinkError, require
from edge.events.event import Event, message
from edge.events.worker import DeliveryError, TemporaryError, Worker
from edge.text import strict_json

if TYPE_CHECKING:
    from paho.mqtt.client import Client
    from paho.mqtt.reasoncodes import ReasonCode

REPLY_SECONDS = 5.0  # for the broker, to accept a connection or acknowledge a message
CHECK_SECONDS = 1.0  # between two looks at the connection
STATUS_SECONDS = 300.0  # a status is published again after this time, even if nothing changed
PAUSE_SECONDS = 5.0  # longest pause between two attempts: a grant expires meanwhile

MAX_HEAD_BYTES = 1 << 16
SWITCHES = {
    "opened": ("contact", "ON"),
    "closed": ("contact", "OFF"),
    "tamper": ("tamper", "ON"),
    "tamper ended": ("tamper", "OFF"),
}
"""Topic and state of an input by the outcome of its event. ON is open, as Home Assistant expects it."""

log = logging.getLogger(__name__)

Replies: TypeAlias = "queue.SimpleQueue[tuple[int | None, ReasonCode]]"
"""Replies of a broker to a message (its number) or to the connection (0), or its loss (None)."""


@dataclass(frozen=True, kw_only=True)
class MqttSettings:
    """Events to an MQTT 5 broker."""

    host: str
    """The broker's name or address; with TLS, the one in its certificate."""
    port: int = 8883
    """Usually 8883 with TLS and 1883 without."""
    terminal: str | None = None
    """This terminal's name in topics, unique at the broker (not set: the device's host name)."""
    user: str | None = None
    """User name for the login."""
    password_file: Path | None = None
    """File with the password in its first line."""
    password_env: str | None = None
    """Environment variable with the password."""
    tls: bool = True
    """Encrypt. Without it, others on the network can read events and send grants."""
    ca_file: Path | None = None
    """Certificates to trust, PEM (not set: those of the system)."""
    cert_file: Path | None = None
    """The terminal's own certificate, PEM, if the broker requires one."""
    key_file: Path | None = None
    """The key of that certificate, PEM."""
    names: bool = False
    """Include the person's label in events."""
    discovery: str | None = "homeassistant"
    """Home Assistant's discovery prefix; empty: no discovery."""
    grant_seconds: float = 5.0
    """How long a grant is valid after the decision. If it is sent later, its outcome is `expired`."""
    waiting: int = 100
    """Events kept while the broker is offline."""

    def __post_init__(self) -> None:
        has_password = self.password_file is not None or self.password_env is not None
        has_name = self.terminal is None or re.fullmatch(r"[A-Za-z0-9_-]{1,64}", self.terminal) is not None
        require(self.host != "" and 1 <= self.port <= 65535, f"host and port are invalid: {self.host!r}, {self.port}")
        require(has_name, f"terminal must be up to 64 letters, digits, - and _, not {self.terminal!r}")
        require(not re.search(r"[+#\0]", self.discovery or ""), f"discovery must not contain + or #: {self.discovery!r}")
        require(self.password_file is None or self.password_env is None, "password_file and password_env cannot both be set")
        require(self.user is not None or not has_password, "a password needs a user")
        require((self.cert_file is None) == (self.key_file is None), "cert_file and key_file must be set together")
        require(self.tls or self.ca_file is self.cert_file is None, "ca_file and cert_file need tls = true")
        require(0 < self.grant_seconds <= 60, f"grant_seconds must be more than 0 and at most 60, not {self.grant_seconds:g}")
        require(1 <= self.waiting <= 100_000, f"waiting must be between 1 and 100000, not {self.waiting}")

    @property
    def topic(self) -> str:
        """The beginning of all topics of this terminal."""
        return f"lclrr-edge/{self.terminal or re.sub('[^A-Za-z0-9_-]', '-', socket.gethostname()) or 'terminal'}"


class StatusSource(Protocol):
    """What is published as the status of a door."""

    def facts(self) -> Mapping[str, Any]:
        """Return what is published again when it changes."""

    def message(self) -> Mapping[str, Any]:
        """Return everything that is published."""


class MqttSink(Worker[Event]):
    """A sink that publishes each event at least once, in order, also after a restart of the broker.

    It connects in the background. A wrong file is an error now; a broker that is offline is not. Nothing outlives a connection
    except the queue, so no grant is repeated unchanged: each attempt reads the clock.
    """

    def __init__(
        self,
        settings: MqttSettings,
        *,
        switches: Collection[str] = (),
        status: Callable[[], StatusSource | None] = lambda: None,
        clock: Callable[[], float] = boottime,
    ) -> None:
        """`switches` says which inputs the terminal has: contact, tamper. `status` returns None as long as there is none."""
        _require_paho()
        self._settings, self._entities = settings, discovery(settings, switches)
        self._password, self._tls = credentials(settings)
        self._client: Client | None = None  # of the current connection; once it is down it stays down
        self._replies: Replies = queue.SimpleQueue()
        self._states = {"camera": "ON"}  # by topic
        self._head = ""  # the newest one, as JSON
        self._status = status
        self._published: tuple[Mapping[str, Any] | None, float] = None, 0.0  # the facts of the newest status, and when
        if settings.user is not None and not settings.tls:
            log.warning("the MQTT password for %s is sent without encryption: tls is off", settings.host)
        super().__init__(
            self._send,
            name="the MQTT broker",
            capacity=settings.waiting,
            pause_seconds=PAUSE_SECONDS,
            idle=self._idle,
            finish=self._disconnect,
            clock=clock,
        )

    def _send(self, event: Event) -> None:
        self._maintain()
        topic, settings, age_seconds = self._settings.topic, self._settings, self.waited_seconds()
        if (changed := _state(event)) is not None:
            name, state = changed
            self._states[name] = state
            self._publish(f"{topic}/{name}", state, retain=True)
        fields = message(event, age_seconds=age_seconds, grant_seconds=settings.grant_seconds, names=settings.names)
        # The broker deletes a grant that a sleeping subscriber did not fetch in time.
        seconds = None if fields["nonce"] is None else max(1, math.ceil(settings.grant_seconds - age_seconds))
        self._publish(f"{topic}/event", strict_json(fields), expires_seconds=seconds)
        if event.is_alarm:
            self._publish_alarm(strict_json(fields))
        if event.head is not None:
            self._head = strict_json({name: fields[name] for name in ("sequence", "head", "head_mac", "utc")})
            try:
                self._publish(f"{topic}/head", self._head, retain=True)
            except (DeliveryError, TemporaryError) as problem:  # the event arrived, so do not repeat it
                log.warning("the head of the audit log was not published: %s", problem)

    def _publish_alarm(self, payload: str) -> None:
        try:
            self._publish(f"{self._settings.topic}/alarm", payload)
        except DeliveryError as problem:  # for example no right to write there: the event itself has arrived
            log.warning("an alarm was published only as an event: %s", problem)

    def _idle(self) -> float:
        """Keep the connection and the status. Return the seconds until the next call."""
        pause = self._maintain()
        self._publish_status()
        return pause

    def _publish_status(self) -> None:
        """Publish the status if it changed, or after some time."""
        if (source := self._status()) is None:
            return
        facts, now = source.facts(), self._clock()
        known, since = self._published
        if facts != known or now - since >= STATUS_SECONDS:
            self._published = facts, now
            try:
                self._publish(f"{self._settings.topic}/status", strict_json(source.message()), retain=True)
            except DeliveryError as problem:  # for example no right to write there
                log.warning("the status was not published: %s", problem)

    def _maintain(self) -> float:
        """Connect and announce this terminal, unless the connection is up. Return the seconds until the next look."""
        if not self._is_connected():
            self._close()
            self._published = None, 0.0
            try:
                self._connect()
                for topic, fields in self._entities.items():
                    self._publish(topic, strict_json(fields), retain=True)
                for name, state in self._states.items():
                    self._publish(f"{self._settings.topic}/{name}", state, retain=True)
                self._publish(f"{self._settings.topic}/state", "online", retain=True)
                if self._head:
                    self._publish(f"{self._settings.topic}/head", self._head, retain=True)
            except DeliveryError as problem:  # for example no right to write there: events may still pass
                log.warning("the terminal was not announced to the MQTT broker: %s", problem)
            except TemporaryError:
                self._close()
                raise
        return CHECK_SECONDS

    def _disconnect(self) -> None:
        """End the connection. After an error the broker itself publishes that this terminal is offline."""
        with suppress(TemporaryError, DeliveryError):
            if self._is_connected():
                self._publish(f"{self._settings.topic}/state", "offline", retain=True)
        self._close()

    def _is_connected(self) -> bool:
        client = self._client
        return client is not None and client.is_connected()

    def _connect(self) -> None:
        settings, client_id = self._settings, self._settings.topic.replace("/", "-")
        self._replies = queue.SimpleQueue()
        self._client = _new_client(settings, self._password, self._tls, self._replies, client_id=client_id)
        self._client.will_set(f"{settings.topic}/state", "offline", qos=1, retain=True)
        _connect(self._client, settings, self._replies)

    def _publish(self, topic: str, payload: str, *, retain: bool = False, expires_seconds: int | None = None) -> None:
        """Publish, and return when the broker has acknowledged it."""
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        assert self._client is not None
        properties = Properties(PacketTypes.PUBLISH)
        if expires_seconds is not None:
            properties.MessageExpiryInterval = expires_seconds
        sent = self._client.publish(topic, payload, qos=1, retain=retain, properties=properties)
        if sent.rc != 0:
            raise TemporaryError("the connection was lost")
        if problem := _reply(self._client, self._replies, sent.mid):
            raise DeliveryError(f"the broker rejected a message ({problem})")

    def _close(self) -> None:
        if self._client is not None:
            self._client.disconnect()
            self._client.loop_stop()
            self._client = None


def read_retained_head(settings: MqttSettings) -> str:
    """Return the head of the audit log that the broker keeps for this terminal: JSON, as it was published."""
    _require_paho()
    password, tls = credentials(settings)
    replies: Replies = queue.SimpleQueue()
    heads: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    client = _new_client(settings, password, tls, replies, client_id="")  # a name would end the terminal's connection
    client.on_message = lambda c, u, message: heads.put(bytes(message.payload))
    client.on_subscribe = lambda c, u, number, codes, properties: replies.put((number, codes[0]))
    topic = f"{settings.topic}/head"
    try:
        _connect(client, settings, replies)
        if problem := _reply(client, replies, client.subscribe(topic, qos=1)[1] or 0):
            raise DeliveryError(f"the subscription was rejected ({problem})")
        return heads.get(timeout=REPLY_SECONDS)[:MAX_HEAD_BYTES].decode("utf-8", "replace")
    except (TemporaryError, DeliveryError) as error:
        why = f"The MQTT broker {settings.host} gave no head: {error}."
        raise HeadUnavailableError(why, "Check [mqtt] in the settings, and the broker.") from None
    except queue.Empty:
        why = f"The MQTT broker {settings.host} has no head at {topic}, or this user may not read it."
        raise HeadUnavailableError(why, "Check `terminal` in the settings, and the rights of the user.") from None
    finally:
        client.disconnect()
        client.loop_stop()


def _require_paho() -> None:
    try:
        import paho.mqtt.client  # noqa: F401
    except ImportError:
        raise SinkError("MQTT needs the package paho-mqtt.", "Run `pip install paho-mqtt`.") from None


def _new_client(
    settings: MqttSettings, password: str | None, tls: ssl.SSLContext | None, replies: Replies, *, client_id: str
) -> "Client":
    """Return a client that is not connected yet, and that puts the broker's replies into a queue."""
    from paho.mqtt import client as paho

    client = paho.Client(
        paho.CallbackAPIVersion.VERSION2, client_id=client_id, protocol=paho.MQTTv5, reconnect_on_failure=False
    )
    client.connect_timeout = REPLY_SECONDS
    client.username_pw_set(settings.user, password)
    if tls is not None:
        client.tls_set_context(tls)
    client.on_connect = lambda c, u, flags, code, properties: replies.put((0, code))
    client.on_publish = lambda c, u, number, code, properties: replies.put((number, code))
    client.on_disconnect = lambda c, u, flags, code, properties: replies.put((None, code))
    return client


def _connect(client: "Client", settings: MqttSettings, replies: Replies) -> None:
    try:
        client.connect(settings.host, settings.port, keepalive=15)
    except (OSError, ValueError) as error:  # ValueError: an impossible host name
        raise TemporaryError(f"no connection ({getattr(error, 'strerror', None) or type(error).__name__})") from None
    client.loop_start()
    if problem := _reply(client, replies, 0):
        raise TemporaryError(f"the connection was rejected ({problem})")


def _reply(client: "Client", replies: Replies, number: int) -> str:
    """Wait for a reply and return the problem that it reports, or an empty text."""
    while True:
        try:
            replied, code = replies.get(timeout=REPLY_SECONDS)
        except queue.Empty:
            client.disconnect()  # the state of the message is unknown: begin with a new connection
            raise TemporaryError("the broker does not reply") from None
        if replied is None:
            raise TemporaryError(f"the connection was lost ({code})")
        if replied == number:
            return str(code) if code.is_failure else ""


def credentials(settings: MqttSettings) -> tuple[str | None, ssl.SSLContext | None]:
    """Read the password and the certificates that the settings name."""
    password = read_secret("MQTT password", settings.password_file, settings.password_env)
    tls = tls_context("MQTT", settings.ca_file, settings.cert_file, settings.key_file) if settings.tls else None
    return password, tls


def _state(event: Event) -> tuple[str, str] | None:
    """Return the retained topic that an event changes, and its new state."""
    if event.kind in ("start", "camera"):
        return "camera", "OFF" if event.outcome in ("lost", "frozen") else "ON"
    return SWITCHES.get(event.outcome or "") if event.kind == "input" else None


def discovery(settings: MqttSettings, switches: Collection[str] = ()) -> dict[str, dict[str, Any]]:
    """Return Home Assistant's configuration by topic: camera, `switches`, and an event entity for decisions."""
    if not settings.discovery:
        return {}
    template = Template(files("edge.sinks").joinpath("home_assistant.json").read_text(encoding="utf-8"))
    root, terminal = settings.topic.split("/")  # letters, digits, - and _: they need no escapes in JSON
    label = ", 'label': value_json.label" if settings.names else ""
    entities = json.loads(template.substitute(topic=settings.topic, id=f"{root}-{terminal}", terminal=terminal, label=label))
    used = {"camera", "decision", *switches}
    return {f"{settings.discovery}/{topic}": fields for topic, fields in entities.items() if topic.split("/")[2] in used}
