"""The kits of a site: kits/NAME.kit, and beside each that `edge-export release` made a result (.json).

A kit that `edge-export build` wrote into the folder is listed, too, without a result. Which kit is at which door:
trainer.site.publishing.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from edge.enrol.storage import check_name
from edge.errors import EdgeError, UsageError
from edge.files import read_bytes
from edge.kit.manifest import Liveness, Thresholds
from trainer.site import trail
from trainer.site.contents import kit_head
from trainer.site.folder import Site
from trainer.site.models import NAME

KIT, RESULT = ".kit", ".json"
RESULT_SCHEMA = 1
MAX_RESULT = 1 << 20  # bytes
OWN_NAME = re.compile(r"\d{8}-\d{6}")
"""Names that a release gives by itself."""
SAVING, PUBLISHING = "saving", "publishing"
BUILD_STAGES = (
    "reading the model",
    "calibration faces",
    "converged coder",
    "iterations",
    "precision",
    "thresholds",
    "parity",
    SAVING,
)
AGAIN_STAGES = "packing", "self-test", SAVING
"""The stages of the jobs `build` and `again`, in their order. PUBLISHING follows if doors were chosen."""


@dataclass(frozen=True, kw_only=True)
class KitInfo:
    """A kit of the site."""

    name: str
    path: Path
    created: str
    """UTC, as console.db writes times."""
    bytes: int
    version: int = 0
    people: int = 0
    thresholds: Thresholds | None = None
    precision: str = ""
    series: str = ""
    signed: bool = False
    liveness: Liveness | None = None
    result: Mapping[str, Any] | None = None
    """What the release wrote (export.release); None for a kit of `edge-export build`, or if it cannot be read."""
    problem: str = ""
    """Why the file cannot be used, or empty. Then version, people and the rest are empty, too."""

    @property
    def model(self) -> str | None:
        """The name of the model that it was built from, if it is known."""
        found = (self.result or {}).get("model")
        return found if isinstance(found, str) else None

    @property
    def threshold(self) -> float | None:
        """The confidence that a name needs; None if the kit cannot be read."""
        return None if self.thresholds is None else self.thresholds.confidence


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What changed from one kit to another."""

    older: KitInfo
    newer: KitInfo
    added: tuple[str, ...]
    removed: tuple[str, ...]

    @property
    def changes(self) -> dict[str, tuple[Any, Any]]:
        """The old and the new value of what differs, besides the people."""
        return {
            field: (old, new)
            for field in ("model", "threshold", "bytes", "precision", "liveness", "signed", "series")
            if (old := getattr(self.older, field)) != (new := getattr(self.newer, field))
        }


def list_kits(site: Site, most: int | None = None) -> list[KitInfo]:
    """Return the kits of a site, newest first."""
    found = [(path.stat().st_mtime_ns, path) for path in site.kits.glob(f"*{KIT}") if not path.name.startswith(".")]
    return [_info(path) for _, path in sorted(found, reverse=True)[:most]]


def get_kit(site: Site, name: str) -> KitInfo:
    """Return the kit with this name."""
    path = site.kits / f"{name}{KIT}"
    if not NAME.fullmatch(name) or not path.is_file():
        raise UsageError(f"There is no kit {name}.", "Choose one of the kits of the site.")
    return _info(path)


def check_new_name(site: Site, name: str) -> str:
    """Return the name for a new kit in NFC spelling. UsageError if it is not safe as a file name, or used already."""
    name = check_name(name)
    if (site.kits / f"{name}{KIT}").exists():
        raise UsageError(f"There is a kit {name} already.", "Choose another name, or delete that kit.")
    return name


def compare(older: KitInfo, newer: KitInfo) -> Comparison:
    """Return the differences between two kits."""
    old, new = (set(labels(one)) for one in (older, newer))
    return Comparison(older=older, newer=newer, added=tuple(sorted(new - old)), removed=tuple(sorted(old - new)))


def labels(kit: KitInfo) -> tuple[str, ...]:
    """Return the people of a kit; nothing if it cannot be read."""
    return () if kit.problem else kit_head(kit.path)[0].labels


def delete_kit(site: Site, name: str, *, who: str) -> None:
    """Delete a kit and its result. Doors that have it keep it."""
    path = get_kit(site, name).path
    for file in (path, path.with_suffix(RESULT)):
        file.unlink(missing_ok=True)
    with site.database() as database:
        trail.record(database, who, "delete kit", name)


def _info(path: Path) -> KitInfo:
    stat = path.stat()
    created = datetime.fromtimestamp(stat.st_mtime, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    own: dict[str, Any] = {"name": path.stem, "path": path, "created": created, "bytes": stat.st_size}
    try:
        facts = _facts(path, stat.st_mtime_ns, stat.st_size)
    except EdgeError as error:
        return KitInfo(**own, problem=str(error))
    try:
        beside = path.with_suffix(RESULT).stat()
        result = _read_result(path.with_suffix(RESULT), beside.st_mtime_ns, beside.st_size)
    except OSError:
        result = None
    return KitInfo(**own, **facts, result=result)


@lru_cache(maxsize=256)
def _facts(path: Path, mtime_ns: int, size: int) -> Mapping[str, Any]:
    """Return what the manifest of a kit says."""
    manifest, is_signed = kit_head(path)
    return {
        "version": manifest.kit_version,
        "people": len(manifest.labels),
        "thresholds": manifest.thresholds,
        "precision": manifest.precision,
        "series": manifest.series,
        "signed": is_signed,
        "liveness": manifest.liveness,
    }


@lru_cache(maxsize=256)
def _read_result(path: Path, mtime_ns: int, size: int) -> Mapping[str, Any] | None:
    """Return the result of a release. None if the file is damaged, or of another version."""
    try:
        found = json.loads(read_bytes(path, MAX_RESULT))
    except (ValueError, RecursionError, EdgeError):
        return None
    return found if isinstance(found, dict) and found.get("schema") == RESULT_SCHEMA else None
