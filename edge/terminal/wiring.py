"""Build a terminal from its settings: kit, camera, door list, sinks and viewers."""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from edge import paths
from edge.audit.gate import AuditGate
from edge.camera.sources import open_camera
from edge.decision.doorlist import DoorList
from edge.events.health import Count, Health
from edge.events.sink import Sink
from edge.events.view import Viewer
from edge.files import read_bytes
from edge.kit import format as kits
from edge.kit import selftest
from edge.kit.format import Kit
from edge.kit.store import Store
from edge.kit.watch import KitWatch, ProbationRecognizer
from edge.monitor.annotate import VideoWriter
from edge.monitor.metrics import Metrics
from edge.monitor.preview import Preview
from edge.settings import Settings, read_door_list
from edge.sinks import gpio
from edge.sinks.command import CommandSink
from edge.sinks.mqtt import MqttSink
from edge.sinks.stdout import json_sink, text_sink
from edge.sinks.webhook import WebhookSink
from edge.stages import StageTimer, untimed
from edge.terminal.loop import Terminal
from edge.terminal.service import SystemdNotifier
from edge.text import printable

NO_PUBLIC_KEY = (
    "warning: [kit] public_key is not set, so this terminal runs any kit that it finds, signed or not. Sign kits, and set it."
)
MAX_WARNINGS = 10  # names of the door list that are not in the kit

log = logging.getLogger(__name__)


@contextmanager
def open_terminal(
    settings: Settings, kit: Path, *, annotate: Path | None = None, say: Callable[[str], None] = log.warning
) -> Iterator[Terminal]:
    """Open all parts, yield the terminal, and close the parts at the end. `say` gets sentences for the user.

    A part that cannot work is an error now. `annotate` is a video file to write.
    """
    door_list = None if settings.door.list is None else read_door_list(settings.door.list)
    public_key = None if settings.kit.public_key is None else read_bytes(settings.kit.public_key)
    systemd = SystemdNotifier()
    warnings: list[str] = []  # about the kit, said when all parts are open: an error must be the only sentence

    def warn(sentence: str) -> None:
        (say if is_open else warnings.append)(sentence)

    is_open = False
    with ExitStack() as stack:
        metrics = None if settings.metrics.address is None else stack.enter_context(Metrics(settings.metrics.address))
        stage = untimed if metrics is None else metrics.stage
        watch = None
        load = partial(_load, settings=settings, door_list=door_list, stage=stage, say=warn)
        if (store_folder := paths.find_kit_store(settings.kit.store)) is None:
            recognizer = load(kits.read(kit, public_key))
        else:
            store = Store(store_folder, kit, load, public_key=public_key, series=settings.kit.series)
            watch = stack.enter_context(KitWatch(store, seconds=settings.kit.watch_seconds))
            recognizer = watch.recognizer
        camera = stack.enter_context(
            open_camera(settings.camera.address, stall_seconds=settings.camera.stall_seconds, wait=settings.camera.wait)
        )
        sinks: dict[str, Sink] = {}
        stack.callback(close_all, sinks)  # also if one of them cannot be opened
        for name, sink in open_sinks(settings):
            sinks[name] = sink
        preview = None if settings.preview.address is None else stack.enter_context(Preview(settings.preview.address))
        receivers: tuple[Sink, ...] = (*sinks.values(), *([] if preview is None else [preview]))
        gate = None
        if settings.audit is not None:  # closed before the sinks, because it may still deliver to them
            gate = stack.enter_context(closing(AuditGate(settings.audit, receivers)))
        video = None
        if annotate is not None:
            fps = settings.camera.max_fps if camera.live else None
            video = stack.enter_context(closing(VideoWriter(annotate, fps, live=camera.live)))
        pictures = gate if settings.audit is not None and settings.audit.picture_key is not None else None
        viewers: tuple[Viewer | None, ...] = (pictures, preview, video)
        terminal = Terminal(
            recognizer,
            camera,
            door_list=door_list,
            rules=settings.visits,
            liveness=settings.liveness,
            sinks=(systemd, *(receivers if gate is None else [gate])),
            viewers=[viewer for viewer in viewers if viewer is not None],
            max_fps=settings.camera.max_fps,
            frozen_seconds=settings.camera.frozen_seconds,
            on_frame=systemd.frame_processed,
            stage=stage,
            changes=(lambda: None) if watch is None else watch.next_change,
            first_sequence=1 if gate is None else gate.next_sequence,
        )

        health = partial(whole_health, terminal, sinks, gate)
        if metrics is not None:
            metrics.watch(health)
            say(f"Metrics at {metrics.url}metrics")
        if preview is not None:
            preview.watch(health)
            say(f"Preview at {preview.url}")
        is_open = True
        for sentence in warnings:
            say(sentence)
        if public_key is None:
            say(NO_PUBLIC_KEY)
        if not recognizer.kit.manifest.thresholds.provisional:  # else there was a warning
            say(recognizer.kit.manifest.thresholds.sentence)
        yield terminal


def _load(
    kit: Kit, settings: Settings, door_list: DoorList | None, stage: StageTimer, say: Callable[[str], None]
) -> ProbationRecognizer:
    """Make a recognizer. A kit that fails its self-test or finds no faces is rejected before the camera opens."""
    recognizer = selftest.check_with_detector(
        ProbationRecognizer(
            kit, threads=settings.kit.threads, min_face=settings.kit.min_face, limits=settings.quality, stage=stage
        )
    )
    recognizer.kit = replace(recognizer.kit, recognizer=b"")  # onnxruntime has its own copy, and large kits fill the memory
    manifest = recognizer.kit.manifest
    if settings.liveness.required:
        manifest.require_liveness()
    if manifest.liveness is None:
        say(f"warning: {manifest.liveness_sentence}")
    elif not settings.liveness.passive:
        say("warning: the liveness model of the kit is switched off: a photo or a phone can open the door.")
    if manifest.thresholds.provisional:
        say(f"warning: {manifest.thresholds.sentence} Do not use this kit for a door.")
    missing = [] if door_list is None else door_list.people_not_in(manifest.labels)
    for name in missing[:MAX_WARNINGS]:
        say(f"warning: the door list names {printable(name)}, who is not in the kit.")
    if len(missing) > MAX_WARNINGS:
        say(f"warning: the door list names {len(missing) - MAX_WARNINGS} more people who are not in the kit.")
    return recognizer


def open_sinks(settings: Settings) -> Iterator[tuple[str, Sink]]:
    """Open the sinks of the settings, with their names, in the order of delivery."""
    events = settings.events
    if settings.gpio is not None:
        yield "gpio", gpio.open_sink(settings.gpio)
    if events.on_grant is not None:
        yield "command", CommandSink(events.on_grant, events.on_grant_seconds)
    if settings.mqtt is not None:
        yield "mqtt", MqttSink(settings.mqtt)
    if settings.webhook is not None:
        yield "webhook", WebhookSink(settings.webhook)
    if sys.stdout is not None and (events.json_lines or (events.json_lines is None and not sys.stdout.isatty())):
        yield "stdout", json_sink(sys.stdout)
    if sys.stderr is not None and sys.stderr.isatty():
        yield "stderr", text_sink(sys.stderr)


def whole_health(terminal: Terminal, sinks: Mapping[str, Sink], gate: AuditGate | None) -> Health:
    """Return the health of the terminal with that of its sinks and audit log."""
    health = terminal.health()
    for name, sink in sinks.items():
        counts = sink.health()
        health["sinks"][name] = {"failed": counts.failed, "dropped": counts.dropped}
    if gate is not None:
        counters = gate.counters()
        counters[Count.UNDELIVERED] += health["counters"][Count.UNDELIVERED]
        health["counters"] |= counters
        health["failing"] = ["the audit log"] if gate.is_failing else []
    return health


def close_all(sinks: Mapping[str, Sink]) -> None:
    """Close all sinks at the same time, so that their closing times do not add up."""
    with ThreadPoolExecutor(max(1, len(sinks))) as pool:
        results = {name: pool.submit(sink.close) for name, sink in sinks.items()}
    for name, result in results.items():
        if error := result.exception():
            log.error("the sink %s was not closed cleanly", name, exc_info=error)
