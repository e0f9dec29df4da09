"""onnxruntime, configured for a small device: no log output, one thread, no spinning, no telemetry. Loaded on first use."""

import os
from typing import Any

from edge.errors import KitError

ITERATIVE_CODINGS = ("l1", "src", "lrrs")
"""They read the same matrix in many nodes. Its copies do not fit the cache: l1 takes 1.5 times as long with prepacking."""


def import_onnxruntime() -> Any:
    """Import onnxruntime with telemetry off: recent versions otherwise write a device id and a database."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime as ort

    if hasattr(ort, "disable_telemetry_events"):
        ort.disable_telemetry_events()
    return ort


def load_session(graph: bytes, name: str, *, threads: int = 1, prepack: bool = True) -> Any:
    """Create an InferenceSession for a graph that edge.kit.guard accepted. `name` is for the error message.

    `prepack` copies each matrix for every node that reads it, in an order that multiplies faster (not for ITERATIVE_CODINGS).
    """
    ort = import_onnxruntime()
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.load_model_format", "ONNX")
    # An idle thread that spins uses a whole core.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    options.add_session_config_entry("session.disable_prepacking", "0" if prepack else "1")
    try:
        session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common base class
        reason = str(error).splitlines()[0][:200]
        raise KitError(
            f"onnxruntime {ort.__version__} cannot load {name} ({reason}).", "Install another version of onnxruntime."
        ) from None
    if hasattr(session, "_model_bytes"):  # kept for a change of the provider, which never happens: tens of megabytes
        session._model_bytes = None
    return session
