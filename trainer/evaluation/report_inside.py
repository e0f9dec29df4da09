"""The section of the report about the model itself: atoms, DZ and E, parts, codes and the convergence of training."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from trainer.evaluation import figures, html
from trainer.evaluation.evaluate import Evaluation
from trainer.evaluation.html import percent, rate, text
from trainer.evaluation.inside import Example, Inside, as_images, code_similarity
from trainer.features.parts import Grid
from trainer.model import Model
from trainer.types import Array

TITLE = "Inside the model"
ATOMS = (8, 5)  # people, atoms of each
BLOCKS = 20  # people in the picture of Z


def inside_section(found: Evaluation) -> str:
    model, inside = found.model, found.inside
    if model is None or inside is None:
        needs = "Pictures of the dictionary, of its faces and of the training need the model file: pass --model with the kit."
        return html.section("inside", TITLE, html.paragraph(needs))
    atoms = as_images(model.D, model.spec)
    if atoms is None:
        parts = [html.paragraph("The features come from a network: atoms, DZ and E cannot be shown as pictures.")]
    else:
        parts = [_atoms(model, atoms), _examples(found, model, inside), _parts(found, model, inside)]
    parts.append(_codes(found, model, inside))
    if found.residuals:
        caption = f"Training: residuals of the three constraints over {len(found.residuals)} iterations."
        parts.append(html.plot("convergence", figures.convergence(found.residuals), caption))
    else:
        parts.append(
            '<p id="convergence">An older version made this model, without data about convergence. Train it again to see '
            "them.</p>\n"
        )
    return html.section("inside", TITLE, *parts)


def _atoms(model: Model, atoms: Array) -> str:
    people, each = ATOMS
    items = []
    for person, label in enumerate(model.labels[:people]):
        own = np.flatnonzero(model.atom_people == person)[:each]
        ends = np.quantile(atoms[own], (0.02, 0.98), axis=(1, 2)).T
        shown = (html.image(atoms[i], "an atom", low=low, high=high) for i, (low, high) in zip(own, ends, strict=True))
        items.append(f'<p class="strip">{"".join(shown)}</p><p>{text(label)}</p>')
    more = f" The first {len(items)} of {len(model.labels)} people." if len(items) < len(model.labels) else ""
    caption = (
        "Atoms of D. Each began as a photo of the person below it; training then fits all atoms to all people. Patterns that "
        f"look like noise are differences between faces.{more} The contrast of each is stretched."
    )
    return html.figure("atoms", html.cards(items, "small"), caption)


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
        items.append(
            f'<p class="strip">{strip}</p><p>{text(example.photo.person)}<small>{condition}'
            f"{percent(example.taken_off)} taken off{_wrong_parts(example)}</small></p>"
        )
    caption = (
        "Recognised faces X = DZ + E: the face that the dictionary recovers, and the error that is taken off (red: darker "
        "than recovered, blue: brighter). For each condition: the median of the error, and the 90 % quantile. Things that "
        "people wear in training photos are part of D and stay."
    )
    if inside.part_splits:
        caption += (
            " Right: the vote of each part alone, <b>blue</b> for the right person, <b>orange</b> for another. The number is "
            "its confidence, which is its weight and the strength of the colour. Covered parts are outvoted. One face of each "
            "condition is the recognised one with the most wrong parts: these vote for different people, so the right person "
            "has the highest sum."
        )
    return html.figure("split", html.cards(items, "wide"), caption)


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
    caption = (
        "Percentage of faces in which each part alone names the right person, over the mean face: from <b>orange</b> (never) "
        "to <b>blue</b> (always). A covered part has no information; the other parts have enough."
    )
    table = html.table(("right person first", *names), rows)
    return html.figure("parts", html.cards(items), caption) + html.details("The same as a table", table)


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
    caption = (
        f"|Z| of the test faces (across) on the atoms of the same people (down).{first} {percent(inside.own_atoms)} of a "
        f"code lies on the atoms that began as photos of the same person; an even spread would give "
        f"{percent(1 / len(model.labels))}. If the two numbers are close, no blocks are visible: W uses the whole pattern."
    )
    blocks = figures.code_blocks(inside.codes, truth, model.atom_people, shown)
    parts = [html.plot("codes", blocks, caption, kind="map")]
    if inside.alike is not None:
        same, other = inside.alike
        caption = (
            f"Similarity of codes by person: the mean cosine is {same:.2f} within a person and {other:z.2f} between two "
            "people. The diagonal shows codes of the same person."
        )
        parts.append(html.plot("likeness", figures.similarity(code_similarity(inside.codes, truth)), caption, kind="map"))
    return html.side_by_side(*parts)
