"""The training of a site: model, result, report, cache, and what a person decides about suspected photos."""

from __future__ import annotations

import hashlib
import json
import shutil
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.errors import EdgeError, UsageError
from tests.fixtures.portraits import find_orl
from tests.fixtures.site import orl_file, site_of_orl
from trainer import training as recipes
from trainer.data.gallery import crop_digests
from trainer.features.vector_file import VectorFile
from trainer.model import Model
from trainer.shards.work import WorkFolder
from trainer.site import models, training, training_cache
from trainer.site.folder import Site
from trainer.site.training import Trained

pytestmark = pytest.mark.slow

PEOPLE = {f"s{person}": range(1, 5) for person in range(1, 8)}


def train(site: Site, **options: Any) -> Trained:
    return training.train(site, preset="tiny", who="anna", **options)


@pytest.fixture(scope="module")
def trained_site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A site with one model. Tests that change it copy it."""
    site = site_of_orl(tmp_path_factory.mktemp("trained") / "site", PEOPLE)
    train(site)
    return site


@pytest.fixture
def site(trained_site: Site, tmp_path: Path) -> Site:
    shutil.copytree(trained_site.path, tmp_path / "site")
    return Site.open(tmp_path / "site")


@pytest.fixture
def large_site(tmp_path: Path) -> Site:
    """Enough people for a suspicion: with few, a face looks like another one by chance."""
    return site_of_orl(tmp_path / "large", {f"s{person}": range(1, 7) for person in range(1, 21)})


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files if name != "header"}


def test_model_is_the_one_of_fit_with_a_result_and_a_report_beside_it(trained_site: Site) -> None:
    (model,) = models.list_models(trained_site)
    gallery = recipes.photo_loader(trained_site.photos)(None)
    loaded = Model.load(model.path)
    assert loaded.fingerprint == gallery.fingerprint
    assert (model.people, model.photos) == (7, len(gallery.labels))
    assert loaded.calibration is not None
    assert model.threshold == loaded.calibration.confidence
    assert model.result is not None
    assert model.report is not None
    assert "<script" not in model.report.read_text()
    for path in (model.path, model.report, model.path.with_suffix(".json")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with trained_site.database() as database:
        assert [row["action"] for row in database.execute("SELECT action FROM trail")] == ["train"]


def test_result_counts_every_photo_and_person(trained_site: Site) -> None:
    result = models.list_models(trained_site)[0].result
    assert result is not None
    photos = result["photos"] - result["suspected_photos"]
    assert result["recognised"]["of"] == photos
    assert result["missed"]["of"] == photos
    assert sum(person["tested"] for person in result["each"]) == photos
    assert result["recognised"]["count"] > 0.7 * photos
    assert 0 <= result["false_accepts"]["low"] <= result["false_accepts"]["share"] <= result["false_accepts"]["high"]
    for share in (result["recognised"], result["missed"]):
        assert share["low"] <= share["share"] <= share["high"]
    missed = sum(person["tested"] - person["recognised"] for person in result["each"])
    assert missed == result["missed"]["count"]


def test_stages_are_reported_in_their_order(site: Site) -> None:
    seen: list[str] = []

    def stage(name: str, done: int, total: int) -> None:
        if name not in seen:
            seen.append(name)
        assert 0 <= done <= total or not total

    train(site, stage=stage)
    assert seen == [name for name in training.STAGES if name != training.VECTORS]


def test_training_with_the_cache_gives_the_same_bits(site: Site) -> None:
    first = models.list_models(site)[0]
    assert (site.models / training_cache.CACHE / training_cache.CROPS).is_file()
    again = train(site)
    shutil.rmtree(site.models / training_cache.CACHE)
    without = train(site)
    for path in (again.path, without.path):
        for name, array in arrays_of(first.path).items():
            assert np.array_equal(array, arrays_of(path)[name]), name


def test_cached_photos_are_not_decoded_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    original = recipes.load_gallery.__globals__["decode_bytes"]

    def counted(data: bytes, **options: Any) -> Any:
        decoded.append(len(data))
        return original(data, **options)

    monkeypatch.setattr("trainer.data.gallery.decode_bytes", counted)
    (site.photos / "s1" / "9.pgm").write_bytes(orl_file(1, 9))
    trained = train(site)
    assert len(decoded) == 1
    assert trained.result["photos"] == 29


def test_damaged_cache_is_made_again(site: Site) -> None:
    (site.models / training_cache.CACHE / training_cache.CROPS).write_bytes(b"this is not a database" * 1000)
    assert train(site).result["photos"] == 28


def test_cache_keeps_nothing_of_a_person_who_is_gone(site: Site) -> None:
    crop = next(crop_digests(recipes.photo_loader(site.photos)(None).images))
    file = hashlib.sha256((site.photos / "s1" / "1.pgm").read_bytes()).digest()
    cache = site.models / training_cache.CACHE
    vectors = VectorFile(cache, "0", 3)
    vectors.append([crop, bytes(32)], np.ones((2, 3), np.float32))
    assert file in (cache / training_cache.CROPS).read_bytes()
    training_cache.forget(site, [hashlib.sha256(path.read_bytes()).hexdigest() for path in (site.photos / "s1").iterdir()])
    assert file not in (cache / training_cache.CROPS).read_bytes()
    assert vectors.read().keys() == {bytes(32)}
    shutil.rmtree(site.photos / "s1")
    train(site)
    assert file not in (cache / training_cache.CROPS).read_bytes()
    assert vectors.read() == {}, "no photo of the site has it"


def test_forget_without_a_cache_does_nothing(tmp_path: Path) -> None:
    training_cache.forget(Site.create(tmp_path / "site"), ["00" * 32])


def test_person_deleted_in_mid_training_is_in_no_model(site: Site) -> None:
    def stage(name: str, done: int, total: int) -> None:
        if name == training.CHECKING and (site.photos / "s1").exists():
            shutil.rmtree(site.photos / "s1")

    before = sorted(site.models.iterdir())
    with pytest.raises(UsageError, match="during the training"):
        train(site, stage=stage)
    assert sorted(site.models.iterdir()) == before


def test_failure_while_writing_leaves_no_file(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> str:
        raise KeyboardInterrupt

    before = sorted(site.models.iterdir())
    monkeypatch.setattr(training, "_report", fail)
    with pytest.raises(KeyboardInterrupt):
        train(site)
    assert sorted(site.models.iterdir()) == before


def wrong_name(site: Site) -> str:
    """Give a photo of s2 the name s1. Return its file name."""
    (site.photos / "s1" / "wrong.pgm").write_bytes(orl_file(2, 9))
    return "wrong.pgm"


def test_wrong_name_is_suspected_until_a_person_confirms_it(large_site: Site) -> None:
    file = wrong_name(large_site)
    result = train(large_site).result
    assert [(one["person"], one["file"], one["looks_like"]) for one in result["suspected"]] == [("s1", file, "s2")]
    assert result["recognised"]["of"] == result["photos"] - 1, "a suspected photo is not in the cross-validation"
    assert next(one for one in result["weakest"] if one["name"] == "s1")["advice"][0]["key"] == "suspected"
    with large_site.database() as database:
        training.keep_photo(large_site, database, "s1", file, who="ben")
    again = train(large_site)
    assert again.result["suspected"] == []
    assert again.result["recognised"]["of"] == again.result["photos"]
    with large_site.database() as database:
        row = database.execute("SELECT who, subject, details FROM trail WHERE action = 'keep photo'").fetchone()
        assert tuple(row) == ("ben", "s1", file)


def test_confirmed_photo_of_another_person_is_suspected_there(large_site: Site) -> None:
    file = wrong_name(large_site)
    with large_site.database() as database:
        training.keep_photo(large_site, database, "s1", file, who="ben")
    (large_site.photos / "s1" / file).rename(large_site.photos / "s3" / file)
    assert [one["person"] for one in train(large_site).result["suspected"]] == ["s3"]


def test_strangers_are_used_if_there_are_photos(site: Site) -> None:
    assert not training.has_strangers(site)
    for number in (1, 2):
        shutil.copy(find_orl() / "s30" / f"{number}.pgm", site.strangers)
    assert training.has_strangers(site)
    path = train(site).path
    calibration = Model.load(path).calibration
    assert calibration is not None
    assert calibration.others_trials == 2 or calibration.public


def test_site_without_people_is_one_sentence(tmp_path: Path) -> None:
    site = Site.create(tmp_path / "site")
    with pytest.raises(EdgeError, match="no folder of a person"):
        train(site)
    assert models.list_models(site) == []


# --- Models ---


def test_models_are_compared(site: Site) -> None:
    older = models.list_models(site)[0]
    shutil.rmtree(site.photos / "s7")
    (site.photos / "s8").mkdir()
    for number in range(1, 5):
        (site.photos / "s8" / f"{number}.pgm").write_bytes(orl_file(8, number))
    newer = models.get_model(site, train(site).name)
    assert [model.name for model in models.list_models(site)] == [newer.name, older.name]
    found = models.compare(older, newer)
    assert (found.added, found.removed) == (("s8",), ("s7",))
    assert found.threshold_change == pytest.approx((newer.threshold or 0) - (older.threshold or 0))
    assert found.change_of("recognised") is not None


def test_model_of_fit_is_listed_without_a_result(site: Site) -> None:
    model = models.list_models(site)[0]
    shutil.copy(model.path, site.models / "by hand.npz")
    found = models.get_model(site, "by hand")
    assert (found.people, found.photos, found.threshold) == (model.people, model.photos, model.threshold)
    assert found.result is None
    assert models.compare(model, found).added == ()


def test_damaged_files_do_not_hide_the_other_models(site: Site) -> None:
    good = models.list_models(site)[0]
    (site.models / "broken.npz").write_bytes(b"PK not a model")
    good.path.with_suffix(".json").write_text(json.dumps({"schema": 99}))
    found = {model.name: model for model in models.list_models(site)}
    assert found["broken"].problem
    assert found[good.name].result is None
    assert found[good.name].people == 7


@pytest.mark.parametrize("name", ["none", "../photos", "", ".hidden", "a/b"])
def test_unknown_model_is_refused(site: Site, name: str) -> None:
    with pytest.raises(UsageError, match="no model"):
        models.get_model(site, name)


def test_deleted_model_leaves_no_file(site: Site) -> None:
    name = models.list_models(site)[0].name
    models.delete_model(site, name, who="ben")
    assert [path.name for path in site.models.iterdir()] == [training_cache.CACHE]
    with pytest.raises(UsageError):
        models.delete_model(site, name, who="ben")


def test_vectors_are_kept_apart_from_the_work_of_one_training(tmp_path: Path) -> None:
    work = WorkFolder(tmp_path / "work", tmp_path / "kept")
    work.crops_file().write_bytes(b"x")
    (tmp_path / "kept").mkdir()
    work.delete()
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
