"""Door contact, exit button and tamper switch on gpiozero's mock pins."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import gpiozero
import pytest
from gpiozero.pins.mock import MockFactory

from edge.errors import ParameterError, SinkError
from edge.inputs.monitor import CONTACT, EXIT_BUTTON, TAMPER_SWITCH, GpioPin, InputMonitor, InputSettings, open_monitor
from edge.settings import parse
from tests.fixtures.data import ROOT
from tests.fixtures.events import make_event
from tests.fixtures.waiting import until

SETTINGS = InputSettings(contact_pin=5, exit_pin=6, tamper_pin=13, exit_opens=True)


@pytest.fixture(autouse=True)
def pins() -> Iterator[MockFactory]:
    before = gpiozero.Device.pin_factory
    gpiozero.Device.pin_factory = MockFactory()
    yield gpiozero.Device.pin_factory
    gpiozero.Device.pin_factory = before


class FakePin:
    """An input that a test sets. It fails while `error` is set."""

    def __init__(self) -> None:
        self.value = self.is_closed = False
        self.error: Exception | None = None

    def read(self) -> bool:
        if self.error is not None:
            raise self.error
        return self.value

    def close(self) -> None:
        self.is_closed = True


class Scene:
    """A monitor with inputs and a clock that a test moves. It is read only when the test says so."""

    def __init__(self, settings: InputSettings = SETTINGS) -> None:
        self.now, self.calls = 100.0, list[str]()
        self.contact, self.exit, self.tamper = FakePin(), FakePin(), FakePin()
        self.monitor = InputMonitor(
            settings,
            {CONTACT: self.contact, EXIT_BUTTON: self.exit, TAMPER_SWITCH: self.tamper},
            on_exit=lambda: self.calls.append("exit"),
            on_open=lambda: self.calls.append("open"),
            clock=lambda: self.now,
        )
        self.start = self.wait(0.1)

    def wait(self, seconds: float) -> list[tuple[str, str | None]]:
        """Read the inputs twice, some time apart. Return the news: outcome and reason."""
        self.monitor.poll()
        self.now += seconds
        self.monitor.poll()
        return self.news()

    def news(self) -> list[tuple[str, str | None]]:
        found = []
        while (news := self.monitor.next_change()) is not None:
            assert news.kind == "input"
            found.append((news.outcome, news.reason))
        return found

    def outcomes(self, seconds: float = 0.1) -> list[str]:
        return [outcome for outcome, _ in self.wait(seconds)]


def test_states_at_the_start_are_reported_and_are_no_alarm() -> None:
    assert Scene().start == [("closed", "at the start"), ("tamper ended", "at the start")]


def test_button_that_is_pressed_at_the_start_opens_nothing() -> None:
    scene = Scene()
    scene.exit.value = True
    scene.monitor = InputMonitor(
        SETTINGS, {EXIT_BUTTON: scene.exit}, on_exit=lambda: scene.calls.append("exit"), clock=lambda: scene.now
    )
    assert scene.wait(1) == []
    assert scene.calls == []


def test_grant_permits_to_open_the_door_and_a_denial_does_not() -> None:
    scene = Scene()
    scene.monitor.handle(make_event())
    scene.contact.value = True
    assert scene.outcomes() == ["opened"]
    scene.contact.value = False
    assert scene.outcomes() == ["closed"]
    scene.monitor.handle(make_event(outcome="denied"))
    scene.contact.value = True
    assert scene.outcomes() == ["opened", "forced open"]
    scene.contact.value = False
    assert scene.outcomes() == ["closed", "forced open ended"]


def test_open_door_calls_the_relay_at_once() -> None:
    scene = Scene()
    scene.contact.value = True
    scene.wait(0.1)
    scene.contact.value = False
    scene.wait(0.1)
    assert scene.calls == ["open"]


def test_request_to_exit_permits_and_opens_once() -> None:
    scene = Scene()
    scene.exit.value = True
    assert scene.outcomes() == ["exit requested"]
    assert scene.outcomes(60) == [], "a button that stays pressed is one request"
    assert scene.calls == ["exit"]
    scene.contact.value = True
    assert scene.outcomes() == ["opened"], "a sensor still sees the person"


def test_request_to_exit_does_not_open_by_default() -> None:
    scene = Scene(InputSettings(contact_pin=5, exit_pin=6))
    scene.exit.value = True
    assert scene.outcomes() == ["exit requested"]
    assert scene.calls == []


def test_door_that_stays_open_is_held_open() -> None:
    scene = Scene()
    scene.monitor.handle(make_event())
    scene.contact.value = True
    assert scene.outcomes() == ["opened"]
    assert scene.outcomes(31) == ["held open"]
    scene.contact.value = False
    assert scene.outcomes() == ["closed", "held open ended"]


def test_tamper_switch_is_an_alarm_until_it_is_closed() -> None:
    scene = Scene()
    scene.tamper.value = True
    assert scene.outcomes() == ["tamper"]
    scene.tamper.value = False
    assert scene.outcomes() == ["tamper ended"]


def test_bouncing_contact_is_no_news() -> None:
    scene = Scene()
    for value in (True, False, True, False):
        scene.contact.value = value
        assert scene.outcomes(0.01) == []


# Faults


def test_pin_that_cannot_be_read_is_an_alarm_until_it_can() -> None:
    scene = Scene()
    scene.contact.error = OSError("no such line")
    assert scene.wait(0.1) == [("failed", "the door contact (OSError)")]
    assert scene.monitor.failing == ["the door contact"]
    scene.tamper.value = True
    assert scene.outcomes() == ["tamper"], "the other inputs work"
    scene.contact.error = None
    assert scene.wait(0.1) == [("restored", "the door contact")]
    assert scene.monitor.failing == []


def test_door_that_was_opened_while_its_contact_failed_is_an_alarm() -> None:
    scene = Scene()
    scene.contact.error = OSError()
    scene.wait(60)
    scene.contact.error, scene.contact.value = None, True
    assert scene.outcomes() == ["restored", "opened", "forced open"]


def test_thread_that_hangs_is_an_alarm_until_it_goes_on() -> None:
    scene = Scene()
    scene.now += 5.1
    assert scene.news() == [("failed", "the reading of the inputs")]
    assert scene.monitor.failing == ["the reading of the inputs"]
    assert scene.wait(0.1) == [("restored", "the reading of the inputs")]
    assert scene.monitor.failing == []


def test_news_that_do_not_fit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    monkeypatch.setattr("edge.inputs.monitor.CAPACITY", 1)
    for value in (True, False):
        scene.tamper.value = value
        scene.monitor.poll()
        scene.now += 0.1
        scene.monitor.poll()
    assert scene.news() == [("tamper", None)]
    assert scene.monitor.health().dropped == 1


def test_pin_that_hangs_does_not_block_the_end(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("edge.inputs.monitor.CLOSE_SECONDS", 0.01)
    entered, opened = threading.Event(), threading.Event()

    class Stuck(FakePin):
        def read(self) -> bool:
            entered.set()
            opened.wait(60)
            return False

    pin = Stuck()
    monitor = InputMonitor(InputSettings(contact_pin=5), {CONTACT: pin})
    monitor.start()
    assert entered.wait(60)
    monitor.close()
    assert not pin.is_closed
    assert "did not stop in time" in caplog.text
    opened.set()


def test_error_while_reading_does_not_end_the_thread() -> None:
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise RuntimeError("injected")

    pin = FakePin()
    pin.value = True
    monitor = InputMonitor(InputSettings(contact_pin=5, debounce_seconds=0), {CONTACT: pin}, on_open=fail)
    monitor.start()
    until(lambda: calls)
    pin.value = False
    until(lambda: (news := monitor.next_change()) is not None and news.outcome == "closed")
    monitor.close()
    assert pin.is_closed


# Pins


@pytest.mark.parametrize("is_active_high", [True, False])
@pytest.mark.parametrize(("pull", "mode"), [(True, "up"), (False, "down"), (None, "floating")])
def test_pin_is_active_at_its_level_with_each_resistor(
    pins: MockFactory, is_active_high: bool, pull: bool | None, mode: str
) -> None:
    pin = GpioPin(gpiozero, 5, is_active_high=is_active_high, pull=pull)
    assert (pins.pin(5).function, pins.pin(5).pull) == ("input", mode)
    pins.pin(5).drive_high()
    assert pin.read() == is_active_high
    pins.pin(5).drive_low()
    assert pin.read() != is_active_high
    pin.close()


def hear(monitor: InputMonitor, *wanted: str) -> list[str]:
    """Wait for these outcomes, in any order, and return all until then."""
    found: list[str] = []

    def has_all() -> bool:
        if (news := monitor.next_change()) is not None:
            found.append(news.outcome)
        return set(wanted) <= set(found)

    until(has_all)
    return found


def test_cut_wires_are_an_open_door_and_tamper_but_no_request(pins: MockFactory) -> None:
    """With the default resistors, a pin whose wire is cut is high."""
    with closing(open_monitor(SETTINGS)) as monitor:
        assert hear(monitor, "opened", "tamper") == ["opened", "tamper"]


def test_thread_reads_the_pins(pins: MockFactory) -> None:
    calls: list[str] = []
    with closing(
        open_monitor(SETTINGS, on_exit=lambda: calls.append("exit"), on_open=lambda: calls.append("open"))
    ) as monitor:
        pins.pin(5).drive_low()
        pins.pin(13).drive_low()
        hear(monitor, "closed", "tamper ended")
        calls.clear()
        pins.pin(6).drive_low()
        hear(monitor, "exit requested")
        pins.pin(5).drive_high()
        assert hear(monitor, "opened") == ["opened"]
        until(lambda: calls == ["exit", "open"])


def test_pin_in_use_is_an_error_and_releases_the_others() -> None:
    with closing(gpiozero.OutputDevice(13)), pytest.raises(SinkError, match="GPIO 13"):
        open_monitor(SETTINGS)
    open_monitor(SETTINGS).close()


def test_example_of_the_guide_is_valid() -> None:
    guide = (ROOT / "docs" / "guide" / "inputs.md").read_text(encoding="utf-8")
    found = parse(guide.split("```toml\n")[1].split("```")[0].encode()).inputs
    assert found is not None
    assert {name: pin for name, (pin, _) in found.pins.items()} == {CONTACT: 5, EXIT_BUTTON: 6, TAMPER_SWITCH: 13}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"contact_pin": None}, "must be set"),
        ({"contact_pin": 64}, "contact_pin must be a BCM number"),
        ({"tamper_pin": -1}, "tamper_pin must be a BCM number"),
        ({"exit_pin": 5}, "the same pin"),
        ({"exit_opens": True}, "exit_opens needs exit_pin"),
        ({"pull": "high"}, "pull must be one of up, down, none"),
        ({"debounce_seconds": 1.1}, "debounce_seconds"),
        ({"debounce_seconds": float("nan")}, "debounce_seconds"),
        ({"open_within_seconds": 0.5}, "open_within_seconds"),
        ({"held_seconds": 3601.0}, "held_seconds"),
    ],
)
def test_invalid_settings_are_rejected(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ParameterError, match=sentence):
        InputSettings(**{"contact_pin": 5} | wrong)
