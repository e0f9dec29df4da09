"""The self-test detects other weights, missing results and a faulty detector."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from edge.errors import SelfTestError
from edge.kit import format as kits
from edge.kit import selftest
from edge.kit.manifest import canonical_json
from edge.vision.recognize import Recognizer
from tests.fixtures import kits as doors
from tests.fixtures import orl_door


def test_synthetic_crops_never_change() -> None:
    crops = selftest.synthetic_crops((80, 64))
    assert crops[:, 40, 32].tolist() == [139, 226, 221, 131], "a change makes all existing kits fail"
    assert int(crops.astype(int).sum()) == 2681673
    colour = selftest.synthetic_crops((80, 64, 3))
    np.testing.assert_array_equal(colour[..., 0], crops)
    assert colour[:, 40, 32, 1:].tolist() == [[119, 42], [195, 52], [129, 27], [99, 201]]
    assert int(colour.astype(int).sum()) == 7566372


@pytest.mark.parametrize(("coding", "precision"), [("l1", "fp32"), ("l21", "fp32"), ("l21", "fp16"), ("l1", "int8")])
def test_kit_passes_its_self_test_with_results_that_are_not_trivial(coding: str, precision: Any) -> None:
    kit = kits.parse(doors.kit(coding, precision))
    selftest.check(Recognizer(kit))
    assert np.abs(kit.manifest.selftest["scores"]).max(axis=1).min() > 0.1


def test_self_test_rejects_other_weights_and_missing_results() -> None:
    right, other = kits.unpack(doors.kit()), kits.unpack(doors.kit("l1"))
    results = json.loads(other[kits.MANIFEST])["selftest"]
    wrong: dict[str, Any]
    for wrong in (results, {}, {"scores": []}, results | {"scores": "x"}, results | {"confidence": [None] * 4}):
        manifest = canonical_json(json.loads(right[kits.MANIFEST]) | {"selftest": wrong})
        with pytest.raises(SelfTestError):
            selftest.check(Recognizer(kits.parse(kits.pack(right | {kits.MANIFEST: manifest}))))


def test_detector_that_fails_on_an_empty_frame_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    recognizer = Recognizer(kits.parse(orl_door.kit()))
    assert selftest.check_with_detector(recognizer) is recognizer

    def fail(*_: Any) -> None:
        raise RuntimeError("injected")

    monkeypatch.setattr(recognizer.detector, "detect", fail)
    with pytest.raises(SelfTestError, match="RuntimeError"):
        selftest.check_with_detector(recognizer)
