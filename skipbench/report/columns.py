"""Each column of a table as text, from the contents of `metrics.json`; a dash where a value is
missing, and the reason.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from skipbench.metrics.waits import PERCENTILES
from skipbench.runs.reading import value_at

MISSING = "\u2014"


def number(value: Any, digits: int = 2, unit: str = "") -> str:
    """`value` with `digits` decimals, or a dash for None, nan and infinities."""
    return f"{value:.{digits}f}{unit}" if known(value) else MISSING


def figures(value: Any) -> str:
    """About three figures of a positive number, so that columns stay narrow."""
    return number(
        value, 2 if known(value) and value < 10 else 1 if known(value) and value < 100 else 0
    )


def sample_count(metrics: Mapping[str, Any]) -> str:
    """Prompts that were decoded, and where these were several, by how many processes."""
    repeats = metrics.get("repeats")
    shown = number(metrics.get("prompts" if repeats else "samples"), 0)
    return f"{shown} x {repeats}" if repeats else shown


def main_cells(metrics: Mapping[str, Any]) -> dict[str, str]:
    """The main row of a cell, by column."""
    paper, measured = (
        value_at(metrics, "expected_speedup", name) for name in ("paper", "measured_cost")
    )
    tok_s = (metrics.get("tokens_per_s_vanilla"), metrics.get("tokens_per_s"))
    return {
        "M": figures(metrics.get("M")),
        "alpha": number(metrics.get("alpha"), 3),
        "tau": figures(metrics.get("tau")),
        "TPT": figures(metrics.get("tpt")),
        "E(Spd)": f"{number(paper)} / {number(measured)}"
        if known(paper) or known(measured)
        else MISSING,
        "speedup": _speedup(metrics),
        "tok/s": " -> ".join(map(figures, tok_s)) if any(map(known, tok_s)) else MISSING,
        "lossless": _lossless(metrics),
    }


def waits_cells(metrics: Mapping[str, Any], shares: Sequence[int] = PERCENTILES) -> dict[str, str]:
    """What a user waits for and what it costs, vanilla -> method, by column: `shares` of the
    percentiles in milliseconds, such as `12.1 / 14.0 / 20.2 -> 8.1 / 9.9 / 21.0`.
    """

    def wait(key: str) -> str:
        found = metrics.get(key) or {}
        shown = [figures(scaled(found.get(f"p{share}"), 1e3)) for share in shares]
        return MISSING if MISSING in shown else " / ".join(shown)

    return {
        "TTFT": _arrow(wait("ttft_s_vanilla"), wait("ttft_s")),
        "TPOT": _arrow(wait("s_per_output_token_vanilla"), wait("s_per_output_token")),
        "J/token": _joules(metrics),
    }


def _joules(metrics: Mapping[str, Any]) -> str:
    """A dash for a record that does not know the quantity, `unknown` where no counter was read."""
    if "joules_per_token" not in metrics:
        return MISSING
    both = [metrics.get(f"joules_per_token{suffix}") for suffix in ("_vanilla", "")]
    return _arrow(*map(figures, both)) if all(map(known, both)) else "unknown"


def _arrow(vanilla: str, method: str) -> str:
    return MISSING if MISSING in (vanilla, method) else f"{vanilla} -> {method}"


def _speedup(metrics: Mapping[str, Any]) -> str:
    ends = value_at(metrics, "speedup", "ci95")
    text = number(value_at(metrics, "speedup", "paired"), 2, "x")
    return f"{text} [{number(ends[0])}, {number(ends[1])}]" if ends and text != MISSING else text


def _lossless(metrics: Mapping[str, Any]) -> str:
    of = _comparable(metrics)
    return f"{value_at(metrics, 'lossless', 'identical') or 0}/{of}" if of else MISSING


def _comparable(metrics: Mapping[str, Any]) -> int:
    return sum(
        value_at(metrics, "lossless", name) or 0
        for name in ("identical", "ties", "diverged", "unchecked")
    )


def missing_reasons(metrics: Mapping[str, Any]) -> dict[str, str]:
    """Why values are missing, by the name of the first one, as far as the metrics tell."""
    if not metrics.get("samples"):
        return {"samples": "no sample finished"}
    alpha, reasons = metrics.get("alpha"), dict[str, str]()
    if alpha is None:
        reasons["alpha"] = "alpha, tau and E(Spd): nothing was drafted"
    elif alpha == 0:
        reasons["E(Spd)"] = "E(Spd): no draft token was accepted"
    # Records of earlier versions lack `tpt_vanilla`, and have no TPT where nothing was drafted.
    modelled = alpha is not None or (metrics.get("M") is not None and "tpt_vanilla" in metrics)
    if modelled and metrics.get("tpt") is None:
        reasons["TPT"] = "TPT: " + (
            "alpha exceeds 1" if (alpha or 0) > 1 else "sub-layer latencies were not profiled"
        )
    if value_at(metrics, "speedup", "paired") is None:
        reasons["speedup"] = "speedup: no sample was decoded past its prefill"
    elif value_at(metrics, "speedup", "ci95") is None:
        reasons["interval"] = "interval: needs two samples"
    if _comparable(metrics) == 0 and value_at(metrics, "lossless", "sampled"):
        reasons["lossless"] = "lossless: tokens were sampled, not greedy"
    if metrics.get("roofline_fraction_vanilla") is None:
        reasons["roofline"] = "roofline: memory bandwidth was not measured"
    return reasons


def search_phases(metrics: Mapping[str, Any]) -> list[str]:
    """Speedup while a method searched its skip set and behind that, of one that searches while it
    decodes.
    """
    parts = metrics.get("speedup_by_search") or {}
    return [
        f"speedup {word} its search {_speedup({'speedup': part})} (n {part['samples']})"
        for word, part in (("during", parts.get("during")), ("after", parts.get("after")))
        if part and part["samples"]
    ]


def stopped_early(metrics: Mapping[str, Any]) -> str | None:
    """Where `until_ci` ended a run, None where it did not."""
    found = metrics.get("until_ci") or {}
    if not found.get("stopped"):
        return None
    return (
        f"stopped at {found['samples']} of {found['of']} prompts, by until_ci={found['wanted']}; "
        f"reached {number(found['half_width'], 4)}"
    )


def exceptions(metrics: Mapping[str, Any]) -> list[str]:
    """How many samples are not simply identical to vanilla's, by kind."""
    counts = {
        name: value_at(metrics, "lossless", name)
        for name in ("ties", "diverged", "unchecked", "sampled", "failed")
    }
    counts["end in a loop"] = metrics.get("looped")
    return [
        f"{count} {'tie' if (count, name) == (1, 'ties') else name}"
        for name, count in counts.items()
        if count
    ]


def known(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def scaled(value: Any, factor: float) -> float | None:
    return value * factor if known(value) else None
