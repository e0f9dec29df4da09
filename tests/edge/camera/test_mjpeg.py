"""The parser of multipart streams."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.camera import mjpeg
from edge.errors import CameraError
from tests.fakes.mjpeg_server import grey_jpeg, part

NOISE = st.binary(max_size=200).filter(lambda noise: b"--" not in noise and not noise.endswith(b"-"))
BODY = st.binary(max_size=400)


def parse(parser: mjpeg.Parts, data: bytes, cuts: list[int]) -> list[bytes]:
    """The bodies of all parts, if the data arrive in pieces."""
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    found = []
    for start, end in itertools.pairwise(edges):
        found += [body for body, _ in parser.feed(data[start:end], 0.0)]
        assert len(parser._buffer) <= mjpeg.MAX_FRAME_BYTES + mjpeg.MAX_HEADER_BYTES + end - start
    return found


@given(st.lists(st.tuples(NOISE, BODY)), st.lists(st.integers(0, 10**6), max_size=30))
def test_parts_are_the_same_for_any_pieces(parts: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    stream = b"".join(noise + part(body) for noise, body in parts)
    assert parse(mjpeg.Parts(b"frame"), stream, cuts) == [body for _, body in parts]


@settings(max_examples=30)
@given(st.lists(st.integers(0, 255), max_size=4), st.lists(st.integers(0, 10**6), max_size=30), st.booleans())
def test_parts_without_a_length_end_at_the_next_delimiter(levels: list[int], cuts: list[int], is_sloppy: bool) -> None:
    line = b"\n" if is_sloppy else b"\r\n"
    delimiter = (b"" if is_sloppy else b"--") + b"--frame"
    bodies = [grey_jpeg(level) for level in levels]
    stream = b"".join(delimiter + line + b"Content-Type: image/jpeg" + line * 2 + body + line for body in bodies) + delimiter
    assert parse(mjpeg.Parts(b"--frame"), stream, cuts) == bodies


@given(st.lists(BODY | st.sampled_from([b"--frame", b"\r\n\r\n", b"\r\nContent-Length: 5", b"0" * 5000])), st.data())
def test_any_bytes_are_parts_or_an_camera_error(pieces: list[bytes], data: st.DataObject) -> None:
    try:
        parse(mjpeg.Parts(b"frame"), b"".join(pieces), data.draw(st.lists(st.integers(0, 10**6))))
    except CameraError:
        assert len(b"".join(pieces)) > 2**12


@pytest.mark.parametrize("start", [b"--frame\r\n\r\n", b"--frame\r\nA: b", b"no delimiter"])
def test_parser_keeps_within_its_limits(start: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mjpeg, "MAX_FRAME_BYTES", 2**16)
    parser = mjpeg.Parts(b"frame")
    parser.feed(start, 0.0)
    is_rejected = False
    for _ in range(40):
        try:
            parser.feed(b"x" * 2**12, 0.0)
        except CameraError:
            is_rejected = True
            break
        assert len(parser._buffer) <= 2**16 + 2**13
    assert is_rejected == start.startswith(b"--")
