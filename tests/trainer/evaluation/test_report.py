"""The page: complete, well-formed, without external resources, with the numbers of the JSON; and its command."""

from __future__ import annotations

import base64
import errno
import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import cv2
import numpy as np
import pytest

from edge.errors import UsageError
from tests.fixtures import kits as doors
from tests.fixtures.trainer_command import TrainerCommand
from trainer.data.gallery import Gallery, RejectedPhoto
from trainer.evaluation import figures
from trainer.evaluation.evaluate import Evaluation, measure
from trainer.evaluation.report import page
from trainer.evaluation.trials import run_trials, system_of_model
from trainer.method.parts import Grid
from trainer.thresholds import StrangerCalibration

pytestmark = pytest.mark.slow

TODAY = date(2026, 3, 1)
FIGURES = ("det", "confidence", "cmc", "atoms", "split", "codes", "likeness", "convergence")
SECTIONS = (
    "summary",
    "strangers",
    "ranks",
    "conditions",
    "people",
    "acquisition",
    "confusions",
    "misses",
    "intruders",
    "inside",
)
HOSTILE = ("<script>alert(1)</script>", '"><img src=x onerror=alert(2)>', "&lt; ' \x07 \u202e$x$", "_hidden 名前")


def measured(
    *, strangers: bool = True, kind: str = "both", threshold: float = 0.65, parts: Grid | None = None, **changes: Any
) -> Evaluation:
    """Four people with hostile names, on photos with so much noise that some are missed."""
    model = doors.model(kind, "l21", parts=parts)
    names = dict(zip(model.labels, HOSTILE, strict=True))
    calibration = StrangerCalibration(confidence=threshold, target=0.01, passed=1, trials=300)
    model = replace(model, labels=HOSTILE, calibration=calibration, **changes)
    images, people = doors.held_out()
    noise = np.random.default_rng(0).normal(0, 150, images.shape)
    others, _ = doors.crops(seed=9)

    def gallery(images: Any, labels: Any, conditions: Any) -> Gallery:
        return Gallery(
            images=np.clip(images, 0, 255).astype(np.uint8),
            labels=np.array(labels),
            sources=tuple(f"{i} & <{i}>.png" for i in range(len(images))),
            conditions=tuple(conditions),
            rejected=(RejectedPhoto(person=HOSTILE[0], source="<b>.png", condition="<clean>", reason="no <i>face</i>"),),
            notes=("A note on <b>.",),
        )

    known = gallery(images + noise, [names[name] for name in people], ["<clean>", "_s&arf"] * (len(images) // 2))
    unknown = gallery(others, [f"<stranger {i // 12}>" for i in range(len(others))], ["<clean>"] * len(others))
    system = system_of_model(model, "<door>.npz")
    trials, notes = run_trials(system, known, unknown if strangers else None)
    return measure(system, trials, (*known.notes, *notes))


@pytest.fixture(scope="module")
def found() -> Evaluation:
    return measured()


@pytest.fixture(scope="module")
def html(found: Evaluation) -> str:
    return page(found, TODAY)


def parsed(html: str) -> ElementTree.Element:
    return ElementTree.fromstring(html.removeprefix("<!DOCTYPE html>\n"))


def words(html: str) -> str:
    """The visible text, as one line."""
    return " ".join("".join(parsed(html).find("body").itertext()).split())  # type: ignore[union-attr]


def test_photos_are_shown_in_their_colours() -> None:
    photo = np.random.default_rng(0).integers(0, 256, (5, 4, 3), np.uint8)
    data = base64.b64decode(figures.pixels(photo, "gray", 0, 255).partition(",")[2])
    np.testing.assert_array_equal(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR), photo)


def test_page_is_well_formed_and_complete(html: str) -> None:
    root = parsed(html)
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(set(ids)) == len(ids)
    assert {*FIGURES, *SECTIONS} <= set(ids)
    for name in FIGURES:
        figure = root.find(f".//figure[@id='{name}']")
        assert figure is not None
        assert len((figure.find("figcaption").text or "").strip()) > 20  # type: ignore[union-attr]
        assert figure.findall(".//img")
    assert all(image.get("alt") for image in root.iter("img"))


def test_page_has_no_external_resource(html: str) -> None:
    root = parsed(html)
    assert not list(root.iter("script")) + list(root.iter("link")) + list(root.iter("iframe"))
    assert "http" not in html
    assert "url(" not in html
    assert "@import" not in html
    sources = [image.get("src", "") for image in root.iter("img")]
    assert sources
    for source in sources:
        kind, data = re.fullmatch(r"data:image/(png|svg\+xml);base64,([A-Za-z0-9+/=]+)", source).groups()  # type: ignore[union-attr]
        picture = base64.b64decode(data, validate=True)
        if kind == "png":
            assert cv2.imdecode(np.frombuffer(picture, np.uint8), cv2.IMREAD_COLOR) is not None
        else:
            ElementTree.fromstring(picture)
            assert b'href="http' not in picture


def test_names_are_escaped(html: str) -> None:
    root = parsed(html)
    text = words(html)
    for shown in (
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(2)>',
        "&lt; ' ? ?$x$",
        "_hidden 名前",
        "<stranger 0>",
    ):
        assert shown in text
    assert "no <i>face</i>" in text
    assert "_s&arf" in text
    assert not [element for element in root.iter() if element.get("onerror")]
    assert "\x07" not in html
    assert "\u202e" not in html


def shares(facts: Any, under: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(facts, dict):
        if "share" in facts and "of" in facts:
            yield under, facts
        else:
            for name, value in facts.items():
                yield from shares(value, f"{under}.{name}")
    elif isinstance(facts, list):
        for value in facts:
            yield from shares(value, under)


def test_every_number_of_the_json_is_on_the_page(found: Evaluation, html: str) -> None:
    text = words(html)
    facts = json.loads(json.dumps(found.facts()))
    found_shares = list(shares(facts))
    assert {name for name, _ in found_shares} >= {".rank1", ".failed", ".own.fnir", ".own.fpir", ".at.fnir", ".each.fnir_at"}
    for name, share in found_shares:
        if share["of"] == 0 or name == ".strangers_named":
            continue
        if name in (".confusions.photos", ".intruders.photos"):
            assert f"{share['count']} of {share['of']} photo" in text
            continue
        digits = 2 if "fpir" in name else 1
        low, high = (f"{100 * share[end]:.{digits}f}" for end in ("low", "high"))
        assert f"{100 * share['share']:.{digits}f} %" in text
        assert f"{low} % to {high} %" in text or f"{share['count']:,}/{share['of']:,}, {low} to {high}" in text
    for point in (facts["own"], *facts["at"]):
        assert f"{point['threshold']:.4f}" in text
    assert f"they show {100 * facts['at'][0]['bound']:.2f} % at best" in text
    for photo in (*facts["misses"], *(pair["surest"] for pair in facts["confusions"])):
        assert f"confidence {photo['confidence']:.3f}" in text
    for example in facts["examples"]:
        assert f"{100 * example['taken_off']:.1f} % taken off" in text
    assert f"{100 * facts['own_atoms']:.1f} % of a code lies on the atoms" in text
    assert f"{facts['alike'][0]:.2f} within a person" in text


@pytest.mark.parametrize("kind", ["both", "gradient"])
def test_votes_of_the_parts_are_shown(kind: str) -> None:
    found = measured(kind=kind, parts=(3, 2))
    html = page(found, TODAY)
    test_every_number_of_the_json_is_on_the_page(found, html)
    root = parsed(html)
    split, parts = (root.find(f".//figure[@id='{name}']") for name in ("split", "parts"))
    assert split is not None
    assert parts is not None
    assert found.inside is not None
    votes = [vote for example in found.inside.examples for vote in example.parts]
    assert len(votes) == 6 * len(found.inside.examples)
    assert 0 < sum(vote.right for vote in votes) < len(votes), "the test needs both"
    colours = {True: figures.BLUE, False: figures.ORANGE}
    for vote, cell in zip(votes, split.findall(".//i"), strict=True):
        assert cell.get("style", "").startswith(f"background:{colours[vote.right]}")
        assert float(cell.text or "") == pytest.approx(vote.confidence, abs=0.006)
    shown = [cell.text for cell in parts.findall(".//i")]
    assert shown == [f"{100 * share.count / share.of:.0f}" for own in found.inside.part_splits for share in own.parts]


def test_summary_adds_up(found: Evaluation, html: str) -> None:
    assert found.own is not None
    match = re.search(
        r"Of (\d+) photos of 4 enrolled people, (\d+) get the right name .*?, (\d+) a wrong name .*? and (\d+) no name",
        words(html),
    )
    assert match is not None
    photos, right, wrong, none = map(int, match.groups())
    assert photos == right + wrong + none == found.own.fnir.of
    assert wrong + none == found.own.fnir.count
    assert min(right, wrong, none) > 0, "the test needs all three"


def test_same_evaluation_gives_the_same_page(found: Evaluation, html: str) -> None:
    assert page(found, TODAY) == html
    assert "1 March 2026" in html
    assert found.inside is not None
    assert found.inside.part_splits == ()
    assert parsed(html).find(".//figure[@id='parts']") is None, "the model has no parts"
    assert not parsed(html).findall(".//figure[@id='split']//i")


@pytest.mark.parametrize(
    ("options", "says", "absent"),
    [
        ({"strangers": False}, ["pass --strangers", "No photos of strangers"], "det"),
        (
            {"kind": "pixels", "training": {}, "threshold": 2.0},
            ["Atoms of D", "older version made this model", "24 no name"],
            "x",
        ),
        ({"threshold": -1.0}, ["Worst misses"], "x"),
    ],
)
def test_missing_things_are_explained(options: dict[str, Any], says: list[str], absent: str) -> None:
    html = page(measured(**options), TODAY)
    assert [phrase for phrase in says if phrase not in words(html)] == []
    assert parsed(html).find(f".//figure[@id='{absent}']") is None


def test_page_without_model_threshold_or_strangers_is_complete(found: Evaluation) -> None:
    kit = page(measure(replace(found.system, kind="kit", provisional=True, model=None), found.trials), TODAY)
    assert "pass --model with the kit" in words(kit)
    assert "The threshold is provisional" in words(kit)
    assert parsed(kit).find(".//figure[@id='atoms']") is None
    none = page(measure(replace(found.system, threshold=None, model=None), found.trials), TODAY)
    assert "The model has no threshold" in words(none)


# --- The command ---


def test_command_writes_page_and_json(trainer: TrainerCommand, files: Path, tmp_path: Path) -> None:
    report, facts = tmp_path / "out.html", tmp_path / "out.json"
    model = files / "door.npz"
    given = ("--strangers", files / "strangers.npz", "--report", report, "--json", facts)
    code, out, err = trainer("evaluate", model, files / "seen.npz", *given)
    assert (code, out) == (0, "")
    assert "keep it private" in err
    for file in (report, facts):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    written = json.loads(facts.read_text())
    assert written["rank1"]["of"] == 24
    assert parsed(report.read_text()).find(".//figure[@id='det']") is not None
    code, out, _ = trainer("evaluate", model, files / "seen.npz", "--strangers", files / "strangers.npz", "--json", "-")
    assert (code, json.loads(out)) == (0, written)
    code, out, _ = trainer("evaluate", files / "door.kit", files / "photos", "--condition", "_(clean|scarf)")
    assert code == 0
    assert out.startswith("rank-1")
    assert "scarf: FNIR" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["door.npz", "nowhere"], "There is no"),
        (["door.npz", "seen.npz", "--report", "nowhere/out.html"], "cannot be written"),
        (["door.npz", "seen.npz", "--json", "empty"], "cannot be written"),
        (["door.npz", "seen.npz", "--condition", "["], "not a regular expression"),
        (["door.npz"], "DATA"),
    ],
)
def test_bad_input_gives_a_sentence_and_an_exit_code(
    trainer: TrainerCommand, files: Path, words: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    code, out, err = trainer("evaluate", *words)
    assert (code, out) == (UsageError.exit_code, "")
    assert says in err
    assert "Traceback" not in err


def test_full_disk_is_an_error_without_a_partial_file(
    trainer: TrainerCommand, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    code, out, err = trainer("evaluate", files / "door.kit", files / "seen.npz", "--report", tmp_path / "out.html")
    assert (code, out) == (2, "")
    assert "No space left" in err
    assert list(tmp_path.iterdir()) == []
