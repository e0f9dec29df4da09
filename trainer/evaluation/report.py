"""An evaluation as one HTML file without external resources, with every number of `Evaluation.facts`.

Curves are SVG and faces PNG, inside the page. Names are text, never part of an image. The file is also well-formed XML. It
shows faces, so it is written for its owner only.
"""

from collections.abc import Iterable, Sequence
from datetime import date
from importlib.metadata import version
from typing import Any

import numpy as np

from edge.text import plural
from trainer.evaluation import figures, html
from trainer.evaluation.evaluate import Confusion, Evaluation
from trainer.evaluation.html import interval, paragraph, percent, rate, sentence, text
from trainer.evaluation.inside import Inside, as_images, code_similarity
from trainer.evaluation.measures import FPIRS, Share, Split
from trainer.evaluation.trials import Trial
from trainer.method.parts import Grid
from trainer.model import PlainModel
from trainer.thresholds import MIN_PEOPLE
from trainer.types import Array

PEOPLE = 15  # rows of the table of people that are open
ATOMS = (8, 5)  # people, atoms of each
BLOCKS = 20  # people in the picture of Z


def page(found: Evaluation, today: date) -> str:
    """Return the whole page."""
    numbers = (_summary, _strangers, _ranks, _conditions, _people, _acquisition)
    sections = (section(found) for section in (*numbers, _confusions, _misses, _intruders, _inside))
    return html.PAGE.substitute(
        file=text(found.system.file),
        kind=found.system.kind,
        people=len(found.system.labels),
        features=text(found.system.features),
        coding=text(found.system.coding),
        day=f"{today.day} {today:%B %Y}",
        version=version("lclrr-edge"),
        sections="\n".join(filter(None, sections)),
    )


def _summary(found: Evaluation) -> str:
    own, first = found.own, percent(found.rank1.value)
    tiles = [_tile("right person first", "rank-1", found.rank1)]
    if own is None:
        said = [sentence("no_threshold", found=found, share=first, needed=MIN_PEOPLE)]
    else:
        counts = {"right": own.fnir.of - own.fnir.count, "wrong": own.wrong, "none": own.fnir.count - own.wrong}
        shares = {f"{name}_share": percent(count / own.fnir.of) for name, count in counts.items()}
        said = [sentence("enrolled", found=found, **counts, **shares)]
        tiles.append(_tile("enrolled, not recognised", "FNIR", own.fnir))
    if own is not None and found.strangers_named is not None:
        strangers, share = plural(found.strangers, "stranger"), percent(own.fpir.value, 2)
        people = f", of {found.strangers_named.count} of the strangers" if own.fpir.count else ""
        said.append(sentence("named_strangers", found=found, strangers=strangers, share=share, people=people))
        tiles.append(_tile("strangers, given a name", "FPIR", own.fpir, 2))
        if own.fpir.count == 0:
            said.append(sentence("no_false_positive", found=found, bound=percent(own.bound, 2)))
    elif found.trials.enrolled.all():
        said.append(sentence("no_strangers"))
    if found.system.provisional:
        said.append(sentence("provisional"))
    if found.failed.count:
        said.append(sentence("not_acquired", found=found))
    said.append(sentence("one_photo"))
    tiles.append(_tile("no usable face", "failure to acquire", found.failed))
    notes = "".join(f"<li>{text(note)}</li>" for note in found.notes)
    return (
        f'<section id="summary">\n<p class="lead">{" ".join(said)}</p>\n<dl class="tiles">{"".join(tiles)}</dl>\n'
        + (f'<ul class="notes">{notes}</ul>\n' if notes else "")
        + "</section>"
    )


def _tile(title: str, measure: str, share: Share, digits: int = 1) -> str:
    value = percent(share.value, digits)
    return f"<div><dt>{title}</dt><dd>{value}</dd><dd>{measure}, {interval(share, digits)}</dd></div>"


def _strangers(found: Evaluation) -> str:
    unlike = sentence("not_shown", photos=plural(found.unlike, "photo")) if found.unlike else ""
    histogram = html.plot("confidence", figures.confidence, found, not_shown=unlike)
    if not found.at:
        rates = ", ".join(f"{target:g}" for target in FPIRS)
        return html.section("strangers", paragraph("needs_strangers", rates=rates), histogram)
    rows = []
    for point in filter(None, (found.own, *found.at)):
        name = f"<b>threshold of the {found.system.kind}</b>" if point.target is None else f"FPIR {point.target:g}"
        note = "" if point.shown else " <small>too few strangers to show it</small>"
        rows.append([name + note, f"{point.threshold:.4f}", rate(point.fpir, 2), rate(point.fnir), f"{point.wrong:,}"])
    heads = ("", "threshold", "FPIR: strangers given a name", "FNIR: enrolled not recognised", "of these, wrong name")
    remark = ""
    if few := [point for point in found.at if not point.shown]:
        rates, bound = ", ".join(f"{point.target:g}" for point in few), percent(few[0].bound, 2)
        remark = paragraph("few_strangers", "remark", photos=few[0].fpir.of, rates=rates, bound=bound)
    curves = html.side_by_side(html.plot("det", figures.det_curve, found), histogram)
    return html.section("strangers", html.table(heads, rows), remark, curves)


def _ranks(found: Evaluation) -> str:
    rows = [[str(r), percent(found.cmc[r - 1])] for r in (1, 2, 3, 5, 10, 20) if r <= len(found.cmc)]
    numbers = f"<div>\n<p>Rank-1: {rate(found.rank1)}</p>\n{html.table(('rank', 'right person'), rows)}</div>\n"
    return html.section("ranks", html.side_by_side(html.plot("cmc", figures.cmc, found), numbers))


def _rates(found: Evaluation, splits: Sequence[Split]) -> tuple[list[str], list[list[str]]]:
    """Return the heads and rows that the tables of conditions and of people have in common."""
    heads = ["rank-1", *(["FNIR"] if found.own else []), *(f"FNIR at FPIR {point.target:g}" for point in found.at)]
    shares = [(split.rank1, *([split.fnir] if found.own else []), *split.fnir_at) for split in splits]
    return heads, [[text(split.name or "other"), *map(rate, row)] for split, row in zip(splits, shares, strict=True)]


def _conditions(found: Evaluation) -> str:
    if not found.conditions:
        return ""
    heads, rows = _rates(found, found.conditions)
    strangers = found.own is not None and found.own.fpir.of > 0
    for row, split in zip(rows, found.conditions, strict=True):
        row += [*([rate(split.fpir, 2)] if strangers else []), rate(split.failed)]
    heads = ["condition", *heads, *(["FPIR"] if strangers else []), "no usable face"]
    return html.section("conditions", paragraph("conditions") if found.own else "", html.table(heads, rows))


def _people(found: Evaluation) -> str:
    heads, rows = _rates(found, found.each)
    for row, split in zip(rows, found.each, strict=True):
        row += [rate(split.failed), text(split.taken_for)]
    heads = ["person", *heads, "no usable face", "most often confused with"]
    first = sum(split.rank1.count == split.rank1.of for split in found.each)
    named = sum(split.fnir is not None and split.fnir.count == 0 for split in found.each)
    always = f"; {named} get the right name in every photo" if found.own is not None else ""
    intro = paragraph("people", people=len(rows), first=first, always=always)
    rest = rows[PEOPLE:]
    more = html.details(f"The other {len(rest)}", html.table(heads, rest)) if rest else ""
    return html.section("people", intro, html.table(heads, rows[:PEOPLE]), more)


def _acquisition(found: Evaluation) -> str:
    name = "acquisition" if found.failed.count else "all_acquired"
    intro = paragraph(name, found=found, share=percent(found.failed.value), interval=interval(found.failed))
    rows = [[text(reason), f"{count:,}"] for reason, count in found.reasons.items()]
    return html.section("acquisition", intro, html.table(("reason", "photos"), rows) if rows else "")


def _confusions(found: Evaluation) -> str:
    intro = paragraph("confusions" if found.confusions else "no_confusion")
    return html.section("confusions", intro, _pairs(found, found.confusions))


def _intruders(found: Evaluation) -> str:
    return html.section("intruders", paragraph("intruders"), _pairs(found, found.intruders)) if found.intruders else ""


def _misses(found: Evaluation) -> str:
    items = []
    for photo in found.misses:
        label = f"named <b>{text(photo.nearest)}</b>" if photo.named and photo.rank > 1 else "no name"
        items.append(f"{_photo(found, photo)}<p>{label}, {_confidence(photo)}, right person at rank {photo.rank}</p>")
    return html.section("misses", paragraph("misses") + html.cards(items) if items else "<p>None.</p>\n")


def _pairs(found: Evaluation, pairs: Iterable[Confusion]) -> str:
    items = []
    for pair in pairs:
        photo, named = pair.surest, "<b>named</b>" if pair.surest.named else "not named"
        other = _most_similar(found, pair.taken_for, photo.index)
        count = f"{pair.photos.count} of {plural(pair.photos.of, 'photo')}"
        items.append(f"{_photo(found, photo)}{other}<p>{count}, {_confidence(photo)}, {named}</p>")
    return html.cards(items, "pairs") if items else ""


def _photo(found: Evaluation, photo: Trial) -> str:
    source = f"{photo.condition}, {photo.source}" if photo.condition else photo.source
    return _face(html.image(found.trials.crops[photo.index], photo.person), photo.person, source)


def _face(picture: str, person: str, source: str) -> str:
    return f"<figure>{picture}<figcaption>{text(person)}<small>{text(source)}</small></figcaption></figure>"


def _confidence(photo: Trial) -> str:
    return "rejected as unlike a face" if photo.confidence is None else f"confidence {photo.confidence:.3f}"


def _most_similar(found: Evaluation, person: str, index: int) -> str:
    """Return the photo of a person, of training or else of the test, that is most similar to a test photo."""
    trials, model = found.trials, found.system.model
    label = trials.labels.index(person)
    if model is not None:
        crops, source = model.crops[model.crop_people == label], "training photo"
    else:
        crops, source = trials.crops[trials.truth == label], "test photo"
    if not len(crops):
        return _face('<span class="blank"></span>', person, "no photo")
    vectors = np.stack([crop.ravel() for crop in (trials.crops[index], *crops)]).astype(np.float64)
    vectors -= vectors.mean(axis=1, keepdims=True)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    return _face(html.image(crops[int((vectors[1:] @ vectors[0]).argmax())], person), person, source)


def _inside(found: Evaluation) -> str:
    """Return the section about the model itself: atoms, DZ and E, parts, codes and the convergence of training."""
    model, inside = found.system.plain, found.inside
    if model is None or inside is None:
        return html.section("inside", paragraph("needs_model" if found.system.model is None else "shards"))
    atoms = as_images(model.D, model.spec)
    if atoms is None:
        parts = [paragraph("network")]
    else:
        parts = [_atoms(model, atoms), _examples(found, model, inside), _parts(found, model, inside)]
    parts.append(_codes(found, model, inside))
    if found.residuals:
        parts.append(html.plot("convergence", figures.convergence, found.residuals, iterations=len(found.residuals)))
    else:
        parts.append(f'<p id="convergence">{sentence("no_residuals")}</p>\n')
    return html.section("inside", *parts)


def _atoms(model: PlainModel, atoms: Array) -> str:
    people, each = ATOMS
    items = []
    for person, label in enumerate(model.labels[:people]):
        own = np.flatnonzero(model.atom_people == person)[:each]
        ends = np.quantile(atoms[own], (0.02, 0.98), axis=(1, 2)).T
        shown = (html.image(atoms[i], "an atom", low=low, high=high) for i, (low, high) in zip(own, ends, strict=True))
        items.append(f'<p class="strip">{"".join(shown)}</p><p>{text(label)}</p>')
    first = f" The first {len(items)} of {len(model.labels)} people." if len(items) < len(model.labels) else ""
    return html.figure("atoms", html.cards(items, "small"), first=first)


def _examples(found: Evaluation, model: PlainModel, inside: Inside) -> str:
    items = []
    for example in inside.examples:
        photo, whole, top = example.photo, example.whole, float(example.x.max())
        pictures = [
            ("X", html.image(example.x, "the face X", high=top)),
            ("DZ", html.image(example.recovered, "the recovered face DZ", high=top)),
            ("E", html.image(example.x - example.recovered, "the error E", "RdBu", -top / 2, top / 2)),
        ]
        about = (f"{text(photo.condition)}, " if photo.condition else "") + f"{percent(example.taken_off)} taken off"
        if example.parts:
            cells = [
                (figures.BLUE if vote.right else figures.ORANGE, vote.confidence, f"{vote.confidence:.2f}".lstrip("0"))
                for vote in example.parts
            ]
            crop = found.trials.crops[photo.index]
            pictures.append(("parts", _with_grid(crop, model.parts, cells, "the votes of its parts")))
            about += f"; {sum(not vote.right for vote in example.parts)} of {len(example.parts)} parts wrong"
            about += f", whole face {'right' if whole.right else 'wrong'} ({whole.confidence:.2f})"
        strip = "".join(f"<span>{picture}<small>{name}</small></span>" for name, picture in pictures)
        items.append(f'<p class="strip">{strip}</p><p>{text(photo.person)}<small>{about}</small></p>')
    return html.figure("split", html.cards(items, "wide"), parts=sentence("votes") if inside.part_splits else "")


def _parts(found: Evaluation, model: PlainModel, inside: Inside) -> str:
    """Return how often each part is right, by condition: over the mean face, and as a table."""
    splits, trials = inside.part_splits, found.trials
    if not splits:
        return ""
    names = [text(split.name or ("other" if found.conditions else "all")) for split in splits]
    items = []
    for name, split in zip(names, splits, strict=True):
        chosen = trials.enrolled & (trials.conditions == split.name)
        cells = [(figures.blend(share.value or 0), 0.6, f"{100 * (share.value or 0):.0f}") for share in split.parts]
        face = _with_grid(trials.crops[chosen].mean(axis=0), model.parts, cells, "how often each part is right")
        items.append(f"{face}<p>{name}<small>together {percent(split.together.value)}</small></p>")
    _, across = model.parts or (1, 1)
    rows = [
        [f"row {i // across + 1}, column {i % across + 1}", *(rate(split.parts[i]) for split in splits)]
        for i in range(len(splits[0].parts))
    ]
    rows.append(["whole face", *(rate(split.whole) for split in splits)])
    rows.append(["all together", *(rate(split.together) for split in splits)])
    table = html.table(("right person first", *names), rows)
    return html.figure("parts", html.cards(items)) + html.details("The same as a table", table)


def _with_grid(crop: Array, grid: Grid | None, cells: Iterable[tuple[str, float, str]], alt: str) -> str:
    """Return a face under the grid of its parts; a cell is its colour, opacity and text."""
    down, across = grid or (1, 1)
    tinted = "".join(f'<i style="background:{colour}{round(255 * alpha):02x}">{word}</i>' for colour, alpha, word in cells)
    style = f"grid-template:repeat({down},1fr)/repeat({across},1fr)"
    return f'<span class="parts">{html.image(crop, alt)}<span style="{style}">{tinted}</span></span>'


def _codes(found: Evaluation, model: PlainModel, inside: Inside) -> str:
    truth = found.trials.truth[found.trials.enrolled]
    shown = np.unique(truth)[:BLOCKS]
    first = f" The first {len(shown)} people." if len(shown) < found.people else ""
    about: dict[str, Any] = {"first": first, "share": percent(inside.own_atoms), "even": percent(1 / len(model.labels))}
    blocks = (inside.codes, truth, model.atom_people, shown)
    parts = [html.plot("codes", figures.code_blocks, *blocks, kind="map", **about)]
    if inside.alike is not None:
        same, other = inside.alike
        cosines = code_similarity(inside.codes, truth)
        parts.append(html.plot("likeness", figures.similarity, cosines, kind="map", same=same, other=other))
    return html.side_by_side(*parts)
