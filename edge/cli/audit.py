"""`edge audit` shows, verifies, exports and prunes the audit log."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from edge import paths
from edge import settings as configuration
from edge.audit import crypto, report
from edge.audit.clock import require_clock
from edge.audit.head import head_mac, read_head_key
from edge.audit.log import AuditLog
from edge.audit.received import ReceivedEvents, compare, read_received
from edge.cli import common as console
from edge.cli import options
from edge.errors import UsageError
from edge.files import read_bytes, write_file
from edge.privileges import rights_over
from edge.sinks.mqtt import read_retained_head

LogArgument = Annotated[Path, typer.Argument(metavar="[LOG]", envvar=paths.AUDIT_VARIABLE, help="The audit log.")]

app = typer.Typer(no_args_is_help=True, help="Show, verify, export or prune the audit log.")


@contextmanager
def _open(path: Path, **options: bool) -> Iterator[AuditLog]:
    """Open a log. As root, with the rights of the user who controls it: SQLite writes files beside it, even to read."""
    with rights_over(path), closing(AuditLog(path, **options)) as log:
        yield log


@app.command()
def show(
    path: LogArgument = paths.AUDIT_LOG, last: Annotated[int, typer.Option(min=1, help="Number of entries.")] = 20
) -> None:
    """Print the latest entries, one per line."""
    with _open(path, read_only=True) as log:
        for entry in log.entries(last=last):
            typer.echo(report.entry_line(entry))


@app.command()
def verify(
    path: LogArgument = paths.AUDIT_LOG,
    head: Annotated[
        str | None, typer.Option(help="A head hash that was printed earlier. The log must still contain it.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|mqtt",
            help="Events that a receiver stored, as JSON lines; or the head that the MQTT broker of the settings keeps. The"
            " log must contain all of them.",
        ),
    ] = None,
    head_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The head_key_file of the terminal: checks the MACs of --against.")
    ] = None,
    settings: options.SettingsOption = None,
) -> None:
    """Verify the hash chain. Exit code 42 if it is broken. Prints one JSON object with the head hash: keep it elsewhere."""
    key = None if head_key is None else read_head_key(head_key)
    received = None if against is None else received_events(against, settings)
    with _open(path, read_only=True) as log:
        if received is None:
            found, compared = log.verify(head), None
        else:
            found, compared = compare(log, received, head=head, key=key)
    facts: dict[str, Any] = asdict(found)
    if key is not None and found.head is not None:
        facts["head_mac"] = head_mac(key, found.head)
    console.print_json(facts if compared is None else facts | {"against": asdict(compared)})


def received_events(against: str, settings: Path | None) -> ReceivedEvents:
    """Read the events of a file, or the head that the MQTT broker of the settings keeps."""
    if against != "mqtt":
        return read_received(read_bytes(against).decode("utf-8", "replace"))
    table = configuration.load(paths.find_settings(settings)).mqtt
    if table is None:
        raise UsageError("The settings have no table [mqtt].", "Name the terminal's settings: --settings FILE.")
    return read_received(read_retained_head(table))


@app.command()
def export(
    path: LogArgument = paths.AUDIT_LOG,
    form: Annotated[Literal["jsonl", "csv"], typer.Option("--format", help="jsonl or csv.")] = "jsonl",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="File to write, readable only by you (default: stdout).")
    ] = None,
) -> None:
    """Export all entries as JSON lines or CSV, without pictures."""
    with _open(path, read_only=True) as log:
        if output is None:
            for text in report.export(log.entries(), form):
                typer.echo(text)
        else:
            data = "".join(f"{text}\n" for text in report.export(log.entries(), form)).encode()
            with rights_over(output.parent):
                write_file(output, data)


@app.command()
def prune(
    days: Annotated[int, typer.Option(min=1, help="Delete entries that are older.")],
    path: LogArgument = paths.AUDIT_LOG,
    trust_clock: Annotated[
        bool, typer.Option("--trust-clock", help="Also if the newest entry is newer than the clock, or over a day older.")
    ] = False,
) -> None:
    """Delete old entries and their pictures. The chain of the rest stays valid. Prints one JSON object."""
    now = datetime.now(UTC)
    with _open(path, must_exist=True) as log:
        if not trust_clock:
            require_clock(log, now)
        gone = log.prune(days, now)
    console.print_json({"pruned": gone})


@app.command()
def keygen(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Private key file to write. The public key is written beside it.")
    ] = Path("picture-key.pem"),
) -> None:
    """Make a key pair for sealed pictures."""
    with rights_over(output.parent):
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
    private_key = read_bytes(key)
    with _open(path, read_only=True) as log, rights_over(output):
        for file in report.decrypt_pictures(log, private_key, output, event):
            console.print_json({"file": str(file)})
