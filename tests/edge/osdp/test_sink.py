"""The terminal and the control panel of libosdp, at the two ends of a pair of pseudo-terminals."""

from __future__ import annotations

import ctypes
import gc
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, TypeVar

import osdp
import pytest

from edge.clock import boottime
from edge.errors import SinkError
from edge.events.event import notice
from edge.osdp.device import DONE
from edge.osdp.link import LOST_SECONDS, NO_CHANNEL, PORT, START_SECONDS
from edge.osdp.numbers import wiegand
from edge.osdp.port import SerialPort
from edge.osdp.settings import OsdpSettings
from edge.osdp.sink import LINK, OsdpSink
from edge.sinks.indicator import Indicator
from edge.sinks.signals import Colour
from tests.fakes.control_panel import KEY, ControlPanel, Line
from tests.fixtures.events import NOON, make_event
from tests.fixtures.waiting import until

pytestmark = pytest.mark.slow

OTHER_KEY = bytes(range(16))
MANY_MESSAGES = 50  # more than are needed until a card is collected
AGAIN_SECONDS = 1.0
T = TypeVar("T")


class Clock:
    """A clock that a test can set forward."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Door:
    """A terminal's sink and a line. Everything is closed at the end of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.stack = folder, ExitStack()
        (folder / "key").write_text(KEY.hex() + "\n")
        (folder / "key").chmod(0o600)
        (folder / "numbers.toml").write_text("facility = 12\n[people]\nanna = { number = 4711 }\n")
        self.line = Line(folder / "port")
        self.stack.callback(self.line.cut)
        self.colours: list[Colour] = []
        self.tones: list[bool] = []

    def settings(self, **changes: Any) -> OsdpSettings:
        paths: dict[str, Any] = {
            "device": self.line.path,
            "key_file": self.folder / "key",
            "numbers_file": self.folder / "numbers.toml",
            "grant_seconds": 10.0,  # for a busy machine
        }
        return OsdpSettings(**paths | changes)

    def sink(self, *, with_lights: bool = False, clock: Callable[[], float] = boottime, **changes: Any) -> OsdpSink:
        lights = None
        if with_lights:
            lights = self.closed(Indicator(light=self.colours.append, sound=self.tones.append))
        return self.closed(OsdpSink(self.settings(**changes), lights=lights, clock=clock))

    def panel(self, *, key: bytes = KEY, enforce: bool = True) -> ControlPanel:
        return self.closed(ControlPanel(self.line, key=key, enforce=enforce, returns=key == KEY))

    def connected(self, *, with_lights: bool = False, **changes: Any) -> tuple[OsdpSink, ControlPanel]:
        sink, panel = self.sink(with_lights=with_lights, **changes), self.panel()
        until(lambda: panel.is_secure and sink.is_up)
        return sink, panel

    def grant(self, sink: OsdpSink, panel: ControlPanel, label: str = "anna") -> dict[str, Any]:
        """Grant access, again if the link was lost meanwhile, and return the first card that the controller has."""

        tried, heard = (-1, -1), 0

        def collected() -> list[dict[str, Any]]:
            nonlocal tried, heard
            # A card in a reply that came too late for the controller is lost, and the terminal counts it as delivered.
            before, now = (sink.health().failed, panel.losses), len(self.line.received)
            is_lost = before != tried or now >= heard + MANY_MESSAGES
            if not panel.cards and panel.is_secure and sink.is_up and is_lost:
                tried, heard = before, now
                sink.handle(make_event(label=label))
            return panel.cards

        return dict(until(collected)[0])

    def show(self, panel: ControlPanel, colour: Colour, **order: Any) -> None:
        """Let the controller order a colour, until it is shown."""
        self.ordered(panel, lambda: panel.led(**order), lambda: self.colours[-1:] == [colour])

    def sound(self, panel: ControlPanel, tone: bool, **order: Any) -> None:
        """Let the controller order a tone or silence, until it is heard."""
        self.ordered(panel, lambda: panel.buzzer(**order), lambda: self.tones[-1:] == [tone])

    def ordered(self, panel: ControlPanel, order: Callable[[], None], is_done: Callable[[], bool]) -> None:
        """Give an order until it is done: a terminal that lost the link meanwhile has forgotten it."""
        ordered = -math.inf

        def done() -> bool:
            nonlocal ordered
            if is_done():
                return True
            if panel.is_secure and time.monotonic() - ordered >= AGAIN_SECONDS:
                order()
                ordered = time.monotonic()
            return False

        until(done)

    def poll(self) -> None:
        """Wait until the controller has asked for news a few times."""
        count = len(self.line.received)
        until(lambda: len(self.line.received) >= count + 5)

    def closed(self, part: T) -> T:
        self.stack.callback(part.close)  # type: ignore[attr-defined]
        return part


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    found = Door(tmp_path)
    with found.stack:
        yield found


def bits_of(card: dict[str, Any]) -> str:
    return f"{int.from_bytes(card['data'], 'big'):0{8 * len(card['data'])}b}"[: card["length"]]


# A grant


def test_grant_becomes_one_card_with_the_bits_of_the_person(door: Door) -> None:
    sink, panel = door.connected()
    door.grant(sink, panel)
    until(lambda: sink.health().delivered)
    assert [bits_of(card) for card in panel.cards] == [wiegand(4711, 12, "wiegand-26").bits]
    assert panel.cards[0]["format"] == osdp.CardFormat.Wiegand
    door.poll()
    assert len(panel.cards) == 1


def test_raw_bits_arrive_as_they_are(door: Door) -> None:
    (door.folder / "numbers.toml").write_text('[people]\nanna = { bits = "10110" }\n')
    sink, panel = door.connected()
    card = door.grant(sink, panel)
    assert (bits_of(card), card["format"]) == ("10110", osdp.CardFormat.Unspecified)


def test_denied_person_and_other_events_send_nothing(door: Door) -> None:
    sink, panel = door.connected()
    for event in (make_event(outcome="denied", reason="not on the door list"), notice("start", now=1, utc=NOON)):
        sink.handle(event)
    door.grant(sink, panel)
    door.poll()
    assert len(panel.cards) == sink.health().delivered == 1


def test_grant_without_a_number_is_counted_and_said_without_the_name(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    sink, panel = door.connected()
    sink.handle(make_event(label="ben"))
    until(lambda: sink.health().failed == 1)
    assert "without a credential number" in caplog.text
    assert "ben" not in caplog.text
    assert panel.cards == []


def test_number_that_was_added_while_the_terminal_runs_is_used(door: Door) -> None:
    sink, panel = door.connected()
    (door.folder / "numbers.toml").write_text("[people]\nben = { number = 1 }\n")
    assert bits_of(door.grant(sink, panel, "ben")) == wiegand(1, 0, "wiegand-26").bits


def test_grant_that_was_not_collected_in_time_is_never_sent(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    sink, panel = door.connected(grant_seconds=0.2)
    panel.pause()
    before = sink.health().failed
    sink.handle(make_event())
    until(lambda: sink.health().failed > before)
    assert "a grant was not sent" in caplog.text  # not collected in time; or the link was lost just before, on a busy machine
    panel.resume()
    door.poll()
    assert panel.cards == []


def test_controller_that_does_not_collect_cards_delays_no_event(door: Door) -> None:
    sink, panel = door.connected(grant_seconds=10.0)
    panel.pause()
    for _ in range(20):
        sink.handle(make_event())  # would wait here
    assert sink.health().dropped >= 12
    panel.resume()


# The Secure Channel


def test_controller_with_another_key_gets_nothing(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    sink = door.sink(clock=clock)
    clock.now += 1.0
    panel = door.panel(key=OTHER_KEY)
    until(lambda: any(b"\x76" in message for message in door.line.sent) and len(door.line.received) >= 3)
    sink.handle(make_event())
    until(lambda: sink.health().failed == 1)
    clock.now += START_SECONDS
    news = until(sink.next_change)
    assert (news.kind, news.outcome, news.reason) == ("controller", "lost", NO_CHANNEL)
    assert sink.failing == [LINK]
    assert "a grant was not sent: the controller has no Secure Channel with the key of this terminal" in caplog.text
    assert (panel.cards, panel.is_secure, sink.is_up) == ([], False, False)


def test_default_key_and_plain_text_are_refused(door: Door) -> None:
    """With a wrong key, the panel also tries SCBK-D, and then to go on without a Secure Channel."""
    sink = door.sink()
    panel = door.panel(key=OTHER_KEY, enforce=False)
    until(lambda: any(b"\x03\x11\x00\x76" in message for message in door.line.sent), "it did not try SCBK-D")
    until(lambda: any(message[-3:-2] == b"\x60" for message in door.line.sent), "it did not poll without a Secure Channel")
    sink.handle(make_event())
    until(lambda: sink.health().failed == 1)
    assert (panel.cards, panel.is_secure, sink.is_up) == ([], False, False)


def test_command_without_the_secure_channel_is_refused(door: Door) -> None:
    sink = door.sink(with_lights=True)
    led = bytes([0x69, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, osdp.CommandLEDColor.Magenta, 0])
    packet = bytes([0x53, 0, 6 + len(led), 0, 0]) + led
    door.line.write(packet + bytes([-sum(packet) & 0xFF]))
    reply = until(lambda: door.line.read(4096))
    assert (reply[5], reply[6]) == (0x41, 6), "not acknowledged: security conditions not met"
    sink.close()
    assert Colour.MAGENTA not in door.colours


def test_install_mode_takes_one_key_and_then_only_this(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    path = door.folder / "key"
    path.unlink()
    sink = door.sink(install_mode=True)
    panel = door.panel(enforce=False)
    until(lambda: panel.is_secure and sink.is_up)
    assert (path.read_text(), path.stat().st_mode & 0o777) == (KEY.hex() + "\n", 0o600)
    assert "switch [osdp] install_mode off" in caplog.text
    door.grant(sink, panel)
    assert not panel.command(osdp.Command.Keyset, type=1, data=OTHER_KEY)
    assert path.read_text() == KEY.hex() + "\n"


def test_key_of_the_controller_is_refused_without_install_mode(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    _, panel = door.connected()
    assert not panel.command(osdp.Command.Keyset, type=1, data=OTHER_KEY)
    assert "install_mode is off" in caplog.text
    assert (door.folder / "key").read_text() == KEY.hex() + "\n"


def replay(line: Line, messages: list[bytes]) -> list[bytes]:
    """Send recorded messages of a controller to a terminal, one after the other, and return its replies."""
    replies = []
    for message in messages:
        line.write(message)
        replies.append(until(lambda: line.read(4096)))
    return replies


def restart_random_numbers(*, after: int) -> None:
    """Put C's rand() into the state of a program that has just started and has drawn `after` numbers."""
    library = ctypes.CDLL(None)
    library.srand(1)
    for _ in range(after):
        library.rand()


def test_recorded_exchange_is_refused_by_a_restarted_terminal(door: Door) -> None:
    """The terminal must draw other random numbers after a restart, or the recorded Secure Channel is valid again."""
    restart_random_numbers(after=0)
    sink, panel = door.connected(with_lights=True)
    door.show(panel, Colour.MAGENTA, temporary=False, control_code=1, on_color=osdp.CommandLEDColor.Magenta)
    panel.pause()
    sink.close()
    recorded = list(door.line.sent)
    door.colours.clear()
    restart_random_numbers(after=8)  # the panel draws its 8 first; in the attack it is another device
    again = door.sink(with_lights=True)
    replies = replay(door.line, recorded)
    assert len(replies) == len(recorded)
    assert not again.is_up
    assert Colour.MAGENTA not in door.colours


def test_recorded_command_is_refused_in_the_same_session(door: Door) -> None:
    sink, panel = door.connected(with_lights=True)
    count = len(door.line.sent)
    panel.led(temporary=False, control_code=1, on_color=osdp.CommandLEDColor.Magenta)
    recorded = door.line.sent[count:]
    door.show(panel, Colour.CYAN, temporary=False, control_code=1, on_color=osdp.CommandLEDColor.Cyan)
    panel.pause()
    door.colours.clear()
    replay(door.line, recorded)
    assert Colour.MAGENTA not in door.colours
    sink.handle(make_event())
    until(lambda: sink.health().failed + sink.health().delivered == 1)
    assert panel.cards == []


def test_recorded_replies_bring_no_card_to_a_controller(door: Door) -> None:
    sink, panel = door.connected()
    door.grant(sink, panel)
    panel.close()
    sink.close()
    recorded = list(door.line.received)
    restart_random_numbers(after=1000)
    with closing(Line(door.folder / "tapped")) as line, closing(ControlPanel(line, returns=False)) as victim:
        reader = SerialPort(line.path, 9600, clock=Clock())
        for message in recorded[:3]:  # identity, abilities, the reply to the challenge
            until(lambda: reader.read(4096) or victim.losses)
            reader.write(message)
        for message in recorded[3:]:  # it may ask no more
            reader.write(message)
        until(lambda: len(b"".join(line.received)) == len(b"".join(recorded)))
        assert (victim.cards, victim.is_secure) == ([], False)
        reader.close()


# A lost link


def test_cut_line_is_an_alarm_and_old_grants_do_not_arrive_later(door: Door) -> None:
    clock = Clock()
    sink, panel = door.connected(clock=clock)
    door.line.cut()
    until(lambda: not sink.is_up)
    sink.handle(make_event())
    until(lambda: sink.health().failed == 1)
    clock.now += LOST_SECONDS
    assert until(sink.next_change).reason == PORT
    door.line.connect()
    clock.now += 1.0  # the next attempt to open the port
    until(lambda: panel.is_secure and sink.is_up)
    assert until(sink.next_change).outcome == "back"
    door.poll()
    assert panel.cards == []
    door.grant(sink, panel)
    door.poll()
    assert len(panel.cards) == 1


def test_controller_that_falls_silent_is_lost(door: Door) -> None:
    clock = Clock()
    sink, panel = door.connected(clock=clock)
    panel.pause()
    clock.now += 10.0
    until(lambda: not sink.is_up)
    clock.now += LOST_SECONDS
    assert until(sink.next_change).reason == "no messages from the controller"


def test_missing_port_and_missing_package_are_errors_now(door: Door) -> None:
    with pytest.raises(SinkError) as caught:
        OsdpSink(OsdpSettings(**vars(door.settings()) | {"device": door.folder / "none"}))
    assert "No such file" in caught.value.message
    with pytest.raises(SinkError) as caught:
        OsdpSink(OsdpSettings(**vars(door.settings()) | {"device": door.folder / "key"}))
    assert "not a serial port" in caught.value.message
    script = (
        "import sys; sys.modules['osdp'] = None\n"
        "from pathlib import Path\n"
        "from edge.errors import SinkError; from edge.osdp.sink import *\n"
        "port, key, numbers = map(Path, sys.argv[1:])\n"
        "try: OsdpSink(OsdpSettings(device=port, key_file=key, numbers_file=numbers))\n"
        "except SinkError as error: print(error)\n"
    )
    files = [str(path) for path in (door.line.path, door.folder / "key", door.folder / "numbers.toml")]
    run = subprocess.run([sys.executable, "-c", script, *files], capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("OSDP needs the package libosdp. Run `pip install libosdp`.\n", "")


# Reports to the controller, and its commands


def test_identity_and_abilities_are_those_of_the_terminal(door: Door) -> None:
    _, panel = door.connected(with_lights=True, serial=77)
    identity = panel.identity()
    assert (identity.serial_number, identity.model) == (77, 1)
    assert panel.capability(osdp.Capability.LEDControl) == (4, 1)
    assert panel.capability(osdp.Capability.AudibleControl) == (2, 1)
    assert panel.capability(osdp.Capability.CardDataFormat)[0] == 1
    assert panel.capability(osdp.Capability.CommunicationSecurity)[0] == 1
    assert panel.capability(osdp.Capability.OutputControl) == (0, 0)


def test_terminal_without_lights_offers_none_and_refuses_commands(door: Door) -> None:
    _, panel = door.connected()
    assert panel.capability(osdp.Capability.LEDControl) == (0, 0)
    assert panel.capability(osdp.Capability.AudibleControl) == (0, 0)
    assert not panel.command(osdp.Command.Buzzer, reader=0, control_code=2, on_count=1, off_count=1, rep_count=1)


def test_tamper_and_power_are_reported_at_once_and_when_asked(door: Door) -> None:
    power = door.folder / "online"
    power.write_text("1\n")
    clock = Clock()
    sink, panel = door.connected(power_file=power, clock=clock)
    assert panel.ask_status() == b"\0\0"
    sink.handle(notice("input", outcome="tamper", now=1, utc=NOON))
    until(lambda: [status["report"] for status in panel.statuses][-1:] == [b"\1\0"])
    assert panel.ask_status() == b"\1\0"
    power.write_text("0\n")
    clock.now += 5.0
    until(lambda: [status["report"] for status in panel.statuses][-1:] == [b"\1\1"])
    assert panel.ask_status() == b"\1\1"
    sink.handle(notice("input", outcome="tamper ended", now=2, utc=NOON))
    until(lambda: [status["report"] for status in panel.statuses][-1:] == [b"\0\1"])
    assert panel.ask_status() == b"\0\1"


def test_status_from_before_the_connection_is_reported_with_it(door: Door) -> None:
    sink = door.sink()
    sink.handle(notice("input", outcome="tamper", now=1, utc=NOON))
    until(lambda: sink.health().delivered == 1)
    panel = door.panel()
    until(lambda: panel.statuses)  # once for each connection: a busy machine may lose the first
    assert {status["report"] for status in panel.statuses} == {b"\1\0"}


def test_controller_commands_the_led_and_the_buzzer(door: Door) -> None:
    _, panel = door.connected(with_lights=True)
    door.show(panel, Colour.CYAN, temporary=False, control_code=1, on_color=osdp.CommandLEDColor.Cyan)
    door.show(panel, Colour.MAGENTA, temporary=True, control_code=2, on_color=osdp.CommandLEDColor.Magenta, timer_count=200)
    door.show(panel, Colour.CYAN, temporary=True, control_code=1)
    door.sound(panel, True, on_count=100, off_count=100)
    door.sound(panel, False, control_code=1, on_count=0)


def test_lost_link_ends_the_commands_of_the_controller(door: Door) -> None:
    _, panel = door.connected(with_lights=True)
    door.show(panel, Colour.CYAN, temporary=False, control_code=1, on_color=osdp.CommandLEDColor.Cyan)
    door.line.cut()
    until(lambda: door.colours[-1:] == [Colour.OFF])


def test_replies_are_not_used_up_by_libosdp(door: Door) -> None:
    """Its callback releases an object too much. Without a counter-measure, Python would stop after some thousand commands."""
    _, panel = door.connected(with_lights=True)
    panel.ask_status()
    gc.collect()
    gc.disable()  # what it frees refers to None, too
    try:
        kept, nothing = sys.getrefcount(DONE), sys.getrefcount(None)
        for _ in range(30):
            panel.ask_status()
            panel.led(temporary=False, control_code=1)
        assert sys.getrefcount(DONE) >= kept + 30, "the same tuple is used each time"
        assert sys.getrefcount(None) > nothing - 30
    finally:
        gc.enable()
