"""Packages that may be missing on the device."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_no_sink_imports_a_package_that_may_be_missing() -> None:
    script = (
        "import sys, edge.audit.gate, edge.audit.report, edge.audit.crypto\n"
        "import edge.inputs.monitor, edge.sinks.gpio, edge.sinks.mqtt, edge.sinks.webhook, edge.sinks.indicator\n"
        "import edge.osdp.sink\n"
        "late = {'paho', 'gpiozero', 'cryptography', 'typer', 'osdp', 'osdp_sys'}\n"
        "sys.exit(' '.join(late & set(sys.modules)) or 0)\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.slow
def test_missing_package_is_named_with_the_extra_to_install() -> None:
    script = (
        "import sys\n"
        "from edge.audit.crypto import *; from edge.errors import SinkError\n"
        "from edge.sinks import gpio, mqtt\n"
        "calls = {'paho': lambda: mqtt.MqttSink(mqtt.MqttSettings(host='h')),\n"
        "         'gpiozero': lambda: gpio.open_sink(gpio.GpioSettings(pin=17)),\n"
        "         'cryptography': lambda: Seal(b'')}\n"
        "for package, call in calls.items():\n"
        "    sys.modules[package] = None\n"
        "    try: call()\n"
        "    except SinkError as error: print(error.exit_code, error)\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("39 ") and "Run `pip install" in line for line in lines)
