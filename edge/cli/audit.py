"""`edge audit` shows, verifies, exports and prunes the audit log."""

from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from edge import paths
from edge.audit import crypto, report
from edge.audit.log import AuditLog
from edge.cli import common as console
from edge.files import read_bytes, write_file

LogArgument = Annotated[Path, typer.Argument(metavar="[LOG]", envvar=paths.AUDIT_VARIABLE, help="The audit log.")]

app = typer.Typer(no_args_is_help=True, help="Show, verify, export or prune the audit log.")


@app.command()
def show(
    path: LogArgument = paths.AUDIT_LOG, last: Annotated[int, typer.Option(min=1, help="Number of entries.")] = 20
) -> None:
    """Print the latest entries, one per line."""
    with closing(AuditLog(path, read_only=True)) as log:
        for entry in log.entries(last=last):
            typer.echo(report.entry_line(entry))


@app.command()
def verify(
    path: LogArgument = paths.AUDIT_LOG,
    head: Annotated[
        str | None, typer.Option(help="A head hash that was printed earlier. The log must still contain it.")
    ] = None,
) -> None:
    """Verify the hash chain. Exit code 42 if it is broken. Prints one JSON object with the head hash: keep it elsewhere."""
    with closing(AuditLog(path, read_only=True)) as log:
        found = log.verify(head)
    console.print_json(asdict(found))


@app.command()
def export(
    path: LogArgument = paths.AUDIT_LOG,
    form: Annotated[Literal["jsonl", "csv"], typer.Option("--format", help="jsonl or csv.")] = "jsonl",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="File to write, readable only by you (default: stdout).")
    ] = None,
) -> None:
    """Export all entries as JSON lines or CSV, without pictures."""
    with closing(AuditLog(path, read_only=True)) as log:
        if output is None:
            for text in report.export(log.entries(), form):
                typer.echo(text)
        else:
            write_file(output, "".join(f"{text}\n" for text in report.export(log.entries(), form)).encode())


@app.command()
def prune(
    days: Annotated[int, typer.Option(min=1, help="Delete entries that are older.")], path: LogArgument = paths.AUDIT_LOG
) -> None:
    """Delete old entries and their pictures. The chain of the rest stays valid. Prints one JSON object."""
    with closing(AuditLog(path, must_exist=True)) as log:
        gone = log.prune(days, datetime.now(UTC))
    console.print_json({"pruned": gone})


@app.command()
def keygen(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Private key file to write. The public key is written beside it.")
    ] = Path("picture-key.pem"),
) -> None:
    """Make a key pair for sealed pictures."""
    public = crypto.write_keys(output)
    console.say(f"{output} opens sealed pictures: do not store it on the terminal. Copy {public} there: [audit] picture_key.")


@app.command()
def decrypt(
    key: Annotated[Path, typer.Option(help="The private key of `edge audit keygen`.")],
    path: LogArgument = paths.AUDIT_LOG,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write to.")] = Path("pictures"),
    event: Annotated[str | None, typer.Option(help="Only the picture of this event_id.")] = None,
) -> None:
    """Decrypt the sealed pictures. Prints the files as JSON lines."""
    with closing(AuditLog(path, read_only=True)) as log:
        for file in report.decrypt_pictures(log, read_bytes(key), output, event):
            console.print_json({"file": str(file)})
