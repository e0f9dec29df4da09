"""The manifest of a kit (`manifest.json`): canonical JSON, checked field by field. The device assumes no defaults."""

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import Any

from edge.errors import KitDamagedError, KitError, KitVersionError

ALIGNMENTS = "none", "five-points-1", "arcface-112", "arcface-eyes-112"
NO_ALIGNMENT, ALIGNMENT, ARCFACE_ALIGNMENT, EYES_ALIGNMENT = ALIGNMENTS
CONFIDENCES = RELATIVE, ABSOLUTE = "relative", "absolute"

FORMAT = 1
KIND = "lclrr-edge kit"
MAX_LIVENESS_NETWORKS = 4
MAX_LIVENESS_BYTES = 32 << 20  # of the file of one network
MAX_VERSION = 2**53 - 1  # the largest integer that every JSON reader can store
MAX_NEW_VERSION = 10**14
"""The largest first version of a store, and the largest step of later ones: a date with seconds (20261118120000) fits."""

MIN_ABSOLUTE = 0.1
"""1 % of strangers' photos reach an absolute confidence of 0.30 to 0.48 (export.measure), and noise more than this."""
NO_MATCH = 2.0
"""The threshold of a kit that cannot distinguish people from noise. No confidence is above 1."""
RESIDUALS = 1e-4, 2.0
"""The residual of a unit vector is at most 1. The limit of the experts, 2, accepts every face."""
MAX_STRANGERS = 10**8
LIVE_THRESHOLDS = 0.05, 0.99
"""Lower, a liveness model would stop almost nothing; higher, almost everyone."""


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Limits that a face must meet to get a label."""

    confidence: float
    """At least this confidence."""
    residual: float
    """At most this residual: the part of the face that the dictionary cannot explain."""
    provisional: bool
    """Whether the thresholds were set without photos of strangers, from images that are not faces."""
    fpir: float = 1.0
    """Upper limit of the share of strangers' photos that get a label (false positive identification rate)."""
    fpir_low: float = 0.0
    fpir_high: float = 1.0
    """Ends of the 95 % confidence interval of the measured share."""
    strangers: int = 0
    """Number of strangers' photos that it was measured on."""

    @property
    def sentence(self) -> str:
        """Describe for people the confidence that a match needs and how many strangers reach it."""
        if self.confidence > 1:
            return "No confidence separates strangers from the enrolled people. Every visit is denied."
        match = f"A match needs a confidence of at least {self.confidence:g}."
        if self.provisional:
            return f"{match} This threshold was set without photos of strangers: the false match rate is unknown."
        return (
            f"{match} At most {100 * self.fpir:.3g} % of strangers' photos reach it (measured on {self.strangers} photos; "
            f"95 % interval {100 * self.fpir_low:.2g} to {100 * self.fpir_high:.2g} %)."
        )

    def problem(self, kind: str, people: int) -> str:
        """Return the field and value that no calibration of this many people gives (export.measure.thresholds), or ""."""
        least, most = min_confidence(kind, people), NO_MATCH
        if not least <= self.confidence <= most:
            return f"confidence {self.confidence:g} is not between {least:.3g} and {most:g}"
        if not RESIDUALS[0] <= self.residual <= RESIDUALS[1]:
            return f"residual {self.residual:g} is not between {RESIDUALS[0]:g} and {RESIDUALS[1]:g}"
        if self.provisional:
            measured = (self.fpir, self.fpir_low, self.fpir_high, self.strangers) != (1.0, 0.0, 1.0, 0)
            return "provisional is true, but a rate is given" if measured else ""
        if not 1 <= self.strangers <= MAX_STRANGERS:
            return f"strangers {self.strangers} is not between 1 and {MAX_STRANGERS}"
        # Zero of N photos support a rate of 3/N at best, and have the interval 0 to 1 - 0.025^(1/N), up to 3.7/N.
        rounding = 1 - 1e-9
        if self.fpir < (rate := min(3 / self.strangers, 1.0)) * rounding:
            return f"fpir {self.fpir:g} is lower than {rate:.3g}, which {self.strangers} photos support"
        if self.fpir_high < (high := -math.expm1(math.log(0.025) / self.strangers)) * rounding:
            return f"fpir_high {self.fpir_high:g} is lower than {high:.3g}, which {self.strangers} photos support"
        if self.fpir_low > min(self.fpir, self.fpir_high):
            return f"fpir_low {self.fpir_low:g} is higher than fpir or fpir_high"
        return ""


def min_confidence(kind: str, people: int) -> float:
    """Return the lowest confidence that means anything as a threshold.

    relative: scores (C) that are all equal have the confidence 1/sqrt(C), and any face whose scores are not mostly negative
    has more. A threshold is above nearly all strangers and noise images; half of that value leaves room for negative scores.
    """
    return 0.5 / math.sqrt(people) if kind == RELATIVE else MIN_ABSOLUTE


@dataclass(frozen=True, kw_only=True)
class Liveness:
    """The liveness model of a kit: one network or several, each with its own crop of the face and its surroundings."""

    threshold: float
    """A grant needs at least this score, from 0 (a print or a screen) to 1 (a live face)."""
    context: tuple[float, float]
    """A face is scored only if the frame is at least so many times as wide, and so many times as high, as its box."""
    crops: tuple[tuple[int, float], ...]
    """For each network: side of its crop in pixels, and how many times the box of the face it shows."""
    names: tuple[str, ...]
    """Names of the networks."""

    @classmethod
    def from_json(cls, contents: Mapping[str, Any]) -> "Liveness":
        """Raise KeyError, TypeError or ValueError if a field is invalid."""
        crops = tuple((side, scale) for side, scale in contents["crops"])
        width, height = contents["context"]
        found = cls(**{**contents, "context": (width, height), "crops": crops, "names": tuple(contents["names"])})
        is_valid = (
            1 <= len(crops) == len(found.names) <= MAX_LIVENESS_NETWORKS
            and all(isinstance(name, str) and name.isprintable() for name in found.names)
            and all(type(side) is int and 16 <= side <= 512 for side, _ in crops)
            and all(type(scale) is float and 1 <= scale <= 8 for _, scale in crops)
            and type(found.threshold) is float
            and LIVE_THRESHOLDS[0] <= found.threshold <= LIVE_THRESHOLDS[1]
            and all(type(ratio) is float and 1 <= ratio <= 8 for ratio in found.context)
        )
        if not is_valid:
            raise ValueError("not a liveness model")
        return found


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The contents of manifest.json."""

    labels: tuple[str, ...]
    """The enrolled people, in the order of the scores."""
    crop: Mapping[str, int]
    """height and width of a crop, in pixels; channels, 3 if crops are BGR. Without channels, they are grey."""
    alignment: str
    """How crops are aligned: one of ALIGNMENTS. none: the training photos were already cropped."""
    features: Mapping[str, Any]
    """The FeatureSpec that the graph computes, or the description of the network inside it (kind onnx)."""
    coding: Mapping[str, Any]
    """How the graph codes a face: kind, lam, iterations, penalty."""
    precision: str
    """How the weights are stored: fp32, fp16 or int8."""
    thresholds: Thresholds
    model: Mapping[str, Any]
    """Fingerprints of the model and of its training photos."""
    calibration: Mapping[str, Any]
    """How the number of iterations was chosen, and the accuracy lost by the precision."""
    versions: Mapping[str, str]
    """Versions of the software that built the kit."""
    parts: Mapping[str, str]
    """SHA-256 of every other part."""
    kit_version: int
    """A kit can replace only kits of lower versions."""
    series: str
    """The group of doors that the kit is for. A kit can replace only kits of its own series."""
    selftest: Mapping[str, Any]
    """The expected results of the self-test (edge.kit.selftest)."""
    confidence: str = RELATIVE
    """How the graph computes the confidence from the scores: one of CONFIDENCES (edge.vision.confidence)."""
    liveness: Liveness | None = None
    """The liveness model, or None if the kit has none."""

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of a crop."""
        return self.crop["height"], self.crop["width"]

    @property
    def colour(self) -> bool:
        """Whether crops are BGR."""
        return self.crop.get("channels", 1) == 3

    @property
    def crop_shape(self) -> tuple[int, ...]:
        """(height, width) of a grey crop, (height, width, 3) of a BGR crop."""
        return (*self.size, 3) if self.colour else self.size

    def require_liveness(self) -> None:
        """Raise an error if the kit has no liveness model."""
        if self.liveness is None:
            hint = "Build it with --liveness, or remove `required` from [liveness] in the settings."
            raise KitError("The kit has no liveness model, and the settings require one.", hint)

    @property
    def liveness_sentence(self) -> str:
        """Describe for people what stops a photo or a phone in front of the camera."""
        if self.liveness is None:
            danger = "a photo or a phone that shows an enrolled person can open the door"
            return f"The kit has no liveness model: {danger}. Build it with --liveness."
        names = " and ".join(self.liveness.names)
        return f"A live face needs a score of at least {self.liveness.threshold:g} ({names})."

    def to_bytes(self) -> bytes:
        return canonical_json({"kind": KIND, "format": FORMAT, **asdict(self)})

    @classmethod
    def from_bytes(cls, data: bytes) -> "Manifest":
        try:
            contents = json.loads(data)
        except (ValueError, RecursionError):
            raise KitDamagedError("The manifest of the kit is not valid JSON.", "Copy the kit again.") from None
        if not isinstance(contents, dict) or contents.get("kind") != KIND:
            raise KitError("This file is not a kit.", "Use a file that `edge-export build` wrote.")
        if (other := contents.get("format")) != FORMAT:
            raise KitVersionError(
                f"The kit has format {other if type(other) is int else '?'}; this version reads format {FORMAT}.",
                "Build the kit again, or install the matching version of lclrr-edge.",
            )
        unchanged = False
        with suppress(ValueError, RecursionError):  # NaN, broken Unicode; writing allows less depth than reading
            unchanged = canonical_json(contents) == data  # also rejects duplicate keys
        if not unchanged:
            raise KitDamagedError("The manifest of the kit was changed.", "Copy the kit again.")
        with suppress(KeyError, TypeError, ValueError):
            thresholds = Thresholds(**contents["thresholds"])
            # Kits before 0.3.0 have no confidence, kits before 0.5.0 no liveness.
            contents = {"confidence": RELATIVE, "liveness": None, **contents}
            liveness = None if contents["liveness"] is None else Liveness.from_json(contents["liveness"])
            values = {field.name: contents[field.name] for field in fields(cls)}
            changed = {"labels": tuple(contents["labels"]), "thresholds": thresholds, "liveness": liveness}
            manifest = cls(**values | changed)
            if manifest._is_valid():
                if problem := thresholds.problem(manifest.confidence, len(manifest.labels)):
                    raise KitError(f"The thresholds of the kit are not possible: {problem}.", "Build the kit again.")
                return manifest
        raise KitError("The manifest of the kit has an invalid field.", "Build the kit again.")

    def _is_valid(self) -> bool:
        limits = (self.thresholds.confidence, self.thresholds.residual)
        rates = (self.thresholds.fpir, self.thresholds.fpir_low, self.thresholds.fpir_high)
        settings = (self.crop, self.features, self.coding, self.versions)
        objects = (*settings, self.model, self.calibration, self.selftest, self.parts)
        return (
            all(isinstance(value, dict) for value in objects)
            and len(self.labels) >= 2
            and all(isinstance(label, str) and label for label in self.labels)
            and len(set(self.labels)) == len(self.labels)
            and self.alignment in ALIGNMENTS
            and self.confidence in CONFIDENCES
            and self.crop.keys() - {"channels"} == {"height", "width"}
            and all(type(length) is int and 1 <= length <= 4096 for length in self.crop.values())
            and self.crop.get("channels", 1) in (1, 3)
            and all(type(limit) is float and math.isfinite(limit) and limit > 0 for limit in limits)
            and all(type(rate) is float and 0 <= rate <= 1 for rate in rates)
            and type(self.thresholds.strangers) is int
            and type(self.thresholds.provisional) is bool
            and self.precision in ("fp32", "fp16", "int8")
            and type(self.kit_version) is int
            and 1 <= self.kit_version <= MAX_VERSION
            and isinstance(self.series, str)
            and self.series.isprintable()
            and all(isinstance(digest, str) for digest in self.parts.values())
        )


def canonical_json(contents: Mapping[str, Any]) -> bytes:
    """Return the one JSON form in which a manifest is written."""
    text = json.dumps(contents, sort_keys=True, ensure_ascii=False, indent=1, allow_nan=False)
    return f"{text}\n".encode()
