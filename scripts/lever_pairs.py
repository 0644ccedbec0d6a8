"""What levers of a draft pass are worth alone, in pairs and together, on two devices' prices.

    python scripts/lever_pairs.py pairs.json --measure        an hour on one thread
    python scripts/lever_pairs.py results/laptop/levers/pairs.json       its tables

Behind `--places` contexts, cut out of the texts of `dataset=tuning`, vanilla decodes tokens from
which plans are made, and `--tokens` more; a plan's agreement is the share of these that one pass of
it predicts. `7% out` leaves out so much of a pass's price, by KnapSpec's programme on the last 24
tokens before; `composed` is the plan of `method=knapspec-choices` there, by each device's prices.
Heads are in full.

Gain: the best `(1 + a + ... + a^k) / (k c + C(k+1))` over k, with the agreement a of all places. On
this CPU c and C are seconds of its one thread, means over places of the least of interleaved
passes; on an H100, for a model of Llama-3-8B's sizes, what `gpu_predictions.py` computes.
Brackets: 95 % of draws of places. `over` is the gain over that of the same draft with
nothing out, of composed plans over that of the best other draft, in the same draws; it would be 1
at the agreement `even`.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from scripts import gpu_predictions as gpu
from scripts import levers
from scripts.levers import LONGEST, decoded, least
from skipbench.bench.load import load_model
from skipbench.config.compose import compose
from skipbench.contrib.lowbit.knapspec_choices import KnapSpecChoices, rates
from skipbench.decode.draft import State
from skipbench.decode.sampling import best_tokens
from skipbench.decode.trial_passes import parallel_branches, predicts, recent_states
from skipbench.draft_plan import DraftPlan
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.methods.knapspec import knapsack
from skipbench.methods.vanilla import Vanilla
from skipbench.metrics.lines import curve
from skipbench.metrics.prices import Parts, Point, Prices
from skipbench.profile.latency import add_variants, fit, measure

BITS, WINDOWS, SHARES = ("", "int8", "int4"), (None, 512, 256), (0.0, 0.07, 0.22)
RECENT = 24
WEIGHTS = 1, 2  # of an attention and an MLP
ROWS, TIMED, DRAWS = (1, 2, 3, 5, 9, 17), 6, 2000
EVEN = np.linspace(0, 1, 1001)
ATTENTION = 83_894_272 / (83_894_272 + 352_329_728)  # of the bytes of Llama-3-8B's products


def h100(context: int, layers: int) -> Prices:
    """Predicted of an H100: so many layers of Llama-3-8B's sizes."""
    head = gpu.of("head, us") / 1e3
    at, far = gpu.a_pass(2048, 1)[1], gpu.a_pass(8000, 1)[1]
    slope = (far - at) / (8000 - 2048) / gpu.LAYERS

    def parts(whole: float, attention: float, mlp: float) -> tuple[float, float, float, float]:
        """Seconds; what is no product is attention's."""
        rest = (whole - head) / gpu.LAYERS - attention - mlp
        return (attention + rest - 2048 * slope) / 1e3, slope / 1e3, mlp / 1e3, head / 1e3

    full = (gpu.products(1) - head) / gpu.LAYERS
    low = gpu.of("4 bits without head") / gpu.LAYERS
    int8 = [sum(gpu.INT8_US[n : n + 2]) / 1e3 for n in (0, 2)]
    steps = [at * share[1] for share in gpu.low_bits()]
    made = {
        "int8": Parts(*parts(steps[0], *int8), layers),
        "int4": Parts(*parts(steps[1], low * ATTENTION, low * (1 - ATTENTION)), layers),
    }
    model = Parts(*parts(at, full * ATTENTION, full * (1 - ATTENTION)), layers, made)
    near = min(gpu.CONTEXTS, key=lambda known: abs(known - context))
    whole = {n: gpu.a_pass(near, n)[1] for n in gpu.ROWS}
    points = [Point(context, n, *[s / whole[1]] * 4) for n, s in whole.items()]
    return Prices(model=model, points=points)


def plans(layers: int, out: dict[float, DraftPlan]) -> dict[str, DraftPlan]:
    """By label, all that the levers make."""
    by_label = dict[str, DraftPlan]()
    for share in SHARES:
        for window in WINDOWS:
            for bits in BITS:
                names = [bits, f"window {window}" * bool(window), f"{share:.0%} out" * bool(share)]
                plan = out[share].cheaper(bits, window)
                by_label[", ".join(filter(None, names)) or "whole"] = plan
    return by_label


def knapspec_sets(lm: LM, state: State) -> dict[float, DraftPlan]:
    """By share of the price that is left out, KnapSpec's sets for the last cached tokens."""
    whole = sum(WEIGHTS) * lm.layers
    most, free = round(max(SHARES) * whole), [True] * lm.sublayers
    x = torch.stack(recent_states(state, RECENT))
    run = parallel_branches(lm, RECENT, most)
    weights, sets, *_ = knapsack(x, run, WEIGHTS * lm.layers, most, 0.0, free)
    by_weight = dict(zip(weights, sets, strict=True))
    return {s: DraftPlan(lm.layers, by_weight[round(s * whole)]) for s in SHARES}


def composed(lm: LM, state: State, prices: Prices) -> DraftPlan:
    """The plan of KnapSpec with choices by these prices."""
    config = compose(["method=knapspec-choices", "method.head=full", f"method.window={RECENT}"])
    method: Any = config.method.factory()(layers=lm.layers)
    assert isinstance(method, KnapSpecChoices)
    lm.prices = prices
    method.begin(state)
    method.optimise(state)
    return method.skip


@torch.inference_mode()
def measure_place(
    lm: LM, prompt: list[int], learnt: int, tokens: int, cpu: Prices, timed: bool
) -> dict[str, Any]:
    """By plan its text and hits; where it is `timed`, seconds of a step and of several rows."""
    base = len(prompt) - 1
    lm.prefill(prompt[:base])
    lm.cache.length = base
    output, _ = decoded(lm, Vanilla(), prompt, learnt + tokens)
    base += learnt
    lm.cache.length = base
    before, state = State(lm, [*prompt, *output[:learnt]]), State(lm, [*prompt, *output])
    known = plans(lm.layers, knapspec_sets(lm, before))
    gpu_prices = h100(base, lm.layers)
    known["composed, CPU"] = composed(lm, before, cpu)
    known["composed, H100"] = composed(lm, before, gpu_prices)
    assert gpu_prices.model is not None
    del gpu_prices.model.variants["int8"]
    known["composed, H100, 4 bits alone"] = composed(lm, before, gpu_prices)
    lm.cache.length = base
    hits = {name: sum(predicts(state, base, tokens, plan)) for name, plan in known.items()}

    def run(rows: int, plan: DraftPlan | None = None) -> None:
        best_tokens(lm.logits([0] * rows, TokenRows.chain(base, rows), plan))

    calls = [partial(run, rows) for rows in ROWS] + [partial(run, 1, p) for p in known.values()]
    times = least(calls) if timed else []
    made: dict[str, Any] = {"plans": {n: [str(plan), hits[n]] for n, plan in known.items()}}
    made["rows_s"] = dict(zip(ROWS, times, strict=False))
    made["steps_s"] = dict(zip(known, times[len(ROWS) :], strict=False))
    return made


def measured(context: int, count: int, learnt: Sequence[int], tokens: int, file: Path) -> None:
    """Writes all places."""
    levers.now = time.thread_time
    config = compose(
        ["model=smollm2-135m", "dataset=tuning", "model.dtype=bfloat16", "engine.strict=true"]
    )
    lm, tokenizer = load_model(config.model, config.engine)
    text = [token for row in config.dataset.rows(None) for token in tokenizer.encode(row.prompt)]
    lm.allocate(context + max(learnt) + tokens + 256)
    contexts = [256, context]
    cpu = Prices(model=fit(measure(lm, contexts, [1], 24, lambda: None), lm.layers))
    add_variants(lm, cpu, contexts, 24, {"int8"})
    results = list[dict[str, Any]]()
    for before in learnt:
        of = {"context": context, "learnt": before, "tokens": tokens, "layers": lm.layers}
        results.append({**of, "places": (places := list[dict[str, Any]]())})
        for n in range(count):
            at = (len(text) - context) * n // (count - 1)
            prompt = text[at : at + context]
            places.append(measure_place(lm, prompt, before, tokens, cpu, n < TIMED))
            file.write_text(json.dumps(results))


def table(of: dict[str, Any]) -> Iterator[str]:
    """Lines of a context's table."""
    places, context, layers = of["places"], of["context"], of["layers"]
    names, rng = list(places[0]["plans"]), np.random.default_rng(0)
    hits = np.array([[p["plans"][n][1] for n in names] for p in places])
    # in the first row of all draws stands what was found
    every, drawn = np.arange(len(places)), rng.integers(len(places), size=(DRAWS, len(places)))
    draws = np.vstack([every, drawn])
    agreement = np.minimum(hits[draws].mean(1) / of["tokens"], 1 - 0.5 / hits.size)
    columns = [[f"`{n}`" for n in names], [ends(a) for a in agreement.T]]
    for steps, rows in (of_h100(places, names, context, layers), of_cpu(places, names)):
        step = steps[draws % len(steps)].mean(1)
        verify = curve(rows, LONGEST + 1)[2:]
        gain = rates(agreement.ravel(), step.ravel(), verify).reshape(step.shape)
        columns += [[f"{c:.3f}" for c in step[0]], [ends(g) for g in gain.T], []]
        fixed = [n for n in names if not n.startswith("composed")]
        best = max(fixed, key=lambda name: float(gain[0, names.index(name)]))
        for i, name in enumerate(names):
            rival = ", ".join(w for w in name.split(", ") if not w.endswith("out"))
            if name not in fixed:
                rival = best
            base = gain[:, names.index(rival)] if rival else np.ones(len(gain))
            reach = rates(EVEN, np.full(len(EVEN), step[0, i]), verify)
            even = EVEN[min(len(EVEN) - 1, np.searchsorted(reach, base[0]))]
            columns[-1].append(f"{ends(gain[:, i] / base)}, {even:.3f}" if rival != name else "")
    head = ["draft", "agreement"]
    head += [f"{d} {what}" for d in ("H100", "CPU") for what in ("price", "gain", "over, even")]
    for line in [head, ["---"] * len(head), *zip(*columns, strict=True)]:
        yield f"| {' | '.join(line)} |"


def of_h100(
    places: Sequence[dict[str, Any]], names: Sequence[str], context: int, layers: int
) -> tuple[NDArray[np.float64], dict[int, float]]:
    """Price of a step [places, plans], and of passes by rows."""
    prices = h100(context, layers)
    plans = [[DraftPlan.parse(p["plans"][n][0], layers) for n in names] for p in places]
    steps = np.array([[prices.step_price(context, plan) for plan in of] for of in plans])
    return steps, {n: prices.pass_s(n, context) / prices.pass_s(1, context) for n in gpu.ROWS}


def of_cpu(
    places: Sequence[dict[str, Any]], names: Sequence[str]
) -> tuple[NDArray[np.float64], dict[int, float]]:
    """As `of_h100`, means over the timed places."""
    timed = [p for p in places if p["steps_s"]]
    steps = np.mean([[p["steps_s"][n] / p["rows_s"]["1"] for n in names] for p in timed], 0)
    rows = {n: fmean(p["rows_s"][str(n)] / p["rows_s"]["1"] for p in timed) for n in ROWS}
    return steps[None], rows


def ends(values: Any) -> str:
    """The first value, and where 95 % of the others lie."""
    low, high = np.quantile(values[1:], (0.025, 0.975))
    return f"{values[0]:.3f} [{low:.3f}, {high:.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--places", type=int, default=24)
    parser.add_argument("--learnt", type=int, nargs="+", default=[24, 64], help="tokens before")
    parser.add_argument("--tokens", type=int, default=48)
    args = parser.parse_args()
    if args.measure:
        measured(args.context, args.places, args.learnt, args.tokens, args.file)
    for one in json.loads(args.file.read_text()):
        behind = f"{one['context']} tokens and {one['learnt']} of the output"
        print(f"Behind {behind}, {len(one['places'])} places of {one['tokens']} tokens\n")
        print(*table(one), "", sep="\n")


if __name__ == "__main__":
    main()
