"""A kit store with an active kit."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.kit.store import Store
from edge.kit.watch import ProbationRecognizer
from tests.fixtures.orl_door import kit_version, load_on_probation


@pytest.fixture
def store(tmp_path: Path) -> Store[ProbationRecognizer]:
    """Version 3 is active."""
    store = Store(tmp_path / "kits", tmp_path / "door.kit", load_on_probation)
    store.dropped.write_bytes(kit_version(3))
    store.start()
    return store
