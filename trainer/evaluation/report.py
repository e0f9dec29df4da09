"""An evaluation as one HTML file without external resources, with every number of `Evaluation.facts`.

Curves are SVG and faces PNG, inside the page. Names are text, never part of an image. The file is also well-formed XML. It
shows faces, so it is written for its owner only.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from importlib.metadata import version
from pathlib import Path

import numpy as np

from edge.text import plural
from trainer.evaluation import figures, html
from trainer.evaluation.evaluate import Confusion, Evaluation
from trainer.evaluation.html import interval, percent, rate, text
from trainer.evaluation.measures import FPIRS, Split
from trainer.evaluation.report_inside import inside_section
from trainer.evaluation.trials import Trial
from trainer.thresholds import MIN_PEOPLE
from trainer.types import Array

STYLE = Path(__file__).with_name("report.css")
PEOPLE = 15  # rows of the table of people that are open
TERMS = (
    ("Rank-1, CMC", "the right person has the highest score, or one of the r highest; enrolled people only, no threshold."),
    ("FNIR", "false negative identification rate: photos of enrolled people that do not get the right name."),
    ("FPIR", "false positive identification rate: photos of strangers that get a name."),
    ("Failure to acquire", "photos without exactly one usable face. They are in no other rate."),
    (
        "Intervals",
        "95 %, Clopper and Pearson, as if photos were independent. Photos of one person are similar, so the real uncertainty "
        "is larger. 0 of N photos shows a rate of 3/N at best.",
    ),
)


def page(found: Evaluation, today: date) -> str:
    """Return the whole page."""
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
        inside_section(found),
        f"<footer>\n{html.terms(TERMS, 'terms')}</footer>",
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8" />\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1" />\n'
        '<meta name="color-scheme" content="light dark" />\n'
        f"<title>Evaluation of {text(found.system.file)}</title>\n<style>\n{STYLE.read_text()}</style>\n</head>\n<body>\n"
        + "\n".join(section for section in sections if section)
        + "\n</body>\n</html>\n"
    )


def _header(found: Evaluation, today: date) -> str:
    system = found.system
    facts = (
        f"{system.kind} of {len(system.labels)} people",
        f"features {text(system.features)}, coding {text(system.coding)}",
        f"{today.day} {today:%B %Y}",
        f"lclrr-edge {version('lclrr-edge')}",
    )
    return (
        f"<header>\n<h1>{text(system.file) or 'Evaluation'}</h1>\n"
        + html.paragraph("".join(f"<span>{fact}</span>" for fact in facts), "facts")
        + html.paragraph("<b>Confidential.</b> This page shows faces and names: treat it as biometric data.", "private")
        + "</header>"
    )


def _summary(found: Evaluation) -> str:
    own, rank1, failed = found.own, found.rank1, found.failed
    tiles = [("right person first", percent(rank1.value), f"rank-1, {interval(rank1)}")]
    sentences = []
    if own is None:
        sentences.append(
            f"Of {rank1.of:,} photos of {found.people} enrolled people, the right person has the highest score in "
            f"{rank1.count:,} ({percent(rank1.value)}). The model has no threshold, so it cannot reject strangers yet: "
            f"<code>trainer fit</code> measures one with {MIN_PEOPLE} people, or with --strangers."
        )
    else:
        photos, missed = own.fnir.of, own.fnir.count
        sentences.append(
            f"Of {photos:,} photos of {found.people} enrolled people, <b>{photos - missed:,} get the right name</b> "
            f"({percent((photos - missed) / photos)}), {own.wrong:,} a wrong name ({percent(own.wrong / photos)}) and "
            f"{missed - own.wrong:,} no name ({percent((missed - own.wrong) / photos)})."
        )
        tiles.append(("enrolled, not recognised", percent(own.fnir.value), f"FNIR, {interval(own.fnir)}"))
    if own is not None and found.strangers_named is not None:
        people = f", of {found.strangers_named.count} of the strangers" if own.fpir.count else ""
        sentences.append(
            f"Of {own.fpir.of:,} photos of {plural(found.strangers, 'stranger')}, <b>{own.fpir.count:,} get a name</b> "
            f"({percent(own.fpir.value, 2)}){people}."
        )
        tiles.append(("strangers, given a name", percent(own.fpir.value, 2), f"FPIR, {interval(own.fpir, 2)}"))
        if own.fpir.count == 0:
            sentences.append(f"0 of {own.fpir.of:,} photos shows a rate of {percent(own.bound, 2)} at best.")
    elif found.trials.enrolled.all():
        sentences.append(
            "<b>No photos of strangers were tested</b>, so the rate of false accepts is unknown: pass --strangers."
        )
    if found.system.provisional:
        sentences.append("The threshold is provisional: it was set without strangers.")
    if failed.count:
        sentences.append(f"{failed.count:,} of {failed.of:,} photos have no usable face and are not counted here.")
    sentences.append(
        "Each photo is tested alone. A door decides on several frames of a visit; this page does not measure that."
    )
    tiles.append(("no usable face", percent(failed.value), f"failure to acquire, {interval(failed)}"))
    notes = "".join(f"<li>{text(note)}</li>" for note in found.notes)
    return (
        f'<section id="summary">\n{html.paragraph(" ".join(sentences), "lead")}{html.terms(tiles, "tiles")}'
        + (f'<ul class="notes">{notes}</ul>\n' if notes else "")
        + "</section>"
    )


def _strangers(found: Evaluation) -> str:
    caption = "Confidence of every photo. Strangers should be left of the threshold (dashed), enrolled people right of it."
    if found.unlike:
        caption += f" Not shown: {plural(found.unlike, 'photo')} that the kit rejects as unlike a face."
    histogram = html.plot("confidence", figures.confidence(found), caption)
    if not found.at:
        rates = ", ".join(f"{target:g}" for target in FPIRS)
        needs = f"The DET curve and the FNIR at FPIR {rates} need photos of people who are not enrolled: pass --strangers."
        return html.section("strangers", "Rejecting strangers", html.paragraph(needs), histogram)
    rows = [
        [
            f"<b>threshold of the {found.system.kind}</b>"
            if point.target is None
            else f"FPIR {point.target:g} {'' if point.shown else '<small>too few strangers to show it</small>'}",
            f"{point.threshold:.4f}",
            rate(point.fpir, 2),
            rate(point.fnir),
            f"{point.wrong:,}",
        ]
        for point in (*([found.own] if found.own is not None else []), *found.at)
    ]
    heads = ("", "threshold", "FPIR: strangers given a name", "FNIR: enrolled not recognised", "of these, wrong name")
    remark = ""
    if few := [point for point in found.at if not point.shown]:
        rates = ", ".join(f"{point.target:g}" for point in few)
        remark = html.paragraph(
            f"{few[0].fpir.of:,} photos of strangers are too few to show an FPIR of {rates}: they show "
            f"{percent(few[0].bound, 2)} at best (3/N). These rows are counts only.",
            "remark",
        )
    curve = html.plot(
        "det",
        figures.det_curve(found),
        "DET curve: the error rates of every threshold. Left: fewer strangers get a name. Down: fewer enrolled people are "
        "missed. Red dot: the threshold in use, with its 95 % intervals. Grey: too few strangers to show such a rate.",
    )
    parts = (html.table(heads, rows), remark, html.side_by_side(curve, histogram))
    return html.section("strangers", "Rejecting strangers", *parts)


def _ranks(found: Evaluation) -> str:
    rows = [[str(r), percent(found.cmc[r - 1])] for r in (1, 2, 3, 5, 10, 20) if r <= len(found.cmc)]
    caption = "CMC curve: how often the right person is at this rank or better, without a threshold."
    numbers = f"<div>\n<p>Rank-1: {rate(found.rank1)}</p>\n{html.table(('rank', 'right person'), rows)}</div>\n"
    parts = html.side_by_side(html.plot("cmc", figures.cmc(found), caption), numbers)
    return html.section("ranks", "Distinguishing enrolled people", parts)


def _conditions(found: Evaluation) -> str:
    if not found.conditions:
        return ""
    strangers = found.own is not None and found.own.fpir.of > 0
    heads = ["condition", "rank-1", *_fnir_heads(found), *(["FPIR"] if strangers else []), "no usable face"]
    rows = [
        [
            text(split.name or "other"),
            rate(split.rank1),
            *_fnir_cells(split),
            *([rate(split.fpir, 2)] if strangers else []),
            rate(split.failed),
        ]
        for split in found.conditions
    ]
    same = "The threshold is the same for all conditions, as at a door. FPIR and the first FNIR are at the threshold in use."
    return html.section(
        "conditions", "By condition", html.paragraph(same) if found.own is not None else "", html.table(heads, rows)
    )


def _fnir_heads(found: Evaluation) -> list[str]:
    return (["FNIR"] if found.own is not None else []) + [f"FNIR at FPIR {point.target:g}" for point in found.at]


def _fnir_cells(split: Split) -> list[str]:
    return ([rate(split.fnir)] if split.fnir is not None else []) + [rate(share) for share in split.fnir_at]


def _people(found: Evaluation) -> str:
    heads = ["person", "rank-1", *_fnir_heads(found), "no usable face", "most often confused with"]
    rows = [
        [text(split.name), rate(split.rank1), *_fnir_cells(split), rate(split.failed), text(split.taken_for)]
        for split in found.each
    ]
    rest = rows[PEOPLE:]
    perfect = sum(split.rank1.count == split.rank1.of for split in found.each)
    always = sum(split.fnir is not None and split.fnir.count == 0 for split in found.each)
    intro = f"The most often missed first. Of {len(found.each)} people, {perfect} have the highest score in all their photos"
    intro += f"; {always} get the right name in every photo." if found.own is not None else "."
    more = html.details(f"The other {len(rest)}", html.table(heads, rest)) if rest else ""
    return html.section("people", "By person", html.paragraph(intro), html.table(heads, rows[:PEOPLE]), more)


def _acquisition(found: Evaluation) -> str:
    failed = found.failed
    if not failed.count:
        intro, reasons = f"All {failed.of:,} photos have a usable face ({interval(failed)} have none).", ""
    else:
        intro = f"{failed.count:,} of {failed.of:,} photos, also of strangers, have no usable face: "
        intro += f"{percent(failed.value)} ({interval(failed)})."
        reasons = html.table(("reason", "photos"), [[text(reason), f"{n:,}"] for reason, n in found.reasons.items()])
    return html.section("acquisition", "Failure to acquire", html.paragraph(intro), reasons)


def _confusions(found: Evaluation) -> str:
    if not found.confusions:
        intro = "In every photo the right person has the highest score."
    else:
        intro = (
            "Enrolled people in whose photos another person has a higher score, the most frequent pairs first. Left: the "
            "photo with the highest confidence. Right: the most similar photo of the other person."
        )
    return html.section("confusions", "Confusion pairs", html.paragraph(intro), _pairs(found, found.confusions))


def _intruders(found: Evaluation) -> str:
    if not found.intruders:
        return ""
    intro = (
        "By confidence, with or without a name, beside the most similar photo of the enrolled person. If both photos show the "
        "same person, the data are wrong."
    )
    return html.section("intruders", "Most similar strangers", html.paragraph(intro), _pairs(found, found.intruders))


def _misses(found: Evaluation) -> str:
    intro = "Enrolled people with a wrong name, then those without a name; the lowest score of the right person first."
    items = []
    for photo in found.misses:
        label = f"named <b>{text(photo.nearest)}</b>" if photo.named and photo.rank > 1 else "no name"
        face = _face(found.trials.crops[photo.index], photo.person, _source(photo))
        items.append(f"{face}<p>{label}, {_confidence(photo)}, right person at rank {photo.rank}</p>")
    shown = html.paragraph(intro) + html.cards(items) if items else html.paragraph("None.")
    return html.section("misses", "Worst misses", shown)


def _pairs(found: Evaluation, pairs: Iterable[Confusion]) -> str:
    items = []
    for pair in pairs:
        photo = pair.surest
        crop, source = _most_similar(found, pair.taken_for, photo.index)
        items.append(
            _face(found.trials.crops[photo.index], pair.person, _source(photo))
            + _face(crop, pair.taken_for, source)
            + f"<p>{pair.photos.count} of {plural(pair.photos.of, 'photo')}, {_confidence(photo)}, "
            + ("<b>named</b></p>" if photo.named else "not named</p>")
        )
    return html.cards(items, "pairs") if items else ""


def _face(crop: Array | None, person: str, source: str) -> str:
    picture = '<span class="blank"></span>' if crop is None else html.image(crop, person)
    return f"<figure>{picture}<figcaption>{text(person)}<small>{text(source)}</small></figcaption></figure>"


def _source(photo: Trial) -> str:
    return f"{photo.condition}, {photo.source}" if photo.condition else photo.source


def _confidence(photo: Trial) -> str:
    return "rejected as unlike a face" if photo.confidence is None else f"confidence {photo.confidence:.3f}"


def _most_similar(found: Evaluation, person: str, index: int) -> tuple[Array | None, str]:
    """Return the training or test photo of a person that is most similar to a test photo, and where it is from."""
    trials, model = found.trials, found.model
    label = trials.labels.index(person)
    if model is not None:
        crops, source = model.crops[model.crop_people == label], "training photo"
    else:
        crops, source = trials.crops[trials.truth == label], "test photo"
    if not len(crops):
        return None, "no photo"
    vectors = np.stack([crop.ravel() for crop in (trials.crops[index], *crops)]).astype(np.float64)
    vectors -= vectors.mean(axis=1, keepdims=True)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    return crops[int((vectors[1:] @ vectors[0]).argmax())], source
