"""Methods and data sets of one's own in the tables: how they are named, what results depend on, and errors."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from joblib.externals.loky import get_reusable_executor

from edge.errors import EdgeError, GalleryError, UsageError
from tests.fixtures.data import faces
from tests.fixtures.trainer_command import TrainerCommand
from trainer.baselines.registry import method_of
from trainer.paper import tables, typeset
from trainer.paper.experiments import Cell, Data, OwnCell, load_data, tuned_parameters
from trainer.paper.tables import plan, select_cells, select_methods
from trainer.paper.tuned import source_cell, tune_all
from trainer.paper.typeset import Mean, Results

METHOD = """
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar
import numpy as np
from trainer import LCLRRDL
from trainer.method.base import FaceClassifier
{imports}

@dataclass(eq=False, repr=False)
class Nearest_Mean(FaceClassifier):
    grid: ClassVar = {grid}
    _: KW_ONLY
    power: float = 1.0

    def _learn(self, samples, labels):
        self.means_ = np.stack([samples[:, labels == c].mean(axis=1) for c in range(len(self.classes_))])

    def _scores(self, samples):
        return np.sign(self.means_ @ samples) * np.abs(self.means_ @ samples) ** self.power

class Other:
    pass
"""
NUMBERS = itertools.count()


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Return a function that writes a module into the working directory, with a name that no other test uses."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def write(text: str = METHOD, imports: str = "", grid: str = '{"power": (1.0, 3.0)}') -> str:
        name = f"own_{next(NUMBERS)}"
        Path(f"{name}.py").write_text(text.replace("{imports}", imports).replace("{grid}", grid))
        importlib.invalidate_caches()
        return name

    yield write
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    images, labels = faces(people=3, photos=6)
    np.savez(tmp_path / "my_faces.npz", images=images, labels=np.array(["anna", "ben", "carl"])[labels])
    return tmp_path


def test_own_method_is_found_by_its_path(write: Callable[..., str]) -> None:
    name = f"{write()}:Nearest_Mean"
    method = method_of(name)
    assert (method.title, method.atoms, method.usual) == ("Nearest_Mean", False, {"power": 1.0})
    images, labels = faces()
    X = images.reshape(len(images), -1)
    assert method.estimator(**method.settings(5)).fit(X, labels).score(X, labels) > 0.5
    assert select_methods(f"srw,{name}") == ("srw", name)
    assert method_of("trainer.method.estimator:LCLRRDL").settings(5) == {"atoms_per_class": 5}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no_such_module:Method", "cannot be imported .ModuleNotFoundError"),
        ("{}:Missing", "cannot be imported .AttributeError"),
        (":Method", "cannot be imported .ValueError"),
        ("{}:Other", "is not a method"),
        ("{}:np", "is not a method"),
        ("trainer.data.gallery:Gallery", "is not a method"),
    ],
)
def test_wrong_path_of_a_method_is_an_error(write: Callable[..., str], name: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        method_of(name.format(write()))


def test_method_that_fails_on_import_or_has_a_wrong_grid_is_an_error(write: Callable[..., str]) -> None:
    with pytest.raises(UsageError, match=r"cannot be imported \(ZeroDivisionError: division by zero\)"):
        method_of(f"{write('1 / 0')}:Nearest_Mean")
    with pytest.raises(UsageError, match="has no weight, but its grid has"):
        method_of(f"{write(grid=str({'weight': (1.0,)}))}:Nearest_Mean")


def test_digest_of_an_own_method_covers_its_modules(
    write: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its own module, a module beside it, the trainer's code behind `from trainer import`; but not comments."""
    Path("beside.py").write_text("import unrelated\nEXPONENT = 2\n")
    Path("unrelated.py").write_text("import numpy\n")
    module = write(imports="import beside")
    digest = tables.code_digest.__wrapped__
    name = f"{module}:Nearest_Mean"
    method_of(name)
    seen = {digest(name)}
    own = Path(f"{module}.py")
    own.write_text(own.read_text() + "# a comment\n")
    assert digest(name) in seen
    own.write_text(own.read_text() + "MORE = 1\n")
    for file in (Path("beside.py"), Path("unrelated.py")):
        assert digest(name) not in seen
        seen.add(digest(name))
        file.write_text(file.read_text() + "MORE = 1\n")
    assert digest(name) not in seen
    seen.add(digest(name))
    copy = tmp_path / "copy" / "solver.py"
    copy.parent.mkdir()
    solver = sys.modules["trainer.method.solver"]
    copy.write_text(Path(str(solver.__file__)).read_text() + "MORE = 1\n")
    monkeypatch.setattr(solver, "__file__", str(copy))
    assert digest(name) not in seen


def test_digest_covers_relative_imports_of_a_package(write: Callable[..., str]) -> None:
    package = Path(f"package_{next(NUMBERS)}")
    (package / "inner").mkdir(parents=True)
    for place in (package, package / "inner"):
        (place / "__init__.py").touch()
    (package / "core.py").write_text("EXPONENT = 2\n")
    (package / "inner" / "own.py").write_text(
        METHOD.replace("{imports}", "from ..core import EXPONENT").replace("{grid}", "{}")
    )
    write()
    name, digest = f"{package}.inner.own:Nearest_Mean", tables.code_digest.__wrapped__
    method_of(name)
    before = digest(name)
    (package / "core.py").write_text("EXPONENT = 3\n")
    assert digest(name) != before


def test_own_cell_is_read_from_a_file(folder: Path) -> None:
    cells = select_cells("ar-scarf,my_faces.npz:4,my_faces.npz:2,my_faces.npz:4", folder)
    assert [cell.name for cell in cells] == ["ar-scarf", "my_faces.npz:4", "my_faces.npz:2"]
    cell = cells[1]
    assert (cell.size, cell.atoms, source_cell(cell)) == ((3, 4), 5, cell)
    (data,) = load_data(folder, cells[1:]).values()
    assert data.labels.tolist() == [0] * 6 + [1] * 6 + [2] * 6
    train, test = cell.split(data.labels, np.random.default_rng(0))
    assert (len(train), len(test)) == (12, 6)
    assert cell.spec("pixels").vectors(data.images).shape == (18, 480)


def test_key_depends_on_the_shape_of_own_images(folder: Path) -> None:
    """Pixels in another order of axes have the same bytes."""

    def key() -> str:
        cells = select_cells("my_faces.npz:4", folder)
        return plan(load_data(folder, cells), methods=("srw",), cells=cells, splits=1)[0].key

    before = key()
    images, labels = faces(people=3, photos=6)
    np.savez(folder / "my_faces.npz", images=images.reshape(-1, 20, 24), labels=labels)
    assert key() != before


def test_unusable_own_data_is_an_error(folder: Path) -> None:
    images, labels = faces(people=1, photos=4)
    np.savez(folder / "one.npz", images=images, labels=labels)
    np.savez(folder / "bright.npz", images=images.astype(np.uint16) + 300, labels=[0, 0, 1, 1])
    np.savez(folder / "empty.npz", pictures=images)
    (folder / "text.npz").write_text("no archive")
    wrong: list[tuple[str, type[EdgeError], str]] = [
        ("gone.npz:2", GalleryError, "There is no file"),
        ("one.npz:2", GalleryError, "fewer than two people"),
        ("bright.npz:1", GalleryError, "more than 8 bits"),
        ("empty.npz:1", GalleryError, "lacks the arrays images and labels"),
        ("text.npz:1", GalleryError, "is not a readable .npz file"),
        ("my_faces.npz:6", UsageError, "only 6 images"),
        ("my_faces.npz:0", UsageError, "no cell"),
        ("my_faces.npz:", UsageError, "no cell"),
        ("my_faces:3", UsageError, "no cell"),
        ("my_faces.npz", UsageError, "no cell"),
    ]
    for name, kind, says in wrong:
        with pytest.raises(kind, match=says):
            select_cells(name, folder)


def test_own_names_are_escaped_in_latex(write: Callable[..., str]) -> None:
    row = f"{write()}:Nearest_Mean"
    cell = OwnCell(dataset="my_faces.npz", per_class=4, height=24, width=20, people=3)
    cells = (cell, Cell(dataset="ar"))
    accuracy = {(row, cell.name): Mean((49.0, 50.0, 51.0)), (row, "ar-sunglasses"): Mean((59.0, 60.0, 61.0))}
    results = Results(rows=(row,), cells=cells, accuracy=accuracy, seconds={})
    assert r"\caption{my\_faces.npz. Percent" in typeset.latex(results)
    assert r"Nearest\_Mean & $\mathbf{50.0} \pm 1.0$ \\" in typeset.latex(results)
    assert "| Nearest_Mean | **60.0** ± 1.0 |" in typeset.markdown(results)
    assert f"Own data,my_faces.npz:4,{row},,50.000,1.000,,3" in typeset.as_csv(results)


def test_own_method_is_tuned_on_own_data(write: Callable[..., str], folder: Path) -> None:
    name, cells = f"{write()}:Nearest_Mean", select_cells("my_faces.npz:4", folder)
    data: dict[str, Data] = load_data(folder, cells)
    assert tune_all(data, folder / "tuned.toml", methods=(name,), cells=cells, folds=2, jobs=1) == []
    assert tuned_parameters(cells[0], "pixels", name, folder / "tuned.toml")["power"] in (1.0, 3.0)
    (job,) = plan(data, methods=(name,), cells=cells, splits=1, parameters=folder / "tuned.toml")
    assert job.tuned


@pytest.mark.slow
def test_command_measures_an_own_method_again_if_it_changes(
    write: Callable[..., str], folder: Path, trainer: TrainerCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two processes, which import the method themselves."""
    get_reusable_executor().shutdown(wait=True)  # processes of an earlier test work in another folder
    monkeypatch.setattr(tables, "code_digest", tables.code_digest.__wrapped__)
    module = write()
    words = ("tables", "--data", ".", "--cells", "my_faces.npz:4", "--methods", f"{module}:Nearest_Mean", "--splits", "2")
    code, out, err = trainer(*words, "--jobs", "2")
    assert code == 0, err
    assert "| Nearest_Mean | **" in out
    measured = Path("results/runs.jsonl")
    assert len(measured.read_text().splitlines()) == 2
    assert trainer(*words, "--jobs", "1")[0] == 0
    assert len(measured.read_text().splitlines()) == 2, "nothing was missing"
    Path(f"{module}.py").write_text(Path(f"{module}.py").read_text() + "MORE = 1\n")
    assert trainer(*words, "--jobs", "1")[0] == 0
    assert len(measured.read_text().splitlines()) == 4
