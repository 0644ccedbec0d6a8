"""Comparison of a table's runs: the best beyond noise, equal decodings, and their origins."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from skipbench.errors import SkipbenchError
from skipbench.metrics.interval import paired_ratio_interval
from skipbench.metrics.pairs import Standing, standings
from skipbench.report.values import Ratio, ratio, speedup
from skipbench.runs.run import Run

BASELINE = "vanilla"
FASTEST = (
    "bold: not significantly slower than the fastest method of its row (one model, dataset and "
    "setting), by paired ratios of the same questions and an interval that allows for all pairs of "
    "the row, and significantly faster than vanilla; nothing with fewer than 5 questions"
)
FIELDS = ("commit", "dirty", "torch", "transformers", "package_sha256")  # of an origin


def row_of(run: Run) -> tuple[str, ...]:
    """What the runs of a row share: its folder, or model and dataset of a run without one; engine
    and machine.
    """
    row = str(run.id or "").rpartition("/")[0] or f"{run.model}, {run.dataset}"
    return row, run.origin.engine or "", _machine(run) or ""


def beside(runs: Sequence[Run]) -> tuple[dict[int, Standing], list[str]]:
    """Standings by place of the run in its row (`row_of`); lines on runs left out."""
    rows: dict[tuple[str, ...], dict[int, dict[str, float]]] = {}
    for at, run in enumerate(runs):
        if run.speedup is not None:
            rows.setdefault(row_of(run), {})[at] = _by_question(run)
    found, lines = dict[int, Standing](), list[str]()
    for row in rows.values():
        most = max(map(len, row.values()))
        # vanilla on fewer questions than the methods takes none from their pairs
        able = [at for at in row if runs[at].method != BASELINE or len(row[at]) == most]
        paired = [at for at in able if row[at]]
        vanilla = [n for n, at in enumerate(paired) if runs[at].method == BASELINE]
        found |= zip(paired, standings([row[at] for at in paired], vanilla), strict=False)
        left = [at for at in able if at not in found]
        if left and len(row) > 1:
            why = "no question is in all" if paired == left else "no values by question"
            names = ", ".join(dict.fromkeys(runs[at].method for at in left))
            where = f"{runs[left[0]].model}, {runs[left[0]].dataset}"
            lines.append(f"{where}: not compared by pairs: {names}: {why}.")
    return found, lines


def check_over(over: str, methods: Sequence[str]) -> None:
    """Raises SkipbenchError for `over=` of a method that is neither vanilla nor among `methods`."""
    if over and over not in (BASELINE, *methods):
        from skipbench.config.explain import did_you_mean  # slow to import

        names = ", ".join(dict.fromkeys(methods))
        hint = did_you_mean(over, list(methods))
        raise SkipbenchError(f"over={over}.{hint} Wanted one of: {names}")


def over(runs: Sequence[Run], method: str) -> dict[int, Ratio]:
    """Speed over the first run of `method` in its row, paired by question, by place of the run.
    Raises SkipbenchError as `check_over`.
    """
    if runs:
        check_over(method, [run.method for run in runs])
    arms = [_by_question(run) for run in runs]
    bases: dict[tuple[str, ...], dict[str, float]] = {}
    for run, arm in zip(runs, arms, strict=True):
        if run.method == method and arm:
            bases.setdefault(row_of(run), arm)
    found = dict[int, Ratio]()
    for at, (run, arm) in enumerate(zip(runs, arms, strict=True)):
        base = bases.get(row_of(run), {})
        ratios = [arm[question] / base[question] for question in arm if question in base]
        if run.method != method and ratios:
            found[at] = paired_ratio_interval(ratios)
    return found


def over_lines(runs: Sequence[Run], method: str) -> list[str]:
    """`over`, a line for each row, for a table whose columns are the paper's."""
    lines: dict[str, dict[str, None]] = {}
    for at, found in over(runs, method).items():
        row = lines.setdefault(f"{runs[at].model}, {runs[at].dataset}", {})
        row[f"{runs[at].method} {ratio(*found).text}"] = None
    return [
        f"over {method}, paired by question: {row}: {'; '.join(texts)}."
        for row, texts in lines.items()
    ]


def _by_question(run: Run) -> dict[str, float]:
    """The speedups of a run by question."""
    return (run.metrics and run.metrics.speedup.by_question) or {}


@dataclass(frozen=True)
class Comparison:
    """The ranking of a row: one model and dataset."""

    runs: list[Run]  # best first; without metrics and with a `reason` where a method was left out
    best: Run | None  # the fastest, if it is faster than vanilla beyond the noise
    tied: list[Run]  # those that cannot be distinguished from it, by pairs

    @property
    def recommended(self) -> str:
        """The method to take, with its speedup and those that are as good; or vanilla."""
        if self.best is None:
            return BASELINE
        others = (run.method for run in self.tied if run.method != self.best.method)
        names = ", ".join(dict.fromkeys(others))
        tied = f"; not significantly slower: {names}" if names else ""
        faster = speedup(self.best.measured.speedup).text
        return f"{self.best.method}, {faster} of {self.best.over}{tied}"


def conclude(runs: Sequence[Run]) -> Comparison:
    """Ranks runs by speedup, unmeasured ones last; names the fastest beyond noise, and its ties."""
    in_order = sorted(ranked(runs), key=lambda run: run.rank or 0)
    places, _ = beside(in_order)
    first = [in_order[at] for at, place in places.items() if place.tied and place.faster]
    return Comparison(in_order, first[0] if first else None, first[1:])


def ranked(runs: Sequence[Run]) -> list[Run]:
    """The runs, with their `rank` by falling speedup from 0; unmeasured ones come last."""
    order = sorted(range(len(runs)), key=lambda place: -(runs[place].speedup or -math.inf))
    return [replace(run, rank=order.index(place)) for place, run in enumerate(runs)]


def noise_floor(runs: Sequence[Run]) -> list[str]:
    """A line of vanilla's speedup over itself, if anything was measured."""
    if not any(run.metrics for run in runs):
        return []
    found = dict.fromkeys(
        f"{run.model}, {run.dataset} {speedup(m.speedup).text} (n = {m.samples})"
        for run in runs
        if run.method == BASELINE and (m := run.metrics) and run.speedup
    )
    shown = "; ".join(found) or "not measured, there is no such run"
    return [f"noise floor, the speedup of vanilla over itself: {shown}."]


def same_drafts(runs: Sequence[Run]) -> list[str]:
    """A line for each set of rows with the same `drafted` tokens, named by the keys that vary."""
    drafts: dict[str, list[dict[str, object]]] = {}
    points = any(run.label for run in runs)
    for run in runs:
        keys: dict[str, object] = {k: getattr(run, k) for k in ("model", "method", "dataset")}
        keys |= {"point": run.label or "no override"} if points else run.keys
        if run.drafted and keys["method"] != BASELINE:
            drafts.setdefault(run.drafted, []).append(keys)
    rows = [keys for same in drafts.values() for keys in same]
    varying = {k for keys in rows for k in keys if len({repr(row.get(k)) for row in rows}) > 1}
    lines = []
    for same in drafts.values():
        named = [
            ", ".join(f"{k}={v}".removeprefix("point=") for k, v in keys.items() if k in varying)
            for keys in same
        ]
        if len({*named}) > 1:
            how = "drafted the same tokens: only adaptation and timing tell them apart"
            lines.append(f"{how}: {' | '.join(dict.fromkeys(named))}.")
    return lines


def _machine(run: Run) -> str | None:
    """The GPU, or the processor of a run on one."""
    on_cpu = run.origin.device == "cpu"
    return run.origin.cpu or "cpu" if on_cpu else run.origin.device


def origins(runs: Sequence[Run]) -> list[str]:
    """A line where the measured runs are of several commits, devices or versions."""
    done = [run for run in runs if run.metrics]
    count = len({(_machine(run), *(getattr(run.origin, of) for of in FIELDS)) for run in done})
    how = f"The runs are from {count} origins (commits, devices or versions): compare with care."
    return [how] if count > 1 else []


def replaced(runs: Sequence[Run]) -> str:
    """The engines that were used in place of those that were asked for; empty if none was."""
    origins = [run.origin for run in runs if run.metrics and run.origin.engine_asked]
    return ", ".join(dict.fromkeys(f"engine {origin.engines}" for origin in origins))


def titled(title: str, runs: Sequence[Run]) -> str:
    """The title of a table, with what `replaced` says of its runs."""
    return f"{title} ({engines})" if (engines := replaced(runs)) else title


def mixed(runs: Sequence[Run]) -> list[str]:
    """A line per method of several sources, model of several weights."""
    done = [run for run in runs if run.metrics]
    known = dict.fromkeys(
        of
        for run in done
        for of in (
            (f"method {run.method}", "sources", run.origin.method_sha256),
            (f"model {run.model}", "weights", run.origin.weights_sha256),
        )
    )
    counts = Counter((name, what) for name, what, digest in known if digest)
    return [
        f"{name}: its runs are of {count} different {what}: do not compare them."
        for (name, what), count in counts.items()
        if count > 1
    ]
