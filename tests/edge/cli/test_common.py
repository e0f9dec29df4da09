"""Helpers of the three commands: logging to stderr."""

from __future__ import annotations

import logging
import os
import time
import warnings

import pytest

from edge.cli import common as console

DEADLINE = 60.0


@pytest.fixture
def log() -> logging.Logger:
    return logging.getLogger("edge.somewhere")


def test_warning_or_error_is_one_line(
    log: logging.Logger, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("EDGE_DEBUG", raising=False)
    with console.log_to_stderr():
        log.info("not worth a line")
        log.warning("the camera %s\x1b[2J is slow", "door")
        try:
            raise ValueError("rtsp://user:secret@camera")
        except ValueError:
            log.exception("a frame was passed over")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            logging.captureWarnings(True)
            warnings.warn("a library's own", UserWarning, stacklevel=1)
    slow, passed_over, own = capfd.readouterr().err.splitlines()
    assert slow == "warning: the camera door?[2J is slow"
    assert passed_over == "error: a frame was passed over (ValueError)", "the text may hold a password"
    assert own.startswith("warning: ")
    assert own.endswith("UserWarning: a library's own")


def test_edge_debug_shows_tracebacks(
    log: logging.Logger, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDGE_DEBUG", "1")
    with console.log_to_stderr():
        try:
            raise ValueError("in full")
        except ValueError:
            log.exception("a frame was passed over")
    assert "Traceback" in (err := capfd.readouterr().err)
    assert err.endswith("ValueError: in full\n")


def test_repeated_warning_is_logged_once_in_ten_seconds(
    log: logging.Logger, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    with console.log_to_stderr():
        for i in range(300):  # thirty seconds of a fault in every frame
            now[0] = 100 + i / 10
            log.warning("an event was dropped, %d so far", i)
            if i == 5:
                log.warning("something else")
    lines = capfd.readouterr().err.splitlines()
    assert [line.rpartition(", ")[2] for line in lines if "dropped" in line] == ["0 so far", "100 so far", "200 so far"]
    assert "warning: something else" in lines


def test_blocked_stderr_delays_nothing(log: logging.Logger) -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    while fills(write):
        pass
    os.set_blocking(write, True)
    stream = os.fdopen(write, "w")
    handler = console.StderrHandler(stream)
    log.addHandler(handler)
    letters = [f"{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(500)]
    try:
        began = time.monotonic()
        for name in letters:
            log.warning("sentence %s", name)
        logged = time.monotonic() - began
        handler.close()
        closed = time.monotonic() - began - logged
    finally:
        log.removeHandler(handler)
    assert logged < DEADLINE
    assert closed < DEADLINE
    drained = b""
    while b"sentence aa\n" not in drained:
        drained += os.read(read, 65536)
    os.close(read)
    stream.close()


def fills(pipe: int) -> bool:
    try:
        return os.write(pipe, b"x" * 4096) > 0
    except BlockingIOError:
        return False
