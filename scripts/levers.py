r"""What each lever of a draft pass is worth on a model, by length of the context.

    python scripts/levers.py --model smollm2-135m --data dataset=pg19 dataset.path=pg19.jsonl

For every context, cut out of the data's texts at `--starts` places, vanilla decodes `--tokens`
tokens. Then per plan:

| column | what |
|---|---|
| agreement | of those tokens, the share that one pass of the plan over all of them predicts |
| price | a draft step of one row over a pass of one row, least times of interleaved passes |
| modelled | the best `(1 - a^(k+1)) / (1 - a) / (k c + C(k+1))`, by agreement and prices |
| measured | decoding with a chain that stops by price, over vanilla before and after it |

All are means over the places.

Prefills are in none of these times. `n out` leaves out the n sub-layers that turn the state of the
last 64 tokens before the output least.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial

import torch

from skipbench.bench.load import load_model
from skipbench.config.compose import compose
from skipbench.contrib.lowbit.stop_by_price import ByPrice
from skipbench.decode.draft import State
from skipbench.decode.method import Method
from skipbench.decode.rounds import in_turn
from skipbench.decode.sampling import best_tokens
from skipbench.decode.trial_passes import predicts, recent_states
from skipbench.draft_plan import DraftPlan
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.methods.fixed import FixedSet
from skipbench.methods.vanilla import Vanilla
from skipbench.metrics.lines import curve
from skipbench.metrics.prices import Prices, price_key
from skipbench.profile.clock import Clock
from skipbench.profile.influence import ranked, squared_turns
from skipbench.profile.rows import kept_seconds
from skipbench.runs.provenance import Provenance

WINDOWS, OUT, RECENT = (128, 512), (4, 12), 64
LONGEST, TURNS = 16, 8
now = time.perf_counter
Figures = dict[str, list[tuple[float, ...]]]
"""By plan's label, of every place: agreement, price, modelled and measured speedup."""


class KnownPrices(ByPrice):
    """With the prices of this place, which it is given."""

    def priced(self, state: State, plan: DraftPlan, given: Prices | None) -> None:
        pass


def plans(layers: int, rank: Sequence[int]) -> Iterator[tuple[str, DraftPlan]]:
    whole = DraftPlan.of(layers)
    yield "int8", whole.cheaper("int8")
    yield "int8, head", whole.cheaper("int8", head="int8")
    yield "head", whole.cheaper(head="int8")
    for window in WINDOWS:
        yield f"window {window}", whole.cheaper(window=window)
        yield f"int8, head, window {window}", whole.cheaper("int8", window, "int8")
    for count in (*OUT, layers // 2):
        out = DraftPlan.of(layers, rank[:count])
        yield f"{count} out", out
        yield f"int8, head, {count} out", out.cheaper("int8", head="int8")


def decoded(lm: LM, method: Method, prompt: list[int], tokens: int) -> tuple[list[int], float]:
    """The output behind a prompt whose rows the cache has, and its seconds per token."""
    state, clock = State(lm, prompt, max_new_tokens=tokens), Clock(lm.output_device)
    lm.cache.length = len(prompt) - 1  # the last one is pending
    clock.start()
    method.begin(state)
    began = now()
    while state.finish is None:
        in_turn(state, method, clock)
    return state.output, (now() - began) / tokens


def least(calls: Sequence[Callable[[], object]]) -> list[float]:
    """The least seconds of each call over interleaved turns."""
    times: list[list[float]] = [[] for _ in calls]
    for call, of_call in [*zip(calls, times, strict=True)] * TURNS:
        began = now()
        call()
        of_call.append(now() - began)
    return [min(of_call[1:]) for of_call in times]


def modelled(a: float, c: float, prices: Sequence[float]) -> float:
    """Speedup of the best length of a chain."""
    return max(
        sum(a**i for i in range(k + 1)) / (k * c + prices[k + 1]) for k in range(1, LONGEST + 1)
    )


@torch.inference_mode()
def measure(
    lm: LM, prompt: list[int], tokens: int, found: Figures, only: Collection[str] = ()
) -> None:
    """Adds the figures of all plans behind one context, or of `only` these."""
    base = len(prompt) - 1
    lm.prefill(prompt[:base])
    lm.cache.length = base
    prices = curve(kept_seconds(lm, price_key(base)), LONGEST + 1)
    decoded(lm, Vanilla(), prompt, 8)  # warms up
    output, _ = decoded(lm, Vanilla(), prompt, tokens)
    state = State(lm, [*prompt, *output])
    lm.cache.length = base
    rank = ranked(squared_turns(recent_states(state, RECENT)))
    known = dict(plans(lm.layers, rank))
    for label in only or known:
        plan = known.get(label) or DraftPlan.parse(label, lm.layers)
        lm.cache.length = base
        agreement = statistics.mean(predicts(state, base, tokens, plan))
        whole = DraftPlan.of(lm.layers)
        full, step = least([partial(_draft_step, lm, one) for one in (whole, plan)])
        stop = KnownPrices(max_steps=LONGEST)
        stop.prices, stop.step = prices, step / full
        method = FixedSet("draft", plan, stop)
        before, drafted, after = (
            decoded(lm, one, prompt, tokens) for one in (Vanilla(), method, Vanilla())
        )
        assert drafted[0] == output
        speedup = (before[1] + after[1]) / 2 / drafted[1]
        price, chance = step / full, min(agreement, 1 - 0.5 / tokens)
        figures = agreement, price, modelled(chance, price, prices), speedup
        found.setdefault(label, []).append(figures)


def _draft_step(lm: LM, plan: DraftPlan) -> None:
    best_tokens(lm.logits([0], TokenRows.chain(lm.cache.length, 1), plan))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", default="smollm2-135m")
    add("--data", nargs="+", default=["dataset=tuning"])
    add("--contexts", type=int, nargs="+", default=[256, 2048, 6144])
    add("--starts", type=int, default=4, help="places per context")
    add("--tokens", type=int, default=64)
    add("--more", nargs="*", default=["model.dtype=bfloat16", "engine.strict=true"])
    add("--only", nargs="*", default=[], help="labels or texts of plans; all labels without")
    add("--cpu-seconds", action="store_true", help="time of the one thread")
    args = parser.parse_args()
    if args.cpu_seconds:
        globals()["now"] = time.thread_time
    config = compose([f"model={args.model}", *args.data, *args.more])
    lm, tokenizer = load_model(config.model, config.engine)
    text: list[int] = []
    for row in config.dataset.rows(None):
        text += tokenizer.encode(row.prompt)
    lm.allocate(max(args.contexts) + args.tokens + 128)
    here = Provenance.here()
    print(f"{args.model}, {' '.join(args.more)}, {torch.get_num_threads()} thread; {here.cpu};")
    print(f"{datetime.now(UTC):%Y-%m-%d}; commit {here.commit}\n")
    columns = ("context", "draft", "agreement", "price", "modelled", "measured")
    print("| " + " | ".join(columns) + " |" + "\n|" + "---|" * len(columns))
    for context in args.contexts:
        found: Figures = {}
        lm.prices.passes.clear()
        last = len(text) - context
        if last < 0:
            parser.error(f"the texts have {len(text)} tokens, fewer than {context}")
        for start in range(args.starts):
            at = last * start // max(1, args.starts - 1)
            measure(lm, text[at : at + context], args.tokens, found, args.only)
        for label, values in found.items():
            agreement, *ratios = map(statistics.mean, zip(*values, strict=True))
            shown = " | ".join(f"{ratio:.2f}" for ratio in ratios)
            print(f"| {context} | {label} | {agreement:.3f} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
