"""An empty audit log for each test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from edge.audit.crypto import write_keys
from edge.audit.log import AuditLog


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
