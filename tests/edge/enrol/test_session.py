"""Enrolment keeps good and varied photos of the right person, exactly as the trainer will see them; or it leaves nothing."""

from __future__ import annotations

import json
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edge import paths
from edge.camera.recording import Recording
from edge.cli import main as cli
from edge.enrol import session as capturing
from edge.enrol import storage as enrolling
from edge.enrol.session import ALIKE, DUPLICATE, LIKENESS, POSES, CaptureSettings, capture
from edge.enrol.storage import Enrolment, checked_name, enrol
from edge.errors import (
    AlreadyEnrolledError,
    DetectorMissingError,
    EdgeError,
    KitUnsafeError,
    ParameterError,
    TooFewPhotosError,
    UsageError,
)
from edge.kit import format as kits
from edge.kit.manifest import Thresholds
from edge.vision.detect import photo_min_face
from edge.vision.preprocess import SIZE, align, features
from edge.vision.quality import pose
from edge.vision.recognize import Recognizer
from export import cli as export_cli
from tests.fakes.stage import Play
from tests.fixtures.portraits import find_orl, finder, grey, in_a_room, kit, yunet
from trainer.data import detector, gallery

WHEN = datetime(2026, 11, 16, 14, 3, 12)
GAP = CaptureSettings().gap_seconds
WIDTH, AT = 160, (120, 50)
PORTRAIT = (slice(50, 245), slice(120, 280))  # in a frame


@cache
def frames(person: int) -> tuple[Any, ...]:
    """The ten photos of a person of ORL, each as a frame of a camera."""
    files = sorted((find_orl() / f"s{person}").glob("*.pgm"), key=lambda file: int(file.stem))
    return tuple(in_a_room(cv2.imread(str(file)), width=WIDTH, at=AT, size=(300, 400)) for file in files)


def jittered(frame: Any, number: int) -> Iterator[Any]:
    """What a camera sees of a person who stands still."""
    rng = np.random.default_rng(0)
    for _ in range(number):
        move = cv2.getRotationMatrix2D((200, 150), rng.normal(0, 1), float(np.exp(rng.normal(0, 0.01))))
        move = move + np.pad(rng.normal(0, 2, (2, 1)), ((0, 0), (2, 0)))
        moved = cv2.warpAffine(frame, move, (400, 300), borderMode=cv2.BORDER_REPLICATE).astype(np.float32)
        yield np.clip(moved * rng.uniform(0.95, 1.05) + rng.normal(0, 2, moved.shape), 0, 255).astype(np.uint8)


def recording(pictures: Iterable[Any]) -> Recording:
    return Recording("a recording", ((picture, i * GAP) for i, picture in enumerate(pictures)))


def enrolled(name: str, pictures: Iterable[Any], output: Path, **options: Any) -> Enrolment:
    return enrol(name, recording(pictures), finder(80), output, when=WHEN, **options)


class Actor(Play):
    """Somebody does what is said: `act` makes the picture for what was said last."""

    def __init__(self, act: Callable[[str], Any], *, frame_seconds: float = 0.5) -> None:
        super().__init__("a person", clock=100.0, fps=1 / frame_seconds)
        self.act, self.said = act, list[tuple[float, str]]()

    def picture(self) -> Any:
        assert self.given < 5000, "it would go on for ever"
        return self.act(next((words for _, words in reversed(self.said) if words.startswith("Photo")), ""))

    def hear(self, sentence: str) -> None:
        self.said.append((self.now(), sentence))


# --- What is kept ---


def test_photos_are_what_the_trainer_learns_from(tmp_path: Path) -> None:
    found = {name: enrolled(name, frames(person), tmp_path) for name, person in (("anna", 1), ("ben", 3))}
    learned = gallery.load(tmp_path, cropped=False, finder=finder())
    for name, enrolment in found.items():
        assert 5 <= len(enrolment.files) <= 8
        crops = features(learned.images[learned.labels == name], LIKENESS)
        np.testing.assert_array_equal(crops, [photo.likeness for photo in enrolment.captured.photos])


def test_photos_show_what_the_door_sees() -> None:
    """The crop of the photo is nearly that of the frame: the detector places landmarks a little differently at every look."""
    alike, differences = [], []
    for frame in [frame for person in (1, 12, 23, 34) for frame in frames(person)[:3]]:
        (photo,) = capture(recording([frame]), finder(80)).photos
        door, stored = crop(frame, 80), crop(photo.image, photo_min_face(photo.image))
        alike.append((features(door[None], LIKENESS) @ features(stored[None], LIKENESS).T).item())
        differences.append(np.abs(door.astype(int) - stored).mean())
    assert min(alike) > 0.95
    assert np.median(alike) > 0.98
    assert np.median(differences) < 10


def crop(image: Any, min_face: int) -> Any:
    (face,) = finder().detect(image, min_face)
    return align(grey(image), face.landmarks, SIZE)


def test_photos_are_lossless_and_private(tmp_path: Path) -> None:
    output = tmp_path / "photos"
    enrolment = enrolled("anna", frames(1), output)
    assert [file.name for file in enrolment.files][:2] == ["20261116-140312-01.png", "20261116-140312-02.png"]
    assert sorted((output / "anna").iterdir()) == list(enrolment.files)
    for file, photo in zip(enrolment.files, enrolment.captured.photos, strict=True):
        np.testing.assert_array_equal(cv2.imread(str(file)), photo.image)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for folder in (output, output / "anna"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_copies_are_refused_and_other_photos_kept() -> None:
    copies = [*jittered(frames(1)[0], 20)]
    found = capture(recording([*copies, *frames(1)[1:]]), finder(80), CaptureSettings(photos=30))
    start = found.photos[0].captured
    numbers = [round((photo.captured - start) / GAP) for photo in found.photos]
    assert sum(number < len(copies) for number in numbers) <= 3, "of 20 copies"
    assert sum(number >= len(copies) for number in numbers) >= 5, "of 9 other photos"
    assert found.refused["duplicate"] >= 17
    rows = np.array([photo.likeness for photo in found.photos])
    assert (np.triu(rows @ rows.T, 1) <= DUPLICATE).all()


def test_a_second_session_adds_what_is_new(tmp_path: Path) -> None:
    first = enrolled("anna", frames(1)[:5], tmp_path)
    with pytest.raises(TooFewPhotosError, match=f"duplicate {len(first.files)}"):
        enrolled("anna", frames(1)[:5], tmp_path)
    second = enrolled("anna", frames(1)[5:], tmp_path)
    assert sorted((tmp_path / "anna").iterdir()) == sorted([*first.files, *second.files])
    assert not set(first.files) & set(second.files), "in the same second, too"


def test_photos_are_some_time_apart() -> None:
    quick = Recording("quick", ((frame, i * GAP / 4) for i, frame in enumerate(frames(1))))
    times = np.array([photo.captured for photo in capture(quick, finder(80)).photos])
    assert len(times) >= 2
    assert (np.diff(times) >= GAP - 1e-6).all()


def test_it_ends_when_there_are_enough() -> None:
    camera = recording(frames(1))
    assert len(capture(camera, finder(80), CaptureSettings(photos=3)).photos) == 3
    assert not camera.ended


def two_people() -> Any:
    both = in_a_room(frames(1)[0][PORTRAIT], width=WIDTH, at=(20, 50), size=(300, 400))
    both[50:245, 220:380] = frames(3)[0][PORTRAIT]
    return both


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("face blurred", lambda frame: cv2.GaussianBlur(frame, (0, 0), 4)),
        ("face too dark", lambda frame: (frame * 0.15).astype(np.uint8)),
        ("face too small", lambda frame: in_a_room(frame[PORTRAIT], width=60, size=(300, 400))),
        ("face cut off", lambda frame: frame[:, 180:]),
        ("several faces", lambda _: two_people()),
        ("no face", lambda frame: np.full_like(frame, 90)),
    ],
)
def test_bad_frames_are_refused_with_their_reason(reason: str, change: Callable[[Any], Any]) -> None:
    found = capture(recording(change(frame) for frame in frames(1)[:3]), finder(40))
    assert found.photos == ()
    assert found.refused[reason] >= 2, found.refused
    assert reason in capturing.ADVICE


@pytest.mark.parametrize(
    ("reason", "second"),
    [
        ("unclear", lambda faces: []),
        ("unclear", lambda faces: [replace(face, landmarks=face.landmarks + 8) for face in faces]),
        ("several faces", lambda faces: faces * 2),
    ],
)
def test_the_second_look_must_agree(reason: str, second: Callable[[Any], Any]) -> None:
    class Wavering:
        def detect(self, image: Any, min_face: int | None = None) -> Any:
            faces = finder(80).detect(image, min_face)
            return faces if min_face is None else second(faces)

    assert capture(recording(frames(1)[:1]), Wavering()).refused == {reason: 1}


# --- Guided ---


@cache
def turned(person: int) -> Any:
    """The numbers of a person's photos, from the one that looks most to the person's right to the left."""
    return np.argsort([pose(finder(80).detect(frame)[0].landmarks)[0] for frame in frames(person)])


def test_a_person_is_guided_from_pose_to_pose() -> None:
    def act(asked: str) -> Any:
        for words, shown in (
            ("your left", turns[-1]),
            ("your right", turns[0]),
            ("chin", turns[4]),
            ("look straight", turns[5]),
        ):
            if words in asked:
                return frames(1)[shown]
        return frames(1)[turns[[7, 1, 6][int(asked.split()[1]) % 3]]]

    turns = turned(1)
    camera = Actor(act)
    found = capture(camera, finder(80), say=camera.hear)
    poses = {photo.pose: photo for photo in found.photos}
    assert list(poses)[:3] == ["straight", "left", "right"]
    assert poses["right"].quality.yaw + 10 <= poses["straight"].quality.yaw <= poses["left"].quality.yaw - 10
    prompts = [words for _, words in camera.said if words.startswith("Photo")]
    assert prompts == [f"Photo {i} of 8: {asked.words}." for i, asked in enumerate(POSES, start=1)]
    times = [when for when, _ in camera.said]
    advice = [
        (when, before)
        for when, before, (_, words) in zip(times[1:], times, camera.said[1:], strict=False)
        if words[:5] != "Photo"
    ]
    assert advice, "chin up was asked for, and not done"
    assert all(when - before >= 2 - 1e-6 for when, before in advice)
    assert camera.now() - 100 <= sum(15.3 + asked.settle_seconds for asked in POSES)


def test_without_poses_it_goes_on_with_what_there_is() -> None:
    """Somebody who only stands there is photographed once, or twice, and everything ends."""
    copies = [*jittered(frames(1)[0], 40)]
    camera = Actor(lambda _: copies[camera.given % 40])
    found = capture(camera, finder(80), CaptureSettings(photos=3, pose_seconds=6), say=camera.hear)
    assert 1 <= len(found.photos) <= 2
    assert "That looks like a photo I have: move your head a little." in dict(map(reversed, camera.said))  # type: ignore[arg-type]
    assert camera.now() - 100 == pytest.approx(1 + 2 * 6, abs=1)


def test_a_photo_in_another_pose_serves_when_time_is_over() -> None:
    camera = Actor(lambda asked: frames(1)[turned(1)[5 if "straight" in asked else 0]])  # right, where left is asked for
    found = capture(camera, finder(80), CaptureSettings(photos=2, min_photos=1, pose_seconds=5), say=camera.hear)
    assert [photo.pose for photo in found.photos] == ["straight", "right"]
    assert found.refused == {"pose": 9}
    assert (103.0, f"Please {POSES[1].words}.") in camera.said


@pytest.mark.parametrize(
    ("advice", "picture"),
    [
        ("One person at a time, please.", two_people),
        ("I see no face: look at the camera.", lambda: np.full((300, 400, 3), 90, np.uint8)),
        ("Hold still.", lambda: cv2.GaussianBlur(frames(1)[0], (0, 0), 4)),
        ("The camera gives no pictures.", lambda: None),
    ],
)
def test_advice_says_what_would_help_now_and_then(advice: str, picture: Callable[[], Any]) -> None:
    shown = picture()
    camera = Actor(lambda _: shown, frame_seconds=0.5)
    found = capture(camera, finder(80), CaptureSettings(photos=1, min_photos=1, pose_seconds=9), say=camera.hear)
    assert found.photos == ()
    heard = [(when, words) for when, words in camera.said if not words.startswith("Photo")]
    assert {words for _, words in heard} == {advice}
    assert 3 <= len(heard) <= 4, "in nine seconds"


# --- Who is enrolled already ---


@cache
def known() -> capturing.Known:
    """A kit that knows s1 to s8 by their first six photos, and is as strict as a built one."""
    parsed = kits.parse(kit())
    strict = replace(parsed.manifest, thresholds=Thresholds(confidence=0.9, residual=0.7, provisional=True))
    found = enrolling.known_by(Recognizer(replace(parsed, manifest=strict)))
    assert found is not None
    return found


def test_who_is_in_the_kit_under_another_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AlreadyEnrolledError, match="already enrolled as s2"):
        enrolled("anna", frames(2)[6:], tmp_path, known=known())
    assert list(tmp_path.iterdir()) == []


def test_the_kit_refuses_neither_the_same_name_nor_others(tmp_path: Path) -> None:
    assert enrolled("s2", frames(2)[6:], tmp_path / "same", known=known()).captured.alike == {}
    assert enrolled("anna", frames(2)[6:], tmp_path / "alike", known=known(), allow_alike=True).files
    for stranger in (10, 20, 30):
        assert enrolled("carla", frames(stranger), tmp_path / str(stranger), known=known()).files


def test_who_has_photos_under_another_name_is_refused(tmp_path: Path) -> None:
    enrolled("anna", frames(1), tmp_path)
    with pytest.raises(AlreadyEnrolledError, match="already enrolled as anna"):
        enrolled("ben", jittered(frames(1)[0], 9), tmp_path)
    assert not (tmp_path / "ben").exists()
    (tmp_path / "anna" / "broken.png").write_bytes(b"no photo")
    assert enrolled("ben", frames(3), tmp_path).captured.alike == {}


def test_a_single_look_is_a_warning(tmp_path: Path) -> None:
    """One photo of somebody else among those of a person: worth a word, and no reason to refuse."""
    enrolled("anna", frames(1), tmp_path)
    enrolment = enrolled("ben", [*frames(3)[:6], frames(1)[0]], tmp_path, settings=CaptureSettings(photos=10))
    assert enrolment.captured.alike == {"anna": 1}
    assert "anna" in enrolment.account()[1]


def test_different_people_are_not_alike() -> None:
    """The limit holds for photos that it was not shown here one by one: everybody against everybody."""
    rows = {}
    for person in range(1, 41, 5):
        found = [capture(recording([frame]), finder(80)).photos for frame in frames(person)[:3]]
        rows[person] = np.array([photo.likeness for photos in found for photo in photos])
    pairs = [(rows[a] @ rows[b].T).max() for a in rows for b in rows if a < b]
    assert max(pairs) < ALIKE


# --- All or nothing ---


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> Iterator[Any]:
        yield from frames(1)[:6]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        enrolled("anna", interrupted(), tmp_path / "photos", settings=CaptureSettings(photos=9))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("failure", "seen"), [(KeyboardInterrupt(), KeyboardInterrupt), (OSError(28, "full"), UsageError)])
def test_a_failure_while_writing_leaves_what_was_there(
    failure: BaseException, seen: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = enrolled("anna", frames(1)[:5], tmp_path).files
    write = enrolling.write_atomically

    def failing(path: Path, data: bytes) -> None:
        if path.name.endswith(f"{len(before) + 3:02}.png") or path.name.endswith("-03.png"):
            raise failure
        write(path, data)

    monkeypatch.setattr(enrolling, "write_atomically", failing)
    with pytest.raises(seen):
        enrolled("anna", frames(1)[5:], tmp_path)
    with pytest.raises(seen):
        enrolled("ben", frames(3), tmp_path / "new")
    assert sorted(file for file in tmp_path.rglob("*") if file.is_file()) == sorted(before)
    assert not (tmp_path / "new").exists()


def test_too_few_photos_are_an_error_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(TooFewPhotosError, match=r"Only 0 of the 3 .* blurred 4\. Hold still") as error:
        enrolled("anna", (cv2.GaussianBlur(frame, (0, 0), 4) for frame in frames(1)[:4]), tmp_path)
    assert error.value.exit_code == 36
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_said_before_anybody_poses(tmp_path: Path) -> None:
    (tmp_path / "photos").write_text("a file")
    camera = recording(frames(1))
    with pytest.raises(UsageError, match="--output"):
        enrol("anna", camera, finder(80), tmp_path / "photos", when=WHEN)
    assert camera.health.frames == 0


# --- Names and settings ---


@pytest.mark.parametrize("name", ["anna", "Jürgen Groß", "李小龍", "o'neill, 3rd", "re\u0301mi", "نی\u200cکی"])
def test_names_of_people_are_taken(name: str) -> None:
    assert checked_name(name) == checked_name(checked_name(name))
    assert "\u0301" not in checked_name(name), "one spelling"


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        ".",
        "..",
        ".hidden",
        "../anna",
        "a/b",
        "a\\b",
        "a\0b",
        "a\nb",
        "\x1b[31m",
        "a\u202eb",
        "\udc80",
        " anna",
        "a" * 101,
        "李" * 90,
    ],
)
def test_hostile_names_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="The name") as error:
        enrolled(name, frames(1)[:1], tmp_path)
    assert str(error.value).isprintable()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", [{"photos": 2}, {"min_photos": 0}, {"gap_seconds": -1}, {"votes": 0}, {"photos": 1001}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        CaptureSettings(**wrong)


# --- The command ---


def command(monkeypatch: pytest.MonkeyPatch, module: Any, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["command", *words])
    with pytest.raises(SystemExit) as leaving:
        module.main()
    assert isinstance(leaving.value.code, int)
    return leaving.value.code


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command is run: session/ holds photos of s2, and detector.onnx what finds them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EDGE_KIT", raising=False)
    monkeypatch.setattr(paths, "KIT_SEARCH", (Path("door.kit"),))
    (tmp_path / "session").mkdir()
    for i, frame in enumerate(frames(2)):
        cv2.imwrite(f"session/{i:02}.png", frame)
    (tmp_path / "detector.onnx").write_bytes(yunet())
    return tmp_path


def test_the_command_enrols(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, cli, "capture", "anna", "--camera", "session", "--detector", "detector.onnx") == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["schema"], found["name"], len(found["photos"])) == (1, "anna", len(found["poses"]))
    assert all(Path(file).is_file() for file in found["photos"])
    assert f"{len(found['photos'])} photos of anna are in photos/anna" in err


def test_the_command_takes_a_video(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    writer = cv2.VideoWriter("visit.avi", cv2.VideoWriter.fourcc(*"MJPG"), 5, (400, 300))
    for frame in frames(2):
        for _ in range(3):
            writer.write(frame)
    writer.release()
    assert (
        command(monkeypatch, cli, "capture", "anna", "--camera", "visit.avi", "--detector", "detector.onnx", "--photos", "4")
        == 0
    )
    assert len(json.loads(capsys.readouterr().out)["photos"]) == 4


def test_the_command_asks_the_kit(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "door.kit").write_bytes(kit())
    assert command(monkeypatch, cli, "capture", "anna", "--camera", "session") == 35
    out, err = capsys.readouterr()
    assert out == ""
    assert "already enrolled as s2" in err
    assert not (place / "photos").exists()
    assert command(monkeypatch, cli, "capture", "anna", "--camera", "session", "--allow-alike") == 0


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["anna", "--camera", "session", "--kit", "missing.kit"], 20, "missing.kit"),
        (["anna", "--camera", "nowhere", "--detector", "detector.onnx"], 31, "nowhere"),
        (["anna", "--camera", "session", "--detector", "missing.onnx"], 32, "edge-export detector"),
        (["anna/..", "--camera", "session", "--detector", "detector.onnx"], 2, "slash"),
    ],
)
def test_bad_input_is_a_sentence_and_a_code(
    place: Path, words: list[str], code: int, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, cli, "capture", *words) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert not (place / "photos").exists()


def test_without_kit_and_detector_there_is_a_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cv2, "data", None, raising=False)  # as if OpenCV brought no cascades, which 4.x does
    with pytest.raises(DetectorMissingError, match=r"There is no kit.*--kit.*--detector.*edge-export detector -o"):
        enrolling.find_with(None, None)


def test_a_detector_is_checked_before_it_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "detector.onnx"
    for data, error in (
        (kits.parse(kit()).recognizer, KitUnsafeError),
        (b"", EdgeError),
        (b"no onnx at all", KitUnsafeError),
        (re.sub(b"Sigmoid", b"Softmax", yunet()), KitUnsafeError),
        (detector.original(), DetectorMissingError),  # of one size only
    ):
        file.write_bytes(data)
        with pytest.raises(error, match="edge-export detector"):
            enrolling.find_with(file, None)


def test_the_workstation_writes_a_detector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    yunet()  # or skip
    assert command(monkeypatch, export_cli, "detector", "-o", str(tmp_path / "detector.onnx")) == 0
    assert len(enrolling.find_with(tmp_path / "detector.onnx", None).detect(frames(1)[0])) == 1
