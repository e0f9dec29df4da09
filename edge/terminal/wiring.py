"""From settings to a terminal that is ready to run, and to all whom it tells and shows what it sees."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from edge import paths
from edge.audit import gate as audited
from edge.audit.gate import Audited
from edge.camera.open import open_camera
from edge.decision.doorlist import DoorList
from edge.errors import KitError
from edge.events.event import Background, Command, ForPeople, JsonLines, Sink
from edge.files import read_bytes
from edge.kit import format as kits
from edge.kit import selftest
from edge.kit.format import Kit
from edge.kit.store import Store
from edge.kit.watch import KitWatch, ProbationRecognizer
from edge.monitor.annotate import VideoWriterSink, View
from edge.monitor.metrics import Metrics
from edge.monitor.preview import Preview
from edge.settings import Settings, read_door_list
from edge.sinks import gpio, mqtt, webhook
from edge.stages import untimed
from edge.terminal.loop import Terminal
from edge.terminal.service import Systemd
from edge.text import printable
from edge.vision.recognize import Recognizer

LAST_SECONDS = 1.0
"""For a receiver that is away, slow or stuck at the end: a service has to end within 2 seconds."""

log = logging.getLogger(__name__)


@contextmanager
def open_terminal(
    settings: Settings, kit: Path, *, annotate: Path | None = None, say: Callable[[str], None] = log.warning
) -> Iterator[Terminal]:
    """The terminal, until the block is left: then all that it opened is closed. `say` is told what a person should know.

    Whatever cannot work is an error now. `annotate` is a video file to write.
    """
    door_list = None if settings.door.list is None else read_door_list(settings.door.list)
    public_key = None if settings.kit.public_key is None else read_bytes(settings.kit.public_key)
    systemd = Systemd()
    with ExitStack() as stack:
        metrics = None if settings.metrics.address is None else stack.enter_context(Metrics(settings.metrics.address))
        stage = untimed if metrics is None else metrics.stage
        chosen, changes = settings.kit, None

        def load(kit: Kit) -> ProbationRecognizer:
            """Ready for frames: a kit that fails or finds no faces is refused now, before the camera is opened."""
            if settings.liveness.challenge and kit.detector is None:
                raise KitError(
                    "The kit has no face detector of its own, and a challenge needs the landmarks that it gives.",
                    "Build the kit with --detector yunet.",
                )
            recognizer = selftest.check_with_detector(
                ProbationRecognizer(
                    kit, threads=chosen.threads, min_face=chosen.min_face, limits=settings.quality, stage=stage
                )
            )
            for warning in doubts(recognizer, door_list):
                say(f"warning: {warning}")
            return recognizer

        store = paths.find_kit_store(chosen.store)
        if store is None:
            recognizer = load(kits.read(kit, public_key))
        else:
            kept = Store(store, kit, load, public_key=public_key, series=chosen.series)
            changes = stack.enter_context(KitWatch(kept, seconds=chosen.watch_seconds))
            recognizer = changes.recognizer
        address, camera = settings.camera.address, settings.camera
        source = stack.enter_context(open_camera(address, stall_seconds=camera.stall_seconds, wait=camera.wait))
        told: dict[str, Any] = {}
        stack.callback(close_all, told)
        for name, sink in open_sinks(settings):
            told[name] = sink
        sinks, viewers = list[Sink](told.values()), list[Callable[[View], None]]()
        at_once, log_book = sinks, None
        if settings.audit is not None:  # closed first, as it may have something for the others
            log_book = audited.open_sink(settings.audit, sinks)
            at_once = [log_book]
            stack.callback(log_book.close)
            if settings.audit.picture_key is not None:
                viewers.append(log_book.publish)
        at_once.insert(0, systemd)
        terminal = Terminal(
            recognizer,
            source,
            door_list=door_list,
            rules=settings.visits,
            liveness=settings.liveness,
            sinks=at_once,
            viewers=viewers,
            max_fps=camera.max_fps,
            on_frame=systemd.frame,
            stage=stage,
            changes=(lambda: None) if changes is None else changes.next_change,
        )
        health = partial(health_of, terminal, told, log_book)
        if metrics is not None:
            metrics.watch(health)
            say(f"Metrics at {metrics.url}metrics")
        if settings.preview.address is not None:
            page = stack.enter_context(Preview(settings.preview.address, health))
            sinks.append(page)
            viewers.append(page.publish)
            say(f"Preview at {page.url}")
        if annotate is not None:
            video = VideoWriterSink(annotate, camera.max_fps if source.live else None, live=source.live)
            viewers.append(video)
            stack.callback(video.close)
        if not recognizer.kit.manifest.thresholds.provisional:  # of which there was a warning
            say(recognizer.kit.manifest.thresholds.sentence)
        yield terminal


def open_sinks(settings: Settings) -> Iterator[tuple[str, Any]]:
    """Those that the settings ask for, in the order in which they are told, by name. Each has close()."""
    events = settings.events
    if settings.gpio is not None:
        yield "gpio", gpio.open_sink(settings.gpio)
    if events.on_grant is not None:
        yield "command", Command(events.on_grant, events.on_grant_seconds)
    if settings.mqtt is not None:
        yield "mqtt", mqtt.open_sink(settings.mqtt)
    if settings.webhook is not None:
        yield "webhook", webhook.open_sink(settings.webhook)
    if sys.stdout is not None and (events.json_lines or (events.json_lines is None and not sys.stdout.isatty())):
        yield "stdout", Background(JsonLines(sys.stdout))
    if sys.stderr is not None and sys.stderr.isatty():
        yield "stderr", Background(ForPeople(sys.stderr))


def health_of(terminal: Terminal, told: Mapping[str, Any], log_book: Audited | None) -> dict[str, Any]:
    """How the terminal and those whom it tells do, without names."""
    health = terminal.health()
    health["sinks"] = {name: {"failed": sink.failed, "dropped": sink.dropped} for name, sink in told.items()}
    if log_book is not None:
        health["failing"] = ["the audit log"] * log_book.failing
        health["counters"] |= {
            "undelivered": health["counters"]["undelivered"] + log_book.undelivered,
            "logged": log_book.written,
            "not logged": log_book.failed + log_book.dropped,
            "withheld": log_book.withheld,
        }
    return health


def close_all(told: Mapping[str, Any]) -> None:
    """All at once: each may take its time to tell the last, and those times must not add up.

    A command that still runs has all the time it was promised, lest it leave a door open.
    """

    def close(name: str, sink: Any) -> None:
        try:
            sink.close(*([] if isinstance(sink, Command) else [LAST_SECONDS]))
        except Exception:
            log.exception("%s was not closed in order", name)

    threads = [threading.Thread(target=close, args=item, name="closing", daemon=True) for item in told.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def doubts(recognizer: Recognizer, door_list: DoorList | None) -> list[str]:
    """What makes a door less safe than its owner may think."""
    manifest = recognizer.kit.manifest
    found = []
    if manifest.thresholds.provisional:
        found.append(f"{manifest.thresholds.sentence} Do not trust this kit with a door.")
    for name in [] if door_list is None else door_list.people_not_in(manifest.labels):
        found.append(f"the door list names {printable(name)}, whom the kit does not know.")
    return found
