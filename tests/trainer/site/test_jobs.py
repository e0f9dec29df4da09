"""Jobs of a site: one at a time, cancelled by SIGINT, failed if the process is gone, and seen by every process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edge.errors import EXIT_INTERRUPTED, UsageError
from tests.fixtures.command import environment
from tests.fixtures.data import ROOT
from tests.fixtures.site import site_of_orl
from tests.fixtures.trainer_command import TrainerCommand
from tests.fixtures.waiting import until
from trainer.site import jobs, models, trail
from trainer.site.folder import Site

PEOPLE = {f"s{person}": range(1, 5) for person in range(1, 8)}


@pytest.fixture
def empty_site(tmp_path: Path) -> Site:
    return Site.create(tmp_path / "site")


def test_job_stores_stage_log_and_result(empty_site: Site) -> None:
    with jobs.run(empty_site, "train", "anna", {"preset": "tiny"}) as job:
        job.stage("reading photos", 3, 10)
        with empty_site.database() as database:
            seen = jobs.running(database)
            assert seen is not None
            assert (seen.id, seen.who, seen.stage, seen.done, seen.total) == (job.id, "anna", "reading photos", 3, 10)
            assert seen.options == {"preset": "tiny"}
        job.say("a note")
        job.finish("All done.", model="x")
    with empty_site.database() as database:
        ended = jobs.get(database, job.id)
        assert ended is not None
        assert (ended.state, ended.message, ended.result, ended.seconds_left) == (jobs.DONE, "All done.", {"model": "x"}, None)
        assert [line for _, line in jobs.lines(database, job.id)] == ["reading photos", "a note", "All done."]
        assert jobs.running(database) is None


def test_estimate_uses_the_stages_of_the_last_job(empty_site: Site) -> None:
    with empty_site.database() as database:
        rows = [("train", "reading photos", 4.0, 0), ("train", "training", 100.0, 1)]
        database.executemany("INSERT INTO stage_seconds VALUES (?, ?, ?, ?)", rows)
    with jobs.run(empty_site, "train", "anna") as job, empty_site.database() as database:
        job.stage("reading photos")
        seen = jobs.get(database, job.id)
        assert seen is not None
        assert seen.seconds_left == pytest.approx(104, abs=2)
        job.stage("training")
        seen = jobs.get(database, job.id)
        assert seen is not None
        assert seen.seconds_left == pytest.approx(100, abs=2)


def test_second_job_is_refused(empty_site: Site) -> None:
    with (
        jobs.run(empty_site, "train", "anna"),
        pytest.raises(UsageError, match="Another job"),
        jobs.run(empty_site, "build", "ben"),
    ):
        pytest.fail("two jobs at once")
    with empty_site.database() as database:
        assert [job.kind for job in jobs.latest(database)] == ["train"]
    with jobs.run(empty_site, "build", "ben"):
        pass


@pytest.mark.parametrize(
    ("error", "state"), [(UsageError("No photos.", "Add some."), jobs.FAILED), (KeyboardInterrupt(), jobs.CANCELLED)]
)
def test_state_of_a_job_that_did_not_end_well(empty_site: Site, error: BaseException, state: str) -> None:
    with pytest.raises(type(error)), jobs.run(empty_site, "train", "anna") as job:
        raise error
    with empty_site.database() as database:
        ended = jobs.get(database, job.id)
        assert ended is not None
        assert ended.state == state
        assert str(error) in ended.message


def test_job_that_is_cancelled_as_soon_as_others_see_it_is_cancelled(
    empty_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "Job", lambda *_: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt), jobs.run(empty_site, "train", "anna"):
        pytest.fail("it goes on")
    with empty_site.database() as database:
        (ended,) = jobs.latest(database)
    assert (ended.state, ended.message) == (jobs.CANCELLED, "Cancelled. Nothing was changed.")


def test_ended_job_cannot_be_cancelled(empty_site: Site) -> None:
    with jobs.run(empty_site, "train", "anna") as job:
        pass
    with pytest.raises(UsageError, match="not running"):
        jobs.cancel(empty_site, job.id, who="anna")
    with pytest.raises(UsageError, match="not running"):
        jobs.cancel(empty_site, 99, who="anna")


def test_command_that_fails_before_it_has_a_job_is_one_sentence(empty_site: Site) -> None:
    with pytest.raises(UsageError, match="is not a site"):
        jobs.start(empty_site, "trainer", ["site", "train", str(empty_site.path / "none")])


# --- A real training in a process of its own ---


def start(site: Site) -> jobs.JobState:
    number = jobs.start(site, "trainer", ["site", "train", str(site.path), "--preset", "tiny", "--who", "anna"])
    return state(site, number)


def state(site: Site, number: int) -> jobs.JobState:
    with site.database() as database:
        found = jobs.get(database, number)
        assert found is not None
        return found


@pytest.mark.slow
def test_training_runs_apart_and_a_restart_finds_it(tmp_path: Path) -> None:
    site = site_of_orl(tmp_path / "site", PEOPLE)
    number = start(site).id
    again = Site.open(site.path)  # as a console that was started again
    until(lambda: not state(again, number).is_running)
    ended = state(again, number)
    assert ended.state == jobs.DONE, ended.message
    assert (ended.who, ended.options) == ("anna", {"preset": "tiny"})
    assert [model.name for model in models.list_models(again)] == [ended.result["model"]]
    assert "Recognised in cross-validation" in ended.message


def train_until(site: Site, stage: str, action: str) -> subprocess.CompletedProcess[str]:
    """Run a training that does something to itself at a stage: a line of Python that knows `self`, the job."""
    code = (
        "import os, signal, sys\nfrom trainer.site import jobs\noriginal = jobs.Job.stage\n"
        f"def stage(self, name, *count):\n    original(self, name, *count)\n    if name == {stage!r}:\n        {action}\n"
        "jobs.Job.stage = stage\nfrom trainer.cli.main import main\nmain()\n"
    )
    words = [sys.executable, "-c", code, "site", "train", str(site.path), "--preset", "tiny"]
    return subprocess.run(words, env=environment(), cwd=ROOT, capture_output=True, text=True)


def written(site: Site) -> list[Path]:
    """What a training wrote for people."""
    return [path for path in site.models.rglob("*") if path.suffix in (".npz", ".json", ".html", ".part")]


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["reading photos", "threshold", "cross-validation", "saving"])
def test_cancelled_training_leaves_nothing(tmp_path: Path, stage: str) -> None:
    site = site_of_orl(tmp_path / "site", PEOPLE)
    ended = train_until(site, stage, "jobs.cancel(self.site, self.id, who='anna')")
    assert ended.returncode == EXIT_INTERRUPTED
    assert "Traceback" not in ended.stderr
    with site.database() as database:
        (job,) = jobs.latest(database)
        (change,) = trail.changes(database)
    assert job.state == jobs.CANCELLED
    assert (change.who, change.action, change.subject, change.details) == ("anna", "cancel job", str(job.id), "train")
    assert written(site) == []
    assert not (site.models / ".work").exists()


@pytest.mark.slow
def test_training_can_be_cancelled_though_its_parent_ignores_interrupts(tmp_path: Path) -> None:
    site = site_of_orl(tmp_path / "site", PEOPLE)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        ended = train_until(site, "threshold", "jobs.cancel(self.site, self.id, who='anna')")
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.returncode == EXIT_INTERRUPTED


@pytest.mark.slow
def test_killed_training_has_failed_and_the_next_one_runs(tmp_path: Path) -> None:
    site = site_of_orl(tmp_path / "site", PEOPLE)
    killed = train_until(site, "threshold", "os.kill(os.getpid(), signal.SIGKILL)")
    assert killed.returncode == -signal.SIGKILL
    with site.database() as database:
        (job,) = jobs.latest(database)
        assert jobs.running(database) is None
    assert job.state == jobs.FAILED
    assert "ended from outside" in job.message
    assert written(site) == []
    (site.models / "20260101-000000.json").write_text("{}")  # as if it was killed while it wrote
    number = start(site).id
    until(lambda: not state(site, number).is_running)
    assert state(site, number).state == jobs.DONE
    assert {path.stem for path in written(site)} == {state(site, number).result["model"]}


@pytest.mark.slow
def test_command_of_a_second_job_is_refused(tmp_path: Path) -> None:
    site = site_of_orl(tmp_path / "site", PEOPLE)
    with jobs.run(site, "build", "ben"), pytest.raises(UsageError, match="Another job"):
        start(site)


@pytest.mark.slow
def test_commands_show_and_change_what_the_page_does(tmp_path: Path, trainer: TrainerCommand) -> None:
    site = site_of_orl(tmp_path / "site", PEOPLE)
    code, _, err = trainer("site", "train", site.path, "--preset", "tiny")
    assert code == 0
    assert "Recognised in cross-validation" in err
    (model,) = models.list_models(site)
    assert model.name in trainer("site", "models", site.path)[1]
    assert " done " in trainer("site", "jobs", site.path)[1]
    assert "cross-validation" in trainer("site", "jobs", site.path, "--log", "1")[1]
    assert trainer("site", "jobs", site.path, "--log", "9")[0] != 0
    assert trainer("site", "cancel", site.path)[0] != 0, "nothing is running"
    assert '"added": []' in trainer("site", "compare-models", site.path, model.name, model.name)[1]
    assert trainer("site", "keep-photo", site.path, "s1", "1.pgm")[0] == 0
    assert trainer("site", "delete-model", site.path, model.name)[0] == 0
    assert models.list_models(site) == []
