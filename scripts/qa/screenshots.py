"""Pictures of every page of the console, to look at: ./scripts/qa/screenshots FOLDER [--only people,train]

It makes a site of ORL people with the usual mistakes in it, starts the real console, and writes NAME-light.png, NAME-dark.png
and NAME-phone.png of each page, and NAME-german.png of some. A new page needs one line in SHOTS.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import cv2
import typer
from playwright.sync_api import Browser, Page, sync_playwright

from edge.errors import UsageError
from tests.fixtures.console import PASSWORD, PHONE, Console, Visitor, add_user, chromium
from tests.fixtures.site import blank_photo, orl_file, orl_image, png, two_faces
from trainer.site import archive, jobs, models, people
from trainer.site.folder import Site
from trainer.site.training import TRAINING, train

NAMES = (
    "Anna Berger",
    "Bruno Keller",
    "Carla Núñez",
    "David Osei",
    "Erik Lund",
    "Farid Haddad",
    "Grzegorz Zając",
    "Hans Weiß",
    "Ines Costa",
    "Jonas Meier",
    "Katja Ilić",
    "Luis Romero",
    "Mei Tanaka",
    "Nils Holm",
)
"""The people with the ORL numbers 1, 2, ..."""
OTHER_MISTAKES = "Iris Moreau"
USERS: dict[str, Any] = {"anna": "administrator", "otto": "operator", "vera": "viewer"}
WHO = "otto"
SCREEN = {"width": 1280, "height": 800}
VARIANTS: dict[str, dict[str, Any]] = {
    "light": {"viewport": SCREEN, "color_scheme": "light"},
    "dark": {"viewport": SCREEN, "color_scheme": "dark"},
    "phone": {"viewport": PHONE, "color_scheme": "light", "has_touch": True},
    "german": {"viewport": SCREEN, "color_scheme": "light", "locale": "de-DE"},
}
LOAD_PICTURES = """() => Promise.all([...document.images].map((one) => {
  one.loading = "eager";
  return one.decode().catch(() => null);
}))"""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Names in the site that paths need."""

    newest_model: str
    running_job: int
    done_job: int
    failed_job: int


@dataclass(frozen=True)
class Shot:
    """A picture of one page. `path` may have the fields of Places."""

    name: str
    path: str
    german: bool = False
    role: Any = "administrator"
    """None: not logged in."""
    open: str = ""
    """Selector of the <details> that are opened first."""


SHOTS = (
    Shot("people", "/people", german=True, open="#many"),
    Shot("people-found-none", "/people?q=zzz"),
    Shot("people-viewer", "/people", role="viewer"),
    Shot("people-person", f"/people/{quote('Anna Berger')}", german=True),
    Shot("people-problems", f"/people/{quote(OTHER_MISTAKES)}", german=True, open=".photo:first-child details"),
    Shot("people-person-viewer", f"/people/{quote(OTHER_MISTAKES)}", role="viewer"),
    Shot("people-new", f"/people/{quote('Jana Novak')}"),
    Shot("people-capture", f"/people/{quote('Jana Novak')}/capture", german=True),
    Shot("train", "/train", german=True, open="details"),
    Shot("train-result", "/train/{newest_model}", german=True, open="details"),
    Shot("train-report", "/train/{newest_model}/report"),
    Shot("jobs-running", "/jobs/{running_job}", german=True),
    Shot("jobs-done", "/jobs/{done_job}"),
    Shot("jobs-failed", "/jobs/{failed_job}", german=True),
    Shot("kits", "/kits", german=True),
    Shot("doors", "/doors", german=True),
    Shot("visits", "/visits", german=True),
    Shot("settings", "/settings", german=True),
    Shot("settings-users", "/users", german=True, open="tr:first-child details"),
    Shot("settings-trail", "/trail", german=True),
    Shot("login", "/login", german=True, role=None),
    Shot("error", "/people?only=other"),
)
EMPTY = (
    Shot("empty-people", "/people", german=True),
    Shot("empty-train", "/train"),
    Shot("empty-kits", "/kits"),
    Shot("empty-doors", "/doors"),
    Shot("empty-visits", "/visits"),
    Shot("empty-settings", "/settings"),
    Shot("empty-users", "/users", german=True),
    Shot("empty-trail", "/trail"),
    Shot("empty-login", "/login", german=True, role=None),
)
"""Pages of a site without people and users."""


def make_site(folder: Path) -> Site:
    """A site of ORL people, with mistakes in it, two models, and users."""
    site = Site.create(folder)
    for number, name in enumerate(NAMES, start=1):
        _write(site, name, {f"{photo}.pgm": orl_file(number, photo) for photo in range(1, 7)})
    _write(site, "Anna Berger", {"from-the-party.pgm": orl_file(2, 9)})
    train(site, preset="tiny", who=WHO)
    photo = orl_image(15, 1)
    mistakes = {
        "1.pgm": orl_file(15, 1),
        "2-again.png": png(cv2.convertScaleAbs(photo, alpha=1.02)),
        "3-blurred.png": png(cv2.GaussianBlur(photo, (0, 0), 4)),
        "4-two-faces.png": two_faces(15, 10),
        "5-wall.png": blank_photo(),
        "6.pgm": orl_file(3, 7),  # another person
    }
    _write(site, OTHER_MISTAKES, mistakes)
    train(site, preset="tiny", who=WHO)
    with site.database() as database:
        archive.check_all(site, database)
        people.set_consent(site, database, "Anna Berger", "2026-05-04", "Signed at the reception.", who=WHO)
        people.rename(site, database, "Bruno Keller", "Bruno Kellermann", who=WHO)
    for user, role in USERS.items():
        add_user(site.path, user, role)
    return site


def _write(site: Site, name: str, photos: dict[str, bytes]) -> None:
    (site.photos / name).mkdir(exist_ok=True)
    for file, data in photos.items():
        (site.photos / name / file).write_bytes(data)


@contextmanager
def jobs_of(site: Site) -> Iterator[Places]:
    """One job that is done, one that failed, and one that runs until the block ends."""
    numbers = []
    with jobs.run(site, "import", WHO) as done:
        done.stage("import people", 2, 3)
        done.finish("3 new people, 18 photos. 1 photo cannot be used for training: see the people with problems.")
        numbers.append(done.id)
    try:
        with jobs.run(site, "train", WHO) as failed:
            failed.stage(TRAINING)
            numbers.append(failed.id)
            raise UsageError("No usable photo of Jana Novak.", "Add photos, or remove the folder.")
    except UsageError:
        pass
    with jobs.run(site, "train", WHO) as running:
        running.stage("reading photos", 49, 49)
        running.stage(TRAINING, 30, 100)
        newest = models.list_models(site)[0].name
        yield Places(newest_model=newest, running_job=running.id, done_job=numbers[0], failed_job=numbers[1])


def take(browser: Browser, console: Console, shots: tuple[Shot, ...], folder: Path, places: Places | None) -> None:
    """Write the pictures of some pages of one console."""
    for variant, options in VARIANTS.items():
        for shot in shots:
            if variant == "german" and not shot.german:
                continue
            visitor = Visitor(browser, console, **options)
            page = visitor.page if shot.role is None else visitor.enter(shot.role, user=_user(console, shot.role))
            answer = page.goto(shot.path.format(**(vars(places) if places else {})))
            if answer is None or answer.status >= 500:
                print(f"{shot.name}: no answer")
                visitor.context.close()
                continue
            _settle(page, shot)
            page.screenshot(path=folder / f"{shot.name}-{variant}.png", full_page=True)
            visitor.close()


def _user(console: Console, role: str) -> str | None:
    with console.site.database() as database:
        (number,) = database.execute("SELECT count(*) FROM users").fetchone()
    return next(user for user, known in USERS.items() if known == role) if number else None


def _settle(page: Page, shot: Shot) -> None:
    """Open what is folded, and load all pictures."""
    if shot.open:
        page.eval_on_selector_all(shot.open, "all => all.forEach(one => { one.open = true; })")
    page.evaluate(LOAD_PICTURES)


def main(
    folder: Annotated[Path, typer.Argument(help="Where the pictures are written.")],
    only: Annotated[str, typer.Option(help="Only pages whose names begin so, such as people,train.")] = "",
) -> None:
    """Write pictures of every page of the console."""
    starts = tuple(only.split(",")) if only else ("",)
    full, empty = (tuple(shot for shot in all_ if shot.name.startswith(starts)) for all_ in (SHOTS, EMPTY))
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work, sync_playwright() as playwright, chromium(playwright) as browser:
        if empty:
            with Console(Path(work) / "empty") as console:
                take(browser, console, empty, folder, None)
        if full:
            site = make_site(Path(work) / "site")
            with Console(site.path) as console, jobs_of(site) as places:
                take(browser, console, full, folder, places)
    print(f"{len(list(folder.glob('*.png')))} pictures in {folder}; users have the password {PASSWORD!r}")


if __name__ == "__main__":
    typer.run(main)
