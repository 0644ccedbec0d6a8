"""Measured speedup against the speedup that measured costs predict, for every method on one model and dataset.

    python scripts/predicted.py --prompts 6 --runs 5

The prediction is S = M / (d c + v + a): M tokens a round come from d draft steps that cost c each, a verification that costs v and
an adaptation that costs a, all in passes of one row. d is (M - 1) / alpha where no output is cut. c and v are measured apart from
the runs and in turns with them: every kind of pass that a method ran (skip set, rows, tree, early exit) by itself, at the mean
length of the texts, with the reading of its result on the host, against a pass of one row just before it. a is what the runs' own
clock counts, against their own vanilla; drafts that are looked up instead of computed are in it too. What S leaves out is the host
work of a round: choosing thresholds, committing, bookkeeping. One line of JSON a method follows the table.
"""

import argparse
import copy
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from skipbench.bench.latencies import stored_latency
from skipbench.bench.prompts import eos_ids
from skipbench.bench.run import load_model, prepare
from skipbench.catalogue import choices
from skipbench.cells import finish
from skipbench.compose import compose, method_of, rows_of
from skipbench.decode.drafting import Drafter
from skipbench.decode.loop import _score, _verify, generate  # the very code that runs verify with
from skipbench.decode.method import Draft, Method, UsesLatency
from skipbench.decode.sampling import Sampler
from skipbench.decode.state import State
from skipbench.decode.stopping import Fixed
from skipbench.methods.vanilla import Vanilla
from skipbench.metrics.formulas import predicted_speedup
from skipbench.profile.clock import Clock
from skipbench.skipset import SkipSet

LEFT_OUT = ("fixed", "self-sd-c", "vanilla")  # a set by hand or one that is not stored, and nothing to predict
VISITS = 4  # of every kind of pass, a prompt and run


@dataclass(frozen=True)
class Pass:
    """A kind of pass: a draft step of `rows` 1, or a verification, of which `early` rows have run up to sub-layer `exit` before."""

    rows: int
    draft: bool = False
    skipped: tuple[int, int] = (0, 0)
    exit: int | None = None
    early: int = 0
    taps: bool = False
    tree: bool = False


class Watched:
    """A method whose passes are written down."""

    def __init__(self, method: Method) -> None:
        self.method, self.needs_states = method, method.needs_states
        self.passes: Counter[Pass] = Counter()
        self.example: dict[Pass, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.method, name)

    def propose(self, state: State, room: int) -> Draft:
        draft = self.method.propose(state, room)
        exit_at = len(draft.early[0]) - 1 if draft.early else None
        if hasattr(self.method, "drafter") and draft.steps:
            skip: SkipSet | None = getattr(self.method, "skip", None)
            skipped = (len(skip.attention), len(skip.mlp)) if skip is not None and exit_at is None else (0, 0)
            step = Pass(1, True, skipped, exit_at)
            self.passes[step] += draft.steps
            self.example.setdefault(step, skip)
        verified = Pass(
            1 + len(draft.tokens), False, (0, 0), exit_at, len(draft.early), self.needs_states, draft.parent is not None
        )
        self.passes[verified] += 1
        self.example.setdefault(verified, draft.parent)
        return draft


def run_pass(state: State, kind: Pass, example: Any) -> Callable[[], object]:
    """One pass of a kind behind the tokens of `state`, ready to be called: the drafter's and the loop's own code."""
    lm = state.lm
    if kind.draft:
        drafter = Drafter(Fixed(1))
        drafter.begin()
        return lambda: drafter.propose(state, example or SkipSet.of(lm.layers), 1, kind.exit)
    early: list[list[Any]] = []
    if kind.exit is not None:
        early = [[lm.embed([5])] * (kind.exit + 1)] * kind.early
    draft = Draft([5] * (kind.rows - 1), example, early=early)
    return lambda: _verify(state, draft, _score(state, draft, [] if kind.taps else None))


class Bench:
    """One model and the prompts of one dataset."""

    def __init__(self, model: str, dataset: str, prompts: int, tokens: int, now: Callable[[], float]) -> None:
        self.overrides = [f"model={model}", f"dataset={dataset}", f"dataset.max_new_tokens={tokens}"]
        plain = compose(self.overrides)
        self.lm, tokenizer = load_model(plain["model"], plain["engine"])
        self.prompts = [
            p.ids for p in prepare(self.lm, tokenizer, rows_of(plain["dataset"], prompts), plain["dataset"])
        ]
        self.tokens, self.eos, self.now = tokens, eos_ids(self.lm), now
        with tempfile.TemporaryDirectory() as folder:
            self.latency = stored_latency(self.lm, Path(folder) / "latency.json")

    def method(self, name: str) -> Method:
        settings, _ = finish(compose([*self.overrides, f"method={name}"]))
        method: Method = method_of(settings["method"])(layers=self.lm.layers)
        if isinstance(method, UsesLatency) and method.latency is None:
            method.latency = self.latency
        return method

    def decode(self, method: Any, prompt: list[int]) -> Any:
        return generate(self.lm, method, prompt, self.tokens, self.eos, clock=Clock(self.lm.output_device, self.now))

    @torch.inference_mode()
    def cost(self, at: int, kind: Pass, example: Any, before: tuple[Pass, Any]) -> float:
        """Of one pass, its seconds over those of a pass of one row just before, so that a machine that slows down slows both.

        Each comes behind another as in a round: a draft step behind one, a verification behind the last of them (without drafts: behind the
        most frequent one).
        """
        state = State(self.lm, [5] * (at + 1), Sampler(), 10**6, frozenset())
        self.lm.cache.length = at
        single = run_pass(state, Pass(1), None)
        first, call = run_pass(state, *before), run_pass(state, kind, example)
        seconds = []
        for warm, timed in ((single, single), (first, call)):
            warm()
            began = self.now()
            timed()
            seconds.append(self.now() - began)
        return seconds[1] / seconds[0]

    def measure(self, name: str, runs: int) -> dict[str, Any]:
        """What a method did, what its passes cost, and both speedups."""
        fresh = self.method(name)
        first = Watched(copy.deepcopy(fresh))
        outs = [self.decode(first, p) for p in self.prompts]
        lengths = [len(p) + len(o.tokens) / 2 for p, o in zip(self.prompts, outs, strict=True)]
        at = round(statistics.mean(lengths))
        kinds = first.example
        drafts = [kind for kind, _ in first.passes.most_common() if kind.draft]
        usual = drafts[0] if drafts else first.passes.most_common(1)[0][0]
        costs: dict[Pass, list[float]] = {kind: [] for kind in kinds}
        seconds: list[list[float]] = []  # of every run: vanilla, the method, its adaptation, drafting and verification
        same = True
        for _ in range(runs):
            method, total = copy.deepcopy(fresh), [0.0] * 5
            watched = Watched(method)
            for prompt in self.prompts:
                base, ours = self.decode(Vanilla(), prompt), self.decode(watched, prompt)
                same &= base.tokens == ours.tokens
                decode = (sum(out.seconds.values()) - out.seconds["prefill"] for out in (base, ours))
                beside = ours.seconds["adapt"] + (0.0 if drafts else ours.seconds["draft"])
                phases = (*decode, beside, ours.seconds["draft"], ours.seconds["verify"])
                total = [t + s for t, s in zip(total, phases, strict=True)]
                for kind, example in kinds.items():
                    before = kind if kind.draft else usual
                    for _ in range(VISITS):
                        costs[kind].append(self.cost(at, kind, example, (before, kinds[before])))
            assert watched.passes == first.passes, "a run that is not repeatable cannot be compared"
            seconds.append(total)
        return self.figures(
            name, outs, first.passes, {k: statistics.median(v) for k, v in costs.items()}, seconds, same
        )

    def figures(
        self, name: str, outs: list[Any], passes: Counter[Pass], cost: dict[Pass, float], seconds: Any, same: bool
    ) -> dict[str, Any]:
        rounds = [r for out in outs for r in out.rounds]
        emitted = sum(r.emitted for r in rounds)
        steps = sum(n for kind, n in passes.items() if kind.draft)
        drafting = sum(n * cost[kind] for kind, n in passes.items() if kind.draft)
        verifying = sum(n * cost[kind] for kind, n in passes.items() if not kind.draft)
        M, d = emitted / len(rounds), steps / len(rounds)
        c, v = drafting / max(steps, 1), verifying / len(rounds)
        # In the runs, per round, in vanilla's time of a token: a, and to find where a prediction fails, what c d and v came to.
        a, drafted, verified = (statistics.median(s[phase] / s[0] for s in seconds) * M for phase in (2, 3, 4))
        measured = statistics.median(s[0] / s[1] for s in seconds)
        predicted = predicted_speedup(M, d, c, v, a)
        found = {"M": M, "d": d, "c": c, "v": v, "a": a}
        found |= {"measured": measured, "predicted": predicted, "ratio": measured / predicted}
        found |= {"c in runs": drafted / d if d else 0.0, "v in runs": verified}
        return {"method": name, **{k: round(x, 3) for k, x in found.items()}, "identical": same}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--dataset", default="mini-stories")
    parser.add_argument("--methods", nargs="+", default=[m for m in choices("method") if m not in LEFT_OUT])
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--runs", type=int, default=5, help="5 or more")
    parser.add_argument(
        "--cpu-seconds", action="store_true", help="time of the one thread on its core, for a busy machine"
    )
    args = parser.parse_args()
    if args.runs < 5:
        parser.error("a median of fewer than 5 runs says little")
    bench = Bench(
        args.model, args.dataset, args.prompts, args.tokens, time.thread_time if args.cpu_seconds else time.perf_counter
    )
    found = []
    for name in args.methods:
        found.append(line := bench.measure(name, args.runs))
        if len(found) == 1:
            print("".join(f"{key:>15}" for key in line), flush=True)
        print("".join(f"{value!s:>15}" for value in line.values()), flush=True)
    for line in found:
        print(
            json.dumps({"figure": "measured / predicted speedup", "model": args.model, "dataset": args.dataset, **line})
        )


if __name__ == "__main__":
    main()
