"""Mutation testing: put one small fault at a time into a copy of the code, and see whether the tests of that code fail.

A mutant is killed if a test fails or the run exceeds its time limit. It survives if all tests pass. A survivor is either a
gap in the tests or a mutant that behaves like the original. The working tree is never changed. The exit code is 0 when all
mutants were run, 1 when the unmutated code does not pass, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple


class Target(NamedTuple):
    modules: tuple[str, ...]
    tests: tuple[str, ...]
    select: str = ""
    """The -k expression of pytest. It leaves out slow tests."""


# Quick tests come first, because the first failure ends a run.
TARGETS = {
    "decision": Target(
        tuple(f"edge/decision/{name}.py" for name in ("door", "visit", "looks", "track", "doorlist")),
        tuple(f"tests/edge/decision/test_{name}.py" for name in ("doorlist", "track", "challenge", "looks", "door")),
    ),
    "guard": Target(
        ("edge/kit/guard.py",),
        ("tests/edge/kit/test_guard.py", "tests/edge/kit/test_format.py"),
        "not changed_byte and not bomb",  # hashes and lengths, which are checked before the graph
    ),
    "audit": Target(("edge/audit/log.py",), ("tests/edge/audit/test_log.py", "tests/edge/audit/test_gate.py"), "not kills"),
    "solver": Target(
        ("trainer/method/solver.py",), ("tests/trainer/method/test_solver.py", "tests/trainer/method/test_prox.py")
    ),
}
COPIED = ("edge", "trainer", "export", "tests", "scripts", "docs", "pyproject.toml")
MIN_TIMEOUT, TIMEOUT_FACTOR = 60.0, 10.0
MEMORY_BYTES = 8 << 30  # address space of one test run: a mutant may loop and allocate without end
# For Hypothesis: the same examples in every run, and no search for a smaller example after a failure.
PROFILE = """from hypothesis import HealthCheck, Phase, settings
settings.register_profile("mutation", deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.too_slow], phases=[Phase.explicit, Phase.generate, Phase.target])
"""
PYTEST = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=short"]
PYTEST += ["-p", "mutation_profile", "--hypothesis-profile=mutation"]  # loaded after the profile of tests/conftest.py

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.LtE, ast.Gt: ast.GtE, ast.Eq: ast.NotEq}
COMPARISONS |= {ast.Is: ast.IsNot, ast.In: ast.NotIn}
COMPARISONS |= {right: left for left, right in COMPARISONS.items()}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Sub: ast.Add}
ARITHMETIC |= {ast.Mult: ast.Div, ast.Div: ast.Mult}
LOGGING = ("log.", "logger.", "logging.")

Node = ast.expr | ast.stmt


class Mutant(NamedTuple):
    file: str
    function: str
    line: int
    start: int
    """The bytes of the file from `start` to `end` are replaced by `new`."""
    end: int
    new: str
    before: str
    """The source lines concerned, without line breaks and indentation."""
    after: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.function})  {self.before}  ->  {self.after}"


def changes(node: ast.AST) -> Iterator[tuple[Node, str]]:
    """Yield all mutations of one node, without its children: the part to replace, and the new source."""
    match node:
        case ast.Compare(ops=ops):
            for i, op in enumerate(ops):
                yield changed(node, ops=[*ops[:i], COMPARISONS[type(op)](), *ops[i + 1 :]])
        case ast.BinOp(left=ast.Constant(value=str())) | ast.BinOp(right=ast.Constant(value=str())):
            pass  # text
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in ARITHMETIC:
            yield changed(node, op=ARITHMETIC[type(op)]())
        case ast.BoolOp(op=op):
            yield changed(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, f"({ast.unparse(operand)})"
        case ast.Constant(value=bool() as value):
            yield node, repr(not value)
        case ast.Constant(value=int() | float() as value) if value + 1 != value:
            yield node, "0" if value == 1 else repr(value + 1)
        case ast.Return(value=ast.expr() as result) if ast.unparse(result) != "None":
            yield node, "return None"
        case ast.Raise() | ast.Expr(value=ast.Call()):
            yield node, "pass"
        case ast.If(test=test) | ast.IfExp(test=test):
            match test:
                case ast.UnaryOp(op=ast.Not()):
                    pass  # the mutation of the test itself is already its negation
                case ast.Compare(ops=[op]) if not isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
                    pass  # likewise
                case _:
                    yield test, ast.unparse(ast.UnaryOp(ast.Not(), test))


def changed(node: Node, **fields: Any) -> tuple[Node, str]:
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return node, ast.unparse(other)


def children(node: ast.AST) -> Iterable[ast.AST]:
    """Return the child nodes to mutate: no annotations, decorators or error messages."""
    match node:
        case ast.FunctionDef(args=args, body=body) | ast.AsyncFunctionDef(args=args, body=body):
            return [*args.defaults, *filter(None, args.kw_defaults), *body]
        case ast.ClassDef(body=body):
            return body
        case ast.AnnAssign(value=value):
            return [value] if value else []
        case ast.Raise():
            return []
    return ast.iter_child_nodes(node)


def is_skipped(node: ast.AST) -> bool:
    match node:
        case ast.JoinedStr():  # mostly messages; before Python 3.12 the parser gives no positions inside them
            return True
        case ast.Expr(value=ast.Call(func=function)):
            return ast.unparse(function).startswith(LOGGING)
        case ast.Assign(targets=[ast.Name(id="__all__")]) | ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
    return False


def mutants_of(file: str, source: bytes) -> list[Mutant]:
    lines = source.splitlines(keepends=True)
    offsets = [sum(map(len, lines[:i])) for i in range(len(lines) + 1)]  # in bytes, like the positions of the parser

    def walk(node: ast.AST, scope: str, returns_none: bool) -> Iterator[Mutant]:
        if is_skipped(node):
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            scope = f"{scope}.{node.name}".removeprefix(".")
            returns_none = isinstance(returns := getattr(node, "returns", None), ast.Constant) and returns.value is None
        for part, new in changes(node):
            if isinstance(part, ast.Return) and returns_none:
                continue
            end_line, end_column = part.end_lineno or 0, part.end_col_offset or 0  # from a parser they are never None
            first, last = offsets[part.lineno - 1], offsets[end_line]
            start, end = first + part.col_offset, offsets[end_line - 1] + end_column
            after = source[first:start] + new.encode() + source[end:last]
            shown = [" ".join(text.decode().split()) for text in (source[first:last], after)]
            yield Mutant(file, scope or "module", part.lineno, start, end, new, *shown)
        for child in children(node):
            yield from walk(child, scope, returns_none)

    return sorted(walk(ast.parse(source), "", False), key=lambda mutant: (mutant.start, mutant.end, mutant.new))


def draw(root: Path, target: Target, count: int, seed: int) -> list[Mutant]:
    """Draw `count` mutants: one of each function in turn, then a second one of each, and so on.

    The order depends on the seed and the names of the functions only: code that was moved gets the same mutants.
    """
    everything = [mutant for file in target.modules for mutant in mutants_of(file, (root / file).read_bytes())]
    functions: dict[tuple[str, str], list[Mutant]] = {}
    for mutant in everything:
        functions.setdefault((mutant.file, mutant.function), []).append(mutant)
    ranked: list[tuple[int, float, Mutant]] = []
    for (_, name), mutants in functions.items():
        generator = random.Random(f"{seed} {name}")
        rank = generator.random()
        ranked += [(turn, rank, mutant) for turn, mutant in enumerate(generator.sample(mutants, len(mutants)))]
    drawn = {mutant for *_, mutant in sorted(ranked)[:count]}
    return [mutant for mutant in everything if mutant in drawn]


class Tree:
    """A copy of the code for one test run at a time."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder, self.temporary = folder, folder / "tmp"
        folder.mkdir()
        for name in COPIED:
            if (root / name).is_dir():
                shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(root / name, folder / name)
        (folder / "mutation_profile.py").write_text(PROFILE)
        self.process: subprocess.Popen[bytes] | None = None
        self.mutant: Mutant | None = None
        self.original = b""
        self.deadline = 0.0

    def start(self, target: Target, mutant: Mutant | None, timeout: float) -> None:
        if mutant is not None:
            self.original = (self.folder / mutant.file).read_bytes()
            source = self.original[: mutant.start] + mutant.new.encode() + self.original[mutant.end :]
            (self.folder / mutant.file).write_bytes(source)
        shutil.rmtree(self.temporary, ignore_errors=True)
        self.temporary.mkdir()
        own = {"PYTHONPATH": str(self.folder), "TMPDIR": str(self.temporary)}
        own["HYPOTHESIS_STORAGE_DIRECTORY"] = str(self.temporary / "hypothesis")
        own["PYTHONDONTWRITEBYTECODE"] = "1"  # two mutants of the same length within one second would share the bytecode
        with open(self.folder / "output.txt", "wb") as output:
            command = [sys.executable, *PYTEST, "-k", target.select, *target.tests]
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
            self.process = subprocess.Popen(command, cwd=self.folder, env=os.environ | own, start_new_session=True, **streams)
        resource.prlimit(self.process.pid, resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        self.mutant, self.deadline = mutant, time.monotonic() + timeout

    def passed(self) -> bool | None:
        """Return whether all tests passed, or None while they run."""
        assert self.process is not None
        code = self.process.poll()
        if code is None and time.monotonic() < self.deadline:
            return None
        self.stop()
        if self.mutant is not None:
            (self.folder / self.mutant.file).write_bytes(self.original)
        return code == 0

    def stop(self) -> None:
        """Stop the run, and all processes that the tests started."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


def run(name: str, mutants: Sequence[Mutant], trees: Sequence[Tree]) -> tuple[float, list[Mutant]]:
    """Return the test time of the unmutated code in seconds, and the survivors."""
    started = time.monotonic()
    trees[0].start(TARGETS[name], None, 3600.0)
    while (passed := trees[0].passed()) is None:
        time.sleep(0.05)
    seconds = time.monotonic() - started
    if not passed:
        print((trees[0].folder / "output.txt").read_text(errors="replace")[-3000:], file=sys.stderr)
        sys.exit(f"error: {name}: the tests of the unmutated code do not pass.")
    print(f"{name}: the unmutated code passes in {seconds:.1f} s", file=sys.stderr)
    waiting, survivors, done = list(mutants), [], 0
    while done < len(mutants):
        for tree in trees:
            if tree.process is None:
                if waiting:
                    tree.start(TARGETS[name], waiting.pop(0), max(MIN_TIMEOUT, TIMEOUT_FACTOR * seconds))
            elif (passed := tree.passed()) is not None and tree.mutant is not None:
                done += 1
                survivors += [tree.mutant] if passed else []
                verdict = "survived" if passed else "killed"
                print(f"{name}: {done} of {len(mutants)} {verdict}: {tree.mutant}", file=sys.stderr)
        time.sleep(0.05)
    return seconds, sorted(survivors, key=mutants.index)


def report(results: dict[str, Any]) -> Iterator[str]:
    yield f"{'target':<12}{'mutants':>8}{'killed':>8}{'survived':>10}{'test seconds':>14}"
    for name, result in results.items():
        survived = len(result["survivors"])
        yield f"{name:<12}{result['mutants']:>8}{result['killed']:>8}{survived:>10}{result['test_seconds']:>14.1f}"
    for name, result in results.items():
        yield f"\n{name}, survivors: {len(result['survivors'])}"
        yield from (f"  {text}" for text in result["survivors"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="mutation", description="Put faults into a copy of the code and run its tests.")
    parser.add_argument("--targets", default=",".join(TARGETS), help="names, separated by commas (default: %(default)s)")
    parser.add_argument("--mutants", type=int, default=60, help="how many per target (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random draw (default: %(default)s)")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2], help="the tree to test")
    parser.add_argument("--jobs", type=int, default=2, help="test runs at the same time (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    names = options.targets.split(",")
    if unknown := [name for name in names if name not in TARGETS]:
        parser.error(f"no such target: {', '.join(unknown)}; known are {', '.join(TARGETS)}")
    needed = [path for name in names for path in (*TARGETS[name].modules, *TARGETS[name].tests)]
    if missing := [path for path in needed if not (options.root / path).exists()]:
        parser.error(f"missing in {options.root}: {', '.join(missing)}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    results: dict[str, Any] = {}
    trees: list[Tree] = []
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        try:
            for i in range(max(1, options.jobs)):  # all are copies of the first: the working tree may change meanwhile
                trees.append(Tree(trees[0].folder if trees else options.root, Path(folder, str(i))))
            for name in names:
                mutants = draw(trees[0].folder, TARGETS[name], options.mutants, options.seed)
                seconds, survivors = run(name, mutants, trees)
                counts = {"mutants": len(mutants), "killed": len(mutants) - len(survivors)}
                results[name] = {**counts, "test_seconds": round(seconds, 1), "survivors": list(map(str, survivors))}
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)
            sys.exit(130)
        finally:
            for tree in trees:
                tree.stop()
    print(json.dumps(results, indent=2) if options.json else "\n".join(report(results)))


if __name__ == "__main__":
    main()
