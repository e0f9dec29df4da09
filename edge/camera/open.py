"""Open a camera by the name that the user gives."""

from __future__ import annotations

from pathlib import Path

from edge.camera import sources
from edge.camera.base import STALL_SECONDS, Camera, display_name
from edge.camera.live import LiveCamera
from edge.camera.recording import Recording


def open_camera(
    source: str = "0", *, stall_seconds: float = STALL_SECONDS, wait: bool = False, images_per_second: float = 10.0
) -> Camera:
    """Open `source`: an index, /dev/videoN, picamera2:N, rtsp://..., http://..., a video file or a folder of images.

    Raises CameraError if the source is invalid. A live camera must also provide a frame, unless `wait` is true: then it may be
    absent and is opened as soon as it is there.
    """
    source = source.strip() or "0"
    connect = sources.live_source(source)
    if connect is None:
        return Recording(source, sources.recorded_images(Path(source), images_per_second))
    return LiveCamera(display_name(source), connect, stall_seconds=stall_seconds, wait=wait)
