"""Draw the diagrams of README and docs/architecture.md as SVG: python -m scripts.qa.diagrams

A diagram is a list of lanes, and a lane is a row of boxes from left to right. A box names a step and the file or folder
that does it; drawing fails if that path does not exist, so that a renamed module cannot leave an old diagram behind.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "pictures"
BOX_WIDTH, BOX_HEIGHT, GAP = 198, 58, 24
LANE_TITLE, LANE_GAP, MARGIN = 24, 18, 16
INK, FRAME, FILL, ACCENT, PAPER = "#1f2933", "#9aa5b1", "#f5f7fa", "#0b69a3", "#ffffff"


@dataclass(frozen=True)
class Box:
    """One step, and the file or folder that does it."""

    step: str
    path: str = ""


@dataclass(frozen=True)
class Lane:
    """One row of boxes with a title."""

    title: str
    boxes: tuple[Box, ...]


def lane(title: str, *boxes: tuple[str, str] | str) -> Lane:
    return Lane(title, tuple(Box(box) if isinstance(box, str) else Box(*box) for box in boxes))


DIAGRAMS: dict[str, tuple[Lane, ...]] = {
    "pipeline": (
        lane(
            "Workstation",
            "photos, one folder per person",
            ("trainer fit", "trainer/"),
            "model.npz: dictionary D, classifier W, threshold",
            ("edge-export build", "export/"),
            "door.kit: one checked file",
        ),
        lane(
            "Device, which runs door.kit",
            ("camera frames", "edge/camera/"),
            ("find, align and recognise faces", "edge/vision/"),
            ("one decision per visit", "edge/decision/"),
            ("audit log, then events", "edge/audit/"),
            ("relay, MQTT, webhook, command", "edge/sinks/"),
        ),
    ),
    "frame": (
        lane(
            "Frames in",
            ("open the sensor, stream or file", "edge/camera/sources.py"),
            ("newest frame with its capture time", "edge/camera/live.py"),
            ("main loop", "edge/terminal/loop.py"),
        ),
        lane(
            "Faces to labels",
            ("find faces and landmarks", "edge/vision/detect.py"),
            ("align: one crop per face", "edge/vision/preprocess.py"),
            ("reject poor crops", "edge/vision/quality.py"),
            ("run the kit: label, confidence", "edge/vision/recognize.py"),
        ),
        lane(
            "One decision per visit",
            ("follow faces over frames", "edge/decision/track.py"),
            ("recognise only when needed", "edge/decision/looks.py"),
            ("collect the sightings of a visit", "edge/decision/visit.py"),
            ("who may pass, and when", "edge/decision/doorlist.py"),
            ("granted or denied", "edge/decision/door.py"),
        ),
        lane(
            "Event out",
            ("make the event", "edge/events/event.py"),
            ("log first, then deliver", "edge/audit/gate.py"),
            ("hash-chained log", "edge/audit/log.py"),
            ("queue and thread of a sink", "edge/events/worker.py"),
            ("switch the relay", "edge/sinks/gpio.py"),
        ),
    ),
    "photo": (
        lane(
            "Photos in",
            ("read a folder per person", "trainer/data/gallery.py"),
            ("decode one photo", "edge/camera/photo.py"),
            ("find and align the face", "edge/vision/preprocess.py"),
            ("features of a crop", "trainer/features/"),
            ("leave out those that hurt", "trainer/own_features.py"),
        ),
        lane(
            "Training",
            ("the whole recipe", "trainer/training.py"),
            ("learn D: Algorithm 1", "trainer/method/solver.py"),
            ("code faces with D", "trainer/method/coding.py"),
            ("learn W, add up experts", "trainer/method/experts.py"),
            ("threshold against strangers", "trainer/thresholds.py"),
        ),
        lane(
            "Model to kit",
            ("model file", "trainer/model.py"),
            ("choose iterations, thresholds", "export/measure.py"),
            ("ONNX graph", "export/graph.py"),
            ("parity check", "export/verify.py"),
            ("pack and sign", "export/pack.py"),
        ),
        lane(
            "On the device",
            ("unpack, check hashes, signature", "edge/kit/format.py"),
            ("allow only listed operators", "edge/kit/guard.py"),
            ("self-test", "edge/kit/selftest.py"),
            ("activate, or roll back", "edge/kit/store.py"),
        ),
    ),
    "table": (
        lane(
            "Plan",
            ("trainer tables", "trainer/cli/research.py"),
            ("list cells x methods x splits", "trainer/paper/tables.py"),
            ("spread over cores or Dask", "trainer/parallel.py"),
        ),
        lane(
            "Measure one cell",
            ("split the data set", "trainer/paper/experiments.py"),
            ("look up the method", "trainer/baselines/registry.py"),
            ("train: LCLRRDL", "trainer/method/estimator.py"),
            ("or train a baseline", "trainer/baselines/"),
        ),
        lane(
            "Write",
            ("append to the results file", "trainer/paper/tables.py"),
            ("means and deviations", "trainer/paper/tables.py"),
            ("Markdown, CSV, LaTeX", "trainer/paper/typeset.py"),
        ),
    ),
}


def draw(lanes: tuple[Lane, ...]) -> str:
    """The SVG text of one diagram."""
    longest = max(len(row.boxes) for row in lanes)
    width = 2 * MARGIN + longest * BOX_WIDTH + (longest - 1) * GAP
    lane_height = LANE_TITLE + BOX_HEIGHT
    height = 2 * MARGIN + len(lanes) * lane_height + (len(lanes) - 1) * LANE_GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{INK}">',
        f'<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 8 4 0 8z" fill="{FRAME}"/></marker></defs>',
        f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}"/>',
    ]
    for row, current in enumerate(lanes):
        top = MARGIN + row * (lane_height + LANE_GAP)
        parts.append(f'<text x="{MARGIN}" y="{top + 12}" font-weight="600">{escape(current.title)}</text>')
        for column, box in enumerate(current.boxes):
            left = MARGIN + column * (BOX_WIDTH + GAP)
            parts += _draw_box(box, left, top + LANE_TITLE)
            if column:
                y = top + LANE_TITLE + BOX_HEIGHT / 2
                parts.append(_arrow(left - GAP + 2, y, left - 2, y))
    return "\n".join([*parts, "</svg>", ""])


def _draw_box(box: Box, left: float, top: float) -> list[str]:
    if box.path and not (ROOT / box.path).exists():
        raise FileNotFoundError(f"The diagram names {box.path}, which does not exist. Correct it in scripts/qa/diagrams.py.")
    lines = _wrap(box.step)
    middle = left + BOX_WIDTH / 2
    height = 15 * (len(lines) + bool(box.path))
    first = top + (BOX_HEIGHT - height) / 2 + 11
    fill = FILL if box.path else PAPER
    parts = [
        f'<rect x="{left}" y="{top}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6" fill="{fill}" stroke="{FRAME}"/>',
        *(
            f'<text x="{middle}" y="{first + 15 * number}" text-anchor="middle">{escape(line)}</text>'
            for number, line in enumerate(lines)
        ),
    ]
    if box.path:
        y = first + 15 * len(lines)
        style = f'text-anchor="middle" font-family="monospace" font-size="10.5" fill="{ACCENT}"'
        parts.append(f'<text x="{middle}" y="{y}" {style}>{escape(box.path)}</text>')
    return parts


def _wrap(text: str, letters: int = 27) -> list[str]:
    """`text` in lines of at most `letters` letters."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        lines = [*lines[:-1], longer] if len(longer) <= letters else [*lines, word]
    return lines


def _arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{FRAME}" stroke-width="1.5" marker-end="url(#arrow)"/>'


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, lanes in DIAGRAMS.items():
        (FOLDER / f"{name}.svg").write_text(draw(lanes), encoding="utf-8")
        sys.stderr.write(f"wrote docs/pictures/{name}.svg\n")


if __name__ == "__main__":
    main()
