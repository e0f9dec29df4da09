"""Open the LED and the buzzer, and the link to a door controller, which may command both."""

from collections.abc import Callable, Iterable

from edge.events.sink import Sink
from edge.osdp.numbers import NumberFile
from edge.osdp.sink import OsdpSink
from edge.settings import Settings
from edge.sinks import indicator
from edge.sinks.indicator import Indicator
from edge.text import printable, some

RELAY_TOO = (
    "warning: [osdp] and [gpio] are both set, so the relay opens without the controller. With OSDP, the controller switches "
    "the lock: remove [gpio]."
)
INSTALL_MODE = (
    "warning: [osdp] install_mode is on: who reaches the line can set the key. Switch it off when the controller is connected."
)


def open_controller(settings: Settings, sinks: dict[str, Sink]) -> tuple[Indicator | None, OsdpSink | None]:
    """Open what the settings name, and add it to the sinks."""
    lights, controller = None, None
    if settings.indicator is not None:
        lights = sinks["indicator"] = indicator.open_sink(settings.indicator)
    if settings.osdp is not None:
        controller = sinks["osdp"] = OsdpSink(settings.osdp, lights=lights)
    return lights, controller


def warn_about_controller(settings: Settings, numbers: NumberFile, labels: Iterable[str], say: Callable[[str], None]) -> None:
    """Say what is probably wrong."""
    labels = list(labels)
    if settings.gpio is not None:
        say(RELAY_TOO)
    if settings.osdp is not None and settings.osdp.install_mode:
        say(INSTALL_MODE)
    if unknown := numbers.unknown(labels):
        names = some([printable(name) for name in unknown])
        say(f"warning: the credential numbers name people who are not in the kit: {names}.")
    if missing := numbers.without_card(labels):
        say(f"warning: {missing} of the {len(labels)} people of the kit have no credential number: no door opens for them.")
