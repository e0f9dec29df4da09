"""`edge-export build --liveness`: published networks as one graph."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from edge.errors import EdgeError, UsageError
from edge.vision.onnx_session import load_session
from edge.vision.presentation import LivenessModel
from export import liveness
from tests.fixtures.liveness import SIDE, network, network_file, published_networks


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("order", ["bgr", "rgb"])
def test_graph_computes_the_mean_of_the_networks(order: Any) -> None:
    """The NumPy side: normalise, run the published file, softmax, class, mean."""
    networks = [network(order=order, mean=10.0, scale=0.5), network(name="two", zoom=4.0, live=0)]
    built = liveness.build(networks)
    crops = [np.random.default_rng(i).integers(0, 256, (SIDE, SIDE, 3), np.uint8) for i in range(2)]
    run = load_session(network_file(), "the network")
    expected = []
    for own, crop in zip(networks, crops, strict=True):
        channels = np.moveaxis(crop[..., ::-1] if own.order == "rgb" else crop, -1, 0).astype(np.float32)
        logits = run.run(None, {"data": (channels[None] - np.float32(own.mean)) * np.float32(own.scale)})[0]
        expected.append(softmax(logits)[0, own.live])
    assert LivenessModel(built.graph, built.spec).outputs(crops) == pytest.approx(np.mean(expected), abs=1e-6)


def test_same_networks_give_the_same_bytes() -> None:
    assert liveness.build([network()]).graph == liveness.build([network()]).graph


def test_unknown_file_needs_a_description(tmp_path: Path) -> None:
    file = tmp_path / "door.onnx"
    file.write_bytes(network_file())
    with pytest.raises(UsageError, match="not a known liveness model") as caught:
        liveness.parse(f"onnx:{file}")
    assert "zoom=" in caught.value.hint
    (found,) = liveness.parse(f"onnx:{file},zoom=2.7,side={SIDE},order=rgb,mean=127.5,scale=0.1,live=2")
    assert (found.zoom, found.side, found.order, found.mean, found.scale, found.live) == (2.7, SIDE, "rgb", 127.5, 0.1, 2)
    assert found.sha256 == hashlib.sha256(network_file()).hexdigest()
    assert found.sha256 in found.license


@pytest.mark.parametrize(
    "text",
    ["", "file.onnx", "onnx:", "onnx:zoom=2", "onnx:{},zoom=x", "onnx:{},zoom=0.5", "onnx:{},zoom=2.7,side=4",
     "onnx:{},size=80", "onnx:{},zoom=nan", "onnx:{},zoom=2.7,order=grb", "onnx:{},zoom=2.7,scale=0", "onnx:missing.onnx",
     "onnx:{0},{0},{0},{0},{0}"],
)  # fmt: skip
def test_wrong_option_is_one_sentence(text: str, tmp_path: Path) -> None:
    file = tmp_path / "door.onnx"
    file.write_bytes(network_file())
    with pytest.raises(EdgeError) as caught:
        liveness.parse(text.format(file))
    assert caught.value.message.endswith(".")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "changes",
    [{"model": b"not a model"}, {"side": 64}, {"model": network_file(operator="Sin")}, {"live": 7}],
)
def test_unusable_network_is_rejected(changes: dict[str, Any]) -> None:
    with pytest.raises(EdgeError):
        liveness.build([network(**changes)])


@pytest.mark.parametrize("threshold", [0.0, 0.04, 1.0, -1.0, float("nan")])
def test_threshold_must_be_a_probability(threshold: float) -> None:
    with pytest.raises(UsageError, match=r"between 0\.05 and 0\.99"):
        liveness.build([network()], threshold)


def test_published_models_are_known_by_their_checksum() -> None:
    networks = published_networks()
    assert [(own.name, own.zoom, own.side, own.order, own.live) for own in networks] == [
        ("MiniFASNetV2", 2.7, 80, "bgr", 1),
        ("MiniFASNetV1SE", 4.0, 80, "bgr", 1),
    ]
    built = liveness.build(networks)
    assert "Apache License" in built.license
    assert "TERMS AND CONDITIONS" in built.license
    onnx.checker.check_model(built.graph, full_check=True)
