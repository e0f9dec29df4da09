"""An empty audit log for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from edge.audit.crypto import write_keys
from edge.audit.log import AuditLog
from tests.fixtures.command import run_edge

Run = Callable[..., str]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.db"


@pytest.fixture
def log(path: Path) -> Iterator[AuditLog]:
    with closing(AuditLog(path)) as log:
        yield log


@pytest.fixture
def key(tmp_path: Path) -> Path:
    write_keys(tmp_path / "key.pem")
    return tmp_path / "key.pem"


@pytest.fixture
def edge(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `edge audit` with these arguments. Return its output, or its message if it fails with `code`."""

    def run(*arguments: object, code: int = 0) -> str:
        assert run_edge(monkeypatch, "audit", *arguments) == code
        shown = capsys.readouterr()
        return shown.err if code else shown.out

    return run
