"""`trainer fit`: train a model."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from threadpoolctl import threadpool_limits

from edge.cli import common as console
from edge.errors import UsageError
from edge.text import percent
from edge.vision.preprocess import KINDS
from trainer import training
from trainer.baselines.registry import DeviceMethod, method_of
from trainer.cli import options
from trainer.data.augment import COPIES
from trainer.features.spec import Spec
from trainer.method.solver import Step
from trainer.presets import DEFAULT, Preset
from trainer.thresholds import FOLDS, FPIR

FEATURES = f"Features of a face: {', '.join(KINDS)}, sface, onnx:FILE[,order=bgr][,mean=M][,scale=S], or sface+both."
PRESET = f"Named parameters (default: {DEFAULT}; for our own features: tiny)."
PARTS_HELP = "Grid of face parts with their own classifier, or none. Not with a network."
AUGMENT = "Add altered copies: moved, relit, covered. Not with a network."
CALIBRATE = f"Measure the threshold against strangers ({FOLDS} more trainings)."
STRANGERS = "Photos of people who are not enrolled, for the threshold: a folder, .npz or .mat."
Locality = Literal["exp", "squared"]
Schedule = Literal["fast", "paper"]
ClassifierCodes = Literal["coder", "training"]


def fit(
    photos: options.Photos,
    output: Annotated[Path, typer.Option("-o", "--output", help="The model file to write.")],
    cropped: options.Cropped = False,
    size: options.Size = None,
    method: Annotated[DeviceMethod, typer.Option(help="The training method.")] = "lclrrdl",
    preset: Annotated[Preset | None, typer.Option(help=PRESET)] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file of parameters, as `tune` writes it.")] = None,
    atoms: Annotated[int | None, typer.Option(min=1, help="Dictionary atoms per person.")] = None,
    features: Annotated[str | None, typer.Option(help=FEATURES)] = None,
    coding: Annotated[options.Coding | None, typer.Option(help="How the device codes a face.")] = None,
    parts: Annotated[str | None, typer.Option(metavar="ROWSxCOLUMNS", help=PARTS_HELP)] = None,
    lam: Annotated[float | None, typer.Option(help="Weight of the error E.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Weight of locality.")] = None,
    gamma: Annotated[float | None, typer.Option(help="Weight of the size of D.")] = None,
    eta: Annotated[float | None, typer.Option(help="Ridge of the classifier.")] = None,
    locality: Annotated[Locality | None, typer.Option(help="Form of the weights R.")] = None,
    schedule: Annotated[Schedule | None, typer.Option(help="Penalty schedule of the solver.")] = None,
    classifier_codes: Annotated[ClassifierCodes | None, typer.Option(help="Codes that W is learned on.")] = None,
    augment: Annotated[bool, typer.Option("--augment", help=AUGMENT)] = False,
    copies: Annotated[int | None, typer.Option(min=1, help=f"With --augment: copies of each photo ({COPIES}).")] = None,
    doubt: Annotated[bool, typer.Option(help="Leave out photos whose name is probably wrong, and list them.")] = True,
    fpir: Annotated[float, typer.Option(help="Share of strangers' photos that may get a name.")] = FPIR,
    calibrate: Annotated[bool, typer.Option(help=CALIBRATE)] = True,
    strangers: Annotated[Path | None, typer.Option(help=STRANGERS)] = None,
    seed: options.Seed = 0,
    threads: options.Threads = None,
) -> None:
    """Train a model on photos of the people to enrol, and measure the threshold that rejects strangers."""
    if copies is not None and not augment:
        raise UsageError("--copies needs --augment.", "Add --augment, or leave --copies out.")
    if strangers is not None and not calibrate:
        raise UsageError("--strangers needs the measurement that --no-calibrate turns off.", "Use only one of them.")
    if not 0 < fpir < 1:
        raise UsageError(f"--fpir {fpir:g} is not between 0 and 1.", "Choose for example --fpir 0.01.")
    options.check_writable(output)
    parameters = {
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
        "random_state": seed,
    }
    given: dict[str, Any] = {name: value for name, value in parameters.items() if value is not None}
    given |= {} if parts is None else {"parts": None if parts == "none" else options.parse_grid(parts, "--parts")}
    with console.progress("Reading photos") as line:
        job = training.prepare(
            options.gallery_loader(photos, cropped, size, line),
            strangers,
            method=method_of(method),
            preset=preset,
            config=config,
            options=given,
            progress=line.count,
            say=console.say,
        )
    options.print_notes(job.notes)
    with console.progress("Training") as line, threadpool_limits(threads):

        def show(step: Step) -> None:
            line(f"iteration {step.iteration}, residual {max(step.residuals):.1e}, rank {step.rank}")

        def count(done: int, folds: int) -> None:
            line(f"measuring the threshold, fold {done + 1} of {folds}")

        how: dict[str, Any] = {"method": job.method.estimator, "strangers": job.strangers, "progress": count}
        model = training.fit(job.gallery, job.spec, job.parameters, show, fpir=fpir if calibrate else None, **how)
    model.save(output)
    iterations = model.training.get("iterations")
    learned = f"{iterations} iterations" if iterations else job.method.title
    console.say(
        f"Saved {output}: {len(model.labels)} people from {len(model.crops)} photos, {model.D.shape[1]} atoms of "
        f"{model.D.shape[0]} values ({_features_of(model.spec)}), {learned}; "
        f"{percent(model.training['accuracy'])} of the training photos recognised."
    )
    if model.calibration is not None:
        console.say(model.calibration.summary())
    options.print_notes(training.result_notes(job, model, calibrated=calibrate))


def _features_of(spec: Spec) -> str:
    kinds = [] if spec.own is None else [spec.own.kind]
    return " and ".join(kinds if spec.network is None else ["network", *kinds])
