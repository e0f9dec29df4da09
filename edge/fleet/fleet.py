"""Pull what the fleet has for this door: revocations first, then the door list, then the kit.

Everything is verified by `tuf` before it is used, and written atomically: after a power failure at any moment, the next pull
continues. Nothing here decides about a person; see rules.py.
"""

import hashlib
import logging
import math
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from edge.addresses import web_address
from edge.clock import boottime
from edge.decision.doorlist import DoorList
from edge.errors import FleetError, KitError
from edge.events.event import News
from edge.files import locked_folder, read_bytes, write_atomically
from edge.fleet.connection import Connection
from edge.fleet.documents import Revocations, Rollout, kit_sha256, list_path, revoked_path, rollout_path
from edge.fleet.freshness import Times
from edge.fleet.memory import Memory
from edge.fleet.problems import PullError, PullPausedError
from edge.fleet.settings import FleetSettings, credentials
from edge.kit.format import kit_id, read_kit_bytes
from edge.kit.store import Store

if TYPE_CHECKING:
    from edge.fleet.client import Client

LIST = "list.toml"
"""The door list in the folder, if the settings name none."""
FILES = "files"
ROLLOUT, REVOKED, DOOR_LIST, GROUP_LIST = "rollout.json", "revoked.json", "door-list.toml", "group-list.toml"
MAX_ROOT_BYTES = 512_000
SAVE_SECONDS = 600.0  # an SD card must not be written at every pull
OFFLINE_ALARM_SECONDS = 900.0
STUCK_SECONDS = 900.0
"""A pull takes less, also with a slow server, and so does what may wait for it on this device."""
STUCK, STUCK_REASON = "stuck", "The pulls do not go on: a lock, the disk or the lookup of a name hangs."
KIT_PAUSE_SECONDS, MAX_KIT_PAUSE_SECONDS = 60.0, 86400.0  # after a kit that is not accepted; the pause is doubled each time
VERSION_DIGITS = 12

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _KitTrouble:
    """A kit whose download was not accepted."""

    path: str
    failures: int
    retry: float
    """When it is downloaded again, on the clock of the device."""
    problem: PullError


class Fleet:
    """What this terminal has from its fleet, and how it gets more. One thread pulls, any thread may read."""

    def __init__(
        self,
        settings: FleetSettings,
        folder: Path,
        list_file: Path,
        store: Store[Any],
        *,
        times: Callable[[], Times] = Times.now,
        clock: Callable[[], float] = boottime,
    ) -> None:
        """`folder` keeps what was verified. A list is put at `list_file`, and a kit where `store` finds dropped kits.

        `times` judge the age of the data. `clock` is for the time limits of downloads.
        """
        if find_spec("tuf") is None:
            raise FleetError("A fleet needs the package tuf.", "Run `pip install tuf`.")
        self.settings, self.folder, self._list_file, self._store, self._times = settings, folder, list_file, store, times
        self._connection = Connection(web_address(settings.url), credentials(settings), clock=clock)
        self._root = read_bytes(settings.root, MAX_ROOT_BYTES, FleetError)
        self._client: Client | None = None
        now = times()
        stored = Memory.load(folder)
        self._memory = replace(stored, freshness=stored.freshness.resumed(now))
        self._saved = -math.inf  # when the memory was stored last
        self._kit_trouble: _KitTrouble | None = None
        self._problem: PullError | None = None  # of the last pull
        self._succeeded = self._ended = now.running  # when a pull succeeded, and when one ended
        self._news: deque[News] = deque()
        self._announced = "" if self.is_stale() else "fresh"
        self.revocations: Revocations | None = None
        """None: they cannot be read, so everyone is denied until the next pull."""
        self._load_files()

    def is_stale(self) -> bool:
        """Whether the last verified refresh was too long ago, so that `when_stale` applies."""
        return not self._memory.freshness.age(self._times()) <= self.settings.max_stale_hours * 3600

    def is_clock_plausible(self) -> bool:
        """Whether the time of day may be right: it is not before the last verified refresh."""
        return self._memory.freshness.is_plausible(self._times())

    def has_list(self) -> bool:
        """Whether the fleet has a list for this door."""
        return any(self._file(name).exists() for name in (DOOR_LIST, GROUP_LIST))

    def next_change(self) -> News | None:
        """Return the next news, or None. This is not the thread that pulls, so it notices a pull that hangs."""
        if not self._news and self._announced != STUCK and self._is_stuck:
            self._announced = STUCK
            log.error("the fleet: %s", STUCK_REASON)
            return News(kind="fleet", outcome="failed", reason=STUCK_REASON)
        return self._news.popleft() if self._news else None

    def pull(self) -> None:
        """Fetch, verify and apply what changed. Raises PullError, or PullPausedError if a kit is not complete yet."""
        try:
            with self._locked():
                self._pull()
        except PullPausedError:
            self._finish(None)
            raise
        except Exception as error:
            internal = PullError("device", f"The pull ended with an error ({type(error).__name__}).")
            self._finish(error if isinstance(error, PullError) else internal)
            raise
        self._finish(None)

    def check_places(self) -> None:
        """Raise FleetError if kits or lists cannot be put where the terminal finds them."""
        for place, key in ((self._store.dropped, "[kit] path"), (self._list_file, "[door] list")):
            folder = place.absolute().parent
            if folder != self.folder.absolute() and not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
                problem = f"The fleet cannot write to {folder}, the folder of {key}."
                raise FleetError(problem, f"Name a file in a folder of the terminal's user: {key}.")

    def probe(self) -> None:
        """Verify the repository without storing anything. Raises PullError."""
        from edge.fleet.client import Client

        with TemporaryDirectory() as folder:
            client = Client(self.settings.url, self._root, Path(folder), self._connection, kit_seconds=0.0)
            client.refresh(self._memory.freshness.reference(self._times()))
            client.require_delegated(revoked_path(self.settings.group))

    def save(self) -> None:
        """Store how old the data are. At the start of a terminal: then its start counts, even if the power fails soon."""
        self._ended = self._times().running  # the pulls begin now: a terminal may have waited for its camera
        with self._locked():
            self._save(self._times())

    def close(self) -> None:
        self._connection.close()

    def status(self) -> dict[str, Any]:
        """Return what the door has, for messages and commands. No names of people."""
        freshness, now = self._memory.freshness, self._times()
        verified = None if freshness.utc is None else datetime.fromtimestamp(freshness.utc, UTC).isoformat(timespec="seconds")
        return {
            "group": self.settings.group,
            "door": self.settings.door,
            "state": self._state(),
            "error": self._error(),
            "policy": self.settings.when_stale if self.is_stale() else "",
            "list": self._versions[DOOR_LIST] or self._versions[GROUP_LIST],
            "revocations": self._versions[REVOKED],
            "rollout": "" if self._rollout is None else self._rollout.id,
            "timestamp": freshness.timestamp,
            "verified": verified,
            "clock_is_plausible": freshness.is_plausible(now),
        }

    @property
    def received(self) -> int:
        """Bytes received since the start."""
        return self._connection.received

    # One pull

    def _pull(self) -> None:
        group, client, now = self.settings.group, self._ready_client(), self._times()
        self._memory = replace(self._memory, offered=Memory.load(self.folder).offered)  # `edge fleet pull` may have changed it
        timestamp = client.refresh(self._memory.freshness.reference(now))
        client.small_target(revoked_path(group), REVOKED, Revocations.from_bytes)
        self._load_files()
        later = [self._take_list(client)]
        self._verified(now, timestamp)
        later.append(self._leave_revoked_kit())
        client.small_target(rollout_path(group), ROLLOUT, lambda data: Rollout.from_bytes(data, group))
        self._load_files()
        self._take_kit(client)
        for problem in filter(None, later):
            raise problem

    def _ready_client(self) -> "Client":
        if self._client is None:
            from edge.fleet.client import Client

            # Half of the time between two pulls: a revocation does not wait until a kit is complete.
            seconds = self.settings.seconds / 2
            self._client = Client(self.settings.url, self._root, self.folder, self._connection, kit_seconds=seconds)
        return self._client

    def _load_files(self) -> None:
        """Use the stored revocations and rollout. If the revocations cannot be read, everyone is denied."""
        contents = {name: self._read(name) for name in (REVOKED, DOOR_LIST, GROUP_LIST, ROLLOUT)}
        self._versions = {
            name: hashlib.sha256(data).hexdigest()[:VERSION_DIGITS] if data else "" for name, data in contents.items()
        }
        self._rollout, data = None, contents[ROLLOUT]
        try:
            self._rollout = None if data is None else Rollout.from_bytes(data, self.settings.group)
        except FleetError as error:  # another group before; or a damaged file, which the next pull replaces
            log.warning("%s", error)
        data = contents[REVOKED]
        try:
            self.revocations = Revocations() if data is None else Revocations.from_bytes(data)
        except FleetError as error:
            log.error("everyone is denied: %s", error)
            self.revocations = None

    def _take_list(self, client: "Client") -> PullError | None:
        """Put a valid list at its place. Return why a list is refused: with it, a terminal would not start again."""
        group, door = self.settings.group, self.settings.door
        try:
            data = client.small_target(list_path(group, door), DOOR_LIST, DoorList.parse)
            if data is None:
                data = client.small_target(list_path(group), GROUP_LIST, DoorList.parse)
        except PullError as error:
            if error.cause != "invalid":  # it did not arrive, so the data are not complete
                raise
            return error
        if data is not None and not (self._list_file.exists() and self._list_file.read_bytes() == data):
            write_atomically(self._list_file, data, keep_owner=True)
        return None

    def _verified(self, now: Times, timestamp: int) -> None:
        """Remember that revocations and list are those of now."""
        was_stale = self.is_stale()
        self._memory = replace(self._memory, freshness=self._memory.freshness.after(now, timestamp))
        if was_stale:
            self._save(now)

    def _leave_revoked_kit(self) -> PullError | None:
        """Go back to the previous kit if the active one was revoked. Return the problem if there is none to go back to."""
        record, revoked = self._store.record(), self._revoked_kits()
        if record.current not in revoked:
            return None
        if not record.previous or record.previous in revoked:
            return PullError(
                "invalid", f"The kit {kit_id(record.current)} was revoked, and there is no other: everyone is denied."
            )
        self._store.roll_back(record.current, "this kit was revoked")
        return None

    def _take_kit(self, client: "Client") -> None:
        """Put the kit of the rollout where the terminal finds it, once. What the terminal then does is in edge.kit.watch."""
        rollout, offered = self._rollout, self._memory.offered
        path = None if rollout is None else rollout.kit_for(self.settings.door, has_kit=bool(offered))
        if rollout is None or path is None or (sha256 := kit_sha256(path)) in offered:
            return
        record = self._store.record()
        if sha256 in self._revoked_kits():
            raise PullError("invalid", f"The rollout names the kit {kit_id(sha256)}, which was revoked.")
        if path == rollout.kit and sha256 != record.current and rollout.kit_version <= record.version:
            problem = (
                f"The rollout has version {rollout.kit_version} of the kit, but version {record.version} was active here."
            )
            raise PullError("invalid", problem)
        if sha256 not in (record.current, self._dropped()):
            write_atomically(self._store.dropped, self._download_kit(client, path, sha256), keep_owner=True)
        self._memory = self._memory.with_offered(sha256)
        self._save(self._times())

    def _download_kit(self, client: "Client", path: str, sha256: str) -> bytes:
        """Return the bytes of a kit. One that is not accepted is downloaded again only after a pause."""
        trouble = self._kit_trouble if self._kit_trouble and self._kit_trouble.path == path else None
        now = self._times().running
        if trouble is not None and now < trouble.retry:
            raise trouble.problem
        try:
            data = client.kit(path)
            if hashlib.sha256(data).hexdigest() != sha256:
                raise PullError("invalid", f"The kit {kit_id(sha256)} of the fleet has another SHA-256 than its name says.")
        except PullError as problem:
            if problem.cause in ("untrusted", "invalid"):
                failures = 1 if trouble is None else trouble.failures + 1
                pause = min(KIT_PAUSE_SECONDS * 2.0 ** min(failures, 30), MAX_KIT_PAUSE_SECONDS)
                self._kit_trouble = _KitTrouble(path=path, failures=failures, retry=now + pause, problem=problem)
            raise
        return data

    def _finish(self, problem: PullError | None) -> None:
        """Remember and announce how a pull ended."""
        now = self._times()
        self._problem, self._ended = problem, now.running
        if problem is None:
            self._succeeded = now.running
        self._announce(*self._situation(now, problem))
        if now.running - self._saved >= SAVE_SECONDS:
            try:
                self.save()
            except PullError as error:
                log.warning("%s", error)

    def _situation(self, now: Times, problem: PullError | None) -> tuple[str, str, str]:
        """Return what is to be announced: its name, the outcome of the event and the reason. Nothing: empty texts."""
        why = "" if problem is None else f" {problem.message}"
        if self.is_stale():
            freshness = self._memory.freshness
            if not freshness.is_plausible(now):
                why += " The clock of this device is wrong."
            age = "yet" if freshness.utc is None else f"for {self.settings.max_stale_hours:g} hours"
            return "stale", "stale", f"no verified data {age}, so this holds: {self.settings.when_stale}.{why}"
        if problem is None:
            return "fresh", "fresh", ""
        if problem.cause == "network" and now.running - self._succeeded < OFFLINE_ALARM_SECONDS:
            return "", "", ""
        return problem.cause, "stale" if problem.cause == "expired" else "failed", problem.message

    def _announce(self, name: str, outcome: str, reason: str) -> None:
        if name and name != self._announced:
            self._announced = name
            self._memory = replace(self._memory, problem="" if outcome == "fresh" else reason)
            self._saved = -math.inf  # it is due
            log.log(logging.INFO if outcome == "fresh" else logging.WARNING, "fleet %s: %s", outcome, reason)
            self._news.append(News(kind="fleet", outcome=outcome, reason=reason or None))

    @property
    def _is_stuck(self) -> bool:
        """Whether no pull has ended for so long that the thread must hang. Then it cannot say so itself."""
        return self._times().running - self._ended > 2 * self.settings.seconds + STUCK_SECONDS

    def _error(self) -> str:
        if self._is_stuck:
            return STUCK_REASON
        return self._memory.problem if self._problem is None else self._problem.message

    def _state(self) -> str:
        """Return fresh, offline (not for long yet), failed or stale."""
        if self.is_stale():
            return "stale"
        if self._is_stuck:
            return "failed"
        if self._problem is None:
            return "fresh"
        return {"network": "offline", "expired": "stale"}.get(self._problem.cause, "failed")

    # Files

    def _revoked_kits(self) -> frozenset[str]:
        return frozenset() if self.revocations is None else self.revocations.kits

    def _dropped(self) -> str:
        """Return the SHA-256 of the file where kits are dropped, or an empty text."""
        try:
            return hashlib.sha256(read_kit_bytes(self._store.dropped)).hexdigest()
        except KitError:
            return ""

    def _file(self, name: str) -> Path:
        return self.folder / FILES / name

    def _read(self, name: str) -> bytes | None:
        """Return the content of a stored file, or None if there is none. One that cannot be read counts as damaged."""
        try:
            return self._file(name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError:
            return b""

    def _save(self, now: Times) -> None:
        self._memory = replace(self._memory, freshness=self._memory.freshness.resumed(now))
        self._memory.save(self.folder)
        self._saved = now.running

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclude `edge fleet pull` and other terminals. Errors of the disk and of the kit store are PullErrors."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked_folder(self.folder):
                yield
        except OSError as error:
            raise PullError("device", f"{error.filename or self.folder} cannot be used ({error.strerror}).") from None
        except KitError as error:
            raise PullError("device", error.message) from None
