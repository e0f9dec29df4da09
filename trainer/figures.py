# --- Curves ---

Parts = list[tuple[str, str]]
_CONVERGENCE = [("X - DZ - E", BLUE), ("Z - J (low rank)", ORANGE), ("Z - L (locality)", "#178a6a")]


def _draw(paint: Callable[[Any], None], size: tuple[float, float] = (6.0, 4.2)) -> str:
    look: dict[Any, Any] = {
        "font.size": 10,
        "axes.edgecolor": GREY,
        "axes.labelcolor": "#333333",
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
    return _uri("svg+xml", buffer.getvalue())


@cache
def _percents() -> Any:
    return FuncFormatter(lambda share, _: f"{100 * share:g} %")


def _groups(found: Evaluation) -> list[tuple[str, str, Array]]:
    """(name, colour, which trials) of all, and of each condition."""
    trials = found.trials
    everything = [("all", "#16181d", np.ones(len(trials.truth), bool))]
    if len(trials.condition_names) < 2:
        return everything
    return everything + [
        (name or "other", colour, trials.conditions == name)
        for name, colour in zip(trials.condition_names, COLOURS, strict=False)
    ]


def _det_parts(found: Evaluation) -> Parts:
    return [(name, colour) for name, colour, _ in _groups(found)]


def _det_plot(found: Evaluation) -> str:
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
            (x_low, x_high), (y_low, y_high) = found.own.fpir.interval, found.own.fnir.interval  # type: ignore[misc]
            x, y = max(found.own.fpir.value or 0, least_x), max(found.own.fnir.value or 0, least_y)
            spread = [[x - max(x_low, least_x), y - max(y_low, least_y)], [x_high - x, y_high - y]]
            axes.errorbar(
                x,
                y,
                xerr=np.abs([[spread[0][0]], [spread[1][0]]]),
                yerr=np.abs([[spread[0][1]], [spread[1][1]]]),
                color="#c22f62",
                marker="o",
                markersize=6,
                capsize=3,
                zorder=5,
            )
        axes.set(xscale="log", yscale="log", xlim=(least_x, 1), xlabel="FPIR", ylabel="FNIR")
        axes.xaxis.set_major_formatter(_percents())
        axes.yaxis.set_major_formatter(_percents())
        axes.yaxis.set_minor_formatter(FuncFormatter(lambda share, _: _percents()(share) if f"{share:e}"[0] in "25" else ""))
        axes.tick_params(axis="y", which="minor", labelsize=8)

    return _draw(paint)


def _confidence_parts(found: Evaluation) -> Parts:
    parts = [("enrolled, right person first", BLUE), ("enrolled, another first", "#8b3fc4")]
    return parts + ([("strangers", ORANGE)] if (~found.trials.enrolled).any() else [])


def _confidence_plot(found: Evaluation) -> str:
    trials = found.trials
    seen = trials.confidence > REFUSED
    groups = ((trials.rank == 1) & seen, (trials.rank > 1) & seen, ~trials.enrolled & seen)
    values = np.clip(trials.confidence, 0, 1)
    bins = np.linspace(max(values[seen].min(initial=0.5) - 0.02, 0), 1, 45)

    def paint(axes: Any) -> None:
        for chosen, (_, colour) in zip(groups, _confidence_parts(found), strict=False):
            if chosen.any():
                axes.hist(values[chosen], bins, color=colour, alpha=0.25, linewidth=0)
                axes.hist(values[chosen], bins, color=colour, histtype="step", linewidth=1.4)
        if found.own is not None:
            axes.axvline(found.own.threshold, color="#16181d", linestyle="--", linewidth=1.2)
        axes.set(xlabel="confidence", ylabel="photos", xlim=(bins[0], 1))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))

    return _draw(paint)


def _cmc_parts(found: Evaluation) -> Parts:
    return _det_parts(found)


def _cmc_plot(found: Evaluation) -> str:
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
        axes.yaxis.set_major_formatter(_percents())

    return _draw(paint)


def _codes_plot(codes: Array, truth: Array, atom_people: Array, shown: Array) -> str:
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

    return _draw(paint, (6.0, 5.2))


def _likeness_plot(alike: Array) -> str:
    high = float(np.nanquantile(np.diag(alike), 0.9))

    def paint(axes: Any) -> None:
        image = axes.imshow(alike, cmap="magma", interpolation="nearest", vmin=0, vmax=max(high, 1e-3))
        axes.grid(False)
        axes.set(xlabel="person", ylabel="person", xticks=[], yticks=[])
        axes.figure.colorbar(image, ax=axes, label="mean cosine", shrink=0.8)

    return _draw(paint, (6.0, 5.2))


def _convergence_plot(residuals: list[list[float]]) -> str:
    values = np.maximum(np.array(residuals), 1e-12)

    def paint(axes: Any) -> None:
        for k, (_, colour) in enumerate(_CONVERGENCE):
            axes.plot(np.arange(1, len(values) + 1), values[:, k], color=colour, marker="o", markersize=3)
        axes.set(yscale="log", xlabel="iteration", ylabel="residual")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))

    return _draw(paint, (6.0, 3.6))
