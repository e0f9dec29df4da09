"""Builds a kit from a model: measures, packs, signs and compares it with the trainer."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from edge.errors import PrecisionLossError, UsageError
from edge.kit import format as kits
from export import graph, measure, run
from export.liveness import LivenessPart
from export.measure import Choice, Faces
from export.nodes import PRECISIONS, Precision
from export.pack import bundle
from export.verify import Parity, verify_kit
from trainer.data.gallery import Gallery
from trainer.model import Model
from trainer.types import Array


@dataclass(frozen=True, kw_only=True)
class BuiltKit:
    """A kit, and the measurements of its build."""

    kit: bytes
    """The file."""
    choice: Choice
    """The number of iterations, and what each number would give."""
    timings: dict[int, float]
    """Microseconds per face by iterations, measured here: for the chosen number; if compared, also for one and all."""
    accuracies: dict[str, float]
    """Accuracy of the graph by precision: fp32 and the chosen one; without a network all that fit into a kit."""
    graph_bytes: dict[str, int]
    """Size of the graph by precision."""
    precision_timings: dict[str, float]
    """Microseconds per face by precision, measured here."""
    judged_on: str
    """The faces on which accuracies and loss were measured."""
    parities: list[Parity]
    """The kit compared with the trainer, by kind of crops."""


def build_kit(
    model: Model,
    *,
    precision: Precision = "fp32",
    iterations: int | None = None,
    data: Gallery | None = None,
    allow_loss: bool = False,
    detector: bytes | None = None,
    liveness: LivenessPart | None = None,
    private_key: bytes | None = None,
    kit_version: int = 1,
    series: str = "",
    compared: bool = True,
    report: Callable[[str], None] = lambda _: None,
) -> BuiltKit:
    """Choose iterations, build the graph, measure loss and thresholds, pack, sign, verify. `data`: held-out faces.

    Without `compared`, what the kit does not need is not measured: times of other iterations, and with a network other
    precisions. The kit is the same.
    """
    report("calibration faces")
    factors = graph.factors_of(model)
    hard = measure.hardened(model)
    unseen = None if data is None else measure.held_out(model, data)
    faces = hard
    if unseen is not None:
        faces = Faces(crops=np.concatenate([hard.crops, unseen.crops]), people=np.concatenate([hard.people, unseen.people]))
    choice = measure.choose_iterations(model, factors, faces, iterations, report)

    report("precision")
    chosen = graph.build(choice.factors, model.spec, precision)
    if len(chosen) > kits.MAX_BYTES:
        raise UsageError(
            f"The graph has {len(chosen) >> 20} MB, but a kit holds at most {kits.MAX_BYTES >> 20}.",
            "Use --precision int8, or a smaller embedding model.",
        )
    judged = hard if unseen is None else unseen
    crop = model.crops[:1][0]
    needed = PRECISIONS if compared or model.spec.network is None else dict.fromkeys(("fp32", precision))
    measured = {name: _measured(model, choice, name, chosen if name == precision else None, judged, crop) for name in needed}
    accuracies: dict[str, float] = {name: found.accuracy for name, found in measured.items() if found.accuracy is not None}
    loss = accuracies["fp32"] - accuracies[precision]
    if loss > measure.LOSS and not allow_loss:
        raise PrecisionLossError(
            f"{precision} costs {100 * loss:.2f} points of accuracy on {len(judged.crops)} faces, more than "
            f"{100 * measure.LOSS:g}.",
            "Use a finer --precision, or pass --allow-loss.",
        )

    report("thresholds")
    thresholds, passed = measure.thresholds(chosen, faces, model.calibration, model.confidence)
    judged_on = "hardened training faces" if unseen is None else "held-out faces"
    calibration = {"faces": len(faces.crops), "converged_accuracy": choice.converged_accuracy, "chosen": asdict(choice.row)}
    calibration |= {"judged_on": judged_on, "accuracy": accuracies, **passed}
    kit = bundle(
        model,
        chosen,
        coding=choice.coding,
        precision=precision,
        thresholds=thresholds,
        calibration=calibration,
        detector=detector,
        liveness=liveness,
        private_key=private_key,
        kit_version=kit_version,
        series=series,
    )
    report("parity")
    parities = verify_kit(kits.parse(kit), model=model, measured=faces.crops)
    timings = {choice.coding.iterations: measured[precision].microseconds}
    if compared:
        report("timings")
    for k in {1, len(choice.rows)} - timings.keys() if compared else ():
        unrolled = graph.build(choice.factors.with_iterations(k), model.spec, precision)
        timings[k] = measure.microseconds(unrolled, choice.coding, crop)
    return BuiltKit(
        kit=kit,
        choice=choice,
        timings=dict(sorted(timings.items())),
        accuracies=accuracies,
        graph_bytes={name: found.bytes for name, found in measured.items()},
        precision_timings={name: found.microseconds for name, found in measured.items()},
        judged_on=f"{len(judged.crops)} {judged_on}",
        parities=parities,
    )


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """Measurements of the graph in one precision."""

    bytes: int
    accuracy: float | None
    microseconds: float


def _measured(
    model: Model, choice: Choice, precision: Precision, built: bytes | None, judged: Faces, crop: Array
) -> _Measured:
    """Measure the graph `built`, or build it first. With many people the graphs are large: only one exists at a time.

    fp32 is what the other precisions are compared with, even if it does not fit into a kit.
    """
    is_chosen = built is not None
    built = graph.build(choice.factors, model.spec, precision) if built is None else built
    if precision == "fp32" and model.spec.network is not None:
        run.remember(built, model.spec.network)
    is_quick = model.spec.network is None and len(built) <= kits.MAX_BYTES
    is_used = precision == "fp32" or is_chosen or is_quick
    return _Measured(
        bytes=len(built),
        accuracy=measure.accuracy(built, judged) if is_used else None,
        microseconds=measure.microseconds(built, choice.coding, crop),
    )


def build_graph(model: Model, precision: Precision = "fp32", iterations: int | None = None) -> bytes:
    """Return only the graph, with the model's number of iterations by default."""
    factors = graph.factors_of(model)
    return graph.build(factors if iterations is None else factors.with_iterations(iterations), model.spec, precision)


def facts(kit: kits.Kit) -> dict[str, Any]:
    """Return a description of a kit without names and weights."""
    manifest = asdict(kit.manifest)
    people, parts = len(manifest.pop("labels")), {kits.RECOGNIZER: len(kit.recognizer)}
    if kit.detector:
        parts[kits.DETECTOR] = len(kit.detector)
    if kit.liveness:
        parts[kits.LIVENESS] = len(kit.liveness)
    return {
        "kit": kit.sha256,
        "bytes": kit.length,
        "version": manifest.pop("kit_version"),
        "people": people,
        "strangers": kit.manifest.thresholds.sentence,
        "signature": kit.signature,
        **{name: value for name, value in manifest.items() if name != "selftest"},
        "parts": parts,
    }
