"""The models of a site: models/NAME.npz, and beside each that `trainer site train` made a result (.json) and a report (.html).

A model that `trainer fit` wrote into the folder is listed, too, without a result.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from edge.errors import EdgeError, UsageError
from edge.files import read_bytes
from trainer.data.archives import open_npz
from trainer.site import trail
from trainer.site.contents import model_labels
from trainer.site.folder import Site

MODEL, RESULT, REPORT = ".npz", ".json", ".html"
RESULT_SCHEMA = 1
MAX_RESULT = 64 << 20  # bytes
NAME = re.compile(r"[^./][^/\0]{0,199}")


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """A model of the site."""

    name: str
    path: Path
    created: str
    """UTC, as console.db writes times."""
    people: int
    photos: int
    threshold: float | None
    """The confidence that a name needs; None if it was not measured."""
    result: Mapping[str, Any] | None
    """What the training wrote (trainer.site.training); None for a model of `trainer fit`, or if it cannot be read."""
    problem: str = ""
    """Why the file cannot be used, or empty."""

    @property
    def report(self) -> Path | None:
        """The page of the evaluation, if there is one."""
        path = self.path.with_suffix(REPORT)
        return path if path.is_file() else None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What changed from one model to another."""

    older: ModelInfo
    newer: ModelInfo
    added: tuple[str, ...]
    removed: tuple[str, ...]

    @property
    def threshold_change(self) -> float | None:
        old, new = self.older.threshold, self.newer.threshold
        return None if old is None or new is None else new - old

    def change_of(self, measure: str) -> float | None:
        """Return by how much a share (`recognised` or `missed`) of the cross-validation changed."""
        shares = [((one.result or {}).get(measure) or {}).get("share") for one in (self.older, self.newer)]
        return None if shares[0] is None or shares[1] is None else float(shares[1] - shares[0])


def list_models(site: Site, most: int | None = None) -> list[ModelInfo]:
    """Return the models of a site, newest first."""
    found = []
    for path in site.models.glob(f"*{MODEL}"):
        if not path.name.startswith("."):
            found.append((path.stat().st_mtime_ns, path))
    return [_info(path, mtime) for mtime, path in sorted(found, reverse=True)[:most]]


def get_model(site: Site, name: str) -> ModelInfo:
    """Return the model with this name."""
    path = site.models / f"{name}{MODEL}"
    if not NAME.fullmatch(name) or not path.is_file():
        raise UsageError(f"There is no model {name}.", "Choose one of the models of the site.")
    return _info(path, path.stat().st_mtime_ns)


def compare(older: ModelInfo, newer: ModelInfo) -> Comparison:
    """Return the differences between two models."""
    old, new = (set(_labels(one)) for one in (older, newer))
    return Comparison(older=older, newer=newer, added=tuple(sorted(new - old)), removed=tuple(sorted(old - new)))


def delete_model(site: Site, name: str, *, who: str) -> None:
    """Delete a model, its result and its report. Kits that were made of it stay."""
    path = get_model(site, name).path
    for file in (path.with_suffix(REPORT), path.with_suffix(RESULT), path):
        file.unlink(missing_ok=True)
    with site.database() as database:
        trail.record(database, who, "delete model", name)


def _labels(model: ModelInfo) -> tuple[str, ...]:
    return () if model.problem else model_labels(model.path)


def _info(path: Path, mtime_ns: int) -> ModelInfo:
    created = datetime.fromtimestamp(mtime_ns / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    found: dict[str, Any] = {"name": path.stem, "path": path, "created": created, "result": None}
    file = path.with_suffix(RESULT)
    try:
        stat = file.stat()
        result = _read_result(file, stat.st_mtime_ns, stat.st_size)
    except OSError:
        result = None
    if result is not None:
        facts = {name: result.get(name) for name in ("people", "photos", "threshold")}
        return ModelInfo(**found | facts | {"result": result})
    try:
        people, photos, threshold = _facts(path, mtime_ns)
    except EdgeError as error:
        return ModelInfo(**found, people=0, photos=0, threshold=None, problem=str(error))
    return ModelInfo(**found, people=people, photos=photos, threshold=threshold)


@lru_cache(maxsize=256)
def _read_result(path: Path, mtime_ns: int, size: int) -> dict[str, Any] | None:
    """Return the result of a training. None if the file is damaged, or of another version."""
    try:
        found = json.loads(read_bytes(path, MAX_RESULT))
    except (ValueError, EdgeError):
        return None
    is_known = isinstance(found, dict) and found.get("schema") == RESULT_SCHEMA
    return found if is_known and isinstance(found.get("people"), int) and isinstance(found.get("photos"), int) else None


@lru_cache(maxsize=256)
def _facts(path: Path, mtime_ns: int) -> tuple[int, int, float | None]:
    """Return the numbers of people and photos, and the threshold, from the header of a model file."""
    people = len(model_labels(path))
    with open_npz(path) as archive:
        rejection = json.loads(str(archive["header"]))["rejection"]
        return people, len(archive["crop_people"]), rejection and float(rejection["confidence"])
