"""What a kit says of itself: `manifest.json`, one canonical spelling, checked field by field. The device guesses nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from edge.errors import KitDamagedError, KitError, KitVersionError

NO_ALIGNMENT, ALIGNMENT, ARCFACE_ALIGNMENT = ALIGNMENTS = "none", "five-points-1", "arcface-112"

FORMAT = 1
KIND = "lclrr-edge kit"
MAX_VERSION = 2**53 - 1  # what every reader of JSON can hold


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """A face is given a name only if both hold."""

    confidence: float
    """At least this: the top score over the norm of all scores."""
    residual: float
    """At most this: the part of the face that the dictionary cannot explain."""
    provisional: bool
    """Whether they were set without having seen strangers: by what is no face at all."""
    fpir: float = 1.0
    """The share of strangers' faces that may be given a name, as far as it can be promised."""
    fpir_low: float = 0.0
    """The share that was measured lies, at 95 %, between this..."""
    fpir_high: float = 1.0
    """...and this."""
    strangers: int = 0
    """Photos of strangers that it was measured on."""

    @property
    def sentence(self) -> str:
        """For people: what a name takes, and how many strangers reach it."""
        takes = f"A name takes a confidence of {self.confidence:g}"
        if self.confidence > 1:
            return f"{takes}, which no face has: strangers look as sure as the people of this kit, so nobody is let in."
        if self.provisional:
            return f"{takes}, which was set without having seen strangers: how many reach it is not known."
        return (
            f"{takes}; of strangers' photos at most {100 * self.fpir:.3g} % reach it, as far as {self.strangers} of them tell "
            f"(95 % interval {100 * self.fpir_low:.2g} to {100 * self.fpir_high:.2g} %)."
        )


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The contents of manifest.json."""

    labels: tuple[str, ...]
    """The people, in the order of the scores."""
    crop: Mapping[str, int]
    """height and width of a crop, in pixels."""
    alignment: str
    """How crops are made: none (the photos were cropped), or by which five points (edge.vision.preprocess.PLACES)."""
    features: Mapping[str, Any]
    """The FeatureSpec that the graph computes, or what is known of the embedding model inside it (kind onnx)."""
    coding: Mapping[str, Any]
    """How the graph codes a face: kind, lam, iterations, penalty."""
    precision: str
    """fp32, fp16 or int8: how the weights are stored."""
    thresholds: Thresholds
    model: Mapping[str, Any]
    """Fingerprints of the model and of its training photos."""
    calibration: Mapping[str, Any]
    """How the number of iterations was chosen, and what the precision cost."""
    versions: Mapping[str, str]
    """Of the software that made the kit."""
    parts: Mapping[str, str]
    """SHA-256 of every other part."""
    kit_version: int
    """A kit replaces those of lower versions only."""
    series: str
    """The doors that it is for; a kit replaces those of its own series only."""
    selftest: Mapping[str, Any]
    """What the graph answers to made-up crops (edge.kit.selftest)."""

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of a crop."""
        return self.crop["height"], self.crop["width"]

    def to_bytes(self) -> bytes:
        return _spell({"kind": KIND, "format": FORMAT, **asdict(self)})

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        try:
            contents = json.loads(data)
        except (ValueError, RecursionError):
            raise KitDamagedError("The kit's manifest is not readable.", "Copy the kit again.") from None
        if not isinstance(contents, dict) or contents.get("kind") != KIND:
            raise KitError("This file is not a kit.", "Use a file that `edge-export build` wrote.")
        if (other := contents.get("format")) != FORMAT:
            raise KitVersionError(
                f"The kit has format {other if type(other) is int else '?'}, and this version reads {FORMAT}.",
                "Build the kit again, or install the matching version of lclrr-edge.",
            )
        try:
            unchanged = _spell(contents) == data  # also refuses keys that occur twice
        except (ValueError, RecursionError):  # NaN, broken Unicode; writing is less patient with depth than reading
            unchanged = False
        if not unchanged:
            raise KitDamagedError("The kit's manifest was changed.", "Copy the kit again.")
        try:
            thresholds = Thresholds(**contents["thresholds"])
            values = {field.name: contents[field.name] for field in fields(cls)}
            manifest = cls(**values | {"labels": tuple(contents["labels"]), "thresholds": thresholds})
            sound = manifest._is_sound()
        except (KeyError, TypeError):
            sound = False
        if not sound:
            raise KitError("The kit's manifest makes no sense.", "Build the kit again.")
        return manifest

    def _is_sound(self) -> bool:
        limits = (self.thresholds.confidence, self.thresholds.residual)
        rates = (self.thresholds.fpir, self.thresholds.fpir_low, self.thresholds.fpir_high)
        return (
            len(self.labels) >= 2
            and all(isinstance(label, str) and label for label in self.labels)
            and len(set(self.labels)) == len(self.labels)
            and self.alignment in ALIGNMENTS
            and all(type(length) is int and 1 <= length <= 4096 for length in self.size)
            and all(type(limit) is float and math.isfinite(limit) and limit > 0 for limit in limits)
            and all(type(rate) is float and 0 <= rate <= 1 for rate in rates)
            and type(self.thresholds.strangers) is int
            and type(self.thresholds.provisional) is bool
            and self.precision in ("fp32", "fp16", "int8")
            and all(
                isinstance(getattr(self, name), dict)
                for name in ("features", "coding", "model", "calibration", "versions", "selftest")
            )
            and type(self.kit_version) is int
            and 1 <= self.kit_version <= MAX_VERSION
            and isinstance(self.series, str)
            and self.series.isprintable()
            and isinstance(self.parts, dict)
            and all(isinstance(digest, str) for digest in self.parts.values())
        )


def _spell(contents: dict[str, Any]) -> bytes:
    text = json.dumps(contents, sort_keys=True, ensure_ascii=False, indent=1, allow_nan=False)
    return f"{text}\n".encode()
