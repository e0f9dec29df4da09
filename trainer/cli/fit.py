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
from trainer.presets import DEFAULT, ONE_SHARD, Preset
from trainer.shards.work import work_folder
from trainer.thresholds import FOLDS, FPIR

FEATURES = f"Features of a face: {', '.join(KINDS)}, sface, onnx:FILE[,order=bgr][,mean=M][,scale=S], or sface+both."
PRESET = f"Named parameters (default: {DEFAULT}; for our own features: tiny)."
PARTS_HELP = "Grid of face parts with their own classifier, or none. Not with a network."
AUGMENT = "Add altered copies: moved, relit, covered. Not with a network."
CALIBRATE = f"Measure the threshold against strangers ({FOLDS} more trainings)."
STRANGERS = "Photos of people who are not enrolled, for the threshold: a folder, .npz or .mat."
SCHEDULER = "Dask scheduler whose workers train more than 200 people; without it, the cores of this machine."
LABEL_WEIGHT = "Weight of the names while D is learned (0). Try 0.3 with one or two atoms per person and correct names."
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
    label_weight: Annotated[float | None, typer.Option(min=0, help=LABEL_WEIGHT)] = None,
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
    scheduler: Annotated[str | None, typer.Option(metavar="ADDRESS", help=SCHEDULER)] = None,
    seed: options.Seed = 0,
    threads: options.Threads = None,
) -> None:
    """Train a model on photos of the people to enrol, and measure the threshold that rejects strangers.

    More than 200 people are trained in shards. If that is interrupted, the same command continues it.
    """
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
        "label_weight": label_weight,
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
    with work_folder(output) as work:
        with console.progress("Reading photos") as line:
            job = training.prepare(
                options.gallery_loader(photos, cropped, size, line, work.crops_file),
                strangers,
                method=method_of(method),
                preset=preset,
                config=config,
                options=given,
                progress=line.count,
                say=console.say,
            )
        options.print_notes(job.notes)
        in_shards = training.needs_shards(len(job.gallery.people), job.method.estimator, job.parameters)
        if scheduler is not None and not in_shards:
            console.say(f"note: --scheduler is not used: {ONE_SHARD} people or fewer are trained on this machine.")
        how: dict[str, Any] = {"method": job.method.estimator, "fpir": fpir if calibrate else None}
        how |= {"strangers": job.strangers, "work": work, "scheduler": scheduler, "jobs": threads or -1}
        with console.progress("Training") as line, threadpool_limits(threads):

            def show(step: Step) -> None:
                line(f"iteration {step.iteration}, residual {max(step.residuals):.1e}, rank {step.rank}")

            try:
                model = training.train(job.gallery, job.spec, job.parameters, show, stage=options.StageLine(line), **how)
            except KeyboardInterrupt:
                if work.path.exists():
                    console.say(f"\nFinished parts are in {work.path}: the same command continues with them.")
                raise
        model.save(output)
    learned = model.summary() if in_shards or "iterations" in model.training else f"{model.summary()}, {job.method.title}"
    console.say(
        f"Saved {output}: {len(model.labels)} people from {len(model.crops)} photos, {learned} "
        f"({_features_of(model.spec)}); {percent(model.training['accuracy'])} of the training photos recognised."
    )
    if model.calibration is not None:
        console.say(model.calibration.summary())
    options.print_notes(training.result_notes(job, model, calibrated=calibrate))


def _features_of(spec: Spec) -> str:
    kinds = [] if spec.own is None else [spec.own.kind]
    return " and ".join(kinds if spec.network is None else ["network", *kinds])
