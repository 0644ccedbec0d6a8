"""Measured speedup against the speedup that measured costs predict, for every method on one model
and dataset.

    python scripts/predicted.py --prompts 6 --runs 5

The prediction is S = M / (d c + v + a): M tokens per round come from d draft steps that cost c
each, a verification that costs v and an adaptation that costs a, all in passes of one row. d is (M
- 1) / alpha where no output is cut. c and v are measured apart from the runs and in turns with
them: every kind of round that a method had (steps, skip set, rows, tree, early exit) is drafted and
verified by itself at the mean length of the texts, a few in a row, against as steady a row of
passes of one row just before. a is what the runs' own clock counts, against their own vanilla;
drafts that are looked up instead of computed are in it too. What S leaves out is the host work of a
round: choosing thresholds, committing, bookkeeping. One line of JSON a method follows the table.
"""

import argparse
import copy
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from skipbench.bench.latency_file import stored_latency
from skipbench.bench.load import load_model, prepare
from skipbench.bench.prompts import eos_ids
from skipbench.config.catalog import choices
from skipbench.config.compose import compose
from skipbench.decode.draft import Draft, State
from skipbench.decode.drafting import SkipMethod
from skipbench.decode.loop import generate
from skipbench.decode.method import Method
from skipbench.decode.rounds import _verify  # the very code that runs verify with
from skipbench.decode.sampling import Sampler
from skipbench.decode.stopping import Fixed
from skipbench.draft_plan import DraftPlan
from skipbench.experiments.cell import resolve_cell
from skipbench.methods.fixed import FixedSet
from skipbench.methods.vanilla import Vanilla
from skipbench.profile.clock import Clock


def predicted_speedup(M: float, steps: float, c: float, v: float, a: float = 0.0) -> float:
    """Speedup over vanilla by the costs of a round: `M / (steps c + v + a)`, with `steps` draft
    steps per round.

    Where no output is cut, `steps` is `(M - 1) / alpha`, and without adaptation this is SWIFT's
    Eq. 6; it also holds where everything is rejected.
    """
    return M / (steps * c + v + a)


# a set by hand or one that is not stored, and nothing to predict
LEFT_OUT = ("fixed", "self-sd-c", "vanilla")
SINGLES, ROUNDS = 16, 2  # timed in a visit of every kind of round, a prompt and run


@dataclass(frozen=True)
class Kind:
    """What the passes of a round depend on: its draft steps, and a verification of `rows`, `early`
    of which ran to `exit` before.
    """

    steps: int
    plan: str
    rows: int
    exit: int | None
    early: int
    hidden_states: bool
    top_tokens: int
    tree: bool


@dataclass(frozen=True)
class Example:
    """One round of a kind, enough to do it again."""

    skip: DraftPlan | None
    widths: tuple[int, ...]
    parent: list[int] | None


def kind_of(plan: DraftPlan | None) -> str:
    """What the price of a plan depends on: how many of which blocks, and its levers."""
    if plan is None:
        return ""
    counts = (len(plan.attention), len(plan.mlp), *plan.changed_blocks, plan.window, plan.head)
    return " ".join(map(str, counts))


class Watched:
    """A method whose rounds are written down."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.needs_hidden_states = method.needs_hidden_states
        self.needs_top_tokens = method.needs_top_tokens
        self.rounds: Counter[Kind] = Counter()
        self.example: dict[Kind, Example] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.method, name)

    def propose(self, state: State, budget: int) -> Draft:
        draft = self.method.propose(state, budget)
        exit_at = len(draft.early_exit_states[0]) - 1 if draft.early_exit_states else None
        tree = self.method.tree if isinstance(self.method, SkipMethod) else None
        skip = self.method.skip if isinstance(self.method.skip, DraftPlan) else None
        skip = skip if exit_at is None else None
        kind = Kind(
            draft.steps if tree is not None else 0,
            kind_of(skip),
            1 + len(draft.tokens),
            exit_at,
            len(draft.early_exit_states),
            self.needs_hidden_states,
            self.needs_top_tokens,
            draft.parent is not None,
        )
        self.rounds[kind] += 1
        self.example.setdefault(kind, Example(skip, tuple(tree or ()), draft.parent))
        return draft


def round_of(
    state: State, kind: Kind, example: Example
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Drafting and verifying as in a round of that kind, behind the tokens of `state`: the
    drafter's and the loop's own code.
    """
    lm, skip = state.lm, example.skip or DraftPlan.of(state.lm.layers)
    method = FixedSet("drafts", skip, Fixed(max(1, kind.steps)), example.widths)
    method.exit_sublayer = kind.exit
    method.begin(state)
    early: list[list[Any]] = []
    if kind.exit is not None:
        early = [[lm.embed([5])] * (kind.exit + 1)] * kind.early
    draft = Draft([5] * (kind.rows - 1), example.parent, early_exit_states=early)
    return (
        lambda: method.propose(state, kind.steps) if kind.steps else None,
        lambda: _verify(state, draft, kind.hidden_states, kind.top_tokens),
    )


class Bench:
    """One model and the prompts of one dataset."""

    def __init__(
        self,
        model: str,
        dataset: str,
        prompts: int,
        tokens: int,
        now: Callable[[], float],
        more: Sequence[str] = (),
    ) -> None:
        self.overrides = [
            *more,
            f"model={model}",
            f"dataset={dataset}",
            f"dataset.max_new_tokens={tokens}",
        ]
        config = compose(self.overrides)
        self.lm, tokenizer = load_model(config.model, config.engine)
        self.prompts = [
            p.ids for p in prepare(self.lm, tokenizer, config.dataset.rows(prompts), config.dataset)
        ]
        self.tokens, self.eos, self.now = tokens, eos_ids(self.lm), now

    def method(self, words: str) -> Method:
        name, *more = words.split()
        config = resolve_cell(compose([*self.overrides, f"method={name}", *more])).config
        method: Method = config.method.factory()(layers=self.lm.layers)
        if method.needs_latency and method.latency_model is None:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "latency.json"
                method.latency_model = stored_latency(self.lm, path, method.variants)
        return method

    def decode(self, method: Any, prompt: list[int]) -> Any:
        return generate(
            self.lm,
            method,
            prompt,
            self.tokens,
            self.eos,
            clock=Clock(self.lm.output_device, self.now),
        )

    @torch.inference_mode()
    def cost(self, at: int, kind: Kind, example: Example) -> tuple[float, float]:
        """Seconds of drafting and of verifying, over those of a pass of one row just before, so
        that a machine that slows down slows both.

        Each in the company that it has in a run, since that changes what caches hold and how fast a
        core may go: passes of one row behind others, and rounds behind rounds; the first of each is
        not counted.
        """
        state = State(self.lm, [5] * (at + 1), Sampler(), 10**6, frozenset())
        self.lm.cache.length = at
        single = round_of(state, Kind(0, "", 1, None, 0, False, 0, False), Example(None, (), None))[
            1
        ]
        drafting, verifying = round_of(state, kind, example)
        for turn in range(2 * SINGLES):
            if turn == SINGLES:
                began = self.now()
            single()
        one = (self.now() - began) / SINGLES
        drafted = verified = 0.0
        for turn in range(1 + ROUNDS):
            began = self.now()
            drafting()
            between = self.now()
            verifying()
            if turn:
                drafted, verified = drafted + between - began, verified + self.now() - between
        return drafted / ROUNDS / one, verified / ROUNDS / one

    def measure(self, name: str, runs: int) -> dict[str, Any]:
        """What a method did, what its passes cost, and both speedups."""
        fresh = self.method(name)
        first = Watched(copy.deepcopy(fresh))
        outs = [self.decode(first, p) for p in self.prompts]
        at = round(
            statistics.mean(
                len(p) + len(o.tokens) / 2 for p, o in zip(self.prompts, outs, strict=True)
            )
        )
        drafts = isinstance(fresh, SkipMethod)
        costs: dict[Kind, list[tuple[float, float]]] = {kind: [] for kind in first.example}
        # of every run: vanilla, the method, its adaptation, drafting and verification
        seconds: list[list[float]] = []
        same = True
        for _ in range(runs):
            method, total = copy.deepcopy(fresh), [0.0] * 5
            watched = Watched(method)
            for prompt in self.prompts:
                base, ours = self.decode(Vanilla(), prompt), self.decode(watched, prompt)
                same &= base.tokens == ours.tokens
                decode = (
                    sum(out.seconds.values()) - out.seconds["prefill"] for out in (base, ours)
                )
                beside = ours.seconds["adapt"] + (0.0 if drafts else ours.seconds["draft"])
                phases = (*decode, beside, ours.seconds["draft"], ours.seconds["verify"])
                total = [t + s for t, s in zip(total, phases, strict=True)]
                for kind, example in first.example.items():
                    costs[kind].append(self.cost(at, kind, example))
            assert watched.rounds == first.rounds, "a run that is not repeatable cannot be compared"
            seconds.append(total)
        middle = {
            k: (statistics.median(d for d, _ in v), statistics.median(v for _, v in v))
            for k, v in costs.items()
        }
        return self.figures(name, outs, first.rounds, middle, seconds, same)

    def figures(
        self,
        name: str,
        outs: list[Any],
        done: Counter[Kind],
        cost: dict[Kind, tuple[float, float]],
        seconds: Any,
        same: bool,
    ) -> dict[str, Any]:
        rounds = [r for out in outs for r in out.rounds]
        steps = sum(n * kind.steps for kind, n in done.items())
        drafting, verifying = (
            sum(n * cost[kind][which] for kind, n in done.items()) for which in (0, 1)
        )
        M, d = sum(r.emitted for r in rounds) / len(rounds), steps / len(rounds)
        c, v = drafting / steps if steps else 0.0, verifying / len(rounds)
        # In the runs, per round, in vanilla's time of a token: a, and to find where a prediction
        # fails, what c d and v came to.
        a, drafted, verified = (
            statistics.median(s[phase] / s[0] for s in seconds) * M for phase in (2, 3, 4)
        )
        measured = statistics.median(s[0] / s[1] for s in seconds)
        predicted = predicted_speedup(M, d, c, v, a)
        found = {"M": M, "d": d, "c": c, "v": v, "a": a}
        found |= {"measured": measured, "predicted": predicted, "ratio": measured / predicted}
        found |= {"c in runs": drafted / d if d else 0.0, "v in runs": verified}
        return {"method": name, **{k: round(x, 3) for k, x in found.items()}, "identical": same}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--dataset", default="mini-stories")
    parser.add_argument(
        "--methods",
        nargs="+",
        default=[m for m in choices("method") if m not in LEFT_OUT],
        help="each with overrides, as in 'uniform method.precision=int8'",
    )
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--runs", type=int, default=5, help="5 or more")
    parser.add_argument(
        "--cpu-seconds",
        action="store_true",
        help="time of the one thread on its core, for a busy machine",
    )
    parser.add_argument("--more", nargs="*", default=[], help="settings, as of the engine")
    args = parser.parse_args()
    if args.runs < 5:
        parser.error("a median of fewer than 5 runs says little")
    bench = Bench(
        args.model,
        args.dataset,
        args.prompts,
        args.tokens,
        time.thread_time if args.cpu_seconds else time.perf_counter,
        args.more,
    )
    found = []
    for name in args.methods:
        found.append(line := bench.measure(name, args.runs))
        if len(found) == 1:
            print("".join(f"{key:>15}" for key in line), flush=True)
        print("".join(f"{value!s:>15}" for value in line.values()), flush=True)
    for line in found:
        print(
            json.dumps(
                {
                    "figure": "measured / predicted speedup",
                    "model": args.model,
                    "dataset": args.dataset,
                    **line,
                }
            )
        )


if __name__ == "__main__":
    main()
