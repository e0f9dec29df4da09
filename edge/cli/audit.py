"""`edge audit`: look into the audit log, check it, copy it, shorten it."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from edge import paths
from edge.audit import crypto as seal
from edge.audit import report as audit_desk
from edge.audit.log import AuditLog
from edge.cli import common as console
from edge.files import write_atomically

SCHEMA = 1
LogArgument = Annotated[Path, typer.Argument(metavar="[LOG]", envvar=paths.AUDIT_VARIABLE, help="The audit log.")]

app = typer.Typer(no_args_is_help=True, help="Look into the audit log, check it, copy it, shorten it.")


@app.command()
def show(
    path: LogArgument = paths.AUDIT_LOG, last: Annotated[int, typer.Option(min=1, help="How many of the latest entries.")] = 20
) -> None:
    """The latest entries, one a line."""
    with closing(AuditLog(path, read_only=True)) as log:
        for entry in log.entries(last=last):
            typer.echo(audit_desk.line(entry))


@app.command()
def verify(
    path: LogArgument = paths.AUDIT_LOG,
    head: Annotated[
        str | None, typer.Option(help="A head printed earlier and kept elsewhere: it must still be there.")
    ] = None,
) -> None:
    """Check the chain; exit code 42 if it is broken. One JSON object with the head, which is worth keeping elsewhere."""
    with closing(AuditLog(path, read_only=True)) as log:
        found = log.verify(head)
    typer.echo(json.dumps({"schema": SCHEMA, **asdict(found)}))


@app.command()
def export(
    path: LogArgument = paths.AUDIT_LOG,
    form: Annotated[Literal["jsonl", "csv"], typer.Option("--format", help="jsonl or csv.")] = "jsonl",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="A file, readable by you alone (else stdout).")] = None,
) -> None:
    """All entries, as JSON Lines or CSV. Pictures stay where they are."""
    with closing(AuditLog(path, read_only=True)) as log:
        if output is None:
            for text in audit_desk.export(log.entries(), form):
                typer.echo(text)
        else:
            write_atomically(output, "".join(f"{text}\n" for text in audit_desk.export(log.entries(), form)).encode())


@app.command()
def prune(
    days: Annotated[int, typer.Option(min=1, help="Delete what is older.")],
    path: LogArgument = paths.AUDIT_LOG,
) -> None:
    """Delete old entries and their pictures; the chain of the rest still holds. One JSON object."""
    with closing(AuditLog(path, must_exist=True)) as log:
        gone = log.prune(days, datetime.now(UTC))
    typer.echo(json.dumps({"schema": SCHEMA, "pruned": gone}))


@app.command()
def keygen(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The private key to write; the public one goes beside it.")
    ] = Path("picture-key.pem"),
) -> None:
    """Make a key pair to seal pictures with."""
    public = seal.write_keys(output)
    console.say(f"{output} opens pictures: keep it away from the terminal. {public} goes there, as picture_key.")


@app.command()
def decrypt(
    key: Annotated[Path, typer.Option(help="The private key of `edge audit keygen`.")],
    path: LogArgument = paths.AUDIT_LOG,
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder to write to.")] = Path("pictures"),
    event: Annotated[str | None, typer.Option(help="Only the picture of this event_id.")] = None,
) -> None:
    """Open the sealed pictures; the files, as JSON Lines."""
    with closing(AuditLog(path, read_only=True)) as log:
        for file in audit_desk.unseal(log, console.read_bytes(key), output, event):
            typer.echo(json.dumps({"schema": SCHEMA, "file": str(file)}))
