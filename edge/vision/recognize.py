"""Recognise faces with a kit: frames or crops in, labels out. Thread-safe. A doubtful face gets no label."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.errors import DetectorMissingError, KitError
from edge.kit import format as kits
from edge.kit.format import Kit
from edge.kit.manifest import NO_ALIGNMENT
from edge.stages import ALIGN, DETECT, LIVENESS, RECOGNISE, StageTimer, untimed
from edge.vision.confidence import score_length, score_norm
from edge.vision.detect import MIN_FACE, Face, YuNetDetector
from edge.vision.onnx_session import ITERATIVE_CODINGS, load_session
from edge.vision.preprocess import align
from edge.vision.presentation import LivenessModel
from edge.vision.quality import TOO_CLOSE, Quality, QualityLimits, assess

OUTPUTS = ("scores", "label", "confidence", "margin", "code_norm", "residual")

RECOGNISED, LOW_CONFIDENCE, HIGH_RESIDUAL = "recognised", "low confidence", "high residual"
BLANK_IMAGE, INVALID_OUTPUT = "blank image", "invalid output"


@dataclass(frozen=True, kw_only=True)
class Recognition:
    """The result for one face."""

    label: str | None = None
    """The person, or None if a threshold is not met."""
    nearest: str = ""
    """The person with the highest score, even if a threshold is not met. For evaluation, never for a decision."""
    confidence: float = 0.0
    """How sure the label is, see edge.vision.confidence. 1 is very sure."""
    threshold: float
    """The confidence that a label needs."""
    margin: float = 0.0
    """Lead of the top score over the second score, on the scale of the confidence."""
    residual: float = 0.0
    """The part of the face that the dictionary cannot represent."""
    code_norm: float = 0.0
    """Norm of the face's code."""
    reason: str
    """recognised, low confidence, high residual (not like the training faces), blank image or invalid output (not a number).
    If the face was not good enough to be recognised, one of edge.vision.quality.REASONS."""
    scores: NDArray[np.float64] | None = field(default=None, compare=False)
    """(C,) all scores in the order of the kit's labels, scaled to unit length; read-only. None if there are none."""
    score_length: float = 1.0
    """Norm of the scores before that, on the scale of the confidence; 1 if the confidence is relative."""
    box_xyxy: tuple[float, float, float, float] | None = None
    """Left, top, right, bottom of the face, in pixels of the frame. None for a crop."""
    landmarks: NDArray[np.float32] | None = field(default=None, compare=False)
    """(5, 2), x and y of eyes, nose and corners of the mouth, in pixels of the frame. None for a crop."""
    quality: Quality | None = None
    """Measurements of the face. None for a crop."""
    live: float | None = None
    """Score of the kit's liveness model, 0 (a print or a screen) to 1 (a live face). None if it was not computed."""

    def facts(self) -> dict[str, Any]:
        """All fields for JSON, except scores and landmarks."""
        hidden = ("scores", "score_length", "box_xyxy", "landmarks", "quality", "live")
        facts: dict[str, Any] = {name: value for name, value in vars(self).items() if name not in hidden}
        if self.box_xyxy is not None:
            facts["box"] = [round(side, 1) for side in self.box_xyxy]
        if self.quality is not None:
            facts["quality"] = {
                name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(self.quality).items()
            }
        return facts


class Recognizer:
    """Recognises the faces in a frame, or crops of the shape that the kit was trained on: grey, or BGR for some networks."""

    def __init__(
        self,
        kit: Kit,
        *,
        threads: int = 1,
        min_face: int = MIN_FACE,
        limits: QualityLimits | None = None,
        stage: StageTimer = untimed,
    ) -> None:
        """`min_face` is the width of the smallest face to look for, in pixels.

        `stage` times DETECT, ALIGN, RECOGNISE and LIVENESS.
        """
        self.stage = stage
        self.kit, self.threads, self.min_face, self.limits = kit, threads, min_face, limits or QualityLimits()
        prepack = kit.manifest.coding.get("kind") not in ITERATIVE_CODINGS
        self._session = load_session(kit.recognizer, kits.RECOGNIZER, threads=threads, prepack=prepack)
        inputs = {(i.name, i.type, tuple(i.shape[1:])) for i in self._session.get_inputs()}
        outputs = {o.name: (o.type, tuple(o.shape[1:])) for o in self._session.get_outputs()}
        wanted: dict[str, Any] = dict.fromkeys(OUTPUTS, ("tensor(float)", ()))
        wanted |= {"scores": ("tensor(float)", (len(kit.manifest.labels),)), "label": ("tensor(int64)", ())}
        if inputs != {("crops", "tensor(uint8)", kit.manifest.crop_shape)} or outputs != wanted:
            raise KitError("The graph of the kit does not match its manifest.", "Build the kit again.")
        self.liveness: LivenessModel | None = None
        if kit.liveness is not None and kit.manifest.liveness is not None:
            self.liveness = LivenessModel(kit.liveness, kit.manifest.liveness, threads=threads)

    @classmethod
    def load(cls, path: str | Path, *, public_key: bytes | None = None, **settings: Any) -> "Recognizer":
        """Load a kit file. With a `public_key` (PEM), the kit must be signed with it. `settings` are those of Recognizer."""
        return cls(kits.read(path, public_key), **settings)

    @cached_property
    def detector(self) -> YuNetDetector:
        """The face detector, loaded on first use because crops do not need it."""
        if self.kit.manifest.alignment == NO_ALIGNMENT:
            raise KitError(
                "The kit was trained on cropped photos. It cannot recognise faces in a frame.",
                "Train without --cropped, on photos as a camera takes them.",
            )
        if self.kit.detector is None:
            raise DetectorMissingError("The kit has no face detector.", "Build the kit with --detector yunet.")
        return YuNetDetector(self.kit.detector, min_face=self.min_face, threads=self.threads)

    def recognize(self, image: NDArray[np.uint8], *, min_face: int | None = None) -> list[Recognition]:
        """Return one Recognition per face in a BGR frame (H, W, 3), the largest face first."""
        return self.look(image, self.find(image, min_face=min_face))

    def find(self, image: NDArray[np.uint8], *, min_face: int | None = None) -> list[Face]:
        """Return the faces in a BGR frame (H, W, 3), the largest face first. Enough to track them."""
        with self.stage(DETECT):
            return self.detector.find(image, min_face)

    def look(
        self, image: NDArray[np.uint8], faces: Sequence[Face], *, liveness: LivenessModel | None = None
    ) -> list[Recognition]:
        """Return one Recognition for each of the given faces, which `find` found in the same frame.

        With a `liveness` model, faces with a label are scored, and faces that fill the frame get no label: they cannot be.
        """
        if not faces:
            return []
        with self.stage(ALIGN):
            faces = [self.detector.refine(face, image) for face in faces]
            grey: NDArray[Any] = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
            frame = image if self.kit.manifest.colour else grey
            crops = [self.crop(frame, face) for face in faces]
            qualities = [assess(grey, face, self.limits, crop) for face, crop in zip(faces, crops, strict=True)]
            if liveness is not None:
                too_close = [not liveness.sees_enough(image, face.box_xyxy) for face in faces]
                qualities = [
                    replace(quality, reason=TOO_CLOSE) if close and quality.reason is None else quality
                    for quality, close in zip(qualities, too_close, strict=True)
                ]
        good = [crop for crop, quality in zip(crops, qualities, strict=True) if quality.reason is None]
        threshold = self.kit.manifest.thresholds.confidence
        recognized = iter(self.recognize_crops(np.stack(good)) if good else [])
        results = []
        for face, quality in zip(faces, qualities, strict=True):
            found = next(recognized) if quality.reason is None else Recognition(threshold=threshold, reason=quality.reason)
            live = None
            if liveness is not None and found.label is not None:
                with self.stage(LIVENESS):
                    live = liveness.score(image, face.box_xyxy)
            results.append(replace(found, box_xyxy=face.box_xyxy, landmarks=face.landmarks, quality=quality, live=live))
        return results

    def crop(self, image: NDArray[np.uint8], face: Face) -> NDArray[np.uint8]:
        """Return the crop of a face in a BGR frame, like those that the kit was trained on. If they are grey, so may it be."""
        if image.ndim == 3 and not self.kit.manifest.colour:
            image = np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2GRAY), np.uint8)
        return align(image, face.landmarks, self.kit.manifest.size, self.kit.manifest.alignment)

    def outputs(self, crops: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """Return the graph's outputs for crops (N, H, W), or (N, H, W, 3) in colour: scores (N, C), and the others (N,)."""
        shape = self.kit.manifest.crop_shape
        if crops.dtype != np.uint8 or crops.shape[1:] != shape:
            wanted = " x ".join(map(str, ("N", *shape)))
            raise ValueError(f"crops must be uint8, {wanted}, not {crops.dtype} {crops.shape}")
        return dict(zip(OUTPUTS, self._session.run(OUTPUTS, {"crops": crops}), strict=True))

    def recognize_crops(self, crops: NDArray[np.uint8]) -> list[Recognition]:
        """Return one Recognition per crop (N, H, W), or (N, H, W, 3) in colour."""
        if len(crops) == 0:
            return []
        with self.stage(RECOGNISE):
            outputs = self.outputs(crops)
        return [self._recognition({name: values[i] for name, values in outputs.items()}) for i in range(len(crops))]

    def _recognition(self, outputs: dict[str, Any]) -> Recognition:
        manifest = self.kit.manifest
        thresholds = manifest.thresholds
        nearest = manifest.labels[int(outputs["label"])]
        confidence, residual, scores = float(outputs["confidence"]), float(outputs["residual"]), outputs["scores"]
        failed = {
            INVALID_OUTPUT: not all(np.isfinite(outputs[name]).all() for name in OUTPUTS),
            BLANK_IMAGE: outputs["code_norm"] == 0,
            HIGH_RESIDUAL: residual > thresholds.residual,
            LOW_CONFIDENCE: confidence < thresholds.confidence,
        }
        reason = next((reason for reason, holds in failed.items() if holds), RECOGNISED)
        unit = None
        if reason != INVALID_OUTPUT:
            unit = (scores / score_norm(scores)).astype(np.float64)  # a visit sums up in double precision
            unit.setflags(write=False)
        return Recognition(
            label=nearest if reason == RECOGNISED else None,
            nearest=nearest,
            confidence=confidence,
            threshold=thresholds.confidence,
            margin=float(outputs["margin"]),
            residual=residual,
            code_norm=float(outputs["code_norm"]),
            reason=reason,
            scores=unit,
            score_length=1.0 if reason == INVALID_OUTPUT else float(score_length(scores, manifest.confidence)),
        )
