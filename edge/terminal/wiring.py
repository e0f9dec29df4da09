"""Build a terminal from its settings: kit, camera, door list, sinks and viewers."""

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from edge import paths
from edge.audit.gate import AuditGate
from edge.camera.sources import open_camera
from edge.decision.doorlist import DoorList
from edge.errors import DoorListError, FleetError
from edge.events.health import Count, Health
from edge.events.sink import Sink
from edge.events.view import Viewer
from edge.files import read_bytes
from edge.fleet.fleet import LIST, Fleet
from edge.fleet.poller import Poller
from edge.fleet.rules import FleetRules
from edge.fleet.settings import FleetSettings
from edge.fleet.status import FAILING, FleetStatus
from edge.inputs.monitor import InputMonitor, open_monitor
from edge.kit import format as kits
from edge.kit import selftest
from edge.kit.format import Kit
from edge.kit.store import Store
from edge.kit.watch import KitWatch, ProbationRecognizer
from edge.monitor.annotate import VideoWriter
from edge.monitor.kiosk_page import Kiosk
from edge.monitor.metrics import Metrics
from edge.monitor.preview import Preview
from edge.osdp.sink import OsdpSink
from edge.settings import Settings
from edge.sinks import gpio
from edge.sinks.command import CommandSink
from edge.sinks.mqtt import MqttSink, StatusSource
from edge.sinks.stdout import json_sink, text_sink
from edge.sinks.webhook import WebhookSink
from edge.stages import StageTimer, untimed
from edge.terminal.controller import open_controller, warn_about_controller
from edge.terminal.entry_counts import EntryCounts
from edge.terminal.list_watch import ListWatch
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
    public_key = None if settings.kit.public_key is None else read_bytes(settings.kit.public_key)
    systemd = SystemdNotifier()
    warnings: list[str] = []  # about the kit, said when all parts are open: an error must be the only sentence

    def warn(sentence: str) -> None:
        (say if is_open else warnings.append)(sentence)

    is_open = False
    store_folder = paths.find_kit_store(settings.kit.store)
    list_file = find_list(settings, store_folder)
    lists = None if list_file is None else open_list(list_file, required=settings.fleet is None)
    fleet: Fleet | None = None
    status: FleetStatus | None = None
    with ExitStack() as stack:
        metrics = None if settings.metrics.address is None else stack.enter_context(Metrics(settings.metrics.address))
        stage = untimed if metrics is None else metrics.stage
        watch = None
        load = partial(_load, settings=settings, lists=lists, stage=stage, say=warn)
        if store_folder is None:
            recognizer = load(kits.read(kit, public_key))
        else:
            store = Store(store_folder, kit, load, public_key=public_key, series=settings.kit.series)
            if settings.fleet is not None and list_file is not None:
                fleet = open_fleet(settings.fleet, store, list_file)
            watch = stack.enter_context(KitWatch(store, seconds=settings.kit.watch_seconds))
            recognizer = watch.recognizer
        camera = stack.enter_context(
            open_camera(settings.camera.address, stall_seconds=settings.camera.stall_seconds, wait=settings.camera.wait)
        )
        sinks: dict[str, Sink] = {}
        stack.callback(close_all, sinks)  # also if one of them cannot be opened
        inputs = open_inputs(settings, sinks)
        lights, controller = open_controller(settings, sinks)
        for name, sink in open_sinks(settings, lambda: status):
            sinks[name] = sink
        preview = None
        if settings.preview.address is not None:
            kiosk = None if settings.kiosk is None else Kiosk(settings.kiosk, mirror=not settings.liveness.mirrored)
            preview = stack.enter_context(Preview(settings.preview.address, kiosk))
        receivers: tuple[Sink, ...] = (*sinks.values(), *([] if preview is None else [preview]))
        gate = None
        if settings.audit is not None:  # closed before the sinks, because it may still deliver to them
            gate = stack.enter_context(closing(AuditGate(settings.audit, receivers)))
        video = None
        if annotate is not None:
            fps = settings.camera.max_fps if camera.live else None
            video = stack.enter_context(closing(VideoWriter(annotate, fps, live=camera.live)))
        pictures = gate if settings.audit is not None and settings.audit.picture_key is not None else None
        viewers: tuple[Viewer | None, ...] = (pictures, preview, video, lights)
        rules: ListWatch | FleetRules | None = lists
        if fleet is not None and lists is not None:
            rules = FleetRules(fleet, lists, lambda: terminal.recognizer.kit.sha256)
        terminal = Terminal(
            recognizer,
            camera,
            door_list=rules,
            admit=(lambda label, when: None) if rules is None else rules.admit,
            rules=settings.visits,
            liveness=settings.liveness,
            sinks=(systemd, *(receivers if gate is None else [gate])),
            viewers=[viewer for viewer in viewers if viewer is not None],
            max_fps=settings.camera.max_fps,
            frozen_seconds=settings.camera.frozen_seconds,
            on_frame=systemd.frame_processed,
            stage=stage,
            changes=(lambda: None) if watch is None else watch.next_change,
            news=[part.next_change for part in (lists, inputs, controller, fleet) if part is not None],
            first_sequence=1 if gate is None else gate.next_sequence,
        )

        if lists is not None:
            lists.on_list = lambda found: _warn_about(found, lists.counts, terminal.recognizer.kit.manifest.labels, say)
            stack.enter_context(lists)
        if fleet is not None and lists is not None:
            status = FleetStatus(
                fleet,
                kit=lambda: terminal.recognizer.kit,
                list_version=lambda: lists.version,
                health=terminal.health,
                refused=lambda: None if watch is None else watch.refused,
            )
            stack.enter_context(Poller(fleet))
        health = partial(whole_health, terminal, sinks, gate, inputs, status, controller)
        if metrics is not None:
            metrics.watch(health)
            say(f"Metrics at {metrics.url}metrics")
        if preview is not None:
            preview.watch(health)
            say(f"Preview at {preview.url}" + ("" if settings.kiosk is None else f", page for visitors at {preview.url}kiosk"))
        if controller is not None:
            warn_about_controller(settings, controller.numbers, recognizer.kit.manifest.labels, warn)
        is_open = True
        for sentence in warnings:
            say(sentence)
        if public_key is None:
            say(NO_PUBLIC_KEY)
        if not recognizer.kit.manifest.thresholds.provisional:  # else there was a warning
            say(recognizer.kit.manifest.thresholds.sentence)
        yield terminal


def _load(
    kit: Kit, settings: Settings, lists: ListWatch | None, stage: StageTimer, say: Callable[[str], None]
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
    if lists is not None and lists.door_list is not None:
        _warn_about(lists.door_list, lists.counts, manifest.labels, say)
    return recognizer


def _warn_about(door_list: DoorList, counts: EntryCounts | None, labels: Iterable[str], say: Callable[[str], None]) -> None:
    """Say what is probably wrong with a door list on this device."""
    missing = door_list.people_not_in(labels)
    for name in missing[:MAX_WARNINGS]:
        say(f"warning: the door list names {printable(name)}, who is not in the kit.")
    if len(missing) > MAX_WARNINGS:
        say(f"warning: the door list names {len(missing) - MAX_WARNINGS} more people who are not in the kit.")
    if counts is not None and door_list.limits_entries:
        try:
            counts.check()
        except DoorListError as error:
            say(f"warning: {error} Visitors with a number of entries are denied.")


def find_list(settings: Settings, store_folder: Path | None) -> Path | None:
    """Return where the door list is: at the place that the settings name, or in the folder of the fleet; None: no list."""
    if settings.fleet is None:
        return settings.door.list
    if store_folder is None:
        raise FleetError("A fleet needs a kit store.", "Name a folder in the settings: [kit] store.")
    return settings.door.list or paths.find_fleet_folder(settings.fleet.folder, store_folder) / LIST


def open_fleet(settings: FleetSettings, store: Store[ProbationRecognizer], list_file: Path) -> Fleet:
    """Prepare the pulls of a terminal that belongs to a fleet."""
    fleet = Fleet(settings, paths.find_fleet_folder(settings.folder, store.folder), list_file, store)
    fleet.check_places()
    return fleet


def open_list(path: Path, *, required: bool) -> ListWatch:
    """Read the door list, and prepare the count of the entries that its visitors use."""
    return ListWatch(path, EntryCounts(paths.find_entry_counts(path)), required=required)


def open_inputs(settings: Settings, sinks: dict[str, Sink]) -> InputMonitor | None:
    """Open the relay and the inputs of the settings, which may switch the relay. Add them to the sinks."""
    relay = None
    if settings.gpio is not None:
        relay = sinks["gpio"] = gpio.open_sink(settings.gpio)
    if settings.inputs is None:
        return None
    actions = {} if relay is None else {"on_exit": relay.open_for_exit, "on_open": relay.door_opened}
    monitor = sinks["inputs"] = open_monitor(settings.inputs, **actions)
    return monitor


def open_sinks(settings: Settings, status: Callable[[], StatusSource | None] = lambda: None) -> Iterator[tuple[str, Sink]]:
    """Open the other sinks of the settings, with their names, in the order of delivery."""
    events = settings.events
    if events.on_grant is not None:
        yield "command", CommandSink(events.on_grant, events.on_grant_seconds)
    if settings.mqtt is not None:
        switches = [] if settings.inputs is None else settings.inputs.switches
        yield "mqtt", MqttSink(settings.mqtt, switches=switches, status=status)
    if settings.webhook is not None:
        yield "webhook", WebhookSink(settings.webhook)
    if sys.stdout is not None and (events.json_lines or (events.json_lines is None and not sys.stdout.isatty())):
        yield "stdout", json_sink(sys.stdout)
    if sys.stderr is not None and sys.stderr.isatty():
        yield "stderr", text_sink(sys.stderr)


def whole_health(
    terminal: Terminal,
    sinks: Mapping[str, Sink],
    gate: AuditGate | None,
    inputs: InputMonitor | None,
    status: FleetStatus | None = None,
    controller: OsdpSink | None = None,
) -> Health:
    """Return the health of the terminal with that of its sinks, audit log, inputs, fleet and door controller."""
    health = terminal.health()
    for name, sink in sinks.items():
        counts = sink.health()
        health["sinks"][name] = {"failed": counts.failed, "dropped": counts.dropped}
    if gate is not None:
        counters = gate.counters()
        counters[Count.UNDELIVERED] += health["counters"][Count.UNDELIVERED]
        health["counters"] |= counters
        health["failing"] += ["the audit log"] if gate.is_failing else []
    if inputs is not None:
        health["failing"] += inputs.failing
    if controller is not None:
        health["controller_up"] = controller.is_up
        health["failing"] += controller.failing
    if status is not None:
        health["fleet"] = dict(status.message())
        health["failing"] += ["the fleet"] if health["fleet"]["state"] in FAILING else []
    return health


def close_all(sinks: Mapping[str, Sink]) -> None:
    """Close all sinks at the same time, so that their closing times do not add up."""
    with ThreadPoolExecutor(max(1, len(sinks))) as pool:
        results = {name: pool.submit(sink.close) for name, sink in sinks.items()}
    for name, result in results.items():
        if error := result.exception():
            log.error("the sink %s was not closed cleanly", name, exc_info=error)
