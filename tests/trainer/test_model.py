"""The model file: what comes out is what went in; whatever happens to it, the answer is a model or a sentence."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge import files
from edge.errors import ModelError, TrainingError
from edge.vision.preprocess import FeatureSpec
from trainer.data.gallery import Gallery
from trainer.method.coding import Coding
from trainer.method.estimator import LCLRRDL
from trainer.method.solver import Schedule, Step
from trainer.model import ARRAYS, FORMAT, Model
from trainer.training import fit
from trainer.types import Array

ROOT = Path(__file__).parents[2]
SPEC = FeatureSpec(height=10, width=8)


def gallery(seed: int = 0, people: tuple[str, ...] = ("anna", "ben", "çelik")) -> Gallery:
    rng = np.random.default_rng(seed)
    faces = rng.integers(0, 256, (len(people), 10, 8))
    who = np.repeat(np.arange(len(people)), 5)
    images = np.clip(faces[who] + rng.normal(0, 15, (len(who), 10, 8)), 0, 255).astype(np.uint8)
    return Gallery(images=images, labels=np.array(people)[who], sources=tuple(f"{i}.png" for i in range(len(who))))


@pytest.fixture(scope="module")
def trained() -> Model:
    return fit(gallery(), SPEC, {"atoms_per_class": 3})


@pytest.fixture(scope="module")
def saved(trained: Model, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("model") / "door.npz"
    trained.save(path)
    return path.read_bytes()


def litter(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir() if file.name.endswith(".part")]


def assert_same(one: Model, other: Model) -> None:
    for name in ARRAYS:
        assert np.array_equal(getattr(one, name), getattr(other, name))
        assert getattr(one, name).dtype == getattr(other, name).dtype
    for name in ("spec", "coding", "labels", "parameters", "training", "fingerprint"):
        assert getattr(one, name) == getattr(other, name)


def rewrite(saved: bytes, path: Path, **changes: Any) -> Path:
    """The saved model with some parts replaced (None: left out). `header` may be a dictionary of changes."""
    with np.load(io.BytesIO(saved)) as archive:
        parts = {name: archive[name] for name in archive.files}
    if isinstance(changes.get("header"), dict):
        changes["header"] = np.array(json.dumps(json.loads(parts["header"].item()) | changes["header"]))
    parts = {name: value for name, value in (parts | changes).items() if value is not None}
    np.savez(path, **parts)
    return path


# --- Training ---


def test_fit_learns_the_people_of_a_gallery(trained: Model) -> None:
    photos = gallery()
    assert trained.labels == ("anna", "ben", "çelik")
    assert np.array_equal(trained.predict(photos.images), photos.labels)
    assert trained.training["accuracy"] == 1
    assert trained.fingerprint == photos.fingerprint
    assert np.array_equal(trained.crops, photos.images)
    assert np.array_equal(np.array(trained.labels)[trained.crop_people], photos.labels)
    assert trained.D.shape == (SPEC.length, 9)
    assert trained.W.shape == (3, 9)
    assert trained.D.dtype == trained.W.dtype == np.float32
    assert trained.atom_people.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_fit_recognises_new_photos(trained: Model) -> None:
    """Other noise on the same faces."""
    rng = np.random.default_rng(9)
    photos = gallery()
    noisy = np.clip(photos.images + rng.normal(0, 10, photos.images.shape), 0, 255).astype(np.uint8)
    assert np.array_equal(trained.predict(noisy), photos.labels)


@pytest.mark.parametrize("coding", ["l1", "l21"])
def test_a_model_is_its_estimator(coding: str) -> None:
    photos = gallery(1)
    model = fit(photos, SPEC, {"coding": coding, "random_state": 3})
    estimator = LCLRRDL(features=SPEC, coding=coding, random_state=3).fit(photos.images, photos.labels)
    wanted = estimator.decision_function(photos.images)
    assert np.abs(model.scores(photos.images) - wanted).max() < 1e-4 * np.abs(wanted).max()
    assert np.array_equal(model.predict(photos.images), estimator.predict(photos.images))
    assert model.coding == Coding.default(coding)
    assert model.parameters["coding"] == coding
    assert model.parameters["random_state"] == 3
    assert not {"features", "callback"} & set(model.parameters)


def test_the_order_of_the_photos_decides_nothing_about_names() -> None:
    photos = gallery()
    order = np.random.default_rng(0).permutation(len(photos.labels))
    shuffled = Gallery(
        images=photos.images[order],
        labels=photos.labels[order],
        sources=tuple(photos.sources[i] for i in order),
    )
    model = fit(shuffled, SPEC, {})
    assert model.labels == ("anna", "ben", "çelik")
    assert model.fingerprint == photos.fingerprint
    assert np.array_equal(model.predict(photos.images), photos.labels)
    assert np.array_equal(np.array(model.labels)[model.crop_people], shuffled.labels)


def test_the_callback_follows_training(trained: Model) -> None:
    steps: list[Step] = []
    model = fit(gallery(), SPEC, {"atoms_per_class": 3}, steps.append)
    assert len(steps) == model.training["iterations"]
    assert steps[-1].rank == model.training["rank"] > 0
    assert_same(model, trained)


def test_training_that_breaks_down_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise FloatingPointError("a matrix of the update is not positive definite")

    monkeypatch.setattr("trainer.method.estimator.solve", broken)
    with pytest.raises(TrainingError, match=r"Training failed.*positive definite.*gamma"):
        fit(gallery(), SPEC, {})
    with pytest.raises(TrainingError, match="only one class"):
        fit(gallery(people=("anna",)), SPEC, {})


@pytest.mark.parametrize(
    "parameters",
    [
        {"schedule": Schedule(rho=2.0, tol=1e-4)},
        {"coding": Coding(kind="l21", lam=3.0, iterations=7)},
        {"random_state": np.int64(3)},
        {"atoms_per_class": np.int64(3), "lam": np.float32(20)},
    ],
    ids=["schedule", "coding", "seed", "numpy numbers"],
)
def test_whatever_can_be_trained_can_be_saved(parameters: dict[str, Any], tmp_path: Path) -> None:
    model = fit(gallery(), SPEC, parameters)
    model.save(tmp_path / "door.npz")
    again = Model.load(tmp_path / "door.npz")
    assert again.coding == model.coding
    assert np.array_equal(again.scores(model.crops), model.scores(model.crops))


# --- The file ---


def test_a_saved_model_comes_back_equal(trained: Model, tmp_path: Path) -> None:
    trained.save(tmp_path / "door.npz")
    again = Model.load(tmp_path / "door.npz")
    assert_same(again, trained)
    assert np.array_equal(again.scores(trained.crops), trained.scores(trained.crops))
    again.save(str(tmp_path / "door.npz"))  # over itself, and by a path of another type
    assert_same(Model.load(str(tmp_path / "door.npz")), trained)
    assert [file.name for file in tmp_path.iterdir()] == ["door.npz"]


def test_the_name_of_the_file_is_kept_as_given(trained: Model, tmp_path: Path) -> None:
    """NumPy would add .npz by itself."""
    for name in ("door", "door.model", "a b ü.npz"):
        trained.save(tmp_path / name)
        assert_same(Model.load(tmp_path / name), trained)
    assert len(list(tmp_path.iterdir())) == 3


def test_nothing_in_the_file_is_a_pickle(saved: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(saved)) as archive:
        assert set(archive.namelist()) == {f"{name}.npy" for name in ("header", *ARRAYS)}
        for name in archive.namelist():
            with archive.open(name) as member:
                array = np.lib.format.read_array(member, allow_pickle=False)
            assert not array.dtype.hasobject


def test_the_header_says_what_the_model_is(trained: Model, saved: bytes) -> None:
    with np.load(io.BytesIO(saved), allow_pickle=False) as archive:
        header = json.loads(archive["header"].item())
    assert header["format"] == FORMAT
    assert FeatureSpec(**header["spec"]) == trained.spec
    assert Coding(**header["coding"]) == trained.coding
    assert header["labels"] == ["anna", "ben", "çelik"]
    assert header["fingerprint"] == gallery().fingerprint
    assert header["parameters"]["atoms_per_class"] == 3
    assert header["training"]["accuracy"] == 1
    assert set(header["training"]["versions"]) >= {"lclrr-edge", "numpy", "scipy", "scikit-learn"}


def test_the_facts_name_nobody(trained: Model) -> None:
    facts = json.dumps(trained.facts())
    assert json.loads(facts)["people"] == 3
    assert not [name for name in trained.labels if name in facts]


def test_the_file_is_private(trained: Model, tmp_path: Path) -> None:
    path = tmp_path / "door.npz"
    path.write_bytes(b"old")
    path.chmod(0o644)
    before = os.umask(0)
    try:
        trained.save(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("version", [0, FORMAT + 1, "1", None, -1, [1]])
def test_another_format_is_refused(version: Any, saved: bytes, tmp_path: Path) -> None:
    path = rewrite(saved, tmp_path / "door.npz", header={"format": version})
    with pytest.raises(ModelError, match=r"format .*trainer fit"):
        Model.load(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot be opened \(No such file.*Check the path"):
        Model.load(tmp_path / "door.npz")
    with pytest.raises(ModelError, match="cannot be opened"):
        Model.load(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ModelError, match="cannot be opened"):
        Model.load(tmp_path / "file" / "door.npz")


def other_archive(path: Path) -> None:
    np.savez(path, images=np.zeros((2, 3, 3)), labels=np.zeros(2))


def plain_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")


def raw_header(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header", "{}")


@pytest.mark.parametrize(
    "write",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"\x89PNG and so on" * 100),
        lambda path: np.save(path.open("wb"), np.zeros(3)),
        other_archive,
        plain_zip,
        raw_header,
    ],
    ids=["empty", "picture", "one array", "gallery", "zip", "raw header"],
)
def test_another_kind_of_file_is_refused(write: Callable[[Path], object], tmp_path: Path) -> None:
    write(tmp_path / "door.npz")
    with pytest.raises(ModelError, match=r"not a model file|damaged"):
        Model.load(tmp_path / "door.npz")


# --- Damage ---


def load_or_refuse(path: Path, trained: Model) -> bool:
    """True if it opened, and then it must work; ModelError is the only other way out."""
    try:
        model = Model.load(path)
    except ModelError:
        return False
    assert model.scores(trained.crops[:2]).shape == (2, 3)
    assert len(model.predict(model.crops)) == len(model.crops)
    assert np.array(model.labels)[model.atom_people].shape == (model.D.shape[1],)
    return True


def test_a_shortened_file_is_refused(trained: Model, saved: bytes, tmp_path: Path) -> None:
    path = tmp_path / "door.npz"
    for length in [*range(0, len(saved) - 1, 199), *range(len(saved) - 40, len(saved))]:
        path.write_bytes(saved[:length])
        assert not load_or_refuse(path, trained), f"{length} bytes"


def interesting(saved: bytes) -> list[int]:
    """Positions of zip and .npy headers, where no checksum watches, and a sample of all others."""
    found = set(range(0, len(saved), 499))
    for mark, length in ((b"PK\x03\x04", 30), (b"PK\x01\x02", 46), (b"PK\x05\x06", 22), (b"\x93NUMPY", 80)):
        start = saved.find(mark)
        while start >= 0:
            found.update(range(start, min(start + length, len(saved))))
            start = saved.find(mark, start + 1)
    return sorted(found)


@pytest.mark.parametrize("damage", [0xFF, 0x01, 0x20])
def test_a_changed_byte_gives_a_model_or_a_sentence(damage: int, trained: Model, saved: bytes, tmp_path: Path) -> None:
    path = tmp_path / "door.npz"
    refused = 0
    positions = interesting(saved)[:: 1 if damage == 0xFF else 5]
    for position in positions:
        spoilt = bytearray(saved)
        spoilt[position] ^= damage
        path.write_bytes(spoilt)
        refused += not load_or_refuse(path, trained)
    assert refused > len(positions) / 2


@pytest.mark.parametrize("seed", range(3))
def test_a_torn_block_gives_a_model_or_a_sentence(seed: int, trained: Model, saved: bytes, tmp_path: Path) -> None:
    """Blocks of the disk that are zero, random, or from elsewhere in the file."""
    rng = np.random.default_rng(seed)
    path = tmp_path / "door.npz"
    for i in range(60):
        spoilt = bytearray(saved)
        size = int(rng.integers(1, 512))
        start, source = rng.integers(0, len(saved) - size, 2)
        block = (bytes(size), rng.bytes(size), saved[source : source + size])[i % 3]
        spoilt[start : start + size] = block
        path.write_bytes(spoilt)
        load_or_refuse(path, trained)


def test_an_encrypted_archive_is_refused(saved: bytes, tmp_path: Path) -> None:
    spoilt = bytearray(saved)
    spoilt[saved.find(b"PK\x03\x04") + 6] |= 1
    spoilt[saved.find(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "door.npz").write_bytes(spoilt)
    with pytest.raises(ModelError, match="damaged"):
        Model.load(tmp_path / "door.npz")


def test_an_array_larger_than_memory_is_refused(saved: bytes, tmp_path: Path) -> None:
    giant = io.BytesIO()
    np.lib.format.write_array_header_1_0(giant, {"descr": "<f4", "fortran_order": False, "shape": (10**6, 10**7)})
    path = tmp_path / "door.npz"
    with zipfile.ZipFile(io.BytesIO(saved)) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            new.writestr(name, giant.getvalue() if name == "D.npy" else old.read(name))
    with pytest.raises(ModelError, match="damaged"):
        Model.load(path)


def test_a_pickle_in_the_file_is_never_opened(saved: bytes, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
            return os.mkdir, (str(tmp_path / "boom"),)

    for name in ("header", "D"):
        parts = {name: np.array(Bomb(), dtype=object)}
        with pytest.raises(ModelError, match="damaged"):
            Model.load(rewrite(saved, tmp_path / "door.npz", **parts))
    assert not (tmp_path / "boom").exists()


@pytest.mark.parametrize("header", ["[1]", "null", "3", '"text"', "{", "", "[" * 100_000, "{}"])
def test_a_header_of_another_kind_is_refused(header: str, saved: bytes, tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        Model.load(rewrite(saved, tmp_path / "door.npz", header=np.array(header)))


WRONG: dict[str, Callable[[dict[str, Array]], dict[str, Any]]] = {
    "no D": lambda a: {"D": None},
    "no crops": lambda a: {"crops": None},
    "D of one axis": lambda a: {"D": a["D"][:, 0]},
    "D a number": lambda a: {"D": np.array(1.0)},
    "D of text": lambda a: {"D": a["D"].astype(str)},
    "D complex": lambda a: {"D": a["D"] * 1j},
    "D not finite": lambda a: {"D": a["D"] * np.nan},
    "D short": lambda a: {"D": a["D"][1:]},
    "W of text": lambda a: {"W": a["W"].astype(str)},
    "W not finite": lambda a: {"W": a["W"] * np.inf},
    "W of two people": lambda a: {"W": a["W"][:2]},
    "no atoms": lambda a: {"D": a["D"][:, :0], "W": a["W"][:, :0], "atom_people": a["atom_people"][:0]},
    "crops a number": lambda a: {"crops": np.array(1)},
    "crops of another size": lambda a: {"crops": a["crops"][:, 1:]},
    "crops of fractions": lambda a: {"crops": a["crops"] / 255},
    "fewer crops": lambda a: {"crops": a["crops"][1:]},
    "an atom of nobody": lambda a: {"atom_people": a["atom_people"] + 1},
    "a negative person": lambda a: {"atom_people": a["atom_people"] - 1},
    "people in fractions": lambda a: {"atom_people": a["atom_people"] * 0.5},
    "a crop of nobody": lambda a: {"crop_people": a["crop_people"] + 1},
    "people by name": lambda a: {"crop_people": a["crop_people"].astype(str)},
    "labels in a word": lambda a: {"header": {"labels": "abc"}},
    "labels of numbers": lambda a: {"header": {"labels": [1, 2, 3]}},
    "labels nested": lambda a: {"header": {"labels": [["a"], ["b"], ["c"]]}},
    "a label twice": lambda a: {"header": {"labels": ["a", "b", "b"]}},
    "two labels": lambda a: {"header": {"labels": ["a", "b"]}},
    "no labels": lambda a: {"header": {"labels": None}},
    "spec a list": lambda a: {"header": {"spec": [10, 8]}},
    "spec of another size": lambda a: {"header": {"spec": {"height": 12, "width": 8}}},
    "spec unknown": lambda a: {"header": {"spec": {"height": 10, "width": 8, "depth": 3}}},
    "spec text": lambda a: {"header": {"spec": {"height": "10", "width": 8}}},
    "no alignment": lambda a: {"header": {"alignment": None}},
    "an alignment of another kind": lambda a: {"header": {"alignment": "six-points"}},
    "coding unknown": lambda a: {"header": {"coding": {"kind": "l3"}}},
    "coding text": lambda a: {"header": {"coding": {"lam": "much"}}},
    "coding nothing": lambda a: {"header": {"coding": None}},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_parts_that_do_not_fit_are_refused(
    wrong: Callable[[dict[str, Array]], dict[str, Any]], saved: bytes, tmp_path: Path
) -> None:
    with np.load(io.BytesIO(saved)) as archive:
        arrays = {name: archive[name] for name in ARRAYS}
    with pytest.raises(ModelError):
        Model.load(rewrite(saved, tmp_path / "door.npz", **wrong(arrays)))


# --- Writing ---


@pytest.fixture
def old(tmp_path: Path) -> tuple[Path, Model]:
    """A folder with a model in it that must survive."""
    model = fit(gallery(7), SPEC, {"coding": "l21"})
    model.save(tmp_path / "door.npz")
    return tmp_path / "door.npz", model


def full_disk(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("step", ["replace", "fsync", "fchmod"])
def test_a_write_that_fails_keeps_the_old_model(
    step: str, old: tuple[Path, Model], trained: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, model = old
    with monkeypatch.context() as patch:
        patch.setattr(os, step, full_disk)
        with pytest.raises(ModelError, match=r"cannot be written \(No space left.*check free space and permissions"):
            trained.save(path)
    assert_same(Model.load(path), model)
    with monkeypatch.context() as patch:
        patch.setattr(os, step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            trained.save(path)
    assert_same(Model.load(path), model)
    assert litter(path.parent) == []


def test_a_disk_that_fills_up_keeps_the_old_model(
    old: tuple[Path, Model], trained: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, model = old
    real: Callable[..., Any] = os.fdopen

    class Full(io.BufferedWriter):
        def write(self, data: Any) -> int:
            super().write(bytes(data)[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def opened(handle: int, mode: str) -> Any:
        return Full(real(handle, mode).detach())

    monkeypatch.setattr(os, "fdopen", opened)
    with pytest.raises(ModelError, match="No space left"):
        trained.save(path)
    assert_same(Model.load(path), model)
    assert litter(path.parent) == []


def test_the_new_bytes_are_on_the_disk_before_the_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this order a pulled plug leaves an empty file under the good name."""
    order: list[str] = []
    fsync, replace = os.fsync, os.replace

    def sync(handle: int) -> None:
        order.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        fsync(handle)

    def rename(source: Any, target: Any) -> None:
        order.append("rename")
        assert Path(source).read_bytes() == b"new"
        assert Path(source).parent == Path(target).parent  # a rename is atomic only inside one file system
        replace(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", rename)
    files.write_atomically(tmp_path / "file", b"new")
    assert order == ["file", "rename", "folder"]


def test_a_folder_that_cannot_be_synced_leaves_the_new_model(
    old: tuple[Path, Model], trained: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = old
    fsync = os.fsync

    def only_files(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", only_files)
    with suppress(ModelError):
        trained.save(path)
    assert_same(Model.load(path), trained)
    assert litter(path.parent) == []


def test_a_place_that_cannot_be_written_is_a_sentence(trained: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = r"cannot be written .*Choose another path"
    with pytest.raises(ModelError, match=sentence):
        trained.save(tmp_path / "missing" / "door.npz")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ModelError, match=sentence):
        trained.save(tmp_path / "file" / "door.npz")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ModelError, match=sentence):
        trained.save(tmp_path / "folder")
    assert litter(tmp_path) == []
    assert (tmp_path / "folder").is_dir()

    def forbidden(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(files.tempfile, "mkstemp", forbidden)
    with pytest.raises(ModelError, match="Permission denied"):
        trained.save(tmp_path / "door.npz")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_a_sentence(trained: Model, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(ModelError, match=r"cannot be written \(Permission denied"):
            trained.save(tmp_path / "door.npz")
    finally:
        tmp_path.chmod(0o700)


CRASH = """
import os, random, signal, sys, time
from pathlib import Path
from trainer.model import Model

folder = Path(sys.argv[1])
path = folder / "door.npz"
models = [Model.load(folder / name) for name in ("one.npz", "two.npz")]
random.seed(0)
mid_write, seen = 0, set()
for kill in range(60):
    child = os.fork()
    if not child:
        while True:
            for model in models:
                model.save(path)
    while not list(folder.glob(".door.npz.*.part")):
        pass  # until a write has begun, however slow the machine
    time.sleep(random.choice([0, random.uniform(0, 0.02)]))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    seen.add(Model.load(path).fingerprint)
    parts = list(folder.glob(".door.npz.*.part"))
    mid_write += bool(parts)
    for part in parts:
        part.unlink()
    if kill >= 15 and mid_write >= 3:
        break
sys.exit(0 if mid_write and seen <= {model.fingerprint for model in models} else f"{mid_write} {seen}")
"""


def test_a_killed_writer_leaves_the_old_or_the_new_model(tmp_path: Path) -> None:
    """kill -9 in the middle of saving, a few dozen times; some of the blows must have hit a write."""
    big = FeatureSpec(height=100, width=80, kind="pixels", cell=4)
    for seed, name in enumerate(["one.npz", "two.npz"]):
        small = fit(gallery(seed), SPEC, {})
        crops = np.repeat(np.repeat(np.repeat(small.crops, 10, axis=1), 10, axis=2), 8, axis=0)
        Model(
            spec=big,
            alignment=small.alignment,
            coding=small.coding,
            labels=small.labels,
            D=np.full((big.length, small.D.shape[1]), 0.05, np.float32),
            W=small.W,
            parts=None,
            W_parts=small.W_parts,
            atom_people=small.atom_people,
            crops=crops,
            crop_people=np.repeat(small.crop_people, 8),
            parameters={},
            calibration=None,
            training={},
            fingerprint=name,
        ).save(tmp_path / name)
    Model.load(tmp_path / "one.npz").save(tmp_path / "door.npz")
    run = subprocess.run([sys.executable, "-c", CRASH, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr


def test_scores_are_the_classifier_on_the_codes(trained: Model) -> None:
    rows = SPEC.vectors(trained.crops)
    assert np.array_equal(trained.scores(trained.crops), (trained.W @ trained.coder.code(rows.T)).T)
    assert trained.scores(trained.crops[:0]).shape == (0, 3)
