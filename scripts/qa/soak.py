"""A door for half an hour in which everything goes wrong, and what came of it: a table on stdout, exit code 1 if it is bad.

The terminal is a process of its own, `edge recognize --settings`, as a service would start it. Real are its camera (MJPEG over
HTTP, frames made of the ORL faces), its broker (Mosquitto with TLS), its disk (a tmpfs of a few megabytes, where the system
allows one; else a limit on the size of files). Only its clock is not: `sitecustomize` shifts Python's time of day by seconds
that this script writes into a file. The script knows who stood before the camera when, and holds every event against that.
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
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

from edge.cli import common as console
from tests.fakes.mjpeg_server import MjpegServer, jpeg, part
from tests.fakes.mqtt_broker import Broker, Subscriber, free_port
from tests.fixtures import orl_door

ROOT = Path(__file__).resolve().parents[2]
ALLOWED, TIMED, UNLISTED = ("s2", "s5", "s6", "s8"), "s7", "s4"  # all enrolled; the door list is made of this
STRANGERS = tuple(f"s{number}" for number in range(11, 41))
TURN_SECONDS, EMPTY_SECONDS, FRAME_SECONDS = 5.0, 1.6, 0.08
SLACK_SECONDS = 1.0  # a frame counts for so long (VisitRules.max_age_seconds); the door stays empty for longer
DISK_BYTES = 8 << 20
MAX_GROWTH, MAX_END_SECONDS, MIN_OPENED = 0.02, 2.0, 0.75
JUMPS = (400 * 86400.0, -20000 * 86400.0, 7200.0)  # a year ahead; a device that wakes up in the seventies; two hours

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


class Turn(NamedTuple):
    """What was shown, from when to when (time.monotonic, which all processes share)."""

    people: tuple[str, ...]
    fault: str
    shift: float
    """Seconds by which the terminal's clock was wrong."""
    start: float
    end: float


@dataclass(kw_only=True)
class Record:
    """All that was done to the terminal, and all that it did."""

    turns: list[Turn] = field(default_factory=list)
    full: list[tuple[float, float]] = field(default_factory=list)
    """When the disk was full."""
    told: list[dict[str, Any]] = field(default_factory=list)
    """Events on its stdout."""
    samples: list[tuple[float, int, int, int]] = field(default_factory=list)
    """(when, resident bytes, file descriptors, threads)."""
    restarts: int = 0
    """Of the broker."""


# What stands before the camera.


@cache
def pictures(*people: str) -> tuple[bytes, ...]:
    scenes = {0: orl_door.empty_room, 1: orl_door.frames, 2: orl_door.together}
    return tuple(jpeg(image) for image in scenes[len(people)](*people))


def cast() -> Iterator[tuple[str, ...]]:
    """Who comes, one after the other: nobody twice within the time in which a visit goes on."""
    for allowed, stranger in zip(cycle(ALLOWED), cycle(STRANGERS)):
        yield (allowed,)
        yield (stranger,)
        yield (TIMED,)
        yield (UNLISTED,)
        yield (ALLOWED[(ALLOWED.index(allowed) + 2) % len(ALLOWED)], stranger)


# What goes wrong. Each is given the camera and the frames under way, and is called in the middle of a turn.


class Stage:
    """The camera, and what can be done to it."""

    def __init__(self, camera: MjpegServer, rng: np.random.Generator) -> None:
        self.camera, self.rng = camera, rng

    def show(self, frames: tuple[bytes, ...], seconds: float) -> None:
        end = time.monotonic() + seconds
        for picture in cycle(frames):
            if time.monotonic() >= end:
                return
            self.send(part(picture))
            time.sleep(FRAME_SECONDS)

    def send(self, data: bytes) -> None:
        with suppress(AssertionError):  # nobody has connected again yet
            self.camera.send(data)

    def cut(self, _: tuple[bytes, ...]) -> None:
        self.camera.drop()

    def stall(self, _: tuple[bytes, ...]) -> None:
        time.sleep(3.0)

    def unplug(self, _: tuple[bytes, ...]) -> None:
        self.camera.go_down()
        time.sleep(1.0)
        self.camera.come_up()

    def noise(self, _: tuple[bytes, ...]) -> None:
        """Bytes that are no stream: between the parts, and a header that never ends."""
        self.send(self.rng.bytes(20_000))
        self.send(b"--frame\r\n" + b"a" * 20_000)

    def garbage(self, _: tuple[bytes, ...]) -> None:
        """Frames of noise that call themselves JPEG."""
        for length in (1, 100, 50_000):
            self.send(part(b"\xff\xd8" + self.rng.bytes(length) + b"\xff\xd9"))

    def damaged(self, frames: tuple[bytes, ...]) -> None:
        """Frames with wrong bytes, without their ends, with wrong lengths, and larger than any memory."""
        for picture in frames:
            spoilt = np.frombuffer(picture, np.uint8).copy()
            spoilt[self.rng.integers(700, len(spoilt) - 2, 20)] ^= self.rng.integers(1, 256, 20, np.uint8)
            self.send(part(spoilt.tobytes()))
            self.send(part(picture[: len(picture) // 2]))
            self.send(part(picture.replace(b"\x01\xe0\x02\x80", b"\x75\x30\x75\x30", 1)))  # 640x480 becomes 30000x30000
            time.sleep(FRAME_SECONDS)
        self.send(part(frames[0], length=len(frames[0]) + 99))

    def black(self, _: tuple[bytes, ...]) -> None:
        self.show((jpeg(np.zeros((480, 640, 3), np.uint8)),), 1.5)

    def late(self, frames: tuple[bytes, ...]) -> None:
        """A frame whose second half comes when it is too old."""
        data = part(frames[0])
        self.send(data[: len(data) // 2])
        time.sleep(1.5)
        self.send(data[len(data) // 2 :])


FAULTS: tuple[Callable[[Stage, tuple[bytes, ...]], None] | None, ...] = (
    None,
    Stage.cut,
    Stage.garbage,
    None,
    Stage.stall,
    Stage.damaged,
    None,
    Stage.noise,
    Stage.black,
    None,
    Stage.unplug,
    Stage.late,
)


class Clock:
    """Of the terminal: ours, and a shift."""

    def __init__(self, folder: Path) -> None:
        path = folder / "shift"
        path.write_bytes(bytes(8))
        (folder / "sitecustomize.py").write_text(SITECUSTOMIZE.format(path=str(path)))
        with path.open("r+b") as file:
            self._shift = mmap.mmap(file.fileno(), 8)
        self.shift = 0.0

    def set(self, shift: float) -> None:
        self.shift = shift
        self._shift[:] = struct.pack("d", shift)


class Disk:
    """Where the audit log lies: a small disk of its own, or, where none can be mounted, a limit on the size of files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=700", "tmpfs", str(folder)]
        self.is_real = os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0

    def fill(self, pid: int) -> None:
        if not self.is_real:
            return self._limit(pid, 4096)
        with suppress(OSError), (self.folder / "full").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def free(self, pid: int) -> None:
        if not self.is_real:
            return self._limit(pid, resource.RLIM_INFINITY)
        (self.folder / "full").unlink()

    def close(self) -> None:
        if self.is_real:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    @staticmethod
    def _limit(pid: int, soft: int) -> None:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, resource.RLIM_INFINITY))


# The run.


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
def terminal(settings: Path, record: Record) -> Iterator[subprocess.Popen[str]]:
    """The process, what it says on stdout, and every second what it takes."""
    with (settings.parent / "stderr").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "edge", "recognize", "--settings", str(settings)],
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            env=os.environ | {"PYTHONPATH": str(settings.parent)},
            cwd=settings.parent,
        )

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            record.told.append(json.loads(line))

    def watch() -> None:
        with suppress(OSError, IndexError):  # until it is gone
            while process.poll() is None:
                record.samples.append((time.monotonic(), *taken(process.pid)))
                time.sleep(1.0)

    threads = [threading.Thread(target=work, daemon=True) for work in (listen, watch)]
    for thread in threads:
        thread.start()
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for thread in threads:
            thread.join(10)


def taken(pid: int) -> tuple[int, int, int]:
    """Resident bytes, file descriptors and threads."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as statm:
        resident = int(statm.read().split()[1]) * mmap.PAGESIZE
    return resident, len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))


def play(minutes: float, stage: Stage, clock: Clock, disk: Disk, broker: Broker | None, pid: int, record: Record) -> None:
    """Turn after turn. In turns of their own the clock is wrong, the disk is full, the broker is away."""
    until = time.monotonic() + 60 * minutes
    jumps = cycle(JUMPS)
    with console.progress("turns") as line:
        for number, (people, fault) in enumerate(zip(cast(), cycle(FAULTS))):
            if time.monotonic() >= until:
                break
            line.count(number + 1, round(60 * minutes / (TURN_SECONDS + EMPTY_SECONDS)))
            stage.show(pictures(), EMPTY_SECONDS)
            if number % 7 == 2:
                clock.set(next(jumps) if clock.shift == 0 else 0.0)
            if number % 13 == 4:
                record.full.append((time.monotonic(), math.inf))
                disk.fill(pid)
            elif number % 13 == 6:
                disk.free(pid)
                record.full[-1] = (record.full[-1][0], time.monotonic())
            if broker is not None and number % 9 in (5, 6):
                broker.stop() if number % 9 == 5 else broker.start()
                record.restarts += number % 9 == 6
            start, frames = time.monotonic(), pictures(*people)
            stage.show(frames, 0.4 * TURN_SECONDS)
            if fault is not None:
                fault(stage, frames)
            stage.show(frames, 0.6 * TURN_SECONDS)
            name = "" if fault is None else fault.__name__
            record.turns.append(Turn(people, name, clock.shift, start, time.monotonic()))
    if record.full and record.full[-1][1] == math.inf:
        disk.free(pid)
        record.full[-1] = (record.full[-1][0], time.monotonic())
    if broker is not None:
        broker.stop()
        broker.start()
    clock.set(0.0)
    stage.show(pictures(), 8.0)  # so that what waits for the broker is told


# What came of it.


@dataclass(frozen=True)
class Figure:
    """One line of the table."""

    name: str
    value: str
    good: bool | None = None
    """None: for information."""


def captured(event: dict[str, Any]) -> float:
    return float(event["monotonic"] - (event["seconds_from_capture"] or 0.0))


def wrong(event: dict[str, Any], turns: list[Turn]) -> str:
    """Why a grant should not be, or nothing."""
    when = captured(event)
    turn = next((turn for turn in turns if turn.start <= when <= turn.end + SLACK_SECONDS), None)
    if turn is None or event["label"] not in turn.people:
        return f"{event['label']} let in while {', '.join(turn.people) if turn else 'nobody'} stood there"
    if event["label"] not in (*ALLOWED, TIMED):
        return f"{event['label']} is not on the list"
    if event["label"] == TIMED and abs(turn.shift) > 86400:
        return f"{TIMED} let in with the clock {turn.shift:.0f} s off"
    return ""


def opened(turn: Turn, grants: list[dict[str, Any]]) -> bool:
    return any(event["label"] in turn.people and turn.start <= captured(event) <= turn.end + SLACK_SECONDS for event in grants)


def judged(record: Record, log: list[dict[str, Any]], heard: list[dict[str, Any]] | None) -> Iterator[Figure]:
    """The figures of what was decided, logged and told."""
    decisions = [event for event in record.told if event["kind"] == "decision"]
    grants = [event for event in decisions if event["outcome"] == "granted"]
    bad = [reason for event in grants if (reason := wrong(event, record.turns))]
    yield Figure("turns before the camera", str(len(record.turns)))
    faults = Counter(turn.fault for turn in record.turns if turn.fault)
    yield Figure("of them with a fault", ", ".join(f"{name} {count}" for name, count in sorted(faults.items())))
    yield Figure("turns with the clock wrong", str(sum(turn.shift != 0 for turn in record.turns)))
    yield Figure("decisions", f"{len(decisions)}, {len(grants)} grants", bool(grants))
    yield Figure("grants that should not be", "; ".join(bad) or "0", not bad)
    away = [turn for turn in record.turns if any(start - 8 < turn.end and turn.start < end + 2 for start, end in record.full)]
    easy = [turn for turn in record.turns if turn.people[0] in ALLOWED and not turn.fault and turn not in away]
    passed = sum(opened(turn, grants) for turn in easy)
    yield Figure("undisturbed visits that opened the door", f"{passed} of {len(easy)}", passed >= MIN_OPENED * len(easy))
    hard = [turn for turn in record.turns if turn.people[0] in ALLOWED and turn.fault and turn not in away]
    yield Figure("disturbed ones", f"{sum(opened(turn, grants) for turn in hard)} of {len(hard)}")
    logged = Counter(entry["event_id"] for entry in log if "event_id" in entry)
    told = Counter(event["event_id"] for event in record.told)
    missing = [event for event in record.told if event["event_id"] not in logged]
    outside = [e for e in missing if not any(start <= e["monotonic"] <= end + 3 for start, end in record.full)]
    yield Figure("events in the audit log", f"{len(logged)} of {len(told)}")
    yield Figure("more than once, in the log or on stdout", *none(max(c.values(), default=0) > 1 for c in (logged, told)))
    yield Figure("missing with room on the disk", *none(outside))
    yield Figure("missing with a full disk", str(len(missing)), bool(missing) or not record.full)
    yield Figure("grants that are not in the log", *none(event for event in missing if event["outcome"] == "granted"))
    yield Figure("logged, and told to nobody", *none(logged.keys() - told.keys()))
    if heard is not None:
        ids = Counter(event["event_id"] for event in heard)
        yield Figure("restarts of the broker", str(record.restarts), record.restarts > 0)
        yield Figure("events that it was not told", *none(told.keys() - ids.keys()))
        yield Figure("told it again", str(sum(ids.values()) - len(ids)))
        nonces = {event["nonce"] for event in heard if event["nonce"]}
        yield Figure("nonces of what is no grant", *none(nonces - {event["event_id"] for event in grants}))


def none(found: Any) -> tuple[str, bool]:
    """How many there are of what there should be none."""
    count = sum(1 for item in found if item)
    return str(count), count == 0


def growth(record: Record, minutes: float) -> Iterator[Figure]:
    """Of memory, descriptors and threads, after the first fifth (a minute of five).

    Of memory the most that was taken early and late: in between it goes up and down by 3 %, with the frames under way.
    """
    start, end = record.turns[0].start, record.turns[-1].end
    span = end - start
    first = [s for s in record.samples if 0.2 * span <= s[0] - start <= 0.5 * span]
    last = [s for s in record.samples if 0.7 * span <= s[0] - start <= span]
    long = minutes >= 5  # else too few have come and gone
    sizes = [max(s[1] for s in part) for part in (first, last)]
    grown = sizes[1] / sizes[0] - 1
    words = f"{sizes[0] / 2**20:.1f} to {sizes[1] / 2**20:.1f} MB, {grown:+.2%}"
    yield Figure("resident memory", words, grown < MAX_GROWTH if long else None)
    for at, name in ((2, "file descriptors"), (3, "threads")):
        before, after = (statistics.median_high([s[at] for s in part]) for part in (first, last))
        most = max(s[at] for s in record.samples)
        yield Figure(name, f"{before} to {after}, at most {most}", after <= before if long else None)


def table(figures: list[Figure]) -> str:
    marks = {True: "ok", False: "BAD", None: ""}
    rows = [f"| {figure.name} | {figure.value} | {marks[figure.good]} |" for figure in figures]
    return "\n".join(["| | | |", "|---|---|---|", *rows])


def audit(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "edge", "audit", *arguments], capture_output=True, text=True)


def soak(minutes: float, folder: Path, seed: int) -> list[Figure]:
    record = Record()
    for name in ("disk", "broker"):
        (folder / name).mkdir()
    with ExitStack() as stack:
        disk, clock = Disk(folder / "disk"), Clock(folder)
        stack.callback(disk.close)
        broker = None
        if os.environ.get("CI") or shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin"):
            broker = Broker(folder / "broker")
            broker.start()
            stack.callback(broker.stop)
        else:
            console.say("mosquitto is not installed: the broker's part is left out.")
        camera = stack.enter_context(MjpegServer())
        settings = write_settings(folder, camera.url, disk, broker)
        subscriber = None if broker is None else Subscriber(broker, "lclrr-edge/+/event", name="soak")
        process = stack.enter_context(terminal(settings, record))
        stage = Stage(camera, np.random.default_rng(seed))
        play(minutes, stage, clock, disk, broker, process.pid, record)
        figures = [Figure("disk", "a tmpfs" if disk.is_real else "a limit on the size of files")]
        metrics = settings.read_text().split('address = "')[1].split('"')[0]
        with urllib.request.urlopen(f"http://{metrics}/healthz", timeout=5) as answer:
            figures.append(Figure("at the end /healthz says", str(answer.status), answer.status == 200))
        with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=5) as answer:
            counters = re.findall(r"^edge_(\w+)_total (\S+)$", answer.read().decode(), re.MULTILINE)
        for name, value in counters:
            figures.append(
                Figure(name.replace("_", " "), f"{float(value):.0f}", float(value) == 0 if name == "failures" else None)
            )
        asked = time.monotonic()
        process.send_signal(signal.SIGTERM)
        code = process.wait(30)
        seconds = time.monotonic() - asked
        figures.append(Figure("end after SIGTERM", f"{seconds:.2f} s, code {code}", seconds <= MAX_END_SECONDS and code == 0))
        verified = audit("verify", str(disk.folder / "audit.db"))
        figures.append(Figure("edge audit verify", str(verified.returncode), verified.returncode == 0))
        lines = audit("export", "--format", "jsonl", str(disk.folder / "audit.db")).stdout.splitlines()
        heard = None
        if subscriber is not None:
            subscriber.close()
            heard = [json.loads(subscriber.heard.get()[1]) for _ in range(subscriber.heard.qsize())]
    figures += judged(record, [json.loads(line)["entry"] for line in lines], heard)
    figures += growth(record, minutes)
    lines = [",".join(map(str, sample)) for sample in record.samples]
    (folder / "samples.csv").write_text("\n".join(["monotonic,resident,descriptors,threads", *lines]) + "\n")
    return figures


def main(
    minutes: Annotated[float, typer.Option(min=1.0, help="How long; memory is judged from 5 on.")] = 30.0,
    seed: Annotated[int, typer.Option(help="Of the noise.")] = 0,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder: stderr, samples.csv and all else.")] = False,
) -> None:
    """A door for half an hour in which everything goes wrong, and what came of it."""
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    try:
        figures = soak(minutes, folder, seed)
        print(table(figures))
        if not all(figure.good is not False for figure in figures):
            raise typer.Exit(1)
    finally:
        if keep:
            console.say(f"kept: {folder}")
        else:
            shutil.rmtree(folder)


if __name__ == "__main__":
    typer.run(main)
