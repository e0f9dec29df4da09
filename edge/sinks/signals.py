"""What LED and buzzer show: the own patterns, and what a door controller commanded. No clock and no hardware.

The patterns say no more than granted or denied about a decision: a stranger learns nothing from them.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from edge.events.event import Event
from edge.events.view import Guidance


class Colour(Enum):
    """Red, green and blue."""

    OFF = (0, 0, 0)
    RED = (1, 0, 0)
    GREEN = (0, 1, 0)
    AMBER = (1, 1, 0)
    BLUE = (0, 0, 1)
    MAGENTA = (1, 0, 1)
    CYAN = (0, 1, 1)
    WHITE = (1, 1, 1)


@dataclass(frozen=True)
class Signal:
    """What is shown and heard at one moment."""

    colour: Colour = Colour.OFF
    tone: bool = False


@dataclass(frozen=True)
class Pattern:
    """Steps of (seconds, colour, tone) that are repeated for `lasts` seconds; the tone ends after `sounds` seconds."""

    steps: tuple[tuple[float, Colour, bool], ...]
    lasts: float = math.inf
    sounds: float = math.inf

    def at(self, elapsed: float) -> Signal | None:
        """Return the signal so many seconds after the beginning; None: before it or after the end."""
        if not 0 <= elapsed < self.lasts:
            return None
        left = elapsed % sum(seconds for seconds, _, _ in self.steps)
        for seconds, colour, tone in self.steps:
            if left < seconds:
                return Signal(colour, tone and elapsed < self.sounds)
            left -= seconds
        return Signal(colour, False)  # a rounding error at the end of the last step


class State(Enum):
    """What the terminal can show, the most important first."""

    GRANTED = "granted"
    DENIED = "denied"
    ALARM = "alarm"
    OUT_OF_ORDER = "out of order"
    PROMPT = "prompt"
    WAIT = "please wait"
    FACE = "face seen"
    IDLE = "idle"


PATTERNS = {
    State.GRANTED: Pattern(((0.3, Colour.GREEN, True), (2.7, Colour.GREEN, False)), lasts=3),
    State.DENIED: Pattern(
        ((0.15, Colour.RED, True), (0.15, Colour.RED, False), (0.15, Colour.RED, True), (2.55, Colour.RED, False)), lasts=3
    ),
    State.ALARM: Pattern(((0.25, Colour.RED, True), (0.25, Colour.OFF, False)), sounds=10),
    State.OUT_OF_ORDER: Pattern(((1, Colour.RED, False), (2, Colour.OFF, False))),
    State.PROMPT: Pattern(((0.3, Colour.BLUE, False), (0.3, Colour.OFF, False)), lasts=15),
    State.WAIT: Pattern(((1, Colour.AMBER, False),), lasts=10),
    State.FACE: Pattern(((1, Colour.WHITE, False),), lasts=10),
    State.IDLE: Pattern(((0.1, Colour.WHITE, False), (4.9, Colour.OFF, False))),
}
"""The whole look of the terminal. docs/guide/sinks.md shows this table."""

FACES = {
    **dict.fromkeys((Guidance.LEFT, Guidance.RIGHT, Guidance.DOWN), State.PROMPT),
    **dict.fromkeys((Guidance.LOOK, Guidance.CLOSER, Guidance.BACK, Guidance.CENTRE), State.FACE),
    **dict.fromkeys((Guidance.STILL, Guidance.LIGHT), State.FACE),
    Guidance.WAIT: State.WAIT,
}
"""What a face in front of the camera leads to, until the decision."""
PARTS = {"camera": {"lost", "frozen"}, "controller": {"lost"}}
"""Parts without which no visitor can enter, and the outcomes of their events that say so. All others say that they work."""
ALARMS = {"forced open", "held open", "tamper"}
"""Outcomes of inputs. The same with " ended" follows."""


@dataclass(frozen=True, kw_only=True)
class Display:
    """What the terminal shows by itself: when each state began, and what keeps two of them going."""

    began: Mapping[State, float] = field(default_factory=dict)
    failed: frozenset[str] = frozenset()
    alarms: frozenset[str] = frozenset()

    def at(self, now: float) -> Signal:
        """Return the signal of the most important state that is not over."""
        for state in State:
            signal = PATTERNS[state].at(now - self.began[state]) if state in self.began else None
            if signal is not None:
                return signal
        return Signal()

    def after(self, event: Event, now: float) -> "Display":
        """Return the display after an event of this moment."""
        outcome = event.outcome or ""
        match event.kind:
            case "start":
                return self._with(State.IDLE, now)
            case "stop":
                return Display()
            case "decision":
                shown = State.GRANTED if event.grants else State.DENIED
                return self._without(State.GRANTED, State.DENIED)._with(shown, now)
            case "input":
                return self._after_input(outcome, now)
            case part if part in PARTS:
                failed = self.failed - {part} | ({part} if outcome in PARTS[part] else set())
                return replace(self, failed=failed)._while(State.OUT_OF_ORDER, bool(failed), now)
        return self

    def after_faces(self, guidance: Iterable[Guidance], now: float) -> "Display":
        """Return the display for a frame, with the guidance of each face. A state that goes on keeps its beginning."""
        shown = {FACES.get(one) for one in guidance}
        display = self
        for state in (State.PROMPT, State.WAIT, State.FACE):
            display = display._while(state, state in shown, now)
        return display

    def _after_input(self, outcome: str, now: float) -> "Display":
        if outcome in ALARMS:
            return replace(self, alarms=self.alarms | {outcome})._with(State.ALARM, now)
        alarms = self.alarms - {outcome.removesuffix(" ended")}
        return replace(self, alarms=alarms)._while(State.ALARM, bool(alarms), now)

    def _with(self, state: State, now: float) -> "Display":
        return replace(self, began={**self.began, state: now})

    def _without(self, *states: State) -> "Display":
        return replace(self, began={state: since for state, since in self.began.items() if state not in states})

    def _while(self, state: State, holds: bool, now: float) -> "Display":
        """Return the display with or without a state; one that is there already goes on."""
        if holds == (state in self.began):
            return self
        return self._with(state, now) if holds else self._without(state)


@dataclass(frozen=True, kw_only=True)
class LedCommand:
    """A command of a door controller for the LED."""

    is_temporary: bool
    """Whether it ends after `seconds`. Otherwise it holds until the next one."""
    cancels: bool = False
    """End the temporary command before, and do nothing else."""
    on_seconds: float = 0.0
    off_seconds: float = 0.0
    on_colour: Colour = Colour.OFF
    off_colour: Colour = Colour.OFF
    seconds: float = 0.0

    def colour(self, elapsed: float) -> Colour:
        left = elapsed % max(0.1, self.on_seconds + self.off_seconds)
        return self.on_colour if left < self.on_seconds else self.off_colour


@dataclass(frozen=True, kw_only=True)
class BuzzerCommand:
    """A command of a door controller for the buzzer."""

    on_seconds: float = 0.0
    """0: be silent."""
    off_seconds: float = 0.0
    times: int = 1
    """How often; 0: until the next command."""

    def sounds(self, elapsed: float) -> bool:
        cycle = self.on_seconds + self.off_seconds
        if self.on_seconds <= 0 or (self.times and elapsed >= self.times * cycle):
            return False
        return elapsed % cycle < self.on_seconds


@dataclass(frozen=True, kw_only=True)
class Commanded:
    """What a door controller has commanded since it is connected: each command with its beginning."""

    permanent: tuple[LedCommand, float] | None = None
    temporary: tuple[LedCommand, float] | None = None
    buzzer: tuple[BuzzerCommand, float] | None = None

    def after_led(self, command: LedCommand, now: float) -> "Commanded":
        if command.cancels:
            return replace(self, temporary=None)
        if command.is_temporary:
            return replace(self, temporary=(command, now))
        return replace(self, permanent=(command, now))

    def after_buzzer(self, command: BuzzerCommand, now: float) -> "Commanded":
        return replace(self, buzzer=(command, now))

    def over(self, own: Signal, now: float) -> Signal:
        """Return the signal: what the controller commanded, and for the rest the own one."""
        colour = own.colour
        for given, is_limited in ((self.temporary, True), (self.permanent, False)):
            if given is not None and (not is_limited or now - given[1] < given[0].seconds):
                colour = given[0].colour(now - given[1])
                break
        return Signal(colour, own.tone if self.buzzer is None else self.buzzer[0].sounds(now - self.buzzer[1]))
