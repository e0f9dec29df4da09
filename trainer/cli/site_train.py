"""`trainer site train` and its family: train the model of a site, and look at jobs and models."""

import json
import sqlite3
from pathlib import Path
from typing import Annotated, Any

import typer

from edge.cli import common as console
from edge.errors import UsageError
from edge.text import percent, plural
from trainer.cli.options import StageLine, Threads
from trainer.presets import DEFAULT, Preset
from trainer.site import jobs, models
from trainer.site import training as site_training
from trainer.site.folder import Site
from trainer.site.users import login_name

SiteFolder = Annotated[Path, typer.Argument(metavar="SITE", help="The folder of the site.")]
Who = Annotated[str | None, typer.Option(metavar="NAME", help="Who does this, for the trail (default: your login).")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="A name that `trainer site models` prints.")]


def train(
    site: SiteFolder,
    preset: Annotated[Preset | None, typer.Option(help=f"Named parameters (default: {DEFAULT}).")] = None,
    who: Who = None,
    threads: Threads = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Train a model on photos/ and strangers/ of a site, cross-validate it, and write it to models/."""
    opened, user = Site.open(site), who or login_name()
    with jobs.run(opened, "train", user, {"preset": preset}) as job:
        with console.progress("Training") as line:
            terminal = StageLine(line)

            def stage(name: str, done: int, total: int) -> None:
                job.stage(name, done, total)
                terminal(name, done, total)

            trained = site_training.train(opened, preset=preset, who=user, threads=threads, stage=stage, say=job.say)
        sentences = site_training.summary(trained.result)
        job.finish(" ".join(sentences[:4]), model=trained.name)
    if as_json:
        typer.echo(json.dumps({"model": trained.name, **trained.result}))
        return
    console.say(f"Saved {trained.path}.")
    for sentence in sentences:
        console.say(sentence)


def list_jobs(
    site: SiteFolder,
    most: Annotated[int, typer.Option(min=1, help="Number of jobs.")] = 20,
    log: Annotated[int | None, typer.Option(metavar="NUMBER", help="Print the log of this job instead.")] = None,
    as_json: Json = False,
) -> None:
    """List the newest jobs of a site: trainings, builds, imports."""
    with Site.open(site).database() as database:
        if log is not None:
            return _print_log(database, log)
        for job in jobs.latest(database, most=most):
            if as_json:
                typer.echo(json.dumps(vars(job)))
            else:
                now = f"  {job.stage}" if job.is_running else ""
                typer.echo(f"{job.id:5} {job.started}  {job.kind:8} {job.state:10} {job.who:12}{now}  {job.message}".rstrip())


def _print_log(database: sqlite3.Connection, number: int) -> None:
    if jobs.get(database, number) is None:
        raise UsageError(f"There is no job {number}.", "See the numbers with `trainer site jobs`.")
    for utc, line in jobs.lines(database, number):
        typer.echo(f"{utc}  {line}")


def cancel(
    site: SiteFolder,
    number: Annotated[int | None, typer.Argument(help="Number of the job (default: the running one).")] = None,
    who: Who = None,
) -> None:
    """Cancel a running job. It stops after a moment and changes nothing."""
    opened = Site.open(site)
    if number is None:
        with opened.database() as database:
            job = jobs.running(database)
        if job is None:
            raise UsageError("No job is running.")
        number = job.id
    jobs.cancel(opened, number, who=who or login_name())
    console.say("Cancelled. The job stops after a moment.")


def list_models(site: SiteFolder, as_json: Json = False) -> None:
    """List the models of a site, newest first."""
    for model in models.list_models(Site.open(site)):
        if as_json:
            facts: dict[str, Any] = {name: value for name, value in vars(model).items() if name != "path"}
            typer.echo(json.dumps(facts | {"file": str(model.path)}))
            continue
        recognised = (model.result or {}).get("recognised")
        share = "" if recognised is None else f"  {percent(recognised['share'])} recognised"
        threshold = "no threshold" if model.threshold is None else f"threshold {model.threshold:g}"
        counts = f"{plural(model.people, 'person', 'people')}, {plural(model.photos, 'photo')}"
        typer.echo(f"{model.name}  {model.problem or f'{counts}, {threshold}{share}'}")


def compare_models(
    site: SiteFolder, older: ModelName, newer: Annotated[str, typer.Argument(metavar="NEWER", help="The other model.")]
) -> None:
    """Show the differences between two models of a site."""
    opened = Site.open(site)
    found = models.compare(models.get_model(opened, older), models.get_model(opened, newer))
    typer.echo(json.dumps({
        "added": found.added,
        "removed": found.removed,
        "recognised": found.change_of("recognised"),
        "missed": found.change_of("missed"),
        "threshold": found.threshold_change,
    }))  # fmt: skip


def delete_model(site: SiteFolder, name: ModelName, who: Who = None) -> None:
    """Delete a model of a site, its result and its report. Kits that were made of it stay."""
    models.delete_model(Site.open(site), name, who=who or login_name())
    console.say(f"Deleted {name}.")


def keep_photo(
    site: SiteFolder,
    person: Annotated[str, typer.Argument(metavar="NAME", help="The person.")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file name of the photo.")],
    who: Who = None,
) -> None:
    """Confirm that a photo shows its person, though a training suspected a wrong name: the next training uses it."""
    opened = Site.open(site)
    with opened.database() as database:
        site_training.keep_photo(opened, database, person, file, who=who or login_name())
    console.say(f"The next training uses {person}/{file}.")


COMMANDS = {
    "train": train,
    "jobs": list_jobs,
    "cancel": cancel,
    "models": list_models,
    "compare-models": compare_models,
    "delete-model": delete_model,
    "keep-photo": keep_photo,
}
