"""The scripts: research results that continue after a stop, diagrams of the code, and shell scripts without warnings."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest

from edge.decision.reasons import NOT_LISTED
from edge.errors import UsageError
from edge.vision.preprocess import FeatureSpec
from scripts import demo, demo_console
from scripts.qa import console_load, diagrams, redteam
from scripts.qa.attacks.attack import ATTACKS, Attack, CannotRunError, Range, Score
from scripts.research import accuracy as bench_accuracy
from scripts.research import peer_recognizers as bench_peers
from scripts.research import peers
from scripts.research import spoiled as bench_spoiled
from scripts.research.accuracy import COSINE, OURS, Answers, Faces, Task
from scripts.research.results import ResultsFile
from tests.fixtures.data import ROOT, faces
from tests.fixtures.portraits import find_orl
from tests.fixtures.programs import find_program
from trainer.site import doors, kits, models, training, visits
from trainer.site.folder import Site
from trainer.site.kits import BUILD_STAGES
from trainer.site.visits import GRANTED, Search

INTERRUPTED = """
import os, signal, sys
from pathlib import Path
from scripts.research.results import ResultsFile
results = ResultsFile(Path(sys.argv[1]))
for name in "abc":
    results.once(name, lambda: print("measured", name, flush=True) or name.upper())
    if name == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_results_file_continues_after_a_kill(tmp_path: Path) -> None:
    file = tmp_path / "results.json"

    def run(until: str) -> tuple[int, str]:
        command = [sys.executable, "-c", INTERRUPTED, str(file), until]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
        return done.returncode, done.stdout

    assert run("b") == (-signal.SIGKILL, "measured a\nmeasured b\n")
    assert json.loads(file.read_text()) == {"a": "A", "b": "B"}
    assert run("never") == (0, "measured c\n")
    assert ResultsFile(file) == {"a": "A", "b": "B", "c": "C"}


def test_results_file_leaves_other_files_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("not results")
    with pytest.raises(UsageError, match="is not a file of results"):
        ResultsFile(file)
    assert file.read_text() == "not results"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Faces], list[Task]]:
    """Two tasks on made-up faces: three enrolled people and a stranger. Of our methods only `minimal`, without a network."""
    images, labels = faces()
    monkeypatch.setattr(bench_accuracy, "OURS", {"ours, `minimal`": OURS["ours, `minimal`"]})
    usual = bench_accuracy._answer

    def without_network(own: Faces, task: Task, parameters: dict[str, Any] | None, say: Any) -> Answers:
        return usual(own, task, parameters or OURS["ours, `minimal`"], say)

    monkeypatch.setattr(bench_accuracy, "_answer", without_network)
    known = np.flatnonzero(labels < 3)
    train, test = known[known % 2 == 0], np.append(known[known % 2 == 1], np.flatnonzero(labels == 3))
    people = np.where(labels[test] < 3, labels[test], -1)
    task: dict[str, Any] = {"faces": "made up", "train": train, "labels": labels[train], "test": test, "people": people}
    own = Faces(crops=images, aligned=images, spec=FeatureSpec.for_crop(*images.shape[1:]))
    return {"made up": own}, [Task(name=name, split=0, **task) for name in ("ORL", "Yale B")]


def test_accuracy_measures_only_missing_cells(
    small: tuple[dict[str, Faces], list[Task]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets, tasks = small
    todos: list[dict[str, list[int]]] = []

    def some_peers(_: Any, given: Path) -> Any:
        """The first peer solves one task and then fails."""
        with np.load(given) as archive:
            todos.append(json.loads(str(archive["todo"])))
            name, (k, *_) = next(iter(todos[-1].items()))
            n = len(archive[f"{k}.test"])
        yield {"name": name, "task": k, "labels": [0] * n, "scores": [0.5] * n, "cost": {"bytes": 1}}

    monkeypatch.setattr(peers, "run", some_peers)
    results = ResultsFile(tmp_path / "results.json")
    messages: list[str] = []
    bench_accuracy.measure_missing("peers", sets, tasks, bench_accuracy.rates, results, messages.append)
    methods = ("ours, `minimal`", COSINE)
    first = next(iter(bench_peers.RECOGNIZERS))
    assert set(results) == {f"peers/{method}/{task}/0" for method in methods for task in ("ORL", "Yale B")} | {
        f"peers/{first}/cost",
        f"peers/{first}/ORL/0",
    }
    assert "5 of 14" in messages[-1]
    again = ResultsFile(tmp_path / "results.json")
    bench_accuracy.measure_missing("peers", sets, tasks, bench_accuracy.rates, again, messages.append, "Yale B")
    assert todos[0] == {name: [0, 1] for name in bench_peers.RECOGNIZERS}
    assert todos[1] == {name: [1] for name in bench_peers.RECOGNIZERS}, "ORL is measured already"
    assert again.items() >= results.items()
    found = bench_accuracy.mean_results("peers", again, splits=1)
    assert found[first].keys() == {"ORL", "Yale B"}
    assert bench_accuracy.mean_results("peers", again, splits=2)[first] == {}, "a mean of two splits needs both"
    table = bench_accuracy.table({"splits": 1, "rates": found, "facts": {first: again[f"peers/{first}/cost"]}})
    assert len(table.splitlines()) == 2 + len(found)
    assert {line.count("|") for line in table.splitlines()} == {9}


def test_rates_count_missed_and_wrong_labels() -> None:
    people = np.array([0, 0, 1, 1] + [-1] * 200)
    labels = np.array([0, 1, 1, 1] + [0] * 200)
    scores = np.array([0.9, 0.9, 0.9, 0.1] + [0.5] * 200)
    assert bench_accuracy.rates(Answers(labels, scores), people) == [75.0, 50.0]


def test_error_of_a_peer_is_reported_and_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    with bench_peers.skip_on_error("dlib"):
        importlib.import_module("no_such_dlib")
    bench_peers.write_line("SFace", p50_us=3.0)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [{"name": "dlib", "skipped": "No module named 'no_such_dlib'"}, {"name": "SFace", "p50_us": 3.0}]


def test_spoiled_tasks_change_the_given_share_of_images() -> None:
    labels = np.repeat(np.arange(5), 26)
    place = np.arange(len(labels)) % 26
    train, test = np.flatnonzero(place < 7), np.flatnonzero((place >= 13) & (place < 20))
    tasks = {task.name: task for task in bench_spoiled._tasks(labels, train, test, 1)}
    assert len(tasks) == 1 + len(bench_spoiled.KINDS) * len(bench_spoiled.SHARES)
    for share in bench_spoiled.SHARES:
        spoiled = round(share * len(train))
        assert np.sum(tasks[f"blocks {share:.0%}"].train >= len(labels)) == spoiled
        assert np.sum(tasks[f"wrong labels {share:.0%}"].labels != labels[train]) == spoiled
        assert (tasks[f"sunglasses {share:.0%}"].labels == labels[train]).all()
    table = bench_spoiled.table({"splits": 1, "accuracy": {"ours": {"none": 99.0, "blocks 20%": 98.5}}})
    assert table.splitlines()[-1].startswith("| ours | 99.0 |  | 98.5 |")


@pytest.mark.parametrize("name", diagrams.DIAGRAMS)
def test_diagram_is_up_to_date(name: str) -> None:
    file = diagrams.FOLDER / f"{name}.svg"
    assert file.read_text(encoding="utf-8") == diagrams.draw(diagrams.DIAGRAMS[name]), "run: python -m scripts.qa.diagrams"


def test_diagrams_are_all_in_the_folder() -> None:
    assert {file.stem for file in diagrams.FOLDER.glob("*.svg")} == diagrams.DIAGRAMS.keys()


def test_diagram_of_a_missing_file_is_an_error() -> None:
    with pytest.raises(FileNotFoundError, match=r"edge/no_such_file\.py"):
        diagrams.draw((diagrams.lane("lane", ("step", "edge/no_such_file.py")),))


def test_shellcheck_finds_nothing() -> None:
    files = [file for folder in ("scripts", ".ci") for file in (ROOT / folder).rglob("*") if file.is_file()]
    shell = [file for file in files if file.suffix == ".sh" or file.read_bytes().startswith(b"#!/usr/bin/env bash")]
    assert len(shell) > 10
    run = subprocess.run([find_program("shellcheck"), "--severity=warning", *shell], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "")


def test_demo_unpacks_people_to_enrol_and_strangers_only(tmp_path: Path) -> None:
    photos = {"anna": demo.MOST + 3, "ben": demo.EACH, "carl": demo.EACH + 1, "dora": 1}
    with ZipFile(tmp_path / "lfw.zip", "w") as packed:
        for name, number in photos.items():
            for k in range(number):
                packed.writestr(f"lfw/{name}/{name}_{k:02}.jpg", b"photo")
    (tmp_path / "out").mkdir()
    demo.unpack_some(tmp_path / "lfw.zip", tmp_path / "out", np.random.default_rng(0))
    found = {folder.name: len(list(folder.iterdir())) for folder in (tmp_path / "out").iterdir()}
    assert found == {"anna": demo.MOST, "carl": demo.EACH + 1, "dora": 1}


def run_redteam(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "scripts.qa.redteam", "--quick", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_redteam_runs_one_attack() -> None:
    code, lines = run_redteam("--only", "20a")
    assert code == 0, lines
    assert [" ".join(line.split()) for line in lines.splitlines()] == [
        "20a secrets in the command's environment 6 tries 0 breaches",
        "1 attack, 6 tries, 0 breaches.",
    ]
    code, found = run_redteam("--only", "17, 20a", "--json")
    assert [attack["number"] for attack in json.loads(found)["attacks"]] == ["17", "20a"]
    assert code == any(attack["breaches"] for attack in json.loads(found)["attacks"])
    code, message = run_redteam("--only", "21")
    assert (code, message.count("\n")) == (2, 1)
    assert "no attack 21" in message


def test_redteam_has_every_attack_of_the_page() -> None:
    page = (ROOT / "docs" / "reference" / "security.md").read_text()
    rows = {line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ") and line.count("|") > 3}
    numbers = {attack.number for attack in ATTACKS}
    assert numbers <= rows
    assert {number.rstrip("abcd") for number in numbers} >= {str(number) for number in range(1, 21)}
    assert [attack.number for attack in redteam.chosen("20, fuzz")][:4] == ["20a", "20b", "20c", "20d"]
    assert len(redteam.chosen("fuzz")) == 5


def test_redteam_attack_that_cannot_run_does_not_hold(tmp_path: Path) -> None:
    def missing(_: Range) -> Score:
        raise CannotRunError("needs root")

    def broken(_: Range) -> Score:
        raise RuntimeError("injected")

    results = [
        redteam.run_attack(Attack(number=str(number), title="a title", run=run), Range(folder=tmp_path))
        for number, run in enumerate((missing, broken, lambda _: Score(tries=3, breaches=0)))
    ]
    assert [redteam.line(found).split("title")[1].split()[:2] for found in results] == [
        ["not", "run:"],
        ["1", "try"],
        ["3", "tries"],
    ]
    assert redteam.summary(results) == "2 attacks, 4 tries, 1 breach in 1. 1 not run."


def run_script(name: str, *arguments: str) -> dict[str, Any]:
    """Run a measurement, and return its JSON. The times of this machine do not matter here."""
    command = [sys.executable, "-m", f"scripts.qa.{name}", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode in (0, 1), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_console_load_gets_an_answer_from_every_page() -> None:
    find_orl()
    found = run_script("console_load", "--people", "300", "--visits", "3000", "--rounds", "1")["pages"]
    assert {one["name"] for one in found} == {page.name for page in console_load.PAGES} | set(console_load.ACTIONS)
    assert not [one for one in found if one["status"] != 200]
    assert all(one["bytes"] > 0 for one in found if one["name"] not in console_load.ACTIONS)


def test_console_load_judges_by_status_and_time() -> None:
    times: dict[str, Any] = {"name": "people", "first_ms": 900.0, "median_ms": 5.0, "processor_ms": 4.0, "bytes": 10}
    results = [
        console_load.Timed(slowest_ms=299.0, status=200, **times),
        console_load.Timed(slowest_ms=300.0, status=200, **times),
        console_load.Timed(slowest_ms=5.0, status=500, **times),
    ]
    assert [one.ok for one in results] == [True, False, False]
    assert [line.rpartition("  ")[2] for line in console_load.table(results).splitlines()[1:]] == [
        "OK",
        "TOO SLOW",
        "ANSWER 500",
    ]


@pytest.mark.slow
def test_enrol_to_kit_splits_the_time_by_stage() -> None:
    find_orl()
    found = run_script("enrol_to_kit", "--people", "8", "--photos", "3", "--preset", "minimal")
    assert [step["name"] for step in found["steps"]] == ["upload", "training", "kit"]
    assert found["seconds"] == pytest.approx(sum(step["seconds"] for step in found["steps"]))
    assert set(found["steps"][1]["stages"]) < set(training.STAGES)
    assert set(found["steps"][2]["stages"]) == set(BUILD_STAGES)


@pytest.mark.slow
def test_demo_of_the_console_fills_a_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_orl()
    monkeypatch.setattr(demo, "OUTPUT", tmp_path)
    monkeypatch.setattr(demo_console, "PEOPLE", 12)
    monkeypatch.setattr(demo_console, "STRANGERS", 2)
    demo_console.fill()
    site = Site.open(tmp_path / demo_console.SITE)
    (model,) = models.list_models(site)
    assert model.result is not None
    wrong = [(photo["person"], photo["looks_like"]) for photo in model.result["suspected"]]
    assert wrong == [(demo_console.label(demo_console.WRONG_PLACE), demo_console.label(demo_console.WRONG_PERSON))]
    kit = kits.get_kit(site, demo_console.KIT)
    assert kit.signed
    for door in doors.load(site):
        assert door.drop is not None
        assert door.drop.read_bytes() == kit.path.read_bytes()
    with site.database() as database:
        found = visits.search(database, Search()).visits
    assert {visit.door for visit in found} == {demo_console.FRONT, demo_console.WORKSHOP}
    assert [visit for visit in found if visit.is_unknown and visit.has_picture]
    assert not [visit for visit in found if visit.door == demo_console.FRONT and visit.label and visit.outcome != GRANTED]
    assert [visit for visit in found if visit.door == demo_console.WORKSHOP and visit.reason == NOT_LISTED]
