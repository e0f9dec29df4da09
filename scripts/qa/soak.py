"""Soak test: a terminal with injected faults for half an hour. Prints a table; the exit code is 1 if a check failed.

The terminal is a separate process, `edge recognize --settings`, as a service starts it. Its camera is real (MJPEG over HTTP,
frames made of the ORL faces), and so are its broker (Mosquitto with TLS) and its disk (a tmpfs of a few megabytes, if the
system allows one; else a limit on the size of files). Only the clock is simulated: `sitecustomize` shifts Python's time of
day by the seconds that this script writes to a file. The script knows who was in front of the camera at which time, and
compares every event with it (soak_report.py).
"""

from __future__ import annotations

import json
import math
import mmap
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np
import typer

from edge.cli import common as console
from edge.clock import boottime
from scripts.qa.soak_report import ALLOWED, TIMED, UNLISTED, Figure, Record, ShownVisit, event_figures, growth_figures, table
from tests.fakes.mjpeg_server import MjpegServer, jpeg, part
from tests.fakes.mqtt_broker import Broker, Subscriber, free_port
from tests.fixtures import orl_door
from tests.fixtures.noise import with_noise

STRANGERS = tuple(f"s{number}" for number in range(11, 41))
VISIT_SECONDS, EMPTY_SECONDS, FRAME_SECONDS = 5.0, 1.6, 0.08
DISK_BYTES = 8 << 20
MAX_STOP_SECONDS = 2.0
CLOCK_SHIFTS = (400 * 86400.0, -20000 * 86400.0, 7200.0)  # a year ahead, back to 1972, two hours ahead

SITECUSTOMIZE = """
import datetime, mmap, struct, time
with open({path!r}, "rb") as _file:
    _shift = mmap.mmap(_file.fileno(), 8, access=mmap.ACCESS_READ)
_real, _time = datetime.datetime, time.time

class _Clock(_real):
    @classmethod
    def now(cls, tz=None):
        return _real.fromtimestamp(time.time(), tz)

time.time = lambda: _time() + struct.unpack("d", _shift)[0]
datetime.datetime = _Clock
"""


@cache
def scene(*people: str) -> tuple[bytes, ...]:
    """JPEG frames with no, one or two people."""
    images = {0: orl_door.empty_room, 1: orl_door.frames, 2: orl_door.together}
    return tuple(jpeg(image) for image in images[len(people)](*people))


def visitors() -> Iterator[tuple[str, ...]]:
    """The people of each visit. A person returns only after the earlier visit has ended."""
    for allowed, stranger in zip(cycle(ALLOWED), cycle(STRANGERS)):
        yield (allowed,)
        yield (stranger,)
        yield (TIMED,)
        yield (UNLISTED,)
        yield (ALLOWED[(ALLOWED.index(allowed) + 2) % len(ALLOWED)], stranger)


class FaultyCamera:
    """Shows frames to the terminal. Each fault gets the current frames, and is called in the middle of a visit."""

    def __init__(self, server: MjpegServer, rng: np.random.Generator) -> None:
        self.server, self.rng, self.number = server, rng, 0

    def show(self, frames: tuple[bytes, ...], seconds: float) -> None:
        end = boottime() + seconds
        for frame in cycle(frames):
            if boottime() >= end:
                return
            self.number += 1
            image = cv2.imdecode(np.frombuffer(frame, np.uint8), cv2.IMREAD_COLOR)
            self.send(part(jpeg(with_noise(image, self.number))))
            time.sleep(FRAME_SECONDS)

    def send(self, data: bytes) -> None:
        with suppress(AssertionError):  # the terminal has not connected again yet
            self.server.send(data)

    def cut(self, _: tuple[bytes, ...]) -> None:
        self.server.drop()

    def stall(self, _: tuple[bytes, ...]) -> None:
        time.sleep(3.0)

    def unplug(self, _: tuple[bytes, ...]) -> None:
        self.server.go_down()
        time.sleep(1.0)
        self.server.come_up()

    def noise(self, _: tuple[bytes, ...]) -> None:
        """Random bytes between the parts of the stream, and a header without an end."""
        self.send(self.rng.bytes(20_000))
        self.send(b"--frame\r\n" + b"a" * 20_000)

    def garbage(self, _: tuple[bytes, ...]) -> None:
        """Random bytes with the markers of a JPEG."""
        for length in (1, 100, 50_000):
            self.send(part(b"\xff\xd8" + self.rng.bytes(length) + b"\xff\xd9"))

    def damaged(self, frames: tuple[bytes, ...]) -> None:
        """Frames with wrong bytes, without their ends, with a wrong length, and with a huge size in the header."""
        for frame in frames:
            spoilt = np.frombuffer(frame, np.uint8).copy()
            spoilt[self.rng.integers(700, len(spoilt) - 2, 20)] ^= self.rng.integers(1, 256, 20, np.uint8)
            self.send(part(spoilt.tobytes()))
            self.send(part(frame[: len(frame) // 2]))
            self.send(part(frame.replace(b"\x01\xe0\x02\x80", b"\x75\x30\x75\x30", 1)))  # 640x480 becomes 30000x30000
            time.sleep(FRAME_SECONDS)
        self.send(part(frames[0], length=len(frames[0]) + 99))

    def black(self, _: tuple[bytes, ...]) -> None:
        self.show((jpeg(np.zeros((480, 640, 3), np.uint8)),), 1.5)

    def late(self, frames: tuple[bytes, ...]) -> None:
        """A frame whose second half arrives too late."""
        data = part(frames[0])
        self.send(data[: len(data) // 2])
        time.sleep(1.5)
        self.send(data[len(data) // 2 :])


FAULTS: tuple[Callable[[FaultyCamera, tuple[bytes, ...]], None] | None, ...] = (
    None,
    FaultyCamera.cut,
    FaultyCamera.garbage,
    None,
    FaultyCamera.stall,
    FaultyCamera.damaged,
    None,
    FaultyCamera.noise,
    FaultyCamera.black,
    None,
    FaultyCamera.unplug,
    FaultyCamera.late,
)


class ShiftedClock:
    """The clock of the terminal: the clock of this machine plus a shift."""

    def __init__(self, folder: Path) -> None:
        path = folder / "shift"
        path.write_bytes(bytes(8))
        (folder / "sitecustomize.py").write_text(SITECUSTOMIZE.format(path=str(path)))
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 8)
        self.shift = 0.0

    def set(self, shift: float) -> None:
        self.shift = shift
        self._shared[:] = struct.pack("d", shift)


class Disk:
    """The disk of the audit log: a small tmpfs, or, if none can be mounted, a limit on the size of files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=700", "tmpfs", str(folder)]
        self.is_real = os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0

    def fill(self, pid: int) -> None:
        if not self.is_real:
            return self._limit_files(pid, 4096)
        with suppress(OSError), (self.folder / "full").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def free(self, pid: int) -> None:
        if not self.is_real:
            return self._limit_files(pid, resource.RLIM_INFINITY)
        (self.folder / "full").unlink()

    def close(self) -> None:
        if self.is_real:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    @staticmethod
    def _limit_files(pid: int, soft: int) -> None:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, resource.RLIM_INFINITY))


def write_settings(folder: Path, camera: str, disk: Disk, broker: Broker | None) -> Path:
    (folder / "door.kit").write_bytes(orl_door.kit())
    people = ", ".join(f'"{name}"' for name in ALLOWED)
    today = datetime.now(UTC).date()
    (folder / "door.toml").write_text(
        f'[[allow]]\npeople = [{people}]\n\n[[allow]]\npeople = ["{TIMED}"]\n'
        f"valid_from = {today - timedelta(days=2)}\nvalid_until = {today + timedelta(days=2)}\n"
    )
    lines = [
        f'[kit]\npath = "door.kit"\n[door]\nlist = "door.toml"\n[camera]\nsource = "{camera}"\nmax_fps = 10.0',
        f'[metrics]\naddress = "127.0.0.1:{free_port()}"\n[audit]\npath = "{disk.folder}/audit.db"',
    ]
    if broker is not None:
        mqtt = broker.settings()
        lines.append(f'[mqtt]\nhost = "{mqtt.host}"\nport = {mqtt.port}\nterminal = "{mqtt.terminal}"\nuser = "{mqtt.user}"')
        lines.append(f'password_file = "{mqtt.password_file}"\nca_file = "{mqtt.ca_file}"\nnames = true')
    path = folder / "settings.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


@contextmanager
def running_terminal(settings: Path, record: Record) -> Iterator[subprocess.Popen[str]]:
    """Run the terminal. Record its events, and its resources every second."""
    with (settings.parent / "stderr").open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "edge", "recognize", "--settings", str(settings)],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=os.environ | {"PYTHONPATH": str(settings.parent)},
            cwd=settings.parent,
        )

    def read_events() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            record.events.append(json.loads(line))

    def sample_resources() -> None:
        with suppress(OSError, IndexError):  # the process has ended
            while process.poll() is None:
                record.samples.append((boottime(), *resources(process.pid)))
                time.sleep(1.0)

    threads = [threading.Thread(target=work, daemon=True) for work in (read_events, sample_resources)]
    for thread in threads:
        thread.start()
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for thread in threads:
            thread.join(10)


def resources(pid: int) -> tuple[int, int, int]:
    """Resident bytes, file descriptors and threads."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as statm:
        resident = int(statm.read().split()[1]) * mmap.PAGESIZE
    return resident, len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))


def run_visits(
    minutes: float, camera: FaultyCamera, clock: ShiftedClock, disk: Disk, broker: Broker | None, pid: int, record: Record
) -> None:
    """Show visit after visit, with camera faults. In some visits the clock is wrong, the disk full, or the broker stopped."""
    until = boottime() + 60 * minutes
    shifts = cycle(CLOCK_SHIFTS)

    def end_full_disk() -> None:
        disk.free(pid)
        record.disk_full[-1] = (record.disk_full[-1][0], boottime())

    with console.progress("visits") as line:
        for number, (people, fault) in enumerate(zip(visitors(), cycle(FAULTS))):
            if boottime() >= until:
                break
            line.count(number + 1, round(60 * minutes / (VISIT_SECONDS + EMPTY_SECONDS)))
            camera.show(scene(), EMPTY_SECONDS)
            if number % 7 == 2:
                clock.set(next(shifts) if clock.shift == 0 else 0.0)
            if number % 13 == 4:
                record.disk_full.append((boottime(), math.inf))
                disk.fill(pid)
            elif number % 13 == 6:
                end_full_disk()
            if broker is not None and number % 9 in (5, 6):
                broker.stop() if number % 9 == 5 else broker.start()
                record.broker_restarts += number % 9 == 6
            start, frames = boottime(), scene(*people)
            camera.show(frames, 0.4 * VISIT_SECONDS)
            if fault is not None:
                fault(camera, frames)
            camera.show(frames, 0.6 * VISIT_SECONDS)
            name = "" if fault is None else fault.__name__
            record.visits.append(ShownVisit(people, name, clock.shift, start, boottime()))
    if record.disk_full and record.disk_full[-1][1] == math.inf:
        end_full_disk()
    if broker is not None:
        broker.stop()
        broker.start()
    clock.set(0.0)
    camera.show(scene(), 8.0)  # time to send the events that wait for the broker


def http_figures(settings: Path) -> Iterator[Figure]:
    """Figures of /healthz and /metrics at the end of the run."""
    address = settings.read_text().split('address = "')[1].split('"')[0]
    with urllib.request.urlopen(f"http://{address}/healthz", timeout=5) as answer:
        yield Figure("/healthz at the end", str(answer.status), answer.status == 200)
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
        counters = re.findall(r"^edge_(\w+)_total (\S+)$", answer.read().decode(), re.MULTILINE)
    for name, value in counters:
        passed = float(value) == 0 if name == "failures" else None
        yield Figure(name.replace("_", " "), f"{float(value):.0f}", passed)


def stop_figure(process: subprocess.Popen[str]) -> Figure:
    """Stop the terminal, and return the figure of the time that it took."""
    start = boottime()
    process.send_signal(signal.SIGTERM)
    code = process.wait(30)
    seconds = boottime() - start
    return Figure("end after SIGTERM", f"{seconds:.2f} s, code {code}", seconds <= MAX_STOP_SECONDS and code == 0)


def audit(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "edge", "audit", *arguments], capture_output=True, text=True)


def soak(minutes: float, folder: Path, seed: int) -> list[Figure]:
    record = Record()
    for name in ("disk", "broker"):
        (folder / name).mkdir()
    with ExitStack() as stack:
        disk, clock = Disk(folder / "disk"), ShiftedClock(folder)
        stack.callback(disk.close)
        broker = None
        if os.environ.get("CI") or shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin"):
            broker = Broker(folder / "broker")
            broker.start()
            stack.callback(broker.stop)
        else:
            console.say("mosquitto is not installed: the checks of the broker are left out.")
        server = stack.enter_context(MjpegServer())
        settings = write_settings(folder, server.url, disk, broker)
        subscriber = None if broker is None else Subscriber(broker, "lclrr-edge/+/event", name="soak")
        process = stack.enter_context(running_terminal(settings, record))
        camera = FaultyCamera(server, np.random.default_rng(seed))
        run_visits(minutes, camera, clock, disk, broker, process.pid, record)
        figures = [Figure("disk", "a tmpfs" if disk.is_real else "a limit on the size of files")]
        figures += [*http_figures(settings), stop_figure(process)]
        database = str(disk.folder / "audit.db")
        verified = audit("verify", database)
        figures.append(Figure("edge audit verify", str(verified.returncode), verified.returncode == 0))
        log = [json.loads(line)["entry"] for line in audit("export", "--format", "jsonl", database).stdout.splitlines()]
        received: list[dict[str, Any]] | None = None
        if subscriber is not None:
            subscriber.close()
            received = [json.loads(subscriber.received.get()[1]) for _ in range(subscriber.received.qsize())]
    figures += [*event_figures(record, log, received), *growth_figures(record, minutes)]
    lines = [",".join(map(str, sample)) for sample in record.samples]
    (folder / "samples.csv").write_text("\n".join(["monotonic,resident,descriptors,threads", *lines]) + "\n")
    return figures


def main(
    minutes: Annotated[float, typer.Option(min=1.0, help="Duration. Memory growth is checked from 5 minutes on.")] = 30.0,
    seed: Annotated[int, typer.Option(help="Seed of the camera noise.")] = 0,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder with stderr and samples.csv.")] = False,
) -> None:
    """Run a terminal with injected faults, and check its decisions, events and resources."""
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    try:
        figures = soak(minutes, folder, seed)
        print(table(figures))
        if any(figure.passed is False for figure in figures):
            raise typer.Exit(1)
    finally:
        if keep:
            console.say(f"The files are in {folder}.")
        else:
            shutil.rmtree(folder)


if __name__ == "__main__":
    typer.run(main)
