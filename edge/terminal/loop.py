"""The loop of a door: from the camera's newest frame to a decision, and to whoever wants to know. Any doubt is no grant."""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

import cv2

from edge.camera.base import Camera, Frame
from edge.decision import reasons
from edge.decision.challenge import PROMPTS, LivenessSettings
from edge.decision.door import AccessRules, Decision, Door
from edge.decision.track import Tracker
from edge.decision.visit import Sighting, VisitRules
from edge.events.event import Event, Sink, StreamClosed, deliver, event_from, notice
from edge.kit.store import KitChange
from edge.monitor.annotate import Mark, View
from edge.stages import DECIDE, WHOLE, StageTimer, untimed
from edge.vision.liveness import relief, surface
from edge.vision.recognize import Recognition, Recognizer

WAIT_SECONDS = 0.05  # for a frame, before looking at the camera's health, the clock and the stop signal again
COUNTERS = ("frames", "faces", "failures", "granted", "denied", "undelivered")

log = logging.getLogger(__name__)
T = TypeVar("T")


class Terminal:
    """Watches one camera with one kit. Sinks receive events, viewers what was seen; they are called in turn and must be quick.

    Whatever goes wrong with a frame is logged and counted, and that frame counts for nothing. A sink or viewer that fails
    costs the others nothing.
    """

    def __init__(
        self,
        recognizer: Recognizer,
        camera: Camera,
        *,
        door_list: AccessRules | None = None,
        rules: VisitRules | None = None,
        liveness: LivenessSettings | None = None,
        sinks: Sequence[Sink] = (),
        viewers: Sequence[Callable[[View], None]] = (),
        max_fps: float = math.inf,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        on_frame: Callable[[], None] = lambda: None,
        stage: StageTimer = untimed,
        changes: Callable[[], KitChange | None] = lambda: None,
    ) -> None:
        """`max_fps` bounds the frames looked at in a second, of a live camera only; `clock` tells the time of day.

        `on_frame` is called after each frame with which nothing went wrong; `stage` is entered to "decide" and for "whole".
        `changes` is asked between two frames whether there is another kit to go on with, or something to tell of kits.
        """
        self.recognizer, self.camera = recognizer, camera
        self.counters = Counter(dict.fromkeys(COUNTERS, 0))
        self._rules = rules or VisitRules()
        self._sinks, self._viewers, self._clock = sinks, viewers, clock
        self._on_frame, self._stage, self._changes = on_frame, stage, changes
        self._processed = math.nan  # when the last frame was taken with which nothing went wrong
        self._pause = 1 / max_fps if camera.live else 0.0
        self._resting_until = -math.inf
        self._up = True
        self._tracker = Tracker(self._rules)
        manifest = recognizer.kit.manifest
        self._liveness = liveness or LivenessSettings()
        if self._liveness.challenge:
            self.counters.update({"met": 0, "not met": 0})
        self._door = Door(
            manifest.labels, manifest.thresholds.confidence, rules=self._rules, door_list=door_list, liveness=self._liveness
        )

    def run(self, stop: threading.Event | None = None) -> None:
        """Until the recording ends, `stop` is set, or nobody reads the events any more."""
        self.recognizer.detector  # noqa: B018 (a kit that finds no faces is refused now, and not at every frame)
        stop = stop or threading.Event()
        reason = "interrupted"
        try:
            self._notice("start")
            while not (self.camera.ended or stop.is_set()):
                self._safely("a change of the kit was passed over", self._change)
                self._safely("a frame was passed over", self._turn)
            if not stop.is_set():
                self._safely("a visit was passed over", self._step, [], math.inf)  # of those who were there at the end
            reason = "asked to" if stop.is_set() else "the recording is over"
        except StreamClosed:
            reason = "nobody reads the events any more"
        finally:
            with suppress(StreamClosed):
                self._notice("stop", reason=reason)

    def look(self, frame: Frame) -> list[Event]:
        """One frame: recognise, follow, decide, tell. The decisions it led to."""
        self.counters["frames"] += 1
        with self._stage(WHOLE):
            return self._safely("a frame was passed over", self._look, frame) or []

    def health(self) -> dict[str, Any]:
        """How the terminal does, without names. May be asked by any thread."""
        camera, age = self.camera.health, self.camera.now() - self._processed
        return {
            "camera": self.camera.name,
            "camera_up": camera.up,
            "frame_age_seconds": round(age, 3) if age >= 0 else None,
            "error": camera.error,
            "kit": self.recognizer.kit.id,
            "thresholds": self.recognizer.kit.manifest.thresholds.sentence,
            "counters": {
                **self.counters,
                "dropped": camera.dropped,
                "broken": camera.broken,
                "reconnects": camera.reconnects,
            },
        }

    def _safely(self, loss: str, action: Callable[..., T], *arguments: Any) -> T | None:
        """An error costs what it interrupts, never the door: no decision comes of it."""
        try:
            return action(*arguments)
        except StreamClosed:
            raise
        except Exception:
            self.counters["failures"] += 1
            log.exception(loss)
            return None

    def _change(self) -> None:
        """Between two frames. To a new kit all are new visitors: no decision rests on two."""
        change = self._changes()
        if change is None:
            return
        if change.recognizer is not None:
            manifest = change.recognizer.kit.manifest
            self._door.restart(manifest.labels, manifest.thresholds.confidence)
            self._tracker.restart()
            self.recognizer = change.recognizer
        self._notice("kit", outcome=change.outcome, reason=change.reason)

    def _turn(self) -> None:
        """The next frame; or, where none comes, a look at the clock."""
        began = time.monotonic()
        if began < self._resting_until:
            time.sleep(min(self._resting_until - began, WAIT_SECONDS))
            return
        self._resting_until = began + self._pause
        frame = self.camera.frame(WAIT_SECONDS)
        health = self.camera.health
        if self.camera.live and health.up != self._up and (health.up or health.error):  # without either, it is being opened
            self._up = health.up
            self._notice("camera", outcome="back" if health.up else "lost", reason=health.error or None)
        if frame is not None:
            self.look(frame)
        else:
            self._resting_until = began
            self._step([], self.camera.now())

    def _look(self, frame: Frame) -> list[Event]:
        if not frame.captured <= self.camera.now():  # it would make all that follow look old
            raise ValueError("a frame from the future")
        found = self.recognizer.recognize(frame.image)
        self.counters["faces"] += len(found)
        with self._stage(DECIDE):
            boxes, labels = [seen.box_xyxy for seen in found if seen.box_xyxy], [seen.label for seen in found]
            visits = self._tracker.update(frame.captured, boxes, labels)
            sightings = [(visit, self._sighting(seen, frame)) for visit, seen in zip(visits, found, strict=True)]
            if len(sightings) > 1:
                sightings = [(visit, replace(sighting, is_alone=False)) for visit, sighting in sightings]
            told = self._step(sightings, frame.captured)
        if self._viewers:
            view = View(frame=frame, marks=[self._mark(seen, visit) for visit, seen in zip(visits, found, strict=True)])
            for viewer in self._viewers:
                self._safely("a picture was not shown", viewer, view)
        self._processed = frame.captured
        self._on_frame()
        return told

    def _step(self, seen: list[tuple[int | None, Sighting]], now: float) -> list[Event]:
        """`now` is when the frame was taken: a slow machine must not make people leave."""
        when = self._clock()  # first: if it fails, nothing has happened yet
        result = self._door.step(
            now=self.camera.now(),
            when=when,
            seen={visit: sighting for visit, sighting in seen if visit is not None},
            ended=self._tracker.ended(now),
        )
        for error in result.errors:
            self.counters["failures"] += 1
            log.error("the door list failed; the person is denied", exc_info=error)
        for visit, prompt in result.prompts:
            self._notice("challenge", outcome=prompt, reason=PROMPTS[prompt], visit=visit)
        return [self._tell(decision, when) for decision in result.decisions]

    def _tell(self, decision: Decision, when: datetime) -> Event:
        now = self.camera.now()
        if decision.outcome == "granted" and now - decision.captured > self._rules.max_age_seconds:
            decision = replace(decision, outcome="denied", reason=reasons.STALE_FRAME)  # a sink was slow
        self.counters[decision.outcome] += 1
        if self._liveness.challenge and decision.outcome == "granted":
            self.counters["met"] += 1
        elif decision.reason.startswith(reasons.CHALLENGE_FAILED):
            self.counters["not met"] += 1
        return self._deliver(event_from(decision, now=now, **self._about(when)))

    def _notice(self, kind: str, **words: Any) -> None:
        self._safely(
            f"the {kind} was not told",
            lambda: self._deliver(notice(kind, now=self.camera.now(), **self._about(self._clock()), **words)),
        )

    def _deliver(self, event: Event) -> Event:
        self.counters["undelivered"] += deliver(self._sinks, event)
        return event

    def _about(self, when: datetime) -> dict[str, Any]:
        return {"utc": when, "camera": self.camera.name, "kit_sha256": self.recognizer.kit.sha256}

    def _sighting(self, seen: Recognition, frame: Frame) -> Sighting:
        sighting = Sighting(
            captured=frame.captured,
            label=seen.label,
            confidence=seen.confidence,
            margin=seen.margin,
            quality=None if seen.quality is None else seen.quality.reason,
            scores=seen.scores,
            relief=relief(seen.landmarks),
        )
        if not self._liveness.screen or seen.box_xyxy is None:
            return sighting
        grey: Any = cv2.cvtColor(frame.image, cv2.COLOR_BGR2GRAY)
        return replace(sighting, surface=surface(grey, seen.box_xyxy))

    def _mark(self, seen: Recognition, visit: int | None) -> Mark:
        place: dict[str, Any] = {"box_xyxy": seen.box_xyxy, "landmarks": seen.landmarks}
        decision = None if visit is None else self._door.decision(visit)
        if decision is not None:
            granted = decision.outcome == "granted"
            detail = decision.outcome if granted else decision.reason
            return Mark(text=decision.label or "", detail=detail, colour=decision.outcome, **place)
        prompt = None if visit is None else self._door.prompt(visit)
        if prompt is not None:
            return Mark(text=PROMPTS[prompt], colour="watching", **place)
        if seen.quality is not None and seen.quality.reason is not None:
            return Mark(detail=seen.reason, colour="refused", **place)
        return Mark(detail=f"{seen.confidence:.2f} of {seen.threshold:.2f}", colour="watching", **place)


def run_until_signal(terminal: Terminal) -> int | None:
    """Run until the end, Ctrl-C, SIGTERM or a terminal window that is closed; which of them it was.

    A second signal ends the process as it would any other. One that is ignored (nohup) still is.
    """
    stop = threading.Event()  # whose lock the loop never holds: the handler interrupts the loop's own thread
    received: list[int] = []
    usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    usual = {number: handler for number, handler in usual.items() if handler is not signal.SIG_IGN}

    def take(number: int, _: object) -> None:
        received.append(number)
        signal.signal(number, usual[signal.Signals(number)])
        if len(received) == 1:
            stop.set()

    for number in usual:
        signal.signal(number, take)
    try:
        terminal.run(stop)
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
    return received[0] if received else None
