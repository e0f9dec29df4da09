"""Networks as features: only usable networks are accepted, and the kit computes the same as the trainer."""

from __future__ import annotations

import copy
import hashlib
import json
import pickle
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from sklearn.base import clone
from typer.testing import CliRunner

from edge.cli.main import app as edge_app
from edge.errors import KitDamagedError, KitUnsafeError, ModelError, TrainingError, UsageError
from edge.kit import format as kits
from edge.kit import guard as onnx_guard
from edge.kit.manifest import ABSOLUTE, Manifest, Thresholds
from edge.vision.preprocess import FeatureSpec, to_grey, unit_rows
from edge.vision.recognize import Recognizer
from export import graph
from export.build import build_kit
from export.graph import Factors
from export.pack import bundle
from export.verify import verify_kit
from tests.fixtures.data import write_photos
from tests.fixtures.embedding import LENGTH, SIDE, embedding_model, network_crops, network_model
from trainer.cli.main import app
from trainer.data.gallery import Gallery, load_gallery
from trainer.downloads import SFACE
from trainer.evaluation.inside import as_images
from trainer.features.known import KNOWN_NETWORKS, KnownNetwork
from trainer.features.network import Channels, Network, checked, prepared
from trainer.features.spec import from_settings, parse_network
from trainer.method.estimator import LCLRRDL
from trainer.model import Model
from trainer.training import NOT_ALIGNED, fit
from trainer.tuning import tune

L21 = partial(LCLRRDL, coding="l21")


def kit_of(trained: Model) -> bytes:
    return bundle(
        trained,
        graph.build(Factors.of(trained), trained.spec),
        coding=trained.coding,
        precision="fp32",
        thresholds=Thresholds(confidence=0.5, residual=0.5, provisional=True),
        calibration={},
        detector=None,
    )


# --- Which files are accepted ---


@pytest.mark.parametrize(("opset", "channels"), [(11, "rgb"), (13, "bgr"), (17, "grey")])
def test_vectors_are_those_of_the_published_file(opset: int, channels: Channels) -> None:
    data = embedding_model(opset=opset, weights_as_inputs=opset < 13)
    images = network_crops(colour=channels != "grey")[0][:6]
    run = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    planes = [images] * 3 if channels == "grey" else [images[..., "bgr".index(letter)] for letter in channels]
    given = (np.stack(planes, axis=1).astype(np.float32) - 20) * 0.5
    wanted = unit_rows(np.concatenate([run.run(None, {"data": given[i : i + 1]})[0] for i in range(6)]))
    found = checked(data, mean=20, scale=0.5, channels=channels).vectors(images)
    assert found.shape == (6, LENGTH)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert np.abs(found[0] - found[5]).max() > 0.01


def test_order_of_channels_matters_in_colour_only() -> None:
    data, images = embedding_model(), network_crops()[0][:3]
    rgb, bgr, grey = (Network(model=data, channels=channels) for channels in ("rgb", "bgr", "grey"))
    assert np.abs(rgb.vectors(images) - bgr.vectors(images)).max() > 0.01
    np.testing.assert_array_equal(rgb.vectors(images), bgr.vectors(images[..., ::-1]))
    equal = images[..., :1].repeat(3, axis=3)
    for colour in (rgb, bgr):
        np.testing.assert_array_equal(colour.vectors(equal), grey.vectors(images[..., 0]))
    for network, wrong in ((rgb, images[..., 0]), (grey, images)):
        with pytest.raises(ValueError, match="crops must be N x 112 x 112"):
            network.vectors(wrong)
    with pytest.raises(UsageError, match="rgb"):
        Network(model=data, channels="rbg")  # type: ignore[arg-type]


@pytest.mark.parametrize("cached", [1, 1000])
def test_each_network_has_its_own_cache(cached: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.features.network.MAX_CACHED", cached)
    data, images = embedding_model(), network_crops()[0][:3]
    plain, scaled = Network(model=data), Network(model=data, mean=100, scale=0.1)
    before = plain.vectors(images)
    assert np.abs(scaled.vectors(images) - before).max() > 1e-3
    np.testing.assert_array_equal(plain.vectors(images[::-1]), before[::-1])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (embedding_model(side=96), "input is 1x3x96x96"),
        (embedding_model(inputs=("data", "mask")), "input is 1x3x112x112 and "),
        (embedding_model(outputs=("fc1", "conv")), "2 output"),
        (embedding_model(outputs=("bent",)), "not two vectors"),
        (embedding_model(shape=(1, LENGTH)), "two faces at once"),
        (embedding_model(operator="Tanh"), "operator 'Tanh', which is not listed"),
        (embedding_model(opset=21), "opset 21"),
        (embedding_model()[:-5000], "not a readable ONNX file|lacks a part"),
        (b"", "lacks a part|not a readable ONNX file"),
    ],
    ids=["size", "inputs", "outputs", "picture", "one at a time", "operator", "opset", "cut short", "empty"],
)
def test_unusable_network_is_rejected(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(data)
    with pytest.raises(UsageError, match=f"model.onnx cannot be used as features: .*({message})") as caught:
        parse_network(f"onnx:{tmp_path}/model.onnx")
    assert caught.value.hint


def test_network_is_named_by_the_features_option(tmp_path: Path) -> None:
    file = tmp_path / "a,b.onnx"
    file.write_bytes(embedding_model())
    assert parse_network("both") is None
    assert parse_network(f"onnx:{file}") == Network(model=file.read_bytes())
    assert parse_network(f"onnx:{file},scale=0.5,mean=127.5") == Network(model=file.read_bytes(), mean=127.5, scale=0.5)
    beside = FeatureSpec.for_crop(SIDE, SIDE, "gradient")
    assert parse_network(f"onnx:{file},mean=2+gradient") == Network(model=file.read_bytes(), mean=2, own=beside)
    assert parse_network(f"onnx:{file},order=bgr") == Network(model=file.read_bytes(), channels="bgr")
    files = (f"onnx:{file},order=grey", f"onnx:{file},mean=much", f"onnx:{file},mean=1,mean=2", "onnx:/no/such.onnx", "onnx:")
    for wrong in ("colour", "both+pixels", "sface+colour", *files):
        with pytest.raises(UsageError):
            parse_network(wrong)
    for wrong in ("mean=nan", "scale=0"):
        with pytest.raises(UsageError, match="finite"):
            parse_network(f"onnx:{file},{wrong}")


def test_input_of_an_unknown_network_is_assumed_and_reported(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(embedding_model())
    said: list[str] = []
    parse_network(f"onnx:{tmp_path}/model.onnx,mean=127.5", said.append)
    (note,) = said
    assert "model.onnx is not a known network: order=rgb, mean=127.5, scale=1 is assumed." in note
    said.clear()
    parse_network(f"onnx:{tmp_path}/model.onnx,order=rgb,mean=0,scale=1", said.append)
    assert said == []


@pytest.mark.parametrize("commercial", [True, False])
def test_known_network_has_its_input_and_licence(commercial: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = network_model().spec.network
    assert network is not None
    known = KnownNetwork(
        sha256=network.sha256, channels="bgr", mean=20, scale=0.5, license="a test, for nothing", commercial=commercial
    )
    monkeypatch.setitem(KNOWN_NETWORKS, known.sha256, known)
    (tmp_path / "renamed.onnx").write_bytes(network.model)
    said: list[str] = []
    found = parse_network(f"onnx:{tmp_path}/renamed.onnx", said.append)
    assert found == Network(model=network.model, channels="bgr", mean=20, scale=0.5)
    assert said == ([] if commercial else ["Warning: a kit with these features contains a test, for nothing."])
    found = parse_network(f"onnx:{tmp_path}/renamed.onnx,order=rgb,mean=0")
    assert found == Network(model=network.model, channels="rgb", mean=0, scale=0.5)
    assert b"recognizer.onnx contains a test, for nothing.\n" in kits.unpack(kit_of(network_model()))[kits.LICENSE]


def test_table_of_known_networks() -> None:
    assert KNOWN_NETWORKS[SFACE.sha256].commercial
    for sha256, known in KNOWN_NETWORKS.items():
        assert re.fullmatch("[0-9a-f]{64}", sha256)
        assert known.channels in ("rgb", "bgr")
        assert known.commercial or "non-commercial" in known.license


def test_own_features_are_appended() -> None:
    images = network_crops()[0][:3]
    spec = FeatureSpec.for_crop(SIDE, SIDE, "both")
    alone = checked(embedding_model())
    together = replace(alone, own=spec, share=0.6)
    found = together.vectors(images)
    assert found.shape == (3, together.length) == (3, LENGTH + spec.length)
    np.testing.assert_allclose(found[:, :LENGTH], 0.6 * alone.vectors(images), atol=1e-6)
    grey = images @ np.array([0.114, 0.587, 0.299])  # of blue, green, red
    np.testing.assert_allclose(found[:, LENGTH:], 0.8 * spec.vectors(grey), atol=1e-5)
    with pytest.raises(UsageError, match="112x112"):
        replace(alone, own=FeatureSpec(height=80, width=64))
    with pytest.raises(UsageError, match="share"):
        replace(alone, share=1.5)


# --- In training ---


def test_network_is_a_parameter_of_the_estimator() -> None:
    images, names = network_crops()
    network = checked(embedding_model())
    estimator = clone(LCLRRDL(atoms_per_class=4, coding="l21", features=network, eta=1e-3))
    assert estimator.features == network
    assert estimator.fit(images[::2], names[::2]).score(images[1::2], names[1::2]) > 0.8
    with pytest.raises(ValueError, match="colour crops of 112x112"):
        estimator.predict(images[..., 0])
    red = np.concatenate([images[::2], np.full((1, SIDE, SIDE, 3), (0, 0, 200), np.uint8)])
    with pytest.raises(TrainingError, match="blank"):
        clone(estimator).fit(red, [*names[::2], "person 0"])
    assert pickle.loads(pickle.dumps(network)) == copy.deepcopy(network) == network
    assert "bytes" not in repr(network)
    assert len(repr(network)) < 120


def test_network_can_be_tuned() -> None:
    images, names = network_crops()
    grid = {"features": ("onnx:x",), "lam": (25.0,), "alpha": (0.5,), "gamma": (0.05,), "eta": (1e-3, 1e3)}
    spec = checked(embedding_model())
    trials = tune(images, names, spec_for=lambda _: spec, estimator=L21, grid=grid, folds=2, jobs=1)
    assert {trial.parameters["features"] for trial in trials} == {"onnx:x"}
    assert trials[0].accuracy > 50


def test_model_file_contains_the_network(tmp_path: Path) -> None:
    trained = network_model()
    trained.save(tmp_path / "door.npz")
    loaded = Model.load(tmp_path / "door.npz")
    assert loaded.spec == trained.spec
    np.testing.assert_array_equal(loaded.scores(network_crops()[0]), trained.scores(network_crops()[0]))
    facts = json.loads(json.dumps(loaded.facts()))
    assert facts["features"]["sha256"] == hashlib.sha256(embedding_model()).hexdigest()


def test_other_network_in_the_model_file_is_rejected(tmp_path: Path) -> None:
    trained = network_model()
    trained.save(tmp_path / "door.npz")
    with np.load(tmp_path / "door.npz") as archive:
        contents = dict(archive)
    contents["backbone"] = np.frombuffer(embedding_model(opset=13), np.uint8)
    np.savez(tmp_path / "other.npz", **contents)
    del contents["backbone"]
    np.savez(tmp_path / "without.npz", **contents)
    for name in ("other", "without"):
        with pytest.raises(ModelError):
            Model.load(tmp_path / f"{name}.npz")


def test_own_features_can_be_shown_as_images() -> None:
    alone, together, images = network_model().spec, network_model("both").spec, network_crops()[0][:3]
    assert together.network is not None
    assert together.own is not None
    ours = as_images(together.own.vectors(to_grey(images)).T, together.own)
    shown = as_images(together.vectors(images).T, together)
    assert ours is not None
    assert shown is not None
    np.testing.assert_allclose(shown, np.sqrt(1 - together.network.share**2) * ours, rtol=1e-5)
    assert as_images(alone.vectors(images).T, alone) is None


def test_spec_comes_back_from_its_settings() -> None:
    for beside in (None, FeatureSpec.for_crop(SIDE, SIDE)):
        network = Network(model=embedding_model(), mean=1, scale=2, own=beside)
        assert from_settings(json.loads(json.dumps(network.settings())), network.model) == network
    spec = FeatureSpec(height=20, width=16, kind="pixels")
    assert from_settings(spec.settings(), None) == spec


def test_networks_of_older_files_are_grey(tmp_path: Path) -> None:
    trained = network_model("both", "grey")
    settings = trained.spec.settings()
    assert "channels" not in settings  # as version 0.2 wrote it: kits of that version still match their model
    assert trained.spec.network is not None
    assert from_settings(settings, trained.spec.network.model) == trained.spec
    assert json.loads(kits.unpack(kit_of(trained))[kits.MANIFEST])["crop"] == {"height": SIDE, "width": SIDE}
    trained.save(tmp_path / "door.npz")
    loaded = Model.load(tmp_path / "door.npz")
    assert loaded.crops.shape[1:] == loaded.spec.crop_shape == (SIDE, SIDE)
    assert all(parity.holds for parity in verify_kit(kits.parse(kit_of(trained)), model=loaded))


def test_commands_accept_a_network(tmp_path: Path) -> None:
    images, names = network_crops(colour=False)
    np.savez(tmp_path / "faces.npz", images=images[:, ::2, ::2], labels=names)
    (tmp_path / "model.onnx").write_bytes(embedding_model())
    features = ["--features", f"onnx:{tmp_path}/model.onnx", "--coding", "l21"]
    arguments = ["fit", str(tmp_path / "faces.npz"), *features, "-o", str(tmp_path / "door.npz")]
    rejected = CliRunner().invoke(app, [*arguments, "--size", "80x64"])
    assert isinstance(rejected.exception, UsageError)
    assert "112x112" in str(rejected.exception)
    grid = ["--lam", "25", "--alpha", "0.5", "--gamma", "0.05", "--eta", "1", "--folds", "2", "--jobs", "1"]
    tuned = ["tune", str(tmp_path / "faces.npz"), *features, *grid, "-o", str(tmp_path / "tuned.toml")]
    assert CliRunner().invoke(app, tuned, catch_exceptions=False).exit_code == 0
    config = ["--config", str(tmp_path / "tuned.toml"), "--no-calibrate"]
    done = CliRunner().invoke(app, [*arguments[:2], *config, *arguments[-2:]], catch_exceptions=False)
    assert done.exit_code == 0
    assert NOT_ALIGNED in done.output
    loaded = Model.load(tmp_path / "door.npz")
    assert loaded.crops.shape[1:] == (SIDE, SIDE, 3)
    assert (loaded.crops == loaded.crops[..., :1]).all(), "grey arrays have three equal channels"
    assert (loaded.parameters["eta"], loaded.parameters["lam"]) == (1, 25)
    assert loaded.parameters["experts"]
    assert loaded.parameters["covered"]
    assert loaded.confidence == ABSOLUTE


def test_commands_keep_the_colour_of_photos(tmp_path: Path) -> None:
    images, names = network_crops()
    photo = np.arange(len(images)) % 8
    later = names == "person 4"
    write_photos(tmp_path / "train", images[(photo < 5) & ~later], names[(photo < 5) & ~later])
    write_photos(tmp_path / "later", images[(photo < 5) & later], names[(photo < 5) & later])
    write_photos(tmp_path / "test", images[photo >= 5], names[photo >= 5])
    (tmp_path / "model.onnx").write_bytes(embedding_model())
    door = str(tmp_path / "door.npz")
    fitting = ["--cropped", "--features", f"onnx:{tmp_path}/model.onnx", "--no-calibrate", "-o", door]
    results = ["--json", str(tmp_path / "found.json"), "--report", str(tmp_path / "page.html")]
    for arguments in (
        ["fit", str(tmp_path / "train"), *fitting],
        ["enrol", door, str(tmp_path / "later" / "person 4")],
        ["evaluate", door, str(tmp_path / "test"), *results],
    ):
        assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0
    loaded = Model.load(door)
    wanted = {image.tobytes() for image in images[photo < 5]}
    assert {crop.tobytes() for crop in loaded.crops} == wanted
    found = json.loads((tmp_path / "found.json").read_text())["rank1"]
    assert found["count"] > 0.8 * found["of"]


# --- In the kit ---


@pytest.mark.parametrize(("own", "channels"), [("", "rgb"), ("gradient", "bgr"), ("both", "rgb"), ("both", "grey")])
def test_kit_computes_what_the_trainer_computes(own: str, channels: Channels) -> None:
    trained = network_model(own, channels)
    kit = kits.parse(kit_of(trained))
    assert kit.manifest.features == trained.spec.settings()
    assert kit.manifest.crop_shape == trained.spec.crop_shape == trained.crops.shape[1:]
    images = network_crops(colour=channels != "grey")[0][5::8]  # held out
    np.testing.assert_allclose(Recognizer(kit).outputs(images)["scores"], trained.scores(images), atol=1e-5)
    assert all(parity.holds for parity in verify_kit(kit, model=trained))


def test_kit_rejects_crops_of_the_other_kind() -> None:
    colour, grey = network_crops()[0][:2], network_crops(colour=False)[0][:2]
    for trained, wrong in ((network_model(), grey), (network_model("", "grey"), colour)):
        with pytest.raises(ValueError, match=r"crops must be uint8, N x 112 x 112.*, not uint8 \(2, 112, 112"):
            Recognizer(kits.parse(kit_of(trained))).recognize_crops(wrong)


def test_crop_without_contrast_in_any_channel_has_no_confidence() -> None:
    recognizer = Recognizer(kits.parse(kit_of(network_model())))
    even = np.full((3, SIDE, SIDE, 3), (30, 90, 200), np.uint8)
    even[1, 10:50, 10:50, 1] += 40  # a square in one channel
    even[2, 10:50, 10:50] += 8
    assert (recognizer.outputs(even)["confidence"] != 0).tolist() == [False, True, False]


def test_photos_are_recognised_in_colour(tmp_path: Path) -> None:
    """From colour photos on disk to a kit: the channels of a file arrive in the order of the network."""
    images, names = network_crops()
    write_photos(tmp_path / "photos", images, names)
    network = checked(embedding_model())
    found = load_gallery(tmp_path / "photos", cropped=True, colour=network.colour)
    first = np.arange(len(images)) % 8 < 5
    trained = fit(found.selected(first), network, {"atoms_per_class": 4, "coding": "l21", "eta": 1e-3, "copies": 2})
    kit = tmp_path / "door.kit"
    kit.write_bytes(kit_of(trained))
    photos = [str(tmp_path / "photos" / source) for source in np.array(found.sources)[~first]]
    done = CliRunner().invoke(edge_app, ["image", *photos, "--cropped", "--kit", str(kit)], catch_exceptions=False)
    nearest = [json.loads(line)["nearest"] for line in done.stdout.splitlines()]
    wanted = trained.predict(found.images[~first])
    assert nearest == wanted.tolist()
    assert np.mean(wanted == found.labels[~first]) > 0.8


@pytest.mark.slow
def test_built_kit_passes_the_parity_check() -> None:
    trained, (images, names) = network_model(), network_crops()
    built = build_kit(trained, precision="int8", allow_loss=True)
    held_out = np.arange(len(images)) % 8 >= 5
    people = Gallery(images=images[held_out], labels=names[held_out], sources=tuple(map(str, range(held_out.sum()))))
    assert all(parity.holds for parity in verify_kit(kits.parse(built.kit), people, trained))
    assert built.graph_bytes["int8"] < built.graph_bytes["fp16"] < built.graph_bytes["fp32"]


def test_network_too_large_for_a_kit_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kits, "MAX_BYTES", 200_000)
    with pytest.raises(UsageError, match="--precision int8"):
        build_kit(network_model())


def test_result_does_not_depend_on_the_number_of_faces() -> None:
    recognizer = Recognizer(kits.parse(kit_of(network_model())))
    images = network_crops()[0][:4]
    together = recognizer.outputs(images)["scores"]
    alone = np.concatenate([recognizer.outputs(images[i : i + 1])["scores"] for i in range(4)])
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_changed_weight_of_the_network_is_rejected() -> None:
    data = bytearray(kit_of(network_model()))
    network = network_model().spec.network
    assert network is not None
    weights = next(t for t in prepared(network.model).graph.initializer if len(t.dims) == 2)
    at = bytes(data).index(weights.raw_data[:64])
    data[at + 17] ^= 1
    with pytest.raises(KitDamagedError):
        kits.parse(bytes(data))


def test_network_operators_are_rejected_in_kits_without_network() -> None:
    parts = kits.unpack(kit_of(network_model()))
    manifest = Manifest.from_bytes(parts[kits.MANIFEST])
    ours = FeatureSpec(height=SIDE, width=SIDE).settings()
    parts[kits.MANIFEST] = replace(manifest, features=ours).to_bytes()
    with pytest.raises(KitUnsafeError, match="is not listed"):
        kits.parse(kits.pack(parts))


def test_operator_lists_are_short() -> None:
    used = {node.op_type for node in prepared(embedding_model()).graph.node}
    assert used - onnx_guard.RECOGNIZER_OPERATORS == {"BatchNormalization", "Flatten", "PRelu"}
    assert not onnx_guard.NETWORK_OPERATORS & onnx_guard.RECOGNIZER_OPERATORS
    for dangerous in ("Loop", "If", "Scan", "Constant", "RandomNormal", "ConstantOfShape"):
        assert dangerous not in onnx_guard.NETWORK_OPERATORS


def test_kit_build_is_deterministic() -> None:
    assert kit_of(network_model()) == kit_of(copy.deepcopy(network_model()))
