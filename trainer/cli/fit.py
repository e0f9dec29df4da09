"""`trainer fit`: train a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from edge.cli import common as console
from edge.errors import UsageError
from edge.text import percent
from edge.vision.preprocess import KINDS
from trainer import training
from trainer.baselines.registry import DeviceMethod
from trainer.cli.options import (
    PARTS,
    Coding,
    Cropped,
    Photos,
    Schedule,
    Seed,
    Size,
    SkipBad,
    Threads,
    blas_threads,
    check_writable,
    parse_parts,
    parse_size,
    print_notes,
)
from trainer.data.augment import COPIES
from trainer.method.solver import Step
from trainer.presets import DEFAULT, Preset
from trainer.thresholds import FOLDS, FPIR

Locality = Literal["exp", "squared"]
ClassifierCodes = Literal["coder", "training"]
FEATURES = f"Features of a face: {', '.join(KINDS)}, sface, onnx:FILE[,mean=M][,scale=S], or sface+both."


def fit(
    photos: Photos,
    output: Annotated[Path, typer.Option("-o", "--output", help="The model file to write.")],
    cropped: Cropped = False,
    size: Size = None,
    skip_bad: SkipBad = False,
    method: Annotated[DeviceMethod, typer.Option(help="The training method.")] = "lclrrdl",
    preset: Annotated[
        Preset | None, typer.Option(help=f"Named parameters (default: {DEFAULT}; for a network: sface).")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file of parameters, as `tune` writes it.")] = None,
    atoms: Annotated[int | None, typer.Option(min=1, help="Dictionary atoms per person.")] = None,
    features: Annotated[str | None, typer.Option(help=FEATURES)] = None,
    coding: Annotated[Coding | None, typer.Option(help="How the device codes a face.")] = None,
    parts: Annotated[str | None, typer.Option(metavar=PARTS, help="Grid of face parts with their own classifier.")] = None,
    lam: Annotated[float | None, typer.Option(help="Weight of the error E.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Weight of locality.")] = None,
    gamma: Annotated[float | None, typer.Option(help="Weight of the size of D.")] = None,
    eta: Annotated[float | None, typer.Option(help="Ridge of the classifier.")] = None,
    locality: Annotated[Locality | None, typer.Option(help="Form of the weights R.")] = None,
    schedule: Annotated[Schedule | None, typer.Option(help="Penalty schedule of the solver.")] = None,
    classifier_codes: Annotated[ClassifierCodes | None, typer.Option(help="Codes that W is learned on.")] = None,
    augment: Annotated[bool, typer.Option("--augment", help="Add altered copies: moved, relit, covered.")] = False,
    copies: Annotated[int | None, typer.Option(min=1, help=f"With --augment: copies of each photo ({COPIES}).")] = None,
    doubt: Annotated[bool, typer.Option(help="Leave out photos whose name is probably wrong, and list them.")] = True,
    fpir: Annotated[float, typer.Option(help="Share of strangers' photos that may get a name.")] = FPIR,
    calibrate: Annotated[bool, typer.Option(help=f"Measure the threshold against strangers ({FOLDS} more trainings).")] = True,
    strangers: Annotated[
        Path | None, typer.Option(help="Photos of people who are not enrolled, for the threshold: a folder, .npz or .mat.")
    ] = None,
    seed: Seed = 0,
    threads: Threads = None,
) -> None:
    """Train a model on photos of the people to enrol, and measure the threshold that rejects strangers."""
    if copies is not None and not augment:
        raise UsageError("--copies needs --augment.", "Add --augment, or leave --copies out.")
    options = {
        "atoms_per_class": atoms,
        "features": features,
        "coding": coding,
        "lam": lam,
        "alpha": alpha,
        "gamma": gamma,
        "eta": eta,
        "locality": locality,
        "schedule": schedule,
        "classifier_codes": classifier_codes,
        "copies": (copies or COPIES) if augment else None,
        "doubt": None if doubt else False,
    }
    parameters = {name: value for name, value in options.items() if value is not None}
    settings = training.FitSettings(
        photos=photos,
        cropped=cropped,
        size=parse_size(size),
        skip_bad=skip_bad,
        method=method,
        preset=preset,
        config=config,
        parameters=parameters if parts is None else parameters | {"parts": parse_parts(parts)},
        fpir=fpir,
        calibrate=calibrate,
        strangers=strangers,
        seed=seed,
    )
    check_writable(output)
    with console.progress("Reading photos") as line:
        job = training.prepare(settings, progress=line.count, say=console.say)
    print_notes(job.notes)
    with console.progress("Training") as line, blas_threads(threads):

        def show(step: Step) -> None:
            line(f"iteration {step.iteration}, residual {max(step.residuals):.1e}, rank {step.rank}")

        def count(done: int, folds: int) -> None:
            line(f"measuring the threshold, fold {done + 1} of {folds}")

        model, notes = training.train(job, callback=show, progress=count)
    model.save(output)
    how = f"{model.training['iterations']} iterations" if job.is_lclrrdl else job.method.title
    console.say(
        f"Saved {output}: {len(model.labels)} people from {len(model.crops)} photos, {model.D.shape[1]} atoms of "
        f"{model.D.shape[0]} values ({model.spec.kind}), {how}; "
        f"{percent(model.training['accuracy'])} of the training photos recognised."
    )
    if model.calibration is not None:
        console.say(model.calibration.summary())
    print_notes(notes)
