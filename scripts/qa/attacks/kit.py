"""Attacks with kits: absurd thresholds, huge files, versions that end all updates, and races around an install."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from edge.errors import EdgeError
from edge.kit import format as kits
from edge.kit import selftest
from edge.kit.format import Kit
from edge.kit.store import RECORD, Store
from edge.vision.recognize import Recognizer
from scripts.qa.attacks.attack import CannotRunError, Range, Score, Tally, attack, measured, run_child, run_edge
from tests.fixtures import kits as doors
from tests.fixtures import orl_door
from tests.fixtures.kits import digest, with_manifest


def load(kit: Kit) -> Recognizer:
    return selftest.check_with_detector(Recognizer(kit))


def new_store(folder: Path, load: Callable[[Kit], Recognizer] = load) -> Store[Recognizer]:
    folder.mkdir(exist_ok=True)
    return Store(folder / "store", folder / "door.kit", load)


# 5: absurd thresholds.


@attack("5", "kit with absurd thresholds")
def absurd_thresholds(where: Range) -> Score:
    """A kit that matches every face, and says that no stranger passes."""
    honest = kits.parse(orl_door.kit()).manifest
    stated = json.loads(kits.unpack(orl_door.kit())[kits.MANIFEST])["thresholds"]
    confidences = (5e-324, 1e-300, 1e-100, 1e-30, 1e-12, 1e-6)
    no_stranger = {"fpir": 0.0, "fpir_low": 0.0, "fpir_high": 0.0, "strangers": 0}
    claims: tuple[dict[str, Any], ...] = ({}, no_stranger, {"residual": 1e300})
    tally = Tally(where, len(confidences) * len(claims))
    for i, (confidence, claim) in enumerate((c, claim) for c in confidences for claim in claims):
        data = with_manifest(
            orl_door.kit(), thresholds=stated | {"confidence": confidence} | claim, kit_version=honest.kit_version + 1
        )
        tally.add(is_accepted(new_store(where.folder / str(i)), data), f"confidence {confidence:g} was accepted")
    return tally.score()


def is_accepted(store: Store[Recognizer], data: bytes) -> bool:
    with suppress(EdgeError):
        store.activate(data)
        return True
    return False


# 12: a large file without a signature.

READ_KIT = """
from pathlib import Path
from edge.errors import EdgeError
from edge.kit import format as kits
key = Path(sys.argv[2]).read_bytes()
def read(path):
    try:
        kits.parse(kits.read_kit_bytes(path), key)
    except EdgeError:
        return
    raise SystemExit("accepted")
read(sys.argv[3])
before = peak_memory()
read(sys.argv[1])
finish(before)
"""
SHAPES = {"lists": b"[]", "objects": b"{}", "numbers": b"1", "texts": b'"ab"', "nested": b"[[[]]]"}


@attack("12", "large kit without a signature")
def large_unsigned_kit(where: Range) -> Score:
    """A manifest of 16 MB that becomes hundreds of megabytes when it is parsed, before the signature is checked."""
    key, small = where.folder / "key.pub", where.folder / "small.kit"
    key.write_bytes(doors.signing_keys()[1])
    small.write_bytes(doors.kit())
    honest = kits.unpack(doors.kit())
    shapes = list(SHAPES.items())[: where.tries(2, len(SHAPES))]
    tally = Tally(where, len(shapes))
    for name, item in shapes:
        body = b",".join([item] * ((16 << 20) // (len(item) + 1)))
        manifest = honest[kits.MANIFEST].rstrip()[:-1] + b',\n "x": [' + body + b"]}\n"
        large = where.folder / f"{name}.kit"
        large.write_bytes(kits.pack(honest | {kits.MANIFEST: manifest}))
        found = measured(READ_KIT, large, key, small)
        large.unlink()
        is_breach = "crash" in found or found["bytes"] > 80 << 20  # the file itself, read once, and some views
        tally.add(is_breach, found.get("crash") or f"{name}: {found['bytes'] >> 20} MB for a file of 16 MB")
    return tally.score()


# 19: the last version.


@attack("19", "version that ends all updates")
def last_version(where: Range) -> Score:
    """As the first kit of a store, and after version 1."""
    versions = (2**53 - 1, 2**53 - 2, 2**52, 10**15, 10**14 + 2)
    tally = Tally(where, 2 * len(versions))
    for version in versions:
        for first in (0, 1):
            store = new_store(where.folder / f"{version}-{first}")
            if first:
                store.activate(orl_door.kit_version(first))
            tally.add(is_accepted(store, orl_door.kit_version(version)), f"version {version} after version {first}")
    return tally.score()


# 18: two installs at once.


@attack("18", "two installs at once")
def two_installs(where: Range) -> Score:
    """An install of an older kit that was checked first must not replace a newer one that was reported as installed."""
    tries = where.tries(2, 10)
    tally = Tally(where, tries)
    for i in range(tries):
        is_checking, other_is_done = threading.Event(), threading.Event()

        def slow_load(kit: Kit, checking: threading.Event = is_checking, done: threading.Event = other_is_done) -> Recognizer:
            checking.set()
            done.wait(1.0)  # with a lock, the other install waits for this one
            return load(kit)

        folder = where.folder / str(i)
        slow, quick = new_store(folder, slow_load), new_store(folder)
        older, newer = orl_door.kit_version(2), orl_door.kit_version(3)
        thread = threading.Thread(target=lambda store=slow, data=older: suppressed(store.drop, data))
        thread.start()
        is_checking.wait(30)
        installed = suppressed(quick.drop, newer)
        other_is_done.set()
        thread.join(30)
        tally.add(installed and (folder / "door.kit").read_bytes() != newer, "the older kit is in place")
    return tally.score()


def suppressed(action: Callable[..., object], *arguments: Any) -> bool:
    """Whether an action succeeded."""
    with suppress(EdgeError):
        action(*arguments)
        return True
    return False


# 20b: a killed install.

KILLED_INSTALL = """
import os, signal, sys
from pathlib import Path
from edge.kit.store import Store
from edge.vision.recognize import Recognizer
os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)  # the power fails while the kit is written
folder = Path(sys.argv[1])
Store(folder / "store", folder / "door.kit", Recognizer).drop((folder / "new").read_bytes())
"""


@attack("20b", "killed installs")
def killed_installs(where: Range) -> Score:
    """Installs that were killed leave files that nothing deletes: in the end the disk is full."""
    tries = where.tries(2, 10)
    tally = Tally(where, tries)
    for i in range(tries):
        folder = where.folder / str(i)
        store = new_store(folder)
        (folder / "new").write_bytes(orl_door.kit())
        killed = run_child([sys.executable, "-c", KILLED_INSTALL, str(folder)])
        if killed.returncode != -signal.SIGKILL:
            raise CannotRunError(f"the install was not killed: {killed.stderr.strip()[-200:]}")
        store.drop(orl_door.kit())
        left = [file.name for file in folder.rglob("*") if file.name.endswith(".part") or file.name.startswith(".")]
        tally.add(bool(left), f"{len(left)} left after the next install")
    return tally.score()


# 10: a link in place of a file that root wrote.

SWAPPER = """
import os, sys
folder, target, user = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.setgroups([]); os.setgid(user); os.setuid(user)
os.chdir(folder)
known = {name: os.lstat(name).st_ino for name in os.listdir(".") if not name.startswith(".")}
print("ready", flush=True)
while True:
    for name in list(known):
        try:
            number = os.lstat(name).st_ino
        except FileNotFoundError:
            continue
        if number != known[name]:
            os.symlink(target, ".link")
            os.replace(".link", name)
            known[name] = os.lstat(name).st_ino
"""
SERVICE_USER = 65534


@attack("10", "link swapped in during sudo rollback")
def swapped_link(where: Range) -> Score:
    """The service user replaces a file that root has just written by a link to a file of root."""
    if os.geteuid() != 0:
        raise CannotRunError("needs root: one process acts as root, another as the user of the service")
    tries = where.tries(5, 25)
    tally = Tally(where, tries)
    where.folder.chmod(0o711)
    for i in range(tries):
        folder = where.folder / str(i)
        store = folder / "store"
        store.mkdir(parents=True)
        target = folder / "root-only"
        target.write_text("a secret of root")
        target.chmod(0o600)
        current, previous = orl_door.kit_version(2), orl_door.kit_version(1)
        record = {"current": digest(current), "previous": digest(previous), "version": 2, "series": ""}
        (store / RECORD).write_text(json.dumps(record))
        for data in (current, previous):
            (store / f"{digest(data)}.kit").write_bytes(data)
        for path in (store, *store.iterdir()):
            os.chown(path, SERVICE_USER, SERVICE_USER)
        (folder / "settings.toml").write_text(f'[kit]\npath = "{folder}/door.kit"\nstore = "{store}"\n')
        attacker = subprocess.Popen(
            [sys.executable, "-c", SWAPPER, str(store), str(target), str(SERVICE_USER)], stdout=subprocess.PIPE, text=True
        )
        try:
            assert attacker.stdout is not None
            attacker.stdout.readline()
            run_edge("kit", "rollback", "--settings", folder / "settings.toml")
        finally:
            attacker.kill()
            attacker.wait()
        owner, mode = target.stat().st_uid, target.stat().st_mode & 0o777
        tally.add(owner != 0 or mode != 0o600, "the service user owns a file of root")
    return tally.score()
