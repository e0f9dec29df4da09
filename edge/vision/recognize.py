"""A kit at work: frames or grey crops in, names out. Thread-safe and silent; whatever is doubtful gets no name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.errors import KitError
from edge.kit import format as kits
from edge.kit.format import Kit
from edge.kit.manifest import NO_ALIGNMENT
from edge.vision import detect
from edge.vision.detect import Face, FaceFinder
from edge.vision.onnx_session import gains_by_packing, session
from edge.vision.preprocess import BLANK, align
from edge.vision.quality import Quality, QualityLimits, assess

OUTPUTS = ("scores", "label", "confidence", "margin", "code_norm", "residual")


Stage = Callable[[str], AbstractContextManager[object]]
"""What is entered for each stage of a frame by its name, and left when the stage is over: for whoever times them."""


def untimed(stage: str) -> AbstractContextManager[object]:
    return nullcontext()


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
    """recognised, unsure (confidence too low), unlike (residual too large), blank or broken (not a number); or, where the
    face was not good enough to be looked at, one of edge.vision.quality.REASONS."""
    scores: tuple[float, ...] | None = None
    """All scores, in the order of the kit's labels, brought to unit length; None where there are none."""
    face: Face | None = None
    """Where the face is, unless a crop was given."""
    quality: Quality | None = None
    """What was measured of it, unless a crop was given."""

    def facts(self) -> dict[str, Any]:
        """For JSON: all but the scores and the landmarks."""
        plain = {name: value for name, value in vars(self).items() if name not in ("scores", "face", "quality")}
        if self.face is not None:
            plain["box"] = [round(side, 1) for side in self.face.box_xyxy]
        if self.quality is not None:
            plain["quality"] = {
                name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(self.quality).items()
            }
        return plain


class Recognizer:
    """Recognises the faces in a frame, or grey crops of the size that the kit was trained on."""

    def __init__(
        self,
        kit: Kit,
        *,
        threads: int = 1,
        min_face: int = detect.MIN_FACE,
        limits: QualityLimits | None = None,
        stage: Stage = untimed,
    ) -> None:
        """`min_face` is the width in pixels of the smallest face to look for, `limits` what it must be like.

        `stage` is entered to "detect" and to "recognise".
        """
        self._stage = stage
        self.kit, self.threads, self.min_face, self.limits = kit, threads, min_face, limits or QualityLimits()
        pack = gains_by_packing(kit.manifest.coding.get("kind", ""))
        self._session = session(kit.recognizer, kits.RECOGNIZER, threads=threads, pack=pack)
        _refuse_other_shapes(self._session, kit)

    @classmethod
    def load(cls, path: str | Path, *, public_key: bytes | None = None, **settings: Any) -> Recognizer:
        """From a kit file. With a `public_key` (PEM) it must be signed with that key. `settings` as for Recognizer."""
        return cls(kits.read(path, public_key), **settings)

    @cached_property
    def finder(self) -> FaceFinder:
        """What finds the faces; made on first use, because crops need none. Ask for it early to learn early of its lack."""
        if self.kit.manifest.alignment == NO_ALIGNMENT:
            raise KitError(
                "The kit was trained on cropped photos, and cannot recognise the faces in a frame.",
                "Train without --cropped, on photos as they come from a camera.",
            )
        return detect.finder(self.kit.detector, min_face=self.min_face, threads=self.threads)

    def recognize(self, image: NDArray[np.uint8], *, min_face: int | None = None) -> list[Recognition]:
        """One Recognition per face in a BGR frame (H, W, 3), the largest face first."""
        with self._stage("detect"):
            faces = self.finder.detect(image, min_face)
        if not faces:
            return []
        grey: NDArray[Any] = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
        crops = [self.crop(grey, face) for face in faces]
        qualities = [assess(grey, face, self.limits, crop) for face, crop in zip(faces, crops, strict=True)]
        good = [crop for crop, quality in zip(crops, qualities, strict=True) if quality.reason is None]
        found = iter(self.recognize_crops(np.stack(good)) if good else [])
        return [
            replace(next(found) if quality.reason is None else self._refused(quality.reason), face=face, quality=quality)
            for face, quality in zip(faces, qualities, strict=True)
        ]

    def crop(self, grey: NDArray[np.uint8], face: Face) -> NDArray[np.uint8]:
        """The crop of a face in a grey frame, aligned as those that the kit was trained on."""
        return align(grey, face.landmarks, self.kit.manifest.size, self.kit.manifest.alignment)

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
        with self._stage("recognise"):
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
            scores=None if reason == "broken" else _unit(found["scores"]),
        )

    def _refused(self, reason: str) -> Recognition:
        return Recognition(
            label=None,
            nearest="",
            confidence=0.0,
            threshold=self.kit.manifest.thresholds.confidence,
            margin=0.0,
            residual=0.0,
            code_norm=0.0,
            reason=reason,
        )


def _unit(scores: NDArray[Any]) -> tuple[float, ...]:
    return tuple((scores / max(float(np.linalg.norm(scores)), BLANK)).tolist())


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
