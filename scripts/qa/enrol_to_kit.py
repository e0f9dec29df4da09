"""From the photos of a new person to a signed kit: ./scripts/qa/enrol_to_kit [--people 100] [--photos 5] [--data LFW.zip]

It makes a site of so many people and trains it once. Then it does over HTTP what a person does in the console: upload the
photos of one more person, train, build a kit that is signed. The clock runs from the last click of the upload to the finished
kit. Processor seconds say how much work that is, also if other programs use the computer.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any
from zipfile import ZipFile

import typer

from edge.camera.photo import SUFFIXES
from edge.cli import common as console
from edge.credentials import key_pair_pem
from edge.errors import UsageError
from edge.kit import format as kits
from scripts.research import orl
from tests.fixtures.console import Client, Console
from trainer.presets import Preset
from trainer.site.folder import Site
from trainer.site.models import list_models
from trainer.site.photos import checker
from trainer.site.training import train

GOAL_SECONDS = 60.0
POLL_SECONDS = 0.1
NEWCOMER = "Newcomer"
JSON = {"Accept": "application/json"}
TICKS = os.sysconf("SC_CLK_TCK")
People = dict[str, list[bytes]]
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of the way, and how long its stages took."""

    name: str
    seconds: float
    processor_seconds: float
    stages: dict[str, float]


def people_of(data: Path | None, number: int, photos: int) -> People:
    """Return so many people with so many photo files each: of a ZIP with a folder for each, or of ORL."""
    found: People = {}
    if data is None:
        for folder in sorted(orl.folder().iterdir()):
            found[folder.name] = [file.read_bytes() for file in sorted(folder.glob("*.pgm"))[:photos]]
    else:
        with ZipFile(data) as archive:
            names: dict[str, list[str]] = defaultdict(list)
            for name in sorted(archive.namelist()):
                if name.lower().endswith(SUFFIXES):
                    names[Path(name).parent.name].append(name)
            enough = [own for own in names.items() if len(own[1]) >= photos][:number]
            found = {person: [archive.read(name) for name in own[:photos]] for person, own in enough}
    if len(found) < number:
        source = "ORL" if data is None else data
        problem = f"{source} has only {len(found)} people with {photos} photos; {number} are needed."
        raise UsageError(problem, "Use a lower --people or --photos, or other --data.")
    return dict(list(found.items())[:number])


def make_site(folder: Path, people: People, preset: Preset | None) -> Site:
    """Make a site with these people, and train it."""
    site = Site.create(folder)
    for name, photos in people.items():
        (site.photos / name).mkdir()
        for k, photo in enumerate(photos):
            (site.photos / name / f"{k}{'.pgm' if photo.startswith(b'P5') else '.jpg'}").write_bytes(photo)
    train(site, preset=preset, who="enrol_to_kit")
    return site


class Visit:
    """A person with a browser."""

    def __init__(self, client: Client, site: Site) -> None:
        self._client, self._site = client, site
        self._csrf = client.csrf()

    def post(self, path: str, fields: dict[str, str] | None = None, **options: Any) -> dict[str, Any]:
        answer = self._client.post(path, data=fields, headers=JSON | {"X-CSRF": self._csrf}, **options)
        found: dict[str, Any] = answer.json()
        if not answer.is_success:
            raise UsageError(f"{path}: {found['problem']} {found['hint']}")
        return found

    def upload(self, photos: list[bytes]) -> Step:
        """Upload photos one by one, as the page does."""
        started = time.monotonic()
        for photo in photos:
            self.post(f"/people/{NEWCOMER}/photos", files={"photos": ("photo", photo)})
        return Step(name="upload", seconds=time.monotonic() - started, processor_seconds=0.0, stages={})

    def job(self, name: str, path: str, fields: dict[str, str], **options: Any) -> tuple[Step, dict[str, Any]]:
        """Start a job, and wait for its end. Return its times and its result."""
        started = time.monotonic()
        number = int(self.post(path, fields, **options)["go"].rpartition("/")[2])
        with self._site.database() as database:
            query = "SELECT * FROM jobs WHERE id = ?"
            job, worked = database.execute(query, (number,)).fetchone(), 0.0
            while job["state"] == "running":
                worked = max(worked, processor_seconds(job["pid"]))
                time.sleep(POLL_SECONDS)
                job = database.execute(query, (number,)).fetchone()
            if job["state"] != "done":
                raise UsageError(f"The job {name} ended: {job['message']}")
            worked = max(worked, processor_seconds(job["pid"]))
            rows = database.execute(
                "SELECT stage, seconds FROM stage_seconds WHERE kind = ? ORDER BY position", (job["kind"],)
            )
            stages = dict(rows.fetchall())
        step = Step(name=name, seconds=time.monotonic() - started, processor_seconds=worked, stages=stages)
        return step, json.loads(job["result"])


def processor_seconds(pid: int) -> float:
    """Return how long a process has used processors; 0 if it is gone."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS
    return 0.0


def measure(site: Site, photos: list[bytes], preset: Preset | None) -> list[Step]:
    """Enrol a person, train and build, and return the steps. The kit is checked."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private, public = key_pair_pem(Ed25519PrivateKey.generate())
    with Console(site.path) as served, served.client() as client:
        visit = Visit(client, site)
        client.get("/people")
        client.get(f"/people/{NEWCOMER}")  # the network is loaded while the person looks at the page
        upload = visit.upload(photos)
        training, _ = visit.job("training", "/train", {} if preset is None else {"preset": preset})
        fields = {"model": list_models(site)[0].name, "precision": "fp32"}
        build, result = visit.job("kit", "/kits", fields, files={"key": ("kit-key.pem", private)})
    kit = kits.read(site.kits / f"{result['kit']}.kit", public)
    assert NEWCOMER in kit.manifest.labels
    return [upload, training, build]


def table(steps: list[Step]) -> str:
    """Return the steps as lines."""
    lines = [f"{'step':<28} {'seconds':>8} {'processor seconds':>18}"]
    for step in steps:
        worked = f"{step.processor_seconds:18.1f}" if step.processor_seconds else ""
        lines.append(f"{step.name:<28} {step.seconds:8.1f} {worked}".rstrip())
        lines += [f"  {stage:<26} {seconds:8.1f}" for stage, seconds in step.stages.items()]
    total = sum(step.seconds for step in steps)
    lines.append(f"{'total':<28} {total:8.1f} {sum(step.processor_seconds for step in steps):18.1f}")
    lines.append(f"Goal ({GOAL_SECONDS:g} s): {'met' if total <= GOAL_SECONDS else 'MISSED'}.")
    return "\n".join(lines)


@app.command()
def main(
    people: Annotated[int | None, typer.Option(min=5, help="People before the new one (default: 100, of ORL 39).")] = None,
    photos: Annotated[int, typer.Option(min=2, help="Photos of each.")] = 5,
    data: Annotated[Path | None, typer.Option(help="ZIP with a folder for each person (default: ORL).")] = None,
    preset: Annotated[Preset | None, typer.Option(help="Preset of the trainings (default: that of the console).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object to stdout.")] = False,
) -> None:
    """Measure. Exit code 1 if it takes more than the goal."""
    checker(console.say)  # downloads the networks, once
    number = people or (39 if data is None else 100)
    own = people_of(data, number + 1, photos)
    *_, newcomer = own.values()
    own.popitem()
    with tempfile.TemporaryDirectory(prefix="lclrr-enrol-") as place:
        console.say(f"Training a site of {number} people with {photos} photos each ...")
        site = make_site(Path(place) / "site", own, preset)
        steps = measure(site, newcomer, preset)
    total = sum(step.seconds for step in steps)
    if as_json:
        typer.echo(json.dumps({"people": number, "photos": photos, "seconds": total, "steps": [asdict(one) for one in steps]}))
    else:
        typer.echo(table(steps))
    sys.exit(total > GOAL_SECONDS)


if __name__ == "__main__":
    console.run(app)
