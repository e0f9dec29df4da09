"""Take up a changed door list while the terminal runs.

A thread watches the file. A changed list is checked first; the loop begins to use it between two frames. If the new list is
invalid, cannot be read or is gone, the list before stays in use, and an alarm says so.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from edge.decision import doorlist
from edge.decision.doorlist import DoorList, uncounted
from edge.errors import DoorListError
from edge.events.event import News
from edge.files import file_stamp, read_bytes
from edge.terminal.entry_counts import EntryCounts
from edge.text import plural

WATCH_SECONDS = 1.0
KEPT = "The list before stays in use."

log = logging.getLogger(__name__)


class ListWatch:
    """The door list of a running terminal: the rules of its door, and the count of its limited entries.

    It watches the file while its `with` block runs.
    """

    def __init__(
        self,
        path: Path,
        counts: EntryCounts | None = None,
        *,
        required: bool = True,
        seconds: float = WATCH_SECONDS,
    ) -> None:
        """Read the list. DoorListError if it is invalid, or missing although it is `required`.

        Without `required`, every enrolled person may pass until the list appears. Without `counts`, limited entries are
        denied.
        """
        self._path, self.counts, self._seconds = path, counts, seconds
        self.on_list: Callable[[DoorList], None] = lambda _: None
        """Called with each new list, on the thread of the watch."""
        self._changes: deque[tuple[News, DoorList | None]] = deque()
        self._closing = threading.Event()
        self._seen = self._handled = file_stamp(path)  # before it is read: later changes are noticed
        self.door_list: DoorList | None = None
        """The list in use; None: there was none yet."""
        if required or path.exists():
            self.door_list = self._read()
        self._newest, self._is_bad = self.door_list, False  # the newest valid list, and whether the file has another one
        self._thread = threading.Thread(target=self._run, name="door list", daemon=True)

    def __enter__(self) -> "ListWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join(1.0)

    @property
    def version(self) -> str:
        """The version of the list in use; empty if there is none."""
        return "" if self.door_list is None else self.door_list.version

    def refusal(self, label: str, when: datetime, *, by_name: bool = False) -> str | None:
        """Say why the person may not pass at this time, or return None. `by_name`: entries for everyone do not count."""
        if (found := self.door_list) is None:
            return None
        used = uncounted if self.counts is None else self.counts.used
        return (found.by_name if by_name else found).answer(label, when, used).refusal

    def admit(self, label: str, when: datetime, *, by_name: bool = False) -> str | None:
        """Count a grant to this person, if their entries are limited. Return why there is none, or None."""
        if (found := self.door_list) is None or self.counts is None:
            return self.refusal(label, when, by_name=by_name)
        answer = (found.by_name if by_name else found).answer(label, when, self.counts.used)
        if answer.count_key is not None:
            self.counts.add(answer.count_key)
        return answer.refusal

    def next_change(self) -> News | None:
        """Begin to use the next changed list, and return the news about it. Only for the loop: it may change decisions."""
        if not self._changes:
            return None
        news, changed = self._changes.popleft()
        self.door_list = changed or self.door_list
        return news

    def _run(self) -> None:
        while not self._closing.wait(self._seconds):
            try:
                self.check_file()
            except Exception:  # the terminal must keep running
                log.exception("the door list cannot be checked")

    def check_file(self) -> None:
        """Look once: handle a changed file, if it did not change since the last look. Only one thread may call it."""
        stamp, before = file_stamp(self._path), self._seen
        self._seen = stamp
        if stamp != before or stamp == self._handled:
            return
        found: DoorList | DoorListError
        try:
            found = self._read()
        except DoorListError as error:
            found = error
        if file_stamp(self._path) != stamp:
            return
        self._handled = stamp
        if isinstance(found, DoorListError):
            self._is_bad = True
            self._report("rejected", f"{found.message} {KEPT}")
        elif self._is_bad or self._newest is None or found.version != self._newest.version:
            self._newest, self._is_bad = found, False
            self._report("installed", summary(found), found)
            self.on_list(found)

    def _read(self) -> DoorList:
        return DoorList.parse(read_bytes(self._path, doorlist.MAX_BYTES + 1, DoorListError), str(self._path))

    def _report(self, outcome: str, reason: str, changed: DoorList | None = None) -> None:
        log.warning("door list %s: %s", outcome, reason)
        self._changes.append((News(kind="list", outcome=outcome, reason=reason), changed))


def summary(door_list: DoorList) -> str:
    """Return version and size of a list, without names."""
    names = plural(len(door_list.people), "person", "people")
    everyone = any(entry.people is None for entry in door_list.entries)
    return f"{door_list.version}: {plural(len(door_list.entries), 'entry', 'entries')}, {'everyone' if everyone else names}"
