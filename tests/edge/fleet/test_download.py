"""Kits are large: their downloads continue, and what is not right is thrown away."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from edge.fleet.problems import PullError, PullPausedError
from tests.fixtures.fleet import Fleet as Publisher
from tests.fixtures.fleet import versioned_kit
from tests.fixtures.fleet_door import Clock, FleetDoor, publish
from tests.fixtures.nginx import Nginx

pytestmark = pytest.mark.slow

Change = Callable[[bytes, int], bytes]
"""Returns what is really sent, of the content from a position on."""


class BadServer:
    """Serves a folder with ranges. `kit` changes the bodies of kits."""

    def __init__(self, folder: Path) -> None:
        self.kit: Change = lambda data, begin: data[begin:]
        self.answers_ranges = True
        self.ranges: list[str | None] = []
        outer = self

        class Handler(SimpleHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if not self.path.endswith(".kit"):
                    super().do_GET()
                    return
                data = Path(self.translate_path(self.path)).read_bytes()
                asked = self.headers.get("Range")
                outer.ranges.append(asked)
                found = re.fullmatch(r"bytes=(\d+)-", asked or "")
                begin = int(found[1]) if found and outer.answers_ranges else 0
                body = outer.kit(data, begin)
                self.send_response(206 if begin else 200)
                if begin:
                    self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
                self.send_header("Content-Length", str(max(len(data) - begin, len(body))))
                self.end_headers()
                self.wfile.write(body)
                self.close_connection = True

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture
def bad(publisher: Publisher) -> Iterator[BadServer]:
    server = BadServer(publisher.repo)
    yield server
    server.http.shutdown()
    server.http.server_close()


@pytest.fixture
def far_door(tmp_path: Path, publisher: Publisher, bad: BadServer, clock: Clock) -> FleetDoor:
    return FleetDoor(tmp_path / "far", bad.url, publisher.root, clock)


def partial_kits(door: FleetDoor) -> list[Path]:
    return list((door.folder / "partial").iterdir())


def test_half_downloaded_kit_continues_where_it_ended(far_door: FleetDoor, publisher: Publisher, bad: BadServer) -> None:
    new, third = publisher.publish_kit(2), len(versioned_kit(2)) // 3
    bad.kit = lambda data, begin: data[begin : begin + third + 1]
    for _ in range(2):
        with pytest.raises(PullPausedError):
            far_door.pull()
        assert not far_door.fleet.is_stale()
    assert far_door.store.dropped.read_bytes() == versioned_kit(1), "half a kit is never put in place"
    far_door.pull()
    assert far_door.store.dropped.read_bytes() == new
    assert bad.ranges == [None, f"bytes={third + 1}-", f"bytes={2 * third + 2}-"]
    assert partial_kits(far_door) == []


def test_download_continues_after_a_restart_from_nginx(
    tmp_path: Path, far_door: FleetDoor, publisher: Publisher, bad: BadServer, server: Nginx, clock: Clock
) -> None:
    new = publisher.publish_kit(2)
    bad.kit = lambda data, begin: data[begin:1000]
    with pytest.raises(PullPausedError):
        far_door.pull()
    again = FleetDoor(tmp_path / "far", server.url, publisher.root, clock)
    again.pull()
    assert again.store.dropped.read_bytes() == new
    ((_, status, length, asked, *_),) = [request for request in server.requests() if request[0].endswith(".kit")]
    assert (status, length, asked) == ("206", str(len(new) - 1000), "bytes=1000-")


def test_revocation_does_not_wait_for_a_kit(far_door: FleetDoor, publisher: Publisher, bad: BadServer) -> None:
    publisher.publish_kit(2)
    bad.kit = lambda data, begin: data[begin : begin + 100]
    with pytest.raises(PullPausedError):
        far_door.pull()
    publisher.revoke("anna")
    with pytest.raises(PullPausedError):
        far_door.pull()
    assert far_door.refusal("anna") == "revoked"


def test_server_without_ranges_sends_the_kit_again(far_door: FleetDoor, publisher: Publisher, bad: BadServer) -> None:
    new = publisher.publish_kit(2)
    bad.kit = lambda data, begin: data[begin:1000]
    with pytest.raises(PullPausedError):
        far_door.pull()
    bad.answers_ranges, bad.kit = False, lambda data, begin: data[begin:]
    far_door.pull()
    assert far_door.store.dropped.read_bytes() == new


def test_corrupted_kit_is_thrown_away_and_asked_for_again_only_after_a_pause(
    far_door: FleetDoor, publisher: Publisher, bad: BadServer, clock: Clock
) -> None:
    new = publisher.publish_kit(2)
    bad.kit = lambda data, begin: data[begin:-1] + b"!"
    for _ in range(3):
        with pytest.raises(PullError) as found:
            far_door.pull()
        assert found.value.cause == "untrusted"
    assert (len(bad.ranges), partial_kits(far_door)) == (1, [])
    assert not far_door.fleet.is_stale(), "the revocations and lists are verified"
    assert far_door.outcomes() == ["failed"]
    bad.kit = lambda data, begin: data[begin:]
    clock.wait(200)
    far_door.pull()
    assert far_door.store.dropped.read_bytes() == new


def test_corrupted_part_is_thrown_away(far_door: FleetDoor, publisher: Publisher, bad: BadServer, clock: Clock) -> None:
    new = publisher.publish_kit(2)
    bad.kit = lambda data, begin: data[begin:1000]
    with pytest.raises(PullPausedError):
        far_door.pull()
    (part,) = partial_kits(far_door)
    part.write_bytes(b"x" * 1000)
    bad.kit = lambda data, begin: data[begin:]
    with pytest.raises(PullError):
        far_door.pull()
    assert partial_kits(far_door) == []
    clock.wait(200)
    far_door.pull()
    assert far_door.store.dropped.read_bytes() == new


@pytest.mark.parametrize("more", [1, 10_000_000])
def test_kit_that_is_longer_than_signed_is_refused(
    far_door: FleetDoor, publisher: Publisher, bad: BadServer, more: int
) -> None:
    publisher.publish_kit(2)
    bad.kit = lambda data, begin: data[begin:] + b"x" * more
    with pytest.raises(PullError) as found:
        far_door.pull()
    assert found.value.cause == "untrusted"
    assert sum(part.stat().st_size for part in partial_kits(far_door)) <= len(versioned_kit(2))


def test_part_of_another_kit_is_removed(far_door: FleetDoor, publisher: Publisher, bad: BadServer) -> None:
    publisher.publish_kit(2)
    bad.kit = lambda data, begin: data[begin:1000]
    with pytest.raises(PullPausedError):
        far_door.pull()
    new = publisher.publish_kit(3)
    bad.kit = lambda data, begin: data[begin:]
    far_door.pull()
    assert far_door.store.dropped.read_bytes() == new
    assert partial_kits(far_door) == []


def test_kit_under_the_name_of_another_one_is_refused(far_door: FleetDoor, publisher: Publisher) -> None:
    publisher.publish_kit(2)
    path = f"north/kits/{'a' * 64}.kit"
    publish(publisher, path, versioned_kit(3))
    rollout = {"schema": 1, "id": "ab", "kit": path, "kit_version": 3, "share": 1.0}
    rollout |= {"doors": None, "previous": None, "stopped": False}
    publish(publisher, "north/rollout.json", json.dumps(rollout).encode())
    with pytest.raises(PullError, match="SHA-256"):
        far_door.pull()
    assert far_door.store.dropped.read_bytes() == versioned_kit(1)
