"""Redirections of a network camera stay inside the camera, for MJPEG and for all other video."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from edge.camera import http_stream
from edge.camera.sources import open_camera
from edge.errors import CameraError
from tests.fakes.cameras import camera_threads, grey_level, next_frame
from tests.fakes.mjpeg_server import MjpegServer, grey_jpeg
from tests.fixtures.videos import write_video
from tests.fixtures.waiting import until


def with_login(url: str) -> str:
    return url.replace("//", "//door:sesame@")


def video(tmp_path: Path) -> tuple[str, bytes]:
    return "video/x-msvideo", write_video(tmp_path / "clip.avi", 30, "MJPG").read_bytes()


def test_redirection_to_another_host_is_not_followed() -> None:
    with (
        MjpegServer() as other,
        MjpegServer(user="door", password="sesame", redirect=lambda path: with_login(other.url)) as server,
        pytest.raises(CameraError, match="redirects to another host, port or protocol") as caught,
    ):
        open_camera(with_login(server.url))
    assert other.requests == []
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize(
    "location", ["https://127.0.0.1/", "ftp://127.0.0.1/", "file:///etc/passwd", "//localhost:1/", "http://[/"]
)
def test_redirection_to_another_protocol_is_not_followed(location: str) -> None:
    with MjpegServer(redirect=lambda path: location) as server, pytest.raises(CameraError):
        open_camera(server.url)
    assert len(server.requests) == 1


def test_redirections_inside_the_camera_are_followed_up_to_a_limit() -> None:
    def step(path: str) -> str | None:
        left = int(path.rpartition("/")[2])
        return f"/{left - 1}" if left else None

    with MjpegServer(redirect=step) as server:
        start = server.url.removesuffix("stream")
        with open_camera(f"{start}{http_stream.MAX_REDIRECTIONS}", wait=True) as camera:
            server.push(grey_jpeg(5))
            assert grey_level(next_frame(camera)) == 5
        with pytest.raises(CameraError, match="redirects too often"):
            open_camera(f"{start}{http_stream.MAX_REDIRECTIONS + 1}")
    with MjpegServer(redirect=lambda path: path) as server:
        with pytest.raises(CameraError, match="redirects too often"):
            open_camera(server.url)
        assert len(server.requests) <= 1 + http_stream.MAX_REDIRECTIONS


def test_ffmpeg_asks_no_server(tmp_path: Path) -> None:
    """A camera that redirects only the second request, or FFMPEG, leads nowhere: there is one request, and it is ours."""
    with MjpegServer(reply=video(tmp_path)) as other:
        answers = iter([None])
        redirect = lambda path: next(answers, other.url)  # noqa: E731
        with MjpegServer(reply=video(tmp_path), redirect=redirect) as server:
            with open_camera(with_login(server.url)) as camera:
                assert next_frame(camera).image.shape == (48, 64, 3)
                assert [path for path, _ in server.requests] == ["/stream"]
                until(lambda: "redirects to another host" in camera.health.error)
            assert other.requests == []
    until(lambda: camera_threads() == 0)
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "camera pipe"])


def test_playlist_is_not_followed() -> None:
    with MjpegServer() as other:
        playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{other.url}\n#EXT-X-ENDLIST\n".encode()
        with (
            MjpegServer(reply=("application/vnd.apple.mpegurl", playlist)) as server,
            pytest.raises(CameraError, match="No video"),
        ):
            open_camera(server.url)
        assert other.requests == []
