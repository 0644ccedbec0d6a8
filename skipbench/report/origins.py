"""Origins of the runs of one table: runs of different commits, devices or versions are marked, row
by row.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from skipbench.report.columns import MISSING
from skipbench.runs.run import Run

FIELDS = ("commit", "dirty", "device", "torch", "transformers", "package_sha256")
"""Fields in which two runs of the same settings may differ in origin."""


def origin_of(run: Run) -> tuple[str, ...]:
    """The run's values of `FIELDS`; a dash for what was not recorded."""
    origin = run.origin
    named = replace(origin, device=origin.cpu or "cpu") if origin.device == "cpu" else origin
    values = (getattr(named, name) for name in FIELDS)
    return tuple(MISSING if value is None else str(value) for value in values)


def origins(runs: Sequence[Run]) -> dict[tuple[str, ...], str]:
    """A mark for each origin of the runs that have metrics, in the order of appearance; empty where
    there is only one.
    """
    distinct = list(dict.fromkeys(origin_of(run) for run in runs if run.metrics))
    return {origin: _mark(i) for i, origin in enumerate(distinct)} if len(distinct) > 1 else {}


def origin_text(origin: tuple[str, ...]) -> str:
    """An origin in words."""
    commit, dirty, *others, code = origin
    changed = " with uncommitted changes" if dirty == "True" else ""
    named = zip((*FIELDS[2:-1], "code"), (*others, code[:9]), strict=True)
    texts = [f"{name} {value}" for name, value in named if value != MISSING]
    return ", ".join([f"commit {commit[:9]}{changed}", *texts])


def mixed(runs: Sequence[Run]) -> list[str]:
    """A line for each method whose runs are of several sources, for each model of several weights,
    and for each run that went on under other conditions.
    """
    done = [run for run in runs if run.metrics]
    lines = [
        f"{run.model}, {run.method}, {run.dataset}: mixed, {run.origin.mixed}."
        for run in done
        if run.origin.mixed
    ]
    for noun, what, pairs in (
        ("method", "sources", [(run.method, run.origin.method_sha256) for run in done]),
        ("model", "weights", [(run.model, run.origin.weights_sha256) for run in done]),
    ):
        for name in dict.fromkeys(name for name, digest in pairs if digest):
            if (count := len({digest for of, digest in pairs if of == name and digest})) > 1:
                lines.append(
                    f"{noun} {name}: its runs are of {count} different {what}: do not compare them."
                )
    return lines


def _mark(number: int) -> str:
    """a, b, ..., z, aa, ab, ..."""
    letter = chr(ord("a") + number % 26)
    return letter if number < 26 else _mark(number // 26 - 1) + letter
