"""The curves and images of a report, as data URIs. pyplot is not used: it has global state.

No image holds a name. Legends are text of the page, because matplotlib's fonts lack many scripts.
"""

import base64
import io
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib import style
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imsave
from matplotlib.ticker import FuncFormatter, MaxNLocator

from trainer.evaluation.evaluate import Evaluation
from trainer.evaluation.measures import FPIRS, Share, det
from trainer.evaluation.trials import NOT_NAMED
from trainer.types import Array

INK, BLUE, ORANGE, GREEN, PURPLE, RED, GREY = "#16181d", "#2458c5", "#c8500a", "#178a6a", "#8b3fc4", "#c22f62", "#6b7280"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, "#b8901a", RED, "#3c8fb0", "#5d6470")
STYLE: list[Any] = [
    "seaborn-v0_8-whitegrid",
    {"axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "lclrr-edge"},
]
CMC_RANKS = 20
PERCENT = FuncFormatter(lambda share, _: f"{100 * share:g} %")
Legend = list[tuple[str, str]]
"""The name and colour of each thing in a drawing."""


def draw(paint: Callable[..., Legend], *args: Any) -> tuple[str, Legend]:
    """Return a drawing and its legend. `paint` is one of the functions below."""
    with style.context(STYLE):
        figure = Figure(figsize=(6.0, 4.2), layout="constrained")
        legend = paint(figure.subplots(), *args)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", transparent=True, dpi=150, metadata={"Date": None, "Creator": None})
    return _uri("svg+xml", buffer), legend


def pixels(values: Array, colours: str, low: float, high: float) -> str:
    """Return values (h, w) from low to high, or a BGR image (h, w, 3), as an image, one pixel each."""
    buffer = io.BytesIO()
    if values.ndim == 3:
        values = values[..., ::-1].astype(np.uint8)
    imsave(buffer, values, vmin=low, vmax=max(high, low + 1e-9), cmap=colours, format="png")
    return _uri("png", buffer)


def _uri(kind: str, data: io.BytesIO) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data.getvalue()).decode()}"


def blend(share: float) -> str:
    """Return a colour from orange (0) to blue (1)."""
    red, green, blue = (1 - share) * np.array(to_rgb(ORANGE)) + share * np.array(to_rgb(BLUE))
    return to_hex((red, green, blue))


def _groups(found: Evaluation) -> list[tuple[str, str, float, Array]]:
    """Return (name, colour, line width, chosen trials) of all trials and of each condition."""
    trials = found.trials
    groups = [("all", INK, 2.2, np.ones(len(trials.truth), bool))]
    if len(trials.condition_names) > 1:
        for name, colour in zip(trials.condition_names, COLOURS, strict=False):
            groups.append((name or "other", colour, 1.4, trials.conditions == name))
    return groups


def det_curve(axes: Any, found: Evaluation) -> Legend:
    trials = found.trials
    strangers = trials.confidence[~trials.enrolled]
    least_x, least_y = 0.5 / len(strangers), 0.5 / max(int(trials.enrolled.sum()), 1)
    for _, colour, width, chosen in _groups(found):
        curve = np.array(det(trials.genuine[trials.enrolled & chosen], strangers))
        x, y = np.maximum(curve[:, 1], least_x), np.maximum(curve[:, 2], least_y)
        axes.plot(x, y, color=colour, drawstyle="steps-post", linewidth=width)
    axes.axvspan(least_x, min(3 / len(strangers), 1), color=GREY, alpha=0.13, linewidth=0)
    for rate in FPIRS:
        if rate > least_x:
            axes.axvline(rate, color=GREY, linewidth=0.8, linestyle=":")
    if found.own is not None:
        x, x_error = _with_error(found.own.fpir, least_x)
        y, y_error = _with_error(found.own.fnir, least_y)
        axes.errorbar(x, y, xerr=x_error, yerr=y_error, color=RED, marker="o", markersize=6, capsize=3, zorder=5)
    axes.set(xscale="log", yscale="log", xlim=(least_x, 1), xlabel="FPIR", ylabel="FNIR")
    axes.xaxis.set_major_formatter(PERCENT)
    axes.yaxis.set_major_formatter(PERCENT)
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda share, _: PERCENT(share) if f"{share:e}"[0] in "25" else ""))
    axes.tick_params(axis="y", which="minor", labelsize=8)
    return [(name, colour) for name, colour, _, _ in _groups(found)]


def _with_error(share: Share, least: float) -> tuple[float, Array]:
    """Return a share and the distances to the ends of its interval (2, 1), all at least `least`."""
    low, high = share.interval or (0.0, 1.0)
    value = max(share.value or 0.0, least)
    return value, np.array([[value - max(low, least)], [max(high, least) - value]])


def confidence(axes: Any, found: Evaluation) -> Legend:
    trials = found.trials
    seen = trials.confidence > NOT_NAMED
    groups = [
        ("enrolled, right person first", BLUE, (trials.rank == 1) & seen),
        ("enrolled, another person first", PURPLE, (trials.rank > 1) & seen),
        ("strangers", ORANGE, ~trials.enrolled & seen),
    ]
    groups = [group for group in groups if group[2].any()]
    values = np.clip(trials.confidence, 0, 1)
    bins = np.linspace(max(values[seen].min(initial=0.5) - 0.02, 0), 1, 45)
    for _, colour, chosen in groups:
        axes.hist(values[chosen], bins, color=colour, alpha=0.25, linewidth=0)
        axes.hist(values[chosen], bins, color=colour, histtype="step", linewidth=1.4)
    if found.own is not None:
        axes.axvline(found.own.threshold, color=INK, linestyle="--", linewidth=1.2)
    axes.set(xlabel="confidence", ylabel="photos", xlim=(bins[0], 1))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    return [(name, colour) for name, colour, _ in groups]


def cmc(axes: Any, found: Evaluation) -> Legend:
    trials = found.trials
    ranks = np.arange(1, min(CMC_RANKS, len(trials.labels)) + 1)
    for _, colour, width, chosen in _groups(found):
        photos = trials.rank[trials.enrolled & chosen]
        if len(photos):
            axes.plot(ranks, [np.mean(photos <= r) for r in ranks], color=colour, marker="o", markersize=3, linewidth=width)
    axes.set(xlabel="rank", ylabel="right person at this rank or better")
    axes.set_ylim(top=1.005)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(PERCENT)
    return [(name, colour) for name, colour, _, _ in _groups(found)]


def code_blocks(axes: Any, codes: Array, truth: Array, atom_people: Array, shown: Array) -> Legend:
    """Paint |Z| (m, n) of the people `shown`, on their atoms."""
    axes.figure.set_size_inches(6.0, 5.2)
    rows = np.concatenate([np.flatnonzero(atom_people == person) for person in shown])
    columns = np.concatenate([np.flatnonzero(truth == person) for person in shown])
    size = np.abs(codes[np.ix_(rows, columns)])
    axes.imshow(size, aspect="auto", cmap="magma", interpolation="nearest", vmax=np.quantile(size, 0.995))
    axes.grid(False)
    for edge in np.flatnonzero(np.diff(truth[columns])):
        axes.axvline(edge + 0.5, color="white", linewidth=0.3)
    for edge in np.flatnonzero(np.diff(atom_people[rows])):
        axes.axhline(edge + 0.5, color="white", linewidth=0.3)
    axes.set(xlabel="test faces, by person", ylabel="atoms, by person", xticks=[], yticks=[])
    return []


def similarity(axes: Any, cosines: Array) -> Legend:
    axes.figure.set_size_inches(6.0, 5.2)
    high = float(np.nanquantile(np.diag(cosines), 0.9))
    image = axes.imshow(cosines, cmap="magma", interpolation="nearest", vmin=0, vmax=max(high, 1e-3))
    axes.grid(False)
    axes.set(xlabel="person", ylabel="person", xticks=[], yticks=[])
    axes.figure.colorbar(image, ax=axes, label="mean cosine", shrink=0.8)
    return []


def convergence(axes: Any, residuals: list[list[float]]) -> Legend:
    axes.figure.set_size_inches(6.0, 3.6)
    values = np.maximum(np.array(residuals), 1e-12)
    legend = [("X - DZ - E", BLUE), ("Z - J (low rank)", ORANGE), ("Z - L (locality)", GREEN)]
    for k, (_, colour) in enumerate(legend):
        axes.plot(np.arange(1, len(values) + 1), values[:, k], color=colour, marker="o", markersize=3)
    axes.set(yscale="log", xlabel="iteration", ylabel="residual")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return legend
