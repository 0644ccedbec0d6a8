"""Hugging Face's own decoding against ours, in turns, on one checkpoint and the same prompts.

    python scripts/compare_peers.py --prompts 4 --runs 5
    python scripts/compare_peers.py --model smollm2-135m --dataset pydoc-summary --gguf SmolLM2.gguf

Theirs: `generate`, with `assistant_early_exit` (the first layers draft), and with
`prompt_lookup_num_tokens`; with `--gguf`, llama.cpp on the same weights. Ours: vanilla and some
methods on the fused engine, with all that a prompt costs: prefill, drafting, verification,
adaptation. Greedy tokens are checked to be the same in float32, and to differ in no more than
reported otherwise.

Per prompt all arms decode in turns, in an order drawn anew. A method goes from prompt to prompt
with what it learned, and every run begins with a method that has seen only the warm-up prompt,
which is not among those timed: one that saw the same prompts a run before could recycle the
outputs. A ratio is of seconds per token, per prompt, the median over the runs; the table has its
geometric mean over the prompts with the 95 % interval. One line of JSON per arm follows.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from skipbench.bench.latency_file import latency_path, stored_latency
from skipbench.bench.load import load_model, prepare
from skipbench.bench.prompts import eos_ids
from skipbench.config.compose import compose
from skipbench.config.model import Model
from skipbench.console import progress
from skipbench.decode.loop import generate
from skipbench.decode.method import Method
from skipbench.experiments.cell import resolve_cell
from skipbench.metrics.interval import Interval, paired_ratio_interval
from skipbench.models.load import DTYPES

Decode = Callable[[list[int]], list[int]]
Arm = Callable[[], Decode]
"""Makes a decoder that has seen no prompt."""
METHODS = ["vanilla", "self-sd", "prompt-lookup", "layerskip", "del"]
BASE = "generate"


def theirs(model: Model, tokens: int, exit_layer: int, lookup: int) -> dict[str, Arm]:
    """Hugging Face's arms on a model of their own.

    Args:
        exit_layer: layers of `assistant_early_exit`; with 0 that arm is left out.
    """
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        model.path, revision=model.revision, dtype=DTYPES[model.dtype], attn_implementation="sdpa"
    )
    loaded = loaded.to(model.device).eval()

    def arm(**options: Any) -> Arm:
        def decode(prompt: list[int]) -> list[int]:
            ids = torch.tensor([prompt], device=loaded.device)
            out = loaded.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                do_sample=False,
                pad_token_id=0,
                **options,
            )
            return list(map(int, out[0, len(prompt) :]))

        return lambda: decode

    exits = {f"generate, assistant_early_exit={exit_layer}": arm(assistant_early_exit=exit_layer)}
    return {
        BASE: arm(),
        **(exits if exit_layer else {}),
        f"generate, prompt_lookup_num_tokens={lookup}": arm(prompt_lookup_num_tokens=lookup),
    }


def ours(
    overrides: list[str], methods: list[str], prompts: int
) -> tuple[dict[str, Arm], list[list[int]], frozenset[int]]:
    """Our arms on one engine, the token ids of the prompts and of one more to warm up, and the ids
    that end an output.
    """
    config = compose(overrides)
    lm, tokenizer = load_model(config.model, config.engine)
    ids = [p.ids for p in prepare(lm, tokenizer, config.dataset.rows(prompts + 1), config.dataset)]
    tokens, eos = config.dataset.max_new_tokens, eos_ids(lm)

    def arm(name: str) -> Decode:
        cell = resolve_cell(compose([*overrides, f"method={name}"]))
        method: Method = cell.config.method.factory()(layers=lm.layers)
        if method.needs_latency and method.latency_model is None:
            path = latency_path(
                config.model, config.engine, str(lm.output_device), cell.config.results
            )
            method.latency_model = stored_latency(lm, path)
        return lambda prompt: generate(lm, method, prompt, tokens, eos).tokens

    return {f"skipbench, {name}": partial(arm, name) for name in methods}, ids, eos


@dataclass(frozen=True)
class Timing:
    """One arm.

    Args:
        seconds: per prompt, the median over the runs.
        outputs: per prompt, the tokens of the last run.
    """

    seconds: list[float]
    outputs: list[list[int]]

    @property
    def tokens_per_s(self) -> float:
        return sum(map(len, self.outputs)) / sum(self.seconds)

    def faster_than(self, other: "Timing") -> tuple[float, Interval | None]:
        """Seconds per token of `other` over ours, paired per prompt, with the interval."""
        return paired_ratio_interval(
            [
                (theirs / len(b)) / (ours / len(a))
                for ours, theirs, a, b in zip(
                    self.seconds, other.seconds, self.outputs, other.outputs, strict=True
                )
            ]
        )


def compare(
    arms: dict[str, Arm],
    prompts: list[list[int]],
    warmup: list[int],
    runs: int,
    now: Callable[[], float],
) -> dict[str, Timing]:
    """Times every arm on every prompt, in turns."""
    order, rng = list(arms), random.Random(0)
    seconds: dict[str, list[list[float]]] = {name: [[] for _ in prompts] for name in arms}
    outputs: dict[str, list[list[int]]] = {name: [[] for _ in prompts] for name in arms}
    with progress("peers", runs * len(prompts)) as advance:
        for run in range(runs):
            decoders = {name: make() for name, make in arms.items()}
            for decode in decoders.values():
                decode(warmup)
            for i, prompt in enumerate(prompts):
                rng.shuffle(order)
                for name in order:
                    began = now()
                    outputs[name][i] = decoders[name](prompt)
                    seconds[name][i].append(now() - began)
                advance(f"run {run + 1}")
    return {
        name: Timing([statistics.median(times) for times in seconds[name]], outputs[name])
        for name in arms
    }


def table(timings: dict[str, Timing]) -> tuple[str, list[dict[str, Any]]]:
    """What is printed: the table, and a JSON line per arm."""
    bases = [name for name in (BASE, "skipbench, vanilla", "llama.cpp") if name in timings]
    head = "".join(f"{'over ' + name:>30}" for name in bases)
    rows, lines = [f"{'arm':42}{'tokens/s':>10}{head}{'same tokens':>13}"], []
    for name, timing in timings.items():
        ratios = {base: timing.faster_than(timings[base]) for base in bases}
        same = sum(a == b for a, b in zip(timing.outputs, timings[BASE].outputs, strict=True))
        cells = "".join(f"{_ratio(*ratio):>30}" for ratio in ratios.values())
        counts = f"{same}/{len(timing.outputs)}"
        rows.append(f"{name:42}{timing.tokens_per_s:10.1f}{cells}{counts:>13}")
        lines.append(
            {
                "arm": name,
                "over": ratios,
                "same": same,
                "tokens": list(map(len, timing.outputs)),
                "seconds": [round(s, 4) for s in timing.seconds],
            }
        )
    return "\n".join(rows), lines


def _ratio(mean: float, interval: Interval | None) -> str:
    return f"{mean:.2f}" + (f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else "")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", default="tiny", help="a choice of conf/model, or model.path=... among --more"
    )
    parser.add_argument("--dataset", default="mini-stories")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--exit", type=int, default=6, help="layers of assistant_early_exit; 0: not run"
    )
    parser.add_argument("--lookup", type=int, default=10)
    parser.add_argument(
        "--gguf",
        type=Path,
        help="the model's GGUF file: llama.cpp decodes it, too (needs llama-cpp-python)",
    )
    parser.add_argument(
        "--cpu-seconds",
        action="store_true",
        help="time of the one thread on its core, for a busy machine",
    )
    parser.add_argument(
        "--more", nargs="*", default=[], help="further overrides, such as model.dtype=bfloat16"
    )
    args = parser.parse_args()
    if args.runs * args.prompts < 5:
        parser.error("fewer than 5 timings per arm say little: more --prompts, or more --runs")
    overrides = [
        f"model={args.model}",
        f"dataset={args.dataset}",
        f"dataset.max_new_tokens={args.tokens}",
        *args.more,
    ]
    mine, (*prompts, warmup), eos = ours(overrides, args.methods, args.prompts)
    model = compose(overrides).model
    arms = theirs(model, args.tokens, args.exit, args.lookup) | mine
    clock = time.thread_time if args.cpu_seconds else time.perf_counter
    with tempfile.TemporaryDirectory() as place:
        if args.gguf is not None:
            from scripts import peer_llama

            path = peer_llama.dequantised(args.gguf, Path(place) / "model.gguf", model.dtype)
            context = max(map(len, [*prompts, warmup])) + args.tokens + 64
            arms |= peer_llama.arms(path, args.tokens, eos, args.lookup, context)
        timings = compare(arms, prompts, warmup, args.runs, clock)
    text, lines = table(timings)
    print(text)
    of = {
        "figure": "peers",
        "model": args.model,
        "dtype": model.dtype,
        "dataset": args.dataset,
        "prompts": len(prompts),
        "runs": args.runs,
    }
    for line in lines:
        print(json.dumps(of | line))
    if model.dtype == "float32" and any(line["same"] < len(prompts) for line in lines):
        raise SystemExit("tokens differ from generate's: the ratios compare different work")


if __name__ == "__main__":
    main()
