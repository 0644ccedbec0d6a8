r"""Acceptance of drafts that read the last positions, or those that verification read most.

    python scripts/guided_windows.py --contexts 2048 4096 8190 --prompts 24

Two kinds of text out of the docstrings of Python's library: `facts` has eight made-up sentences in
its first half, and asks for them at its end; `text` just goes on. Each is decoded greedily with
chains of four draft steps by each plan, from one prefill. Acceptance: of the drafted tokens up to
the first rejected one, the share that was accepted. With `--prices` the time of a draft step, and
of a round's first one, which chooses, in passes of one row: medians of interleaved calls.
"""

import argparse
import ast
import random
import sysconfig
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch

from skipbench.bench.load import load_model
from skipbench.config.compose import compose
from skipbench.decode.draft import State
from skipbench.decode.rounds import in_turn
from skipbench.decode.stopping import Fixed
from skipbench.draft_plan import DraftPlan
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.methods.fixed import FixedSet
from skipbench.profile.clock import Clock

PLANS = ["window:256", "guided:256", "window:512", "guided:512"]
NAMES = [
    "Alice", "Bruno", "Clara", "David", "Elena", "Felix", "Greta", "Henry", "Irene", "Jonas",
    "Karla", "Louis", "Maria",
]  # fmt: skip
ASK = "\n\nNow the facts from above once more, each word for word.\nThe secret code of"


def prompt(kind: str, seed: int, length: int, ids: Callable[[str], list[int]]) -> list[int]:
    """`length` tokens."""
    draw, text = random.Random(seed), list[int]()
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    while len(text) < length:
        doc = ast.get_docstring(ast.parse(draw.choice(files).read_text("utf-8")))
        text += ids(f"{doc}\n\n") if doc and len(doc) > 400 else []
    if kind == "text":
        return text[:length]
    facts = []
    for name in draw.sample(NAMES, 8):
        code, house = f"{draw.choice('BCDFGHJK')}{draw.randint(10000, 99999)}", draw.randint(1, 999)
        street = draw.choice(["Oak", "Elm", "Ash", "Pine", "Lake", "Hill"])
        fact = f"The secret code of {name} is {code}, and {name} lives in house {house} of {street}"
        facts.append((draw.randrange(length // 20, length // 2), ids(f"\n\n{fact} Street.\n\n")))
    end = ids(f"{ASK} {name} is")
    del text[length - len(end) - sum(len(fact) for _, fact in facts) :]
    for at, fact in sorted(facts, reverse=True):
        text[at:at] = fact
    return text + end


def verified(lm: LM, tokens: list[int]) -> None:
    """The text as verified up to its pending token; the one before that guides."""
    lm.cache.length = end = len(tokens) - 2
    lm.score([tokens[end]], TokenRows.chain(end, 1).verified(), guides=True)
    lm.cache.keep([end])
    lm.guide.keep(0)


def prices(lm: LM, tokens: list[int], plan: DraftPlan) -> str:
    timed = list[tuple[float, ...]]()
    for _ in range(25):
        verified(lm, tokens)
        ticks = [time.thread_time()]
        for one in (plan, plan, None):
            lm.logits(tokens[-1:], TokenRows.chain(lm.cache.length, 1), one)
            ticks.append(time.thread_time())
        timed.append(tuple(b - a for a, b in pairwise(ticks)))
    first, step = (median(times[i] / times[2] for times in timed) for i in (0, 1))
    return f"{step:.2f} ({first:.2f})"


def accepted(lm: LM, tokens: list[int], plan: DraftPlan, count: int) -> tuple[int, int]:
    """Of the draft by a plan behind a prompt in the cache: accepted tokens, and those tried."""
    state, clock = State(lm, tokens, max_new_tokens=count), Clock(lm.output_device)
    verified(lm, tokens)
    method = FixedSet("draft", plan, Fixed(max_steps=4))
    clock.start()
    method.begin(state)
    rounds = []
    while state.finish is None:
        rounds.append(in_turn(state, method, clock)[1])
    return sum(r.accepted for r in rounds), sum(min(r.steps, r.accepted + 1) for r in rounds)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--contexts", type=int, nargs="+", default=[2048, 4096, 8190])
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--texts", nargs="+", default=["facts", "text"])
    parser.add_argument("--plans", nargs="+", default=PLANS)
    parser.add_argument("--prices", action="store_true")
    parser.add_argument("--more", nargs="*", default=["model=smollm2-135m"])
    args = parser.parse_args()
    config = compose(args.more)
    lm, tokenizer = load_model(config.model, config.engine)
    lm.allocate(max(args.contexts))
    columns = ["context", "text", "prompts", *args.plans]
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    for context in args.contexts:
        for kind in args.texts:
            sums = [[0, 0] for _ in args.plans]
            for seed in range(args.prompts):
                tokens = prompt(kind, 1000 + seed, context - args.tokens - 5, tokenizer.encode)
                lm.prefill(tokens[:-1])
                if args.prices:
                    each = [prices(lm, tokens, DraftPlan.parse(p, lm.layers)) for p in args.plans]
                    print(f"| {context} | price | 1 | {' | '.join(each)} |", flush=True)
                    break
                for found, plan in zip(sums, args.plans, strict=True):
                    one = accepted(lm, tokens, DraftPlan.parse(plan, lm.layers), args.tokens)
                    found[:] = (a + b for a, b in zip(found, one, strict=True))
            shares = " | ".join(f"{hit / tried:.3f}" for hit, tried in sums if tried)
            if shares:
                print(f"| {context} | {kind} | {args.prompts} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
