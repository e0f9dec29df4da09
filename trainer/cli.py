"""The `trainer` command. Each function parses, calls the library, reports."""

from __future__ import annotations

import json
import re
import shlex
import sys
from contextlib import nullcontext
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from threadpoolctl import threadpool_limits

from edge import console
from edge.errors import UsageError
from edge.files import write_atomically
from edge.manifest import ALIGNMENT, ARCFACE_ALIGNMENT
from edge.preprocess import KINDS as FEATURES
from edge.preprocess import FeatureSpec
from edge.preprocess import Kind as FeatureKind
from trainer import backbone, benchmark, gallery, model, presets
from trainer import enrol as enrolling
from trainer import evaluate as evaluation
from trainer import tune as tuning
from trainer.augment import COPIES
from trainer.backbone import Backbone, Spec
from trainer.calibrate import FEWEST_PEOPLE, FPIR, Rejection
from trainer.coding import Kind as CodingKind
from trainer.parts import Grid
from trainer.solver import Step
from trainer.words import some

app = console.new_app("Learn to recognise people from photos: dictionary D and classifier W, on a workstation.")

DeviceCoding = Literal["l1", "l21"]
Schedule = Literal["fast", "paper"]
Preset = Literal["door", "light", "sface", "paper"]
Locality = Literal["exp", "squared"]
ClassifierCodes = Literal["coder", "training"]
Scenario = Literal["sunglasses", "scarf", "mixed"]
Dataset = Literal["yaleb", "ar"]
Method = Literal["lclrrdl"]


def _choices(name: str) -> str:
    return ",".join(f"{value:g}" for value in tuning.GRID[name])


def _kinds() -> str:
    return ",".join(tuning.GRID["features"])


DESCRIBED_BY = f"What a face is described by: {', '.join(FEATURES)}, sface or onnx:FILE[,mean=M][,scale=S], or sface+both."
Photos = Annotated[Path, typer.Argument(help="A folder per person; or an .npz or .mat file with images and labels.")]
Cropped = Annotated[bool, typer.Option("--cropped", help="The photos of the folder show faces only: take them as they are.")]
Size = Annotated[str | None, typer.Option(metavar="HxW", help="Bring every face to this size (found faces: 80x64).")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave unusable photos out instead of refusing.")]
ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="A file that `fit` wrote.")]
Recalibrate = Annotated[bool, typer.Option("--calibrate", help="Measure the threshold against strangers again.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of every random choice.")]
Threads = Annotated[int | None, typer.Option(min=1, help="BLAS threads (default: all cores).")]

PARTS = "ROWSxCOLUMNS"


@app.command()
def fit(
    photos: Photos,
    output: Annotated[Path, typer.Option("-o", "--output", help="The model file to write.")],
    cropped: Cropped = False,
    size: Size = None,
    skip_bad: SkipBad = False,
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
    copies: Annotated[int, typer.Option(min=1, help="With --augment: copies of each photo.")] = COPIES,
    fpir: Annotated[float, typer.Option(help="Share of strangers' photos that may be given a name.")] = FPIR,
    calibrate: Annotated[bool, typer.Option(help="Measure that, by leaving people out; five more trainings.")] = True,
    seed: Seed = 0,
    threads: Threads = None,
) -> None:
    """Train a model on photos of the people to be recognised, and set the threshold that keeps others out."""
    known = presets.PRESETS[presets.DEFAULT]
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
        "copies": copies if augment else None,
    }
    given = tuning.from_toml(config, known) if config else {}
    given |= {name: value for name, value in options.items() if value is not None}
    parameters = presets.PRESETS[preset or presets.usual(given.get("features"))] | given
    _refuse_unwritable(output)
    described = backbone.chosen(parameters.pop("features"), console.say)
    if parts is not None:
        parameters["parts"] = _grid(parts)
    elif isinstance(described, backbone.Backbone):
        parameters["parts"] = None
    people = _gallery(photos, cropped, size, skip_bad, described)
    spec = _spec_for(people, described)
    with console.progress("Training") as line, _blas_threads(threads):

        def show(step: Step) -> None:
            line(f"iteration {step.iteration}, residual {max(step.residuals):.1e}, rank {step.rank}")

        def count(done: int, folds: int) -> None:
            line(f"people left out as strangers, fold {done + 1} of {folds}")

        settings = parameters | {"random_state": seed}
        trained = model.fit(people, spec, settings, show, fpir=fpir if calibrate else None, progress=count)
    trained.save(output)
    console.say(
        f"Saved {output}: {len(trained.labels)} people from {len(trained.crops)} photos, {trained.D.shape[1]} atoms of "
        f"{trained.D.shape[0]} values ({spec.kind}), {trained.training['iterations']} iterations; "
        f"{trained.training['accuracy']:.1%} of the training photos recognised."
    )
    console.say(_strangers(trained.rejection))
    few = [name for name, n in _photos_per_person(people).items() if n < parameters["atoms_per_class"]]
    if few and atoms is not None:
        console.say(f"note: {len(few)} of the people have fewer photos than {atoms} atoms; they got as many atoms as photos.")
    if few and not parameters["copies"]:
        console.say(f"note: {len(few)} of the people have few photos; --augment recognises them better (docs/few.md).")


def _grid(text: str) -> Grid | None:
    match = re.fullmatch(r"(\d+)x(\d+)", text)
    if match is None and text != "none":
        raise UsageError(f"--parts {text} makes no sense.", "Write rows x columns, as 4x2, or none.")
    return match and (int(match[1]), int(match[2]))


def _strangers(rejection: Rejection | None) -> str:
    if rejection is None:
        return f"note: the threshold against strangers was not measured; that takes {FEWEST_PEOPLE} people and --calibrate."
    low, high = rejection.interval
    sentence = (
        f"Strangers: at a confidence of {rejection.confidence:g}, {rejection.passed} of {rejection.trials} photos of people "
        f"who were left out get a name ({rejection.rate:.1%}; 95 % interval {low:.1%} to {high:.1%})."
    )
    if rejection.promise > rejection.target:
        sentence += f" With so few photos no less than {rejection.promise:.1%} can be promised."
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
    with console.progress("Enrolling") as line, _blas_threads(threads):
        new = enrolling.enrol(old, found, calibrate=calibrate, progress=line.count)
    new.save(model_file)
    console.say(
        f"Saved {model_file}: {len(new.labels)} people from {len(new.crops)} photos, {len(new.crops) - len(old.crops)} of "
        f"them new ({some(list(found.people))}). {_kept(old, new)}"
    )


@app.command()
def forget(
    model_file: ModelFile,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The person who is to be forgotten.")],
    calibrate: Recalibrate = False,
    threads: Threads = None,
) -> None:
    """Remove a person from a model: photos, atoms, codes, and what the others' atoms had of them."""
    old = model.Model.load(model_file)
    with console.progress("Forgetting") as line, _blas_threads(threads):
        new = enrolling.forget(old, name, calibrate=calibrate, progress=line.count)
    new.save(model_file)
    console.say(
        f"Saved {model_file}: {len(new.labels)} people from {len(new.crops)} photos; {name} is forgotten, here. "
        f"{_kept(old, new)}\n"
        f"Kits on devices, backups and the folder of photos still know {name}: build and replace the kit, delete the others."
    )


def _kept(old: model.Model, new: model.Model) -> str:
    if new.rejection is None or new.rejection is not old.rejection:
        return _strangers(new.rejection)
    return f"The threshold against strangers is kept ({new.rejection.confidence:g}); --calibrate measures it again."


@app.command()
def tune(
    photos: Photos,
    output: Annotated[Path, typer.Option("-o", "--output", help="The TOML file to write.")] = Path("tuned.toml"),
    cropped: Cropped = False,
    size: Size = None,
    skip_bad: SkipBad = False,
    coding: Annotated[DeviceCoding, typer.Option(help="How the device codes a face.")] = "l1",
    atoms: Annotated[int, typer.Option(min=1, help="Dictionary atoms per person.")] = 5,
    features: Annotated[str, typer.Option(help="Comma-separated choices; or sface, onnx:FILE, sface+both.")] = _kinds(),
    lam: Annotated[str, typer.Option(help="Comma-separated choices.")] = _choices("lam"),
    alpha: Annotated[str, typer.Option(help="Comma-separated choices.")] = _choices("alpha"),
    gamma: Annotated[str, typer.Option(help="Comma-separated choices.")] = _choices("gamma"),
    eta: Annotated[str, typer.Option(help="Comma-separated choices.")] = _choices("eta"),
    folds: Annotated[int, typer.Option(min=2, help="Folds of the cross-validation.")] = 4,
    hard: Annotated[bool, typer.Option(help="Move, relight and cover the held-out photos.")] = True,
    jobs: Annotated[int, typer.Option(help="Processes; -1 for all cores.")] = -1,
    seed: Seed = 0,
) -> None:
    """Choose parameters by cross-validation inside the training photos."""
    _refuse_unwritable(output)
    kinds = tuple(features.split(",")) if set(features.split(",")) <= set(FEATURES) else (features,)
    described = {kind: backbone.chosen(kind, console.say) for kind in kinds}
    grid = {"features": kinds} | {
        name: _numbers(name, text) for name, text in (("lam", lam), ("alpha", alpha), ("gamma", gamma), ("eta", eta))
    }
    people = _gallery(photos, cropped, size, skip_bad, described[kinds[0]])
    with console.progress("Tuning") as line:
        trials = tuning.tune(
            people.images,
            people.labels,
            spec_for=lambda kind: _spec_for(people, described[kind]),
            grid=grid,
            fixed={"coding": coding, "atoms_per_class": atoms},
            folds=folds,
            hard=hard,
            seed=seed,
            jobs=jobs,
            progress=line.count,
        )
    typer.echo(_trial_table(trials))
    best = tuning.choose(trials, len(people.images), presets.PRESETS[presets.DEFAULT])
    typer.echo(f"chosen, within one standard error of the best: {best.parameters}")
    comment = f"{shlex.join(['trainer', *sys.argv[1:]])}\n{best.accuracy:.2f} % on held-out photos"
    tuning_text = tuning.to_toml(best.parameters | {"coding": coding, "atoms_per_class": atoms}, comment)
    write_atomically(output, tuning_text.encode(), mode=0o644)
    console.say(f"Saved {output}; train with: trainer fit {shlex.quote(str(photos))} --config {shlex.quote(str(output))}")


@app.command()
def reproduce(
    dataset: Annotated[Dataset, typer.Option(help="Extended Yale B or AR.")],
    data: Annotated[Path, typer.Option(help="The data set as .npz: images and labels (docs/reproduce.md).")],
    method: Annotated[Method, typer.Option(help="The method of the paper's tables.")] = "lclrrdl",
    per_class: Annotated[int, typer.Option(min=1, help="Yale B: training images per person.")] = 8,
    rate: Annotated[int, typer.Option(help="Yale B: 2, 4 or 8 for 1/2, 1/4, 1/8.")] = 4,
    scenario: Annotated[Scenario, typer.Option(help="AR: what covers the faces.")] = "sunglasses",
    features: Annotated[FeatureKind, typer.Option(help="pixels is the paper's.")] = "pixels",
    coding: Annotated[CodingKind, typer.Option(help="batch codes all test faces together.")] = "l1",
    schedule: Annotated[Schedule, typer.Option(help="Penalty schedule of the solver.")] = "fast",
    parts: Annotated[str, typer.Option(metavar=PARTS, help="Parts of the face beside the whole.")] = "none",
    splits: Annotated[int, typer.Option(min=1, help="Random splits to average over.")] = 5,
    config: Annotated[Path | None, typer.Option(help="Parameters instead of the tuned ones.")] = None,
    tune_first: Annotated[
        bool, typer.Option("--tune", help="Choose parameters on training images and print them; no test.")
    ] = False,
    jobs: Annotated[int, typer.Option(help="Processes of --tune; -1 for all cores.")] = -1,
    seed: Seed = 0,
    threads: Threads = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure one cell of the paper's tables."""
    cell = benchmark.Cell(dataset=dataset, per_class=per_class, rate=rate, scenario=scenario)
    images, labels = benchmark.load_arrays(data, cell)
    if tune_first:
        with console.progress("Tuning") as line:
            trials = benchmark.tune_cell(
                images,
                labels,
                cell,
                features=features,
                coding=coding,
                seed=seed,
                jobs=jobs,
                progress=line.count,
            )
        console.say(_trial_table(trials))
        usual = presets.PRESETS["paper"] | {"features": features}
        chosen = tuning.choose(trials, benchmark.training_images(labels, cell), usual).parameters
        best = {name: value for name, value in chosen.items() if name != "features"}
        command = f"trainer reproduce {cell.options} --data FILE --features {features} --coding {coding} --seed {seed} --tune"
        typer.echo(f"[{cell.name}.{features}]\n" + tuning.to_toml(best, command))
        return
    known = set(presets.PRESETS[presets.DEFAULT]) - {"features", "coding", "schedule"}
    with console.progress(cell.name) as line, _blas_threads(threads):
        result = benchmark.reproduce(
            images,
            labels,
            cell,
            features=features,
            coding=coding,
            schedule=schedule,
            parts=_grid(parts),
            splits=splits,
            seed=seed,
            parameters=tuning.from_toml(config, known) if config else None,
            progress=line.count,
        )
    result = {"method": method} | result
    if as_json:
        typer.echo(json.dumps(result))
    else:
        typer.echo(
            f"{cell.name}, {features}, {coding} coding: {result['accuracy_mean']:.1f} % "
            f"(deviation {result['accuracy_std']:.1f} over {splits} splits), training {result['train_seconds_mean']:.1f} s"
        )


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
            _refuse_unwritable(output, option)
    with console.progress("Reading photos") as line, _blas_threads(threads):
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
        from trainer.report import page  # matplotlib is slow to load

        _write(report, page(found, date.today()).encode(), "--report")
        console.say(f"Saved {report}. It shows faces: keep it private.")
    if on_stdout:
        typer.echo(json.dumps(found.facts()))
    elif json_file is not None:
        _write(json_file, json.dumps(found.facts(), indent=1).encode(), "--json")
    if report is None and json_file is None:
        typer.echo(evaluation.table(found))


def main() -> None:
    console.run(app)


def _gallery(photos: Path, cropped: bool, size: str | None, skip_bad: bool, described: str | Backbone = "") -> gallery.Gallery:
    sides, alignment = _size(size), ALIGNMENT
    if isinstance(described, Backbone):
        if sides not in (None, (backbone.SIDE, backbone.SIDE)):
            raise UsageError(f"An embedding model takes {backbone.SIDE}x{backbone.SIDE}, not {size}.", "Leave --size out.")
        sides, alignment = (backbone.SIDE, backbone.SIDE), ARCFACE_ALIGNMENT
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


def _size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,4})x(\d{1,4})", text)
    if match is None:
        raise UsageError(f"{text} is not a size.", "Write height x width, for example --size 112x92.")
    return int(match[1]), int(match[2])


def _spec_for(people: gallery.Gallery, described: str | Backbone) -> Spec:
    _, height, width = people.images.shape
    return described if isinstance(described, Backbone) else FeatureSpec.for_crop(height, width, described)


def _photos_per_person(people: gallery.Gallery) -> dict[str, int]:
    return {person: int((people.labels == person).sum()) for person in people.people}


def _write(output: Path, data: bytes, option: str) -> None:
    try:
        write_atomically(output, data)
    except OSError as error:
        raise UsageError(f"{output} cannot be written ({error.strerror}).", f"Choose another place with {option}.") from None


def _refuse_unwritable(output: Path, option: str = "-o") -> None:
    """Before the work, not after it."""
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise UsageError(f"{output} cannot be written.", f"Name a file in a folder that exists with {option}.")


def _numbers(name: str, text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = (0.0,)
    if min(values) <= 0:
        raise UsageError(f"--{name} {text} is not a list of positive numbers.", f"For example --{name} 0.05,0.5.")
    return values


def _blas_threads(threads: int | None) -> Any:
    return nullcontext() if threads is None else threadpool_limits(threads)


def _trial_table(trials: list[tuning.Trial], most: int = 15) -> str:
    names = list(trials[0].parameters)
    lines = ["accuracy  +-    " + "  ".join(f"{name:>8}" for name in names)]
    for trial in trials[:most]:
        values = "  ".join(f"{trial.parameters[name]!s:>8}" for name in names)
        lines.append(f"{trial.accuracy:7.2f}  {trial.deviation:4.2f}  {values}")
    if len(trials) > most:
        lines.append(f"... and {len(trials) - most} more, down to {trials[-1].accuracy:.2f}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
