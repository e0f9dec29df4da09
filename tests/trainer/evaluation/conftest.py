"""A model, a kit and photos in many forms, made once."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.fixtures import kits as doors
from tests.fixtures.evaluation import two_people, write_kit


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and a kit of four people; test photos of these and of four strangers, in two conditions."""
    folder = tmp_path_factory.mktemp("evaluate")
    model = doors.model("pixels", "l21", 4)
    model.save(folder / "door.npz")
    two_people()[1].save(folder / "other.npz")
    write_kit(folder / "door.kit", 0.55, 2.0)
    images, names = doors.held_out()
    others, _ = doors.crops(seed=9)
    conditions = np.array(["clean", "scarf"])[np.arange(len(images)) % 2]
    np.savez(folder / "seen.npz", images=images, labels=names, conditions=conditions)
    np.savez(folder / "three.npz", images=images, labels=names, conditions=["clean"] * 3)
    np.savez(folder / "plain.npz", images=images, labels=names)
    np.savez(folder / "strangers.npz", images=others, labels=np.repeat(["x", "y", "z", "anna"], 12))
    np.savez(folder / "trained.npz", images=model.crops, labels=np.array(model.labels)[model.crop_people])
    np.savez(folder / "strangers_only.npz", images=others, labels=np.repeat(["x", "y", "z", "w"], 12))
    np.savez(
        folder / "mixed.npz",
        images=np.concatenate([images, others, model.crops[:3]]),
        labels=np.concatenate([names, np.repeat(["x", "y", "z", "w"], 12), ["anna"] * 3]),
    )
    for i, (image, name, condition) in enumerate(zip(images, names, conditions, strict=True)):
        (folder / "photos" / name).mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / "photos" / name / f"{i}_{condition}.png"), image)
    cv2.imwrite(str(folder / "photos" / "anna" / "blank_scarf.png"), np.full((24, 20), 7, np.uint8))
    for name, image in (("anna/1", images[0]), ("ben/1", images[0] * 0), ("ben/2", images[0] * 0 + 9)):
        (folder / "bad" / name).parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / "bad" / f"{name}.png"), image)
    (folder / "flat").mkdir()
    for i, image in enumerate(others):
        cv2.imwrite(str(folder / "flat" / f"{i}.png"), image)
    (folder / "empty").mkdir()
    return folder
