"""The tables: what is planned, measured, kept over a kill, and set; with made-up people in arrays of the right shape."""

from __future__ import annotations

import csv
import errno
import io
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

import cv2
import numpy as np
import pytest

from edge.errors import TrainingError, UsageError
from tests.fixtures.data import faces
from tests.trainer.conftest import Call
from trainer.baselines.registry import METHODS
from trainer.paper import tables, typeset
from trainer.paper.experiments import CELLS, tuned_parameters
from trainer.paper.tables import (
    Data,
    Figure,
    Job,
    Pace,
    Runs,
    Status,
    Tables,
    chosen_cells,
    collect,
    lender,
    plan,
    run,
    tune_all,
)

SMALL = chosen_cells("yaleb-8-8")
SUNGLASSES = chosen_cells("ar-sunglasses")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three people, as the files of the research data sets hold them."""
    place = tmp_path_factory.mktemp("data")
    for name, photos, size in (("yaleb_96x84", 12, (96, 84)), ("ar_42x30", 26, (42, 30))):
        images, labels = faces(people=3, photos=photos, size=size)
        np.savez(place / f"{name}.npz", images=images, labels=labels)
    return place


@pytest.fixture(scope="module")
def data(folder: Path) -> dict[str, Data]:
    return tables.load(folder, CELLS)


def planned(data: dict[str, Data], **changed: Any) -> list[Job]:
    how: dict[str, Any] = {"methods": ("lclrrdl",), "cells": SMALL, "splits": 2} | changed
    return plan(data, **how)


def test_the_plan_holds_every_split_and_times_a_few_alone(data: dict[str, Data]) -> None:
    jobs = plan(data, methods=("lclrrdl", "srw"), cells=CELLS, splits=10)
    together = [job for job in jobs if not job.alone]
    assert len(together) == len({job.key for job in together}) == 2 * 9 * 10
    alone = [(job.row, job.cell.name, job.split) for job in jobs if job.alone]
    rows = ("lclrrdl", "lclrrdl/schedule paper", "srw")
    assert alone == [(row, "ar-sunglasses", split) for row in rows for split in range(3)]
    assert not [job for job in planned(data) if job.alone]


def test_whatever_a_result_depends_on_is_in_its_key(data: dict[str, Data], tmp_path: Path) -> None:
    (job, _) = planned(data)
    assert planned(data)[0].key == job.key
    file = tmp_path / "other.toml"
    file.write_text("[yaleb-8-8.lclrrdl.pixels]\nlam = 24.0\n")
    other = {"yaleb": data["yaleb"]._replace(digest="0")}
    keys = [
        *(some.key for some in plan(data, methods=("lclrrdl", "srw"), cells=CELLS, splits=2)),
        planned(data, seed=1)[0].key,
        planned(data, file=file)[0].key,
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
def test_a_change_of_the_code_that_a_method_rests_on_changes_the_key_and_words_do_not(
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


def test_who_was_not_tuned_is_told(data: dict[str, Data], tmp_path: Path) -> None:
    file = tmp_path / "some.toml"
    file.write_text("[yaleb-8-8.srw.pixels]\nlam = 0.01\n")
    jobs = plan(data, methods=("srw", "srs"), cells=SMALL, splits=1, file=file)
    assert [(job.tuned, job.parameters["lam"]) for job in jobs] == [(True, 0.01), (False, METHODS["srs"].usual["lam"])]
    assert "- Measured with usual parameters, not tuned: SRS." in typeset.markdown(collect(jobs, {}))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[yaleb-8-8.srw.pixels]\nlamda = 0.1", "srw has no lamda, tuned for yaleb-8-8"),
        ("yaleb-8-8 = 3", "yaleb-8-8 is no section"),
        ("[yaleb-8-8]\nsrw = 3", "srw is no section"),
    ],
)
def test_parameters_that_no_method_has_are_refused_before_the_work(
    data: dict[str, Data], tmp_path: Path, text: str, says: str
) -> None:
    (tmp_path / "odd.toml").write_text(text)
    with pytest.raises(UsageError, match=says):
        planned(data, methods=("srw",), file=tmp_path / "odd.toml")


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UsageError, match="no method svm"):
        tables.chosen_methods("lclrrdl,svm")
    for text in ("orl", "ar-scarf,orl", "ar-scarf,", ""):
        with pytest.raises(UsageError, match=r"no cell '(orl)?'"):
            chosen_cells(text)
    assert tables.chosen_methods("srw,llc,srw") == ("srw", "llc"), "twice would count each split twice"
    assert [cell.name for cell in chosen_cells("yaleb-32,ar-scarf")] == ["yaleb-32-8", "yaleb-32-4", "yaleb-32-2", "ar-scarf"]


def test_a_second_run_measures_only_what_is_missing(data: dict[str, Data], tmp_path: Path) -> None:
    seen: list[Status] = []
    with Runs(tmp_path) as runs:
        assert run(planned(data), data, runs, workers=1, progress=seen.append) == []
        assert [(status.done, status.total) for status in seen] == [(1, 2), (2, 2)]
        assert (seen[0].seconds_left or 0) > 0
        assert seen[1].seconds_left == 0
        first = dict(runs.done)
    seen.clear()
    with Runs(tmp_path) as runs:
        more = planned(data, splits=3)
        assert run(more, data, runs, workers=1, progress=seen.append) == []
        assert [(status.done, status.total, status.job.split) for status in seen] == [(1, 1, 2)]
        assert runs.done.items() >= first.items()
        found = collect(more, runs.done)
    figure = found.accuracy["lclrrdl", "yaleb-8-8"]
    values = [record["accuracy"] for record in runs.done.values()]
    assert figure == Figure(pytest.approx(np.mean(values)), pytest.approx(np.std(values, ddof=1)), 3)  # type: ignore[arg-type]


def test_what_a_kill_left_half_written_is_passed_over(tmp_path: Path) -> None:
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


def test_a_full_disk_is_a_sentence_and_costs_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Runs(tmp_path) as runs:
        runs.add({"key": "a"})
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(UsageError, match="No space left"):
            runs.add({"key": "b"})
        assert list(runs.done) == ["a"]
    with pytest.raises(UsageError, match="No space left"):
        typeset.write(replace(FOUND, cells=SMALL, seconds={}), tmp_path, "trainer tables")
    assert [file.name for file in tmp_path.iterdir()] == ["runs.jsonl"]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written"):
        Runs(tmp_path / "file")


def test_what_fails_is_said_and_leaves_its_place_empty(data: dict[str, Data], tmp_path: Path) -> None:
    good, bad = planned(data)
    bad = replace(bad, parameters=bad.parameters | {"lam": 1e-5}, key="bad")  # collapses
    with Runs(tmp_path) as runs:
        (failure,) = run([good, bad], data, runs, workers=1)
        assert failure.startswith("lclrrdl, yaleb-8-8, split 1: Training collapsed")
        assert list(runs.done) == [good.key]
        assert collect([good, bad], runs.done).accuracy == {}


def test_the_longest_stand_first_and_the_pace_is_that_of_like_jobs(data: dict[str, Data]) -> None:
    large, small = (
        plan(data, methods=("lclrrdl",), cells=chosen_cells(name), splits=1)[0] for name in ("yaleb-32-2", "yaleb-8-8")
    )
    other = plan(data, methods=("srw",), cells=SMALL, splits=1)[0]
    pace = Pace()
    assert pace.expect(large) > pace.expect(small), "by size, before anything is known"
    pace.add(small, 10.0)
    assert pace.expect(small) == pytest.approx(10)
    assert pace.expect(other) == pytest.approx(10), "as others of its size"
    assert pace.expect(large) > 100
    pace.add(other, 2.0)
    pace.add(large, 50.0)
    assert (pace.expect(other), pace.expect(small), pace.expect(large)) == pytest.approx((2, 10, 50))


def test_what_is_timed_is_not_shared_by_the_workers(
    data: dict[str, Data], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each job takes 10 s, and ten workers do one in a second: two that they share, and four that are timed alone."""
    clock = itertools.count()
    monkeypatch.setattr(tables, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    took = {"accuracy": 100.0, "train_seconds": 10.0, "test_seconds": 0.0}
    monkeypatch.setattr(tables, "measure", lambda *_, **__: took)
    monkeypatch.setattr(tables, "each", lambda function, calls, **_: (function(*call) for call in calls))
    jobs = plan(data, methods=("lclrrdl",), cells=SUNGLASSES, splits=2)
    seen: list[Status] = []
    with Runs(tmp_path) as runs:
        assert run(jobs, data, runs, progress=seen.append) == []
    assert [status.seconds_left for status in seen] == [41, 40, 30, 20, 10, 0]


def test_a_cluster_of_two_workers_measures_the_same(data: dict[str, Data], cluster: str, tmp_path: Path) -> None:
    jobs = plan(data, methods=("lclrrdl",), cells=(*SMALL, *SUNGLASSES), splits=2)
    with Runs(tmp_path / "here") as here, Runs(tmp_path / "there") as there:
        assert run(jobs, data, here, workers=1) == []
        assert run(jobs, data, there, scheduler=cluster) == []
        assert {key: record["accuracy"] for key, record in here.done.items()} == {
            key: record["accuracy"] for key, record in there.done.items()
        }
        assert len(there.done) == len(jobs)


def start(folder: Path, output: Path, *words: str) -> subprocess.Popen[bytes]:
    command = ["tables", "--data", folder, "-o", output, "--methods", "lclrrdl", "--cells", "yaleb-8", "--jobs", "2", *words]
    program = "from trainer.cli.commands import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # A job in the background of a shell has Ctrl-C switched off, and its children with it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def lines_of(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def wait_for_lines(process: subprocess.Popen[bytes], file: Path, least: int) -> None:
    until = time.monotonic() + 600
    while len(lines_of(file)) < least:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_killed_run_goes_on_where_it_was(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    process = start(folder, tmp_path, "--splits", "40")
    wait_for_lines(process, file, 3)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    kept = lines_of(file)
    assert 3 <= len(kept) < 120, "killed on the way"
    assert not (tmp_path / "tables.md").exists()
    wanted = -(-len(kept) // 3) + 1  # splits of each of the three cells
    process = start(folder, tmp_path, "--splits", str(wanted))
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    now = lines_of(file)
    assert now[: len(kept) - 1] == kept[:-1], "nothing is measured again or rewritten"
    records = [json.loads(line) for line in now if line.endswith("}")]
    assert len(records) == len({record["key"] for record in records})
    done = {(record["cell"], record["split"]) for record in records}
    assert done >= {(f"yaleb-8-{rate}", split) for rate in (8, 4, 2) for split in range(wanted)}
    assert (tmp_path / "tables.md").read_bytes() == out


def test_ctrl_c_is_clean(folder: Path, tmp_path: Path) -> None:
    process = start(folder, tmp_path, "--splits", "200")
    wait_for_lines(process, tmp_path / "runs.jsonl", 1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, err = process.communicate(timeout=600)
    assert (process.returncode, out) == (130, b"")
    assert err.strip() == b"interrupted"


FOUND = Tables(
    rows=("lclrrdl", "srw", "src"),
    cells=CELLS,
    accuracy={
        (row, cell.name): Figure(80.0 + 2 * i + (5 if row == "lclrrdl" else 0), 0.5, 10)
        for row in ("lclrrdl", "srw", "src")
        for i, cell in enumerate(CELLS)
        if (row, cell.name) != ("srw", "ar-mixed")
    },
    seconds={"lclrrdl": Figure(4.0, 0.1, 3), "lclrrdl/schedule paper": Figure(60.0, 1.0, 3), "srw": Figure(0.01, 0.0, 3)},
)


def test_markdown_shows_the_papers_figure_ours_and_the_difference() -> None:
    text = typeset.markdown(FOUND)
    assert "| LCLRRDL | 80.1 → **85.0** ± 0.5 (+4.9) | 84.6 → **87.0** ± 0.5 (+2.4) |" in text
    assert "| SRW | 79.3 → 80.0 ± 0.5 (+0.7) |" in text
    assert "| SRC, [D, I] | 80.0 ± 0.5 |" in text, "nothing was printed for it"
    assert "| 79.2 → |" in text, "not measured"
    assert "| LCLRRDL, schedule paper | 38.7 → 60.0 ± 1.0 (+21.3) |" in text
    assert "over 10 random splits" in text
    assert "LCLRRDL comes first of the paper's methods that were measured in 8 of 8 columns." in text
    assert "Training takes longer than LCLRRDL's for LCLRRDL, schedule paper." in text
    assert "More than 2 points below the printed figure: none" not in text
    short = replace(FOUND, accuracy=FOUND.accuracy | {("srw", "yaleb-8-8"): Figure(70.0, 0.0, 10)})
    assert "SRW in yaleb-8-8 (-9.3)" in typeset.markdown(short)
    for table in text.split("###")[1:]:
        widths = {line.count("|") for line in table.splitlines() if line.startswith("|")}
        assert len(widths) == 1


def test_nothing_is_said_of_lclrrdl_where_it_was_not_measured_and_a_tie_is_a_first_place() -> None:
    assert "first" not in typeset.markdown(replace(FOUND, rows=("srw", "src")))
    tie = replace(
        FOUND, rows=("srw", "lclrrdl"), cells=SMALL, accuracy={(r, "yaleb-8-8"): Figure(9.0, None, 1) for r in FOUND.rows}
    )
    assert "measured in 1 of 1 columns" in typeset.markdown(tie)


def test_csv_says_the_same() -> None:
    lines = list(csv.DictReader(io.StringIO(typeset.as_csv(FOUND))))
    assert len(lines) == 3 * 9 + 3
    assert lines[0] == {
        "table": "Table 1",
        "column": "yaleb-8-8",
        "method": "lclrrdl",
        "paper": "80.1",
        "ours": "85.000",
        "deviation": "0.500",
        "difference": "+4.9",
        "splits": "10",
    }
    assert [line["ours"] for line in lines if (line["method"], line["column"]) == ("srw", "ar-mixed")] == [""]


def test_latex_is_balanced_and_plain() -> None:
    text = typeset.latex(FOUND)
    assert text.count("{") == text.count("}")
    assert text.count("$") % 2 == 0
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 3
    assert not {"_", "%", "±", "→"} & set(text), "would need an escape or a package"
    for table in text.split(r"\end{tabular}")[:-1]:
        columns = table.split(r"\begin{tabular}{")[1].split("}")[0]
        rows = [line for line in table.splitlines() if line.endswith((r"\\", r"\\[3pt]"))]
        assert {row.count("&") + 1 for row in rows} == {len(columns)}


def test_the_picture_has_a_panel_for_each_column() -> None:
    image = cv2.imdecode(np.frombuffer(typeset.picture(FOUND), np.uint8), cv2.IMREAD_COLOR)
    assert image is not None
    one = replace(FOUND, cells=SMALL, seconds={})
    smaller = cv2.imdecode(np.frombuffer(typeset.picture(one), np.uint8), cv2.IMREAD_COLOR)
    assert smaller is not None
    assert image.shape[1] > 2 * smaller.shape[1]
    assert image.std() > 5


def test_the_command_writes_all_four_and_prints_the_first(trainer: Call, folder: Path, tmp_path: Path) -> None:
    words = ("tables", "--data", folder, "--quick", "--methods", "lclrrdl", "--jobs", "1", "-o", tmp_path / "results")
    code, out, err = trainer(*words)
    assert (code, "Saved" in err) == (0, True)
    assert "Measured 1 of 1, about 0 s left (last lclrrdl, yaleb-8-8)." in err
    results = tmp_path / "results"
    assert {file.name for file in results.iterdir()} == {"runs.jsonl", "tables.md", "tables.csv", "tables.tex", "tables.png"}
    assert (results / "tables.md").read_text() == out
    assert out.startswith(f"    trainer tables --data {folder} --quick")
    assert "Percent recognised, one random split." in out
    assert "±" not in out.partition("###")[2], "one split has no deviation"
    assert trainer(*words)[0] == 0
    assert len(lines_of(results / "runs.jsonl")) == 1, "it was all there"


def test_the_timed_ones_run_by_themselves_in_both_schedules(trainer: Call, folder: Path, tmp_path: Path) -> None:
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
        (["--parameters", "nowhere.toml"], 2, "nowhere.toml cannot be opened"),
        (["--tune", "-o", "nowhere/tuned.toml"], 2, "cannot be written"),
        (["--quick", "--methods", "lclrrdl", "--scheduler", "tcp://127.0.0.1:1"], 47, "No Dask scheduler answers"),
    ],
)
def test_bad_input_is_a_sentence_and_a_code(
    trainer: Call,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    code: int,
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("trainer.parallel.SCHEDULER_SECONDS", 1)
    left, out, err = trainer("tables", "--data", folder, *words)
    assert (left, out, "Traceback" in err) == (code, "", False)
    assert says in err


def test_tuning_writes_what_the_tables_read_and_goes_on_where_it_was(
    data: dict[str, Data], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tuned.toml"
    small = replace(METHODS["lclrrdl"], grid={"lam": (5.0, 25.0), "eta": (1e-3, 1e-2)})
    monkeypatch.setitem(METHODS, "lclrrdl", small)
    told: list[tuple[str, int, int]] = []

    def tell(task: str, done: int, total: int) -> None:
        told.append((task, done, total))

    def tuned(**how: Any) -> list[str]:
        told.clear()
        return tune_all(data, file, methods=("lclrrdl",), workers=1, folds=2, progress=tell, **how)

    assert tuned(cells=chosen_cells("yaleb-8")) == []
    assert told == [("lclrrdl, yaleb-8-8", i, 4) for i in (1, 2, 3, 4)], "one rate serves all"
    text = file.read_text()
    assert text.count("--dataset yaleb --per-class 8 --rate 8 --data FILE --method lclrrdl") == 3
    assert text.count("serve here too") == 2
    found = [tuned_parameters(cell, "pixels", "lclrrdl", file) for cell in chosen_cells("yaleb-8")]
    assert found == [found[0]] * 3
    assert found[0]["eta"] in (1e-3, 1e-2)
    assert tuned(cells=chosen_cells("yaleb-8,ar-scarf")) == []
    assert {task for task, _, _ in told} == {"lclrrdl, ar-sunglasses"}, "the others were there"
    assert file.read_text().startswith(text)


def test_a_low_rate_serves_higher_ones_and_one_scenario_all() -> None:
    assert [lender(cell).name for cell in chosen_cells("yaleb-8,yaleb-32")] == ["yaleb-8-8"] * 3 + ["yaleb-32-8"] * 3
    assert {lender(cell).name for cell in chosen_cells("ar")} == {"ar-sunglasses"}


def test_a_method_that_cannot_be_tuned_does_not_stop_the_others(
    data: dict[str, Data], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "worse", replace(METHODS["lclrrdl"], grid={"lam": (1e-5,), "eta": (1e-3,)}))
    monkeypatch.setitem(METHODS, "better", replace(METHODS["lclrrdl"], grid={"lam": (25.0,), "eta": (1e-3,)}))
    file = tmp_path / "tuned.toml"
    (failure,) = tune_all(data, file, methods=("worse", "better"), cells=SMALL, workers=1, folds=2)
    assert failure.startswith("worse, yaleb-8-8: No choice")
    assert "[yaleb-8-8.better.pixels]" in file.read_text()


def test_failures_are_the_commands_error(
    trainer: Call,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise TrainingError("It would not.")

    monkeypatch.setattr(tables, "measure", refuse)
    words = ("--quick", "--methods", "lclrrdl", "--scheduler", "none", "-o", tmp_path)
    monkeypatch.setattr(tables, "each", lambda function, calls, **_: (function(*call) for call in calls))
    code, out, err = trainer("tables", "--data", folder, *words)
    assert code == 2
    assert "1 failed:\nlclrrdl, yaleb-8-8, split 0: It would not." in err
    assert "| LCLRRDL | 80.1 → |" in out
