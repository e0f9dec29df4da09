"""`trainer tune`: choose parameters."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, get_args

import typer

from edge.cli import common as console
from edge.errors import UsageError
from edge.files import write_file
from edge.vision.preprocess import KINDS
from trainer import tuning
from trainer.baselines.registry import METHODS, DeviceMethod, method_of
from trainer.cli import options
from trainer.features.spec import parse_network
from trainer.presets import NETWORK_ETAS, to_toml


def _help(name: str) -> str:
    values = (METHODS["lclrrdl"].photo_grid or {})[name]
    return f"Comma-separated values (lclrrdl: {_listed(values)})."


def _listed(values: tuple[float, ...]) -> str:
    return ",".join(f"{value:g}" for value in values)


def tune(
    photos: options.Photos,
    output: Annotated[Path, typer.Option("-o", "--output", help="The TOML file to write.")] = Path("tuned.toml"),
    cropped: options.Cropped = False,
    size: options.Size = None,
    method: options.MethodName = "lclrrdl",
    coding: Annotated[options.Coding, typer.Option(help="How the device codes a face.")] = "l1",
    atoms: Annotated[int, typer.Option(min=1, help="Dictionary atoms per person.")] = 5,
    features: Annotated[str, typer.Option(help="Comma-separated kinds; or one of sface, onnx:FILE, sface+both.")] = ",".join(
        KINDS
    ),
    lam: Annotated[str | None, typer.Option(help=_help("lam"))] = None,
    alpha: Annotated[str | None, typer.Option(help=_help("alpha"))] = None,
    gamma: Annotated[str | None, typer.Option(help=_help("gamma"))] = None,
    eta: Annotated[str | None, typer.Option(help=f"{_help('eta')} With a network: {_listed(NETWORK_ETAS)}.")] = None,
    folds: Annotated[int, typer.Option(min=2, help="Folds of the cross-validation.")] = 4,
    hard: Annotated[bool, typer.Option(help="Move, relight and cover the held-out photos.")] = True,
    jobs: Annotated[int, typer.Option(help="Processes; -1 for all cores.")] = -1,
    seed: options.Seed = 0,
) -> None:
    """Choose parameters by cross-validation on the training photos."""
    options.check_writable(output)
    kinds = features.split(",") if set(features.split(",")) <= set(KINDS) else [features]
    network = parse_network(kinds[0], console.say)
    values = {"lam": lam, "alpha": alpha, "gamma": gamma, "eta": eta}
    with console.progress("Reading photos") as line:
        gallery = options.gallery_loader(photos, cropped, size, line)(network)
    options.print_notes(gallery.notes)
    with console.progress("Tuning") as line:
        candidates, best, parameters = tuning.tune_gallery(
            gallery,
            method_of(method),
            features=kinds,
            network=network,
            atoms=atoms,
            coding=coding,
            values={name: _numbers(name, text) for name, text in values.items() if text is not None},
            folds=folds,
            hard=hard,
            seed=seed,
            jobs=jobs,
            progress=line.count,
        )
    typer.echo(options.candidate_table(candidates))
    typer.echo(f"chosen (within one standard error of the best): {best.parameters}")
    comment = f"{shlex.join(['trainer', *sys.argv[1:]])}\n{best.accuracy:.2f} % on held-out photos"
    write_file(output, to_toml(parameters, comment).encode(), mode=0o644)
    train = f"; train with: trainer fit {shlex.quote(str(photos))} --method {method} --config {shlex.quote(str(output))}"
    console.say(f"Saved {output}{train if method in get_args(DeviceMethod) else ''}")


def _numbers(name: str, text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = (0.0,)
    if min(values) <= 0:
        raise UsageError(f"--{name} {text} is not a list of positive numbers.", f"For example --{name} 0.05,0.5.")
    return values
