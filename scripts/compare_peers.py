"""Hugging Face's own decoding against ours, in turns, on one checkpoint and the same prompts.

    python scripts/compare_peers.py --prompts 5 --runs 5
    python scripts/compare_peers.py --model smollm2-135m --dataset pydoc-summary --gguf SmolLM2.gguf

Theirs: `generate`, with `assistant_early_exit` (the first layers draft), and with
`prompt_lookup_num_tokens`; with `--gguf`, llama.cpp on the same weights. Ours: vanilla and some
methods on the fused engine, with all that a prompt costs: prefill, drafting, verification,
adaptation. Greedy tokens are checked to be the same in float32, and to differ in no more than
reported otherwise.

Of a conversation the first turn is decoded. Per prompt all arms decode in turns, in an order drawn
anew. A method goes from prompt to prompt with what it learned, and every run begins with a method
that has seen only the warm-up prompt, which is not among those timed: one that saw the same prompts
a run before could recycle the outputs. A ratio is of seconds per token, per prompt, the median over
the runs; the table has its geometric mean over the prompts with the 95 % interval. `--out` keeps
the record, and `--render` writes its table again:

    python scripts/compare_peers.py --render results/laptop/peers/smollm2-135m.json
"""

import argparse
import random
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import AutoModelForCausalLM

from skipbench.bench.load import load_model, make_method, prepare
from skipbench.bench.prompts import eos_ids
from skipbench.config.compose import compose
from skipbench.config.model import Model
from skipbench.console import progress
from skipbench.decode.loop import generate
from skipbench.experiments.resolve import resolve_cell
from skipbench.metrics.interval import FEWEST, Interval, paired_ratio_interval
from skipbench.models.load import DTYPES
from skipbench.runs.files import write_atomic
from skipbench.runs.provenance import cpu_name

Decode = Callable[[list[int]], list[int]]
Arm = Callable[[], Decode]
"""Makes a decoder that has seen no prompt."""
METHODS = ["vanilla", "self-sd", "prompt-lookup", "layerskip", "del"]
BASE = "generate"
BASES = (BASE, "skipbench vanilla", "llama.cpp", "llama.cpp Q8_0", "llama.cpp Q4_1")
OTHER_WEIGHTS = (
    "`Q8_0` and `Q4_1` are llama.cpp's quantised products, what one would take there instead: "
    "they are another model's tokens. llama.cpp loads models with `use_extra_bufts=False`: its "
    "buffers for AMX crash on some processors."
)


def theirs(
    model: Model,
    tokens: int,
    exit_layer: int,
    lookup: int,
    assistant: Callable[[Any], Any] | None = None,
) -> dict[str, Arm]:
    """Hugging Face's arms on a model of their own.

    Args:
        exit_layer: layers of `assistant_early_exit`; with 0 that arm is left out.
        assistant: makes the `assistant_model` of the loaded one; None: no such arm.
    """
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        model.path, revision=model.revision, dtype=DTYPES[model.dtype], attn_implementation="sdpa"
    )
    loaded = loaded.to(model.device).eval()

    def arm(**options: Any) -> Arm:
        def decode(prompt: list[int]) -> list[int]:
            ids = torch.tensor([prompt], device=loaded.device)
            how = {"max_new_tokens": tokens, "do_sample": False, "pad_token_id": 0, **options}
            out = loaded.generate(ids, attention_mask=torch.ones_like(ids), **how)
            return list(map(int, out[0, len(prompt) :]))

        return lambda: decode

    arms = {BASE: arm()}
    if exit_layer:
        name = f"generate assistant_early_exit={exit_layer}"
        arms[name] = arm(assistant_early_exit=exit_layer)
    arms[f"generate prompt_lookup_num_tokens={lookup}"] = arm(prompt_lookup_num_tokens=lookup)
    if assistant:
        arms["generate assistant_model"] = arm(assistant_model=assistant(loaded))
    return arms


def ours(
    overrides: list[str], methods: list[str], prompts: int
) -> tuple[dict[str, Arm], list[list[int]], frozenset[int]]:
    """Our arms on one engine, the token ids of the prompts and of one more to warm up, and the ids
    that end an output.
    """
    config = compose(overrides)
    lm, tokenizer = load_model(config.model, config.engine)
    rows = config.dataset.rows(prompts + 1)
    # a later turn has an answer before it, which is each program's own
    ids = [p.ids for p in prepare(lm, tokenizer, rows, config.dataset) if p.complete is None]
    tokens, eos = config.dataset.max_new_tokens, eos_ids(lm)

    def arm(name: str) -> Decode:
        method = make_method(resolve_cell(compose([*overrides, f"method={name}"])).config, lm)
        return lambda prompt: generate(lm, method, prompt, tokens, eos).tokens

    return {f"skipbench {name}": partial(arm, name) for name in methods}, ids, eos


class Timing(msgspec.Struct, frozen=True):
    """One arm.

    Args:
        seconds: per prompt, the median over the runs.
        tokens: per prompt, the tokens of the output.
        same: per prompt, whether they are those of `generate`.
    """

    seconds: list[float]
    tokens: list[int]
    same: list[bool]

    @property
    def tokens_per_s(self) -> float:
        return sum(self.tokens) / sum(self.seconds)

    def faster_than(self, other: "Timing") -> tuple[float, Interval | None]:
        """Seconds per token of `other` over ours, paired per prompt, with the interval."""
        of = zip(self.seconds, other.seconds, self.tokens, other.tokens, strict=True)
        return paired_ratio_interval([(theirs / m) / (ours / n) for ours, theirs, n, m in of])


class Origin(msgspec.Struct, kw_only=True):
    """How a record was made."""

    command: str
    date: str
    cpu: str
    versions: dict[str, str]

    @property
    def told(self) -> str:
        versions = ", ".join(f"{name} {of}" for name, of in self.versions.items())
        return f"{self.cpu}, {self.date}; {versions}\n\n```\n{self.command}\n```\n"


def origin(script: str, llama: bool) -> dict[str, Any]:
    """The fields of `Origin`, of this process."""
    packages = ("torch", "transformers", *(["llama-cpp-python"] if llama else []))
    return {
        "command": shlex.join(["python", f"scripts/{script}", *sys.argv[1:]]),
        "date": datetime.now(UTC).date().isoformat(),
        "cpu": cpu_name(),
        "versions": {name: version(name) for name in packages},
    }


class Record(Origin):
    """What `--out` keeps."""

    model: str
    dtype: str
    dataset: str
    runs: int
    arms: dict[str, Timing]

    def page(self) -> str:
        """The table in Markdown."""
        return (
            f"# Beside other programs: {self.model} on {self.dataset}\n\n"
            f"{table(self.model, self.arms)}\n"
            f"Seconds per token of the column's program over the row's, geometric mean over the "
            f"prompts with its 95 % interval. {OTHER_WEIGHTS}\n\n"
            f"{self.dtype}, one thread, {self.told}"
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
        name: Timing(
            [round(statistics.median(times), 5) for times in seconds[name]],
            [len(ids) for ids in outputs[name]],
            [ours == theirs for ours, theirs in zip(outputs[name], outputs[BASE], strict=True)],
        )
        for name in arms
    }


def table(model: str, timings: dict[str, Timing]) -> str:
    """The table in Markdown, fastest arm first."""
    bases = [name for name in BASES if name in timings]
    head = ["model", "arm", "n", "tokens/s", *(f"over {base}" for base in bases), "same tokens"]
    lines = [head, ["---"] * len(head)]
    for name, timing in sorted(timings.items(), key=lambda item: -item[1].tokens_per_s):
        n = len(timing.tokens)
        ratios = {base: _ratio(*timing.faster_than(timings[base])) for base in bases}
        over = ["1" if base == name else text for base, text in ratios.items()]
        same = f"{sum(timing.same)}/{n}"
        lines.append([model, name, str(n), f"{timing.tokens_per_s:.1f}", *over, same])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _ratio(mean: float, interval: Interval | None) -> str:
    return f"{mean:.2f}x" + (f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else "")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", default="tiny", help="a choice of conf/model, or model.path=... in --more")
    add("--dataset", default="mini-stories")
    add("--methods", nargs="+", default=METHODS)
    add("--prompts", type=int, default=5)
    add("--tokens", type=int, default=96)
    add("--runs", type=int, default=5)
    add("--exit", type=int, default=6, help="layers of assistant_early_exit; 0: not run")
    add("--lookup", type=int, default=10)
    add("--gguf", type=Path, help="llama.cpp decodes this file of the model, too")
    add("--cpu-seconds", action="store_true", help="of the one thread, for a busy machine")
    add("--more", nargs="*", default=[], help="overrides, such as model.dtype=bfloat16")
    add("--out", type=Path, help="FILE.json for the record, FILE.md for the table")
    add("--render", type=Path, help="writes FILE.md of a record again, no run")
    args = parser.parse_args()
    if args.render:
        return write_page(args.render)
    if args.prompts < FEWEST:
        parser.error(f"--prompts {args.prompts}: below {FEWEST} prompts there is no interval")
    overrides = [f"model={args.model}", f"dataset={args.dataset}"]
    overrides += [f"dataset.max_new_tokens={args.tokens}", *args.more]
    mine, (*prompts, warmup), eos = ours(overrides, args.methods, args.prompts)
    model = compose(overrides).model
    arms = theirs(model, args.tokens, args.exit, args.lookup) | mine
    clock = time.thread_time if args.cpu_seconds else time.perf_counter
    with tempfile.TemporaryDirectory() as place:
        if args.gguf is not None:
            from scripts import peer_llama

            context = max(map(len, [*prompts, warmup])) + args.tokens + 64
            how = model.dtype, args.lookup, args.tokens, eos, context
            arms |= peer_llama.arms(args.gguf, Path(place), *how)
        timings = compare(arms, prompts, warmup, args.runs, clock)
    print(table(args.model, timings))
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        made = {"model": args.model, "dtype": model.dtype, "dataset": args.dataset}
        made |= {"runs": args.runs, "arms": timings}
        record = Record(**origin("compare_peers.py", bool(args.gguf)), **made)
        write_atomic(args.out, msgspec.json.encode(record) + b"\n")
        write_page(args.out)
    exact = [name for name in timings if "Q" not in name]
    if model.dtype == "float32" and not all(all(timings[name].same) for name in exact):
        raise SystemExit("tokens differ from generate's: the ratios compare different work")


def write_page(record: Path) -> None:
    """Writes the table of a record beside it."""
    page = msgspec.json.decode(record.read_bytes(), type=Record).page()
    write_atomic(record.with_suffix(".md"), page)


if __name__ == "__main__":
    main()
