"""The `trainer` command. Each function parses, calls the library, reports."""

from __future__ import annotations

import json
import re
import shlex
import sys
from datetime import date
from inspect import signature
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

from edge.cli import common as console
from edge.errors import UsageError
from edge.files import write_atomically
from edge.kit.manifest import ALIGNMENT
from edge.text import percent, plural, some
from edge.vision.preprocess import KINDS as FEATURES
from edge.vision.preprocess import FeatureSpec
from trainer import model, presets, tuning
from trainer import update as enrolling
from trainer.baselines.registry import DeviceMethod, method_of
from trainer.cli import research as research_cli
from trainer.cli.options import (
    PARTS,
    MethodName,
    Schedule,
    Seed,
    Threads,
    blas_threads,
    parts_grid,
    refuse_unwritable,
    trial_table,
)
from trainer.data import gallery
from trainer.data.augment import COPIES
from trainer.evaluation import measures as evaluation
from trainer.features import illumination as light
from trainer.features.network import SIDE, Network
from trainer.features.spec import Spec, parse_network
from trainer.method.solver import Step
from trainer.thresholds import FEWEST_PEOPLE, FPIR, Rejection

app = console.new_app("Learn to recognise people from photos: dictionary D and classifier W, on a workstation.")

DeviceCoding = Literal["l1", "l21"]
Preset = Literal["door", "light", "sface", "paper"]
Locality = Literal["exp", "squared"]
ClassifierCodes = Literal["coder", "training"]


def _choices(name: str) -> str:
    return f"Comma-separated choices (lclrrdl: {','.join(f'{value:g}' for value in method_of('lclrrdl').tune_grid[name])})."


DESCRIBED_BY = f"What a face is described by: {', '.join(FEATURES)}, sface or onnx:FILE[,mean=M][,scale=S], or sface+both."
Photos = Annotated[Path, typer.Argument(help="A folder per person; or an .npz or .mat file with images and labels.")]
Cropped = Annotated[bool, typer.Option("--cropped", help="The photos of the folder show faces only: take them as they are.")]
Size = Annotated[str | None, typer.Option(metavar="HxW", help="Bring every face to this size (found faces: 80x64).")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave unusable photos out instead of refusing.")]
ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="A file that `fit` wrote.")]
Recalibrate = Annotated[bool, typer.Option("--calibrate", help="Measure the threshold against strangers again.")]


@app.command()
def fit(
    photos: Photos,
    output: Annotated[Path, typer.Option("-o", "--output", help="The model file to write.")],
    cropped: Cropped = False,
    size: Size = None,
    skip_bad: SkipBad = False,
    method: Annotated[DeviceMethod, typer.Option(help="The method to learn with.")] = "lclrrdl",
    preset: Annotated[Preset | None, typer.Option(help="Parameters to start from (default: door, or sface).")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML of parameters, as `tune` writes it.")] = None,
    atoms: Annotated[int | None, typer.Option(min=1, help="Dictionary atoms per person.")] = None,
    features: Annotated[str | None, typer.Option(help=DESCRIBED_BY)] = None,
    coding: Annotated[DeviceCoding | None, typer.Option(help="How the device codes a face.")] = None,
    parts: Annotated[str | None, typer.Option(metavar=PARTS, help="Parts of the face beside the whole.")] = None,
    lam: Annotated[float | None, typer.Option(help="Weight of the error E.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Weight of locality.")] = None,
    gamma: Annotated[float | None, typer.Option(help="Weight of the size of D.")] = None,
    eta: Annotated[float | None, typer.Option(help="Ridge of the classifier.")] = None,
    locality: Annotated[Locality | None, typer.Option(help="Form of the weights R.")] = None,
    schedule: Annotated[Schedule | None, typer.Option(help="Penalty schedule of the solver.")] = None,
    classifier_codes: Annotated[ClassifierCodes | None, typer.Option(help="Codes that W is learned on.")] = None,
    augment: Annotated[bool, typer.Option("--augment", help="Learn from altered copies too: moved, relit, covered.")] = False,
    copies: Annotated[int | None, typer.Option(min=1, help=f"With --augment: copies of each photo ({COPIES}).")] = None,
    doubt: Annotated[bool, typer.Option(help="Leave photos out that seem to have a wrong name, and tell.")] = True,
    fpir: Annotated[float, typer.Option(help="Share of strangers' photos that may be given a name.")] = FPIR,
    calibrate: Annotated[bool, typer.Option(help="Measure that, by leaving people out; five more trainings.")] = True,
    strangers: Annotated[
        Path | None, typer.Option(help="Measure it also on photos of people who are not enrolled: a folder, .npz or .mat.")
    ] = None,
    seed: Seed = 0,
    threads: Threads = None,
) -> None:
    """Train a model on photos of the people to be recognised, and set the threshold that keeps others out."""
    chosen, own = method_of(method), method == "lclrrdl"
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
    usual = presets.PRESETS[presets.DEFAULT]
    given = tuning.from_toml(config, usual if own else signature(chosen.estimator).parameters) if config else {}
    given |= {name: value for name, value in options.items() if value is not None}
    if own:
        parameters = presets.PRESETS[preset or presets.usual(given.get("features"))] | given
    else:
        strange = {name: value for name, value in (("preset", preset), ("parts", parts)) if value is not None}
        parameters = {"features": usual["features"]} | chosen.for_device(given | strange)
    refuse_unwritable(output)
    if strangers is not None and not calibrate:
        raise UsageError("--strangers measures what --no-calibrate leaves out.", "Leave one of them out.")
    if copies is not None and not augment:
        raise UsageError("--copies says how many copies --augment makes.", "Add --augment, or leave --copies out.")
    if not 0 < fpir < 1:
        raise UsageError(f"--fpir {fpir:g} is not a share of photos.", "Choose one between 0 and 1, for example --fpir 0.01.")
    kind = parameters.pop("features")
    network = parse_network(kind, console.say)
    if parts is not None:
        parameters["parts"] = parts_grid(parts)
    elif own and network is not None:
        parameters["parts"] = None
    people = _gallery(photos, cropped, size, skip_bad, network)
    others = None if strangers is None else _others(strangers, people)
    spec = _spec_for(people, kind, network)
    if own and "features" not in given:
        usual_spec, spec = spec, light.suited(people.images, people.labels, spec)
        if spec != usual_spec:
            console.say("note: the light differs much between photos, so --features gradient is used, instead of both.")
    with console.progress("Training") as line, blas_threads(threads):

        def show(step: Step) -> None:
            line(f"iteration {step.iteration}, residual {max(step.residuals):.1e}, rank {step.rank}")

        def count(done: int, folds: int) -> None:
            line(f"people left out as strangers, fold {done + 1} of {folds}")

        settings = parameters | {"random_state": seed}
        limit = fpir if calibrate else None
        trained = model.fit(
            people, spec, settings, show, method=chosen.estimator, fpir=limit, strangers=others, progress=count
        )
    trained.save(output)
    how = f"{trained.training['iterations']} iterations" if own else chosen.title
    console.say(
        f"Saved {output}: {len(trained.labels)} people from {len(trained.crops)} photos, {trained.D.shape[1]} atoms of "
        f"{trained.D.shape[0]} values ({spec.kind}), {how}; "
        f"{percent(trained.training['accuracy'])} of the training photos recognised."
    )
    if trained.rejection is not None:
        console.say(_strangers(trained.rejection))
    else:
        why = f"that takes {FEWEST_PEOPLE} people or --strangers" if calibrate else "nobody can be told from a stranger"
        console.say(f"note: the threshold against strangers was not measured; {why}.")
    doubted = trained.doubted(people.sources)
    if doubted:
        console.say(f"note: not learned from, check their names: {some(doubted)}. --no-doubt learns from them all the same.")
    few = [name for name, n in _photos_per_person(people).items() if n < (parameters.get("atoms_per_class") or 0)]
    have = plural(len(few), "person has", "people have")
    if few and atoms is not None:
        console.say(f"note: {have} fewer photos than {atoms} atoms; they got as many atoms as photos.")
    if few and own and not parameters["copies"]:
        console.say(f"note: {have} few photos; --augment recognises them better (docs/guide/few-photos.md).")


def _strangers(rejection: Rejection) -> str:
    low, high = rejection.interval
    who = ("people who were left out", "the strangers handed in")
    sentence = (
        f"Strangers: at a confidence of {rejection.confidence:g}, {rejection.passed} of {rejection.trials} photos of "
        f"{who[rejection.public]} get a name ({percent(rejection.rate)}; 95 % interval {percent(low)} to {percent(high)})."
    )
    if rejection.others_trials:
        others = f"{rejection.others_passed} of {rejection.others_trials} photos of {who[not rejection.public]}"
        sentence += f" {others} do; they are easier to refuse, and do not count."
    if rejection.confidence > 1:
        sentence += " No face has that, so nobody would be let in: `trainer tune`, use more photos, or another method."
    if rejection.promise > rejection.target:
        sentence += f" With so few photos no less than {percent(rejection.promise)} can be promised."
    return sentence


@app.command()
def enrol(
    model_file: ModelFile,
    photos: Annotated[Path, typer.Argument(metavar="PHOTOS/NAME", help="The folder of the person, named like them.")],
    skip_bad: SkipBad = False,
    calibrate: Recalibrate = False,
    threads: Threads = None,
) -> None:
    """Add a person to a model, or photos of somebody who is in it."""
    old = model.Model.load(model_file)
    with console.progress("Reading photos") as line:
        found = enrolling.photos_for(old, photos, skip_bad=skip_bad, progress=line.count, say=console.say)
    for note in found.notes:
        console.say(f"note: {note}")
    with console.progress("Enrolling") as line, blas_threads(threads):
        new = enrolling.enrol(old, found, calibrate=calibrate, progress=line.count)
    new.save(model_file)
    console.say(
        f"Saved {model_file}: {len(new.labels)} people from {len(new.crops)} photos, {len(new.crops) - len(old.crops)} of "
        f"them new ({some(list(found.people))}). {_kept(old, new)}"
    )
    known = sorted(set(found.people) & set(old.labels))
    if known:
        console.say(f"note: in the model already, so that the photos join theirs: {some(known)}. Two Annas need two names.")
    doubted = new.doubted(enrolling.sources(new, found))
    if doubted:
        console.say(f"note: not learned from, check their names: {some(doubted)}.")


@app.command()
def forget(
    model_file: ModelFile,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The person who is to be forgotten.")],
    calibrate: Recalibrate = False,
    threads: Threads = None,
) -> None:
    """Remove a person from a model: photos, atoms, codes, and what the others' atoms had of them."""
    old = model.Model.load(model_file)
    with console.progress("Forgetting") as line, blas_threads(threads):
        new = enrolling.forget(old, name, calibrate=calibrate, progress=line.count)
    new.save(model_file)
    console.say(
        f"Saved {model_file}: {len(new.labels)} people from {len(new.crops)} photos; {name} is forgotten, here. "
        f"{_kept(old, new)}\n"
        f"Kits on devices, backups and the folder of photos still know {name}: build and replace the kit, delete the others."
    )


def _kept(old: model.Model, new: model.Model) -> str:
    before, now = old.rejection, new.rejection
    if now is not None and now is not before:
        said = _strangers(now)
        if before is not None and (before.public or before.others_trials):
            said += f" Before it was {before.confidence:g}, with strangers who were handed in: `trainer fit` asks them again."
        return said
    again = "" if now is None else " again"
    how = f"to measure it{again} takes {FEWEST_PEOPLE} people"
    if len(new.labels) >= FEWEST_PEOPLE:
        how = f"--calibrate measures it{again}"
    kept = "was not measured" if now is None else f"is kept ({now.confidence:g})"
    return f"The threshold against strangers {kept}; {how}."


@app.command()
def tune(
    photos: Photos,
    output: Annotated[Path, typer.Option("-o", "--output", help="The TOML file to write.")] = Path("tuned.toml"),
    cropped: Cropped = False,
    size: Size = None,
    skip_bad: SkipBad = False,
    method: MethodName = "lclrrdl",
    coding: Annotated[DeviceCoding, typer.Option(help="How the device codes a face.")] = "l1",
    atoms: Annotated[int, typer.Option(min=1, help="Dictionary atoms per person.")] = 5,
    features: Annotated[str, typer.Option(help="Comma-separated choices; or sface, onnx:FILE, sface+both.")] = ",".join(
        FEATURES
    ),
    lam: Annotated[str | None, typer.Option(help=_choices("lam"))] = None,
    alpha: Annotated[str | None, typer.Option(help=_choices("alpha"))] = None,
    gamma: Annotated[str | None, typer.Option(help=_choices("gamma"))] = None,
    eta: Annotated[str | None, typer.Option(help=_choices("eta"))] = None,
    folds: Annotated[int, typer.Option(min=2, help="Folds of the cross-validation.")] = 4,
    hard: Annotated[bool, typer.Option(help="Move, relight and cover the held-out photos.")] = True,
    jobs: Annotated[int, typer.Option(help="Processes; -1 for all cores.")] = -1,
    seed: Seed = 0,
) -> None:
    """Choose parameters by cross-validation inside the training photos."""
    refuse_unwritable(output)
    chosen = method_of(method)
    kinds = tuple(features.split(",")) if set(features.split(",")) <= set(FEATURES) else (features,)
    network = parse_network(kinds[0], console.say)
    options = {"lam": lam, "alpha": alpha, "gamma": gamma, "eta": eta}
    asked = {name: _numbers(name, text) for name, text in options.items() if text is not None}
    grid = chosen.tune_grid
    if not set(asked) <= set(grid):
        raise UsageError(f"{method} is tuned by {', '.join(grid)}, not by {', '.join(asked)}.", "Leave the others out.")
    fixed = chosen.settings(atoms, {"coding": coding} if "coding" in chosen.fixed else {})
    people = _gallery(photos, cropped, size, skip_bad, network)
    with console.progress("Tuning") as line:
        trials = tuning.tune(
            people.images,
            people.labels,
            spec_for=lambda kind: _spec_for(people, kind, network),
            estimator=chosen.estimator,
            grid=grid | {"features": kinds} | asked,
            fixed=fixed,
            folds=folds,
            hard=hard,
            seed=seed,
            jobs=jobs,
            progress=line.count,
        )
    typer.echo(trial_table(trials))
    best = tuning.choose(trials, len(people.images), presets.PRESETS[presets.DEFAULT] | chosen.usual)
    typer.echo(f"chosen, within one standard error of the best: {best.parameters}")
    comment = f"{shlex.join(['trainer', *sys.argv[1:]])}\n{best.accuracy:.2f} % on held-out photos"
    kept = best.parameters | {name: fixed[name] for name in ("coding", "atoms_per_class") if name in fixed}
    write_atomically(output, tuning.to_toml(kept, comment).encode(), mode=0o644)
    train = f"; train with: trainer fit {shlex.quote(str(photos))} --method {method} --config {shlex.quote(str(output))}"
    console.say(f"Saved {output}{train if method in get_args(DeviceMethod) else ''}")


@app.command()
def show(
    model_file: Annotated[Path, typer.Argument(metavar="MODEL", help="A file that `fit` wrote.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what a model file holds."""
    facts = model.Model.load(model_file).facts()
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        for name, value in facts.items():
            typer.echo(f"{name:12} {value}")


@app.command()
def evaluate(
    subject: Annotated[Path, typer.Argument(metavar="MODEL|KIT", help="What `fit` or `edge-export build` wrote.")],
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Photos not trained on: a folder per person, .npz or .mat.")],
    strangers: Annotated[
        Path | None, typer.Option(help="People who are not enrolled (default: those in DATA whom it does not know).")
    ] = None,
    condition: Annotated[
        str | None, typer.Option(metavar="REGEX", help="What a photo's name says of it: '_(clean|sunglasses|scarf)'.")
    ] = None,
    model_file: Annotated[
        Path | None, typer.Option("--model", help="The model that a kit was made from: for the pictures that explain it.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write a page (HTML) with all figures and pictures.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE|-", help="Write all figures as JSON.")] = None,
    threads: Threads = None,
) -> None:
    """Measure how well people are recognised and strangers kept out, on photos that were not trained on."""
    on_stdout = json_file is not None and str(json_file) == "-"
    for output, option in ((report, "--report"), (None if on_stdout else json_file, "--json")):
        if output is not None:
            refuse_unwritable(output, option)
    with console.progress("Reading photos") as line, blas_threads(threads):
        found = evaluation.run(
            subject,
            data,
            strangers=strangers,
            model_file=model_file,
            condition=condition,
            progress=line.count,
            say=console.say,
        )
    for note in found.notes:
        console.say(f"note: {note}")
    if report is not None:
        from trainer.evaluation.report import page  # matplotlib is slow to load

        _write(report, page(found, date.today()).encode(), "--report")
        console.say(f"Saved {report}. It shows faces: keep it private.")
    if on_stdout:
        typer.echo(json.dumps(found.facts()))
    elif json_file is not None:
        _write(json_file, json.dumps(found.facts(), indent=1).encode(), "--json")
    if report is None and json_file is None:
        typer.echo(evaluation.table(found))


app.command()(research_cli.reproduce)
app.command()(research_cli.tables)


def main() -> None:
    console.run(app)


def _gallery(photos: Path, cropped: bool, size: str | None, skip_bad: bool, network: Network | None) -> gallery.Gallery:
    sides, alignment = _size(size), ALIGNMENT
    if network is not None:
        if sides not in (None, (SIDE, SIDE)):
            raise UsageError(f"A network takes {SIDE}x{SIDE}, not {size}.", "Leave --size out.")
        sides, alignment = (SIDE, SIDE), network.alignment
    with console.progress("Reading photos") as line:
        people = gallery.load(
            photos,
            cropped=cropped,
            size=sides,
            skip_bad=skip_bad,
            progress=line.count,
            say=console.say,
            alignment=alignment,
        )
    for note in people.notes:
        console.say(f"note: {note}")
    return people


def _others(strangers: Path, people: gallery.Gallery) -> gallery.Gallery:
    with console.progress("Reading strangers") as line:
        others = gallery.load_like(
            strangers,
            size=people.images.shape[1:],
            alignment=people.alignment,
            progress=line.count,
            say=console.say,
        )
    for note in others.notes:
        console.say(f"note: {note}")
    gallery.refuse_enrolled(others, people.images, people.people)
    return others


def _size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,4})x(\d{1,4})", text)
    if match is None:
        raise UsageError(f"{text} is not a size.", "Write height x width, for example --size 112x92.")
    return int(match[1]), int(match[2])


def _spec_for(people: gallery.Gallery, kind: str, network: Network | None) -> Spec:
    _, height, width = people.images.shape
    return network or FeatureSpec.for_crop(height, width, kind)


def _photos_per_person(people: gallery.Gallery) -> dict[str, int]:
    return {person: int((people.labels == person).sum()) for person in people.people}


def _write(output: Path, data: bytes, option: str) -> None:
    try:
        write_atomically(output, data)
    except OSError as error:
        raise UsageError(f"{output} cannot be written ({error.strerror}).", f"Choose another place with {option}.") from None


def _numbers(name: str, text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = (0.0,)
    if min(values) <= 0:
        raise UsageError(f"--{name} {text} is not a list of positive numbers.", f"For example --{name} 0.05,0.5.")
    return values
