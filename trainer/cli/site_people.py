"""`trainer site people` and its family: the people of a site and their photos."""

import json
from pathlib import Path
from typing import Annotated

import typer

from edge.cli import common as console
from edge.credentials import MAX_BYTES
from edge.errors import UsageError
from edge.files import read_bytes, replaced_file
from edge.text import plural
from trainer.cli.options import check_writable
from trainer.site import archive, forgetting, jobs, people, person_export, users
from trainer.site.folder import Site
from trainer.site.photo_index import checked, near_duplicates, photo_file, photo_files, stored
from trainer.site.photos import MAX_PHOTO, checker

SiteFolder = Annotated[Path, typer.Argument(metavar="SITE", help="The folder of the site.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The person.")]
Who = Annotated[str, typer.Option(hidden=True, help="The user of the console who asked for it.")]


def list_people(
    site: SiteFolder,
    search: Annotated[str, typer.Option(help="Only names with this text in them.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """List the people of a site."""
    opened = Site.open(site)
    with opened.database() as database:
        for folder in people.sync(opened, database):
            console.say(f"note: {folder} is not shown, because of its name. Rename the folder.")
        page = people.search(database, search)
        for number in range(1, page.pages + 1):
            for person in people.search(database, search, number).people:
                text = f"{person.name:32} {plural(person.photos, 'photo'):>10}  {person.consent_date or 'no consent date'}"
                typer.echo(json.dumps(vars(person)) if as_json else text)


def add(
    site: SiteFolder,
    name: Name,
    photos: Annotated[list[Path], typer.Argument(metavar="PHOTOS...", help="Photo files, or a folder of them.")],
    who: Who = "",
) -> None:
    """Add photos to a person, who may be new, and say what is wrong with them."""
    opened, files = Site.open(site), [file for path in photos for file in _files(path)]
    with opened.database() as database:
        for file in files:
            data = read_bytes(file, MAX_PHOTO + 1)
            found = people.add_photo(opened, database, name, data, who=who or users.login_name(), using=checker(console.say))
            advice = found.problem or ", ".join(found.warnings) or "good"
            typer.echo(f"{file}: {'not usable for training: ' if found.problem else ''}{advice} ({found.file})")


def _files(path: Path) -> list[Path]:
    return [Path(entry.path) for entry in photo_files(path)] if path.is_dir() else [path]


def delete_photo(site: SiteFolder, name: Name, file: Annotated[str, typer.Argument(help="The photo.")], who: Who = "") -> None:
    """Delete one photo of a person."""
    opened = Site.open(site)
    with opened.database() as database:
        people.delete_photo(opened, database, name, file, who=who or users.login_name())
    console.say(f"Deleted {file}.")


def move_photo(
    site: SiteFolder,
    name: Name,
    file: Annotated[str, typer.Argument(help="The photo.")],
    to: Annotated[str, typer.Argument(help="The other person.")],
    who: Who = "",
) -> None:
    """Move a photo to another person."""
    opened = Site.open(site)
    with opened.database() as database:
        new = people.move_photo(opened, database, name, file, to, who=who or users.login_name())
    console.say(f"Moved to {to}/{new}.")


def choose_face(
    site: SiteFolder,
    name: Name,
    file: Annotated[str, typer.Argument(help="The photo.")],
    face: Annotated[int, typer.Argument(min=1, help="Number of the face, counted from the left.")],
    who: Who = "",
) -> None:
    """Cut a photo of several faces to one of them."""
    opened = Site.open(site)
    with opened.database() as database:
        chosen = checked(database, photo_file(opened, name, file), checker()).numbered(face)
        found = people.choose_face(opened, database, name, file, chosen, who=who or users.login_name())
    console.say(f"Wrote {found.file}.")


def rename(site: SiteFolder, name: Name, new: Annotated[str, typer.Argument(help="The new name.")], who: Who = "") -> None:
    """Give a person another name. Models, kits and door lists keep the old one until they are made again."""
    opened = Site.open(site)
    with opened.database() as database:
        people.sync(opened, database)
        new = people.rename(opened, database, name, new, who=who or users.login_name())
    console.say(f"{name} is {new} now. Train and build again, and check the door lists.")


def merge(
    site: SiteFolder, name: Name, into: Annotated[str, typer.Argument(help="The same person's other name.")], who: Who = ""
) -> None:
    """Move all photos of NAME to INTO, and remove NAME."""
    opened = Site.open(site)
    with opened.database() as database:
        people.sync(opened, database)
        moved = people.merge(opened, database, name, into, who=who or users.login_name())
    console.say(f"{plural(moved, 'photo')} moved to {into}.")


def consent(
    site: SiteFolder,
    name: Name,
    date: Annotated[str | None, typer.Option(metavar="YYYY-MM-DD", help="Date of the consent; empty: none.")] = None,
    note: Annotated[str | None, typer.Option(help="A note about the person.")] = None,
    who: Who = "",
) -> None:
    """Set the date of consent and the note of a person. What is not given stays."""
    opened = Site.open(site)
    with opened.database() as database:
        people.sync(opened, database)
        now = people.get(database, name)
        if now is None:
            raise UsageError(f"There is no {name}.", "Check the name.")
        date, note = now.consent_date or "" if date is None else date, now.note if note is None else note
        people.set_consent(opened, database, name, date, note, who=who or users.login_name())
    console.say(f"{name}: consent {date or 'without a date'}.")


def forget(
    site: SiteFolder,
    name: Name,
    delete_older: Annotated[
        bool, typer.Option("--delete-older", help="Delete the other models and all kits that contain the person, too.")
    ] = False,
    who: Who = "",
) -> None:
    """Delete a person: photos, consent, note, names in visits, and what the newest model learned. Say what is left."""
    opened, user = Site.open(site), who or users.login_name()
    with jobs.run(opened, "forget", user) as job, opened.database() as database:
        people.sync(opened, database)
        done = forgetting.forget(opened, database, name, who=user, delete_older=delete_older, stage=job.stage, say=job.say)
        remains = [{"file": remain.file, "what": remain.what} for remain in done.remains]
        job.finish(done.summary(), remains=remains, deleted=done.deleted, changed=done.changed)
    console.say(done.summary())


def export_person(
    site: SiteFolder,
    name: Name,
    output: Annotated[Path, typer.Option("-o", "--output", help="The ZIP file to write.")],
    picture_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Private key of sealed pictures: without it, they stay sealed.")
    ] = None,
    who: Who = "",
) -> None:
    """Write all that is held about a person to a ZIP file."""
    opened = Site.open(site)
    check_writable(output)
    key, user = None if picture_key is None else read_bytes(picture_key, MAX_BYTES), who or users.login_name()
    with opened.database() as database, replaced_file(output) as file:
        people.sync(opened, database)
        number = person_export.export_person(opened, database, name, file, who=user, picture_key=key)
    console.say(f"Wrote {output}: {plural(number, 'file')}.")


def import_people(
    site: SiteFolder,
    source: Annotated[Path, typer.Argument(help="A folder or a ZIP file with a folder of photos per person.")],
    add: Annotated[bool, typer.Option("--add", help="Add the photos of people who are there already.")] = False,
    delete_source: Annotated[bool, typer.Option("--delete-source", hidden=True, help="Delete the file afterwards.")] = False,
    who: Who = "",
) -> None:
    """Import many people. Each is written in one step; names that exist are listed, and left out without --add."""
    opened, user = Site.open(site), who or users.login_name()
    if not source.exists():
        raise UsageError(f"There is no {source}.", "Check the path.")
    with jobs.run(opened, "import", user, {"add": add}) as job, opened.database() as database:
        try:
            done = archive.import_people(opened, database, source, who=user, add=add, stage=job.stage, say=job.say)
        finally:  # before the job is shown as done
            if delete_source and source.is_file():
                source.unlink()
        job.finish(done.summary(), people=len(done.people), photos=done.photos, conflicts=done.conflicts)
    console.say(done.summary())


def check(site: SiteFolder) -> None:
    """Check all photos, and list those that a training leaves out, near-duplicates, and photos that are advised against."""
    opened = Site.open(site)
    with opened.database() as database:
        with console.progress("Checking photos") as line:
            done = archive.check_all(
                opened, database, using=checker(console.say), stage=lambda _, number, total: line.count(number, total)
            )
        for name in people.names(database):
            photos = [photo for photo in stored(database, opened.photos / name).values() if photo is not None]
            doubles = near_duplicates(photos)
            for photo in photos:
                again = [f"nearly repeats {other}" for other in doubles.get(photo.file, ())[:1]]
                for text in ([f"left out: {photo.problem}"] if photo.problem else []) + [*photo.warnings, *again]:
                    typer.echo(f"{name}/{photo.file}: {text}")
    for pair in done.same_photos:
        typer.echo(f"{pair}: the same photo has two names")
    console.say(f"{plural(done.photos, 'photo')} checked, {done.problems} cannot be used for training.")


COMMANDS = {
    "people": list_people,
    "add": add,
    "delete-photo": delete_photo,
    "move-photo": move_photo,
    "choose-face": choose_face,
    "rename": rename,
    "merge": merge,
    "consent": consent,
    "forget": forget,
    "export-person": export_person,
    "import": import_people,
    "check": check,
}
