"""Every method that decides by what a machine measures, with drawn measurements: latencies of
sub-layers, prices of rows, of drafts and of copies. The output is vanilla's on `fused` and on
`cuda_graphs`, and the rounds are the same: a wrong draft changes no token, but it changes rounds.

A machine has one set of latencies, and few of the sets and sizes follow from it that others have.
"""

import functools
import random
import re
from collections.abc import Callable
from functools import partial
from importlib import import_module

import pytest
import torch
from conftest import ALONE, LAYERS, here, make_method, random_model, rest_slow, settings_of
from test_contract import SWITCHES
from test_graphs import PROMPTS
from test_graphs import short_buckets as short_buckets

from skipbench.config.catalog import choices, file_of, target_of
from skipbench.config.signature import settings
from skipbench.decode.loop import generate
from skipbench.lm.cuda_graphs.capture import EagerCapture
from skipbench.lm.cuda_graphs.engine import CudaGraphsEngine
from skipbench.lm.model import LM
from skipbench.metrics.host import Host
from skipbench.metrics.prices import DRAFT_ROWS, ROWS, Latencies, Prices

FAMILIES = sorted(PROMPTS)
DAILY = [*here(["int8"]), "clasp", "knapspec"]
MANY = range(2, 32)


@functools.cache
def priced(group: str, name: str) -> list[str] | None:
    """Settings of a method or stop rule that are prices; `None` for one that knows no price."""
    target = str(target_of(file_of(group, name)))
    module, _, of = target.rpartition(".")
    found = [setting for setting in settings(target) if re.search("price|cost|latenc", setting)]
    return found if found or getattr(import_module(module), of).needs_latency else None


RULES = [rule for rule in choices("stop") if priced("stop", rule) is not None]
OWN = [name for name in ALONE if priced("method", name) is not None]
"""Methods that know prices whatever rule ends their drafts."""
CASES = [name for name in ALONE if name in OWN or "stop" in settings_of(name)]
MORE = {
    "clasp": ("method.unit=sublayer",),  # passes of as many kinds as KnapSpec's
    "lookahead": ("preset=tuned",),  # sizes by the price of rows
    "recycling": ("preset=tuned",),
}


def rows_from(draw: random.Random, sizes: tuple[int, ...], first: float = 1.0) -> list[float]:
    """Prices of rows, from free to proportional, as unsteady as measured ones."""
    power = draw.choice([0.0, draw.random() ** 2, draw.random() ** 2, 1.0])
    return [round(first * n**power * draw.uniform(0.95, 1.05), 4) for n in sizes]


def seconds_from(draw: random.Random) -> list[float]:
    """Of an MLP, attention per token, and attention, which takes 1/8 to 8 times as long."""
    mlp = draw.uniform(1e-5, 1e-4)
    attention = mlp * 2 ** draw.uniform(-3, 3)
    return [mlp, draw.choice([0.0, attention * draw.uniform(0, 0.02)]), attention]


def latency_from(draw: random.Random) -> Latencies:
    """Also of a head; each variant at 1/5 to 5/4 of the price."""
    mlp, per_token, attention = seconds_from(draw)
    whole = attention, per_token, mlp, mlp * draw.uniform(0.1, 4)
    share = draw.uniform(0.2, 1.25)
    low = Latencies(*(share * s for s in whole), LAYERS)
    return Latencies(*whole, LAYERS, {"int8": low})


DRAWN: dict[str, Callable[[random.Random], object]] = {
    "row_prices": lambda draw: rows_from(draw, ROWS),
    "draft_prices": lambda draw: rows_from(draw, DRAFT_ROWS, draw.uniform(0.1, 1.2)),
    "latency": lambda draw: draw.choice(["null", seconds_from(draw)]),
    "bottom_cost": lambda draw: draw.choice([0.001, 0.01, 0.1, 0.5]),
}
"""Values of the settings that are prices."""


def prices(name: str, rule: str, draw: random.Random) -> list[str]:
    """Overrides: every price that a method takes, and that the stop rule takes, if one is given."""
    words = [f"method.{s}={DRAWN[s](draw)}" for s in priced("method", name) or ()]
    if rule:
        words.append(f"stop@method.stop={rule}")
        words += [f"method.stop.{s}={DRAWN[s](draw)}" for s in priced("stop", rule) or ()]
    return [*MORE.get(name, ()), *words]


def decoded(lm: LM, name: str, words: list[str], latency: Latencies) -> list[object]:
    """The tokens, every round, and a log that shows prices where a set is the only one."""
    method = make_method(name, *words)
    beside = Host(*(share * latency.mlp_s for share in (8.0, 0.5, 2.0)))
    lm.prices = Prices(model=latency, host={name: beside})
    lm.allocate(300)
    out = generate(lm, method, PROMPTS[lm.config.model_type], 40)
    return [out.tokens, *out.rounds, method.log.get("reward")]


@functools.cache
def engines(family: str, dtype: torch.dtype) -> list[LM]:
    captured = partial(CudaGraphsEngine, capture=EagerCapture)
    return [LM(random_model(family).to(dtype), engine) for engine in ("fused", captured)]


def fault(name: str, seed: int) -> str:
    """Names a draw whose tokens are not vanilla's, or whose rounds differ between the engines in
    float64, too: in float32 rounding may decide between two sets.
    """
    draw, family = random.Random(f"{name} {seed}"), FAMILIES[seed % len(FAMILIES)]
    rules = [*RULES, ""] if name in (*OWN, *MORE) else RULES
    words = prices(name, draw.choice(rules) if "stop" in settings_of(name) else "", draw)
    switches = [s for s in SWITCHES.get(name, ()) if not s.startswith("stop.")]
    if name != "lookahead" and switches and draw.random() < 0.5:  # prices choose its sizes
        words.insert(0, f"method.{draw.choice(switches)}")
    latency = latency_from(draw)

    def courses(dtype: torch.dtype) -> list[list[object]]:
        return [decoded(lm, name, words, latency) for lm in engines(family, dtype)]

    fused, captured = courses(torch.float32)
    vanilla = decoded(engines(family, torch.float32)[0], "vanilla", [], latency)
    what = ["tokens"] * (not fused[0] == captured[0] == vanilla[0])
    if fused != captured:
        fused, captured = courses(torch.float64)
        what += ["rounds"] * (fused != captured)
    told = f"draw {seed} on {family}, {words}, {latency}"
    return f"other {' and '.join(what)}: {told}" if what else ""


DRAWS = [(name, draws) for name in CASES for draws in (range(1, 2), MANY)]


@pytest.mark.parametrize(
    ("name", "draws"), rest_slow(DRAWS, lambda c: c[0] in DAILY and c[1] is not MANY), ids=str
)
def test_tokens_are_vanillas_at_drawn_prices(name: str, draws: range) -> None:
    engines.cache_clear()  # so that a draw depends on no other test
    assert "\n".join(filter(None, (fault(name, seed) for seed in draws))) == ""
