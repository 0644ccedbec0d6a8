"""Values of the papers' columns from a run's metrics."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from skipbench.metrics.acceptance import over
from skipbench.report.values import known
from skipbench.runs.measures import Estimate, Interval, Metrics, Skipped


class Measured(NamedTuple):
    """A value with its 95 % interval; in a table the reason why there is none."""

    value: float | None = None
    interval: Interval | None = None
    reason: str | None = None


SCORES = ("rouge1", "rouge2", "rougeL", "pass@1", "pass@10", "accuracy")
ACCURACIES = ("exact", "accuracy")  # names under which scorers count right answers


def _score(metrics: Metrics, name: str) -> float | None:
    return metrics.score.means.get(name) if metrics.score else None


VALUES: dict[str, Callable[[Metrics], float | None]] = {
    "M": lambda m: m.M,
    "alpha": lambda m: m.alpha,
    "tau": lambda m: m.tau,
    "tau_draft": lambda m: m.tau_draft,
    "TPT": lambda m: m.tpt,
    "speedup": lambda m: m.speedup.headline[0],
    "expected_speedup": lambda m: m.expected_speedup.paper,
    "tokens_per_s": lambda m: m.tokens_per_s,
    "ms_per_token": lambda m: 1000 / m.tokens_per_s if m.tokens_per_s else None,
    "memory_gb": lambda m: m.peak_memory_bytes / 1e9 if m.peak_memory_bytes else None,
    "ratio": lambda m: (m.skipped or Skipped()).ratio,
    "skipped_attention": lambda m: (m.skipped or Skipped()).attention,
    "skipped_mlp": lambda m: (m.skipped or Skipped()).mlp,
    "random_steps": lambda m: m.optimisation.random_steps if m.optimisation else None,
    "bayes_steps": lambda m: m.optimisation.bayes_steps if m.optimisation else None,
    "search_steps": lambda m: m.optimisation.steps if m.optimisation else None,
    "search_s": lambda m: m.optimisation.seconds if m.optimisation else None,
    "search_min": lambda m: m.optimisation.seconds / 60 if m.optimisation else None,
    "search_h": lambda m: m.optimisation.seconds / 3600 if m.optimisation else None,
    "opt_step_ms": lambda m: m.optimisation.step_ms if m.optimisation else None,
    "accuracy": lambda m: next((v for k in ACCURACIES if (v := _score(m, k)) is not None), None),
    **{name: functools.partial(_score, name=name) for name in SCORES if name != "accuracy"},
}  # columns that one value of the metrics fills
PHASES = ("draft", "verify", "adapt", "other")
ESTIMATED = ("speedup", "tokens_per_s", "ms_per_token")  # filled by a paper's own estimator
MEAN_ALPHA = ("self-sd", "knapspec")  # whose alpha is a mean over samples; others pool rounds


def spread_key(column: str, keys: Mapping[str, object]) -> str:
    """The name of a number of a run among its spreads."""
    return " ".join(str(name) for name in (column, keys.get("phase"), keys.get("part")) if name)


def measure(
    metrics: Metrics,
    column: str,
    phase: str | None = None,
    part: str | None = None,
    paper: str | None = None,
) -> Measured:
    """The value of `column` in a run's metrics, in the unit of `published.UNITS`, by the estimator
    of `paper`; `share`, `ms`, `us` and `pass_s` are of a phase of decoding, and `ms` of a part.
    """
    interval, name = metrics.speedup.headline[1], (paper or "").replace("-", "_")
    estimate: Estimate | None = getattr(metrics.estimators, name, None)
    if column in ESTIMATED and estimate:
        speedup, interval, rate = estimate.speedup, estimate.ci95, estimate.tokens_per_s
        ms = 1000 / rate if rate else None
        value = {"speedup": speedup, "tokens_per_s": rate, "ms_per_token": ms}[column]
    elif column == "alpha" and paper in MEAN_ALPHA and metrics.alpha is not None:
        value = metrics.alpha_macro
    elif column in VALUES:
        value = VALUES[column](metrics)
    elif column == "share":
        value = _share(metrics, phase)
    elif column == "pass_s":
        value = _pass_s(metrics, phase)
    elif column in ("ms", "us"):
        value = _per_token(metrics, phase, part or "all", 1e3 if column == "ms" else 1e6)
    else:
        value = None  # a setting of the paper, or what no single run measures
    if not known(value):
        return Measured()
    return Measured(float(value), interval if column == "speedup" else None)


def _share(metrics: Metrics, phase: str | None) -> float | None:
    seconds = metrics.seconds.decoding
    total = math.fsum(seconds.values())
    return seconds.get(phase, 0.0) / total if phase in PHASES and total else None


def _pass_s(metrics: Metrics, phase: str | None) -> float | None:
    """Of a verification by its rounds, of the adaptation by its programmes or steps."""
    if phase == "verify":
        return over(metrics.seconds.verify or None, metrics.rounds)
    known = phase == "adapt" and metrics.optimisation and metrics.optimisation.step_ms
    return known / 1e3 if known else None


def _per_token(metrics: Metrics, phase: str | None, part: str, unit: float) -> float | None:
    """Time per decoded token; `attention` and `mlp` by the profiled sub-layers that a pass runs."""
    if not metrics.tokens_per_s:
        return None
    if phase == "latency" and part == "all":
        return unit / metrics.tokens_per_s
    if phase == "latency" and metrics.seconds.decoding:
        draft, verify = (_per_token(metrics, name, part, unit) for name in ("draft", "verify"))
        return None if draft is None or verify is None else draft + verify
    share: float | None = 1.0  # vanilla: every pass is a full forward of one token
    if phase != "latency":
        share = _share(metrics, "adapt" if phase == "threshold update" else phase)
    if share is None or (part != "all" and not metrics.profiled):
        return None
    if part != "all" and (of := metrics.profiled):
        skipped = (phase == "draft" and metrics.skipped) or Skipped()
        times = {
            "attention": (of.layers - (skipped.attention or 0)) * of.attention_s,
            "mlp": (of.layers - (skipped.mlp or 0)) * of.mlp_s,
        }
        share *= times[part] / (math.fsum(times.values()) + of.head_s)
    return share * unit / metrics.tokens_per_s
