"""The world of scripts/qa/fleet: a publisher, a mirror that nginx serves, Mosquitto, and simulated doors, all on loopback."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from edge.fleet.documents import Rollout
from edge.fleet.settings import FleetSettings
from edge.kit import format as kits
from export.fleet import contents, roles
from export.fleet.broker import Reader
from export.fleet.repository import Repository, opened
from tests.fakes.mqtt_broker import USER, Broker
from tests.fixtures.fleet import versioned_kit
from tests.fixtures.nginx import Nginx
from tests.fixtures.simulated_doors import SharedClock, SimulatedDoor, SimulatedDoors
from tests.fixtures.waiting import until

GROUP, REVOKED, ALLOWED = "north", "anna", "ben"
LIST = f'[[allow]]\npeople = ["{REVOKED}", "{ALLOWED}"]\n'.encode()
SYNC_SECONDS = 0.1
REQUEST_WORKERS = 4
WAIT_SECONDS = 120.0
COMMAND_SECONDS = 300.0


class StepError(Exception):
    """A step of the story did not end as it should."""


class Mirror:
    """The folder that nginx serves. A thread copies what is published, as rsync would, unless the mirror is frozen."""

    def __init__(self, repo: Path, folder: Path) -> None:
        self.repo, self.folder, self.frozen = repo, folder, False
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        self.sync()

    def __enter__(self) -> Mirror:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join(10)

    def sync(self) -> None:
        """Copy targets, then metadata, and the timestamp last."""
        with self._lock:
            self._copy()

    def replace(self, other: Path) -> None:
        """Serve other files. The mirror is frozen from then on."""
        with self._lock:
            self.frozen = True
            for name in ("metadata", "targets"):
                shutil.rmtree(self.folder / name)
                shutil.copytree(other / name, self.folder / name, copy_function=shutil.copyfile)  # new times: other ETags

    def thaw(self) -> None:
        """Serve what is published again."""
        self.replace(self.repo)
        self.frozen = False

    def _run(self) -> None:
        while not self._closing.wait(SYNC_SECONDS):
            with self._lock:
                if not self.frozen:
                    self._copy()

    def _copy(self) -> None:
        timestamp = self.repo / "metadata" / "timestamp.json"
        newest = timestamp.read_bytes()  # before the others: it must not name files that are not copied yet
        found = [path for name in ("targets", "metadata") for path in sorted((self.repo / name).rglob("*"))]
        for file in found:
            copy = self.folder / file.relative_to(self.repo)
            if file == timestamp or file.name.startswith(".") or not file.is_file() or copy.exists():
                continue
            with suppress(FileNotFoundError):  # a temporary file
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, copy)
        served = self.folder / "metadata" / "timestamp.json"
        if not served.exists() or served.read_bytes() != newest:  # a new time of the file would be a new ETag
            part = served.with_name(".timestamp.part")
            part.write_bytes(newest)
            part.replace(served)


class World:
    """Everything that the story needs."""

    def __init__(self, folder: Path, number: int, seconds: float) -> None:
        self.folder, self.seconds = folder, seconds
        self.clock, self.bad = SharedClock(), set[str]()
        self.repo, self.keys = folder / "repo", folder / "keys"
        self.root = roles.create(self.repo, self.keys, self.clock.utc())
        with self.changing() as repository:
            roles.add_group(repository, GROUP)
        for name in ("broker", "nginx", "mirror"):
            (folder / name).mkdir()
        self.broker = Broker(folder / "broker")
        self.mirror = Mirror(self.repo, folder / "mirror")
        self.server = Nginx(folder / "nginx", folder / "mirror", certificate=folder / "broker" / "server.pem")
        self.configuration = (folder / "nginx" / "nginx.conf").read_text()
        self.doors = SimulatedDoors([self.door(f"d{number:02}") for number in range(1, number + 1)])

    def door(self, name: str, seconds: float | None = None) -> SimulatedDoor:
        settings = FleetSettings(
            url=self.server.url,
            ca_file=self.folder / "broker" / "ca.pem",
            root=self.root,
            group=GROUP,
            door=name,
            seconds=seconds or self.seconds,
        )
        mqtt = self.broker.settings(terminal=f"terminal-{name}", discovery="")
        return SimulatedDoor(self.folder / "doors" / name, settings, mqtt, self.clock, self.bad, versioned_kit(1))

    @contextmanager
    def changing(self) -> Iterator[Repository]:
        """Open the repository at the time of the doors, and publish the changes at the end of the block."""
        with opened(self.repo, keys=self.keys, now=self.clock.utc()) as repository:
            yield repository
            repository.publish()

    def publish_kit(self, version: int, share: float, *, is_bad: bool = False) -> str:
        """Publish a kit for a share of the doors. Return its SHA-256."""
        data = versioned_kit(version)
        kit = kits.parse(data)
        if is_bad:
            self.bad.add(kit.sha256)
        with self.changing() as repository:
            found = contents.Contents(repository, GROUP)
            contents.set_kit(found, data, kit, share=share)
            found.submit()
        return kit.sha256

    def rollout(self) -> Rollout:
        """Return what is published."""
        with opened(self.repo, keys=self.keys) as repository:
            found = contents.Contents(repository, GROUP).rollout()
        assert found is not None
        return found

    def publish_list(self, data: bytes) -> None:
        with self.changing() as repository:
            found = contents.Contents(repository, GROUP)
            contents.set_list(found, data)
            found.submit()

    def revoke(self, label: str) -> None:
        with self.changing() as repository:
            found = contents.Contents(repository, GROUP)
            contents.revoke_people(found, [label], self.clock.utc().strftime("%Y-%m-%dT%H:%M:%SZ"))
            found.submit()

    def renew(self) -> None:
        """Do what `edge-export fleet refresh` does: renew everything that expires soon."""
        with self.changing() as repository:
            roles.refresh(repository, ["timestamp", "snapshot", "targets", f"group-{GROUP}"])

    def advance(self, *, after: float = 2.0) -> tuple[int, str]:
        """Run `edge-export fleet advance --watch` to its end. Return exit code and messages."""
        more = ["--group", GROUP, "--watch", "--every", "0.5", "--after", str(after), "--wait", "2"]
        return self.command("fleet", "advance", str(self.repo), *more, *self._broker())

    def status(self) -> tuple[int, str]:
        """Run `edge-export fleet status`. Return exit code and table."""
        return self.command("fleet", "status", str(self.repo), "--wait", "3", *self._broker())

    def command(self, *arguments: str) -> tuple[int, str]:
        """Run `edge-export` in a process of its own."""
        run = subprocess.run(
            [sys.executable, "-m", "export", *arguments],
            capture_output=True,
            text=True,
            env=os.environ,
            timeout=COMMAND_SECONDS,
        )
        return run.returncode, run.stdout + run.stderr

    def _broker(self) -> list[str]:
        own = self.folder / "broker"
        address = ["--broker", f"mqtts://127.0.0.1:{self.broker.port}", "--user", USER]
        return [*address, "--password-file", str(own / "password"), "--ca-file", str(own / "ca.pem")]

    def serve(self, limits: str = "") -> None:
        """Start nginx, with these limits."""
        (self.folder / "nginx" / "nginx.conf").write_text(self.configuration.replace("server {", f"server {{ {limits}", 1))
        self.server.start()

    def kill_server(self) -> None:
        """End nginx and its worker at once, so that nothing more is sent."""
        process = self.server._process
        assert process is not None
        workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for pid in (process.pid, *map(int, workers)):
            os.kill(pid, signal.SIGKILL)
        self.server.stop()
        (self.folder / "nginx" / "nginx.pid").unlink()
        until(lambda: not _listens(self.server.port), "nginx goes on")

    def reader(self) -> Reader:
        return Reader(self.broker.settings())

    def until(self, problem: str, holds: Callable[[SimulatedDoor], Any], *, seconds: float = WAIT_SECONDS) -> float:
        """Wait until something holds for every door that is on. Return the seconds that it took."""
        begun = time.monotonic()
        while waiting := [door.settings.door for door in self.doors if not holds(door)]:
            if time.monotonic() - begun > seconds:
                raise StepError(f"{problem}: {', '.join(waiting[:5])} after {seconds:g} s")
            time.sleep(0.01)
        return time.monotonic() - begun

    def all_requests(self) -> list[list[str]]:
        return self.server.requests()

    def requests_per_second(self, number: int) -> float:
        """Ask nginx for the timestamp `number` times, over kept connections. The client needs more time than nginx."""
        tls = ssl.create_default_context(cafile=self.folder / "broker" / "ca.pem")

        def ask(count: int) -> None:
            with closing(http.client.HTTPSConnection("127.0.0.1", self.server.port, context=tls, timeout=30)) as connection:
                for _ in range(count):
                    connection.request("GET", "/metadata/timestamp.json")
                    connection.getresponse().read()

        each = number // REQUEST_WORKERS
        begun = time.monotonic()
        with ThreadPoolExecutor(REQUEST_WORKERS) as pool:
            list(pool.map(ask, [each] * REQUEST_WORKERS))
        return REQUEST_WORKERS * each / (time.monotonic() - begun)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def running_world(folder: Path, number: int, seconds: float) -> Iterator[World]:
    """Start the servers and the doors."""
    world = World(folder, number, seconds)
    try:
        world.broker.start()
        world.serve()
        with world.mirror, world.doors:
            yield world
    finally:
        world.server.stop()
        world.broker.stop()
