"""How long the face recognisers that others use take for one face, with one thread. Runs in an environment of its own.

python bench_peers.py FOLDER      a folder with their weights; prints one JSON object {name: {"p50_us": .., "p95_us": ..}}
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "ORT_DISABLE_TELEMETRY": "1"}

import numpy as np

RUNS = 60


def timed(call: Callable[[], Any]) -> dict[str, float]:
    for _ in range(5):
        call()
    taken = []
    for _ in range(RUNS):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    p50, p95 = np.percentile(taken, [50, 95]) * 1e6
    return {"p50_us": float(p50), "p95_us": float(p95)}


def with_opencv(path: Path) -> dict[str, float]:
    import cv2

    cv2.setNumThreads(1)
    recognizer = cv2.FaceRecognizerSF.create(str(path), "")
    face = np.random.default_rng(0).integers(0, 256, (112, 112, 3), np.uint8)
    return timed(lambda: recognizer.feature(face))


def with_onnxruntime(path: Path) -> dict[str, float]:
    """Its weights are listed as inputs too, which keeps the runtime from folding them: off that list, it is quicker."""
    import onnx
    import onnxruntime as ort

    model = onnx.load(path)
    data = next(given for given in model.graph.input if given.name == "data")
    del model.graph.input[:]
    model.graph.input.append(data)
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    face = np.random.default_rng(0).uniform(0, 255, (1, 3, 112, 112)).astype(np.float32)
    return timed(lambda: session.run(None, {"data": face}))


def with_dlib(path: Path) -> dict[str, float]:
    import dlib  # type: ignore[import-not-found]

    model = dlib.face_recognition_model_v1(str(path))
    face = np.random.default_rng(0).integers(0, 256, (150, 150, 3), np.uint8)
    return timed(lambda: model.compute_face_descriptor(face))


WAYS = {
    "SFace fp32, OpenCV": (with_opencv, "sface_fp32.onnx"),
    "SFace fp32, onnxruntime": (with_onnxruntime, "sface_fp32.onnx"),
    "SFace int8, onnxruntime": (with_onnxruntime, "sface_int8.onnx"),
    "dlib ResNet": (with_dlib, "dlib.dat"),
}


def main(folder: Path) -> None:
    found: dict[str, Any] = {}
    for name, (measure, file) in WAYS.items():
        if not (folder / file).exists():
            found[name] = {"skipped": "its weights could not be had"}
            continue
        try:
            found[name] = measure(folder / file)
        except Exception as error:  # whatever a peer fails with, the others are still measured
            found[name] = {"skipped": (str(error).strip().splitlines() or [type(error).__name__])[-1][:120]}
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
