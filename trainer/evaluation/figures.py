"""The curves and pictures of a report, as addresses that hold their own data. Without pyplot, so that nothing is shared.

No picture holds a name: legends are handed to the page, where any script can be read.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.image import imsave
from matplotlib.ticker import FuncFormatter, MaxNLocator

from trainer.evaluation.measures import FPIRS, Evaluation, Share, det
from trainer.evaluation.trials import REFUSED
from trainer.types import Array

INK, BLUE, ORANGE, GREEN, PURPLE, RED, GREY = "#16181d", "#2458c5", "#c8500a", "#178a6a", "#8b3fc4", "#c22f62", "#6b7280"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, "#b8901a", RED, "#3c8fb0", "#5d6470")
RANKS = 20  # of the CMC curve
PERCENTS = FuncFormatter(lambda share, _: f"{100 * share:g} %")
Legend = Iterable[tuple[str, str]]


@dataclass(frozen=True)
class Plot:
    """A drawing, and the name and colour of each thing in it."""

    address: str
    legend: tuple[tuple[str, str], ...]


def picture(values: Array, colours: str, low: float, high: float) -> str:
    """Grey or coloured values (h, w) from low to high, one pixel each."""
    buffer = io.BytesIO()
    imsave(buffer, values, vmin=low, vmax=max(high, low + 1e-9), cmap=colours, format="png")
    return _uri("png", buffer.getvalue())


def between(share: float) -> str:
    """A colour from orange (0) to blue (1)."""
    ends = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in (ORANGE, BLUE)]
    return "#" + "".join(f"{round(low + share * (high - low)):02x}" for low, high in zip(*ends, strict=True))


def _uri(kind: str, data: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def _draw(paint: Callable[[Any], None], legend: Legend = (), size: tuple[float, float] = (6.0, 4.2)) -> Plot:
    look: dict[Any, Any] = {
        "font.size": 10,
        "axes.edgecolor": GREY,
        "axes.labelcolor": INK,
        "xtick.color": GREY,
        "ytick.color": GREY,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": "#e5e7eb",
        "axes.grid": True,
        "axes.axisbelow": True,
        "lines.linewidth": 1.8,
        "svg.hashsalt": "lclrr-edge",
    }
    with matplotlib.rc_context(look):
        figure = Figure(figsize=size, layout="constrained")
        paint(figure.subplots())
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", transparent=True, dpi=150, metadata={"Date": None, "Creator": None})
    return Plot(_uri("svg+xml", buffer.getvalue()), tuple(legend))


def _groups(found: Evaluation) -> list[tuple[str, str, Array]]:
    """(name, colour, which trials) of all, and of each condition."""
    trials = found.trials
    everything = [("all", INK, np.ones(len(trials.truth), bool))]
    if len(trials.condition_names) < 2:
        return everything
    return everything + [
        (name or "other", colour, trials.conditions == name)
        for name, colour in zip(trials.condition_names, COLOURS, strict=False)
    ]


def det_curve(found: Evaluation) -> Plot:
    trials = found.trials
    strangers = trials.confidence[~trials.enrolled]
    least_x, least_y = 0.5 / len(strangers), 0.5 / max(int(trials.enrolled.sum()), 1)

    def paint(axes: Any) -> None:
        for name, colour, chosen in _groups(found):
            curve = np.array(found.det if name == "all" else det(trials.genuine[trials.enrolled & chosen], strangers))
            if len(curve):
                x, y = np.maximum(curve[:, 1], least_x), np.maximum(curve[:, 2], least_y)
                axes.plot(x, y, color=colour, drawstyle="steps-post", linewidth=2.2 if name == "all" else 1.4)
        axes.axvspan(least_x, min(3 / len(strangers), 1), color=GREY, alpha=0.13, linewidth=0)
        for rate in FPIRS:
            if rate > least_x:
                axes.axvline(rate, color=GREY, linewidth=0.8, linestyle=":")
        if found.own is not None:
            x, x_error = _with_error(found.own.fpir, least_x)
            y, y_error = _with_error(found.own.fnir, least_y)
            axes.errorbar(x, y, xerr=x_error, yerr=y_error, color=RED, marker="o", markersize=6, capsize=3, zorder=5)
        axes.set(xscale="log", yscale="log", xlim=(least_x, 1), xlabel="FPIR", ylabel="FNIR")
        axes.xaxis.set_major_formatter(PERCENTS)
        axes.yaxis.set_major_formatter(PERCENTS)
        axes.yaxis.set_minor_formatter(FuncFormatter(lambda share, _: PERCENTS(share) if f"{share:e}"[0] in "25" else ""))
        axes.tick_params(axis="y", which="minor", labelsize=8)

    return _draw(paint, [(name, colour) for name, colour, _ in _groups(found)])


def _with_error(share: Share, least: float) -> tuple[float, Array]:
    """A share and the distances to the ends of its interval (2, 1), all at least `least`."""
    low, high = share.interval or (0.0, 1.0)
    value = max(share.value or 0.0, least)
    return value, np.array([[value - max(low, least)], [max(high, least) - value]])


def confidence(found: Evaluation) -> Plot:
    trials = found.trials
    seen = trials.confidence > REFUSED
    groups = [
        ("enrolled, right person first", BLUE, (trials.rank == 1) & seen),
        ("enrolled, another first", PURPLE, (trials.rank > 1) & seen),
        ("strangers", ORANGE, ~trials.enrolled & seen),
    ]
    groups = [group for group in groups if group[2].any()]
    values = np.clip(trials.confidence, 0, 1)
    bins = np.linspace(max(values[seen].min(initial=0.5) - 0.02, 0), 1, 45)

    def paint(axes: Any) -> None:
        for _, colour, chosen in groups:
            axes.hist(values[chosen], bins, color=colour, alpha=0.25, linewidth=0)
            axes.hist(values[chosen], bins, color=colour, histtype="step", linewidth=1.4)
        if found.own is not None:
            axes.axvline(found.own.threshold, color=INK, linestyle="--", linewidth=1.2)
        axes.set(xlabel="confidence", ylabel="photos", xlim=(bins[0], 1))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))

    return _draw(paint, [(name, colour) for name, colour, _ in groups])


def cmc(found: Evaluation) -> Plot:
    trials = found.trials
    ranks = np.arange(1, min(RANKS, len(trials.labels)) + 1)

    def paint(axes: Any) -> None:
        for name, colour, chosen in _groups(found):
            own = trials.rank[trials.enrolled & chosen]
            if len(own):
                shares = [np.mean(own <= r) for r in ranks]
                axes.plot(ranks, shares, color=colour, marker="o", markersize=3, linewidth=2.2 if name == "all" else 1.4)
        axes.set(xlabel="among the first", ylabel="right person")
        axes.set_ylim(top=1.005)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(PERCENTS)

    return _draw(paint, [(name, colour) for name, colour, _ in _groups(found)])


def code_blocks(codes: Array, truth: Array, atom_people: Array, shown: Array) -> Plot:
    """|Z| (m, n) of the people `shown`, on the atoms of these."""
    rows = np.concatenate([np.flatnonzero(atom_people == person) for person in shown])
    columns = np.concatenate([np.flatnonzero(truth == person) for person in shown])
    size = np.abs(codes[np.ix_(rows, columns)])

    def paint(axes: Any) -> None:
        axes.imshow(size, aspect="auto", cmap="magma", interpolation="nearest", vmax=np.quantile(size, 0.995))
        axes.grid(False)
        for edge in np.flatnonzero(np.diff(truth[columns])):
            axes.axvline(edge + 0.5, color="white", linewidth=0.3)
        for edge in np.flatnonzero(np.diff(atom_people[rows])):
            axes.axhline(edge + 0.5, color="white", linewidth=0.3)
        axes.set(xlabel="test faces, by person", ylabel="atoms, by person", xticks=[], yticks=[])

    return _draw(paint, size=(6.0, 5.2))


def alike(likeness: Array) -> Plot:
    high = float(np.nanquantile(np.diag(likeness), 0.9))

    def paint(axes: Any) -> None:
        image = axes.imshow(likeness, cmap="magma", interpolation="nearest", vmin=0, vmax=max(high, 1e-3))
        axes.grid(False)
        axes.set(xlabel="person", ylabel="person", xticks=[], yticks=[])
        axes.figure.colorbar(image, ax=axes, label="mean cosine", shrink=0.8)

    return _draw(paint, size=(6.0, 5.2))


def convergence(residuals: list[list[float]]) -> Plot:
    values = np.maximum(np.array(residuals), 1e-12)
    legend = (("X - DZ - E", BLUE), ("Z - J (low rank)", ORANGE), ("Z - L (locality)", GREEN))

    def paint(axes: Any) -> None:
        for k, (_, colour) in enumerate(legend):
            axes.plot(np.arange(1, len(values) + 1), values[:, k], color=colour, marker="o", markersize=3)
        axes.set(yscale="log", xlabel="iteration", ylabel="residual")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))

    return _draw(paint, legend, (6.0, 3.6))
