"""Pictures of every page of the console, to look at: ./scripts/qa/screenshots FOLDER [--only people,train]

It makes a site of ORL people with the usual mistakes in it, starts the real console, and writes NAME-light.png, NAME-dark.png
and NAME-phone.png of each page, and NAME-german.png of some. A new page needs one line in SHOTS.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import cv2
import typer
from playwright.sync_api import Browser, Page, sync_playwright

from edge.audit.crypto import write_keys
from edge.errors import UsageError
from edge.kit.format import kit_id
from edge.monitor.preview import Preview
from export import release
from tests.fixtures.console import PASSWORD, PHONE, Console, Visitor, add_user, chromium
from tests.fixtures.events import make_event
from tests.fixtures.kits import signing_keys
from tests.fixtures.site import blank_photo, orl_file, orl_image, png, two_faces
from tests.fixtures.visits import UNKNOWN, camera_frame, write_audit_log
from tests.fixtures.waiting import until
from trainer.site import archive, door_lists, doors, jobs, kits, models, people, visit_import, visits
from trainer.site.doors import Door
from trainer.site.folder import Site
from trainer.site.training import TRAINING, train
from trainer.site.visits import Search

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
NORTH, WORKSHOP, GATE = "North entrance", "Workshop", "Gate"
LIST = """\
[door]
timezone = "Europe/Berlin"
holidays = [2026-12-25, 2026-12-26, 2027-01-01]

[[allow]]
people = ["Anna Berger", "Carla Núñez"]

[[allow]]
people = ["David Osei", "Erik Lund", "Paula Kern"]
weekdays = "mon-fri"
hours = "07:00-18:00"

[[allow]]
people = ["Farid Haddad"]
weekdays = "sat-sun"
hours = "07:30-12:00"
holidays = true

[[allow]]
people = ["Hans Weiß"]
valid_from = 2026-11-02
valid_until = 2026-11-06
hours = "08:00-17:00"
"""
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
    newest_kit: str
    first_kit: str
    visits: dict[str, int]
    """Numbers of visits by what they show."""
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
    Shot("kits-kit", "/kits/{newest_kit}", german=True),
    Shot("kits-older", "/kits/{first_kit}", german=True),
    Shot("kits-viewer", "/kits", role="viewer"),
    Shot("doors", "/doors", german=True),
    Shot("doors-door", f"/doors/{quote(NORTH)}", german=True),
    Shot("doors-offline", f"/doors/{quote(GATE)}", german=True),
    Shot("doors-list", f"/doors/{quote(WORKSHOP)}/list", german=True, open="details"),
    Shot("doors-list-text", f"/doors/{quote(WORKSHOP)}/list?as=text"),
    Shot("doors-list-none", f"/doors/{quote(NORTH)}/list"),
    Shot("doors-list-viewer", f"/doors/{quote(WORKSHOP)}/list", role="viewer"),
    Shot("visits", "/visits", german=True),
    Shot("visits-viewer", "/visits", role="viewer"),
    Shot("visits-found-none", "/visits?person=zzz"),
    Shot("visits-visit", "/visits/{visits[known]}", german=True, open="details"),
    Shot("visits-unknown", "/visits/{visits[unknown]}", german=True),
    Shot("visits-no-picture", "/visits/{visits[blurred]}"),
    Shot("visits-person", "/visits/{visits[unknown]}/judge?verdict=is&name=Nils%20Holm", german=True),
    Shot("visits-stranger", "/visits/{visits[two]}/judge?verdict=stranger", german=True),
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
    """A site of ORL people, with mistakes in it, two models, two kits, three doors, and users."""
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
    (folder.parent / "north").mkdir()
    doors.add(site, Door(name=NORTH, drop=folder.parent / "north" / "door.kit"), WHO)
    doors.add(site, Door(name=WORKSHOP), WHO)
    doors.add(site, Door(name=GATE, status_url="http://127.0.0.1:9"), WHO)
    door_lists.save(site, WORKSHOP, LIST, WHO)
    make_kits(site)
    for user, role in USERS.items():
        add_user(site.path, user, role)
    return site


def make_kits(site: Site) -> None:
    """Two signed kits, the second of them smaller, and both published to one door."""
    first, second = sorted(model.name for model in models.list_models(site))
    for name, model, precision in (("first", first, "fp32"), ("with Iris", second, "fp16")):
        options: dict[str, Any] = {"precision": precision, "private_key": signing_keys()[0], "publish": [NORTH]}
        plan = release.plan(site, model=model, name=name, **options)
        with jobs.run(site, plan.kind, WHO, plan.options) as job:
            release.carry_out(plan, job, who=WHO)


def make_visits(site: Site, work: Path, key: Path) -> None:
    """Visits at two doors, as their audit logs bring them."""
    begin = datetime(2026, 11, 18, 7, 41, 12, tzinfo=UTC)
    seen: list[tuple[dict[str, Any], Any]] = [
        ({"label": "Anna Berger"}, camera_frame(1, number=8)),
        ({"label": "David Osei", "confidence": 0.81}, camera_frame(4, number=9)),
        ({"label": "Hans Weiß", "outcome": "denied", "reason": "outside allowed hours"}, camera_frame(8, number=7)),
        (UNKNOWN, camera_frame(14, number=9)),
        ({"label": "Carla Núñez", "confidence": 0.77}, camera_frame(20, 3)),
        ({**UNKNOWN, "reason": "low image quality: face blurred"}, None),
        ({"label": "Mei Tanaka", "outcome": "denied", "reason": "presentation attack suspected"}, camera_frame(13)),
    ]
    for door in (NORTH, WORKSHOP):
        events = [
            (make_event(**decision, utc=begin + timedelta(minutes=17 * minute)), frame)
            for minute, (decision, frame) in enumerate(seen)
        ]
        log = write_audit_log(work / f"{door}.db", events, public_key=key)
        visit_import.import_file(site, door, log, who=WHO, now=datetime.now(UTC))
        begin += timedelta(hours=3)


@contextmanager
def live_door(site: Site) -> Iterator[None]:
    """Let one door answer as a terminal does. Another one is switched off."""
    newest = kits.list_kits(site)[0].path.read_bytes()
    with Preview("127.0.0.1:0") as preview:
        kit = kit_id(hashlib.sha256(newest).hexdigest())
        preview.watch(lambda: {"camera_up": True, "fps": 14.8, "temperature_celsius": 48.3, "kit": kit})
        doors.change(site, NORTH, Door(name=NORTH, status_url=preview.url, drop=doors.find(site, NORTH).drop), WHO)
        yield


def _write(site: Site, name: str, photos: dict[str, bytes]) -> None:
    (site.photos / name).mkdir(exist_ok=True)
    for file, data in photos.items():
        (site.photos / name / file).write_bytes(data)


def doors_are_asked(console: Console) -> bool:
    """Whether the console knows the state of each door."""
    with console.client(user="anna") as client:
        facts = client.get("/doors", headers={"Accept": "application/json"}).json()["doors"]
    return all(fact["state"] != "waiting" for fact in facts)


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
            raise UsageError("No usable photo of Jana Novak.", "Add photos (jpg, png), or remove the person.")
    except UsageError:
        pass
    with jobs.run(site, "train", WHO) as running:
        running.stage("reading photos", 49, 49)
        running.stage(TRAINING, 30, 100)
        with site.database() as database:
            found = {visit.label or visit.reason: visit.id for visit in visits.search(database, Search(door=NORTH)).visits}
        yield Places(
            newest_model=models.list_models(site)[0].name,
            newest_kit="with Iris",
            first_kit="first",
            visits={
                "known": found["Anna Berger"],
                "unknown": found["unknown person"],
                "blurred": found["low image quality: face blurred"],
                "two": found["Carla Núñez"],
            },
            running_job=running.id,
            done_job=numbers[0],
            failed_job=numbers[1],
        )


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
            public = write_keys(key := Path(work) / "picture-key.pem")
            make_visits(site, Path(work), public)
            with live_door(site), Console(site.path, "--picture-key", key) as console:
                idle = tuple(shot for shot in full if not shot.name.startswith("jobs-running"))
                running = tuple(shot for shot in full if shot not in idle)
                with jobs_of(site) as places:
                    take(browser, console, running, folder, places)
                until(lambda: doors_are_asked(console))
                take(browser, console, idle, folder, places)
    print(f"{len(list(folder.glob('*.png')))} pictures in {folder}; users have the password {PASSWORD!r}")


if __name__ == "__main__":
    typer.run(main)
