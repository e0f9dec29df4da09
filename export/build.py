"""From a model to a kit that has been measured, checked and compared with the trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from threadpoolctl import threadpool_limits

from edge.errors import PrecisionLossError, UsageError
from edge.kit import format as kits
from edge.kit.manifest import Thresholds
from export import graph
from export import measure as calibrate
from export.baseline_graph import BaselineFactors
from export.graph import Factors, Precision
from export.measure import Choice
from export.pack import bundle
from export.verify import Parity, verify
from trainer.data.gallery import Gallery
from trainer.model import Model


def quiet(_: str) -> None:
    """Where nobody wants to know."""


@dataclass(frozen=True, kw_only=True)
class Built:
    """A kit, and what was found on the way."""

    kit: bytes
    choice: Choice
    timings: dict[int, float]
    """Microseconds per face by iterations, measured here."""
    accuracies: dict[str, float]
    """Through the graph, by precision."""
    graph_bytes: dict[str, int]
    """Of the graph, by precision."""
    precision_timings: dict[str, float]
    """Microseconds per face by precision, measured here."""
    judged_on: str
    """The faces that accuracies and loss were measured on."""
    thresholds: Thresholds
    passed: dict[str, float]
    parities: list[Parity]


def build(
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
    report: Callable[[str], None] = quiet,
) -> Built:
    """Choose the iterations, build the graph, measure the precision's loss, set thresholds, pack, sign, verify."""
    factors = factorise(model)
    hard = calibrate.hardened(model)
    unseen = None if data is None else calibrate.held_out(model, data)
    faces = hard if unseen is None else calibrate.together(hard, unseen)
    choice = calibrate.choose(model, factors, faces, iterations, report)

    report("precision")
    graphs = {name: graph.build(factors, model.spec, choice.coding, name) for name in graph.PRECISIONS}
    if len(graphs[precision]) > kits.MAX_BYTES:
        raise UsageError(
            f"The graph takes {len(graphs[precision]) >> 20} MB, and a kit has room for {kits.MAX_BYTES >> 20}.",
            "Use --precision int8, or a smaller embedding model.",
        )
    judged = hard if unseen is None else unseen
    accuracies: dict[str, float] = {name: calibrate.accuracy(built, judged) for name, built in graphs.items()}
    loss = accuracies["fp32"] - accuracies[precision]
    if loss > calibrate.LOSS and not allow_loss:
        raise PrecisionLossError(
            f"{precision} costs {100 * loss:.2f} points of accuracy ({len(judged.crops)} faces), more than "
            f"{100 * calibrate.LOSS:g}.",
            "Take a finer --precision, or pass --allow-loss.",
        )

    report("thresholds")
    thresholds, passed = calibrate.thresholds(graphs[precision], faces, model.calibration)
    judged_on = "hardened training faces" if unseen is None else "held-out faces"
    data_of_kit = bundle(
        model,
        graphs[precision],
        coding=choice.coding,
        precision=precision,
        thresholds=thresholds,
        calibration={
            "faces": choice.faces,
            "converged_accuracy": choice.converged_accuracy,
            "chosen": asdict(choice.row),
            "judged_on": judged_on,
            "accuracy": accuracies,
            **passed,
        },
        detector=detector,
        private_key=private_key,
        kit_version=kit_version,
        series=series,
    )
    report("parity")
    parities = verify(kits.parse(data_of_kit), model=model)
    report("timings")
    return Built(
        kit=data_of_kit,
        choice=choice,
        timings=_timings(model, factors, choice, precision),
        accuracies=accuracies,
        graph_bytes={name: len(built) for name, built in graphs.items()},
        precision_timings={
            name: calibrate.microseconds(built, choice.coding, model.crops[0]) for name, built in graphs.items()
        },
        judged_on=f"{len(judged.crops)} {judged_on}",
        thresholds=thresholds,
        passed=passed,
        parities=parities,
    )


def factorise(model: Model) -> Factors | BaselineFactors:
    """Factors of a model that a device can use. One thread, so that the same model gives the same bits on one machine."""
    if model.coding.kind == "batch":
        raise UsageError(
            f"A device codes one face at a time, and cannot use the coding {model.coding.kind}.", "Train with l1 or l21."
        )
    with threadpool_limits(1):
        return graph.factors_of(model)


def bare(model: Model, precision: Precision, iterations: int | None) -> bytes:
    """The graph alone, with the model's own number of iterations unless told otherwise."""
    coding = model.coding if iterations is None else replace(model.coding, iterations=iterations)
    return graph.build(factorise(model), model.spec, coding, precision)


def _timings(model: Model, factors: Factors | BaselineFactors, choice: Choice, precision: Precision) -> dict[int, float]:
    chosen, last = choice.coding.iterations, len(choice.rows)
    shown = sorted({k for k in (1, 2, 4, 8, 12, 20, chosen - 1, chosen, chosen + 1) if 1 <= k <= last})
    codings = [replace(choice.coding, iterations=k) for k in shown]
    return {
        coding.iterations: calibrate.microseconds(graph.build(factors, model.spec, coding, precision), coding, model.crops[0])
        for coding in codings
    }


def facts(kit: kits.Kit) -> dict[str, Any]:
    """What a kit is, for people and scripts: no name, no weight."""
    manifest = kit.manifest
    return {
        "kit": kit.sha256,
        "bytes": kit.length,
        "version": manifest.kit_version,
        "series": manifest.series,
        "people": len(manifest.labels),
        "crop": dict(manifest.crop),
        "alignment": manifest.alignment,
        "features": dict(manifest.features),
        "coding": dict(manifest.coding),
        "precision": manifest.precision,
        "thresholds": asdict(manifest.thresholds),
        "strangers": manifest.thresholds.sentence,
        "model": dict(manifest.model),
        "calibration": dict(manifest.calibration),
        "signature": kit.signature,
        "parts": {
            kits.RECOGNIZER: len(kit.recognizer),
            **({kits.DETECTOR: len(kit.detector)} if kit.detector else {}),
        },
        "versions": dict(manifest.versions),
    }
