"""Builds a kit from a model: measures, packs, signs and compares it with the trainer."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from edge.errors import PrecisionLossError, UsageError
from edge.kit import format as kits
from export import graph, measure
from export.measure import Choice, Faces
from export.nodes import PRECISIONS, Precision
from export.pack import bundle
from export.verify import Parity, verify_kit
from trainer.data.gallery import Gallery
from trainer.model import Model


@dataclass(frozen=True, kw_only=True)
class BuiltKit:
    """A kit, and the measurements of its build."""

    kit: bytes
    choice: Choice
    timings: dict[int, float]
    """Microseconds per face by iterations, measured here."""
    accuracies: dict[str, float]
    """Accuracy of the graph by precision."""
    graph_bytes: dict[str, int]
    """Size of the graph by precision."""
    precision_timings: dict[str, float]
    """Microseconds per face by precision, measured here."""
    judged_on: str
    """The faces on which accuracies and loss were measured."""
    parities: list[Parity]


def build_kit(
    model: Model,
    *,
    precision: Precision = "fp32",
    iterations: int | None = None,
    data: Gallery | None = None,
    allow_loss: bool = False,
    detector: bytes | None = None,
    private_key: bytes | None = None,
    kit_version: int = 1,
    series: str = "",
    report: Callable[[str], None] = lambda _: None,
) -> BuiltKit:
    """Choose iterations, build the graph, measure loss and thresholds, pack, sign, verify. `data`: held-out faces."""
    factors = graph.factors_of(model)
    hard = measure.hardened(model)
    unseen = None if data is None else measure.held_out(model, data)
    faces = hard
    if unseen is not None:
        faces = Faces(crops=np.concatenate([hard.crops, unseen.crops]), people=np.concatenate([hard.people, unseen.people]))
    choice = measure.choose_iterations(model, factors, faces, iterations, report)

    report("precision")
    graphs = {name: graph.build(choice.factors, model.spec, name) for name in PRECISIONS}
    if len(graphs[precision]) > kits.MAX_BYTES:
        raise UsageError(
            f"The graph has {len(graphs[precision]) >> 20} MB, but a kit holds at most {kits.MAX_BYTES >> 20}.",
            "Use --precision int8, or a smaller embedding model.",
        )
    if model.spec.network is not None:
        measure.remember(graphs["fp32"], model.spec.network)
    judged = hard if unseen is None else unseen
    accuracies: dict[str, float] = {name: measure.accuracy(built, judged) for name, built in graphs.items()}
    loss = accuracies["fp32"] - accuracies[precision]
    if loss > measure.LOSS and not allow_loss:
        raise PrecisionLossError(
            f"{precision} costs {100 * loss:.2f} points of accuracy on {len(judged.crops)} faces, more than "
            f"{100 * measure.LOSS:g}.",
            "Use a finer --precision, or pass --allow-loss.",
        )

    report("thresholds")
    thresholds, passed = measure.thresholds(graphs[precision], faces, model.calibration, model.confidence)
    judged_on = "hardened training faces" if unseen is None else "held-out faces"
    measured = {"faces": len(faces.crops), "converged_accuracy": choice.converged_accuracy, "chosen": asdict(choice.row)}
    measured |= {"judged_on": judged_on, "accuracy": accuracies, **passed}
    kit = bundle(
        model,
        graphs[precision],
        coding=choice.coding,
        precision=precision,
        thresholds=thresholds,
        calibration=measured,
        detector=detector,
        private_key=private_key,
        kit_version=kit_version,
        series=series,
    )
    report("parity")
    parities = verify_kit(kits.parse(kit), model=model)
    report("timings")
    chosen, last = choice.coding.iterations, len(choice.rows)
    shown = sorted({k for k in (1, 2, 4, 8, 12, 20, chosen - 1, chosen, chosen + 1) if 1 <= k <= last})
    unrolled = {k: graph.build(choice.factors.with_iterations(k), model.spec, precision) for k in shown}
    return BuiltKit(
        kit=kit,
        choice=choice,
        timings={k: measure.microseconds(built, choice.coding, model.crops[0]) for k, built in unrolled.items()},
        accuracies=accuracies,
        graph_bytes={name: len(built) for name, built in graphs.items()},
        precision_timings={name: measure.microseconds(built, choice.coding, model.crops[0]) for name, built in graphs.items()},
        judged_on=f"{len(judged.crops)} {judged_on}",
        parities=parities,
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
