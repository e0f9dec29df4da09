"""A fleet from its first publication to a stolen key, with real nginx, Mosquitto and commands, and simulated doors.

Prints a line for each step, and figures. The exit code is 1 if a step failed. Everything is on loopback. What is real and what
is simulated at a door: tests/fixtures/simulated_doors.py. Mirrors freeze and go back because their files do, and time passes
because the clocks of doors and publisher are shifted.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from tuf.api.metadata import DelegatedRole, Delegations, Metadata, Targets

from edge.cli import common as console
from edge.decision import reasons
from edge.decision.doorlist import DoorList
from edge.errors import EdgeError
from edge.fleet.documents import fraction
from edge.text import plural
from export.fleet import contents, roles
from export.fleet.keys import Keyring, load
from scripts.qa.fleet_world import ALLOWED, GROUP, LIST, REVOKED, StepError, World, running_world
from tests.fixtures.fleet import versioned_kit

DAY, HOUR = 86400.0, 3600.0
DOORS, SECONDS = 50, 5.0
QUICK_DOORS, QUICK_SECONDS = 8, 1.0
USUAL_SECONDS = 60.0
"""[fleet] seconds of a door, if the settings do not name it."""
MANY = 10_000
KIT_MB = 5.0
STATUS_ATTEMPTS = 5
REST_POLLS, REST_SECONDS, REQUESTS = 5, 120.0, 4000

app = typer.Typer(add_completion=False)


@dataclass
class Story:
    """The steps in their order, and the figures that they measure."""

    world: World
    figures: dict[str, Any] = field(default_factory=dict)
    rest_bytes: float | None = None
    """Bytes of a poll that brings nothing new."""

    def steps(self) -> list[tuple[str, Callable[[], str]]]:
        return [
            ("first publication", self.first_publication),
            ("rollout 1 % -> 10 % -> all by `fleet advance`", self.rollout),
            ("bad kit stops after the first doors", self.bad_kit),
            ("status of all doors by `fleet status`", self.status),
            ("bytes at rest", self.rest),
            ("changed door list", self.changed_list),
            ("revocation", self.revocation),
            ("half-downloaded kit", self.half_downloaded),
            ("frozen mirror", self.frozen_mirror),
            ("rolled-back repository", self.rolled_back),
            ("stolen targets key, and its rotation", self.stolen_key),
            ("door that was off for a week", self.week_off),
            ("requests per second of nginx", self.requests),
        ]

    def first_publication(self) -> str:
        self.world.publish_list(LIST)
        self.world.publish_kit(2, 1.0)
        seconds = self.world.until("no kit", lambda door: door.kit_version == 2 and door.lists.door_list is not None)
        return f"all doors have the kit and the list after {seconds:.1f} s"

    def rollout(self) -> str:
        self.world.publish_kit(3, 0.0)
        code, messages = self.world.advance()
        shares = re.findall(r"now for ([0-9.]+) %", messages)
        require(code == 0 and "complete at 100 %" in messages, messages)
        self.world.until("no kit", lambda door: door.kit_version == 3)
        return f"shares {' %, '.join(shares)} %"

    def bad_kit(self) -> str:
        sha256 = self.world.publish_kit(4, 0.0, is_bad=True)
        code, messages = self.world.advance()
        tried = [door for door in self.world.doors if sha256 in door.tried]
        require(code == 51 and "is stopped" in messages and "rejected the kit" in messages, messages)
        require({door.kit_version for door in self.world.doors} == {3}, "a door has another kit")
        rollout = self.world.rollout()
        first = [door for door in self.world.doors if fraction(rollout.id, door.settings.door) < rollout.share]
        require(rollout.share < 0.1 or len(first) == 1, f"stopped at {rollout.share}")
        require(tried == first, f"{len(tried)} doors tried it, and {len(first)} should")
        number, doors = len(first), len(self.world.doors.all)
        return f"{number} of {doors} doors tried and rejected it; all have the kit before"

    def status(self) -> str:
        problem = ""
        for _ in range(STATUS_ATTEMPTS):  # on a busy machine a door may be away just now
            try:
                return self._status()
            except StepError as error:
                problem = str(error)
        raise StepError(problem)

    def _status(self) -> str:
        code, table = self.world.status()
        lines = [line for line in table.splitlines() if line.startswith(f"{GROUP}/")]
        good = sum("  yes  " in line and "  fresh  " in line for line in lines)
        require(good == len(lines) == len(self.world.doors.all), table)
        # The door of the bad kit is in the share, so the stopped rollout expects nothing of it any more.
        require(code == 0, table)
        return f"{good} doors online and fresh"

    def changed_list(self) -> str:
        rest = self._rest_bytes()
        before = self._received(), self._polls()
        changed = LIST + b'[[allow]]\npeople = ["carl"]\n'
        self.world.publish_list(changed)
        version = DoorList.parse(changed).version
        seconds = self.world.until("no list", lambda door: door.lists.version == version)
        new, polls = self._received() - before[0], self._polls() - before[1]
        self.figures["changed list, bytes per door"] = round((new - polls * rest) / len(self.world.doors.all))
        return f"in use at all doors after {seconds:.1f} s"

    def revocation(self) -> str:
        require(self._refusals(REVOKED) == {None}, "the person was refused before")
        self.world.revoke(REVOKED)
        seconds = self.world.until("still granted", lambda door: door.refusal(REVOKED) == reasons.REVOKED)
        require(self._refusals(ALLOWED) == {None}, "another person is refused")
        self.figures[f"seconds until {len(self.world.doors.all)} doors have a revocation"] = round(seconds, 1)
        return f"all doors refuse the person after {seconds:.1f} s, with polls every {self.world.seconds:g} s at most"

    def rest(self) -> str:
        rest, polls_a_day = self._rest_bytes(), DAY / (0.75 * USUAL_SECONDS)
        self.figures["bytes per poll at rest"] = round(rest)
        self.figures["kB per door and day at rest"] = round(rest * polls_a_day / 1000)
        return f"{rest:.0f} bytes per poll, {polls_a_day:.0f} polls a day"

    def half_downloaded(self) -> str:
        world = self.world
        world.server.stop()
        size = len(versioned_kit(5))
        world.serve("limit_rate 1000;")
        world.publish_kit(5, 1.0)
        world.until("no part of the kit", lambda door: _partial_bytes(door.folder) > 0)
        world.kill_server()
        parts = [_partial_bytes(door.folder) for door in world.doors]
        require(all(0 < part < size for part in parts), f"{parts} of {size} bytes")
        before = len(world.all_requests())
        world.serve()
        world.until("no kit", lambda door: door.kit_version == 5)
        answers = [line for line in world.all_requests()[before:] if line[0].endswith(".kit")]
        require({line[1] for line in answers} == {"206"}, "a door began anew")
        begun = [int(line[3].removeprefix("bytes=").removesuffix("-")) for line in answers]
        # Not the same numbers: a door may still have read what had arrived before the end.
        require(len(begun) >= len(parts) and min(begun) >= min(parts), f"{sorted(begun)} for {sorted(parts)}")
        return f"nginx was killed with {min(parts)} to {max(parts)} of {size} bytes sent; all doors continued there"

    def frozen_mirror(self) -> str:
        world = self.world
        world.mirror.frozen = True
        world.clock.shift += 25 * HOUR
        world.renew()
        world.until("not stale", lambda door: door.fleet.status()["state"] == "stale")
        require(self._refusals(ALLOWED) == {reasons.FLEET_TOO_OLD}, "a door still grants")
        with world.reader() as reader:
            self._until_reported(reader, "stale")
        world.mirror.thaw()
        self._until_fresh()
        return "25 hours later all doors are stale, say so and deny; fresh again when the mirror is"

    def rolled_back(self) -> str:
        world = self.world
        old = world.folder / "old"
        shutil.copytree(world.mirror.folder, old)
        world.revoke("carl")
        world.until("still granted", lambda door: door.refusal("carl") == reasons.REVOKED)
        world.mirror.replace(old)
        with world.reader() as reader:
            self._until_reported(reader, "failed")
        require(self._refusals("carl") == {reasons.REVOKED}, "a revocation was undone")
        world.mirror.thaw()
        self._until_fresh()
        return "all doors refuse it, keep the revocation and raise an alarm"

    def stolen_key(self) -> str:
        world = self.world
        self.away = world.doors.all[0]
        self.away.stop()
        thief = world.folder / "thief"
        shutil.copytree(world.keys / "targets", thief / "targets")
        stolen = self._attack(thief)
        time.sleep(3 * world.seconds)
        require(self._refusals(REVOKED) == {reasons.REVOKED}, "the thief deceived a door without the online keys")
        with world.changing() as repository:
            roles.rotate(repository, "targets")
        with world.changing() as repository:
            roles.refresh(repository, ["targets", f"group-{GROUP}"])
        world.mirror.thaw()
        self._until_fresh()
        self._attack(thief)
        with world.reader() as reader:
            self._until_reported(reader, "failed")
        require(self._refusals(REVOKED) == {reasons.REVOKED}, "the old key is still accepted")
        world.mirror.thaw()
        self._until_fresh()
        return f"key {stolen[:8]}: no door accepted the thief's mirror, before or after the rotation of the key"

    def week_off(self) -> str:
        world, door = self.world, self.away
        world.clock.shift += 7 * DAY
        world.publish_kit(6, 1.0)
        world.renew()
        self._until_fresh()
        door.start()
        refused = door.refusal(ALLOWED)
        require(refused == reasons.FLEET_TOO_OLD, f"before its first pull the door says: {refused}")
        door.begin_to_pull()
        world.until("no kit", lambda door: door.kit_version == 6)
        require((door.refusal(REVOKED), door.refusal(ALLOWED)) == (reasons.REVOKED, None), "it has old data")
        return "denied everyone until it had followed the exchanged keys; then it had kit and revocations of today"

    def requests(self) -> str:
        rate = self.world.requests_per_second(REQUESTS)
        self.figures["requests per second of nginx, at least"] = round(rate)
        return f"{rate:.0f} over TLS, with the client on the same two cores"

    # Parts of steps

    def _attack(self, thief: Path) -> str:
        """Put the next version of targets on the mirror, signed with the stolen key, and a group without revocations."""
        world = self.world
        world.mirror.frozen = True
        with world.changing() as repository:
            roles.refresh(repository, ["targets", f"group-{GROUP}"])
        with world.changing() as repository:
            (file,) = (thief / "targets").glob("*.pem")
            signer, role = load(file), f"group-{GROUP}"
            assert signer is not None
            own = Keyring(thief)
            key = own.make(role)
            of_group: Targets = repository.published(role, repository.targets()).signed
            group = contents.Contents(repository, GROUP)
            of_group.targets = {path: of_group.targets[path] for path in group.paths if not path.endswith("revoked.json")}
            paths = [f"{GROUP}/*", f"{GROUP}/*/*"]
            delegated = DelegatedRole(role, [key.keyid], 1, terminating=True, paths=paths)
            targets = repository.targets()
            targets.delegations = Delegations({key.keyid: key}, {role: delegated})
            world.mirror.replace(world.repo)
            for name, signed, signers in (("targets", targets, [signer]), (role, of_group, own.signers(role, [key.keyid]))):
                metadata: Metadata[Targets] = Metadata(signed)
                for one in signers:
                    metadata.sign(one)
                (world.mirror.folder / "metadata" / f"{signed.version}.{name}.json").write_bytes(metadata.to_bytes())
        return signer.public_key.keyid

    def _refusals(self, label: str) -> set[str | None]:
        return {door.refusal(label) for door in self.world.doors}

    def _until_fresh(self) -> None:
        self.world.until("not fresh", lambda door: door.fleet.status()["state"] == "fresh")

    def _until_reported(self, reader: Any, state: str) -> None:
        """Wait until all doors report a state over MQTT."""

        def reports(door: Any) -> bool:
            found = reader.reports().get((GROUP, door.settings.door))
            return found is not None and found.state == state

        self.world.until(f"do not report {state}", reports)

    def _received(self) -> int:
        return sum(door.all_received for door in self.world.doors.all)

    def _polls(self) -> int:
        return sum(line[0].endswith("/timestamp.json") for line in self.world.all_requests())

    def _rest_bytes(self) -> float:
        """Measure the bytes of a poll that brings nothing new, once."""
        if self.rest_bytes is None:
            time.sleep(2 * self.world.seconds)
            received, polls = self._received(), self._polls()
            deadline = time.monotonic() + REST_SECONDS
            while self._polls() < polls + REST_POLLS * len(self.world.doors.all) and time.monotonic() < deadline:
                time.sleep(0.1)
            self.rest_bytes = (self._received() - received) / max(1, self._polls() - polls)
        return self.rest_bytes


def require(holds: bool, problem: str) -> None:
    if not holds:
        raise StepError(" ".join(problem.split())[:400])


def _partial_bytes(folder: Path) -> int:
    with suppress(FileNotFoundError):
        return sum(file.stat().st_size for file in (folder / "fleet" / "partial").iterdir())
    return 0


def many_doors(figures: dict[str, Any]) -> dict[str, str]:
    """Return what 10,000 doors need of one static server, calculated from measured figures."""
    per_second = MANY / (0.75 * USUAL_SECONDS)
    rate = figures["requests per second of nginx, at least"]
    rest_mbit = per_second * figures["bytes per poll at rest"] * 8 / 1e6
    list_mb = MANY * figures["changed list, bytes per door"] / 1e6
    kit_gb = MANY * KIT_MB / 1000
    return {
        "requests per second at rest": f"{per_second:.0f}, {100 * per_second / rate:.0f} % of what was measured",
        "Mbit/s at rest": f"{rest_mbit:.2f}",
        "a changed list": f"{list_mb:.0f} MB within {USUAL_SECONDS:g} s: {list_mb * 8 / USUAL_SECONDS:.1f} Mbit/s",
        f"a kit of {KIT_MB:g} MB for all": f"{kit_gb:.0f} GB: {kit_gb * 8e3 / 3600:.0f} Mbit/s over one hour",
    }


@app.command()
def main(
    doors: Annotated[int | None, typer.Option(min=4, max=200, help="Number of simulated doors (default: 50).")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="8 doors that poll every second, for CI.")] = False,
    seconds: Annotated[float | None, typer.Option(min=1, max=60, help="Longest time between two polls.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder with all files.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")] = False,
) -> None:
    """Run the whole story, and print a line for each step, and figures."""
    logging.disable(logging.CRITICAL)  # the doors complain about each attack, as they should
    number = doors or (QUICK_DOORS if quick else DOORS)
    interval = seconds or (QUICK_SECONDS if quick else SECONDS)
    folder = Path(tempfile.mkdtemp(prefix="fleet-"))
    results: list[dict[str, Any]] = []
    figures: dict[str, Any] = {}
    try:
        with running_world(folder, number, interval) as world:
            story = Story(world)
            figures = story.figures
            for name, step in story.steps():
                results.append(run_step(name, step))
                if not as_json:
                    print(line(results[-1]), flush=True)
                if not results[-1]["ok"]:  # the next steps build on it
                    break
    except pytest.skip.Exception as missing:
        raise SystemExit(f"error: {missing}") from None
    finally:
        console.say(f"The files are in {folder}.") if keep else shutil.rmtree(folder, ignore_errors=True)
    is_complete = all(result["ok"] for result in results)
    calculated = many_doors(figures) if is_complete else {}
    if as_json:
        print(json.dumps({"doors": number, "seconds": interval, "steps": results, "figures": figures, "many": calculated}))
    else:
        print(report(number, interval, figures, calculated))
    sys.exit(not is_complete)


def run_step(name: str, step: Callable[[], str]) -> dict[str, Any]:
    begun = time.monotonic()
    try:
        ok, found = True, step()
    except (StepError, EdgeError) as error:
        ok, found = False, str(error)
    except Exception as error:
        ok, found = False, f"{type(error).__name__}: {error}"
    return {"step": name, "ok": ok, "found": found, "seconds": round(time.monotonic() - begun, 1)}


def line(result: dict[str, Any]) -> str:
    return f"{'OK' if result['ok'] else 'FAILED':<7} {result['step']:<46} {result['seconds']:>6.1f} s  {result['found']}"


def report(number: int, interval: float, figures: dict[str, Any], calculated: dict[str, str]) -> str:
    """Return the figures as lines."""
    lines = ["", f"{plural(number, 'simulated door')}, polls every {interval / 2:g} to {interval:g} s"]
    lines += [f"{value:>10,}  {name}" for name, value in figures.items()]
    if calculated:
        lines += ["", f"By calculation: {MANY:,} doors, polls every {USUAL_SECONDS / 2:g} to {USUAL_SECONDS:g} s, one server"]
        lines += [f"  {name}: {value}" for name, value in calculated.items()]
        lines.append("Bytes are those of HTTP, without TLS and TCP.")
    return "\n".join(lines)


if __name__ == "__main__":
    console.run(app)
