"""Long work on a site: one job at a time, from any browser or command, in a process of its own.

The process that does the work writes its stage, its progress and its log to console.db. So every browser and every command
sees the same job, and a restart of the console does not touch it. A job ends by itself, by an error, or by SIGINT (`cancel`).
"""

import fcntl
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge.errors import EdgeError, UsageError
from trainer.site import trail
from trainer.site.folder import Site, transaction, utc_now

LOCK = ".job"
SHOWN_SECONDS = 0.2  # between two writes of the progress of one stage
START_SECONDS = 100.0  # for a new process to load its packages and register its job, also on a busy computer
MAX_SECRET = 8 << 10
"""Bytes of a secret for a job. A pipe holds more, so writing it does not wait for the process."""
RUNNING, DONE, FAILED, CANCELLED = "running", "done", "failed", "cancelled"
PARTLY = ("import", "forget")
"""Kinds of jobs that change the site while they run. The others change it at the end, or not at all."""


@dataclass(frozen=True, kw_only=True)
class JobState:
    """A job as the database has it."""

    id: int
    kind: str
    who: str
    options: Mapping[str, Any]
    state: str
    started: str
    ended: str | None
    pid: int
    stage: str
    done: int
    total: int
    seconds_left: float | None
    message: str
    result: Mapping[str, Any]

    @property
    def is_running(self) -> bool:
        return self.state == RUNNING


class Job:
    """The running job of this process: `with run(site, ...) as job`."""

    def __init__(self, site: Site, database: sqlite3.Connection, number: int, kind: str) -> None:
        self.site, self.id, self.kind = site, number, kind
        self._database = database
        self._stage, self._began, self._written = "", time.monotonic(), 0.0
        self._taken: list[tuple[str, float]] = []
        rows = database.execute("SELECT stage, seconds FROM stage_seconds WHERE kind = ? ORDER BY position", (kind,))
        self._usual: dict[str, float] = dict(rows.fetchall())

    def say(self, line: str) -> None:
        """Add a line to the log."""
        self._database.execute("INSERT INTO job_lines VALUES (?, ?, ?)", (self.id, utc_now(), line))

    def stage(self, name: str, done: int = 0, total: int = 0) -> None:
        """Report the stage and how much of it is done."""
        now = time.monotonic()
        if name != self._stage:
            self._end_stage(now)
            self._stage, self._began = name, now
            self.say(name)
        elif now - self._written < SHOWN_SECONDS and done < total:
            return
        self._written = now
        self._database.execute(
            "UPDATE jobs SET stage = ?, done = ?, total = ?, seconds_left = ? WHERE id = ?",
            (name, done, total, self._seconds_left(now, done, total), self.id),
        )

    def _end_stage(self, now: float) -> None:
        if self._stage:
            self._taken.append((self._stage, now - self._began))

    def _seconds_left(self, now: float, done: int, total: int) -> float | None:
        """Estimate: this stage by its progress, the stages after it by the last job of this kind."""
        spent = now - self._began
        usual = self._usual.get(self._stage)
        if 0 < done <= total and spent > 1:
            left = spent * (total - done) / done
        elif usual is not None:
            left = max(usual - spent, 0.0)
        else:
            return None
        past = {stage for stage, _ in self._taken} | {self._stage}
        return left + sum(seconds for stage, seconds in self._usual.items() if stage not in past)

    def finish(self, message: str, **result: Any) -> None:
        """Store the result. The job is done when its block ends."""
        self._end_stage(time.monotonic())
        self._stage = ""
        with transaction(self._database):
            self._database.execute(
                "UPDATE jobs SET message = ?, result = ? WHERE id = ?", (message, json.dumps(result), self.id)
            )
            self._database.execute("DELETE FROM stage_seconds WHERE kind = ?", (self.kind,))
            rows = [(self.kind, stage, seconds, position) for position, (stage, seconds) in enumerate(self._taken)]
            self._database.executemany("INSERT OR REPLACE INTO stage_seconds VALUES (?, ?, ?, ?)", rows)
        self.say(message)


@contextmanager
def run(site: Site, kind: str, who: str, options: Mapping[str, Any] | None = None) -> Iterator[Job]:
    """Run a job in this process. UsageError if another job of the site is running."""
    with _lock(site), site.database() as database:
        _listen_to_cancel()
        process = os.getpid(), _start_of(os.getpid())
        row = (kind, who, json.dumps(options or {}), RUNNING, utc_now(), *process)
        state, message = FAILED, "The program ended unexpectedly. Its log has the reason."
        try:
            number = database.execute(
                "INSERT INTO jobs (kind, who, options, state, started, pid, pid_started) VALUES (?, ?, ?, ?, ?, ?, ?)", row
            ).lastrowid
            assert number is not None
            yield Job(site, database, number, kind)
            state, message = DONE, ""
        except KeyboardInterrupt:
            stays = "What was done before stays; start it again to finish it." if kind in PARTLY else "Nothing was changed."
            state, message = CANCELLED, f"Cancelled. {stays}"
            raise
        except EdgeError as error:
            message = str(error)
            raise
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            raise
        finally:
            # By process, because it may be cancelled before it knows the number.
            database.execute(
                "UPDATE jobs SET state = ?, ended = ?, seconds_left = NULL, message = CASE ? WHEN '' THEN message ELSE ? END"
                " WHERE state = ? AND pid = ? AND pid_started = ?",
                (state, utc_now(), message, message, RUNNING, *process),
            )


def _listen_to_cancel() -> None:
    """Let SIGINT end this process, though a shell that started the console in the background has it ignored."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def _lock(site: Site) -> Iterator[None]:
    """One job at a time. The lock ends with the process, whatever ends it."""
    handle = os.open(site.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError("Another job of this site is running.", "Wait until it ends, or cancel it.") from None
        yield
    finally:
        os.close(handle)


def start(site: Site, module: str, arguments: Sequence[str], *, secret: bytes = b"") -> int:
    """Start a command that runs a job (`python -m module arguments`) and return the number of the job.

    The process is independent of this one. If it fails before it has a job, its message is raised as UsageError. It gets the
    `secret` on its standard input: arguments can be read by all users of the computer, and files stay.
    """
    if len(secret) > MAX_SECRET:
        raise UsageError(f"More than {MAX_SECRET >> 10} kB are not a key.", "Choose the file of the private key.")
    with site.database() as database:
        (last,) = database.execute("SELECT coalesce(max(id), 0) FROM jobs").fetchone()
        with tempfile.TemporaryFile() as said:  # not a pipe: the process writes to it after we are gone
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
            )
            _hand_over(process, secret)
            end = time.monotonic() + START_SECONDS
            while time.monotonic() < end:
                row = database.execute("SELECT id FROM jobs WHERE id > ? AND pid = ?", (last, process.pid)).fetchone()
                if row is not None:
                    return int(row[0])
                if process.poll() is not None:
                    said.seek(0)
                    texts = said.read().decode(errors="replace").strip().splitlines()
                    raise UsageError((texts[-1] if texts else "The job did not start.").removeprefix("error: "))
                time.sleep(0.05)
    process.kill()
    raise UsageError("The job did not start in time.", "Try again when the computer is less busy.")


def _hand_over(process: subprocess.Popen[bytes], secret: bytes) -> None:
    """Write the secret, which fits into the buffer of the pipe, and close the pipe."""
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:  # a process that ended already says why on its standard error
        process.stdin.write(secret)


def cancel(site: Site, number: int, *, who: str) -> None:
    """Ask a running job to stop. It needs a moment."""
    with site.database() as database:
        job = get(database, number)
        if job is None or not job.is_running:
            raise UsageError("This job is not running any more.")
        trail.record(database, who, "cancel job", str(number), job.kind)
        with suppress(ProcessLookupError):
            os.kill(job.pid, signal.SIGINT)


def get(database: sqlite3.Connection, number: int) -> JobState | None:
    """Return a job. One whose process is gone has failed."""
    try:
        row = database.execute("SELECT * FROM jobs WHERE id = ?", (number,)).fetchone()
    except OverflowError:  # SQLite has no number so large
        return None
    return None if row is None else _state(database, row)


def latest(database: sqlite3.Connection, *, kind: str | None = None, most: int = 20) -> list[JobState]:
    """Return the newest jobs, newest first."""
    rows = database.execute("SELECT * FROM jobs WHERE kind = coalesce(?, kind) ORDER BY id DESC LIMIT ?", (kind, most))
    return [_state(database, row) for row in rows.fetchall()]


def running(database: sqlite3.Connection) -> JobState | None:
    """Return the job that is running, or None."""
    rows = database.execute("SELECT * FROM jobs WHERE state = ? ORDER BY id DESC", (RUNNING,)).fetchall()
    return next((job for row in rows if (job := _state(database, row)).is_running), None)


def lines(database: sqlite3.Connection, number: int) -> list[tuple[str, str]]:
    """Return the log of a job: time and text of each line."""
    rows = database.execute("SELECT utc, line FROM job_lines WHERE job = ? ORDER BY rowid", (number,))
    return [(utc, line) for utc, line in rows]


def _state(database: sqlite3.Connection, row: sqlite3.Row) -> JobState:
    if row["state"] == RUNNING and _start_of(row["pid"]) != row["pid_started"]:
        message = "The process of this job was ended from outside. Start it again; a large training continues where it was."
        database.execute(
            "UPDATE jobs SET state = ?, ended = ?, message = ?, seconds_left = NULL WHERE id = ? AND state = ?",
            (FAILED, utc_now(), message, row["id"], RUNNING),
        )
        row = database.execute("SELECT * FROM jobs WHERE id = ?", (row["id"],)).fetchone()
    values = {name: row[name] for name in row.keys() if name != "pid_started"}  # noqa: SIM118 (a Row iterates over values)
    return JobState(**values | {"options": json.loads(row["options"]), "result": json.loads(row["result"])})


def _start_of(pid: int) -> str:
    """Return when a process started, and the boot; empty if there is no such process, or it has ended."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    return "" if after_name[0] in "ZX" else f"{after_name[19]} {boot}"
