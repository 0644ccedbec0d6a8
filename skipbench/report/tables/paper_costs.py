"""Notes on costs that a paper prints and a run measures: adaptation, and vanilla's token."""

from collections.abc import Iterator, Sequence

from skipbench.report.measured import measure
from skipbench.report.published import Printed, read_paper
from skipbench.runs.run import Run

SHARES = {"clasp": "figure3c", "knapspec": "figure6"}  # tables with a method's share of adaptation
NEAR = 1.2  # at most so many times the paper's is the paper's
BREAKDOWN = ("self-sd", "table5")  # has the time of vanilla's token by kind of sub-layer


def adaptation(runs: Sequence[Run]) -> Iterator[str]:
    """Per method the share of its adaptation beside its paper's; the reason where it is larger."""
    for method, table in SHARES.items():
        shares, lengths = list[float](), list[float]()
        for run in runs:
            if run.method == method and (of := run.metrics) and of.samples:
                share = measure(of, "share", "adapt").value
                shares += [] if share is None else [share]
                lengths.append(of.rounds / of.samples)
        if not shares:
            continue
        numbers = [n for n in _printed(method, table) if n.column == "share"]
        least = min(numbers, key=lambda n: n.value or 0.0)
        interval = int(least.keys.get("interval", 64))
        theirs, at = least.value or 0.0, f"Figure {table.removeprefix('figure')}"
        text = f"adaptation takes {_range(shares, 100)} % of {method}'s decoding"
        text += f", in its paper {100 * theirs:.3g} % ({at})"
        if max(shares) > NEAR * theirs and max(lengths) < interval:
            text += f": an answer has {_range(lengths)} rounds here, fewer than the {interval} "
            text += "between two programmes there, so that fewer rounds pay for each"
        elif max(shares) > NEAR * theirs:
            text += ": a programme costs more of this model's passes, or comes more often"
        yield f"{text}."


def vanilla_ms(paper: str, runs: Sequence[Run]) -> Iterator[str]:
    """Vanilla's ms per token on each engine beside the paper's, for the models that it prints."""
    if paper != BREAKDOWN[0]:
        return
    rows = [n for n in _printed(*BREAKDOWN) if n.method == "vanilla" and n.column == "ms"]
    for model in dict.fromkeys(n.keys["model"] for n in rows):
        parts = {n.keys["part"]: n.value for n in rows if n.keys["model"] == model}
        here: dict[str, list[float]] = {}
        for run in runs:
            rate = run.metrics.tokens_per_s_vanilla if run.metrics else None
            if run.metrics and run.metrics.estimators:
                rate = run.metrics.estimators.self_sd.tokens_per_s_vanilla
            if rate and run.keys.get("model") == model:
                here.setdefault(run.origin.engine or "an engine", []).append(1000 / rate)
        if here and parts.get("all") and parts.get("attention"):
            said = "; ".join(f"{_range(of)} on {engine}" for engine, of in here.items())
            share = (parts["attention"] or 0) / (parts["all"] or 1)
            yield (
                f"vanilla's ms per token, {model}: {said}; the paper's: {parts['all']:g}, "
                f"{100 * share:.0f} % of it attention (Table 5), which its sets skip most."
            )


def _printed(paper: str, table: str) -> list[Printed]:
    return [n for part in read_paper(paper).tables[table].parts for n in part.numbers]


def _range(values: Sequence[float], unit: float = 1) -> str:
    ends = dict.fromkeys(f"{unit * v:.3g}" for v in (min(values), max(values)))
    return " to ".join(ends)
