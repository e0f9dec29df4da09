"""onnxruntime as a door terminal needs it: silent, one thread, no spinning, no telemetry. Loaded on first use."""

from __future__ import annotations

import os
from typing import Any

from edge.errors import KitError


def onnxruntime() -> Any:
    """The package, with telemetry off: recent ones otherwise write a device id and a database on import."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime as ort

    if hasattr(ort, "disable_telemetry_events"):
        ort.disable_telemetry_events()
    return ort


def gains_by_packing(coding: str) -> bool:
    """Whether a graph with this kind of coding reads each matrix about once. Where every iteration has a node that reads the
    same one, its copies take many times the memory and fall out of the cache: l1 is half as quick again without them.
    """
    return coding not in ("l1", "src", "lrrs")


def session(graph: bytes, name: str, *, threads: int = 1, pack: bool = True) -> Any:
    """An InferenceSession for a graph that edge.kit.guard has passed.

    `pack` rearranges each matrix for quicker products, with a copy for each node that reads it (see `gains_by_packing`).
    """
    ort = onnxruntime()
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.load_model_format", "ONNX")
    # An idle thread that spins burns a core of the device.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    options.add_session_config_entry("session.disable_prepacking", "0" if pack else "1")
    try:
        return ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common base
        reason = str(error).splitlines()[0][:200]
        raise KitError(
            f"onnxruntime {ort.__version__} cannot load {name} ({reason}).", "Install another version of onnxruntime."
        ) from None
