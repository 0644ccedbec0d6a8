"""Style of every figure: colours of methods, captions, and files that depend only on the data."""

import io
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from skipbench.report.definitions import caution
from skipbench.report.figures.runs import labels, repeated
from skipbench.runs.files import write_atomic
from skipbench.runs.measures import Metrics
from skipbench.runs.run import Run


class Look(NamedTuple):
    """Of a line or point; `_asdict()` gives matplotlib's arguments."""

    color: str
    marker: str


# Okabe and Ito's palette, which colour-blind readers can distinguish; further methods differ by
# marker as well.
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PINK, SKY, YELLOW, GREY = "#CC79A7", "#56B4E9", "#B8A800", "#777777"
TASKS = (BLUE, RED, GREEN, PINK, ORANGE, SKY, YELLOW, GREY)
METHODS = {
    name: Look(color, marker)
    for color, methods in (
        (GREY, "vanilla:o uniform:s random:^ first:< middle:D last:> fixed:v"),
        (ORANGE, "self-sd:s self-sd-c:D"),
        (BLUE, "swift:o"),
        (GREEN, "clasp:^"),
        (RED, "knapspec:v draft-model:s"),
        (PINK, "asd:P suffix:* recycling:h"),
        (SKY, "layerskip:X del:d"),
        (YELLOW, "lookahead:< parallel:> prompt-lookup:*"),
        ("#000000", "auto:*"),
    )
    for name, marker in (method.split(":") for method in methods.split())
}
ROOM = 0.1
FORMATS = {
    "png": ["Software"],
    "svg": ["Date", "Creator"],
    "pdf": ["CreationDate", "Creator", "Producer"],
}  # metadata that differ from one drawing to the next, by suffix
PHASES = {"prefill": SKY, "draft": ORANGE, "verify": BLUE, "adapt": RED, "other": GREY}


def method_style(method: str) -> Look:
    """Colour and marker of a method, the same in all figures."""
    return METHODS.get(method, Look("#000000", "o"))


def tints(color: str, count: int) -> list[str]:
    """`count` shades of a colour, from dark to light, for lines that differ in a setting only."""
    if count == 1:
        return [color]
    shades = []
    for by in (-0.5 + 1.1 * i / (count - 1) for i in range(count)):  # below 0 towards black
        rgb = (c * (1 + by) if by < 0 else c + (255 - c) * by for c in bytes.fromhex(color[1:]))
        shades.append(f"#{bytes(map(round, rgb)).hex()}")
    return shades


def line_styles(methods: Sequence[str]) -> list[Look]:
    """A style for each line; the lines of one method differ in shade and marker."""
    found = []
    for place, method in enumerate(methods):
        look, many = method_style(method), methods.count(method)
        if many > 1:
            number = methods[:place].count(method)
            look = Look(tints(look.color, many)[number], "osD^v<>PXd*"[number % 11])
        found.append(look)
    return found


def lines(runs: Sequence[Run]) -> Iterable[tuple[Run, str, Look]]:
    """Each run with its name and its style."""
    return zip(runs, labels(runs), line_styles([run.method for run in runs]), strict=True)


def legend(figure: Figure) -> None:
    """One legend for all axes, outside of them, so that it covers no data."""
    found: dict[str, Artist] = {}
    for axis in figure.axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if found:
        figure.legend(list(found.values()), list(found), fontsize=7, loc="outside right upper")


def beside(axis: Axes, **more: Any) -> None:
    """The legend of one of several axes."""
    axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), **more)


def whisker(axis: Axes, x: float, metrics: Metrics, color: str) -> None:
    """The 95 % interval of a speedup; beyond `ROOM` of the value it runs into the frame."""
    value, ends = metrics.speedup.headline
    if value is not None and ends is not None:
        interval = LineCollection([[(x, end) for end in ends]], colors=color, linewidths=1)
        axis.add_collection(interval, autolim=False)
        room = max(ends[0], value * (1 - ROOM)), min(ends[1], value * (1 + ROOM))
        axis.update_datalim([(x, end) for end in room])
        axis.autoscale_view()


def no_gain(axis: Axes, width: float = 0.6) -> None:
    """The line of vanilla's speed."""
    axis.axhline(1.0, color=GREY, linewidth=width)


def whole_numbers(axis: Any) -> None:
    """Ticks of an x or y axis at whole numbers."""
    axis.get_major_locator().set_params(integer=True)


def squares(axis: Axes, layers: int, rows: Sequence[str], line: float, **text: Any) -> None:
    """Ticks of a map, layers by named `rows`, with white lines between its squares."""
    axis.set_yticks(range(len(rows)), rows, **text)
    axis.set_xticks(range(0, layers, 1 if layers <= 24 else 4))
    axis.set_xticks([i + 0.5 for i in range(layers - 1)], minor=True)
    axis.set_yticks([i + 0.5 for i in range(len(rows) - 1)], minor=True)
    axis.grid(which="major", visible=False)
    axis.grid(which="minor", color="white", linewidth=line)
    axis.tick_params(which="minor", length=0)


def note(
    axis: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], **more: Any
) -> None:
    """Small text near a point; `offset` in points of type."""
    axis.annotate(text, at, xytext=offset, textcoords="offset points", fontsize=7, **more)


def star(axis: Axes, at: tuple[float, float], text: str) -> None:
    """A published value where it belongs on both axes, its number beside it."""
    axis.plot([at[0]], [at[1]], "*", markersize=10, label="paper", color="black", zorder=4)
    note(axis, text, at, (4, 4), color="black")
    axis.margins(y=0.1)  # space for the number of the highest


def published_line(axis: Axes, value: float, text: str, upright: bool = False, **look: Any) -> None:
    """A published value that belongs on one axis only; `upright` on the axis of x."""
    look = {"color": "black", "linestyle": "--", "linewidth": 1.0, **look}
    (axis.axvline if upright else axis.axhline)(value, label=f"paper: {text}", **look)


def styled() -> AbstractContextManager[None]:
    """Matplotlib's settings for the time of drawing."""
    return matplotlib.rc_context(fname=Path(__file__).with_suffix(".mplstyle"))


def one_axis(width: float = 6.4, height: float = 3.8) -> tuple[Figure, Any]:
    """A figure with one pair of axes; sizes in inches."""
    figure, axes = new_figure(1, 1, (width, height))
    return figure, axes[0, 0]


def new_figure(
    rows: int, columns: int, size: tuple[float, float], heights: Sequence[float] | None = None
) -> tuple[Figure, Any]:
    """A figure of a `size` in inches and its axes [rows, columns], which share x in a column;
    `heights` of the rows are shares. No state of pyplot.
    """
    with styled():
        figure = Figure(figsize=size, layout="constrained")
        return figure, figure.subplots(
            rows, columns, squeeze=False, sharex="col", height_ratios=heights
        )


def caption(runs: Sequence[Run]) -> str:
    """Model, data, device, engine and samples of the runs, and a note if they replicate nothing."""
    if not runs:
        return "random models in memory: not a replication"
    models, data = [run.model for run in runs], [run.dataset for run in runs]
    devices, engines = zip(*((run.origin.device, run.origin.engine) for run in runs), strict=True)
    kinds = {"model": models, "data": data, "device": devices, "engine": engines}
    named = [f"{kind} {', '.join(sorted({*map(str, names)}))}" for kind, names in kinds.items()]
    counts = sorted({len(run.sound) for run in runs})
    samples = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    text = f"{named[0]}; {named[1]}\n{named[2]}; {named[3]}; samples {samples}"
    if caution(models, data):
        text += "; embedded model or data: not a replication"
    return "\n".join(filter(None, (text, repeated(runs))))


def save(figure: Figure, runs: list[Run], stem: Path, text: str | None = None) -> list[Path]:
    """Writes `stem`.png, .svg and .pdf with `text` or the caption below; always the same bytes."""
    with styled():
        below = caption(runs) if text is None else text
        figure.supxlabel(below, fontsize=7, color="#444444", wrap=True)
    made = {stem.with_name(f"{stem.name}.{kind}"): drawn(figure, kind) for kind in FORMATS}
    for path, data in made.items():
        write_atomic(path, data)
    return list(made)


def drawn(figure: Figure, kind: str) -> bytes:
    """The figure in one of `FORMATS`."""
    with styled():
        unset = dict.fromkeys(FORMATS[kind])
        dpi = 150 if kind == "png" else "figure"
        figure.savefig(buffer := io.BytesIO(), format=kind, dpi=dpi, metadata=unset)
    return buffer.getvalue()
