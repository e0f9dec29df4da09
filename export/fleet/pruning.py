"""Remove files that no terminal needs any more."""

from pathlib import Path

from edge.errors import require
from edge.files import opened_folder, remove_abandoned
from export.fleet.repository import ONLINE, PREFIX, ROOT, TARGETS, Repository, target_files

MIN_KEEP = 2


def prune(repository: Repository, keep: int) -> list[Path]:
    """Remove all but the last `keep` versions of metadata, and the files that none of those names. Return what was removed.

    Every root stays: a terminal that was off needs all of them. A terminal that reads while a new version is published, or
    from a cache, needs the version before.
    """
    require(keep >= MIN_KEEP, f"Keep at least {MIN_KEEP} versions.")
    store, removed, named = repository.store, [], set()
    groups = repository.group_roles()
    for role, versions in store.versions().items():
        if role == ROOT:
            continue
        is_known = role in (TARGETS, *ONLINE) or role in groups
        kept = versions[-keep:] if is_known else []
        removed += [store.metadata_file(role, version) for version in versions if version not in kept]
        if role.startswith(PREFIX):
            for version in kept:
                named |= target_files(store.read_metadata(role, version))
    for role in store.pending_roles():
        if role.startswith(PREFIX) and (data := store.read_pending(role)) is not None:
            named |= target_files(data)
    files = [path for path in store.targets.rglob("*") if path.is_file()]
    removed += [path for path in files if str(path.relative_to(store.targets)) not in named]
    for path in removed:
        path.unlink()
    with opened_folder(store.metadata) as folder:
        remove_abandoned(folder)
    return removed
