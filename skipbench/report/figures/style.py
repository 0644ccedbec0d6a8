"""The look of every figure: one colour per method, captions, and files whose bytes depend only on
the data.
"""

import io
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skipbench.report.definitions import caution
from skipbench.report.figures.runs import swept
from skipbench.runs.files import write_atomic
from skipbench.runs.measures import Metrics
from skipbench.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind readers can tell apart; further methods differ by
# marker as well.
BLUE, ORANGE, GREEN, RED, PINK, SKY, YELLOW, GREY = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#B8A800", "#777777",
)  # fmt: skip
TASKS = (BLUE, RED, GREEN, PINK, ORANGE, SKY, YELLOW, GREY)
METHODS = {
    "vanilla": (GREY, "o"),
    "self-sd": (ORANGE, "s"),
    "self-sd-c": (ORANGE, "D"),
    "swift": (BLUE, "o"),
    "clasp": (GREEN, "^"),
    "knapspec": (RED, "v"),
    "asd": (PINK, "P"),
    "layerskip": (SKY, "X"),
    "del": (SKY, "d"),
    "lookahead": (YELLOW, "<"),
    "parallel": (YELLOW, ">"),
    "prompt-lookup": (YELLOW, "*"),
    "auto": ("#000000", "*"),
    "suffix": (PINK, "*"),
    "recycling": (PINK, "h"),
    "conflayers": (GREEN, "p"),
    "leap": (GREEN, "h"),
    "cas-spec": (BLUE, "*"),
    "draft-model": (RED, "s"),
    "uniform": (GREY, "s"),
    "random": (GREY, "^"),
    "first": (GREY, "<"),
    "middle": (GREY, "D"),
    "last": (GREY, ">"),
    "fixed": (GREY, "v"),
}
UNKNOWN = ("#000000", "o")
PHASES = {"prefill": SKY, "draft": ORANGE, "verify": BLUE, "adapt": RED, "other": GREY}
SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "skipbench",
    "svg.fonttype": "path",
    # comes with matplotlib, so that bytes do not depend on the machine's fonts
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}


def method_style(method: str) -> dict[str, str]:
    """`color` and `marker` of a method, the same in every figure."""
    return {"color": color_of(method), "marker": METHODS.get(method, UNKNOWN)[1]}


def color_of(method: str) -> str:
    return METHODS.get(method, UNKNOWN)[0]


def tints(color: str, count: int) -> list[str]:
    """`count` shades of a method's colour, from dark to light, for lines that differ in a setting
    only.
    """
    rgb = [int(color[i : i + 2], 16) for i in (1, 3, 5)]

    def shade(by: float) -> str:  # below 0 towards black, above 0 towards white
        mixed = [round(c * (1 + by)) if by < 0 else round(c + (255 - c) * by) for c in rgb]
        return "#" + "".join(f"{c:02x}" for c in mixed)

    return [color] if count == 1 else [shade(-0.5 + 1.1 * i / (count - 1)) for i in range(count)]


def line_styles(methods: list[str]) -> list[dict[str, str]]:
    """A style for each line, by its method; the lines of one method differ in shade and marker."""
    found, seen = [], dict.fromkeys(methods, 0)
    for method in methods:
        many, number = methods.count(method), seen[method]
        seen[method] += 1
        one = METHODS.get(method, UNKNOWN)[1]
        marker = one if many == 1 else "osD^v<>PXd*"[number % 11]
        found.append({"color": tints(color_of(method), many)[number], "marker": marker})
    return found


def legend(figure: "Figure") -> None:
    """One legend for all axes, outside of them, so that it covers no data."""
    found: dict[str, Any] = {}
    for axis in figure.axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if found:
        figure.legend(list(found.values()), list(found), fontsize=7, loc="outside right upper")


def beside(axis: "Axes") -> None:
    """The legend of one of several axes."""
    axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))


def whisker(axis: "Axes", x: float, metrics: Metrics, color: str) -> None:
    """The 95 % interval of a speedup; one sample has none."""
    if metrics.speedup.ci95 is not None:
        axis.vlines(x, *metrics.speedup.ci95, color=color, linewidth=1)


def no_gain(axis: "Axes", width: float = 0.6) -> None:
    """The line of vanilla's speed."""
    axis.axhline(1.0, color=GREY, linewidth=width)


def note(
    axis: "Axes", text: str, at: tuple[float, float], offset: tuple[float, float], **more: Any
) -> None:
    """Small text near a point; `offset` in points of type."""
    axis.annotate(text, at, xytext=offset, textcoords="offset points", fontsize=7, **more)


def star(axis: "Axes", at: tuple[float, float], text: str) -> None:
    """A published value where it belongs on both axes, its number beside it."""
    given: dict[str, Any] = {"marker": "*", "markersize": 10, "color": "black", "zorder": 4}
    axis.plot([at[0]], [at[1]], linestyle="none", label="paper", **given)
    note(axis, text, at, (4, 4), color="black")
    axis.margins(y=0.1)  # space for the number of the highest


def published_line(
    axis: "Axes",
    value: float,
    text: str,
    color: str = "black",
    style: str = "--",
    width: float = 1.0,
    upright: bool = False,
) -> None:
    """A published value that belongs on one axis only; `upright` on the axis of x."""
    draw = axis.axvline if upright else axis.axhline
    draw(value, color=color, linestyle=style, linewidth=width, label=f"paper: {text}")


def styled() -> AbstractContextManager[None]:
    """Matplotlib's settings for the time of drawing."""
    import matplotlib

    return matplotlib.rc_context(SETTINGS)


def one_axis(width: float = 6.4, height: float = 3.8) -> tuple["Figure", Any]:
    """A figure with one pair of axes; sizes in inches."""
    figure, axes = new_figure(1, 1, (width, height))
    return figure, axes[0, 0]


def new_figure(rows: int, columns: int, size: tuple[float, float]) -> tuple["Figure", Any]:
    """A figure and its axes [rows, columns], without the global state of pyplot; axes share x
    within a column.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, sharex="col")
    return figure, axes


def caption(runs: list[Run]) -> str:
    """Model, device, engine and samples of the runs, how many repeat another, and that the embedded
    model replicates nothing.
    """

    def names(kind: str, values: Iterable[object]) -> str:
        return f"{kind} {', '.join(sorted(set(map(str, values))))}"

    if not runs:
        return "random models in memory: not a replication"
    counts = sorted({len(run.sound) for run in runs})
    samples = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    text = (
        f"{names('model', (r.model for r in runs))}; {names('data', (r.dataset for r in runs))}\n"
        f"{names('device', (r.origin.device for r in runs))}; "
        f"{names('engine', (r.origin.engine for r in runs))}; samples {samples}"
    )
    embedded = caution([run.model for run in runs], [run.dataset for run in runs])
    text = f"{text}; embedded model or data: not a replication" if embedded else text
    return "\n".join(filter(None, (text, swept(runs).mark)))


def save(figure: "Figure", runs: list[Run], stem: Path, text: str | None = None) -> list[Path]:
    """Writes `stem`.png and .svg, each as a whole or not at all, with `text` or the caption of the
    runs below.

    The same figure gives the same bytes.
    """
    import matplotlib

    made = {}
    with matplotlib.rc_context(SETTINGS):
        figure.supxlabel(
            caption(runs) if text is None else text, fontsize=7, color="#444444", wrap=True
        )
        for kind, options in (
            ("png", {"dpi": 150, "metadata": {"Software": None}}),
            ("svg", {"metadata": {"Date": None, "Creator": None}}),
        ):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, **options)
            made[stem.with_name(f"{stem.name}.{kind}")] = buffer.getvalue()
    for path, data in made.items():
        write_atomic(path, data)
    return list(made)
