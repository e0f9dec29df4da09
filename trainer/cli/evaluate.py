"""`trainer show` and `trainer evaluate`: describe a model file, and measure a model or kit."""

import json
from datetime import date
from pathlib import Path
from typing import Annotated

import typer
from threadpoolctl import threadpool_limits

from edge.cli import common as console
from edge.files import write_file
from trainer.cli.options import ModelFile, Threads, check_writable, print_notes
from trainer.evaluation import evaluate as evaluation
from trainer.model import Model


def show(
    model_file: ModelFile, as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False
) -> None:
    """Describe a model file."""
    facts = Model.load(model_file).facts()
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        for name, value in facts.items():
            typer.echo(f"{name:12} {value}")


def evaluate(
    subject: Annotated[Path, typer.Argument(metavar="MODEL|KIT", help="A file that `fit` or `edge-export build` wrote.")],
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Photos not trained on: a folder per person, .npz or .mat.")],
    strangers: Annotated[
        Path | None, typer.Option(help="Photos of people who are not enrolled (default: unknown names in DATA).")
    ] = None,
    condition: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Finds a photo's condition in its name: '_(clean|sunglasses|scarf)'.")
    ] = None,
    model_file: Annotated[
        Path | None, typer.Option("--model", help="The model that a kit was made from, for the explaining figures.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML page with all results and figures.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE|-", help="Write all results as JSON.")] = None,
    threads: Threads = None,
) -> None:
    """Measure the recognition of enrolled people and the rejection of strangers, on photos not trained on."""
    on_stdout = json_file is not None and str(json_file) == "-"
    for output, option in ((report, "--report"), (None if on_stdout else json_file, "--json")):
        if output is not None:
            check_writable(output, option)
    with console.progress("Reading photos") as line, threadpool_limits(threads):
        found = evaluation.evaluate(
            subject,
            data,
            strangers=strangers,
            model_file=model_file,
            condition=condition,
            progress=line.count,
            say=console.say,
        )
    print_notes(found.notes)
    if report is not None:
        from trainer.evaluation.report import page  # matplotlib is slow to load

        write_file(report, page(found, date.today()).encode())
        console.say(f"Saved {report}. It shows faces: keep it private.")
    if on_stdout:
        typer.echo(json.dumps(found.facts()))
    elif json_file is not None:
        write_file(json_file, json.dumps(found.facts(), indent=1).encode())
    if report is None and json_file is None:
        typer.echo(evaluation.summary(found))
