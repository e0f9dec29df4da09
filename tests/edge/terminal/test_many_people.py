"""One frame takes the same number of Python instructions with 10 and with 10,000 people."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.camera.base import Frame
from edge.decision.doorlist import DoorList
from edge.events.event import Event, message
from edge.events.sink import SinkHealth
from edge.events.view import View
from edge.kit import format as kits
from edge.kit.watch import ProbationRecognizer
from edge.monitor.annotate import draw
from edge.settings import Settings
from edge.sinks.stdout import text_line
from edge.stages import untimed
from edge.terminal import wiring
from edge.terminal.list_watch import ListWatch
from edge.terminal.loop import Terminal
from edge.vision.detect import Face
from edge.vision.preprocess import LANDMARKS
from edge.vision.quality import QualityLimits
from scripts.qa.large_kit import large_kit
from tests.fakes.scene_camera import SimulatedCamera
from tests.fixtures.portraits import yunet

FEW, MANY = 10, 10_000
SLACK = 300  # instructions: names and numbers of other lengths
FACE = Face(box_xyxy=(60.0, 40.0, 180.0, 200.0), landmarks=(LANDMARKS * 150 + (60, 45)).astype(np.float32))
NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


class CountedLabel(str):
    """A name whose comparisons are Python instructions: a search in a list of names counts."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        return str.__hash__(self)


class WholeArray(NDArray[Any]):
    """Scores that cannot be taken apart in Python."""

    def __iter__(self) -> Any:
        raise AssertionError("a loop over the scores of all people")

    def tolist(self) -> Any:
        raise AssertionError("a list of the scores of all people")


class OneFace:
    """A detector that finds the same face in every frame."""

    def find(self, image: NDArray[np.uint8], min_face: int | None = None) -> list[Face]:
        return [FACE]

    def refine(self, face: Face, image: NDArray[np.uint8]) -> Face:
        return face


class WatchedRecognizer(ProbationRecognizer):
    def __init__(self, people: int) -> None:
        kit = kits.parse(large_kit(people, "pixels"))
        kit = replace(kit, manifest=replace(kit.manifest, labels=tuple(map(CountedLabel, kit.manifest.labels))))
        limits = QualityLimits(min_sharpness=0, min_contrast=0, max_yaw=90, max_pitch=90)
        super().__init__(kit, limits=limits)
        self.__dict__["detector"] = OneFace()

    def outputs(self, crops: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        found = super().outputs(crops)
        return found | {"scores": found["scores"].view(WholeArray)}


class Outputs:
    """All forms in which an event or a view leaves the terminal."""

    def __init__(self) -> None:
        self.outcomes: list[str | None] = []

    def handle(self, event: Event) -> None:
        event.to_json()
        text_line(event, zone=UTC)
        message(event, age_seconds=0.0, grant_seconds=3.0, names=True)
        self.outcomes.append(event.outcome)

    def close(self) -> None:
        """Nothing to close."""

    def health(self) -> SinkHealth:
        return SinkHealth()

    def show(self, view: View) -> None:
        draw(view)


class StillCamera(SimulatedCamera):
    def image(self) -> Any:
        return np.random.default_rng(0).integers(0, 256, (240, 240, 3), np.uint8)


def instructions(action: Callable[[], object]) -> int:
    """Return the number of bytecode instructions that an action executes."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def frames_until_granted(people: int) -> list[int]:
    """Return the instructions of each frame until a visit is granted, and of two frames after that."""
    outputs, camera = Outputs(), StillCamera()
    names = "\n".join(f'[[allow]]\npeople = ["person {i:05d}"]\nhours = "08:00-18:00"' for i in range(people))
    rules = DoorList.parse(names.encode())
    terminal = Terminal(
        WatchedRecognizer(people), camera, door_list=rules, sinks=[outputs], viewers=[outputs], clock=lambda: NOON
    )
    rules.refusal("person 00001", NOON)  # the first question prepares the list
    counts = []
    for _ in range(5):
        frame = camera.frame(0.0)
        assert isinstance(frame, Frame)
        counts.append(instructions(lambda frame=frame: [terminal.look(frame), terminal.health()]))  # type: ignore[misc]
    assert terminal.counters["failures"] == 0
    assert outputs.outcomes == ["granted"]
    assert terminal.counters["looks"] == 3
    return counts


def test_instructions_of_a_frame_do_not_grow_with_the_people() -> None:
    frames_until_granted(FEW)  # warms up what is prepared once
    few, many = frames_until_granted(FEW), frames_until_granted(MANY)
    assert min(few) > 500, "the frames were counted"
    np.testing.assert_allclose(many, few, atol=SLACK)


def test_loaded_kit_does_not_keep_the_bytes_of_its_graph() -> None:
    """onnxruntime has its own copy. A second one of each loaded kit would not fit into the memory of a small device."""
    data = large_kit(FEW, "pixels", detector=yunet())
    recognizer = wiring._load(kits.parse(data), Settings(), None, untimed, lambda _: None)
    assert recognizer.kit.recognizer == b""
    assert recognizer.kit.id == kits.parse(data).id
    assert getattr(recognizer._session, "_model_bytes", None) is None


def test_warnings_about_a_door_list_are_few(tmp_path: Path) -> None:
    names = ", ".join(f'"guest {i}"' for i in range(1000))
    said: list[str] = []
    kit = kits.parse(large_kit(FEW, "pixels", detector=yunet()))
    (tmp_path / "list.toml").write_text(f"[[allow]]\npeople = [{names}]")
    wiring._load(kit, Settings(), ListWatch(tmp_path / "list.toml"), untimed, said.append)
    about_list = [text for text in said if "door list" in text]
    assert len(about_list) == wiring.MAX_WARNINGS + 1
    assert f"{1000 - wiring.MAX_WARNINGS} more people" in about_list[-1]
