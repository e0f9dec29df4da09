"""`trainer site visits` and its family do what the pages do."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from edge.audit.crypto import write_keys
from edge.decision import reasons
from tests.fixtures.events import NOON, make_event
from tests.fixtures.site import site_of_orl
from tests.fixtures.trainer_command import TrainerCommand
from tests.fixtures.visits import UNKNOWN, camera_frame, size_of, write_audit_log
from trainer.site import doors, visit_retention, visits
from trainer.site.doors import Door
from trainer.site.folder import Site
from trainer.site.visits import Search

DAY = timedelta(days=1)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    write_keys(tmp_path / "key.pem")
    return tmp_path / "key.pem"


@pytest.fixture
def log(tmp_path: Path, key: Path) -> Path:
    rows = [(make_event(label="s1"), camera_frame(5)), (make_event(**UNKNOWN, utc=NOON + DAY), camera_frame(2, 6))]
    return write_audit_log(tmp_path / "audit.db", rows, public_key=Path(f"{key}.pub"))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = site_of_orl(tmp_path / "site", {"s1": range(1, 3), "s2": range(1, 3)})
    doors.add(made, Door(name="north"), "test")
    return made


def test_import_list_and_show(trainer: TrainerCommand, site: Site, log: Path, key: Path, tmp_path: Path) -> None:
    code, _, said = trainer("site", "import-visits", site.path, "north", log)
    assert (code, "2 new visits, 0 completed, 0 known already" in said) == (0, True)
    _, listed, _ = trainer("site", "visits", site.path)
    first, second = listed.splitlines()
    assert ("unknown" in first, "picture" in first, " s1 " in second) == (True, True, True)
    _, found, _ = trainer("site", "visits", site.path, "--unknown", "--json")
    assert [json.loads(line)["event"]["reason"] for line in found.splitlines()] == [reasons.UNKNOWN_PERSON]
    _, _, said = trainer("site", "visits", site.path, "--most", 1)
    assert "newest 1" in said
    code, shown, _ = trainer("site", "show-visit", site.path, 1, "--picture", tmp_path / "1.jpg", "--picture-key", key)
    assert (code, json.loads(shown)["event"]["looks"]) == (0, 3)
    assert size_of((tmp_path / "1.jpg").read_bytes()) == (640, 360)
    assert (tmp_path / "1.jpg").stat().st_mode & 0o777 == 0o600


def test_day_is_that_of_this_computer(trainer: TrainerCommand, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with site.database() as database:
        visits.store(database, "north", json.loads(make_event(utc=datetime(2026, 5, 1, 22, 30, tzinfo=UTC)).to_json()))
    try:
        for zone, day in (("UTC", "2026-05-01"), ("Europe/Berlin", "2026-05-02")):
            monkeypatch.setitem(os.environ, "TZ", zone)
            time.tzset()
            _, found, _ = trainer("site", "visits", site.path, "--from", day, "--until", day)
            assert f"1  {day}" in found, zone
    finally:
        monkeypatch.undo()
        time.tzset()


def test_judge_look_save_and_undo(trainer: TrainerCommand, site: Site, log: Path, key: Path, tmp_path: Path) -> None:
    trainer("site", "import-visits", site.path, "north", log)
    judge = ("site", "judge-visit", site.path)
    code, _, said = trainer(*judge, 2, "--stranger", "--picture-key", key, "--face", 2, "--look", tmp_path / "face.png")
    assert (code, "shows face 2 of 2" in said, list(site.strangers.iterdir())) == (0, True, [])
    code, _, said = trainer(*judge, 2, "--stranger", "--picture-key", key, "--face", 2, "--yes")
    (file,) = site.strangers.rglob("*.png")
    assert (code, file.read_bytes() == (tmp_path / "face.png").read_bytes()) == (0, True)
    code, _, said = trainer(*judge, 2, "--is", "s2", "--picture-key", key, "--yes")
    assert (code, "has a verdict already" in said) == (2, True)
    code, _, said = trainer(*judge, 2, "--undo")
    assert (code, "photo is deleted" in said, list(site.strangers.iterdir())) == (0, True, [])
    assert trainer(*judge, 1, "--is", "s2", "--picture-key", key, "--yes")[0] == 0
    assert len(list((site.photos / "s2").iterdir())) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((1,), "not clear"),
        ((1, "--stranger", "--is", "s1"), "not clear"),
        ((1, "--stranger"), "sealed"),
        ((99, "--stranger"), "no such visit"),
        ((1, "--is", "S9"), "no person called S9"),
    ],
)
def test_wrong_verdicts_are_sentences(
    options: tuple[object, ...], message: str, trainer: TrainerCommand, site: Site, log: Path
) -> None:
    trainer("site", "import-visits", site.path, "north", log)
    code, _, said = trainer("site", "judge-visit", site.path, *options)
    assert (code, message in said) == (2, True), said


def test_prune_and_setting(trainer: TrainerCommand, site: Site) -> None:
    def ages(*days: int) -> int:
        with site.database() as database:
            for age in days:
                visits.store(database, "north", json.loads(make_event(utc=datetime.now(UTC) - age * DAY).to_json()))
            return visits.count(database, Search())

    assert ages(1, 10, 40, 100) == 4
    prune = ("site", "prune-visits", site.path)
    assert "Deleted 1 visit. The site keeps visits without a limit." in trainer(*prune, "--days", 90)[2]
    assert "Deleted 0 visits." in trainer(*prune)[2]
    assert "Deleted 1 visit. The site keeps visits for 30 days." in trainer(*prune, "--days", 30, "--keep")[2]
    assert ages(50) == 3
    assert "Deleted 1 visit." in trainer(*prune)[2]
    assert "without a limit" in trainer(*prune, "--days", 0, "--keep")[2]
    with site.database() as database:
        assert visit_retention.keep_days(database) == 0
    for options in (("--keep",), ("--days", 0), ("--days", 100_000)):
        assert trainer(*prune, *options)[0] == 2, options
    assert ages() == 2
