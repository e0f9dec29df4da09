"""The second look at a sealed picture: what is shown is what is saved, once, and undo removes it."""

from __future__ import annotations

import hashlib
import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import cv2
import numpy as np
import pytest

from edge.audit.crypto import Seal, write_keys
from edge.errors import UsageError
from tests.fixtures.events import make_event
from tests.fixtures.site import site_of_orl
from tests.fixtures.visits import camera_frame, size_of
from trainer.site import forgetting, people, person_export, pictures, trail, visits
from trainer.site.folder import Site
from trainer.site.pictures import Look

WHO = "tester"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Seal]:
    path = tmp_path_factory.mktemp("keys") / "key.pem"
    public = write_keys(path)
    return path.read_bytes(), Seal(public.read_bytes())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return site_of_orl(tmp_path / "site", {name: range(1, 3) for name in ("s1", "s2")})


class Judging:
    """A site with visits whose pictures are sealed, and the private key."""

    def __init__(self, site: Site, keys: tuple[bytes, Seal]) -> None:
        self.site, (self.key, self.seal) = site, keys

    def visit(self, image: Any, label: str | None = "s1", event_id: str = "", door: str = "north") -> int:
        """Store a visit with this picture, and return its number."""
        event = asdict(make_event(label=label))
        event["event_id"] = event_id or event["event_id"]
        jpeg = cv2.imencode(".jpg", image)[1].tobytes()
        with self.site.database() as database:
            visits.store(database, door, event, self.seal(jpeg, event["event_id"].encode()))
            return int(database.execute("SELECT max(id) FROM visits").fetchone()[0])

    def look(self, number: int, **options: Any) -> Look:
        with self.site.database() as database:
            return pictures.look(self.site, database, number, options.pop("key", self.key), **options)

    def judge(self, number: int, seen: str, **options: Any) -> Path:
        with self.site.database() as database:
            return pictures.judge(self.site, database, number, self.key, who=WHO, seen=seen, **options)

    def save(self, number: int, **options: Any) -> Path:
        """Look and save."""
        return self.judge(number, self.look(number, **options).seen, **options)

    def undo(self, number: int) -> bool:
        with self.site.database() as database:
            return pictures.undo(self.site, database, number, who=WHO)

    def verdict(self, number: int) -> str | None:
        with self.site.database() as database:
            return visits.get(database, number).verdict

    def files(self) -> list[str]:
        """All photos that are not there from the start."""
        start = {f"photos/s{person}/{photo}.pgm" for person in (1, 2) for photo in (1, 2)}
        roots = (self.site.photos, self.site.strangers)
        found = {str(path.relative_to(self.site.path)) for root in roots for path in root.rglob("*") if path.is_file()}
        return sorted(found - start)


@pytest.fixture
def judging(site: Site, keys: tuple[bytes, Seal]) -> Judging:
    return Judging(site, keys)


def test_stranger_is_saved_exactly_as_shown(judging: Judging) -> None:
    number = judging.visit(camera_frame(5))
    shown = judging.look(number)
    assert (len(shown.frame.faces), shown.check.problem, judging.files()) == (1, None, []), "a look saves nothing"
    file = judging.judge(number, shown.seen)
    assert (file.read_bytes(), file.parent.parent) == (shown.photo, judging.site.strangers)
    assert hashlib.sha256(file.read_bytes()).hexdigest() == shown.seen
    assert (file.stat().st_mode & 0o777, judging.verdict(number)) == (0o600, visits.STRANGER)
    with judging.site.database() as database:
        (change,) = trail.changes(database, search="judge visit")
    assert (change.who, "stranger" in change.details) == (WHO, True)


def test_person_gets_a_training_photo(judging: Judging) -> None:
    number = judging.visit(camera_frame(2), label="s1")
    file = judging.save(number, name=" s2 ")
    assert (file.parent.name, judging.verdict(number)) == ("s2", "is s2")
    with judging.site.database() as database:
        found = people.get(database, "s2")
        assert found is not None
        assert (found.photos, found.problems) == (3, 0)


def test_undo_removes_the_photo_and_allows_another_verdict(judging: Judging) -> None:
    number = judging.visit(camera_frame(2))
    judging.save(number)
    assert judging.undo(number)
    assert (judging.files(), judging.verdict(number)) == ([], None)
    assert not list(judging.site.strangers.iterdir())
    judging.save(number, name="s2")
    assert judging.undo(number)
    assert judging.files() == []
    with pytest.raises(UsageError, match="no verdict"):
        judging.undo(number)


def test_undo_leaves_a_photo_that_was_moved(judging: Judging) -> None:
    number = judging.visit(camera_frame(2))
    file = judging.save(number, name="s1")
    with judging.site.database() as database:
        people.move_photo(judging.site, database, "s1", file.name, "s2", who=WHO)
    assert not judging.undo(number)
    assert judging.files() == [f"photos/s2/{file.name}"]


def test_undo_finds_the_photo_of_a_renamed_person(judging: Judging) -> None:
    number = judging.visit(camera_frame(2))
    judging.save(number, name="s2")
    with judging.site.database() as database:
        people.rename(judging.site, database, "s2", "Zoë", who=WHO)
    assert judging.undo(number)
    assert len(list((judging.site.photos / "Zoë").iterdir())) == 2


def test_one_of_several_faces_is_chosen(judging: Judging) -> None:
    number = judging.visit(camera_frame(5, 6))
    first, second = judging.look(number, face=0), judging.look(number, face=1)
    assert len(first.frame.faces) == 2
    assert first.seen != second.seen
    with pytest.raises(UsageError, match="not the one that was shown"):
        judging.judge(number, first.seen, face=1)
    with pytest.raises(UsageError, match="no such face"):
        judging.look(number, face=2)
    file = judging.judge(number, second.seen, face=1)
    assert file.read_bytes() == second.photo


def test_face_of_an_enrolled_person_is_reported(judging: Judging) -> None:
    with judging.site.database() as database:
        people.add_photo(judging.site, database, "s2", _png(camera_frame(2, number=3)), who=WHO)
    number = judging.visit(camera_frame(2, number=3))
    assert [other.person for other in judging.look(number).alike] == ["s2"]
    assert judging.look(number, name="s2").alike == ()


def _png(image: Any) -> bytes:
    return cv2.imencode(".png", image)[1].tobytes()


@pytest.mark.parametrize("name", ["S2", "nobody", "../photos/s1", "s1/../s2", ".", "x" * 200])
def test_misspelled_person_is_refused(name: str, judging: Judging) -> None:
    number = judging.visit(camera_frame(5))
    with pytest.raises(UsageError):
        judging.look(number, name=name)
    with pytest.raises(UsageError):
        judging.judge(number, judging.look(number).seen, name=name)
    assert (judging.files(), judging.verdict(number)) == ([], None)


def test_second_verdict_is_refused(judging: Judging) -> None:
    number = judging.visit(camera_frame(5))
    seen = judging.look(number).seen
    judging.judge(number, seen)
    before = judging.files()
    for options in ({}, {"name": "s2"}):
        with pytest.raises(UsageError, match="has a verdict already"):
            judging.judge(number, seen, **options)
    assert judging.files() == before


def test_of_two_verdicts_at_the_same_time_one_counts(judging: Judging) -> None:
    number = judging.visit(camera_frame(5))
    seen = judging.look(number).seen

    def attempt(name: str) -> str:
        try:
            judging.judge(number, seen, name=name)
        except UsageError as error:
            return error.message
        return ""

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(attempt, ("", "s2")))
    assert sorted(results) == ["", "This visit has a verdict already."]
    assert len(judging.files()) == 1


def test_failed_save_leaves_no_verdict(judging: Judging) -> None:
    number, again = judging.visit(camera_frame(5)), judging.visit(camera_frame(5))
    judging.save(number, name="s2")
    with pytest.raises(UsageError, match="is there already"):
        judging.save(again, name="s2")
    assert judging.verdict(again) is None


def test_key_missing_wrong_key_and_no_picture_are_sentences(judging: Judging, tmp_path: Path) -> None:
    number = judging.visit(camera_frame(5))
    write_keys(tmp_path / "other.pem")
    for key, message in (
        (None, "sealed"),
        ((tmp_path / "other.pem").read_bytes(), "another key"),
        (b"no key", "key"),
    ):
        with pytest.raises(UsageError, match=message):
            judging.look(number, key=key)
    with judging.site.database() as database:
        visits.store(database, "north", asdict(make_event()))
    with pytest.raises(UsageError, match="has no picture"):
        judging.look(number + 1)


def test_picture_of_another_visit_does_not_open(judging: Judging) -> None:
    one, other = judging.visit(camera_frame(5)), judging.visit(camera_frame(6))
    with judging.site.database() as database:
        database.execute("UPDATE visits SET picture = (SELECT picture FROM visits WHERE id = ?) WHERE id = ?", (other, one))
    with pytest.raises(UsageError, match="another key, or was changed"):
        judging.look(one)


def test_picture_without_a_face_or_that_is_damaged_is_a_sentence(judging: Judging) -> None:
    number = judging.visit(np.full((120, 160, 3), 128, np.uint8))
    with pytest.raises(UsageError, match="No face"):
        judging.look(number)
    with pytest.raises(UsageError, match="cannot be shown"):
        pictures.shown(b"not a picture", 100)
    assert size_of(pictures.shown(_png(camera_frame(5)), 64)) == (64, 36)


def test_doors_with_the_same_event_id_have_their_own_strangers(judging: Judging) -> None:
    one, other = (judging.visit(camera_frame(5), event_id="same", door=door) for door in ("north", "south"))
    files = [judging.save(number) for number in (one, other)]
    judging.undo(one)
    assert [file.exists() for file in files] == [False, True]


def test_forgotten_person_leaves_no_picture_and_no_verdict(judging: Judging) -> None:
    number = judging.visit(camera_frame(2), label="s1")
    judging.save(number, name="s2")
    with judging.site.database() as database:
        forgetting.forget(judging.site, database, "s2", who=WHO)
        found = visits.get(database, number)
    assert (found.label, found.verdict, found.has_picture) == (None, None, False)
    assert judging.files() == []


def test_export_of_a_person_opens_the_pictures_that_it_can(judging: Judging) -> None:
    number = judging.visit(camera_frame(5))
    for key, end in ((judging.key, "jpg"), (None, "sealed"), (b"x", "sealed")):
        file = io.BytesIO()
        with judging.site.database() as database:
            person_export.export_person(judging.site, database, "s1", file, who=WHO, picture_key=key)
        with ZipFile(file) as archive:
            (picture,) = (name for name in archive.namelist() if name.startswith("visits/"))
            assert picture == f"visits/{number}.{end}"
            assert end == "sealed" or size_of(archive.read(picture)) == (640, 360)


def test_photos_for_comparison(judging: Judging) -> None:
    photos = partial(pictures.photos_of, judging.site)
    assert (photos("s1"), photos("nobody"), photos("../s1"), photos(None)) == (["1.pgm", "2.pgm"], [], [], [])
