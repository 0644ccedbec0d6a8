"""What the methods' own passes cost: one CLaSp pass, one KnapSpec programme, and a tree of SWIFT's
shape.

    python scripts/bench_methods.py --model tiny --dtype float32
    python scripts/bench_methods.py --model 12x768 --dtype bfloat16

Each as a ratio to one forward pass of one token at the same context, but the tree, which is held
against a chain of its depth. Turns and medians are those of bench_engine.py. One line of JSON a
figure, with its bar where there is one.
"""

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from bench_engine import SHAPES, checkpoint, interleaved, ratio

from skipbench.decode.stopping import Fixed
from skipbench.decode.trial_passes import parallel_branches
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.methods.clasp import choose_layers
from skipbench.methods.knapspec import KnapSpec
from skipbench.metrics.costs import Point
from skipbench.profile.latency import fit, part_times

CONTEXT, HISTORY = 400, 8
# children at each depth, as the classes of confidence in SWIFT's tree mix them
WIDTHS = (1, 3, 1, 5, 1, 3, 1, 10)
BARS = {  # (figure, model, dtype): at most
    ("clasp pass, M = L/2 / one pass", "12x768", "bfloat16"): 1.4,
    ("clasp pass, M = L/2 / one pass", "tiny", "float32"): 2.3,
    ("knapspec programme, r = 8 / one pass", "12x768", "bfloat16"): 2.0,
    ("tree of SWIFT's shape / chain of its depth", None, None): 1.3,
}


def tree() -> tuple[int, ...]:
    """Parents of the pending token and of the drafted tree behind it: the chain of first choices
    with leaves beside it.
    """
    parents, last = [-1], 0
    for width in WIDTHS:
        first = len(parents)
        parents += [last] * width
        last = first
    return tuple(parents)


def calls(lm: LM) -> dict[str, Callable[[], Any]]:
    """What is timed, over a cache of `CONTEXT` tokens of a random text."""
    draw = torch.Generator().manual_seed(0)
    text = torch.randint(5, lm.config.vocab_size, (CONTEXT,), generator=draw).tolist()
    lm.allocate(CONTEXT + 160)
    points = [Point.of(n, 1, part_times(lm, n, 1, 8)) for n in (64, CONTEXT // 2, CONTEXT)]
    lm.prefill(text[:-HISTORY])
    hidden_states: list[torch.Tensor] = []
    lm.run(
        lm.embed(text[-HISTORY:]),
        TokenRows.chain(CONTEXT - HISTORY, HISTORY),
        hidden_states=hidden_states,
    )
    lm.cache.length = CONTEXT
    states = torch.stack(hidden_states)
    layers, skipped = states[::2, -1], lm.layers // 2
    method = KnapSpec(layers=lm.layers, name="knapspec", stop=Fixed(10, 0.7))
    method.latency_model = fit(points, lm.layers)

    def clasp() -> None:
        run = parallel_branches(lm, 1, skipped, 2)
        choose_layers(layers, lambda unit, g: run(unit, g[:, None])[:, 0], skipped)

    def knapspec() -> None:
        method._x = [states]
        method.log, method.draft_log = {k: [] for k in method.logged}, {"steps": []}
        method._optimise(lm)

    def verify(token_rows: TokenRows) -> Callable[[], None]:
        return lambda: lm.logits([7] * token_rows.rows, token_rows).argmax(-1).tolist()

    return {
        "one": verify(TokenRows.chain(CONTEXT, 1)),
        "clasp": clasp,
        "knapspec": knapspec,
        "chain": verify(TokenRows.chain(CONTEXT, len(WIDTHS) + 1)),
        "tree": verify(TokenRows.tree(CONTEXT, tree())),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", nargs="+", default=["tiny"], choices=["tiny", *SHAPES])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--runs", type=int, default=21, help="5 or more")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    if args.runs < 5:
        parser.error("a median of fewer than 5 runs says little")
    torch.set_num_threads(args.threads)
    for model in args.model:
        lm = LM(checkpoint(model, getattr(torch, args.dtype)))
        print(f"{model} kernels: {lm.engine.kernels}", *lm.notes(), sep="\n", file=sys.stderr)
        with torch.inference_mode():
            times = interleaved(calls(lm), args.runs)
        found = {
            "clasp pass, M = L/2 / one pass": ratio(times, "clasp", "one"),
            "knapspec programme, r = 8 / one pass": ratio(times, "knapspec", "one"),
            "tree of SWIFT's shape / chain of its depth": ratio(times, "tree", "chain"),
        }
        for figure, value in found.items():
            most = BARS.get((figure, model, args.dtype), BARS.get((figure, None, None)))
            line = {"model": model, "dtype": args.dtype, "threads": args.threads, "figure": figure}
            print(
                json.dumps(line | {"value": round(value, 3)} | ({"at_most": most} if most else {})),
                flush=True,
            )


if __name__ == "__main__":
    main()
