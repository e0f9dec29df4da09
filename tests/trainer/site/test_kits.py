"""The kits of a site as files: list, compare, delete, publish to doors, and the liveness models for the next kit."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from edge.errors import KitDamagedError, UsageError
from edge.kit import format as kit_format
from tests.fixtures import liveness
from tests.fixtures.kits import kit as small_kit
from tests.fixtures.kits import signing_keys, with_manifest
from tests.fixtures.trainer_command import TrainerCommand
from trainer.site import doors, jobs, kits, liveness_files, publishing
from trainer.site.doors import Door
from trainer.site.folder import Site
from trainer.site.publishing import Delivery


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A site with the kits one, two (signed, without anna) and three, which have these versions."""
    site = Site.create(tmp_path / "site")
    one = small_kit()
    two = with_manifest(one, "ours", kit_version=2, labels=["zoë", "ben", "çelik", "dora"])
    for time, (name, data) in enumerate({"one": one, "two": two, "three": with_manifest(one, kit_version=3)}.items()):
        path = site.kits / f"{name}.kit"
        path.write_bytes(data)
        os.utime(path, (1e9 + time, 1e9 + time))
    return site


def add_door(site: Site, tmp_path: Path, name: str = "north") -> Path:
    drop = tmp_path / "drops" / name / "door.kit"
    drop.parent.mkdir(parents=True)
    doors.add(site, Door(name=name, drop=drop), "anna")
    return drop


def actions(site: Site) -> list[tuple[str, ...]]:
    with site.database() as database:
        return [tuple(row) for row in database.execute("SELECT who, action, subject FROM trail ORDER BY id")]


def test_kits_are_listed_newest_first_with_their_facts(site: Site) -> None:
    found = kits.list_kits(site)
    assert [(kit.name, kit.version, kit.people, kit.signed) for kit in found] == [
        ("three", 3, 4, False),
        ("two", 2, 4, True),
        ("one", 1, 4, False),
    ]
    assert found[0].bytes == found[0].path.stat().st_size
    assert found[0].threshold == kit_format.read(found[0].path).manifest.thresholds.confidence
    assert (found[0].result, found[0].model) == (None, None)
    assert [kit.name for kit in kits.list_kits(site, 1)] == ["three"]


def test_replaced_kit_is_read_again(site: Site) -> None:
    assert kits.get_kit(site, "one").version == 1
    (site.kits / "one.kit").write_bytes(with_manifest(small_kit(), kit_version=77))
    assert kits.get_kit(site, "one").version == 77


@pytest.mark.parametrize("data", [b"", b"PK not a kit", b"x" * 1000, small_kit()[:5000]])
def test_damaged_kit_does_not_hide_the_others(site: Site, data: bytes) -> None:
    (site.kits / "broken.kit").write_bytes(data)
    found = {kit.name: kit for kit in kits.list_kits(site)}
    assert found["broken"].problem
    assert found.keys() == {"one", "two", "three", "broken"}
    assert kits.compare(found["broken"], found["one"]).removed == ()


def test_pipe_in_the_folder_is_no_kit(site: Site) -> None:
    os.mkfifo(site.kits / "pipe.kit")
    assert {kit.name: bool(kit.problem) for kit in kits.list_kits(site)}["pipe"]


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 99}', "[" * 100_000])
def test_damaged_result_does_not_hide_the_kit(site: Site, text: str) -> None:
    (site.kits / "one.json").write_text(text)
    assert (kits.get_kit(site, "one").result, kits.get_kit(site, "one").people) == (None, 4)


@pytest.mark.parametrize("name", ["none", "../models/x", "", ".hidden", "a/b", "one.kit"])
def test_unknown_kit_is_refused(site: Site, name: str) -> None:
    with pytest.raises(UsageError, match="no kit"):
        kits.get_kit(site, name)


def test_comparison_names_people_and_what_differs(site: Site) -> None:
    found = kits.compare(kits.get_kit(site, "one"), kits.get_kit(site, "two"))
    assert (found.added, found.removed) == (("zoë",), ("anna",))
    assert found.changes["signed"] == (False, True)
    assert found.changes.keys() == {"signed", "bytes"}
    assert kits.compare(found.older, kits.get_kit(site, "three")).changes == {}


def test_deleted_kit_leaves_no_file(site: Site) -> None:
    (site.kits / "one.json").write_text("{}")
    kits.delete_kit(site, "one", who="ben")
    assert sorted(path.name for path in site.kits.iterdir()) == ["three.kit", "two.kit"]
    assert actions(site)[-1] == ("ben", "delete kit", "one")


# --- Publish ---


def test_published_kit_is_at_the_door_and_in_the_record(site: Site, tmp_path: Path) -> None:
    drops = [add_door(site, tmp_path, name) for name in ("north", "south")]
    found = publishing.publish(site, "two", ["north", "south", "north"], who="ben")
    assert found == [Delivery(door="north"), Delivery(door="south")]
    data = kits.get_kit(site, "two").path.read_bytes()
    assert [drop.read_bytes() for drop in drops] == [data, data]
    assert stat.S_IMODE(drops[0].stat().st_mode) == 0o600
    at_doors = publishing.at_doors(site)
    assert {door: (one.kit, one.version) for door, one in at_doors.items()} == {"north": ("two", 2), "south": ("two", 2)}
    assert publishing.doors_with(kits.get_kit(site, "two"), at_doors) == ["north", "south"]
    assert publishing.doors_with_newer(kits.get_kit(site, "one"), at_doors) == ["north", "south"]
    assert stat.S_IMODE((site.path / "published.json").stat().st_mode) == 0o600
    assert actions(site)[-1] == ("ben", "publish kit", "two")


def test_mode_of_a_replaced_drop_file_stays(site: Site, tmp_path: Path) -> None:
    drop = add_door(site, tmp_path)
    drop.write_bytes(b"old")
    drop.chmod(0o640)
    publishing.publish(site, "one", ["north"], who="ben")
    assert stat.S_IMODE(drop.stat().st_mode) == 0o640


def test_one_bad_door_stops_all(site: Site, tmp_path: Path) -> None:
    good = add_door(site, tmp_path)
    gone = add_door(site, tmp_path, "gone")
    gone.parent.rmdir()
    doors.add(site, Door(name="plain"), "anna")
    with pytest.raises(UsageError, match=r"gone: There is no folder .* plain: This door has no file") as refused:
        publishing.publish(site, "one", ["north", "gone", "plain"], who="ben")
    assert refused.value.hint
    assert not good.exists()
    assert publishing.at_doors(site) == {}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_that_cannot_be_written_is_a_sentence(site: Site, tmp_path: Path) -> None:
    drop = add_door(site, tmp_path)
    drop.parent.chmod(0o500)
    with pytest.raises(UsageError, match="cannot be written"):
        publishing.publish(site, "one", ["north"], who="ben")


def test_folder_in_the_place_of_the_file_is_a_sentence(site: Site, tmp_path: Path) -> None:
    add_door(site, tmp_path).mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        publishing.publish(site, "one", ["north"], who="ben")


def add_failing_door(site: Site, tmp_path: Path) -> None:
    """Add a door whose folder is good, but the name of its file leaves no letter for a temporary file."""
    doors.add(site, Door(name="fails", drop=tmp_path / f"{'d' * 240}.kit"), "anna")


def test_failure_at_one_door_does_not_stop_the_others(site: Site, tmp_path: Path) -> None:
    drop = add_door(site, tmp_path)
    add_failing_door(site, tmp_path)
    found = publishing.publish(site, "one", ["fails", "north"], who="ben")
    assert [(one.door, bool(one.problem)) for one in found] == [("fails", True), ("north", False)]
    assert drop.exists()
    assert publishing.at_doors(site).keys() == {"north"}


def test_older_kit_and_second_kit_of_a_version_are_refused(site: Site, tmp_path: Path) -> None:
    drop = add_door(site, tmp_path)
    publishing.publish(site, "two", ["north"], who="ben")
    with pytest.raises(UsageError, match=r"newer kit.*Go back"):
        publishing.publish(site, "one", ["north"], who="ben")
    (site.kits / "other.kit").write_bytes(with_manifest(small_kit(), kit_version=2))
    with pytest.raises(UsageError, match="Another kit with the version 2"):
        publishing.publish(site, "other", ["north"], who="ben")
    assert drop.read_bytes() == kits.get_kit(site, "two").path.read_bytes()
    assert publishing.publish(site, "two", ["north"], who="ben") == [Delivery(door="north")], "the same kit again"


def test_newer_kit_from_elsewhere_is_not_replaced(site: Site, tmp_path: Path) -> None:
    drop = add_door(site, tmp_path)
    drop.write_bytes(with_manifest(small_kit(), kit_version=9))
    with pytest.raises(UsageError, match="newer kit"):
        publishing.publish(site, "three", ["north"], who="ben")


def test_damaged_kit_is_not_published(site: Site, tmp_path: Path) -> None:
    drop = add_door(site, tmp_path)
    data = bytearray((site.kits / "one.kit").read_bytes())
    data[-200] ^= 1
    (site.kits / "one.kit").write_bytes(data)
    with pytest.raises(KitDamagedError):
        publishing.publish(site, "one", ["north"], who="ben")
    assert not drop.exists()


def test_renamed_door_keeps_its_kit_and_a_removed_one_is_forgotten(site: Site, tmp_path: Path) -> None:
    drop = add_door(site, tmp_path)
    add_door(site, tmp_path, "south")
    publishing.publish(site, "one", ["north", "south"], who="ben")
    doors.change(site, "north", Door(name="main", drop=drop), "ben")
    doors.remove(site, "south", "ben")
    assert {door: one.kit for door, one in publishing.at_doors(site).items()} == {"main": "one"}
    publishing.publish(site, "two", ["main"], who="ben")
    assert len(json.loads((site.path / "published.json").read_text())["published"]) == 1


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 2}', '{"schema": 1, "published": [{"door": 1}]}'])
def test_damaged_record_is_one_sentence(site: Site, tmp_path: Path, text: str) -> None:
    add_door(site, tmp_path)
    (site.path / "published.json").write_text(text)
    with pytest.raises(UsageError, match="is damaged"):
        publishing.at_doors(site)
    with pytest.raises(UsageError, match="is damaged"):
        publishing.next_version(site)


def test_names_of_doors(site: Site, tmp_path: Path) -> None:
    for name in ("north", "a, b", "b"):
        add_door(site, tmp_path, name)
    doors.add(site, Door(name="plain"), "anna")
    assert publishing.named_doors(site, []) == ()
    assert publishing.named_doors(site, ["all"]) == ("north", "a, b", "b")
    assert publishing.named_doors(site, ["a, b", "north, b", "b"]) == ("a, b", "north", "b")
    with pytest.raises(UsageError, match="no door"):
        publishing.named_doors(site, ["a"])


# --- Liveness models ---


def test_liveness_model_is_stored_under_a_safe_name(site: Site) -> None:
    name = liveness_files.add(site, "../../zoom=2,7 x.onnx", liveness.network_file(), who="ben")
    assert liveness_files.names(site) == [name] == ["zoom_2_7_x.onnx"]
    assert (liveness_files.folder(site) / name).read_bytes() == liveness.network_file()
    assert actions(site)[-1] == ("ben", "add liveness model", name)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("x.onnx", b"", "not a readable ONNX file|input"),
        ("x.onnx", b"x" * 1000, "not a readable ONNX file"),
        ("x.onnx", small_kit(), "not a readable ONNX file"),
        ("x.onnx", liveness.network_file(operator="Erf"), "Erf"),
        ("x.exe", liveness.network_file(), "not a name"),
        (".onnx", liveness.network_file(), "not a name"),
        ("x.onnx", bytes((32 << 20) + 1), "larger than 32 MB"),
    ],
)
def test_other_files_are_no_liveness_model(site: Site, name: str, data: bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        liveness_files.add(site, name, data, who="ben")
    assert liveness_files.names(site) == []


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("", True),
        ("zoom=2.7,side=80,order=rgb,mean=127.5", True),
        ("zoom=2.7,", False),
        ("x.onnx", False),
        ("zoom=2.7,/etc/passwd", False),
        ("a=1," * 50, False),
    ],
)
def test_settings_of_a_liveness_model(text: str, valid: bool) -> None:
    assert bool(liveness_files.SETTINGS.fullmatch(text)) == valid


# --- A secret for a job ---


def test_too_long_secret_is_refused(site: Site) -> None:
    with pytest.raises(UsageError, match="not a key"):
        jobs.start(site, "export", [], secret=bytes(jobs.MAX_SECRET + 1))


@pytest.mark.slow
def test_process_that_reads_no_secret_says_why_it_ended(site: Site) -> None:
    with pytest.raises(UsageError, match="no model"):
        jobs.start(site, "export", ["release", str(site.path)], secret=signing_keys()[0])


# --- Commands ---


@pytest.mark.slow
def test_commands_do_what_the_page_does(site: Site, tmp_path: Path, trainer: TrainerCommand) -> None:
    drop = add_door(site, tmp_path)
    assert trainer("site", "publish-kit", site.path, "two", "north", "--who", "ben")[0] == 0
    assert drop.exists()
    assert trainer("site", "publish-kit", site.path, "one", "all")[0] == 2
    code, out, _ = trainer("site", "kits", site.path, "--json")
    listed = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [(kit["name"], kit["doors"]) for kit in listed] == [("three", []), ("two", ["north"]), ("one", [])]
    assert "at north" in trainer("site", "kits", site.path)[1]
    compared = json.loads(trainer("site", "compare-kits", site.path, "one", "two")[1])
    assert (compared["added"], compared["signed"]) == (["zoë"], [False, True])
    assert trainer("site", "delete-kit", site.path, "one")[0] == 0
    assert not (site.kits / "one.kit").exists()
    (tmp_path / "live.onnx").write_bytes(liveness.network_file())
    assert trainer("site", "add-liveness", site.path, tmp_path / "live.onnx")[0] == 0
    assert liveness_files.names(site) == ["live.onnx"]


@pytest.mark.slow
def test_command_fails_if_a_door_did_not_get_the_kit(site: Site, tmp_path: Path, trainer: TrainerCommand) -> None:
    add_failing_door(site, tmp_path)
    code, _, said = trainer("site", "publish-kit", site.path, "one", "fails")
    assert code != 0
    assert "cannot be written" in said
