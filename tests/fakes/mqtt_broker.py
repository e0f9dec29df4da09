"""A real Mosquitto on loopback with user, password and TLS; a subscriber; a connection that can be cut."""

from __future__ import annotations

import getpass
import queue
import secrets
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from edge.sinks.mqtt import MqttSettings
from tests.fixtures.programs import find_program
from tests.fixtures.waiting import until

USER, PASSWORD = "terminal", "correct horse"
FIRST_PORT, PORTS = 20_000, 12_000  # below those that Linux gives to connections


def write_certificates(folder: Path) -> None:
    """Write a CA (ca.pem) and the certificates server.pem and client.pem that it signed, each with its .key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    now = datetime.now(UTC)
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test CA")])
    for name in ("ca", "server", "client"):
        key = ca_key if name == "ca" else ec.generate_private_key(ec.SECP256R1())
        subject = ca_name if name == "ca" else x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(ca_name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=name == "ca", path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
            .sign(ca_key, hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        (folder / f"{name}.pem").write_bytes(certificate.public_bytes(pem))
        (folder / f"{name}.key").write_bytes(
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )


class Broker:
    """Mosquitto. Retained messages and those of sleeping subscribers survive a restart."""

    def __init__(self, folder: Path, *, client_certificates: bool = False) -> None:
        self.folder, self.port = folder, free_port()
        write_certificates(folder)
        (folder / "password").write_text(PASSWORD + "\n")
        passwords = folder / "passwords"
        subprocess.run(
            [find_program("mosquitto_passwd", package="mosquitto"), "-b", "-c", str(passwords), USER, PASSWORD], check=True
        )
        (folder / "mosquitto.conf").write_text(
            f"listener {self.port} 127.0.0.1\n"
            "allow_anonymous false\n"
            f"password_file {passwords}\n"
            f"acl_file {folder}/rights\n"
            f"cafile {folder}/ca.pem\ncertfile {folder}/server.pem\nkeyfile {folder}/server.key\n"
            f"require_certificate {str(client_certificates).lower()}\n"
            "persistence true\n"
            f"persistence_location {folder}/\n"
            "autosave_on_changes true\nautosave_interval 1\n"
            f"user {getpass.getuser()}\n"  # as root it would switch to a user who cannot read the test's folder
        )
        (folder / "rights").write_text(f"user {USER}\ntopic readwrite #\n")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with open(self.folder / "mosquitto.log", "ab") as log:
            self._process = subprocess.Popen(
                [find_program("mosquitto"), "-c", str(self.folder / "mosquitto.conf")], stdout=log, stderr=log
            )
        until(self._listens)

    def stop(self, *, kill: bool = False) -> None:
        if self._process is not None:
            self._process.kill() if kill else self._process.terminate()
            self._process.wait(30)
            self._process = None

    def settings(self, **other: Any) -> MqttSettings:
        usual: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": self.port,
            "terminal": "north",
            "user": USER,
            "password_file": self.folder / "password",
            "ca_file": self.folder / "ca.pem",
        }
        return MqttSettings(**usual | other)

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "mosquitto.log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


class Subscriber:
    """Collects (topic, payload, retained) in order. With a `name`, the broker keeps messages while it is offline."""

    def __init__(self, broker: Broker, *topics: str, name: str = "") -> None:
        from paho.mqtt import client as paho
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        self.received: queue.SimpleQueue[tuple[str, str, bool]] = queue.SimpleQueue()
        self.expiries: list[int | None] = []
        subscribed: queue.SimpleQueue[None] = queue.SimpleQueue()
        client = self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=name, protocol=paho.MQTTv5)
        client.username_pw_set(USER, PASSWORD)
        context = ssl.create_default_context(cafile=broker.folder / "ca.pem")
        context.load_cert_chain(broker.folder / "client.pem", broker.folder / "client.key")
        client.tls_set_context(context)
        client.reconnect_delay_set(1, 1)
        client.on_message = self._receive
        # At each connection: a killed broker may have lost the subscription.
        client.on_connect = lambda c, u, f, r, p: c.subscribe([(topic, 1) for topic in topics or ("#",)])
        client.on_subscribe = lambda *_: subscribed.put(None)
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 3600 if name else 0
        client.connect("127.0.0.1", broker.port, clean_start=not name, properties=properties)
        client.loop_start()
        subscribed.get(timeout=30)

    def _receive(self, client: Any, userdata: Any, message: Any) -> None:
        self.expiries.append(getattr(message.properties, "MessageExpiryInterval", None))
        self.received.put((message.topic, message.payload.decode(), message.retain))

    def next(self, topic: str) -> str:
        """Return the next payload of this topic, and skip others."""
        while True:
            received_topic, payload, _ = self.received.get(timeout=30)
            if received_topic == topic:
                return payload

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@contextmanager
def listening(broker: Broker, *topics: str, name: str = "") -> Iterator[Subscriber]:
    subscriber = Subscriber(broker, *topics, name=name)
    try:
        yield subscriber
    finally:
        subscriber.close()


class Wire:
    """A connection between a terminal and a broker. While it is cut, bytes disappear without an error."""

    def __init__(self, port: int) -> None:
        self.cut = False
        self._to = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._server.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        severed = False
        with suppress(OSError), one, other:
            while data := one.recv(65536):
                severed = severed or self.cut  # a stream with a gap cannot be used again
                if not severed:
                    other.sendall(data)


def free_port() -> int:
    """Return a port for a server that is started later. The system gives ports of this range to no connection meanwhile."""
    while True:
        port = FIRST_PORT + secrets.randbelow(PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
