"""Predicts a method's speedup on a machine from prices and a known acceptance. It needs the sizes
of the model, and neither weights nor a GPU.

| symbol | meaning | from |
|---|---|---|
| `M` | tokens of a round, bonus included | the paper |
| `alpha` | accepted tokens per draft step | the paper |
| `gamma` | draft steps of a round: `(M - 1) / alpha`, one at least | SWIFT Eq. 6 |
| `c` | a draft step, in passes of vanilla | the machine's prices of sub-layers, by their bytes |
| `v` | a verification, in passes of vanilla | the curve of its prices over rows |

A round of known `M` gives `M / (gamma c + v)` (SWIFT Eq. 6). Where a paper prints no `M`, each of
`gamma` steps is right with chance `alpha`, which gives
`(1 - alpha^(gamma + 1)) / (1 - alpha) / (gamma c + v)` (KnapSpec Eqs. 1 and 4); the likely value is
that of the best `gamma`.
"""

import math
from typing import NamedTuple

from msgspec.structs import replace

from skipbench.config.architecture import Shape
from skipbench.config.hardware import Hardware
from skipbench.draft_plan import DraftPlan
from skipbench.metrics.formulas import expected_speedup, tpt
from skipbench.metrics.prices import PARTS, Latencies, Prices, Roofline


class Range(NamedTuple):
    """A likely value between two ends."""

    low: float
    value: float
    high: float


class PrintedAcceptance(NamedTuple):
    """What a paper says of the drafts of a cell."""

    M: Range | None
    """None where it prints no tokens per round."""
    alpha: Range | None
    """None for drafts that take no pass."""
    source: str


class Drafts(NamedTuple):
    """How a cell drafts and verifies."""

    plans: tuple[DraftPlan, DraftPlan, DraftPlan] | None
    """The cheapest, the likely and the dearest; None for drafts that take no pass."""
    context: float
    """Tokens before a round."""
    max_steps: int
    """Longest draft."""
    fewest: tuple[float, float]
    """Rows of a verification at least, `first + each * gamma`; `most` likewise."""
    most: tuple[float, float]
    adapting: float = 0.0
    """Share of the time that adaptation takes, by the paper."""


class Predicted(NamedTuple):
    """A speedup over vanilla, and what it follows from."""

    speedup: Range
    c: Range | None
    v: Range
    M: float
    gamma: float


class MachinePrices:
    """Prices of a latency file for a model of another shape, in passes of vanilla."""

    def __init__(self, prices: Prices, timed: Shape, shape: Shape) -> None:
        self._by_bytes = scaled(prices, timed, shape)
        self._as_timed = scaled(prices, timed, replace(timed, layers=shape.layers))
        self._timed = prices
        fitted, single = Prices(model=prices.model), [p for p in prices.points if p.rows == 1]
        pairs = [(p.whole_s, fitted.pass_s(1, p.context)) for p in single]
        for part in PARTS:
            pairs += [(getattr(p, f"{part}_s"), fitted.part_s(part, p.context)) for p in single]
        self.error = max((abs(measured / fit - 1) for measured, fit in pairs), default=0.0)
        """Largest residual of the fitted passes, as a share."""

    @classmethod
    def of_datasheet(cls, name: str, facts: Hardware, shape: Shape) -> "MachinePrices":
        """Of a device that nobody timed, by its rates, with weights of 16 bits."""
        assert facts.bandwidth is not None
        names = "attention", "row", "mlp", "head", "number"
        counts = zip(names, (*_read(shape), 1), strict=True)
        sizes = {part: int(2 * count) for part, count in counts}
        rates = Roofline(name, facts.bandwidth, facts.flops["bfloat16"], "datasheet")
        return cls(Prices.least(rates, sizes, shape.layers), shape, shape)

    def c(self, drafts: Drafts) -> Range | None:
        """A draft step: each part by the bytes that it reads. The ends also take parts of the time
        that they had in the model that was timed, as where launches and not bytes decide.
        """
        if drafts.plans is None:
            return None
        cheap, likely, dear = drafts.plans
        both, context = (self._by_bytes, self._as_timed), drafts.context
        low = min(prices.step_price(context, cheap) for prices in both)
        high = max(prices.step_price(context, dear) for prices in both)
        value = self._by_bytes.step_price(context, likely)
        return Range(low * (1 - self.error), value, high * (1 + self.error))

    def v(self, drafts: Drafts, gamma: float) -> Range:
        """A verification, as a share of a pass of the model that was timed; one pass at least."""
        least, most = (first + each * gamma for first, each in (drafts.fewest, drafts.most))
        rows = (least + most) / 2, most
        likely, dear = (self._timed.curve(round(n), drafts.context) for n in rows)
        return Range(1.0, likely, dear)


def scaled(prices: Prices, timed: Shape, shape: Shape) -> Prices:
    """Prices of one row for another shape than the one that was timed: each part by its bytes."""
    of = prices.model
    assert of is not None
    pairs = zip(_read(shape), _read(timed), strict=True)
    attention, row, mlp, head = (ours / theirs for ours, theirs in pairs)
    model = Latencies(
        of.attention_s * attention,
        of.attention_s_per_token * row,
        of.mlp_s * mlp,
        of.head_s * head,
        shape.layers,
    )
    return Prices(model=model)


def _read(shape: Shape) -> tuple[float, float, float, float]:
    """Weights of an attention with its norms, numbers of a K/V row, weights of an MLP, the head."""
    mlp = 3 * shape.hidden * shape.intermediate
    row = 2 * shape.kv_heads * shape.width
    return shape.layer_parameters - mlp, row, mlp, (shape.vocab + 1) * shape.hidden


def predict(machine: MachinePrices, known: PrintedAcceptance, drafts: Drafts) -> Predicted:
    """The speedup over vanilla.

    The high end takes every doubt in the method's favour: the cheapest plan, the lowest price, a
    verification for one pass, the best acceptance, and adaptation for nothing. What lies above it
    is out of reach of these prices. The low end takes the other side of each.
    """
    by = _by_length if known.M is None else _by_tokens
    found = by(machine, known, drafts)
    low, value, high = found.speedup
    keep = 1 - drafts.adapting
    return found._replace(speedup=Range(low * keep, value * keep, high))


def _by_tokens(machine: MachinePrices, known: PrintedAcceptance, drafts: Drafts) -> Predicted:
    """By tokens per round: SWIFT Eq. 6 with the prices of a step and of a verification; of copies
    and guesses `M / v`.
    """
    assert known.M is not None
    M, alpha, c = known.M, known.alpha, machine.c(drafts)
    if alpha is None or c is None:
        v = machine.v(drafts, 0)
        speedup = Range(M.low / v.high, M.value / v.value, M.high / v.low)
        return Predicted(speedup, None, v, M.value, 0.0)
    v = machine.v(drafts, gamma := steps_of(M.value, alpha.value))
    dear = machine.v(drafts, steps_of(M.low, alpha.low)).high
    speedup = Range(
        of_round(M.low, alpha.low, c.high, dear),
        of_round(M.value, alpha.value, c.value, v.value),
        of_round(M.high, alpha.high, c.low, v.low),
    )
    return Predicted(speedup, c, v, M.value, gamma)


def steps_of(M: float, alpha: float) -> float:
    """Draft steps of a round, one at least."""
    return max(1.0, (M - 1) / alpha)


def of_round(M: float, alpha: float, c: float, v: float) -> float:
    """Speedup of rounds of `M` tokens: SWIFT Eq. 6, with `steps_of` draft steps."""
    return expected_speedup(M, min(alpha, M - 1), c, v)


def _by_length(machine: MachinePrices, known: PrintedAcceptance, drafts: Drafts) -> Predicted:
    """By the longest draft. Low: the worst length up to the first token that is expected to be
    wrong. High: the best length, where `alpha` is the share of all steps that were accepted, which
    is `1 + alpha gamma` tokens.
    """
    alpha, c = known.alpha, machine.c(drafts)
    assert alpha is not None and c is not None
    lengths = range(1, drafts.max_steps + 1)
    of = {gamma: machine.v(drafts, gamma) for gamma in lengths}

    def likely(gamma: int) -> float:
        return tpt(alpha.value, gamma, c.value, of[gamma].value)

    best = max(lengths, key=likely)
    first_wrong = math.ceil(1 / (1 - alpha.low)) if alpha.low < 1 else drafts.max_steps
    worst = lengths[: max(best, first_wrong)]
    low = min(tpt(alpha.low, gamma, c.high, of[gamma].high) for gamma in worst)
    high = max((1 + alpha.high * n) / (n * c.low + of[n].low) for n in lengths)
    M = likely(best) * (best * c.value + of[best].value)
    return Predicted(Range(low, likely(best), high), c, of[best], M, best)
