"""Where the research data sets lie, for tests that need real faces: LCLRR_DATA, or shared/data beside the checkout."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(os.environ.get("LCLRR_DATA", ROOT.parent / "shared" / "data"))


def file_of(name: str) -> Path:
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"{name} may not be shipped with the project; point LCLRR_DATA at a folder that holds it")
    return path


def faces(people: int = 4, photos: int = 6, size: tuple[int, int] = (24, 20), seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Made-up people: each a smooth random pattern of its own, each photo in another light. uint8 (N, H, W), labels (N,)."""
    rng = np.random.default_rng(seed)
    height, width = size
    y, x = np.mgrid[0 : np.pi : height * 1j, 0 : np.pi : width * 1j]
    waves = np.array([np.cos(i * y) * np.cos(j * x) for i in range(5) for j in range(5) if i + j])
    images = []
    for _ in range(people):
        face = np.tensordot(rng.standard_normal(len(waves)), waves, 1)
        for _ in range(photos):
            light = 1 + 0.4 * rng.uniform(-1, 1) * np.cos(x) + 0.4 * rng.uniform(-1, 1) * np.cos(y)
            shot = (face - face.min() + 0.2) * light + 0.05 * rng.standard_normal(size)
            images.append(255 * np.clip(shot / shot.max(), 0, 1))
    return np.array(images).astype(np.uint8), np.repeat(np.arange(people), photos)
