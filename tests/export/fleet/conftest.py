"""A publisher with one group, and terminals that read what it publishes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fixtures.fleet import Fleet, Terminal, served


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    made = Fleet(tmp_path)
    made.add_group()
    return made


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The address of the repository."""
    with served(tmp_path) as address:
        yield f"{address}/repo"


@pytest.fixture
def new_terminal(tmp_path: Path, url: str) -> Callable[[Path], Terminal]:
    """new_terminal(root file) returns a terminal that has seen nothing yet."""
    numbers = iter(range(100))
    return lambda root: Terminal(tmp_path / f"terminal-{next(numbers)}", url, root)


@pytest.fixture
def terminal(fleet: Fleet, new_terminal: Callable[[Path], Terminal]) -> Terminal:
    return new_terminal(fleet.root)
