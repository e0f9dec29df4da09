"""Red team: attack the terminal through its public surfaces, and count the breaches. The exit code is 1 if there is one.

Each attack is a function of scripts/qa/attacks/; docs/reference/security.md describes them.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from edge.cli import common as console
from edge.errors import UsageError
from edge.text import plural
from scripts.qa.attacks import door, files, fuzz, kit, log, network
from scripts.qa.attacks.attack import ATTACKS, Attack, CannotRunError, Range
from scripts.research import options

ROOMS = door, kit, log, network, files, fuzz  # these fill ATTACKS
MODELS = options.DATA.parent / "models"

app = typer.Typer(add_completion=False)


def chosen(only: str) -> list[Attack]:
    """Return the attacks with these numbers, in order; all attacks for an empty text. 20 means 20a, 20b and so on, too."""
    attacks = sorted(ATTACKS, key=lambda attack: (int("".join(filter(str.isdigit, attack.number)) or 99), attack.number))
    wanted = [word.strip() for word in only.split(",") if word.strip()]
    known = {name for attack in attacks for name in (attack.number, attack.number.rstrip("abcd"), attack.number.split(" ")[0])}
    if unknown := sorted(set(wanted) - known):
        raise UsageError(f"There is no attack {unknown[0]}.", f"Choose from {', '.join(a.number for a in attacks)}.")
    if not wanted:
        return attacks
    return [a for a in attacks if {a.number, a.number.rstrip("abcd"), a.number.split(" ")[0]} & set(wanted)]


def run_attack(attack: Attack, where: Range) -> dict[str, Any]:
    """Run one attack. An error of the attack itself counts as a breach: nothing was shown to hold."""
    found: dict[str, Any] = {"number": attack.number, "title": attack.title, "tries": 0, "breaches": 0, "example": ""}
    try:
        return found | asdict(attack.run(where))
    except (CannotRunError, pytest.skip.Exception) as reason:
        return found | {"cannot_run": str(reason)}
    except Exception as error:
        logging.getLogger(__name__).debug("attack %s failed", attack.number, exc_info=True)
        return found | {"tries": 1, "breaches": 1, "example": f"the attack ended with {type(error).__name__}: {error}"}


def line(found: dict[str, Any]) -> str:
    """Return the line of one attack."""
    start = f"{found['number']:>14}  {found['title']:<38}"
    if "cannot_run" in found:
        return f"{start}not run: {found['cannot_run']}"
    breaches = f"{plural(found['breaches'], 'breach', 'breaches'):>13}"
    example = f"   ({found['example']})" if found["example"] else ""
    return f"{start}{plural(found['tries'], 'try', 'tries'):>12}{breaches}{example}"


def summary(results: list[dict[str, Any]]) -> str:
    run = [found for found in results if "cannot_run" not in found]
    broken = [found["number"] for found in run if found["breaches"]]
    tries, breaches = (sum(found[key] for found in run) for key in ("tries", "breaches"))
    missing = len(results) - len(run)
    text = f"{plural(len(run), 'attack')}, {plural(tries, 'try', 'tries')}, {plural(breaches, 'breach', 'breaches')}"
    text += f" in {', '.join(broken)}." if broken else "."
    return f"{text} {missing} not run." if missing else text


@app.command()
def main(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer tries: two minutes on two cores, for CI.")] = False,
    only: Annotated[str, typer.Option(help="Run only these attacks, such as 2,6 or 20a or fuzz.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the fuzz input.")] = 0,
    data: Annotated[Path, typer.Option(help="Folder with attacks_dev.zip.")] = options.DATA,
    models: Annotated[Path, typer.Option(help="Folder with the liveness models.")] = MODELS,
) -> None:
    """Attack the terminal and count the breaches."""
    logging.disable(logging.CRITICAL)  # the terminal complains about each attack, as it should
    results = []
    for attack in chosen(only):
        folder = Path(tempfile.mkdtemp(prefix="redteam-"))
        try:
            with console.progress(f"{attack.number} {attack.title}") as shown:
                where = Range(folder=folder, quick=quick, seed=seed, data=data, models=models, count=shown.count)
                begun = time.monotonic()
                results.append(run_attack(attack, where) | {"seconds": round(time.monotonic() - begun, 1)})
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if not as_json:
            print(line(results[-1]), flush=True)
    if as_json:
        print(json.dumps({"quick": quick, "seed": seed, "attacks": results}, indent=1))
    else:
        print(summary(results))
    sys.exit(any(found["breaches"] for found in results))


if __name__ == "__main__":
    console.run(app)
