"""`trainer site visits` and its family: search, show, import, judge and delete the visits of all doors."""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from edge.cli import common as console
from edge.credentials import MAX_BYTES
from edge.errors import UsageError
from edge.files import read_bytes, write_file
from edge.text import plural, printable
from trainer.cli.site_users import SiteFolder
from trainer.site import pictures, visit_import, visit_retention, visits
from trainer.site.folder import Site
from trainer.site.users import login_name
from trainer.site.visits import Search, Visit

PictureKey = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Private key of sealed pictures, of `edge audit keygen`.")
]
Number = Annotated[int, typer.Argument(metavar="NUMBER", min=1, help="Number of the visit, from `trainer site visits`.")]


def list_visits(
    site: SiteFolder,
    person: Annotated[str, typer.Option(help="Exact name of a person, or a part of it.")] = "",
    unknown: Annotated[bool, typer.Option("--unknown", help="Only unknown people.")] = False,
    door: Annotated[str, typer.Option(help="Name of the door.")] = "",
    outcome: Annotated[Literal["", "granted", "denied", "expired"], typer.Option(help="How the visit ended.")] = "",
    since: Annotated[str, typer.Option("--from", metavar="TIME", help="2026-11-18, or 2026-11-18T14:03, local time.")] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="Visits before this time. A day includes the day.")] = "",
    most: Annotated[int, typer.Option(min=1, max=100_000, help="Number of visits.")] = visits.PAGE_ROWS,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line, with the whole event.")] = False,
) -> None:
    """Search the visits of all doors, newest first."""
    wanted = Search(
        person=person,
        unknown=unknown,
        door=door,
        outcome=outcome,
        since=visits.utc_bound(since),
        until=visits.utc_bound(until, is_end=True),
    )
    with Site.open(site).database() as database:
        found = visits.search(database, wanted, most=most)
        for visit in found.visits:
            if as_json:
                typer.echo(json.dumps(asdict(visit) | {"event": visits.event_of(database, visit.id)}))
            else:
                typer.echo(_line(visit))
    if found.older is not None:
        console.say(f"These are the newest {len(found.visits)}. Show more with --most NUMBER.")


def _line(visit: Visit) -> str:
    scores = "" if visit.confidence is None or visit.threshold is None else f"{visit.confidence:.2f}/{visit.threshold:.2f}"
    who = printable(visit.label or ("unknown" if visit.is_unknown else "-"))
    marks = "  ".join(filter(None, ("picture" if visit.has_picture else "", visit.verdict)))
    line = f"{visit.id:>7}  {visit.local:%Y-%m-%d %H:%M:%S}  {printable(visit.door):16} {visit.outcome:8} {who:20} {scores:9}"
    return f"{line}  {printable(visit.reason or '')}  {printable(marks)}".rstrip()


def show_visit(
    site: SiteFolder,
    number: Number,
    picture: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the opened picture to this JPEG file.")] = None,
    picture_key: PictureKey = None,
) -> None:
    """Print all facts of a visit as JSON. With --picture, open its sealed picture."""
    with Site.open(site).database() as database:
        visit = visits.get(database, number)
        if picture is not None:
            write_file(picture, pictures.open_picture(database, number, _key(picture_key)))
        typer.echo(json.dumps(asdict(visit) | {"event": visits.event_of(database, number)}, indent=2))


def _key(file: Path | None) -> bytes | None:
    return None if file is None else read_bytes(file, MAX_BYTES)


def import_visits(
    site: SiteFolder,
    door: Annotated[str, typer.Argument(metavar="DOOR", help="Name of the door.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An audit log, or events as JSON lines.")],
) -> None:
    """Store the visits of a terminal's audit log with its sealed pictures, or of `edge audit export`. Once each."""
    found = visit_import.import_file(Site.open(site), door, file, who=login_name(), now=datetime.now(UTC))
    console.say(
        f"{plural(found.new, 'new visit')}, {found.completed} completed, {found.known} known already; "
        f"{plural(found.other, 'entry', 'entries')} of other kinds, {plural(found.unreadable, 'line')} not readable."
    )
    if found.deleted:
        console.say(f"{plural(found.deleted, 'visit')} deleted: older than the site keeps visits.")


def judge_visit(
    site: SiteFolder,
    number: Number,
    picture_key: PictureKey = None,
    stranger: Annotated[bool, typer.Option("--stranger", help="The face is of no enrolled person.")] = False,
    name: Annotated[str, typer.Option("--is", metavar="NAME", help="The face is this person.")] = "",
    face: Annotated[int | None, typer.Option(min=1, help="Which face of the picture, counted from the left.")] = None,
    look: Annotated[Path | None, typer.Option(metavar="FILE", help="Only write the face to this PNG file, to look.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask: the face was looked at.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Take the verdict back, and remove its photo.")] = False,
) -> None:
    """Save the face of a visit as a stranger, or as a training photo of a person, after a look at it."""
    opened = Site.open(site)
    if sum((stranger, bool(name), undo)) != 1:
        raise UsageError("The verdict is not clear.", "Use one of --stranger, --is NAME and --undo.")
    with opened.database() as database:
        if undo:
            removed = pictures.undo(opened, database, number, who=login_name())
            what = "Its photo is deleted" if removed else "Its photo was moved or deleted before"
            return console.say(f"The verdict on visit {number} is undone. {what}.")
        key = _key(picture_key)
        chosen = None if face is None else pictures.frame_of(database, number, key).numbered(face)
        found = pictures.look(opened, database, number, key, name=name, face=chosen)
        for doubt in _doubts(found):
            console.say(f"warning: {doubt}")
        if look is not None:
            write_file(look, found.photo)
            return console.say(f"{look} shows face {found.number} of {len(found.frame.faces)}. Nothing is saved in the site.")
        what = f"a training photo of {name}" if name else "a stranger"
        if not yes and not typer.confirm(f"Save face {found.number} of visit {number} as {what}?", err=True):
            raise typer.Abort
        file = pictures.judge(opened, database, number, key, who=login_name(), seen=found.seen, name=name, face=found.face)
    console.say(f"Saved {file}. The next training uses it.")


def _doubts(found: pictures.Look) -> list[str]:
    doubts = [*found.check.warnings, *(f"the face looks like {printable(other.person)}" for other in found.alike)]
    if len(found.frame.faces) > 1:
        doubts.append(f"the picture shows {len(found.frame.faces)} faces: check with --look FILE which one it is")
    return doubts


def prune_visits(
    site: SiteFolder,
    days: Annotated[int | None, typer.Option(min=0, help="Delete older visits. Not given: as the setting says.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Make --days the setting of the site; 0: no limit.")] = False,
) -> None:
    """Delete old visits with their pictures. Photos that were made of them stay. The console applies the setting daily."""
    if keep and days is None:
        raise UsageError("--keep needs a number of days.", "Add --days DAYS, or --days 0 for no limit.")
    who, now = login_name(), datetime.now(UTC)
    with Site.open(site).database() as database:
        if days is None:
            deleted = visit_retention.prune_by_setting(database, who=who, now=now)
        else:
            change = visit_retention.set_keep_days if keep else visit_retention.prune
            deleted = change(database, days, who=who, now=now)
        kept = visit_retention.keep_days(database)
    setting = f"The site keeps visits for {plural(kept, 'day')}" if kept else "The site keeps visits without a limit"
    console.say(f"Deleted {plural(deleted, 'visit')}. {setting}.")


COMMANDS = {
    "visits": list_visits,
    "show-visit": show_visit,
    "import-visits": import_visits,
    "judge-visit": judge_visit,
    "prune-visits": prune_visits,
}
