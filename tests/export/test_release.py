"""`edge-export release`: kits of a site, built or packed again as jobs, signed, cancelled, and published to doors."""

from __future__ import annotations

import io
import json
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edge.errors import EXIT_INTERRUPTED, KitDamagedError, PrecisionLossError, SelfTestError, UsageError
from edge.kit import format as kit_format
from edge.kit.manifest import MAX_NEW_VERSION
from edge.kit.store import Store
from edge.kit.watch import KitWatch, ProbationRecognizer
from export import cli, measure, release
from tests.fixtures import liveness
from tests.fixtures.command import environment, run_main
from tests.fixtures.data import ROOT
from tests.fixtures.kits import signing_keys, with_manifest
from tests.fixtures.orl_door import load_on_probation
from tests.fixtures.site import site_of_orl
from tests.fixtures.waiting import until
from trainer.site import doors, jobs, kits, liveness_files, models, publishing, training
from trainer.site.doors import Door
from trainer.site.folder import Site
from trainer.site.kits import KitInfo

pytestmark = pytest.mark.slow

PRIVATE, PUBLIC = signing_keys()


@pytest.fixture(scope="module")
def trained_site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A site with a model and an unsigned kit, old. Tests that change it copy it."""
    site = site_of_orl(tmp_path_factory.mktemp("release") / "site", {f"s{person}": range(1, 5) for person in range(1, 8)})
    training.train(site, preset="minimal", who="anna")
    make(site, name="old")
    return site


@pytest.fixture
def site(trained_site: Site, tmp_path: Path) -> Site:
    shutil.copytree(trained_site.path, tmp_path / "site")
    return Site.open(tmp_path / "site")


def make(site: Site, *, who: str = "anna", **values: Any) -> KitInfo:
    """Make a kit in this process, as the command does."""
    plan = release.plan(site, **values)
    with jobs.run(site, plan.kind, who, plan.options) as job:
        return kits.get_kit(site, release.carry_out(plan, job, who=who).name)


def add_door(site: Site, folder: Path, name: str = "north") -> Path:
    """Add a door whose terminal watches a file in `folder`. Return the file."""
    drop = folder / name / "door.kit"
    drop.parent.mkdir(parents=True)
    doors.add(site, Door(name=name, drop=drop), "anna")
    return drop


def test_kit_and_its_result_are_private_and_agree(site: Site) -> None:
    kit = kits.get_kit(site, "old")
    (model,) = models.list_models(site)
    found = kit_format.read(kit.path)
    assert kit.result is not None
    assert (kit.model, kit.people, kit.signed) == (model.name, 7, False)
    assert kit.result["sha256"] == found.sha256
    assert kit.result["threshold"] == found.manifest.thresholds.confidence == kit.threshold
    assert (kit.result["kit_version"], kit.result["bytes"]) == (found.manifest.kit_version, kit.bytes)
    assert kit.result["accuracy"] == found.manifest.calibration["accuracy"]["fp32"]
    for path in (kit.path, kit.path.with_suffix(".json")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with site.database() as database:
        (job,) = jobs.latest(database, kind="build")
        stages = [line for _, line in jobs.lines(database, job.id)][: len(kits.BUILD_STAGES)]
        assert (job.state, dict(job.result)) == (jobs.DONE, {"kit": "old"})
        (row,) = database.execute("SELECT who, subject FROM trail WHERE action = 'build kit'").fetchall()
    assert stages == list(kits.BUILD_STAGES)
    assert tuple(row) == ("anna", "old")


def test_result_holds_no_names_of_people(site: Site) -> None:
    text = kits.get_kit(site, "old").path.with_suffix(".json").read_text()
    assert not any(f'"s{person}"' in text for person in range(1, 8))


def test_versions_grow_though_the_clock_was_set_back(site: Site) -> None:
    kit = kits.get_kit(site, "old")
    future = 90001231235959
    kit.path.write_bytes(with_manifest(kit.path.read_bytes(), kit_version=future))
    assert make(site).version == future + 1


def test_versions_grow_over_what_a_door_has(site: Site, tmp_path: Path) -> None:
    drop = add_door(site, tmp_path)
    future = 90001231235959
    drop.write_bytes(with_manifest(kits.get_kit(site, "old").path.read_bytes(), kit_version=future))
    assert make(site, publish=["north"]).version == future + 1
    assert kit_format.read(drop).manifest.kit_version == future + 1


def test_highest_version_ends_with_a_sentence(site: Site) -> None:
    kit = kits.get_kit(site, "old")
    kit.path.write_bytes(with_manifest(kit.path.read_bytes(), kit_version=MAX_NEW_VERSION))
    with pytest.raises(UsageError, match="no version can be higher"):
        make(site)


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_smaller_precision_gives_a_smaller_kit(site: Site, precision: str) -> None:
    kit = make(site, precision=precision)
    assert kit.precision == precision
    assert kit.bytes < kits.get_kit(site, "old").bytes


def test_loss_of_precision_leaves_no_kit_and_names_no_unknown_option(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "LOSS", -1.0)
    with pytest.raises(PrecisionLossError, match="int8 costs") as refused:
        make(site, precision="int8")
    assert "--allow-loss" not in refused.value.hint
    assert {path.stem for path in site.kits.iterdir()} == {"old"}


def test_liveness_model_of_the_site_is_in_the_kit(site: Site) -> None:
    liveness_files.add(site, "blue.onnx", liveness.network_file(), who="anna")
    given = f"onnx:blue.onnx,zoom=2.5,side={liveness.SIDE}"
    kit = make(site, liveness=given, liveness_threshold=0.6)
    assert kit.liveness is not None
    assert (kit.liveness.names, kit.liveness.threshold) == (("blue",), 0.6)
    assert kit.result is not None
    assert kit.result["liveness"] == ["blue"]


def test_signed_kit_is_valid_with_the_public_key_only(site: Site) -> None:
    kit = make(site, private_key=PRIVATE)
    assert kit_format.read(kit.path, PUBLIC).signature == "valid"
    assert not [path for path in site.path.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"private_key": b"no key"}, "not an Ed25519 private key"),
        ({"private_key": PUBLIC}, "not an Ed25519 private key"),
        ({"model": "none"}, "no model"),
        ({"model": "../models/x"}, "no model"),
        ({"again": "none"}, "no kit"),
        ({"again": "../kits/old"}, "no kit"),
        ({"name": "old"}, "already"),
        ({"name": "../old"}, "not valid"),
        ({"publish": ["nowhere"]}, "no door"),
        ({"publish": ["all"]}, "No door was chosen"),
        ({"liveness": "onnx:none.onnx"}, "cannot be read"),
    ],
)
def test_wrong_plan_is_one_sentence_before_the_job(site: Site, values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        release.plan(site, **values)


def test_site_without_a_model_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no model.*Train"):
        release.plan(Site.create(tmp_path / "site"))


# --- Again ---


def test_kit_again_differs_in_version_alone(site: Site) -> None:
    older = kits.get_kit(site, "old")
    newer = make(site, again="old")
    before, after = (kit_format.unpack(kit.path.read_bytes()) for kit in (older, newer))
    manifests = [json.loads(parts.pop(kit_format.MANIFEST)) for parts in (before, after)]
    versions = [manifest.pop("kit_version") for manifest in manifests]
    assert before == after
    assert manifests[0] == manifests[1]
    assert versions == [older.version, newer.version]
    assert newer.version > older.version
    assert newer.result is not None
    assert (newer.model, newer.result["again"]) == (older.model, "old")
    with site.database() as database:
        assert jobs.latest(database, most=1)[0].kind == "again"


def test_signed_kit_again_needs_the_same_key(site: Site) -> None:
    make(site, private_key=PRIVATE, name="signed")
    with pytest.raises(UsageError, match="must be signed again"):
        release.plan(site, again="signed")
    with pytest.raises(UsageError, match="another key"):
        make(site, again="signed", private_key=signing_keys("theirs")[0])
    newer = make(site, again="signed", private_key=PRIVATE)
    assert kit_format.read(newer.path, PUBLIC).signature == "valid"


def test_damaged_kit_is_not_packed_again(site: Site) -> None:
    path = kits.get_kit(site, "old").path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    before = sorted(site.kits.iterdir())
    with pytest.raises(KitDamagedError):
        make(site, again="old")
    assert sorted(site.kits.iterdir()) == before


def test_kit_with_wrong_results_is_not_packed_again(site: Site) -> None:
    path = kits.get_kit(site, "old").path
    results = json.loads(kit_format.unpack(path.read_bytes())[kit_format.MANIFEST])["selftest"]
    results["scores"][0][0] += 0.01
    path.write_bytes(with_manifest(path.read_bytes(), selftest=results))
    with pytest.raises(SelfTestError):
        make(site, again="old")


def until_active(watch: KitWatch, kit: KitInfo) -> None:
    digest = kit_format.read(kit.path).sha256
    until(lambda: watch.recognizer.kit.sha256 == digest, "the kit did not become active")


def test_running_terminal_takes_each_kit_and_then_the_older_one_again(site: Site, tmp_path: Path) -> None:
    drop = add_door(site, tmp_path)
    publishing.publish(site, "old", ["north"], who="anna")
    store: Store[ProbationRecognizer] = Store(tmp_path / "store", drop, load_on_probation, public_key=None)
    with KitWatch(store, seconds=0.01) as watch:
        for kit in (make(site, precision="fp16", publish=["north"]), make(site, again="old", publish=["all"])):
            until_active(watch, kit)
    assert watch.recognizer.kit.manifest.precision == "fp32"


# --- The command, in this process and in its own ---


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    return run_main(monkeypatch, cli.main, "release", *words)


def test_command_reads_the_key_from_stdin(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(PRIVATE)))
    assert run(monkeypatch, site.path, "--sign", "-", "--again", "old", "--who", "ben", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    kit = kits.get_kit(site, facts["kit"])
    assert (facts["signed"], facts["who"], facts["doors"]) == (True, "ben", {})
    assert kit_format.read(kit.path, PUBLIC).signature == "valid"


def test_command_publishes_to_doors_with_commas_and_umlauts(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [add_door(site, tmp_path, name) for name in ("Tür, Süd", "north", "east")]
    assert run(monkeypatch, site.path, "--again", "old", "--publish", "Tür, Süd", "--publish", "north,east") == 0
    assert "north: published." in capsys.readouterr().err
    assert len({file.read_bytes() for file in files}) == 1
    assert publishing.at_doors(site).keys() == {"Tür, Süd", "north", "east"}


def test_door_that_cannot_get_a_kit_stops_the_job_before_it_starts(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    doors.add(site, Door(name="far"), "anna")
    before = sorted(site.kits.iterdir())
    assert run(monkeypatch, site.path, "--publish", "far") == 2
    assert "far: This door has no file for new kits" in capsys.readouterr().err
    assert sorted(site.kits.iterdir()) == before


def release_until(site: Site, stage: str, action: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the command so that it does something to itself at a stage: a line of Python that knows `self`, the job."""
    code = (
        "import os, signal\nfrom trainer.site import jobs\noriginal = jobs.Job.stage\n"
        f"def stage(self, name, *count):\n    original(self, name, *count)\n    if name == {stage!r}:\n        {action}\n"
        "jobs.Job.stage = stage\nfrom export.cli import main\nmain()\n"
    )
    words = [sys.executable, "-c", code, "release", str(site.path), *options]
    return subprocess.run(words, env=environment(), cwd=ROOT, capture_output=True, text=True)


def last_job(site: Site) -> jobs.JobState:
    with site.database() as database:
        return jobs.latest(database, most=1)[0]


@pytest.mark.parametrize("stage", ["reading the model", "calibration faces", "iterations", "parity"])
def test_cancelled_build_leaves_no_kit(site: Site, stage: str) -> None:
    before = sorted(site.kits.iterdir())
    ended = release_until(site, stage, "jobs.cancel(self.site, self.id, who='anna')")
    assert ended.returncode == EXIT_INTERRUPTED
    assert "Traceback" not in ended.stderr
    assert last_job(site).state == jobs.CANCELLED
    assert sorted(site.kits.iterdir()) == before


def test_build_that_is_being_published_cannot_be_cancelled_any_more(site: Site, tmp_path: Path) -> None:
    drop = add_door(site, tmp_path)
    ended = release_until(site, kits.SAVING, "jobs.cancel(self.site, self.id, who='anna')", "--publish", "north")
    assert ended.returncode == 0, ended.stderr
    job = last_job(site)
    assert job.state == jobs.DONE
    assert kit_format.read(drop).sha256 == kit_format.read(kits.get_kit(site, job.result["kit"]).path).sha256


def test_killed_build_leaves_nothing_after_the_next_one(site: Site) -> None:
    killed = release_until(site, kits.SAVING, "os.kill(os.getpid(), signal.SIGKILL)")
    assert killed.returncode == -signal.SIGKILL
    (site.kits / "20260101-000000.json").write_text("{}")  # as if it was killed while it wrote
    newer = make(site, again="old")
    assert {path.stem for path in site.kits.iterdir()} == {"old", newer.name}
