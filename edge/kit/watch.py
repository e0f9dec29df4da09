"""A terminal that takes up a new kit while it runs, and gives it up again by itself if it does not work.

A thread of its own looks at the file that kits are dropped at, checks what it finds, and makes it ready; the loop is handed
the finished recogniser between two frames. Whatever is wrong with the file, the kit that runs goes on running.
"""

from __future__ import annotations

import hashlib
import logging
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge.errors import EdgeError, KitError
from edge.kit.format import Kit
from edge.kit.store import RECORD, Store, about, read, summary, why_not
from edge.vision.recognize import Recognition, Recognizer

FIRST_FRAMES = 50
"""A new kit that got through so many has proved itself."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Change:
    """What the loop is to do between two frames, and to tell."""

    outcome: str
    """installed, refused or rolled back."""
    reason: str
    """Which kit, and why."""
    recognizer: Recognizer | None = None
    """To be used from now on, if another one is."""


class OnTrial(Recognizer):
    """A recogniser that is watched through its first frames."""

    def __init__(self, kit: Kit, *, settled: Callable[[], None] = lambda: None, **settings: Any) -> None:
        """`settled` is called when it has failed or proved itself."""
        super().__init__(kit, **settings)
        self.frames, self.failure = 0, ""
        self.settled = settled

    def recognize(self, image: Any, *, min_face: int | None = None) -> list[Recognition]:
        try:
            found = super().recognize(image, min_face=min_face)
        except Exception as error:
            self._note(f"one of its first frames failed ({type(error).__name__})")
            raise
        self._note("one of its first frames gave no numbers" if any(seen.reason == "broken" for seen in found) else "")
        return found

    def _note(self, failure: str) -> None:
        if self.frames >= FIRST_FRAMES or self.failure:
            return
        self.failure = failure
        self.frames += 1
        if self.failure or self.frames == FIRST_FRAMES:
            self.settled()


class KitWatch:
    """Looks after the kit of a running terminal, between `with` and its end. Called, it gives the next Change or None."""

    def __init__(self, store: Store[OnTrial], *, seconds: float) -> None:
        """Looks every so many `seconds`. Refuses, as Store.begin does, where there is no kit to begin with."""
        self._store, self._seconds = store, seconds
        self._changes: queue.SimpleQueue[Change] = queue.SimpleQueue()
        self._wake, self._closed = threading.Event(), False
        self._before: OnTrial | None = None  # ready, should the one in force fail
        self._seen = self._judged = self._stamps()  # first: what is dropped from now on is seen
        self.recognizer, told = store.begin()
        self.recognizer.settled = self._wake.set
        for outcome, reason in told:
            self._tell(Change(outcome=outcome, reason=reason))
        self._thread = threading.Thread(target=self._work, name="kits", daemon=True)

    def __enter__(self) -> KitWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._wake.set()
        self._thread.join(1.0)

    def __call__(self) -> Change | None:
        try:
            return self._changes.get_nowait()
        except queue.Empty:
            return None

    def _work(self) -> None:
        while not self._closed:
            woken = self._wake.wait(self._seconds)
            if woken:  # only then: a kit may have failed just after the wait was over
                self._wake.clear()
            try:
                self._settle() if woken else self._look()
            except Exception:  # the door must not depend on it
                log.exception("the kits cannot be looked after")

    def _settle(self) -> None:
        """What becomes of a kit whose first frames are over."""
        tried = self.recognizer
        digest = tried.kit.sha256
        if tried.frames == FIRST_FRAMES and not tried.failure:
            self._before = None
            self._store.prove(digest)
        elif tried.failure and (self._before is not None or self._store.record().starts):
            before, self._before = self._before, None
            try:
                record = self._store.roll_back(digest, tried.failure)
                if before is None or before.kit.sha256 != record.current:
                    before = self._store.stored(record.current)
            except EdgeError:  # as of a full disk: at least as long as this process lives
                log.exception("the kit before cannot be put in force for good")
            if before is not None:
                self._use(before, "rolled back", about(digest, tried.failure))

    def _look(self) -> None:
        """At what was dropped, once it has not changed since the last look; and at the record, which others may change."""
        stamps, before = self._stamps(), self._seen
        self._seen = stamps
        if stamps != before or stamps == self._judged:
            return
        (dropped, recorded), self._judged = self._judged, (self._judged[0], stamps[1])
        if stamps[1] != recorded:
            self._follow()
        if stamps[0] != dropped:
            self._take(stamps)

    def _follow(self) -> None:
        """The record, if somebody else put another kit in force: `edge kit rollback`."""
        record, running = self._store.record(), self.recognizer.kit.sha256
        if record.current not in ("", running):
            why = record.rolled_back.get(running, "another was put in force")
            self._use(self._store.stored(record.current), "rolled back", about(running, why))
            self._before = None

    def _take(self, stamps: tuple[Any, Any]) -> None:
        """What was dropped, if it can be read and is still the same."""
        try:
            data = read(self._store.dropped)
        except KitError:
            log.debug("what was dropped cannot be read", exc_info=True)
            return
        if self._stamps()[0] != stamps[0]:
            return
        self._judged = stamps
        digest = hashlib.sha256(data).hexdigest()
        if digest == self.recognizer.kit.sha256:
            return
        try:
            ready = self._store.install(data)
        except Exception as error:  # whatever it is, the kit that runs goes on
            self._tell(Change(outcome="refused", reason=about(digest, why_not(error))))
            return
        self._before = self._before or self.recognizer
        self._use(ready, "installed", summary(ready.kit))

    def _use(self, ready: OnTrial, outcome: str, reason: str) -> None:
        ready.settled = self._wake.set
        self._tell(Change(outcome=outcome, reason=reason, recognizer=ready))
        self.recognizer = ready  # last: whoever sees it here knows that the loop will be told

    def _tell(self, change: Change) -> None:
        log.warning("kit %s: %s", change.outcome, change.reason)
        self._changes.put(change)

    def _stamps(self) -> tuple[Any, Any]:
        return _stamp(self._store.dropped), _stamp(self._store.folder / RECORD)


def _stamp(path: Path) -> tuple[int, ...] | None:
    """Changes with the file, whatever way it is replaced; with its owner, too."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
