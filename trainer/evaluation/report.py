"""An evaluation as a page: one HTML file that needs nothing beside it, with every number that `Evaluation.facts` tells.

Curves are SVG and faces PNG, both made by matplotlib and laid into the page; names are text of the page, never of a picture,
so that any script can be read. The file is well-formed XML as well. It shows faces: whoever writes it keeps it private.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from html import escape
from importlib.metadata import version
from pathlib import Path

import numpy as np

from edge.text import percent, plural, printable
from trainer.evaluation import figures
from trainer.evaluation.figures import Plot
from trainer.evaluation.measures import FPIRS, Confusion, Evaluation, Example, Photo, Point, Share, Split, as_images, likeness
from trainer.thresholds import MIN_PEOPLE
from trainer.types import Array

STYLE = Path(__file__).with_name("report.css")
PEOPLE = 15  # rows of the table of people that are shown at once
BLOCKS = 20  # people in the picture of Z
ATOMS = (8, 5)  # people, atoms each


def page(found: Evaluation, today: date) -> str:
    """The whole page."""
    title = f"Evaluation of {_text(found.subject.file)}"
    sections = (
        _header(found, today),
        _summary(found),
        _strangers(found),
        _ranks(found),
        _conditions(found),
        _people(found),
        _acquisition(found),
        _confusions(found),
        _misses(found),
        _intruders(found),
        _inside(found),
        _terms(found),
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8" />\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1" />\n'
        '<meta name="color-scheme" content="light dark" />\n'
        f"<title>{title}</title>\n<style>\n{STYLE.read_text()}</style>\n</head>\n<body>\n"
        + "\n".join(section for section in sections if section)
        + "\n</body>\n</html>\n"
    )


# --- Sections ---


def _header(found: Evaluation, today: date) -> str:
    subject = found.subject
    facts = (
        f"{subject.kind} of {len(subject.labels)} people",
        f"features {_text(subject.features)}, coding {_text(subject.coding)}",
        f"{today.day} {today:%B %Y}",
        f"lclrr-edge {version('lclrr-edge')}",
    )
    spans = "".join(f"<span>{fact}</span>" for fact in facts)
    return (
        f"<header>\n<h1>{_text(subject.file) or 'Evaluation'}</h1>\n"
        f'<p class="facts">{spans}</p>\n'
        '<p class="private"><b>Confidential.</b> This page shows faces and names: treat it as biometric data.</p>\n'
        "</header>"
    )


def _summary(found: Evaluation) -> str:
    own, subject = found.own, found.subject
    tiles = [("right person first", _percent(found.rank1.value), f"rank-1, {_between(found.rank1)}")]
    said = []
    if own is None:
        said.append(
            f"Of {found.rank1.of:,} photos of {found.people} enrolled people, the right person has the highest score in "
            f"{found.rank1.count:,} ({_percent(found.rank1.value)}). The model has no threshold, so nobody can be told from a "
            f"stranger yet: <code>trainer fit</code> measures one with {MIN_PEOPLE} people, or with --strangers."
        )
    else:
        right, unnamed = own.fnir.of - own.fnir.count, own.fnir.count - own.wrong
        said.append(
            f"Of {own.fnir.of:,} photos of {found.people} enrolled people, <b>{right:,} get the right name</b> "
            f"({_percent(right / own.fnir.of)}), {own.wrong:,} a wrong one ({_percent(own.wrong / own.fnir.of)}) and "
            f"{unnamed:,} none ({_percent(unnamed / own.fnir.of)})."
        )
        tiles.append(("enrolled, not recognised", _percent(own.fnir.value), f"FNIR, {_between(own.fnir)}"))
    if own is not None and own.fpir.of and found.strangers_named is not None:
        said.append(
            f"Of {own.fpir.of:,} photos of {plural(found.strangers, 'stranger')}, <b>{own.fpir.count:,} get a name</b> "
            f"({_percent(own.fpir.value, 2)})"
            + (f"; they show {found.strangers_named.count} of the strangers." if own.fpir.count else ".")
        )
        tiles.append(("strangers, given a name", _percent(own.fpir.value, 2), f"FPIR, {_between(own.fpir, 2)}"))
        if own.fpir.count == 0:
            said.append(f"None of {own.fpir.of:,} claims no better than {_percent(own.bound, 2)}.")
    elif not len(found.trials.truth[~found.trials.enrolled]):
        said.append(
            "<b>No strangers were shown to it</b>, so nothing is known about who else would be let in: pass --strangers."
        )
    if subject.provisional:
        said.append("The threshold is provisional: it was set without having seen strangers.")
    if found.failed.count:
        said.append(
            f"In {found.failed.count:,} of {found.failed.of:,} photos no usable face was found; they are not among these."
        )
    said.append(
        "Every photo is judged by itself. A door decides on several frames of a visit, which this page does not measure."
    )
    tiles.append(("no usable face", _percent(found.failed.value), f"failure to acquire, {_between(found.failed)}"))
    boxes = "".join(f"<div><dt>{name}</dt><dd>{value}</dd><dd>{note}</dd></div>" for name, value, note in tiles)
    notes = "".join(f"<li>{_text(note)}</li>" for note in found.notes)
    return (
        f'<section id="summary">\n<p class="lead">{" ".join(said)}</p>\n<dl class="tiles">{boxes}</dl>\n'
        + (f'<ul class="notes">{notes}</ul>\n' if notes else "")
        + "</section>"
    )


def _strangers(found: Evaluation) -> str:
    if not found.at:
        return _section(
            "strangers",
            "Keeping strangers out",
            "<p>DET, and FNIR at FPIR "
            + ", ".join(f"{rate:g}" for rate in FPIRS)
            + ", need photos of people who are not enrolled: pass them with --strangers.</p>",
            _confidence_figure(found),
        )
    points = ([found.own] if found.own is not None else []) + list(found.at)
    rows = [
        [_target(point, found), f"{point.threshold:.4f}", _rate(point.fpir, 2), _rate(point.fnir), f"{point.wrong:,}"]
        for point in points
    ]
    heads = ("", "threshold", "FPIR: strangers given a name", "FNIR: enrolled not recognised", "of these, wrong name")
    few = [point for point in found.at if not point.shown]
    remark = ""
    if few:
        rates = ", ".join(f"{point.target:g}" for point in few)
        remark = (
            f'<p class="remark">An FPIR of {rates} cannot be shown with {few[0].fpir.of:,} photos of strangers: they can '
            f"claim no better than {_percent(few[0].bound, 2)} (3/N). The rows are what was counted, and no more.</p>\n"
        )
    return _section(
        "strangers",
        "Keeping strangers out",
        _table(heads, rows),
        remark,
        '<div class="pair">\n' + _figure("det", figures.det_curve(found), _DET) + _confidence_figure(found) + "</div>",
    )


_DET = (
    "DET: what each threshold costs. Further left fewer strangers get a name, further down fewer enrolled people are missed; "
    "the red dot is the threshold in use with its 95 % intervals, and in the grey part there are too few strangers to "
    "claim anything."
)


def _confidence_figure(found: Evaluation) -> str:
    caption = "Confidence of every photo: strangers should lie left of the threshold (dashed), enrolled people right of it."
    if found.unlike:
        caption += f" {plural(found.unlike, 'photo')} that the kit refuses as unlike a face are not shown."
    return _figure("confidence", figures.confidence(found), caption)


def _target(point: Point, found: Evaluation) -> str:
    if point.target is None:
        return f"<b>as the {found.subject.kind} is set</b>"
    mark = "" if point.shown else "<small>too few strangers to show it</small>"
    return f"FPIR {point.target:g} {mark}"


def _ranks(found: Evaluation) -> str:
    rows = [[str(r), _percent(found.cmc[r - 1])] for r in (1, 2, 3, 5, 10, 20) if r <= len(found.cmc)]
    return _section(
        "ranks",
        "Telling enrolled people apart",
        '<div class="pair">\n'
        + _figure(
            "cmc",
            figures.cmc(found),
            "CMC: how often the right person is among the first so many, without any threshold.",
        )
        + f"<div>\n<p>Rank-1: {_rate(found.rank1)}</p>\n{_table(('among the first', 'right person'), rows)}</div>\n</div>",
    )


def _conditions(found: Evaluation) -> str:
    if not found.conditions:
        return ""
    heads = ["condition", "rank-1", *_split_heads(found)]
    if found.own is not None and found.own.fpir.of:
        heads.append("FPIR")
    heads.append("no usable face")
    rows = []
    for split in found.conditions:
        row = [_text(split.name or "other"), _rate(split.rank1), *_split_cells(split)]
        if found.own is not None and found.own.fpir.of:
            row.append(_rate(split.fpir, 2))
        rows.append([*row, _rate(split.failed)])
    return _section(
        "conditions",
        "By condition",
        "<p>One threshold for all, as at a door; FPIR and the first FNIR are at the threshold in use.</p>\n"
        if found.own is not None
        else "",
        _table(heads, rows),
    )


def _split_heads(found: Evaluation) -> list[str]:
    return (["FNIR"] if found.own is not None else []) + [f"FNIR at FPIR {point.target:g}" for point in found.at]


def _split_cells(split: Split) -> list[str]:
    return ([_rate(split.fnir)] if split.fnir is not None else []) + [_rate(share) for share in split.fnir_at]


def _people(found: Evaluation) -> str:
    heads = ["person", "rank-1", *_split_heads(found), "no usable face", "most often taken for"]
    rows = [
        [_text(split.name), _rate(split.rank1), *_split_cells(split), _rate(split.failed), _text(split.taken_for)]
        for split in found.each
    ]
    rest = rows[PEOPLE:]
    more = f"<details>\n<summary>The other {len(rest)}</summary>\n{_table(heads, rest)}</details>\n" if rest else ""
    perfect = sum(split.rank1.count == split.rank1.of for split in found.each)
    always = sum(split.fnir is not None and split.fnir.count == 0 for split in found.each)
    said = f"<p>Those most often missed first. Of {len(found.each)} people, {perfect} come first in all their photos"
    said += f"; {always} get the right name in every photo.</p>\n" if found.own is not None else ".</p>\n"
    return _section("people", "By person", said, _table(heads, rows[:PEOPLE]), more)


def _acquisition(found: Evaluation) -> str:
    if not found.failed.count:
        said = f"<p>A usable face was found in all {found.failed.of:,} photos ({_between(found.failed)}).</p>\n"
        return _section("acquisition", "Failure to acquire", said)
    rows = [[_text(reason), f"{count:,}"] for reason, count in found.reasons.items()]
    return _section(
        "acquisition",
        "Failure to acquire",
        f"<p>{found.failed.count:,} of {found.failed.of:,} photos, strangers' too, could not be used: "
        f"{_percent(found.failed.value)} ({_between(found.failed)}).</p>\n",
        _table(("reason", "photos"), rows),
    )


def _confusions(found: Evaluation) -> str:
    if not found.confusions:
        return _section("confusions", "Confusion pairs", "<p>Nobody came before the right person in any photo.</p>\n")
    return _section(
        "confusions",
        "Confusion pairs",
        "<p>Enrolled people whose score another exceeds, the most frequent pairs first: left the surest photo of the person, "
        "right the most similar photo of the one they are taken for.</p>\n",
        _pairs(found, found.confusions),
    )


def _pairs(found: Evaluation, pairs: Iterable[Confusion]) -> str:
    cards = []
    for pair in pairs:
        shown, source = _portrait(found, pair.taken_for, pair.surest.index)
        cards.append(
            "<li><figure>"
            + _face(found.trials.crops[pair.surest.index], pair.person)
            + f"<figcaption>{_text(pair.person)}<small>{_told(pair.surest)}</small></figcaption></figure><figure>"
            + (_face(shown, pair.taken_for) if shown is not None else '<span class="blank"></span>')
            + f"<figcaption>{_text(pair.taken_for)}<small>{source}</small></figcaption></figure>"
            + f"<p>{pair.photos.count} of {plural(pair.photos.of, 'photo')}, {_confidence(pair.surest)}"
            + (", <b>named</b>" if pair.surest.named else ", not named")
            + "</p></li>"
        )
    return f'<ul class="cards pairs">{"".join(cards)}</ul>\n'


def _misses(found: Evaluation) -> str:
    cards = []
    for photo in found.misses:
        named = f"named <b>{_text(photo.nearest)}</b>" if photo.named and photo.rank > 1 else "no name"
        cards.append(
            f"<li><figure>{_face(found.trials.crops[photo.index], photo.person)}<figcaption>{_text(photo.person)}"
            f"<small>{_told(photo)}</small></figcaption></figure>"
            f"<p>{named}, {_confidence(photo)}, right person at rank {photo.rank}</p></li>"
        )
    if not cards:
        return _section("misses", "Worst misses", "<p>None.</p>\n")
    return _section(
        "misses",
        "Worst misses",
        "<p>Enrolled people who get a wrong name, then those who get none; the farthest from their own first.</p>\n",
        f'<ul class="cards">{"".join(cards)}</ul>\n',
    )


def _intruders(found: Evaluation) -> str:
    if not found.intruders:
        return ""
    return _section(
        "intruders",
        "Strangers who come nearest",
        "<p>By confidence, named or not, beside the most similar photo of the enrolled person. Two who are one and the same "
        "are an error of the data.</p>\n",
        _pairs(found, found.intruders),
    )


def _inside(found: Evaluation) -> str:
    model = found.model
    if model is None or found.codes is None:
        return _section(
            "inside",
            "How it sees faces",
            "<p>Pictures of the dictionary, of faces taken apart and of training need the model file: pass --model beside the "
            "kit.</p>\n",
        )
    parts = []
    atoms = as_images(model.D, model.spec)
    if atoms is None:
        parts.append("<p>The features are those of an embedding model: its atoms, DZ and E cannot be shown as pictures.</p>\n")
    else:
        parts += [_atoms(found, atoms), _splits(found), _parts(found)]
    parts.append(_codes(found))
    if found.residuals:
        caption = (
            f"Training: the three constraints are met after {len(found.residuals)} iterations; the penalty grows until then."
        )
        parts.append(_figure("convergence", figures.convergence(found.residuals), caption))
    else:
        parts.append(
            '<p id="convergence">The model does not tell how training converged: it was made by an older version. Train it '
            "again to see.</p>\n"
        )
    return _section("inside", "How it sees faces", *parts)


def _atoms(found: Evaluation, atoms: Array) -> str:
    model = found.model
    assert model is not None
    people, each = ATOMS
    cards = []
    for person in range(min(people, len(model.labels))):
        own = np.flatnonzero(model.atom_people == person)[:each]
        ends = np.quantile(atoms[own], (0.02, 0.98), axis=(1, 2)).T
        pictures = "".join(_picture(atoms[i], "gray", low, high, "an atom") for i, (low, high) in zip(own, ends, strict=True))
        cards.append(f'<li><p class="strip">{pictures}</p><p>{_text(model.labels[person])}</p></li>')
    more = f" The first {len(cards)} of {len(model.labels)} people." if len(cards) < len(model.labels) else ""
    caption = (
        "Atoms of D, each begun as a photo of the person below it. Training lets every atom serve everybody: what looks like "
        f"noise are differences between faces.{more} Contrast is stretched for each."
    )
    return (
        f'<figure id="atoms">\n<ul class="cards small">{"".join(cards)}</ul>\n<figcaption>{caption}</figcaption>\n</figure>\n'
    )


def _splits(found: Evaluation) -> str:
    cards = []
    for example in found.examples:
        top = float(example.x.max())
        parts = [
            (_picture(example.x, "gray", 0, top, "the face X"), "X"),
            (_picture(example.recovered, "gray", 0, top, "what D recovers, DZ"), "DZ"),
            (_picture(example.x - example.recovered, "RdBu", -top / 2, top / 2, "what was taken off, E"), "E"),
        ]
        if example.parts:
            cells = [
                (figures.BLUE if vote.right else figures.ORANGE, vote.confidence, f"{vote.confidence:.2f}".lstrip("0"))
                for vote in example.parts
            ]
            parts.append((_gridded(found, found.trials.crops[example.photo.index], cells, "what its parts say"), "parts"))
        strip = "".join(f"<span>{picture}<small>{name}</small></span>" for picture, name in parts)
        condition = f"{_text(example.photo.condition)}, " if example.photo.condition else ""
        cards.append(
            f'<li><p class="strip">{strip}</p>'
            f"<p>{_text(example.photo.person)}<small>{condition}{_percent(example.taken_off)} taken off"
            f"{_outvoted(example)}</small></p></li>"
        )
    caption = (
        "Recognised faces X = DZ + E: what the dictionary recovers, and what was taken off (red: darker than the face should "
        "be, blue: brighter). They were chosen by how much is taken off: the median of their condition, and its ninth tenth. "
        "What was worn in training, too, is part of D and stays on."
    )
    if found.part_splits:
        caption += (
            " Right, what each part of the face says by itself: <b>blue</b> where it names the right person, <b>orange</b> "
            "where another, with its confidence, which is also its weight and the strength of the colour. Parts that are "
            "covered are outvoted. One face of each condition is the recognised one in which most parts are wrong: they take "
            "it for different people, so that the right one, second with many, still has the most together."
        )
    return (
        f'<figure id="split">\n<ul class="cards wide">{"".join(cards)}</ul>\n<figcaption>{caption}</figcaption>\n</figure>\n'
    )


def _outvoted(example: Example) -> str:
    if not example.parts:
        return ""
    wrong = sum(not vote.right for vote in example.parts)
    whole = f"the whole face is {'right' if example.whole.right else 'wrong'} ({example.whole.confidence:.2f})"
    return f"; {wrong} of {len(example.parts)} parts {'is' if wrong == 1 else 'are'} wrong, {whole}"


def _parts(found: Evaluation) -> str:
    """How often each part is right, by condition: over the mean face of that condition, and as a table."""
    if not found.part_splits:
        return ""
    trials, cards = found.trials, []
    names = [_text(split.name or ("other" if found.conditions else "all")) for split in found.part_splits]
    for name, split in zip(names, found.part_splits, strict=True):
        chosen = trials.enrolled & (trials.conditions == split.name)
        cells = [(figures.between(share.value or 0), 0.6, f"{100 * (share.value or 0):.0f}") for share in split.parts]
        face = _gridded(found, trials.crops[chosen].mean(axis=0), cells, "how often each part is right")
        cards.append(f"<li>{face}<p>{name}<small>together {_percent(split.together.value)}</small></p></li>")
    assert found.model is not None
    _, across = found.model.parts or (1, 1)
    rows = [
        [f"row {i // across + 1}, column {i % across + 1}", *(_rate(split.parts[i]) for split in found.part_splits)]
        for i in range(len(found.part_splits[0].parts))
    ]
    rows += [["the whole face", *(_rate(split.whole) for split in found.part_splits)]]
    rows += [["all together", *(_rate(split.together) for split in found.part_splits)]]
    heads = ("right person first", *names)
    caption = (
        "In how many faces, in percent, each part names the right person all by itself, over the mean face: from "
        "<b>orange</b> (never) to <b>blue</b> (always). A part that is covered knows nobody, and the others know enough."
    )
    return (
        f'<figure id="parts">\n<ul class="cards">{"".join(cards)}</ul>\n<figcaption>{caption}</figcaption>\n</figure>\n'
        f"<details>\n<summary>The same in figures</summary>\n{_table(heads, rows)}</details>\n"
    )


def _gridded(found: Evaluation, crop: Array, cells: Iterable[tuple[str, float, str]], tells: str) -> str:
    """A face under the grid of its parts: the colour of each, how strong it is, and a word."""
    assert found.model is not None
    down, across = found.model.parts or (1, 1)
    tinted = "".join(f'<i style="background:{colour}{round(255 * strong):02x}">{word}</i>' for colour, strong, word in cells)
    grid = f"grid-template:repeat({down},1fr)/repeat({across},1fr)"
    return f'<span class="parts">{_picture(crop, "gray", 0, 255, tells)}<span style="{grid}">{tinted}</span></span>'


def _codes(found: Evaluation) -> str:
    model, codes = found.model, found.codes
    assert model is not None
    assert codes is not None
    truth = found.trials.truth[found.trials.enrolled]
    shown = np.unique(truth)[:BLOCKS]
    first = f" The first {len(shown)} people." if len(shown) < found.people else ""
    even = 1 / len(model.labels)
    caption = (
        f"|Z| of test faces by person (across) on the atoms of the same people (down).{first} Of a code, "
        f"{_percent(found.own_atoms)} lies on the atoms that began as the person's own photos; evenly spread it would be "
        f"{_percent(even)}. Where the two are alike there are no blocks to be seen, and W reads the pattern as a whole."
    )
    parts = _figure("codes", figures.code_blocks(codes, truth, model.atom_people, shown), caption, kind="map")
    if found.alike is not None:
        same, others = found.alike
        caption = (
            f"How alike the codes are, by person: the mean cosine is {same:.2f} within a person and {others:z.2f} between "
            "two. This is where the blocks are: on the diagonal, codes of one person."
        )
        parts += _figure("likeness", figures.alike(likeness(codes, truth)), caption, kind="map")
    return f'<div class="pair">\n{parts}</div>\n'


def _terms(found: Evaluation) -> str:
    terms = (
        (
            "Rank-1, CMC",
            "the right person has the highest score, or is among the r highest; enrolled people only, no threshold.",
        ),
        ("FNIR", "false negative identification rate: photos of enrolled people that do not get the right name."),
        ("FPIR", "false positive identification rate: photos of strangers that get a name."),
        ("Failure to acquire", "photos in which no single usable face was found. They are in no other rate."),
        (
            "Intervals",
            "Clopper and Pearson's, 95 %, as if photos were independent. Those of one person resemble each other, so the "
            "truth is less certain than they say; zero in N claims no better than 3/N.",
        ),
    )
    rows = "".join(f"<div><dt>{term}</dt><dd>{meaning}</dd></div>" for term, meaning in terms)
    return f'<footer>\n<dl class="terms">{rows}</dl>\n</footer>'


# --- Pieces ---


def _text(text: str) -> str:
    return escape(printable(text))


def _section(name: str, title: str, *parts: str) -> str:
    return f'<section id="{name}">\n<h2>{title}</h2>\n{"".join(parts)}</section>'


def _percent(share: float | None, digits: int = 1) -> str:
    """With a space that no line is broken at."""
    return percent(share, digits).replace(" ", "\N{NO-BREAK SPACE}")


def _between(share: Share, digits: int = 1) -> str:
    if share.interval is None:
        return "no photos"
    low, high = (_percent(end, digits) for end in share.interval)
    return f"{low} to {high}"


def _rate(share: Share | None, digits: int = 1) -> str:
    if share is None or share.interval is None:
        return "-"
    low, high = (f"{100 * end:.{digits}f}" for end in share.interval)
    return f"{_percent(share.value, digits)} <small>{share.count:,}/{share.of:,}, {low} to {high}</small>"


def _told(photo: Photo) -> str:
    return _text(f"{photo.condition}, {photo.source}" if photo.condition else photo.source)


def _confidence(photo: Photo) -> str:
    return "refused as unlike a face" if photo.confidence is None else f"confidence {photo.confidence:.3f}"


def _table(heads: Iterable[str], rows: Iterable[list[str]]) -> str:
    top = "".join(f'<th scope="col">{head}</th>' for head in heads)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>' + "".join(f"<td>{cell}</td>" for cell in row[1:]) + "</tr>\n" for row in rows
    )
    return f'<div class="scroll"><table>\n<thead><tr>{top}</tr></thead>\n<tbody>\n{body}</tbody>\n</table></div>\n'


def _figure(name: str, plot: Plot, caption: str, kind: str = "curve") -> str:
    names = "".join(f'<li><i style="background:{colour}"></i>{_text(name)}</li>' for name, colour in plot.legend)
    legend = f'<ul class="legend">{names}</ul>' if names else ""
    return (
        f'<figure id="{name}">\n<div class="plot {kind}"><img src="{plot.address}" alt="{escape(caption)}" />{legend}</div>\n'
        f"<figcaption>{caption}</figcaption>\n</figure>\n"
    )


def _portrait(found: Evaluation, person: str, near: int) -> tuple[Array | None, str]:
    """The photo of a person, of training or else of those measured, that is most like another photo; and where it is from."""
    trials, model = found.trials, found.model
    who = trials.labels.index(person)
    if model is not None:
        crops, source = model.crops[model.crop_people == who], "in training"
    else:
        crops, source = trials.crops[trials.truth == who], "among the photos measured"
    if not len(crops):
        return None, "no photo here"
    vectors = np.stack([crop.ravel() for crop in (trials.crops[near], *crops)]).astype(np.float64)
    vectors -= vectors.mean(axis=1, keepdims=True)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    return crops[int((vectors[1:] @ vectors[0]).argmax())], source


def _face(crop: Array, person: str) -> str:
    return _picture(crop, "gray", 0, 255, printable(person))


def _picture(values: Array, colours: str, low: float, high: float, tells: str) -> str:
    return f'<img class="face" src="{figures.picture(values, colours, low, high)}" alt="{escape(tells)}" />'
