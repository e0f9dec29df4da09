"""Presets, and TOML files of parameters."""

from __future__ import annotations

from inspect import signature
from pathlib import Path

import pytest

from edge.errors import UsageError
from trainer.method.estimator import LCLRRDL
from trainer.presets import DEFAULT, PRESETS, default_preset, from_toml, to_toml


def test_presets_set_parameters_of_the_method() -> None:
    assert set(PRESETS) == {"network", "tiny", "minimal", "paper"}
    for preset in PRESETS.values():
        assert set(preset) <= set(signature(LCLRRDL).parameters)
    assert DEFAULT == "network"
    for features, name in ((None, DEFAULT), ("pixels", "tiny"), ("both", "tiny"), ("sface", DEFAULT), ("onnx:x", DEFAULT)):
        assert default_preset(features) == name


def test_toml_file_returns_the_same_parameters(tmp_path: Path) -> None:
    parameters = {"features": "both", "lam": 25.0, "eta": 1e-3, "atoms_per_class": 5}
    file = tmp_path / "tuned.toml"
    file.write_text(to_toml(parameters, "made by\na test"))
    assert from_toml(file, parameters) == parameters


@pytest.mark.parametrize(("text", "word"), [("lamda = 3", "lamda"), ("lam = = 3", "TOML"), (None, "cannot be read")])
def test_bad_toml_file_is_rejected(tmp_path: Path, text: str | None, word: str) -> None:
    file = tmp_path / "bad.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError, match=word):
        from_toml(file, ["lam"])
