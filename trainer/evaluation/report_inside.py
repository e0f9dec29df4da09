"""The section of the report about the model itself: atoms, DZ and E, parts, codes and the convergence of training."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from trainer.evaluation import figures, html
from trainer.evaluation.evaluate import Evaluation
from trainer.evaluation.html import paragraph, percent, rate, sentence, text
from trainer.evaluation.inside import Example, Inside, as_images, code_similarity
from trainer.features.parts import Grid
from trainer.model import Model
from trainer.types import Array

ATOMS = (8, 5)  # people, atoms of each
BLOCKS = 20  # people in the picture of Z


def inside_section(found: Evaluation) -> str:
    model, inside = found.model, found.inside
    if model is None or inside is None:
        return html.section("inside", paragraph("needs_model"))
    atoms = as_images(model.D, model.spec)
    if atoms is None:
        parts = [paragraph("network")]
    else:
        parts = [_atoms(model, atoms), _examples(found, model, inside), _parts(found, model, inside)]
    parts.append(_codes(found, model, inside))
    if found.residuals:
        curve = figures.convergence(found.residuals)
        parts.append(html.plot("convergence", curve, iterations=len(found.residuals)))
    else:
        parts.append(f'<p id="convergence">{sentence("no_residuals")}</p>\n')
    return html.section("inside", *parts)


def _atoms(model: Model, atoms: Array) -> str:
    people, each = ATOMS
    items = []
    for person, label in enumerate(model.labels[:people]):
        own = np.flatnonzero(model.atom_people == person)[:each]
        ends = np.quantile(atoms[own], (0.02, 0.98), axis=(1, 2)).T
        shown = (html.image(atoms[i], "an atom", low=low, high=high) for i, (low, high) in zip(own, ends, strict=True))
        items.append(f'<p class="strip">{"".join(shown)}</p><p>{text(label)}</p>')
    first = f" The first {len(items)} of {len(model.labels)} people." if len(items) < len(model.labels) else ""
    return html.figure("atoms", html.cards(items, "small"), first=first)


def _examples(found: Evaluation, model: Model, inside: Inside) -> str:
    items = []
    for example in inside.examples:
        top = float(example.x.max())
        pictures = [
            ("X", html.image(example.x, "the face X", high=top)),
            ("DZ", html.image(example.recovered, "the recovered face DZ", high=top)),
            ("E", html.image(example.x - example.recovered, "the error E", "RdBu", -top / 2, top / 2)),
        ]
        if example.parts:
            cells = [
                (figures.BLUE if vote.right else figures.ORANGE, vote.confidence, f"{vote.confidence:.2f}".lstrip("0"))
                for vote in example.parts
            ]
            crop = found.trials.crops[example.photo.index]
            pictures.append(("parts", _with_grid(crop, model.parts, cells, "the votes of its parts")))
        strip = "".join(f"<span>{picture}<small>{name}</small></span>" for name, picture in pictures)
        condition = f"{text(example.photo.condition)}, " if example.photo.condition else ""
        about = f"{condition}{percent(example.taken_off)} taken off{_wrong_parts(example)}"
        items.append(f'<p class="strip">{strip}</p><p>{text(example.photo.person)}<small>{about}</small></p>')
    return html.figure("split", html.cards(items, "wide"), parts=sentence("votes") if inside.part_splits else "")


def _wrong_parts(example: Example) -> str:
    if not example.parts:
        return ""
    wrong = sum(not vote.right for vote in example.parts)
    whole = f"whole face {'right' if example.whole.right else 'wrong'} ({example.whole.confidence:.2f})"
    return f"; {wrong} of {len(example.parts)} parts wrong, {whole}"


def _parts(found: Evaluation, model: Model, inside: Inside) -> str:
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


def _codes(found: Evaluation, model: Model, inside: Inside) -> str:
    truth = found.trials.truth[found.trials.enrolled]
    shown = np.unique(truth)[:BLOCKS]
    first = f" The first {len(shown)} people." if len(shown) < found.people else ""
    blocks = figures.code_blocks(inside.codes, truth, model.atom_people, shown)
    share, even = percent(inside.own_atoms), percent(1 / len(model.labels))
    parts = [html.plot("codes", blocks, "map", first=first, share=share, even=even)]
    if inside.alike is not None:
        same, other = inside.alike
        cosines = figures.similarity(code_similarity(inside.codes, truth))
        parts.append(html.plot("likeness", cosines, "map", same=same, other=other))
    return html.side_by_side(*parts)
