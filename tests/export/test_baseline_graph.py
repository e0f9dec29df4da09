"""Models of the baselines on a device: the graph computes the same as the trainer, on faces and on noise."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import get_args

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from edge.errors import ModelError, UsageError
from edge.kit import format as kits
from edge.kit import guard as onnx_guard
from edge.vision.onnx_session import load_session
from edge.vision.preprocess import FeatureSpec
from edge.vision.recognize import OUTPUTS, Recognizer
from export import graph, measure
from export.build import build_kit
from export.cli import app as export_app
from export.nodes import PRECISIONS, Precision
from export.verify import Reference, verify_kit
from tests.fixtures import kits as doors
from tests.fixtures.data import faces
from trainer import update
from trainer.baselines.registry import METHODS, DeviceMethod
from trainer.cli.main import app as trainer_app
from trainer.data.gallery import Gallery
from trainer.model import PlainModel
from trainer.training import fit
from trainer.types import Array

pytestmark = pytest.mark.slow

METHOD_NAMES = tuple(name for name in get_args(DeviceMethod) if name != "lclrrdl")


@cache
def model(name: str, people: int = 4) -> PlainModel:
    images, names = faces(people=people, photos=12, size=doors.SIZE, seed=0)
    first = np.arange(len(images)) % 12 < 6
    labels = np.array([f"person {i}" for i in names[first]])
    gallery = Gallery(images=images[first], labels=labels, sources=tuple(f"{i}.png" for i in range(first.sum())))
    spec = FeatureSpec(height=doors.SIZE[0], width=doors.SIZE[1], kind="both")
    method = METHODS[name]
    fewer = {"iterations": 20} if name in ("srw", "srs", "src") else {}  # a graph of 100 iterations loads for seconds
    return fit(gallery, spec, method.for_device(fewer), method=method.estimator, fpir=0.05)


def crops() -> Array:
    return np.concatenate([doors.held_out()[0], doors.strange_crops()])


def run(built: bytes, images: Array) -> dict[str, Array]:
    return dict(zip(OUTPUTS, load_session(built, "graph", prepack=False).run(OUTPUTS, {"crops": images}), strict=True))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ["lrrs", "srs", "src", "rbds", "lrr"])
def test_baseline_graph_equals_numpy_in_every_precision(name: str, precision: Precision) -> None:
    trained = model(name)
    built = graph.build(graph.factors_of(trained), trained.spec, precision)
    onnx_guard.check(built, onnx_guard.RECOGNIZER_OPERATORS, "graph")
    stored, X = graph.stored_in(built, trained.coding), trained.spec.vectors(crops()).T
    found = run(built, crops())
    np.testing.assert_allclose(found["scores"], stored.results(X)[0].T, atol=1e-4, rtol=0)
    for output, size in zip(("code_norm", "residual"), stored.results(X)[1:], strict=True):
        np.testing.assert_allclose(found[output], size, atol=1e-3, rtol=0)
    if precision == "fp32":
        expected = trained.scores(crops())
        np.testing.assert_allclose(found["scores"], expected, atol=1e-4, rtol=0)
        chosen = expected[np.arange(len(expected)), found["label"]]  # on a blank crop two labels may be equal
        np.testing.assert_allclose(chosen, expected.max(axis=1), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_baseline_graph_equals_numpy_for_any_number_of_iterations(name: str) -> None:
    """The table of iterations describes the graphs."""
    trained = model(name)
    images, factors = doors.held_out()[0], graph.factors_of(trained)
    steps = factors.steps(trained.spec.vectors(images).T)
    assert len(steps) == trained.coding.iterations
    for k in (1, 2, len(steps)):
        built = graph.build(factors.with_iterations(k), trained.spec)
        np.testing.assert_allclose(run(built, images)["scores"], steps[k - 1].T, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["srs", "lrrs"])
def test_baseline_kit_works_on_the_device(name: str, tmp_path: Path) -> None:
    """From the model file through the exporter to the device."""
    trained = model(name, people=8)
    trained.save(tmp_path / "model.npz")
    again = PlainModel.load(tmp_path / "model.npz")
    assert again.coding == trained.coding
    made = build_kit(again, precision="fp16")
    assert made.choice.coding.iterations <= trained.coding.iterations
    assert made.accuracies["fp16"] >= made.accuracies["fp32"] - measure.LOSS
    kit = kits.parse(made.kit)
    assert not kit.manifest.thresholds.provisional
    assert all(parity.holds for parity in verify_kit(kit, model=again))
    found = Recognizer(kit).recognize_crops(again.crops)
    names = np.array(again.labels)[again.crop_people]
    assert np.mean([face.nearest == person for face, person in zip(found, names, strict=True)]) > 0.95
    assert {face.label for face in found} <= {None, *again.labels}
    # The reference detects a changed weight.
    changed = onnx.load_model_from_string(kit.recognizer)
    tensor = next(t for t in changed.graph.initializer if t.name == "K_fp16")
    tensor.raw_data = (0.9 * np.frombuffer(tensor.raw_data, np.float16)).astype(np.float16).tobytes()
    scores = run(changed.SerializeToString(), crops())["scores"]
    assert np.abs(scores - Reference(kit).outputs(crops())["scores"]).max() > 1e-3


def test_commands_train_build_and_verify_a_baseline(tmp_path: Path) -> None:
    images, people = faces(people=6, photos=5, size=doors.SIZE, seed=3)
    np.savez(tmp_path / "photos.npz", images=images, labels=people)
    path, kit = str(tmp_path / "m.npz"), str(tmp_path / "m.kit")
    photos = str(tmp_path / "photos.npz")
    done = CliRunner().invoke(trainer_app, ["fit", photos, "--method", "srs", "--atoms", "3", "-o", path])
    assert done.exit_code == 0, done.output
    assert "18 atoms" in done.output
    assert "SRS" in done.output
    for command in (["build", path, "-o", kit, "--detector", "none"], ["verify", kit, "--model", path]):
        done = CliRunner().invoke(export_app, command)
        assert done.exit_code == 0, done.output


def test_options_of_lclrrdl_are_rejected_for_a_baseline(tmp_path: Path) -> None:
    for option, parameter in (("--parts=4x2", "parts"), ("--alpha=1", "alpha"), ("--augment", "copies")):
        done = CliRunner().invoke(trainer_app, ["fit", "photos", "--method", "srs", "-o", str(tmp_path / "m.npz"), option])
        assert isinstance(done.exception, UsageError)
        assert f"SRS has no {parameter}" in str(done.exception)


@pytest.mark.parametrize("name", ["srs", "lrr"])
def test_people_of_a_baseline_cannot_be_changed(name: str) -> None:
    trained = model(name)
    with pytest.raises(UsageError):
        update.forget(trained, trained.labels[0])


def test_llc_has_no_device_form(tmp_path: Path) -> None:
    """`trainer fit` does not offer it, and a model file of LLC from version 0.1 is rejected with a clear message."""
    assert "llc" not in METHOD_NAMES
    model("lrr").save(tmp_path / "llc.npz")
    with np.load(tmp_path / "llc.npz") as archive:
        arrays = dict(archive)
    header = json.loads(str(arrays.pop("header")))
    header["coding"] = {"kind": "llc", "neighbours": 5, "beta": 1e-4, "iterations": 1}
    np.savez(tmp_path / "llc.npz", header=np.array(json.dumps(header)), **arrays)
    done = CliRunner().invoke(export_app, ["build", str(tmp_path / "llc.npz"), "-o", str(tmp_path / "x.kit")])
    assert isinstance(done.exception, ModelError)
    assert "LLC has no device form" in str(done.exception)
    # A kit of LLC that version 0.1 built still runs, but cannot be compared with the trainer.
    kit = kits.parse(doors.with_manifest(doors.kit(), coding=header["coding"]))
    assert Recognizer(kit).recognize_crops(doors.held_out()[0][:1])
    with pytest.raises(ModelError, match="LLC has no device form"):
        verify_kit(kit)
