"""A terminal with a door controller, an LED and a buzzer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import gpiozero
import osdp
import pytest
from gpiozero.pins.mock import MockFactory

from edge.events.sink import Sink
from edge.osdp.link import START_SECONDS
from edge.osdp.numbers import NumberFile, wiegand
from edge.osdp.sink import LINK, OsdpSink
from edge.settings import Settings, parse
from edge.terminal import wiring
from edge.terminal.controller import INSTALL_MODE, RELAY_TOO, open_controller, warn_about_controller
from tests.fakes.control_panel import KEY, ControlPanel, Line
from tests.fakes.scene_camera import SceneCamera
from tests.fixtures import orl_door
from tests.fixtures.orl_door import GUEST, STRANGER, empty_room, frames
from tests.fixtures.terminals import run_to_end
from tests.fixtures.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def pins() -> Iterator[MockFactory]:
    before = gpiozero.Device.pin_factory
    gpiozero.Device.pin_factory = MockFactory()
    yield gpiozero.Device.pin_factory
    gpiozero.Device.pin_factory = before


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    (tmp_path / "key").write_text(KEY.hex())
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "numbers.toml").write_text(f"[people]\n{GUEST} = {{ number = 4711 }}\nnemo = {{ number = 1 }}\n")
    with closing(Line(tmp_path / "port")) as found:
        yield found


def chosen(folder: Path, more: str = "") -> Settings:
    text = '[osdp]\ndevice = "port"\nkey_file = "key"\nnumbers_file = "numbers.toml"\n'
    return parse(f"{text}{more}".encode(), folder=folder)


def test_grant_of_the_whole_terminal_reaches_the_controller(tmp_path: Path, line: Line, pins: MockFactory) -> None:
    (tmp_path / "door.kit").write_bytes(orl_door.kit())
    orl_door.video(tmp_path / "visits.avi", frames(STRANGER, 8), empty_room(12), frames(GUEST, 8), empty_room(12))
    settings = chosen(
        tmp_path,
        "[indicator]\nred_pin = 16\ngreen_pin = 20\nblue_pin = 21\n"
        f'[camera]\nsource = "{tmp_path}/visits.avi"\n[events]\njson_lines = false\n',
    )
    said: list[str] = []
    with (
        wiring.open_terminal(settings, tmp_path / "door.kit", say=said.append) as terminal,
        closing(ControlPanel(line)) as panel,
    ):
        until(lambda: panel.is_secure)
        terminal.run()
        until(lambda: panel.cards)
        assert panel.capability(osdp.Capability.LEDControl) == (4, 1)
    expected = wiegand(4711, 0, "wiegand-26")
    assert [(card["data"], card["length"]) for card in panel.cards] == [(expected.data, 26)]
    assert any(state.state for state in pins.pin(16).states), "the stranger saw red"
    assert "warning: the credential numbers name people who are not in the kit: nemo." in said
    assert any("people of the kit have no credential number" in sentence for sentence in said)
    assert RELAY_TOO not in said


def test_lost_controller_is_an_event_and_in_the_health(tmp_path: Path, line: Line) -> None:
    now = [0.0]
    settings = chosen(tmp_path).osdp
    assert settings is not None
    with closing(OsdpSink(settings, clock=lambda: now[0])) as controller:
        now[0] = START_SECONDS
        news = iter([until(controller.next_change)])
        events, terminal = run_to_end(SceneCamera(empty_room(4)), news=[lambda: next(news, None)])
        assert events.of("controller") == [("lost", "no messages from the controller")]
        health = wiring.whole_health(terminal, {}, None, None, None, controller)
        assert (health["controller_up"], health["failing"]) == (False, [LINK])
        assert health["alarms"]["controller lost"] == 1
        with closing(ControlPanel(line)) as panel:
            until(lambda: panel.is_secure and controller.is_up)
            health = wiring.whole_health(terminal, {}, None, None, None, controller)
            assert (health["controller_up"], health["failing"]) == (True, [])


def test_relay_beside_the_controller_and_install_mode_are_warnings(tmp_path: Path, line: Line) -> None:
    said: list[str] = []
    settings = chosen(tmp_path, "install_mode = true\n[gpio]\npin = 17\n")
    warn_about_controller(settings, NumberFile(tmp_path / "numbers.toml"), [GUEST, "nemo"], said.append)
    assert said == [RELAY_TOO, INSTALL_MODE]


def test_commands_of_the_controller_reach_the_pins(tmp_path: Path, line: Line, pins: MockFactory) -> None:
    settings = chosen(tmp_path, "[indicator]\nred_pin = 16\ngreen_pin = 20\nblue_pin = 21\nbuzzer_pin = 12\n")
    sinks: dict[str, Sink] = {}
    open_controller(settings, sinks)
    assert list(sinks) == ["indicator", "osdp"]
    with closing(ControlPanel(line)) as panel:
        until(lambda: panel.is_secure)
        panel.led(temporary=False, control_code=1, on_color=osdp.CommandLEDColor.Magenta)
        until(lambda: [bool(pins.pin(number).state) for number in (16, 20, 21)] == [True, False, True])
        panel.buzzer(on_count=100)
        until(lambda: bool(pins.pin(12).state))
    wiring.close_all(sinks)
    assert not pins.pin(12).state


def test_terminal_without_these_tables_opens_nothing() -> None:
    sinks: dict[str, Sink] = {}
    assert open_controller(parse(b""), sinks) == (None, None)
    assert sinks == {}
