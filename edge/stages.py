"""Stages of a frame: their names, and the timer that runs around each of them."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

STAGES = DETECT, ALIGN, RECOGNISE, LIVENESS, DECIDE, WHOLE = "detect", "align", "recognise", "liveness", "decide", "whole"
"""Find faces; place their landmarks, crop them and judge their quality; recognise them; score whether recognised faces are
live; decide; the whole frame."""

StageTimer = Callable[[str], AbstractContextManager[object]]
"""Called with a stage name. Returns a context manager that is open while the stage runs."""

untimed: StageTimer = nullcontext
