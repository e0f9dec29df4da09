"""The tables: planned, measured, continued after a kill; with made-up people in arrays of the right shape."""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edge.errors import TrainingError, UsageError
from tests.fixtures.data import faces
from tests.fixtures.trainer_command import TrainerCommand
from trainer.baselines.registry import METHODS
from trainer.paper import tables, typeset
from trainer.paper.experiments import CELLS, Data, load_data, tuned_parameters
from trainer.paper.tables import Job, Runs, collect, plan, run, select_cells
from trainer.paper.tuned import source_cell, tune_all
from trainer.paper.typeset import Results

pytestmark = pytest.mark.slow

SMALL = select_cells("yaleb-8-8")
SUNGLASSES = select_cells("ar-sunglasses")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three people, in the files of the research data sets."""
    place = tmp_path_factory.mktemp("data")
    for name, photos, size in (("yaleb_96x84", 12, (96, 84)), ("ar_42x30", 26, (42, 30))):
        images, labels = faces(people=3, photos=photos, size=size)
        np.savez(place / f"{name}.npz", images=images, labels=labels)
    return place


@pytest.fixture(scope="module")
def data(folder: Path) -> dict[str, Data]:
    return load_data(folder, CELLS)


def planned(data: dict[str, Data], **changed: Any) -> list[Job]:
    how: dict[str, Any] = {"methods": ("lclrrdl",), "cells": SMALL, "splits": 2} | changed
    return plan(data, **how)


def lines_of(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def test_plan_has_every_split_and_a_few_timed_jobs(data: dict[str, Data]) -> None:
    jobs = plan(data, methods=("lclrrdl", "srw"), cells=CELLS, splits=10)
    shared = [job for job in jobs if not job.timed]
    assert len(shared) == len({job.key for job in shared}) == 2 * 9 * 10
    timed = [(job.row, job.cell.name, job.split) for job in jobs if job.timed]
    rows = ("lclrrdl", "lclrrdl/schedule paper", "srw")
    assert timed == [(row, "ar-sunglasses", split) for row in rows for split in range(3)]
    assert not [job for job in planned(data) if job.timed]


def test_forms_as_printed_are_rows_of_their_own(data: dict[str, Data]) -> None:
    names = ("lrrs", "srw", "lrr")
    common, both = (planned(data, methods=names, splits=1, as_printed=printed) for printed in (False, True))
    assert [job.row for job in both] == ["lrrs", "lrrs/as printed", "srw/which is as printed", "lrr"]
    assert {job.key for job in common} < {job.key for job in both}, "the other rows are not measured again"
    assert len({job.key for job in both}) == 4
    (printed,) = (job for job in both if job.row == "lrrs/as printed")
    assert printed.parameters["together"]
    assert "together" not in common[0].parameters


def test_command_measures_the_forms_as_printed(trainer: TrainerCommand, folder: Path, tmp_path: Path) -> None:
    words = ("--as-printed", "--quick", "--methods", "lclrrdl,srw", "--jobs", "1", "-o", tmp_path)
    code, out, err = trainer("tables", "--data", folder, *words)
    assert code == 0, err
    rows = [line.split(" | ")[0] for line in out.splitlines() if line.startswith("| ")]
    assert rows[2:] == ["| LCLRRDL", "| LCLRRDL, as printed", "| SRW, which is as printed"]
    assert "not tuned" not in out
    records = {record["row"]: record["parameters"] for record in map(json.loads, lines_of(tmp_path / "runs.jsonl"))}
    assert (records["lclrrdl"]["coding"], records["lclrrdl/as printed"]["coding"]) == ("l1", "batch")


def test_tuning_leaves_what_is_printed(data: dict[str, Data], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tuned.toml"
    monkeypatch.setitem(METHODS, "llc", replace(METHODS["llc"], printed_grid={"eta": (1e-3, 1e-2)}))
    assert tune_all(data, file, methods=("llc/as printed", "lclrrdl/as printed"), cells=SMALL, jobs=1, folds=2) == []
    text = file.read_text()
    assert text.startswith('[yaleb-8-8."llc/as printed".pixels]')
    assert "--methods llc --as-printed --folds 2" in text
    assert "lclrrdl" not in text
    (job,) = planned(data, methods=("llc/as printed",), splits=1, parameters=file)
    assert job.parameters["neighbours"] == 5


def test_key_depends_on_parameters_seed_and_data(data: dict[str, Data], tmp_path: Path) -> None:
    (job, _) = planned(data)
    assert planned(data)[0].key == job.key
    file = tmp_path / "other.toml"
    file.write_text("[yaleb-8-8.lclrrdl.pixels]\nlam = 24.0\n")
    other = {"yaleb": data["yaleb"]._replace(digest="0")}
    keys = [
        *(some.key for some in plan(data, methods=("lclrrdl", "srw"), cells=CELLS, splits=2)),
        planned(data, seed=1)[0].key,
        planned(data, parameters=file)[0].key,
        planned(other)[0].key,
    ]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("method", "module"),
    [
        ("lclrrdl", "trainer.method.solver"),
        ("lclrrdl", "trainer.method.prox"),
        ("llc", "trainer.method.classifier"),
        ("slrr", "trainer.baselines.src"),
        ("srw", "edge.vision.preprocess"),
    ],
)
def test_key_depends_on_the_code_but_not_on_comments(
    data: dict[str, Data], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, method: str, module: str
) -> None:
    monkeypatch.setattr(tables, "code_digest", tables.code_digest.__wrapped__)
    before = planned(data, methods=(method,))[0].key
    copy = tmp_path / "copy.py"
    text = Path(str(sys.modules[module].__file__)).read_text()
    monkeypatch.setattr(sys.modules[module], "__file__", str(copy))
    copy.write_text(text.replace('"""', '"""More, ', 1) + "\n# a comment\n")
    assert planned(data, methods=(method,))[0].key == before
    copy.write_text(text + "\nMORE = 1\n")
    assert planned(data, methods=(method,))[0].key != before


def test_untuned_methods_are_reported(data: dict[str, Data], tmp_path: Path) -> None:
    file = tmp_path / "some.toml"
    file.write_text("[yaleb-8-8.srw.pixels]\nlam = 0.01\n")
    jobs = plan(data, methods=("srw", "srs"), cells=SMALL, splits=1, parameters=file)
    assert [(job.tuned, job.parameters["lam"]) for job in jobs] == [(True, 0.01), (False, METHODS["srs"].usual["lam"])]
    assert "- Measured with usual parameters, not tuned: SRS." in typeset.markdown(collect(jobs, {}))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[yaleb-8-8.srw.pixels]\nlamda = 0.1", "srw has no lamda, tuned for yaleb-8-8"),
        ("yaleb-8-8 = 3", "yaleb-8-8 is not a section"),
        ("[yaleb-8-8]\nsrw = 3", "srw is not a section"),
    ],
)
def test_wrong_parameter_file_is_an_error_before_the_work(data: dict[str, Data], tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "odd.toml").write_text(text)
    with pytest.raises(UsageError, match=says):
        planned(data, methods=("srw",), parameters=tmp_path / "odd.toml")


def test_methods_and_cells_are_selected_by_name() -> None:
    with pytest.raises(UsageError, match="no method svm"):
        tables.select_methods("lclrrdl,svm")
    for text in ("orl", "ar-scarf,orl", "ar-scarf,", "", "ar@0", "ar@x", "ar@", "@2"):
        with pytest.raises(UsageError, match=r"no cell '(orl|ar@.*|@2)?'"):
            select_cells(text)
    assert tables.select_methods("srw,llc,srw") == ("srw", "llc"), "twice would count each split twice"
    assert [cell.name for cell in select_cells("yaleb-32,ar-scarf")] == ["yaleb-32-8", "yaleb-32-4", "yaleb-32-2", "ar-scarf"]
    assert [cell.name for cell in select_cells("ar-m@2,ar-s,ar-m@2")] == ["ar-sunglasses", "ar-scarf", "ar-mixed@2"]


def test_second_run_measures_only_missing_jobs(data: dict[str, Data], tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    with Runs(tmp_path) as runs:
        assert run(planned(data), data, runs, jobs=1, progress=lambda *status: seen.append(status)) == []
        assert [status[1:] for status in seen] == [(1, 2), (2, 2)]
        assert seen[1][0] == "about 0:00:00 left (last lclrrdl, yaleb-8-8)"
        first = dict(runs.done)
    seen.clear()
    with Runs(tmp_path) as runs:
        more = planned(data, splits=3)
        assert run(more, data, runs, jobs=1, progress=lambda *status: seen.append(status)) == []
        assert [status[1:] for status in seen] == [(1, 1)]
        assert runs.done.items() >= first.items()
        found = collect(more, runs.done)
    mean = found.accuracy["lclrrdl", "yaleb-8-8"]
    values = [record["accuracy"] for record in runs.done.values()]
    assert sorted(mean.values) == sorted(values)
    assert mean.value == pytest.approx(np.mean(values))
    assert mean.deviation == pytest.approx(np.std(values, ddof=1))


def test_incomplete_line_is_ignored_and_a_second_writer_rejected(tmp_path: Path) -> None:
    with Runs(tmp_path) as runs:
        runs.add({"key": "a", "accuracy": 1.0})
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write('{"key": "b", "accu')
    with Runs(tmp_path) as runs:
        assert list(runs.done) == ["a"]
        runs.add({"key": "c", "accuracy": 2.0})
    with Runs(tmp_path) as runs:
        assert list(runs.done) == ["a", "c"]
        with pytest.raises(UsageError, match="Another run"):
            Runs(tmp_path)


def test_full_disk_is_a_usage_error_and_loses_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Runs(tmp_path) as runs:
        runs.add({"key": "a"})
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(UsageError, match="No space left"):
            runs.add({"key": "b"})
        assert list(runs.done) == ["a"]
    with pytest.raises(UsageError, match="No space left"):
        typeset.write(Results(rows=("srw",), cells=SMALL, accuracy={}, seconds={}), tmp_path, "trainer tables")
    assert [file.name for file in tmp_path.iterdir()] == ["runs.jsonl"]
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written"):
        Runs(tmp_path / "file")


def test_failed_job_is_reported_and_leaves_its_entry_empty(data: dict[str, Data], tmp_path: Path) -> None:
    good, bad = planned(data)
    bad = replace(bad, parameters=bad.parameters | {"lam": 1e-5}, key="bad")  # collapses
    with Runs(tmp_path) as runs:
        (failure,) = run([good, bad], data, runs, jobs=1)
        assert failure.startswith("lclrrdl, yaleb-8-8, split 1: Training collapsed")
        assert list(runs.done) == [good.key]
        assert collect([good, bad], runs.done).accuracy == {}


def test_remaining_time_is_proportional_to_the_work(
    data: dict[str, Data], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One job per minute; the large job counts for more, and runs first."""
    clock = itertools.count(step=60)
    monkeypatch.setattr(tables, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    took = {"accuracy": 100.0, "train_seconds": 10.0, "test_seconds": 0.0}
    monkeypatch.setattr(tables, "measure", lambda *_, **__: took)
    monkeypatch.setattr(tables, "each", lambda function, calls, **_: (function(*call) for call in calls))
    seen: list[tuple[str, int, int]] = []
    with Runs(tmp_path) as runs:
        assert (
            run(
                plan(data, methods=("lclrrdl",), cells=SUNGLASSES, splits=2),
                data,
                runs,
                progress=lambda *status: seen.append(status),
            )
            == []
        )
    left = [status[0].partition(" left")[0] for status in seen]
    assert left == [f"about 0:0{minutes}:00" for minutes in (5, 4, 3, 2, 1, 0)], "timed jobs too"
    seen.clear()
    with Runs(tmp_path) as runs:
        jobs = plan(data, methods=("lclrrdl",), cells=select_cells("yaleb-8-8,yaleb-32-2"), splits=1)
        assert run(jobs, data, runs, progress=lambda *status: seen.append(status)) == []
    assert seen[0][0] == "about 0:00:00 left (last lclrrdl, yaleb-32-2)"


def test_cluster_of_two_workers_gives_the_same_accuracy(data: dict[str, Data], cluster: str, tmp_path: Path) -> None:
    jobs = plan(data, methods=("lclrrdl",), cells=(*SMALL, *SUNGLASSES), splits=2)
    with Runs(tmp_path / "here") as here, Runs(tmp_path / "there") as there:
        assert run(jobs, data, here, jobs=1) == []
        assert run(jobs, data, there, scheduler=cluster) == []
        assert {key: record["accuracy"] for key, record in here.done.items()} == {
            key: record["accuracy"] for key, record in there.done.items()
        }
        assert len(there.done) == len(jobs)


# --- The command ---


def arguments(folder: Path, output: Path, splits: int) -> list[str]:
    command = ["tables", "--data", folder, "-o", output, "--methods", "lclrrdl", "--cells", "yaleb-8-8", "--splits", splits]
    return [str(word) for word in command]


def start(folder: Path, output: Path) -> subprocess.Popen[bytes]:
    """Start the command with two workers, and wait for its first results."""
    program = "from trainer.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments(folder, output, 400), "--jobs", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # A background job of a shell ignores Ctrl-C, and its children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    until = time.monotonic() + 600
    while len(lines_of(output / "runs.jsonl")) < 3:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)
    return process


def test_killed_run_continues_where_it_was(trainer: TrainerCommand, folder: Path, tmp_path: Path) -> None:
    process = start(folder, tmp_path)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    before = lines_of(tmp_path / "runs.jsonl")
    assert 3 <= len(before) < 400, "killed before the end"
    assert not (tmp_path / "tables.md").exists()
    splits = len(before) + 1
    code, out, err = trainer(*arguments(folder, tmp_path, splits), "--jobs", "1")
    assert code == 0, err
    after = lines_of(tmp_path / "runs.jsonl")
    assert after[: len(before) - 1] == before[:-1], "no result is measured again or rewritten"
    records = [json.loads(line) for line in after if line.endswith("}")]
    assert len(records) == len({record["key"] for record in records})
    assert {record["split"] for record in records} >= set(range(splits))
    assert (tmp_path / "tables.md").read_text() == out


def test_ctrl_c_ends_the_command_without_a_traceback(folder: Path, tmp_path: Path) -> None:
    process = start(folder, tmp_path)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, err = process.communicate(timeout=600)
    assert (process.returncode, out) == (130, b"")
    assert err.strip() == b"interrupted"


def test_command_writes_three_files_and_prints_markdown(trainer: TrainerCommand, folder: Path, tmp_path: Path) -> None:
    words = ("tables", "--data", folder, "--quick", "--methods", "lclrrdl", "--jobs", "1", "-o", tmp_path / "results")
    code, out, err = trainer(*words)
    assert (code, "Saved" in err) == (0, True)
    assert "Measuring: 1 of 1, about 0:00:00 left (last lclrrdl, yaleb-8-8)" in err
    results = tmp_path / "results"
    assert {file.name for file in results.iterdir()} == {"runs.jsonl", "tables.md", "tables.csv", "tables.tex"}
    assert (results / "tables.md").read_text() == out
    assert out.startswith(f"    trainer tables --data {folder} --quick")
    assert "Percent recognised, one random split." in out
    assert "±" not in out.partition("###")[2], "one split has no deviation"
    assert trainer(*words)[0] == 0
    assert len(lines_of(results / "runs.jsonl")) == 1, "nothing was missing"


def test_timed_jobs_run_alone_with_both_schedules(trainer: TrainerCommand, folder: Path, tmp_path: Path) -> None:
    words = ("--cells", "ar-sun", "--methods", "lclrrdl", "--splits", "1", "--jobs", "1", "-o", tmp_path)
    code, out, err = trainer("tables", "--data", folder, *words)
    assert code == 0, err
    assert "| LCLRRDL, schedule paper | 38.7 → " in out
    records = [json.loads(line) for line in lines_of(tmp_path / "runs.jsonl")]
    assert [(record["row"], record["alone"]) for record in records] == [
        ("lclrrdl", False),
        ("lclrrdl", True),
        ("lclrrdl/schedule paper", True),
    ]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--methods", "svm"], 2, "no method svm"),
        (["--cells", "orl"], 2, "no cell 'orl'"),
        (["--cells", "ar-scarf,"], 2, "no cell ''"),
        (["--quick", "--methods", "lclrrdl", "--jobs", "0"], 2, "0 processes"),
        (["--parameters", "nowhere.toml"], 2, "nowhere.toml cannot be read"),
        (["--tune", "-o", "nowhere/tuned.toml"], 2, "cannot be written"),
        (["--quick", "--methods", "lclrrdl", "--scheduler", "tcp://127.0.0.1:1"], 47, "No Dask scheduler answers"),
    ],
)
def test_bad_input_gives_a_sentence_and_an_exit_code(
    trainer: TrainerCommand,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    code: int,
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("trainer.parallel.SCHEDULER_SECONDS", 0.2)
    left, out, err = trainer("tables", "--data", folder, *words)
    assert (left, out, "Traceback" in err) == (code, "", False)
    assert says in err


def test_tuning_writes_what_the_tables_read_and_continues(
    data: dict[str, Data], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tuned.toml"
    small = replace(METHODS["lclrrdl"], grid={"lam": (5.0, 25.0), "eta": (1e-3, 1e-2)})
    monkeypatch.setitem(METHODS, "lclrrdl", small)
    reported: list[tuple[str, int, int]] = []

    def report(task: str, done: int, total: int) -> None:
        reported.append((task, done, total))

    def tuned(**how: Any) -> list[str]:
        reported.clear()
        return tune_all(data, file, methods=("lclrrdl",), jobs=1, folds=2, progress=report, **how)

    assert tuned(cells=select_cells("yaleb-8")) == []
    assert reported == [("lclrrdl, yaleb-8-8", i, 4) for i in (1, 2, 3, 4)], "one rate is tuned for all"
    text = file.read_text()
    assert text.count("# trainer tables --tune --data FOLDER --cells yaleb-8-8 --methods lclrrdl --folds 2 --seed 0\n") == 3
    assert text.count("used here too") == 2
    found = [tuned_parameters(cell, "pixels", "lclrrdl", file) for cell in select_cells("yaleb-8")]
    assert found == [found[0]] * 3
    assert found[0]["eta"] in (1e-3, 1e-2)
    assert tuned(cells=select_cells("yaleb-8,ar-scarf")) == []
    assert {task for task, _, _ in reported} == {"lclrrdl, ar-sunglasses"}, "the other entries exist"
    assert file.read_text().startswith(text)


def test_source_cell_is_the_lowest_rate_and_sunglasses() -> None:
    assert [source_cell(cell).name for cell in select_cells("yaleb-8,yaleb-32")] == ["yaleb-8-8"] * 3 + ["yaleb-32-8"] * 3
    assert {source_cell(cell).name for cell in select_cells("ar")} == {"ar-sunglasses"}


def test_failed_tuning_does_not_stop_other_methods(
    data: dict[str, Data], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "worse", replace(METHODS["lclrrdl"], grid={"lam": (1e-5,), "eta": (1e-3,)}))
    monkeypatch.setitem(METHODS, "better", replace(METHODS["lclrrdl"], grid={"lam": (25.0,), "eta": (1e-3,)}))
    file = tmp_path / "tuned.toml"
    (failure,) = tune_all(data, file, methods=("worse", "better"), cells=SMALL, jobs=1, folds=2)
    assert failure.startswith("worse, yaleb-8-8: No candidate")
    assert "[yaleb-8-8.better.pixels]" in file.read_text()


def test_failures_are_the_error_of_the_command(
    trainer: TrainerCommand, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise TrainingError("It failed.")

    monkeypatch.setattr(tables, "measure", fail)
    words = ("--quick", "--methods", "lclrrdl", "--scheduler", "none", "-o", tmp_path)
    monkeypatch.setattr(tables, "each", lambda function, calls, **_: (function(*call) for call in calls))
    code, out, err = trainer("tables", "--data", folder, *words)
    assert code == 2
    assert "1 failed:\nlclrrdl, yaleb-8-8, split 0: It failed." in err
    assert "| LCLRRDL | 80.1 → |" in out
