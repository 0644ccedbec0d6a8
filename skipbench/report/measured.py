"""What of `metrics.json` stands beside a column of the papers, and why a column or a value cannot
be measured.
"""

import math
from collections.abc import Mapping
from typing import Any

from skipbench.report.columns import missing_reasons
from skipbench.runs.reading import value_at

Measured = tuple[float | None, tuple[float, float] | None, str | None]
"""A value, its 95 % interval, and the reason where there is no value."""
SCORES = ("rouge1", "rouge2", "rougeL", "pass@1", "pass@10", "accuracy")
PATHS = {  # of every column that is read as it stands
    "M": ("M",),
    "alpha": ("alpha",),
    "tau": ("tau",),
    "TPT": ("tpt",),
    "speedup": ("speedup", "paired"),
    "expected_speedup": ("expected_speedup", "paper"),
    "tokens_per_s": ("tokens_per_s",),
    "ratio": ("skipped", "ratio"),
    "skipped_attention": ("skipped", "attention"),
    "skipped_mlp": ("skipped", "mlp"),
    "random_steps": ("optimisation", "random_steps"),
    "bayes_steps": ("optimisation", "bayes_steps"),
    "search_s": ("optimisation", "seconds"),
    **{name: ("score", "method", name) for name in SCORES if name != "accuracy"},
}
ACCURACIES = ("exact", "accuracy")  # names under which scorers count right answers
DERIVED = (
    *("accuracy", "memory_gb", "ms_per_token", "share", "ms", "us"),
    *("search_steps", "search_h", "search_min", "opt_step_ms"),
)
PHASES = ("draft", "verify", "adapt", "other")
_TRAINING = "a cost of training, which is not repeated here"
_SETTING = "a setting of the paper, not a measurement"
_ENDS = "the paper's range over its tables"
# Columns that no run fills, with the reason; one that is in none of these dicts is a setting.
UNMEASURED = {
    **dict.fromkeys(("training_steps", "gpus"), _TRAINING),
    **dict.fromkeys(("speedup_low", "speedup_high"), _ENDS),
    "score": "needs a paid judge",
    "pass_s": "single passes are not timed inside a run",
    "matchness": "stands in the figure of one run",
    **dict.fromkeys(
        ("memory_saved", "alpha_gain", "speedup_gain", "correlation"), "compares several runs"
    ),
}
# By column: the entry of `missing_reasons` that says why it has no value.
_NEEDS = {"tau": "alpha", "TPT": "TPT", "expected_speedup": "E(Spd)"}


def unmeasured(column: str) -> str | None:
    """Why no run can fill `column`; None where one can."""
    return None if column in PATHS or column in DERIVED else UNMEASURED.get(column, _SETTING)


def measure(
    metrics: Mapping[str, Any], column: str, phase: str | None = None, part: str | None = None
) -> Measured:
    """The value of `column` in the contents of a `metrics.json`, in the unit of `published.UNITS`.

    Args:
        metrics: of a run, with its `optimisation` where it searched a skip set.
        column: of a paper's table.
        phase: what `share`, `ms` and `us` are of; the prefill is no part of decoding.
        part: of `ms`: all, attention or mlp.
    """
    if reason := unmeasured(column):
        return None, None, reason
    value = (
        value_at(metrics, *PATHS[column])
        if column in PATHS
        else _derived(metrics, column, phase, part)
    )
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None, None, _why(metrics, column, phase)
    ends = value_at(metrics, "speedup", "ci95") if column == "speedup" else None
    return float(value), (float(ends[0]), float(ends[1])) if ends else None, None


def vanilla_arm(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics of vanilla in a run of another method: every run decodes each sample by both."""
    scores = value_at(metrics, "score", "vanilla") or {}
    decoded = metrics.get("tokens_per_s_vanilla") is not None
    return {
        "samples": metrics.get("samples"),
        "M": 1.0 if decoded else None,
        "tpt": metrics.get("tpt_vanilla"),
        "tokens_per_s": metrics.get("tokens_per_s_vanilla"),
        "profiled": metrics.get("profiled"),
        "speedup": {"paired": 1.0 if decoded else None},
        "score": {"method": scores},
    }


def _derived(metrics: Mapping[str, Any], column: str, phase: str | None, part: str | None) -> Any:
    if column == "accuracy":
        scores = value_at(metrics, "score", "method") or {}
        return next((scores[name] for name in ACCURACIES if name in scores), None)
    if column == "memory_gb":
        bytes_ = metrics.get("peak_memory_bytes")
        return bytes_ / 1e9 if bytes_ else None
    if column == "ms_per_token":
        rate = metrics.get("tokens_per_s")
        return 1000 / rate if rate else None
    if column in ("ms", "us"):
        return _per_token(metrics, phase, part or "all", {"ms": 1e3, "us": 1e6}[column])
    if column in ("search_steps", "search_h", "search_min", "opt_step_ms"):
        return _search(metrics.get("optimisation") or {}, column)
    seconds = metrics.get("seconds") or {}
    total = math.fsum(seconds.get(name) or 0 for name in PHASES)
    return seconds.get(phase, 0) / total if phase in PHASES and total else None


def _search(costs: Mapping[str, Any], column: str) -> float | None:
    if not costs:
        return None
    steps, seconds = costs["random_steps"] + costs["bayes_steps"], costs["seconds"]
    if column == "search_steps":
        return float(steps)
    if column == "opt_step_ms":
        return float(1e3 * seconds / steps) if steps else None
    return float(seconds / {"search_h": 3600, "search_min": 60}[column])


def _per_token(
    metrics: Mapping[str, Any], phase: str | None, part: str, unit: float
) -> float | None:
    """Time per decoded token of a phase: `draft`, `verify`, `threshold update` or `latency` of all.

    Attention and MLP take the shares of it that the profiled sub-layers have in a draft step, with
    those that the draft leaves out, and in a full forward.
    """
    rate, seconds = metrics.get("tokens_per_s"), metrics.get("seconds") or {}
    if not rate:
        return None
    total = math.fsum(seconds.get(name) or 0 for name in PHASES)
    if phase == "latency" and part == "all":
        return float(unit / rate)
    if phase == "latency" and total:
        parts = [_per_token(metrics, name, part, unit) for name in ("draft", "verify")]
        return None if None in parts else math.fsum(p for p in parts if p is not None)
    if phase == "latency":  # vanilla: every pass is a full forward of one token
        share = _share_of(metrics, part, {})
        return None if share is None else share * unit / rate
    name = {"threshold update": "adapt"}.get(phase or "", phase)
    if name not in PHASES or not total:
        return None
    skipped = (metrics.get("skipped") or {}) if name == "draft" else {}
    share = 1.0 if part == "all" else _share_of(metrics, part, skipped)
    return None if share is None else share * seconds[name] / total * unit / rate


def _share_of(metrics: Mapping[str, Any], part: str, skipped: Mapping[str, Any]) -> float | None:
    """Share of `attention` or `mlp` in the profiled time of a pass."""
    profiled = metrics.get("profiled")
    if not profiled:
        return None
    times = {
        kind: (profiled["layers"] - (skipped.get(kind) or 0)) * profiled[f"{kind}_s"]
        for kind in ("attention", "mlp")
    }
    return float(times[part] / (math.fsum(times.values()) + profiled["head_s"]))


def _why(metrics: Mapping[str, Any], column: str, phase: str | None) -> str:
    """Why `column` has no value although the run has metrics."""
    if column == "share":
        return (
            f"seconds of {phase!r} are not told apart"
            if phase not in PHASES
            else "nothing was decoded"
        )
    if column in ("ms", "us"):
        return (
            "sub-layers were not profiled in this run"
            if not metrics.get("profiled") and metrics.get("seconds")
            else "not in the metrics of this run"
        )
    if column in ("random_steps", "bayes_steps", "opt_step_ms") or column.startswith("search_"):
        return "no search belongs to this run"
    if column in SCORES:
        return f"{column} is not among the scores of this run"
    if column == "memory_gb":
        return "memory is not measured on this device"
    if (
        metrics.get("samples")
        and metrics.get("alpha") is None
        and column in ("alpha", "tau", "expected_speedup")
    ):
        return "nothing is drafted"
    told = missing_reasons(metrics)
    return (
        told.get("samples")
        or told.get(_NEEDS.get(column, column))
        or "not in the metrics of this run"
    )
