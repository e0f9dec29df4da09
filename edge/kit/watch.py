"""Replace the kit of a running terminal, and roll a new kit back if its first frames fail.

A thread watches the path where kits are dropped, checks a new kit and loads it. The loop receives the loaded recognizer
between two frames. If anything is wrong with the new file, the active kit stays in use.
"""

import hashlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge.errors import EdgeError, KitError
from edge.files import file_stamp
from edge.kit.format import Kit, read_kit_bytes
from edge.kit.store import RECORD, KitChange, Outcome, Store, summary
from edge.vision.detect import Face
from edge.vision.presentation import LivenessModel
from edge.vision.recognize import INVALID_OUTPUT, Recognition, Recognizer

PROBATION_FRAMES = 50  # a new kit passes its probation after this many frames without a failure

log = logging.getLogger(__name__)


class ProbationRecognizer(Recognizer):
    """A recognizer that watches itself during its first frames."""

    def __init__(self, kit: Kit, **settings: Any) -> None:
        super().__init__(kit, **settings)
        self.frames, self.failure = 0, ""
        self.on_probation_end: Callable[[], None] = lambda: None  # after the first failure, or after the last frame

    def find(self, image: NDArray[np.uint8], *, min_face: int | None = None) -> list[Face]:
        with self._failures_counted():
            found = super().find(image, min_face=min_face)
        self._count_frame("")
        return found

    def look(
        self, image: NDArray[np.uint8], faces: Sequence[Face], *, liveness: LivenessModel | None = None
    ) -> list[Recognition]:
        with self._failures_counted():
            found = super().look(image, faces, liveness=liveness)
        if any(recognition.reason == INVALID_OUTPUT for recognition in found):
            self._count_frame("one of its first frames had invalid scores")
        return found

    @contextmanager
    def _failures_counted(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._count_frame(f"one of its first frames failed ({type(error).__name__})")
            raise

    def _count_frame(self, failure: str) -> None:
        if self.frames >= PROBATION_FRAMES or self.failure:
            return
        self.failure = failure
        self.frames += 1
        if self.failure or self.frames == PROBATION_FRAMES:
            self.on_probation_end()


class _Stamps(NamedTuple):
    """File states that change whenever the file is replaced or its owner changes. None: no file."""

    dropped: tuple[int, ...] | None
    record: tuple[int, ...] | None


class KitWatch:
    """Watches the kits of a running terminal while its `with` block runs."""

    def __init__(self, store: Store[ProbationRecognizer], *, seconds: float) -> None:
        """Look for a new kit every `seconds`. Raises the errors of `Store.start` if there is no kit to start with."""
        self._store, self._seconds = store, seconds
        self._changes: deque[KitChange] = deque()
        self._wake, self._closed = threading.Event(), False
        self._fallback: ProbationRecognizer | None = None  # loaded, in case the active kit fails
        self.refused: KitChange | None = None
        """The last kit that was rejected or rolled back, unless another one was installed since then."""
        self._seen = self._handled = self._stamps()  # before the start: later changes are noticed
        self.recognizer, changes = store.start()
        self.recognizer.on_probation_end = self._wake.set
        for change in changes:
            self._report(change)
        self._thread = threading.Thread(target=self._run, name="kits", daemon=True)

    def __enter__(self) -> "KitWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._wake.set()
        self._thread.join(1.0)

    def next_change(self) -> KitChange | None:
        """Return the next change for the terminal, or None."""
        return self._changes.popleft() if self._changes else None

    def _run(self) -> None:
        while not self._closed:
            woken = self._wake.wait(self._seconds)
            if woken:  # only then: a kit may have failed just after the wait ended
                self._wake.clear()
            try:
                self._end_probation() if woken else self._check_files()
            except Exception:  # the terminal must keep running
                log.exception("the kits cannot be checked")

    def _end_probation(self) -> None:
        """Confirm a kit that processed its first frames. Roll back a kit that failed."""
        recognizer = self.recognizer
        digest = recognizer.kit.sha256
        if recognizer.frames == PROBATION_FRAMES and not recognizer.failure:
            self._fallback = None
            self._store.confirm(digest)
        elif recognizer.failure and (self._fallback is not None or self._store.record().starts):
            previous, self._fallback = self._fallback, None
            try:
                record = self._store.roll_back(digest, recognizer.failure)
                if previous is None or previous.kit.sha256 != record.current:
                    previous = self._store.load_stored(record.current)
            except EdgeError:  # e.g. a full disk: use the previous kit at least until this process ends
                log.exception("the rollback cannot be stored")
            if previous is not None:
                self._switch_to(previous, "rolled back", digest, recognizer.failure)

    def _check_files(self) -> None:
        """Handle a changed record or dropped kit. Wait until the files did not change between two checks."""
        stamps, before = self._stamps(), self._seen
        self._seen = stamps
        if stamps != before or stamps == self._handled:
            return
        handled, self._handled = self._handled, self._handled._replace(record=stamps.record)
        if stamps.record != handled.record:
            self._follow_record()
        if stamps.dropped != handled.dropped:
            self._try_dropped(stamps)

    def _follow_record(self) -> None:
        """Use the kit of the record if another process changed it (`edge kit rollback`)."""
        record, running = self._store.record(), self.recognizer.kit.sha256
        if record.current not in ("", running):
            reason = record.rolled_back.get(running, "another kit was activated")
            self._switch_to(self._store.load_stored(record.current), "rolled back", running, reason)
            self._fallback = None

    def _try_dropped(self, stamps: _Stamps) -> None:
        """Activate the dropped kit, if it can be read and does not change meanwhile."""
        try:
            data = read_kit_bytes(self._store.dropped)
        except KitError:
            log.debug("the dropped kit cannot be read", exc_info=True)
            return
        if self._stamps().dropped != stamps.dropped:
            return
        self._handled = stamps
        digest = hashlib.sha256(data).hexdigest()
        if digest == self.recognizer.kit.sha256:
            return
        try:
            recognizer = self._store.activate(data)
        except Exception as error:  # no error of a new kit may stop the active one
            self._report(KitChange.of("rejected", digest, error))
            return
        self._fallback = self._fallback or self.recognizer
        self._switch_to(recognizer, "installed", digest, summary(recognizer.kit))

    def _switch_to(self, recognizer: ProbationRecognizer, outcome: Outcome, digest: str, reason: str) -> None:
        """Use another recognizer. `digest` is the kit that the reason is about."""
        recognizer.on_probation_end = self._wake.set
        self._report(KitChange.of(outcome, digest, reason, recognizer))
        self.recognizer = recognizer  # last: who reads it here can rely on the change being reported

    def _report(self, change: KitChange) -> None:
        log.warning("kit %s: %s", change.outcome, change.reason)
        self._changes.append(change)
        self.refused = None if change.outcome == "installed" else change

    def _stamps(self) -> _Stamps:
        return _Stamps(file_stamp(self._store.dropped), file_stamp(self._store.folder / RECORD))
