"""The liveness challenge asks the visitor to turn the head or to nod. docs/guide/liveness.md lists what it does not stop."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edge.decision import reasons
from edge.decision.track import GAP_SECONDS
from edge.decision.visit import Sighting, VisitRules
from edge.errors import require

if TYPE_CHECKING:  # decisions do not load OpenCV
    from edge.vision.liveness import Relief

PROMPTS = {
    "left": "Turn your head to the left, and back.",
    "right": "Turn your head to the right, and back.",
    "down": "Nod: look down, and up again.",
}
"""Left and right of the visitor. Not up: YuNet's nose point hardly moves. Not blinking: YuNet has no eyelid points."""

MIN_SLIMMER, MAX_SLIMMER = -1.25, 2.0  # change of the height-to-width ratio of a turning head, per movement of the nose
FRONTAL = 0.15  # largest nose offset of a face that looks into the camera
HELD_FRAMES = 2  # frames that must agree on a movement: one frame may be a detector error
MIN_COSINE = 0.8  # between a movement and the direction that was asked for
LOOK_SECONDS = 0.15  # between two looks at a face that must be recognised now


@dataclass(frozen=True, kw_only=True)
class LivenessSettings:
    """Detection of photos and screens in front of the camera. See docs/guide/liveness.md for its limits."""

    passive: bool = True
    """Deny faces that the liveness model of the kit takes for a print or a screen, if the kit has one."""
    required: bool = False
    """Accept only kits with a liveness model."""
    challenge: bool = False
    """Ask each person who would be granted to turn the head or to nod, chosen at random."""
    turns: int = 2
    """Number of movements. A recorded video shows the right ones in 1 of 3, 9 or 27 cases for 1, 2 or 3 movements."""
    challenge_seconds: float = 6.0
    """Time limit of each movement."""
    min_turn: float = 0.12
    """How far the nose must move relative to the face, in eye distances: 0.12 is a turn of about 25 degrees."""
    mirrored: bool = False
    """Whether the camera image is mirrored."""

    def __post_init__(self) -> None:
        require(self.passive or not self.required, "required needs passive = true")
        for name, low, high in (("turns", 1, 10), ("challenge_seconds", 1, 60), ("min_turn", 0.05, 0.3)):
            value = getattr(self, name)
            require(low <= value <= high, f"{name} must be between {low} and {high}, not {value:g}")

    def direction(self, prompt: str) -> tuple[float, float]:
        """Return the direction of the nose in the frame for a prompt: x to the right, y down."""
        x, y = {"left": (1.0, 0.0), "right": (-1.0, 0.0), "down": (0.0, 1.0)}[prompt]
        return (-x if self.mirrored else x, y)


@dataclass(frozen=True, kw_only=True)
class Challenge:
    """The challenge of one visit. It waits for a frontal face without other faces, then asks for `turns` movements."""

    label: str
    """The person who would be granted."""
    since: float
    """Start of the wait, or of the current prompt."""
    last_seen: float
    prompt: str | None = None
    """The current prompt, or None while waiting."""
    rest: "Relief | None" = None
    """The position of the face before the movement, or None while waiting."""
    held: int = 0
    """Number of frames in a row with the head turned: positive as asked, negative in another direction."""
    is_out: bool = False
    """Whether the head has turned as asked and must only return."""
    is_recognised: bool = False
    """Whether the person was recognised during the movement: a photo could be exchanged for a real head."""
    done: int = 0
    """Number of completed movements."""
    looks: int = 0
    looked: float = -math.inf
    """Number of recognitions since the start of the wait, of the prompt or of the end, and the time of the last one."""
    failure: str | None = None
    """Why the challenge failed, or None."""

    def is_at_rest(self, sighting: Sighting, settings: LivenessSettings) -> bool:
        """Whether the head is back in the position before the movement."""
        if sighting.relief is None or self.rest is None:
            return False
        return math.hypot(*sighting.relief.moved(self.rest)) <= settings.min_turn / 2

    def movement(self, relief: "Relief", rest: "Relief", prompt: str, settings: LivenessSettings) -> tuple[float, bool]:
        """Return how far the nose has moved, and whether it moved in the direction of the prompt."""
        x, y = relief.moved(rest)
        distance, direction = math.hypot(x, y), settings.direction(prompt)
        return distance, x * direction[0] + y * direction[1] >= MIN_COSINE * distance

    def wants_look(self, sighting: Sighting, settings: LivenessSettings, rules: VisitRules) -> bool:
        """Whether the face should be recognised in this frame: at most `max_looks` times for each movement.

        That is where a recognition is needed, and now and then, to notice another person.
        """
        since = sighting.captured - self.looked
        if self.looks >= rules.max_looks or since < rules.gap_seconds:
            return False
        if self.done == settings.turns:
            return self.is_at_rest(sighting, settings)
        if self.prompt is None or self.rest is None:
            is_ready = sighting.is_alone and sighting.relief is not None and abs(sighting.relief.x) <= FRONTAL
            return is_ready and since >= LOOK_SECONDS
        if sighting.relief is not None and not self.is_recognised:
            distance, is_as_asked = self.movement(sighting.relief, self.rest, self.prompt, settings)
            if is_as_asked and distance >= settings.min_turn / 2:
                return since >= LOOK_SECONDS
        return since >= 2 * settings.challenge_seconds / rules.max_looks  # half of the looks are left for the movement

    def after(self, sighting: Sighting, settings: LivenessSettings) -> "Challenge":
        """Return the challenge after one more frame."""
        if sighting.label not in (None, self.label):
            return replace(self, failure=reasons.ANOTHER_PERSON)
        if self.prompt is not None and not sighting.is_alone:
            return replace(self, failure=reasons.NOT_ALONE)
        if not 0 < sighting.captured - self.last_seen <= GAP_SECONDS:
            return replace(self, failure=reasons.FACE_LOST)
        if sighting.captured - self.since > settings.challenge_seconds:
            return replace(self, failure=reasons.TIMEOUT)
        after = replace(self, last_seen=sighting.captured)
        if sighting.is_recognised:
            after = replace(after, looks=self.looks + 1, looked=sighting.captured)
        if self.prompt is None or self.rest is None or sighting.relief is None or self.done == settings.turns:
            return after
        distance, is_as_asked = self.movement(sighting.relief, self.rest, self.prompt, settings)
        if sighting.label is not None and is_as_asked and distance >= settings.min_turn / 2:
            after = replace(after, is_recognised=True)
        if self.is_out:
            is_done = after.is_recognised and self.is_at_rest(sighting, settings)
            return replace(after, done=self.done + 1, looks=0) if is_done else after
        slimmer = sighting.relief.slim - self.rest.slim
        if distance < settings.min_turn or not MIN_SLIMMER * distance <= slimmer <= MAX_SLIMMER * distance:
            return replace(after, held=0)
        held = max(self.held, 0) + 1 if is_as_asked else min(self.held, 0) - 1
        if held <= -HELD_FRAMES:
            return replace(self, failure=reasons.WRONG_MOVEMENT)
        return replace(after, held=held, is_out=held >= HELD_FRAMES)
