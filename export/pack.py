"""Packs a kit: graph, manifest, detector, licences and a signature over all of them."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np

from edge.credentials import key_pair_pem, signing_key
from edge.errors import KitSignatureError, UsageError
from edge.kit import format as kits
from edge.kit import selftest
from edge.kit.manifest import MAX_NEW_VERSION, Manifest, Thresholds, canonical_json
from edge.vision.presentation import LivenessModel
from export.liveness import LivenessPart
from export.nodes import Precision
from export.run import run_graph
from trainer.baselines.coders import AnyCoding
from trainer.data.detector import LICENSE as DETECTOR_LICENSE
from trainer.data.detector import MIT
from trainer.features.known import KNOWN_NETWORKS
from trainer.model import Model

LICENSE = "recognizer.onnx and manifest.json were made by lclrr-edge.\n\n" + MIT.format(
    copyright="Copyright (c) 2026 the lclrr-edge authors"
)


def bundle(
    model: Model,
    graph: bytes,
    *,
    coding: AnyCoding,
    precision: Precision,
    thresholds: Thresholds,
    calibration: Mapping[str, Any],
    detector: bytes | None,
    liveness: LivenessPart | None = None,
    private_key: bytes | None = None,
    kit_version: int = 1,
    series: str = "",
) -> bytes:
    """Return the bytes of a kit, signed if there is a `private_key` (PEM). The same arguments give the same bytes."""
    if not 1 <= kit_version <= MAX_NEW_VERSION or not series.isprintable():
        raise UsageError(f"The kit version must be from 1 to {MAX_NEW_VERSION}, and the series must be printable text.")
    parts = {kits.RECOGNIZER: graph, kits.LICENSE: _license(model).encode()}
    if detector is not None:
        parts |= {kits.DETECTOR: detector, kits.DETECTOR_LICENSE: DETECTOR_LICENSE.encode()}
    tests = selftest.compute_results(partial(run_graph, graph), model.spec.crop_shape)
    if liveness is not None:
        parts |= {kits.LIVENESS: liveness.graph, kits.LIVENESS_LICENSE: liveness.license.encode()}
        tests["live"] = selftest.live_results(LivenessModel(liveness.graph, liveness.spec))
    manifest = Manifest(
        labels=model.labels,
        crop={"height": model.spec.height, "width": model.spec.width} | ({"channels": 3} if model.spec.colour else {}),
        alignment=model.alignment,
        features=model.spec.settings(),
        coding=asdict(coding),
        precision=precision,
        thresholds=thresholds,
        model={"sha256": fingerprint(model), "photos": model.fingerprint, "parts": list(model.parts or ())},
        calibration=calibration,
        versions={name: version(name) for name in ("lclrr-edge", "numpy", "onnx")},
        parts={name: hashlib.sha256(part).hexdigest() for name, part in parts.items()},
        kit_version=kit_version,
        series=series,
        confidence=model.confidence,
        liveness=None if liveness is None else liveness.spec,
        selftest=tests,
    ).to_bytes()
    if len(manifest) > kits.MAX_MANIFEST:
        raise UsageError("The names of the people are too long for a kit.", "Use shorter names.")
    parts[kits.MANIFEST] = manifest
    if private_key is not None:
        parts[kits.SIGNATURE] = sign(manifest, private_key)
    return kits.pack(parts)


def _license(model: Model) -> str:
    network = model.spec.network
    if network is None:
        return LICENSE
    known = KNOWN_NETWORKS.get(network.sha256)
    other = f"the embedding model with the SHA-256 {network.sha256}, under the terms of its makers"
    return f"{LICENSE}\nrecognizer.onnx contains {known.license if known else other}.\n"


def fingerprint(model: Model) -> str:
    """Return the SHA-256 of all data and settings that the model computes with."""
    header = {"spec": model.spec.settings(), "alignment": model.alignment, "labels": model.labels}
    digest = hashlib.sha256(json.dumps(header | {"coding": asdict(model.coding)}, sort_keys=True).encode())
    for array in model.computing_arrays():
        digest.update(str((array.dtype.str, array.shape)).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def sign(manifest: bytes, private_key: bytes) -> bytes:
    """Return an Ed25519 signature (64 bytes), made with a private key (PEM)."""
    return signing_key(private_key).sign(kits.signed_message(manifest))


def repack(kit: bytes, *, kit_version: int, private_key: bytes | None = None) -> bytes:
    """Return a kit with another version: only the manifest's version and the signature change.

    A signed kit needs the key that signed it: terminals that check signatures would refuse any other.
    """
    kits.parse(kit)
    parts = kits.unpack(kit)
    signature = parts.pop(kits.SIGNATURE, None)
    if signature is not None:
        _check_same_key(parts[kits.MANIFEST], signature, private_key)
    parts[kits.MANIFEST] = canonical_json(json.loads(parts[kits.MANIFEST]) | {"kit_version": kit_version})
    if private_key is not None:
        parts[kits.SIGNATURE] = sign(parts[kits.MANIFEST], private_key)
    return kits.pack(parts)


def _check_same_key(manifest: bytes, signature: bytes, private_key: bytes | None) -> None:
    if private_key is None:
        raise UsageError("The kit is signed, so it must be signed again.", "Give the key that signed it, with --sign.")
    _, public = key_pair_pem(signing_key(private_key))
    try:
        kits.check_signature(manifest, signature, public)
    except KitSignatureError:
        hint = "Give the key that signed it. To use another key, build a new kit."
        raise UsageError("The kit is signed with another key.", hint) from None
