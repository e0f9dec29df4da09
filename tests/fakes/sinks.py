"""Sinks and viewers for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from edge.events.event import Event
from edge.events.sink import SinkHealth
from edge.events.view import View


class CallbackSink:
    """Calls a function for each event, at once."""

    def __init__(self, callback: Callable[[Event], object]) -> None:
        self._callback = callback

    def handle(self, event: Event) -> None:
        self._callback(event)

    def close(self) -> None:
        """Nothing to close."""

    def health(self) -> SinkHealth:
        return SinkHealth()


class RecordingSink(list[Event]):
    """Keeps all events."""

    def handle(self, event: Event) -> None:
        self.append(event)

    def close(self) -> None:
        """Nothing to close."""

    def health(self) -> SinkHealth:
        return SinkHealth(delivered=len(self))

    def of(self, kind: str) -> list[tuple[str | None, str | None]]:
        """Outcome and label of the decisions; outcome and reason of another kind."""
        return [(event.outcome, event.label if kind == "decision" else event.reason) for event in self if event.kind == kind]

    @property
    def decisions(self) -> list[tuple[str | None, str | None]]:
        return self.of("decision")


class RecordingViewer(list[View]):
    """Keeps all views."""

    def show(self, view: View) -> None:
        self.append(view)


class Barrier:
    """Work that is stuck until it is opened."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        self.seen: list[Any] = []

    def __call__(self, item: Any) -> None:
        self.entered.set()
        assert self.opened.wait(30)
        self.seen.append(item)


def fail(*_: Any, **__: Any) -> Any:
    raise RuntimeError("injected")
