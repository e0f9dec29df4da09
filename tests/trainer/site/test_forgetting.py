"""A deleted person: nothing in the site contains them, or what does is listed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from edge.errors import UsageError
from edge.vision.preprocess import SIZE, FeatureSpec
from tests.fixtures.site import orl_file, site_of_orl
from trainer.data.gallery import load_gallery
from trainer.model import Model
from trainer.site import contents, forgetting, jobs, people, trail
from trainer.site.folder import Site
from trainer.site.remains import Evidence, search
from trainer.training import fit

WHO = "tester"
NAME = "Anna Müller"


def train(site: Site, name: str) -> Path:
    gallery = load_gallery(site.photos, cropped=False)
    path = site.models / f"{name}.npz"
    fit(gallery, FeatureSpec.for_crop(*SIZE), {"atoms_per_class": 2, "coding": "l21", "eta": 1e-2}).save(path)
    path.with_suffix(".json").write_text(json.dumps({"weakest": [{"person": NAME, "advice": "2 photos"}], "people": 3}))
    return path


def site_with_anna(path: Path) -> Site:
    site = site_of_orl(path, {f"s{person}": range(1, 4) for person in (1, 2, 3)})
    with site.database() as database:
        people.sync(site, database)
        people.rename(site, database, "s1", "Ann", who=WHO)
        people.rename(site, database, "Ann", NAME, who=WHO)
        people.set_consent(site, database, NAME, "2026-01-01", "a note", who=WHO)
        for number, (label, event) in enumerate(
            [(NAME, {"label": NAME}), ("s2", {"label": "s2", "second": NAME}), ("s2", {})]
        ):
            database.execute(
                "INSERT INTO visits (door, event_id, utc, outcome, label, event, picture)"
                " VALUES ('front', ?, '2026', 'granted', ?, ?, x'00ff')",
                (str(number), label, json.dumps(event)),
            )
        with jobs.run(site, "train", WHO, {"people": [NAME]}) as job:
            job.say(f"Only one photo of {NAME}: expect poor recognition.")
            job.finish("done", weakest=[NAME])
    return site


def forget(site: Site, *, delete_older: bool = False, name: str = NAME) -> forgetting.Forgotten:
    with site.database() as database:
        return forgetting.forget(site, database, name, who=WHO, delete_older=delete_older)


@pytest.mark.slow
def test_person_is_forgotten_everywhere(tmp_path: Path) -> None:
    site = site_with_anna(tmp_path)
    model = train(site, "m1")
    before = Model.load(model)
    anna = before.crops[before.crop_people == before.labels.index(NAME)]
    done = forget(site)
    assert (done.photos, done.visits, done.changed, done.deleted, done.remains) == (3, 1, ("m1.npz",), (), ())
    after = Model.load(model)
    assert after.labels == ("s2", "s3")
    assert not any(np.array_equal(crop, own) for crop in after.crops for own in anna)
    for path in site.path.rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        for text in (NAME, "Ann", json.dumps(NAME)[1:-1]):
            if len(text) > 3:
                assert text.encode() not in data, path
    with site.database() as database:
        labels = [row[0] for row in database.execute("SELECT label FROM visits ORDER BY id")]
        pictures = [row[0] for row in database.execute("SELECT picture IS NULL FROM visits ORDER BY id")]
        assert (labels, pictures) == ([None, "s2", "s2"], [1, 0, 0])
        subjects = {change.subject for change in trail.changes(database)} - {str(job.id) for job in jobs.latest(database)}
        assert done.word in subjects
        assert not {NAME, "Ann"} & subjects


@pytest.mark.slow
def test_older_models_and_copies_are_listed_and_deleted_if_asked(tmp_path: Path) -> None:
    site = site_with_anna(tmp_path)
    newest, older = train(site, "newest"), site.models / "older.npz"
    shutil.copy2(newest, older)
    shutil.copy2(older.with_name("newest.json"), older.with_suffix(".json"))
    newest.touch()
    shutil.copy2(site.photos / NAME / "1.pgm", site.strangers / "x.pgm")
    (site.lists / "front.toml").write_text(f'[people]\n"{NAME}" = "always"\n')
    found = {(remain.file, remain.what) for remain in forget(site).remains}
    assert found == {("models/older.npz", "model"), ("strangers/x.pgm", "photo"), ("lists/front.toml", "name")}
    assert contents.model_labels(newest) == ("s2", "s3")
    again = forget(site, delete_older=True)
    assert again.deleted == ("older.npz",)
    assert sorted(path.name for path in site.models.iterdir()) == ["newest.json", "newest.npz"]


@pytest.mark.slow
def test_model_of_two_people_is_deleted(tmp_path: Path) -> None:
    site = site_of_orl(tmp_path, {"s1": range(1, 4), "s2": range(1, 4)})
    train(site, "m")
    done = forget(site, name="s1")
    assert (done.deleted, done.changed, done.remains) == (("m.npz",), (), ())


def test_short_name_inside_another_is_no_remain(tmp_path: Path) -> None:
    """`s1` is a part of `s10`, and two letters occur by chance in photos."""
    site = site_of_orl(tmp_path, {"s1": range(1, 3), "s10": range(1, 3)})
    with site.database() as database:
        people.sync(site, database)
        people.set_consent(site, database, "s10", "2026-01-01", "", who=WHO)
    assert forget(site, name="s1").remains == ()
    with site.database() as database:
        assert people.names(database) == ["s10"]
        assert [change.subject for change in trail.changes(database)][-1] == "s10"


def test_former_name_that_somebody_else_has_now_is_kept(tmp_path: Path) -> None:
    site = site_of_orl(tmp_path, {"s1": range(1, 3), "s2": range(1, 3)})
    with site.database() as database:
        people.sync(site, database)
        people.rename(site, database, "s1", "Anna Schmidt", who=WHO)
        people.rename(site, database, "s2", "s1", who=WHO)
    assert forget(site, name="Anna Schmidt").remains == ()
    with site.database() as database:
        assert people.names(database) == ["s1"]
        assert len(list((site.photos / "s1").iterdir())) == 2


def test_traces_in_free_pages_are_found_and_removed(tmp_path: Path) -> None:
    """SQLite leaves copies of rows between the cells of its pages, even with secure_delete."""
    site = site_of_orl(tmp_path, {"s1": range(1, 3), "s2": range(1, 3)})
    evidence = Evidence(names=frozenset({NAME}), files={}, crops=frozenset())
    with site.database() as database:
        people.sync(site, database)
        people.rename(site, database, "s1", NAME, who=WHO)
        database.execute("PRAGMA secure_delete=OFF")
        database.execute("INSERT INTO job_lines VALUES (1, '', ?)", (NAME * 2000,))
        database.execute("DELETE FROM job_lines")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert site.database_file.read_bytes().count(NAME.encode()) > 1000
    assert forget(site).remains == ()
    with site.database() as database:
        database.execute("PRAGMA secure_delete=OFF")
        database.execute("INSERT INTO job_lines VALUES (1, '', ?)", (NAME * 2000,))
        database.execute("DELETE FROM job_lines")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert [remain.file for remain in search(site, database, evidence)] == ["console.db"]


def test_unknown_person_cannot_be_forgotten(tmp_path: Path) -> None:
    site = site_of_orl(tmp_path, {"s1": range(1, 2)})
    with pytest.raises(UsageError):
        forget(site, name="nobody")
    assert (site.photos / "s1" / "1.pgm").read_bytes() == orl_file(1, 1)
