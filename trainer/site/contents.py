"""Who is in the models and kits of a site."""

import json
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from edge.errors import EdgeError, KitError, ModelError
from edge.kit import format as kit_format
from edge.kit.manifest import Manifest
from trainer.data.archives import TooLargeError, open_npz
from trainer.model import MAX_HEADER
from trainer.site.folder import Site


@dataclass(frozen=True)
class Container:
    """A model or kit that contains people."""

    path: Path
    labels: frozenset[str]
    """Their names. Empty if the file cannot be read."""
    readable: bool = True


def models(site: Site) -> list[Container]:
    """Return the models of a site, newest first."""
    return [_container(path, model_labels) for path in _newest_first(site.models.glob("*.npz"))]


def kits(site: Site) -> list[Container]:
    """Return the kits of a site, newest first."""
    return [_container(path, kit_labels) for path in _newest_first(site.kits.glob("*.kit"))]


def model_labels(path: Path) -> tuple[str, ...]:
    """Return the people of a model file, from its header alone."""
    try:
        with open_npz(path) as archive:
            if archive.zip.getinfo("header.npy").file_size > MAX_HEADER:
                raise ValueError("the header is too large")
            return tuple(map(str, json.loads(str(archive["header"]))["labels"]))
    except (OSError, ValueError, KeyError, TypeError, EOFError, TooLargeError, zipfile.BadZipFile) as error:
        raise ModelError(f"{path.name} cannot be read.", "Train it again, or delete it.") from error


def kit_labels(path: Path) -> tuple[str, ...]:
    """Return the people of a kit, from its manifest alone."""
    return kit_head(path)[0].labels


def kit_head(path: Path) -> tuple[Manifest, bool]:
    """Return the manifest of a kit, and whether it is signed. The other parts are not read, and nothing is verified."""
    try:
        if not path.is_file():  # a pipe would block
            raise FileNotFoundError
        with zipfile.ZipFile(path) as archive:
            if archive.getinfo(kit_format.MANIFEST).file_size > kit_format.MAX_MANIFEST:
                raise ValueError("the manifest is too large")
            return Manifest.from_bytes(archive.read(kit_format.MANIFEST)), kit_format.SIGNATURE in archive.namelist()
    except (OSError, ValueError, KeyError, EOFError, NotImplementedError, zlib.error, zipfile.BadZipFile) as error:
        raise KitError(f"{path.name} cannot be read.", "Build it again, or delete it.") from error


def _container(path: Path, read: Callable[[Path], tuple[str, ...]]) -> Container:
    found = path.stat()
    return _read_once(path, read, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=256)
def _read_once(path: Path, read: Callable[[Path], tuple[str, ...]], mtime_ns: int, size: int) -> Container:
    try:
        return Container(path, frozenset(read(path)))
    except EdgeError:
        return Container(path, frozenset(), readable=False)


def _newest_first(paths: Iterator[Path]) -> list[Path]:
    return sorted((path for path in paths if not path.name.startswith(".")), key=lambda path: -path.stat().st_mtime_ns)
