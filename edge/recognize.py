"""A kit at work: grey crops in, names out. Thread-safe and silent; whatever is doubtful gets no name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge import kit as kits
from edge.errors import KitError
from edge.kit import Kit
from edge.runtime import session

OUTPUTS = ("scores", "label", "confidence", "margin", "code_norm", "residual")


@dataclass(frozen=True, kw_only=True)
class Recognition:
    """What the kit makes of one face."""

    label: str | None
    """The person, or None where the kit is not sure enough."""
    nearest: str
    """The person whose score is highest, sure or not: for evaluation, never for a decision."""
    confidence: float
    """Top score over the norm of all scores, at most 1."""
    threshold: float
    """The confidence that a name takes."""
    margin: float
    """Lead of the top score over the second, over the norm of all scores."""
    residual: float
    """The part of the face that the dictionary cannot explain."""
    code_norm: float
    """Size of the face's code."""
    reason: str
    """recognised, unsure (confidence too low), unlike (residual too large), blank or broken (not a number)."""


class Recognizer:
    """Recognises grey crops of the size that the kit was trained on."""

    def __init__(self, kit: Kit, *, threads: int = 1) -> None:
        self.kit = kit
        pack = kit.manifest.coding.get("kind") != "l1"
        self._session = session(kit.recognizer, kits.RECOGNIZER, threads=threads, pack=pack)
        _refuse_other_shapes(self._session, kit)

    @classmethod
    def load(cls, path: str | Path, *, public_key: bytes | None = None, threads: int = 1) -> Recognizer:
        """From a kit file. With a `public_key` (PEM) it must be signed with that key."""
        return cls(kits.read(path, public_key), threads=threads)

    def outputs(self, crops: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """The graph's outputs by name, for crops (N, H, W): scores (N, C), and the others (N,)."""
        height, width = self.kit.manifest.size
        if crops.dtype != np.uint8 or crops.ndim != 3 or crops.shape[1:] != (height, width):
            raise ValueError(f"crops must be uint8, N x {height} x {width}, not {crops.dtype} {crops.shape}")
        return dict(zip(OUTPUTS, self._session.run(OUTPUTS, {"crops": crops}), strict=True))

    def recognize_crops(self, crops: NDArray[np.uint8]) -> list[Recognition]:
        """One Recognition per crop (N, H, W)."""
        if len(crops) == 0:
            return []
        found = self.outputs(crops)
        return [self._recognition({name: values[i] for name, values in found.items()}) for i in range(len(crops))]

    def _recognition(self, found: dict[str, Any]) -> Recognition:
        manifest = self.kit.manifest
        limits = manifest.thresholds
        nearest = manifest.labels[int(found["label"])]
        confidence, residual = float(found["confidence"]), float(found["residual"])
        if not all(np.isfinite(found[name]).all() for name in OUTPUTS):
            reason = "broken"
        elif found["code_norm"] == 0:
            reason = "blank"
        elif residual > limits.residual:
            reason = "unlike"
        elif confidence < limits.confidence:
            reason = "unsure"
        else:
            reason = "recognised"
        return Recognition(
            label=nearest if reason == "recognised" else None,
            nearest=nearest,
            confidence=confidence,
            threshold=limits.confidence,
            margin=float(found["margin"]),
            residual=residual,
            code_norm=float(found["code_norm"]),
            reason=reason,
        )


def _refuse_other_shapes(session: Any, kit: Kit) -> None:
    """The graph and the manifest must speak of the same crops and the same people."""
    people = len(kit.manifest.labels)
    inputs = {(i.name, i.type, tuple(i.shape[1:])) for i in session.get_inputs()}
    outputs = {o.name: (o.type, tuple(o.shape[1:])) for o in session.get_outputs()}
    wanted = dict.fromkeys(OUTPUTS, ("tensor(float)", ())) | {
        "scores": ("tensor(float)", (people,)),
        "label": ("tensor(int64)", ()),
    }
    if inputs != {("crops", "tensor(uint8)", kit.manifest.size)} or outputs != wanted:
        raise KitError("The kit's graph and its manifest do not fit together.", "Build the kit again.")
