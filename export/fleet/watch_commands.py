"""`edge-export fleet status` and `edge-export fleet advance`: what doors report over MQTT, and rollouts that follow it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge.cli import common as console
from edge.errors import DoorsError, UsageError
from edge.text import plural, some
from export.fleet import commands
from export.fleet import health as rules
from export.fleet.commands import Group, KeysFolder, Password, RepoFolder

if TYPE_CHECKING:
    from edge.sinks.mqtt import MqttSettings
    from export.fleet.broker import Reader

HEARTBEAT_ROUNDS = 10
READER = "lclrr-edge-advance"

Broker = Annotated[str, typer.Option("--broker", metavar="URL", help="mqtts://HOST[:PORT]; mqtt:// is not encrypted.")]
User = Annotated[str | None, typer.Option("--user", help="User name at the broker.")]
PasswordFile = Annotated[Path | None, typer.Option("--password-file", metavar="FILE", help="Its password, first line.")]
CaFile = Annotated[Path | None, typer.Option("--ca-file", metavar="FILE", help="Certificates to trust, PEM.")]
Wait = Annotated[float, typer.Option(min=0.1, max=600, help="Seconds in which doors are received.")]


def status(
    broker: Broker,
    repo: Annotated[Path | None, typer.Argument(metavar="[REPO]", help="Also show what doors do not have yet.")] = None,
    user: User = None,
    password_file: PasswordFile = None,
    ca_file: CaFile = None,
    wait: Wait = 2.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="One JSON object at each change, until Ctrl-C.")] = False,
) -> None:
    """Show what each door has and whether it works. The exit code is 51 if one of them needs attention."""
    from export.fleet.broker import Reader
    from export.fleet.status import needing_attention, table

    with Reader(_settings(broker, user, password_file, ca_file)) as reader:
        reader.wait(wait)
        facts = _facts(reader, repo)
        if follow:
            _follow(reader, repo, wait)
        elif as_json:
            typer.echo(json.dumps(facts))
        elif facts["doors"]:
            typer.echo(table(facts["doors"]))
        else:
            raise DoorsError("No door has reported.", "Check [mqtt] and [fleet] of the doors, and the rights of the user.")
    if names := needing_attention(facts["doors"]):
        of_all = f"{len(names)} of {plural(len(facts['doors']), 'door')}"
        raise DoorsError(f"{of_all} need attention: {some(names)}.", "See the column problem.")


def advance(
    repo: RepoFolder,
    broker: Broker,
    group: Group,
    steps: Annotated[str, typer.Option(metavar="SHARES", help="Shares of the doors, ascending.")] = "0.01,0.1,1",
    after: Annotated[float, typer.Option(min=0, help="Seconds for which all doors of a step must work.")] = 600.0,
    watch: Annotated[bool, typer.Option("--watch/--once", help="Continue until the rollout is complete or stopped.")] = False,
    every: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between two looks, with --watch.")] = 30.0,
    user: User = None,
    password_file: PasswordFile = None,
    ca_file: CaFile = None,
    wait: Wait = 2.0,
    keys: KeysFolder = None,
    password: Password = False,
) -> None:
    """Raise the share of a rollout if its doors work, and stop it if one fails. The exit code is 51 if it is stopped."""
    from export.fleet import advance as library
    from export.fleet.broker import Reader
    from export.fleet.repository import opened

    shares, secret, said = _steps(steps), commands.read_password(password), ""
    with Reader(_settings(broker, user, password_file, ca_file), name=f"{READER}-{group}") as reader:
        reader.wait(wait)
        while True:
            reports = reader.reports()
            with opened(repo, keys=keys, password=secret) as repository:
                decision, waiting = library.look(repository, group, reports, reader.alarms(), steps=shares, after=after)
            if (sentence := str(decision)) != said:
                console.say(sentence)
                commands.report_waiting(waiting)
            said = sentence
            if decision.action == "stop":
                raise DoorsError(f"The rollout of {group} is stopped.", "Publish another kit, or `fleet rollout --resume`.")
            if not watch or decision.action == "done":
                return
            reader.wait(every)


def _settings(broker: str, user: str | None, password_file: Path | None, ca_file: Path | None) -> "MqttSettings":
    from export.fleet.broker import parse_address

    return parse_address(broker, user=user, password_file=password_file, ca_file=ca_file)


def _steps(text: str) -> tuple[float, ...]:
    try:
        return rules.check_steps([float(part) for part in text.split(",")])
    except ValueError:
        raise UsageError(f"{text[:60]!r} are not shares.", "Write them as --steps 0.01,0.1,1.") from None


def _facts(reader: "Reader", repo: Path | None) -> dict[str, Any]:
    """Return what doors report, and what the repository has for them."""
    from export.fleet.contents import Contents, groups_of
    from export.fleet.overview import rollout_sentence
    from export.fleet.repository import opened
    from export.fleet.status import rows

    published = {}
    if repo is not None:
        with opened(repo) as repository:
            groups = groups_of(repository, "all") if repository.group_roles() else []
            published = {group: Contents(repository, group).rollout() for group in groups}
    summaries = {
        group: {"summary": rollout_sentence(rollout), "rollout": None if rollout is None else vars(rollout)}
        for group, rollout in published.items()
    }
    return {"groups": summaries, "doors": rows(reader.reports(), published)}


def _follow(reader: "Reader", repo: Path | None, seconds: float) -> None:
    """Write the facts when they change, and from time to time: a reader that is gone ends this command."""
    said: Mapping[str, Any] = {}
    rounds = 0
    while True:
        facts = _facts(reader, repo)
        if facts != said or rounds % HEARTBEAT_ROUNDS == 0:
            typer.echo(json.dumps(facts))
        said, rounds = facts, rounds + 1
        reader.wait(seconds)
