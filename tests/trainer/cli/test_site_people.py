"""`trainer site people` and its family do what the pages do."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import cv2
import pytest

from tests.fixtures.site import blank_photo, orl_file, orl_image, site_of_orl, two_faces
from tests.fixtures.trainer_command import TrainerCommand
from trainer.site import trail
from trainer.site.folder import Site
from trainer.site.photos import decoded


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return site_of_orl(tmp_path / "site", {"s1": range(1, 4), "s2": range(1, 3)})


def there(site: Site) -> dict[str, int]:
    return {folder.name: len(list(folder.iterdir())) for folder in sorted(site.photos.iterdir())}


def actions(site: Site) -> list[str]:
    with site.database() as database:
        return [change.action for change in reversed(trail.changes(database))]


def test_photos_are_added_moved_and_deleted(trainer: TrainerCommand, site: Site, tmp_path: Path) -> None:
    new = tmp_path / "new"
    new.mkdir()
    for file, data in {"1.pgm": orl_file(3, 1), "2.png": blank_photo()}.items():
        (new / file).write_bytes(data)
    code, found, _ = trainer("site", "add", site.path, "Anna", new)
    assert (code, "2.png: not usable for training: no face found" in found) == (0, True)
    assert there(site) == {"Anna": 2, "s1": 3, "s2": 2}
    assert trainer("site", "move-photo", site.path, "s1", "3.pgm", "Ben")[0] == 0
    assert trainer("site", "delete-photo", site.path, "s2", "2.pgm")[0] == 0
    assert there(site) == {"Anna": 2, "Ben": 1, "s1": 2, "s2": 1}
    assert "no face found" in trainer("site", "check", site.path)[1]
    assert trainer("site", "delete-photo", site.path, "s2", "../s1/1.pgm")[0] == 2
    assert actions(site) == ["add photo", "add photo", "move photo", "delete photo"]


def test_people_are_listed_renamed_merged_and_exported(trainer: TrainerCommand, site: Site, tmp_path: Path) -> None:
    assert trainer("site", "consent", site.path, "s1", "--date", "2026-05-04", "--note", "by letter")[0] == 0
    assert trainer("site", "consent", site.path, "s1", "--note", "by e-mail")[0] == 0, "the date stays"
    assert trainer("site", "rename", site.path, "s1", "Zoë")[0] == 0
    assert trainer("site", "rename", site.path, "s2", "Zoë")[0] == 2
    assert trainer("site", "merge", site.path, "s2", "Zoë")[0] == 0
    (line,) = trainer("site", "people", site.path, "--search", "zoe", "--json")[1].splitlines()
    person = json.loads(line)
    assert (person["name"], person["photos"], person["consent_date"], person["note"]) == ("Zoë", 5, "2026-05-04", "by e-mail")
    assert trainer("site", "export-person", site.path, "Zoë", "-o", tmp_path / "zoe.zip")[0] == 0
    with zipfile.ZipFile(tmp_path / "zoe.zip") as archive:
        assert json.loads(archive.read("person.json"))["former names"] == ["s1", "s2"]
    assert actions(site) == ["set consent", "set consent", "rename person", "merge people", "export person"]


def test_people_are_imported_and_forgotten(trainer: TrainerCommand, site: Site, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "people.zip", "w") as archive:
        for name, number in (("s1", 1), ("Olga", 5)):
            archive.writestr(f"all/{name}/9.pgm", orl_file(number, 9))
    code, _, said = trainer("site", "import", site.path, tmp_path / "people.zip")
    assert (code, "1 new person, 1 photo" in said, there(site)["s1"]) == (0, True, 3)
    assert trainer("site", "import", site.path, tmp_path / "people.zip", "--add")[0] == 0
    assert (there(site)["s1"], there(site)["Olga"]) == (4, 1)
    assert trainer("site", "forget", site.path, "Olga")[0] == 0
    assert "Olga" not in there(site)
    assert not [path for path in site.path.rglob("*") if path.is_file() and b"Olga" in path.read_bytes()]
    assert trainer("site", "forget", site.path, "Olga")[0] == 2


@pytest.mark.parametrize(("number", "person"), [(1, 17), (2, 11)])
def test_faces_are_counted_from_the_left_as_on_the_page(trainer: TrainerCommand, site: Site, number: int, person: int) -> None:
    (site.photos / "s1" / "both.png").write_bytes(two_faces(17, 11))
    assert trainer("site", "choose-face", site.path, "s1", "both.png", number)[0] == 0
    (file,) = (site.photos / "s1").glob("*-*.png")
    part = decoded(file.read_bytes())
    middle = part[part.shape[0] // 3 : part.shape[0] // 2, part.shape[1] // 3 : part.shape[1] // 2]
    original = cv2.resize(orl_image(person, 1), (180, 219), interpolation=cv2.INTER_CUBIC)
    assert cv2.matchTemplate(original, middle, cv2.TM_CCOEFF_NORMED).max() > 0.99
    code, _, said = trainer("site", "choose-face", site.path, "s1", "1.pgm", 2)
    assert (code, "no such face" in said) == (2, True)
