"""Events to an MQTT 5 broker, and to Home Assistant by way of it. The package paho-mqtt is loaded when a sink is opened.

`lclrr-edge/<terminal>/event` has every event as JSON (QoS 1, never retained: a grant must not be read again by whoever comes
later); `.../state` is online or offline and `.../camera` is ON or OFF (both retained). docs/guide/sinks.md says what a receiver of
grants has to check.
"""

from __future__ import annotations

import logging
import math
import queue
import re
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge.credentials import read_secret
from edge.errors import ParameterError, SinkError
from edge.events.event import Event
from edge.sinks import EXPIRED, message
from edge.sinks.retry import Courier, Later, Refused
from edge.text import strict_json

ANSWER_SECONDS = 5.0  # for the broker, to accept a connection or acknowledge a message
ROOT = "lclrr-edge"
ONLINE, OFFLINE = "online", "offline"

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class MqttSettings:
    """Events to an MQTT 5 broker."""

    host: str
    """The broker's name or address; with TLS, as its certificate has it."""
    port: int = 8883
    """Usually 8883 with TLS and 1883 without."""
    terminal: str | None = None
    """This terminal's name in topics, unlike any other's at the broker (not set: the device's host name)."""
    user: str | None = None
    """To log in with."""
    password_file: Path | None = None
    """A file that holds the password in its first line."""
    password_env: str | None = None
    """A variable of the environment that holds it."""
    tls: bool = True
    """Without it, anyone on the way can read events and send grants."""
    ca_file: Path | None = None
    """Whose certificates to believe, PEM (not set: those that the system believes)."""
    cert_file: Path | None = None
    """The terminal's own certificate, PEM, if the broker asks for one."""
    key_file: Path | None = None
    """The key of that certificate, PEM."""
    names: bool = False
    """Whether events say who it was."""
    discovery: str | None = "homeassistant"
    """Home Assistant's discovery prefix; empty for none."""
    grant_seconds: float = 5.0
    """How long after the decision a grant may open anything. One that could not be sent by then is told as expired."""
    waiting: int = 100
    """Events kept for a broker that is away."""

    def __post_init__(self) -> None:
        if not self.host or not 1 <= self.port <= 65535:
            raise ParameterError(f"host and port must name a broker, not {self.host!r} and {self.port}")
        if self.terminal is not None and not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", self.terminal):
            raise ParameterError(f"terminal must be up to 64 letters, digits, - and _, not {self.terminal!r}")
        if self.discovery is not None and re.search(r"[+#\0]", self.discovery):
            raise ParameterError(f"discovery must be a topic without + and #, not {self.discovery!r}")
        if self.password_file is not None and self.password_env is not None:
            raise ParameterError("password_file and password_env cannot both be set")
        if self.user is None and (self.password_file is not None or self.password_env is not None):
            raise ParameterError("a password needs a user")
        if (self.cert_file is None) != (self.key_file is None):
            raise ParameterError("cert_file and key_file need each other")
        if not self.tls and (self.ca_file is not None or self.cert_file is not None):
            raise ParameterError("ca_file and cert_file need tls = true")
        if not 0 < self.grant_seconds <= 60:
            raise ParameterError(f"grant_seconds must be more than 0 and at most 60, not {self.grant_seconds:g}")
        if not 1 <= self.waiting <= 100_000:
            raise ParameterError(f"waiting must be between 1 and 100000, not {self.waiting}")

    @property
    def topic(self) -> str:
        """What all topics of this terminal begin with."""
        return f"{ROOT}/{self.terminal or re.sub('[^A-Za-z0-9_-]', '-', socket.gethostname()) or 'terminal'}"


def open_sink(settings: MqttSettings) -> Mqtt:
    """A sink that connects in the background: a broker that is away is no reason not to start, a wrong file is."""
    return Mqtt(settings)


class Mqtt(Courier):
    """Each event is published until the broker has acknowledged it: at least once, in order, also past its restart.

    Nothing but the courier's queue outlives a connection, so a grant is never sent again as it was: each attempt looks at the
    clock anew.
    """

    def __init__(self, settings: MqttSettings, **courier: Any) -> None:
        try:
            import paho.mqtt.client  # noqa: F401
        except ImportError:
            raise SinkError("MQTT needs the package paho-mqtt.", "Install lclrr-edge[mqtt].") from None
        self._settings = settings
        self._password, self._tls = credentials(settings)
        self._line: _Line | None = None
        self._camera = "ON"
        if settings.user is not None and not settings.tls:
            log.warning("the password for %s is sent for all on the way to read: tls is off", settings.host)
        super().__init__(
            "the MQTT broker",
            self._publish,
            waiting=settings.waiting,
            tend=self._connect,
            hang_up=self._leave,
            **{"pause_seconds": 5.0} | courier,  # short: a grant that waits out a pause is no grant any more
        )

    @property
    def connected(self) -> bool:
        line = self._line
        return line is not None and line.up

    def _publish(self, event: Event, age_seconds: float) -> None:
        line, topic = self._connect(), self._settings.topic
        if event.kind in ("start", "camera"):
            self._camera = "OFF" if event.outcome == "lost" else "ON"
            line.publish(f"{topic}/camera", self._camera, retain=True)
        settings = self._settings
        facts = message(event, age_seconds=age_seconds, grant_seconds=settings.grant_seconds, names=settings.names)
        # The broker itself forgets a grant that a sleeping subscriber did not fetch in time.
        seconds = None if facts["nonce"] is None else max(1, math.ceil(settings.grant_seconds - age_seconds))
        line.publish(f"{topic}/event", strict_json(facts), expires_seconds=seconds)

    def _connect(self) -> _Line:
        """The connection, or a new one on which it was told who is here."""
        if self._line is not None:
            if self._line.up:
                return self._line
            self._line.close()
            self._line = None
        line = _Line(self._settings, self._password, self._tls)
        try:
            for topic, facts in discovery(self._settings).items():
                line.publish(topic, strict_json(facts), retain=True)
            line.publish(f"{self._settings.topic}/camera", self._camera, retain=True)
            line.publish(f"{self._settings.topic}/state", ONLINE, retain=True)
        except Refused as problem:  # for example, no right to write there: events may have better luck
            log.warning("the MQTT broker was not told who is here: %s", problem)
        except Later:
            line.close()
            raise
        self._line = line
        return line

    def _leave(self) -> None:
        if self._line is not None:
            try:
                if self._line.up:
                    self._line.publish(f"{self._settings.topic}/state", OFFLINE, retain=True)
            except (Later, Refused):
                log.debug("the broker will tell that the terminal is offline")
            self._line.close()


class _Line:
    """One connection to a broker. It is up when it is made, and once it is down it stays so."""

    def __init__(self, settings: MqttSettings, password: str | None, tls: ssl.SSLContext | None) -> None:
        from paho.mqtt import client as paho

        # Held by the callbacks, which must not hold the line: a circle would keep the client's sockets open after close().
        answers: queue.SimpleQueue[tuple[int | None, str]] = queue.SimpleQueue()
        self._answers = answers
        terminal = settings.topic.rpartition("/")[2]
        client = self._client = paho.Client(
            paho.CallbackAPIVersion.VERSION2,
            client_id=f"{ROOT}-{terminal}",
            protocol=paho.MQTTv5,
            reconnect_on_failure=False,
        )
        client.connect_timeout = ANSWER_SECONDS
        client.username_pw_set(settings.user, password)
        client.will_set(f"{settings.topic}/state", OFFLINE, qos=1, retain=True)
        if tls is not None:
            client.tls_set_context(tls)
        # An answer is for a message (its number), for the connection (0), or says that there is none any more (None).
        client.on_connect = lambda c, u, flags, code, properties: answers.put((0, _problem(code)))
        client.on_publish = lambda c, u, number, code, properties: answers.put((number, _problem(code)))
        client.on_disconnect = lambda c, u, flags, code, properties: answers.put((None, str(code)))
        try:
            client.connect(settings.host, settings.port, keepalive=15)
        except (OSError, ValueError) as error:  # ValueError: a host name that cannot be one
            raise Later(f"no connection ({getattr(error, 'strerror', None) or type(error).__name__})") from None
        client.loop_start()
        try:
            problem = self._answer(0)
        except Later:
            self.close()
            raise
        if problem:
            self.close()
            raise Later(f"the connection was refused ({problem})")

    @property
    def up(self) -> bool:
        return self._client.is_connected()

    def publish(self, topic: str, payload: str, *, retain: bool = False, expires_seconds: int | None = None) -> None:
        """Return when the broker has acknowledged it."""
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        properties = None
        if expires_seconds is not None:
            properties = Properties(PacketTypes.PUBLISH)
            properties.MessageExpiryInterval = expires_seconds
        sent = self._client.publish(topic, payload, qos=1, retain=retain, properties=properties)
        if sent.rc != 0:
            raise Later("the connection was lost")
        problem = self._answer(sent.mid)
        if problem:
            raise Refused(f"the broker says: {problem}")

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _answer(self, number: int) -> str:
        """What the broker has against it; mostly nothing."""
        while True:
            try:
                answered, problem = self._answers.get(timeout=ANSWER_SECONDS)
            except queue.Empty:
                self._client.disconnect()  # nobody knows what became of it: a new connection starts afresh
                raise Later("the broker does not answer") from None
            if answered is None:
                raise Later(f"the connection was lost ({problem})")
            if answered == number:
                return problem


def _problem(code: Any) -> str:
    return str(code) if code.is_failure else ""


def credentials(settings: MqttSettings) -> tuple[str | None, ssl.SSLContext | None]:
    """The password and what certificates go by, from the files and variables that the settings name."""
    password = read_secret("MQTT password", settings.password_file, settings.password_env)
    if not settings.tls:
        return password, None
    try:
        context = ssl.create_default_context(cafile=settings.ca_file)
        if settings.cert_file is not None:
            context.load_cert_chain(settings.cert_file, settings.key_file)
    except OSError as error:
        why = error.strerror or "not in PEM form"
        raise SinkError(f"The certificates for MQTT cannot be used ({why}).", "Check ca_file, cert_file, key_file.") from None
    return password, context


def discovery(settings: MqttSettings) -> dict[str, dict[str, Any]]:
    """What Home Assistant is told, by topic: a sensor for the camera, and an event entity for decisions."""
    if not settings.discovery:
        return {}
    topic = settings.topic
    terminal = topic.rpartition("/")[2]
    common = {
        "availability_topic": f"{topic}/state",
        "device": {"identifiers": [f"{ROOT}-{terminal}"], "name": f"Door terminal {terminal}", "manufacturer": ROOT},
    }
    camera = {
        "name": "Camera",
        "unique_id": f"{ROOT}-{terminal}-camera",
        "device_class": "connectivity",
        "state_topic": f"{topic}/camera",
        **common,
    }
    shown = "event_id nonce expires reason utc visit" + (" label" if settings.names else "")
    attributes = ", ".join(f"'{name}': value_json.{name}" for name in shown.split())
    decision = {
        "name": "Decision",
        "unique_id": f"{ROOT}-{terminal}-decision",
        "event_types": ["granted", "denied", EXPIRED],
        "state_topic": f"{topic}/event",
        "value_template": (
            "{% if value_json.kind == 'decision' %}"
            f"{{{{ {{'event_type': value_json.outcome, {attributes}}} | tojson }}}}"
            "{% endif %}"
        ),
        **common,
    }
    prefix = settings.discovery
    return {
        f"{prefix}/binary_sensor/{ROOT}-{terminal}/camera/config": camera,
        f"{prefix}/event/{ROOT}-{terminal}/decision/config": decision,
    }
