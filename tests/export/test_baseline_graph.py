"""Models of the baselines on a device: the graph computes what the trainer computes, on faces and on rubbish."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from edge.errors import UsageError
from edge.kit import format as kits
from edge.kit import guard as onnx_guard
from edge.vision.onnx_session import load_session
from edge.vision.preprocess import FeatureSpec
from edge.vision.recognize import OUTPUTS, Recognizer
from export import graph
from export import measure as calibrate
from export.build import build
from export.cli import app as exporting
from export.nodes import PRECISIONS, Precision
from export.verify import Reference, verify
from tests.fixtures import kits as doors
from tests.fixtures.data import faces
from trainer import update as enrol
from trainer.baselines.registry import METHODS, DeviceMethod
from trainer.cli.main import app as training
from trainer.data.gallery import Gallery
from trainer.model import Model
from trainer.training import fit
from trainer.types import Array

METHOD_NAMES = tuple(name for name in get_args(DeviceMethod) if name != "lclrrdl")


@cache
def model(name: str, people: int = 4) -> Model:
    images, names = faces(people=people, photos=12, size=doors.SIZE, seed=0)
    first = np.arange(len(images)) % 12 < 6
    labels = np.array([f"person {i}" for i in names[first]])
    gallery = Gallery(images=images[first], labels=labels, sources=tuple(f"{i}.png" for i in range(first.sum())))
    spec = FeatureSpec(height=doors.SIZE[0], width=doors.SIZE[1], kind="both")
    method = METHODS[name]
    fewer = {"iterations": 20} if name in ("srw", "srs", "src") else {}  # a graph of all loads for seconds
    return fit(gallery, spec, method.for_device(fewer), method=method.estimator, fpir=0.05)


def crops() -> Array:
    return np.concatenate([doors.held_out()[0], doors.strange_crops()])


def vectors(trained: Model, images: Array) -> Array:
    """(d, n)."""
    return trained.spec.vectors(images).T


def graph_of(trained: Model, precision: Precision = "fp32") -> bytes:
    return graph.build(graph.factors_of(trained), trained.spec, trained.coding, precision)


def run(built: bytes, images: Array) -> dict[str, Array]:
    return dict(zip(OUTPUTS, load_session(built, "graph", prepack=False).run(OUTPUTS, {"crops": images}), strict=True))


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_fp32_equals_the_model(name: str) -> None:
    trained = model(name)
    for images in (crops(), trained.crops):
        found, wanted = run(graph_of(trained), images), trained.scores(images)
        np.testing.assert_allclose(found["scores"], wanted, atol=1e-4, rtol=0)
        chosen = wanted[np.arange(len(images)), found["label"]]  # on a crop that shows nothing two may be level
        np.testing.assert_allclose(chosen, wanted.max(axis=1), atol=1e-6, rtol=0)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", METHOD_NAMES)
def test_every_precision_equals_numpy_with_the_same_weights(name: str, precision: Precision) -> None:
    trained = model(name)
    built = graph_of(trained, precision)
    onnx_guard.check(built, onnx_guard.RECOGNIZER_OPERATORS, "graph")
    stored, X = graph.stored_in(built, trained.coding), vectors(trained, crops())
    found = run(built, crops())
    np.testing.assert_allclose(found["scores"], stored.scores(X, trained.coding).T, atol=1e-4, rtol=0)
    for output, size in zip(("code_norm", "residual"), stored.sizes(X, trained.coding), strict=True):
        np.testing.assert_allclose(found[output], size, atol=1e-3, rtol=0)


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_any_number_of_iterations(name: str) -> None:
    """The table by which they are chosen is that of the graphs."""
    trained = model(name)
    images, factors = doors.held_out()[0], graph.factors_of(trained)
    steps: Any = factors.steps(vectors(trained, images), trained.coding)
    assert len(steps) == trained.coding.iterations
    for k in {1, 2, min(7, len(steps)), len(steps)} & set(range(1, len(steps) + 1)):
        built = graph.build(factors, trained.spec, replace(trained.coding, iterations=k))
        np.testing.assert_allclose(run(built, images)["scores"], steps[k - 1].T, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["srs", "llc", "lrrs"])
def test_a_kit_for_the_door(name: str, tmp_path: Path) -> None:
    """Through the file of the model, the exporter with all it measures, and the device."""
    trained = model(name, people=8)
    trained.save(tmp_path / "model.npz")
    again = Model.load(tmp_path / "model.npz")
    assert again.coding == trained.coding
    made = build(again, precision="fp16")
    assert made.choice.coding.iterations <= trained.coding.iterations
    assert made.accuracies["fp16"] >= made.accuracies["fp32"] - calibrate.LOSS
    assert not made.thresholds.provisional
    kit = kits.parse(made.kit)
    assert all(parity.holds for parity in verify(kit, model=again))
    found = Recognizer(kit).recognize_crops(again.crops)
    names = np.array(again.labels)[again.crop_people]
    assert np.mean([seen.nearest == person for seen, person in zip(found, names, strict=True)]) > 0.95
    assert {seen.label for seen in found} <= {None, *again.labels}


def test_verify_sees_a_changed_weight() -> None:
    made = build(model("srs"))
    kit = kits.parse(made.kit)
    reference = Reference(kit)
    spoiled = onnx.load_model_from_string(kit.recognizer)
    tensor = next(t for t in spoiled.graph.initializer if t.name == "K")
    tensor.raw_data = (0.9 * np.frombuffer(tensor.raw_data, np.float32)).tobytes()
    found = run(spoiled.SerializeToString(), crops())
    assert np.abs(found["scores"] - reference.outputs(crops())["scores"]).max() > 1e-3


def test_the_commands(tmp_path: Path) -> None:
    images, people = faces(people=6, photos=5, size=doors.SIZE, seed=3)
    np.savez(tmp_path / "photos.npz", images=images, labels=people)
    path, kit = str(tmp_path / "m.npz"), str(tmp_path / "m.kit")
    done = CliRunner().invoke(training, ["fit", str(tmp_path / "photos.npz"), "--method", "srs", "--atoms", "3", "-o", path])
    assert done.exit_code == 0, done.output
    assert "18 atoms" in done.output
    assert "SRS" in done.output
    for command in (["build", path, "-o", kit], ["verify", kit, "--model", path]):
        done = CliRunner().invoke(exporting, command)
        assert done.exit_code == 0, done.output


@pytest.mark.parametrize(("option", "said"), [("--parts=4x2", "parts"), ("--alpha=1", "alpha"), ("--augment", "copies")])
def test_what_only_lclrrdl_has_is_refused(option: str, said: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(training, ["fit", "photos", "--method", "srs", "-o", str(tmp_path / "m.npz"), option])
    assert isinstance(done.exception, UsageError)
    assert f"SRS has no {said}" in str(done.exception)


@pytest.mark.parametrize("name", ["srs", "lrr"])
def test_nobody_comes_or_goes(name: str) -> None:
    trained = model(name)
    with pytest.raises(UsageError, match="Nobody can be added"):
        enrol.forget(trained, trained.labels[0])


def test_llc_alone_needs_a_transpose() -> None:
    used = {
        name: {node.op_type for node in onnx.load_model_from_string(graph_of(model(name))).graph.node} for name in METHOD_NAMES
    }
    assert [name for name in METHOD_NAMES if "Transpose" in used[name]] == ["llc"]
    assert set.union(*used.values()) <= onnx_guard.RECOGNIZER_OPERATORS
