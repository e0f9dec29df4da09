"""The detector in a kit is the one that was pinned, wherever it came from."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from edge.errors import UsageError
from edge.kit import format as kits
from tests.fixtures import kits as doors
from trainer.data import detector


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no way to PyPI."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return detector.YUNET.cached


def test_without_it_there_is_a_next_step(cache: Path) -> None:
    with pytest.raises(UsageError, match="--detector none"):
        detector.yunet()
    assert not cache.exists()


def test_another_file_in_its_place_is_not_taken(cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_bytes(b"something else")
    with pytest.raises(UsageError):
        detector.original()


def test_the_cache_is_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.parent.mkdir()
    cache.write_bytes(b"a detector")
    pinned = replace(detector.YUNET, sha256=hashlib.sha256(b"a detector").hexdigest())
    monkeypatch.setattr(detector, "YUNET", pinned)
    assert detector.original() == b"a detector"


def test_a_kit_carries_it_with_its_licence() -> None:
    try:
        published = detector.original()
    except UsageError as error:
        pytest.skip(str(error))
    assert hashlib.sha256(published).hexdigest() == detector.YUNET.sha256
    data = detector.yunet()
    assert data == detector.any_size(published), "the same bytes every time: a kit can be built again"
    kit = kits.parse(doors.kit(detector=data))
    assert kit.detector == data
    assert "Shenzhen" in kit.licenses[kits.DETECTOR_LICENSE]
    assert "MIT License" in kit.licenses[kits.DETECTOR_LICENSE]
