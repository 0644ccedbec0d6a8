"""Hugging Face's own decoding against ours, in turns, on one checkpoint and the same prompts.

    python scripts/compare_peers.py --prompts 4 --runs 5
    python scripts/compare_peers.py --model smollm2-135m --dataset pydoc-summary --gguf SmolLM2.gguf

Theirs: `generate`, with `assistant_early_exit` (the first layers draft), and with
`prompt_lookup_num_tokens`; with `--gguf`, llama.cpp on the same weights. Ours: vanilla and some
methods on the fused engine, with all that a prompt costs: prefill, drafting, verification,
adaptation. Greedy tokens are checked to be the same in float32, and to differ in no more than
reported otherwise. Medians of whole passes over the prompts; one line of JSON per arm follows the
table.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from skipbench.bench.latency_file import latency_path, stored_latency
from skipbench.bench.load import load_model, prepare
from skipbench.bench.prompts import eos_ids
from skipbench.config.compose import compose
from skipbench.config.model import Model
from skipbench.decode.loop import generate
from skipbench.decode.method import Method, UsesLatency
from skipbench.experiments.cell import resolve_cell
from skipbench.models.load import DTYPES

Decode = Callable[[list[int]], list[int]]
METHODS = ["vanilla", "self-sd", "prompt-lookup", "layerskip", "del"]
BASE = "generate"


def theirs(model: Model, tokens: int, exit_layer: int, lookup: int) -> dict[str, Decode]:
    """Hugging Face's arms on a model of their own."""
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        model.path, revision=model.revision, dtype=DTYPES[model.dtype], attn_implementation="sdpa"
    )
    loaded = loaded.to(model.device).eval()

    def arm(**options: Any) -> Decode:
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

        return decode

    return {
        BASE: arm(),
        f"generate, assistant_early_exit={exit_layer}": arm(assistant_early_exit=exit_layer),
        f"generate, prompt_lookup_num_tokens={lookup}": arm(prompt_lookup_num_tokens=lookup),
    }


def ours(
    overrides: list[str], methods: list[str], prompts: int
) -> tuple[dict[str, Decode], list[list[int]], frozenset[int]]:
    """Our arms on one engine, the token ids of the prompts, and those that end an output."""
    config = compose(overrides)
    lm, tokenizer = load_model(config.model, config.engine)
    ids = [p.ids for p in prepare(lm, tokenizer, config.dataset.rows(prompts), config.dataset)]
    tokens, eos = config.dataset.max_new_tokens, eos_ids(lm)

    def arm(name: str) -> Decode:
        cell = resolve_cell(compose([*overrides, f"method={name}"]))
        method: Method = cell.config.method.factory()(layers=lm.layers)
        if isinstance(method, UsesLatency) and method.latency is None:
            path = latency_path(
                config.model, config.engine, str(lm.output_device), cell.config.results
            )
            method.latency = stored_latency(lm, path)
        return lambda prompt: generate(lm, method, prompt, tokens, eos).tokens

    return {f"skipbench, {name}": arm(name) for name in methods}, ids, eos


def compare(
    arms: dict[str, Decode], prompts: list[list[int]], runs: int, now: Callable[[], float]
) -> dict[str, tuple[float, int, int]]:
    """Of every arm: median seconds of a pass over the prompts, tokens of a pass, and prompts whose
    tokens are those of `generate`.
    """
    outputs = {
        name: [decode(p) for p in prompts] for name, decode in arms.items()
    }  # not timed: the first pass warms up
    times: dict[str, list[float]] = {name: [] for name in arms}
    order, rng = list(arms), random.Random(0)
    for _ in range(runs):
        rng.shuffle(order)
        for name in order:
            began = now()
            for prompt in prompts:
                arms[name](prompt)
            times[name].append(now() - began)
    wanted = outputs[BASE]
    return {
        name: (
            statistics.median(times[name]),
            sum(map(len, outputs[name])),
            sum(a == b for a, b in zip(outputs[name], wanted, strict=True)),
        )
        for name in arms
    }


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
    parser.add_argument("--runs", type=int, default=5, help="5 or more")
    parser.add_argument("--exit", type=int, default=6, help="layers of assistant_early_exit")
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
    if args.runs < 5:
        parser.error("a median of fewer than 5 runs says little")
    overrides = [
        f"model={args.model}",
        f"dataset={args.dataset}",
        f"dataset.max_new_tokens={args.tokens}",
        *args.more,
    ]
    mine, prompts, eos = ours(overrides, args.methods, args.prompts)
    model = compose(overrides).model
    arms = theirs(model, args.tokens, args.exit, args.lookup) | mine
    clock = time.thread_time if args.cpu_seconds else time.perf_counter
    if args.gguf is None:
        timings = compare(arms, prompts, args.runs, clock)
    else:
        from scripts import peer_llama

        with tempfile.TemporaryDirectory() as place:
            path = peer_llama.dequantised(args.gguf, Path(place) / "model.gguf", model.dtype)
            context = max(map(len, prompts)) + args.tokens + 64
            arms |= peer_llama.arms(path, args.tokens, eos, args.lookup, context)
            timings = compare(arms, prompts, args.runs, clock)
    base = timings[BASE][0]
    vanilla = timings.get("skipbench, vanilla", timings[BASE])[0]
    print(
        f"{'arm':42}{'seconds':>9}{'tokens/s':>10}"
        f"{'generate /':>12}{'vanilla /':>11}{'same tokens':>13}"
    )
    lines = []
    for name, (seconds, tokens, same) in timings.items():
        ratios = (base / seconds, vanilla / seconds)
        print(
            f"{name:42}{seconds:9.3f}{tokens / seconds:10.1f}"
            f"{ratios[0]:12.2f}{ratios[1]:11.2f}{f'{same}/{len(prompts)}':>13}"
        )
        line = {
            "figure": "peers",
            "model": args.model,
            "dtype": model.dtype,
            "dataset": args.dataset,
            "arm": name,
        }
        times = {
            "seconds": round(seconds, 4),
            "over_generate": round(ratios[0], 3),
            "over_vanilla": round(ratios[1], 3),
        }
        lines.append(line | times | {"same": same, "prompts": len(prompts)})
    for line in lines:
        print(json.dumps(line))
    if model.dtype == "float32" and any(line["same"] < len(prompts) for line in lines):
        raise SystemExit("tokens differ from generate's: the ratios compare different work")


if __name__ == "__main__":
    main()
