"""The liveness model in a kit: it is there with its description, or the kit is rejected."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import pytest

from edge.errors import KitDamagedError, KitError, KitUnsafeError
from edge.kit import format as kits
from edge.kit.manifest import canonical_json
from edge.vision.recognize import Recognizer
from tests.fixtures import kits as doors
from tests.fixtures.liveness import network_file, part, with_liveness


def changed(*, drop: bool = False, graph: bytes | None = None, **fields: Any) -> bytes:
    """Return a kit with other parts or fields, by an attacker who computes the checksums again."""
    parts = kits.unpack(with_liveness(doors.kit()))
    manifest = json.loads(parts[kits.MANIFEST])
    if drop:
        del parts[kits.LIVENESS], manifest["parts"][kits.LIVENESS]
    if graph is not None:
        parts[kits.LIVENESS], manifest["parts"][kits.LIVENESS] = graph, hashlib.sha256(graph).hexdigest()
    manifest |= fields
    parts[kits.MANIFEST] = canonical_json(manifest)
    return kits.pack(parts)


def test_kit_with_a_liveness_model_loads() -> None:
    kit = kits.parse(with_liveness(doors.kit()))
    assert kit.manifest.liveness == part().spec
    assert kit.liveness == part().graph
    assert Recognizer(kit).liveness is not None
    assert kits.unpack(with_liveness(doors.kit()))[kits.LIVENESS_LICENSE].startswith(b"liveness.onnx contains")


def test_kit_without_the_field_loads() -> None:
    """Kits before 0.5.0 do not have it."""
    parts = kits.unpack(doors.kit())
    manifest = json.loads(parts[kits.MANIFEST])
    del manifest["liveness"]
    parts[kits.MANIFEST] = canonical_json(manifest)
    kit = kits.parse(kits.pack(parts))
    assert (kit.manifest.liveness, kit.liveness, Recognizer(kit).liveness) == (None, None, None)


def test_changed_model_is_detected() -> None:
    parts = kits.unpack(with_liveness(doors.kit()))
    parts[kits.LIVENESS] += b"\0"
    with pytest.raises(KitDamagedError):
        kits.parse(kits.pack(parts))


@pytest.mark.parametrize("data", [changed(drop=True), changed(liveness=None)])
def test_model_and_description_belong_together(data: bytes) -> None:
    with pytest.raises(KitError, match="liveness model"):
        kits.parse(data)


def test_unlisted_operator_is_rejected() -> None:
    with pytest.raises(KitUnsafeError, match=r"liveness\.onnx"):
        kits.parse(changed(graph=network_file(operator="Sin")))


@pytest.mark.parametrize(
    "changes",
    [
        {"threshold": 0.0}, {"threshold": 1e-9}, {"threshold": 0.999}, {"threshold": 1.0}, {"threshold": -1.0},
        {"threshold": "0.5"},
        {"threshold": 1}, {"context": [0.5, 1.3]}, {"context": 2.2}, {"context": [2.2]}, {"context": [2.2, math.pi, 1.0]},
        {"crops": []}, {"crops": [[32, 2.5]]}, {"crops": [[32, 2.5], [4, 4.0]]}, {"crops": [[32, 2.5], [32, 90.0]]},
        {"crops": [[32, 2.5], [32.0, 4.0]]}, {"names": ["one"]}, {"names": ["a\nb", "c"]}, {"names": 5}, {"more": 1},
    ],
)  # fmt: skip
def test_invalid_description_is_rejected(changes: dict[str, Any]) -> None:
    with pytest.raises(KitError, match="invalid field"):
        kits.parse(with_liveness(doors.kit(), **changes))
