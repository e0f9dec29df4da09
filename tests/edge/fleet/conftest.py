"""A publisher, its repository on nginx, and a door with clocks that a test moves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.fleet import Fleet as Publisher
from tests.fixtures.fleet_door import Clock, FleetDoor
from tests.fixtures.nginx import Nginx, nginx


@pytest.fixture
def publisher(tmp_path: Path) -> Publisher:
    made = Publisher(tmp_path / "publisher")
    made.add_group()
    return made


@pytest.fixture
def server(tmp_path: Path, publisher: Publisher) -> Iterator[Nginx]:
    with nginx(tmp_path / "nginx", publisher.repo) as running:
        yield running


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def door(tmp_path: Path, publisher: Publisher, server: Nginx, clock: Clock) -> FleetDoor:
    return FleetDoor(tmp_path / "door", server.url, publisher.root, clock)
