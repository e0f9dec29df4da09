"""The loop of a terminal: from the camera's newest frame to a decision and its event. Any doubt means no grant."""

import logging
import math
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.camera.base import FROZEN_SECONDS, Camera, Frame
from edge.camera.frozen import FrozenCheck
from edge.decision import reasons
from edge.decision.challenge import PROMPTS, LivenessSettings
from edge.decision.door import AccessRules, Decision, Door
from edge.decision.track import Tracker
from edge.decision.visit import Sighting, VisitRules
from edge.events.event import ALARMS, Event, News, decision_event, notice
from edge.events.health import Count, Health
from edge.events.sink import OutputClosed, Sink, deliver
from edge.events.view import Mark, View, Viewer
from edge.kit.store import KitChange
from edge.stages import DECIDE, WHOLE, StageTimer, untimed
from edge.terminal.guidance import guide
from edge.terminal.temperature import read_temperature
from edge.vision.detect import Face
from edge.vision.liveness import relief
from edge.vision.quality import assess
from edge.vision.recognize import Recognition, Recognizer

WAIT_SECONDS = 0.05  # for a frame, before the next look at the camera's health, the clock and the stop signal
SKIP_SECONDS = 0.09  # between two searches for faces while no visit needs them: at 15 frames per second, every second frame
COUNTERS = (
    *(Count.FRAMES, Count.FACES, Count.LOOKS, Count.FAILURES, Count.GRANTED, Count.DENIED, Count.ATTACKS, Count.UNDELIVERED),
    *(Count.CAMERA_REPEATED, Count.CAMERA_FROZEN),
)

log = logging.getLogger(__name__)
T = TypeVar("T")


class Terminal:
    """Watches one camera with one kit. Sinks receive events, viewers receive views, in turn on the loop's thread.

    An error with a frame is logged and counted, and the frame is ignored. A failing sink or viewer does not affect the others.
    """

    def __init__(
        self,
        recognizer: Recognizer,
        camera: Camera,
        *,
        door_list: AccessRules | None = None,
        admit: Callable[[str, datetime], str | None] = lambda label, when: None,
        rules: VisitRules | None = None,
        liveness: LivenessSettings | None = None,
        sinks: Iterable[Sink] = (),
        viewers: Iterable[Viewer] = (),
        max_fps: float = math.inf,
        frozen_seconds: float = FROZEN_SECONDS,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        on_frame: Callable[[], None] = lambda: None,
        stage: StageTimer = untimed,
        changes: Callable[[], KitChange | None] = lambda: None,
        news: Iterable[Callable[[], News | None]] = (),
        first_sequence: int = 1,
        temperature: Callable[[], float | None] = read_temperature,
    ) -> None:
        """`max_fps` limits the frames per second of a live camera, which is frozen if its frames do not change for
        `frozen_seconds`. `admit` counts a grant, as for `Door`. `clock` returns the time of day.

        `on_frame` is called after each frame without an error. `stage` times the stages DECIDE and WHOLE. `changes` is called
        between two frames and returns another kit to use, or news about kits; `news` are the same for other parts, without a
        kit. `first_sequence` numbers the first event. `temperature` reads that of the device.
        """
        self.recognizer, self.camera = recognizer, camera
        self.counters = Counter[str](dict.fromkeys(COUNTERS, 0))
        self._sequences = count(first_sequence)
        self._rules = rules or VisitRules()
        self._sinks, self._viewers, self._clock = tuple(sinks), tuple(viewers), clock
        self._on_frame, self._stage, self._changes, self._temperature = on_frame, stage, changes, temperature
        self._news = tuple(news)
        self._alarms = {f"{kind} {outcome}": 0 for kind, outcome in sorted(ALARMS)}
        self._processed = math.nan  # capture time of the last frame without an error
        self._frame_seconds = 1 / max_fps if camera.live else 0.0
        self._next_frame = -math.inf
        self._camera_state = "back"  # the outcome of the last camera event
        self._frozen = FrozenCheck(frozen_seconds if camera.live else math.inf)
        self._searched = -math.inf  # capture time of the last frame that was searched for faces
        self._recognitions: dict[int, Recognition] = {}  # by visit: its last look
        self._marks: tuple[Mark, ...] = ()
        self._tracker = Tracker(self._rules)
        manifest = recognizer.kit.manifest
        self._liveness = liveness or LivenessSettings()
        if self._liveness.challenge:
            self.counters.update({Count.CHALLENGES_MET: 0, Count.CHALLENGES_NOT_MET: 0})
        self._door = Door(
            manifest.labels,
            manifest.thresholds.confidence,
            manifest.confidence,
            live_threshold=self._live_threshold(recognizer),
            rules=self._rules,
            door_list=door_list,
            admit=admit,
            liveness=self._liveness,
        )

    def run(self, stop: threading.Event | None = None) -> None:
        """Run until the recording ends, `stop` is set, or the reader of the events is gone."""
        self.recognizer.detector  # noqa: B018 (a kit without a detector is an error now, not at every frame)
        stop = stop or threading.Event()
        reason = "interrupted"
        try:
            self._notify("start")
            while not (self.camera.ended or stop.is_set()):
                self._guarded("a kit change was ignored", self._change_kit)
                for newest in self._news:
                    self._guarded("news were ignored", partial(self._report, newest))
                self._guarded("a frame was ignored", self._next)
            if not stop.is_set():
                self.finish()
            reason = "stop requested" if stop.is_set() else "recording ended"
        except OutputClosed:
            reason = "output closed"
        finally:
            with suppress(OutputClosed):
                self._notify("stop", reason=reason)

    def look(self, frame: Frame) -> list[Event]:
        """Process one frame: find and track faces, recognise those that need it, decide, deliver.

        Return the events of the decisions. Nothing is decided on a frame that repeats an earlier one.
        """
        with self._stage(WHOLE):
            return self._guarded("a frame was ignored", lambda: self._look(frame)) or []

    def finish(self) -> list[Event]:
        """End all visits, and return the events of the decisions about them."""
        return self._guarded("a visit was ignored", lambda: self._step({}, math.inf)) or []

    def health(self) -> Health:
        """Return the state of the terminal. Any thread may call it."""
        camera, age = self.camera.health, self.camera.now() - self._processed
        return {
            "camera": self.camera.name,
            "camera_up": camera.up and not self._frozen.problem,
            "camera_frozen": camera.up and bool(self._frozen.problem),
            "frame_age_seconds": round(age, 3) if age >= 0 else None,
            "error": camera.error or self._frozen.problem,
            "kit": self.recognizer.kit.id,
            "thresholds": self.recognizer.kit.manifest.thresholds.sentence,
            "temperature_celsius": self._temperature(),
            "counters": {
                **self.counters,
                Count.CAMERA_DROPPED: camera.dropped,
                Count.CAMERA_BROKEN: camera.broken,
                Count.CAMERA_RECONNECTS: camera.reconnects,
            },
            "sinks": {},
            "alarms": dict(self._alarms),
            "failing": [],
        }

    def _live_threshold(self, recognizer: Recognizer) -> float | None:
        """Return the liveness score that a grant needs, or None if there is no liveness model or it is switched off."""
        used = recognizer.liveness if self._liveness.passive else None
        return None if used is None else used.spec.threshold

    def _guarded(self, consequence: str, action: Callable[[], T]) -> T | None:
        """Run an action. An error is counted and logged, and leads to no decision."""
        try:
            return action()
        except OutputClosed:
            raise
        except Exception:
            self.counters[Count.FAILURES] += 1
            log.exception(consequence)
            return None

    def _change_kit(self) -> None:
        """Use a new kit, if there is one. All visits begin anew, because no decision may use the scores of two kits."""
        change = self._changes()
        if change is None:
            return
        if change.recognizer is not None:
            manifest = change.recognizer.kit.manifest
            live_threshold = self._live_threshold(change.recognizer)
            self._door.restart(
                manifest.labels, manifest.thresholds.confidence, manifest.confidence, live_threshold=live_threshold
            )
            self._tracker.restart()
            self._recognitions.clear()
            self.recognizer = change.recognizer
        self._notify("kit", outcome=change.outcome, reason=change.reason)

    def _report(self, newest: Callable[[], News | None]) -> None:
        if (news := newest()) is not None:
            self._notify(news.kind, outcome=news.outcome, reason=news.reason)

    def _next(self) -> None:
        """Process the next frame. Without a frame, end the visits whose time is over."""
        now = time.monotonic()
        if now < self._next_frame:
            time.sleep(min(self._next_frame - now, WAIT_SECONDS))
            return
        self._next_frame = now + self._frame_seconds
        frame = self.camera.frame(WAIT_SECONDS)
        self._report_camera()
        if frame is None:
            self._next_frame = now
            self._step({}, self.camera.now())
        else:
            self.look(frame)

    def _report_camera(self) -> None:
        """Send an event if a live camera was lost, is frozen, or is back."""
        health, problem = self.camera.health, self._frozen.problem
        if not self.camera.live or not (health.up or health.error):  # neither: it is being opened
            return
        state = "lost" if not health.up else "frozen" if problem else "back"
        if state == self._camera_state:
            return
        self._camera_state = state
        if state == "frozen":
            self.counters[Count.CAMERA_FROZEN] += 1
            log.warning("the camera %s is frozen: %s", self.camera.name, problem)
        self._notify("camera", outcome=state, reason=health.error or problem or None)

    def _look(self, frame: Frame) -> list[Event]:
        now = self.camera.now()
        if not frame.captured <= now:  # all later frames would seem old
            raise ValueError("a frame from the future")
        if not self._frozen.is_new(frame, now):
            self.counters[Count.CAMERA_REPEATED] += 1
            if not frame.captured > self._processed:
                return self._step({}, now)
            self._show(frame)
            return self._step({}, frame.captured)
        self.counters[Count.FRAMES] += 1
        faces: list[tuple[Face, int | None]] = []
        seen: dict[int, Sighting] = {}
        is_skipped = self._door.can_skip(frame.captured) and 0 < frame.captured - self._searched < SKIP_SECONDS
        if not is_skipped:
            faces, seen = self._watch(frame)
        with self._stage(DECIDE):
            events = self._step(seen, frame.captured)
        if self._viewers and not is_skipped:
            self._marks = tuple(self._mark(frame, face, visit) for face, visit in faces)
        self._show(frame)
        self._processed = frame.captured
        self._on_frame()
        return events

    def _show(self, frame: Frame) -> None:
        """Show a frame with the newest marks."""
        view = View(frame=frame, marks=self._marks)
        for viewer in self._viewers:
            self._guarded("a view was not shown", partial(viewer.show, view))

    def _step(self, seen: Mapping[int, Sighting], now: float) -> list[Event]:
        """Make the decisions that are due. `now` is the time of capture: a slow machine must not end visits."""
        when = self._clock()  # first: if it fails, nothing has happened yet
        ended = self._tracker.ended(now)
        for visit in ended:
            self._recognitions.pop(visit, None)
        result = self._door.step(now=self.camera.now(), when=when, seen=seen, ended=ended)
        for error in result.errors:
            self.counters[Count.FAILURES] += 1
            log.error("the door list failed; the person is denied", exc_info=error)
        for visit, prompt in result.prompts:
            self._notify("challenge", outcome=prompt, reason=PROMPTS[prompt], visit=visit)
        return [self._deliver_decision(decision, when) for decision in result.decisions]

    def _deliver_decision(self, decision: Decision, when: datetime) -> Event:
        now = self.camera.now()
        if decision.outcome == "granted" and now - decision.captured > self._rules.max_age_seconds:
            decision = replace(decision, outcome="denied", reason=reasons.STALE_FRAME)  # a sink was slow
        granted = decision.outcome == "granted"
        self.counters[Count.GRANTED if granted else Count.DENIED] += 1
        self.counters[Count.ATTACKS] += decision.reason == reasons.PRESENTATION_ATTACK
        if self._liveness.challenge and (granted or decision.reason.startswith(reasons.CHALLENGE_FAILED)):
            self.counters[Count.CHALLENGES_MET if granted else Count.CHALLENGES_NOT_MET] += 1
        return self._deliver(decision_event(decision, now=now, utc=when))

    def _notify(self, kind: str, *, outcome: str | None = None, reason: str | None = None, visit: int | None = None) -> None:
        make = partial(notice, kind, outcome=outcome, reason=reason, visit=visit)
        consequence = f"the event {kind} was not delivered"
        self._guarded(consequence, lambda: self._deliver(make(now=self.camera.now(), utc=self._clock())))

    def _deliver(self, event: Event) -> Event:
        event = replace(event, camera=self.camera.name, kit=self.recognizer.kit.id, sequence=next(self._sequences))
        if event.is_alarm:
            self._alarms[f"{event.kind} {event.outcome}"] += 1
        self.counters[Count.UNDELIVERED] += deliver(self._sinks, event)
        return event

    def _watch(self, frame: Frame) -> tuple[list[tuple[Face, int | None]], dict[int, Sighting]]:
        """Find and track the faces, and recognise those that need it. Return each face with its visit, and the sightings."""
        faces = self.recognizer.find(frame.image)
        self._searched = frame.captured
        self.counters[Count.FACES] += len(faces)
        visits = self._tracker.update(frame.captured, [face.box_xyxy for face in faces], self._door.decided)
        tracked = {visit: face for visit, face in zip(visits, faces, strict=True) if visit is not None}
        if not tracked:
            return list(zip(faces, visits, strict=True)), {}
        grey = np.asarray(cv2.cvtColor(frame.image, cv2.COLOR_BGR2GRAY), np.uint8)
        seen = {visit: self._tracked(frame, grey, face, visit, len(faces) == 1) for visit, face in tracked.items()}
        now = self.camera.now()
        wanted = [visit for visit, sighting in seen.items() if self._door.wants_look(visit, sighting, now=now)]
        numbers = {visit: visit for visit in tracked}
        liveness = self.recognizer.liveness if self._liveness.passive else None
        looks = self.recognizer.look(frame.image, [tracked[visit] for visit in wanted], liveness=liveness)
        for visit, found in zip(wanted, looks, strict=True):
            sighting = self._looked(seen.pop(visit), found)
            self.counters[Count.LOOKS] += sighting.is_recognised
            number = numbers[visit] = visit if found.label is None else self._tracker.name(visit, found.label)
            seen[number], self._recognitions[number] = sighting, found
        return [(face, None if visit is None else numbers[visit]) for face, visit in zip(faces, visits, strict=True)], seen

    def _tracked(self, frame: Frame, grey: NDArray[np.uint8], face: Face, visit: int, is_alone: bool) -> Sighting:
        """Return the sighting of a face without a look."""
        sighting = Sighting(captured=frame.captured, is_look=False, is_alone=is_alone)
        if self._door.decision(visit) is not None:
            return sighting
        if self._door.wants_relief(visit):
            sighting = replace(sighting, relief=relief(self.recognizer.detector.refine(face, frame.image).landmarks))
        return replace(sighting, grade=assess(grey, face).grade)

    def _looked(self, sighting: Sighting, seen: Recognition) -> Sighting:
        """Return the sighting of a face with the result of a look."""
        return replace(
            sighting,
            is_look=True,
            label=seen.label,
            confidence=seen.confidence,
            margin=seen.margin,
            quality=None if seen.quality is None else seen.quality.reason,
            scores=seen.scores,
            score_length=seen.score_length,
            relief=relief(seen.landmarks),
            live=seen.live,
        )

    def _mark(self, frame: Frame, face: Face, visit: int | None) -> Mark:
        decision = None if visit is None else self._door.decision(visit)
        prompt = None if visit is None else self._door.prompt(visit)
        seen = None if visit is None else self._recognitions.get(visit)
        text, detail, state = "", "" if seen is None else f"{seen.confidence:.2f} of {seen.threshold:.2f}", "watching"
        if decision is not None:
            text, state = decision.label or "", decision.outcome
            detail = decision.outcome if decision.outcome == "granted" else decision.reason
        elif prompt is not None:
            text, detail = PROMPTS[prompt], ""
        elif seen is not None and seen.quality is not None and seen.quality.reason is not None:
            detail, state = seen.reason, "unusable"
        return Mark(
            box_xyxy=face.box_xyxy,
            landmarks=face.landmarks,
            text=text,
            detail=detail,
            state=state,
            guidance=guide(frame, face, decision=decision, prompt=prompt, seen=seen),
            visit=visit if decision is None else decision.visit,
        )


def run_until_signal(terminal: Terminal) -> int | None:
    """Run until the end, Ctrl-C, SIGTERM or a closed terminal window. Return the signal, or None.

    A second signal has its usual effect. A signal that is ignored (nohup) stays ignored.
    """
    stop = threading.Event()  # the loop never holds its lock, which the handler needs on the same thread
    received: list[int] = []
    usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    usual = {number: handler for number, handler in usual.items() if handler is not signal.SIG_IGN}

    def request_stop(number: int, _: object) -> None:
        received.append(number)
        signal.signal(number, usual[signal.Signals(number)])
        if len(received) == 1:
            stop.set()

    for number in usual:
        signal.signal(number, request_stop)
    try:
        terminal.run(stop)
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
    return received[0] if received else None
