"""An evaluation as one HTML file without external resources, with every number of `Evaluation.facts`.

Curves are SVG and faces PNG, inside the page. Names are text, never part of an image. The file is also well-formed XML. It
shows faces, so it is written for its owner only.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from importlib.metadata import version
from typing import Any

import numpy as np

from edge.text import plural
from trainer.evaluation import figures, html
from trainer.evaluation.evaluate import Confusion, Evaluation
from trainer.evaluation.html import interval, paragraph, percent, rate, sentence, text
from trainer.evaluation.measures import FPIRS, Split
from trainer.evaluation.report_inside import inside_section
from trainer.evaluation.trials import Trial
from trainer.thresholds import MIN_PEOPLE
from trainer.types import Array

PEOPLE = 15  # rows of the table of people that are open


def page(found: Evaluation, today: date) -> str:
    """Return the whole page."""
    numbers = (_summary, _strangers, _ranks, _conditions, _people, _acquisition)
    sections = (section(found) for section in (*numbers, _confusions, _misses, _intruders, inside_section))
    footer = f"<footer>\n{html.terms(html.TEXT['terms'].items(), 'terms')}</footer>"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8" />\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1" />\n'
        '<meta name="color-scheme" content="light dark" />\n'
        f"<title>Evaluation of {text(found.system.file)}</title>\n<style>\n{html.STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(filter(None, (_header(found, today), *sections, footer)))
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
    spans = "".join(f"<span>{fact}</span>" for fact in facts)
    title = text(system.file) or "Evaluation"
    return f'<header>\n<h1>{title}</h1>\n<p class="facts">{spans}</p>\n{paragraph("private", "private")}</header>'


def _summary(found: Evaluation) -> str:
    own, rank1, failed, people = found.own, found.rank1, found.failed, found.people
    tiles = [("right person first", percent(rank1.value), f"rank-1, {interval(rank1)}")]
    said = []
    if own is None:
        share = percent(rank1.value)
        about = {"photos": rank1.of, "people": people, "first": rank1.count, "share": share, "needed": MIN_PEOPLE}
        said.append(sentence("no_threshold", **about))
    else:
        counts = {"right": own.fnir.of - own.fnir.count, "wrong": own.wrong, "none": own.fnir.count - own.wrong}
        shares = {f"{name}_share": percent(count / own.fnir.of) for name, count in counts.items()}
        said.append(sentence("enrolled", photos=own.fnir.of, people=people, **counts, **shares))
        tiles.append(("enrolled, not recognised", percent(own.fnir.value), f"FNIR, {interval(own.fnir)}"))
    if own is not None and found.strangers_named is not None:
        fpir, share = own.fpir, percent(own.fpir.value, 2)
        named = f", of {found.strangers_named.count} of the strangers" if fpir.count else ""
        strangers = plural(found.strangers, "stranger")
        said.append(
            sentence("named_strangers", photos=fpir.of, strangers=strangers, named=fpir.count, share=share, people=named)
        )
        tiles.append(("strangers, given a name", share, f"FPIR, {interval(fpir, 2)}"))
        if fpir.count == 0:
            said.append(sentence("no_false_positive", photos=fpir.of, bound=percent(own.bound, 2)))
    elif found.trials.enrolled.all():
        said.append(sentence("no_strangers"))
    if found.system.provisional:
        said.append(sentence("provisional"))
    if failed.count:
        said.append(sentence("not_acquired", count=failed.count, of=failed.of))
    said.append(sentence("one_photo"))
    tiles.append(("no usable face", percent(failed.value), f"failure to acquire, {interval(failed)}"))
    notes = "".join(f"<li>{text(note)}</li>" for note in found.notes)
    return (
        f'<section id="summary">\n<p class="lead">{" ".join(said)}</p>\n{html.terms(tiles, "tiles")}'
        + (f'<ul class="notes">{notes}</ul>\n' if notes else "")
        + "</section>"
    )


def _strangers(found: Evaluation) -> str:
    unlike = sentence("not_shown", photos=plural(found.unlike, "photo")) if found.unlike else ""
    histogram = html.plot("confidence", figures.confidence(found), not_shown=unlike)
    if not found.at:
        rates = ", ".join(f"{target:g}" for target in FPIRS)
        return html.section("strangers", paragraph("needs_strangers", rates=rates), histogram)
    rows = []
    for point in (*([found.own] if found.own is not None else []), *found.at):
        name = f"<b>threshold of the {found.system.kind}</b>" if point.target is None else f"FPIR {point.target:g}"
        note = "" if point.shown else " <small>too few strangers to show it</small>"
        rows.append([name + note, f"{point.threshold:.4f}", rate(point.fpir, 2), rate(point.fnir), f"{point.wrong:,}"])
    heads = ("", "threshold", "FPIR: strangers given a name", "FNIR: enrolled not recognised", "of these, wrong name")
    remark = ""
    if few := [point for point in found.at if not point.shown]:
        rates, bound = ", ".join(f"{point.target:g}" for point in few), percent(few[0].bound, 2)
        remark = paragraph("few_strangers", "remark", photos=few[0].fpir.of, rates=rates, bound=bound)
    curves = html.side_by_side(html.plot("det", figures.det_curve(found)), histogram)
    return html.section("strangers", html.table(heads, rows), remark, curves)


def _ranks(found: Evaluation) -> str:
    rows = [[str(r), percent(found.cmc[r - 1])] for r in (1, 2, 3, 5, 10, 20) if r <= len(found.cmc)]
    numbers = f"<div>\n<p>Rank-1: {rate(found.rank1)}</p>\n{html.table(('rank', 'right person'), rows)}</div>\n"
    return html.section("ranks", html.side_by_side(html.plot("cmc", figures.cmc(found)), numbers))


def _fnir_heads(found: Evaluation) -> list[str]:
    return (["FNIR"] if found.own is not None else []) + [f"FNIR at FPIR {point.target:g}" for point in found.at]


def _fnir_cells(split: Split) -> list[str]:
    return ([rate(split.fnir)] if split.fnir is not None else []) + [rate(share) for share in split.fnir_at]


def _conditions(found: Evaluation) -> str:
    if not found.conditions:
        return ""
    strangers = found.own is not None and found.own.fpir.of > 0
    heads = ["condition", "rank-1", *_fnir_heads(found), *(["FPIR"] if strangers else []), "no usable face"]
    rows = []
    for split in found.conditions:
        fpir = [rate(split.fpir, 2)] if strangers else []
        rows.append([text(split.name or "other"), rate(split.rank1), *_fnir_cells(split), *fpir, rate(split.failed)])
    return html.section("conditions", paragraph("conditions") if found.own else "", html.table(heads, rows))


def _people(found: Evaluation) -> str:
    heads = ["person", "rank-1", *_fnir_heads(found), "no usable face", "most often confused with"]
    rows = [
        [text(split.name), rate(split.rank1), *_fnir_cells(split), rate(split.failed), text(split.taken_for)]
        for split in found.each
    ]
    first = sum(split.rank1.count == split.rank1.of for split in found.each)
    named = sum(split.fnir is not None and split.fnir.count == 0 for split in found.each)
    always = f"; {named} get the right name in every photo" if found.own is not None else ""
    intro = paragraph("people", people=len(rows), first=first, always=always)
    rest = rows[PEOPLE:]
    more = html.details(f"The other {len(rest)}", html.table(heads, rest)) if rest else ""
    return html.section("people", intro, html.table(heads, rows[:PEOPLE]), more)


def _acquisition(found: Evaluation) -> str:
    failed = found.failed
    about: dict[str, Any] = {
        "count": failed.count,
        "of": failed.of,
        "share": percent(failed.value),
        "interval": interval(failed),
    }
    if not failed.count:
        return html.section("acquisition", paragraph("all_acquired", **about))
    rows = [[text(reason), f"{count:,}"] for reason, count in found.reasons.items()]
    return html.section("acquisition", paragraph("acquisition", **about), html.table(("reason", "photos"), rows))


def _confusions(found: Evaluation) -> str:
    intro = paragraph("confusions" if found.confusions else "no_confusion")
    return html.section("confusions", intro, _pairs(found, found.confusions))


def _intruders(found: Evaluation) -> str:
    return html.section("intruders", paragraph("intruders"), _pairs(found, found.intruders)) if found.intruders else ""


def _misses(found: Evaluation) -> str:
    items = []
    for photo in found.misses:
        label = f"named <b>{text(photo.nearest)}</b>" if photo.named and photo.rank > 1 else "no name"
        face = _face(found.trials.crops[photo.index], photo.person, _source(photo))
        items.append(f"{face}<p>{label}, {_confidence(photo)}, right person at rank {photo.rank}</p>")
    return html.section("misses", paragraph("misses") + html.cards(items) if items else "<p>None.</p>\n")


def _pairs(found: Evaluation, pairs: Iterable[Confusion]) -> str:
    items = []
    for pair in pairs:
        photo, named = pair.surest, "<b>named</b>" if pair.surest.named else "not named"
        person = _face(found.trials.crops[photo.index], pair.person, _source(photo))
        other = _face(*_most_similar(found, pair.taken_for, photo.index))
        count = f"{pair.photos.count} of {plural(pair.photos.of, 'photo')}"
        items.append(f"{person}{other}<p>{count}, {_confidence(photo)}, {named}</p>")
    return html.cards(items, "pairs") if items else ""


def _face(crop: Array | None, person: str, source: str) -> str:
    picture = '<span class="blank"></span>' if crop is None else html.image(crop, person)
    return f"<figure>{picture}<figcaption>{text(person)}<small>{text(source)}</small></figcaption></figure>"


def _source(photo: Trial) -> str:
    return f"{photo.condition}, {photo.source}" if photo.condition else photo.source


def _confidence(photo: Trial) -> str:
    return "rejected as unlike a face" if photo.confidence is None else f"confidence {photo.confidence:.3f}"


def _most_similar(found: Evaluation, person: str, index: int) -> tuple[Array | None, str, str]:
    """Return the photo of a person, of training or else of the test, that is most similar to a test photo; and its source."""
    trials, model = found.trials, found.model
    label = trials.labels.index(person)
    if model is not None:
        crops, source = model.crops[model.crop_people == label], "training photo"
    else:
        crops, source = trials.crops[trials.truth == label], "test photo"
    if not len(crops):
        return None, person, "no photo"
    vectors = np.stack([crop.ravel() for crop in (trials.crops[index], *crops)]).astype(np.float64)
    vectors -= vectors.mean(axis=1, keepdims=True)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    return crops[int((vectors[1:] @ vectors[0]).argmax())], person, source
