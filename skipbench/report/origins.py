"""Origins of the runs of one table: runs of different commits, devices or versions are marked, row
by row.
"""

from collections.abc import Sequence

from skipbench.report.columns import MISSING
from skipbench.runs.run import Run

FIELDS = ("commit", "dirty", "device", "torch", "transformers", "package_sha256")
"""Fields in which two runs of the same settings may differ in origin."""


def origin_of(run: Run) -> tuple[str, ...]:
    """The run's values of `FIELDS`; a dash for what was not recorded."""
    found = {name: getattr(run.origin, name) for name in FIELDS}
    if found["device"] == "cpu":  # which is no device's name
        found["device"] = run.origin.cpu or "cpu"
    return tuple(MISSING if value is None else str(value) for value in found.values())


def origins(runs: Sequence[Run]) -> dict[tuple[str, ...], str]:
    """A mark for each origin of the runs that have metrics, in the order of appearance; empty where
    there is only one.
    """
    distinct = list(dict.fromkeys(origin_of(run) for run in runs if run.metrics))
    return {origin: _mark(i) for i, origin in enumerate(distinct)} if len(distinct) > 1 else {}


def origin_text(origin: tuple[str, ...]) -> str:
    """An origin in words."""
    commit, dirty, *others = origin
    changed = " with uncommitted changes" if dirty == "True" else ""
    *others, code = others
    named = [
        f"{name} {value}"
        for name, value in zip(FIELDS[2:-1], others, strict=True)
        if value != MISSING
    ]
    named += [f"code {code[:9]}"] if code != MISSING else []
    return ", ".join([f"commit {commit[:9]}{changed}", *named])


def mixed(runs: Sequence[Run]) -> list[str]:
    """A line for each method whose runs are of several sources, for each model of several weights,
    and for each run that went on under other conditions.
    """
    lines = [
        f"{run.model}, {run.method}, {run.dataset}: mixed, {run.origin.mixed}."
        for run in runs
        if run.metrics and run.origin.mixed
    ]
    for name, entry, what in (
        ("method", "method_sha256", "sources"),
        ("model", "weights_sha256", "weights"),
    ):
        found: dict[str, set[str]] = {}
        for run in runs:
            if run.metrics and (digest := getattr(run.origin, entry)):
                found.setdefault(str(getattr(run, name)), set()).add(digest)
        lines += [
            f"{name} {of}: its runs are of {len(hashes)} different {what}: do not compare them."
            for of, hashes in found.items()
            if len(hashes) > 1
        ]
    return lines


def _mark(number: int) -> str:
    """a, b, ..., z, aa, ab, ..."""
    letter = chr(ord("a") + number % 26)
    return letter if number < 26 else _mark(number // 26 - 1) + letter
