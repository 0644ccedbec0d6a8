"""Ratios of interleaved runs: our vanilla on both engines against Hugging Face `generate`, and the
cost of a round.

    python scripts/bench_engine.py --model tiny 12x768
    python scripts/bench_engine.py --model tiny 12x768 --dtype bfloat16

Every turn runs each call once, in random order; a figure is the median over --runs turns of the
ratio within a turn, so that a machine that slows down in between moves both. The first turn is not
counted; tokens are checked to be the same. One line of JSON a figure, with its bar where there is
one; lines on what was chosen or is missing go to stderr.
"""

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from skipbench.decode.loop import generate
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.methods.vanilla import Vanilla
from skipbench.profile.clock import timed
from skipbench.skipset import fixed_set

TINY = Path(__file__).resolve().parent.parent / "skipbench" / "models" / "tiny"
EQUAL = "tokens equal generate's"
FULL, VERIFY = "vanilla fused / generate", "verify 9 rows / 1 row"
BARS = {  # (figure, model, dtype), None for any: at least, at most
    (FULL, "tiny", None): (1.7, None),
    (FULL, "24x256", None): (1.6, None),
    (FULL, "12x768", "float32"): (1.12, None),
    (FULL, "12x768", "bfloat16"): (1.4, None),
    ("draft half skipped / full pass", None, None): (None, 0.60),
    (VERIFY, None, "bfloat16"): (None, 1.30),  # with AMX
    (VERIFY, None, "float32"): (None, 2.1),
}
SHAPES = {  # layers, hidden, feed-forward, vocabulary, query heads, K/V heads
    "12x768": (12, 768, 2048, 32000, 12, 12),
    "24x256": (24, 256, 688, 2048, 8, 4),
}


def checkpoint(name: str, dtype: torch.dtype) -> Any:
    """The embedded model, or a random one of the named shape from a fixed seed."""
    if name == "tiny":
        return AutoModelForCausalLM.from_pretrained(TINY, dtype=dtype).eval()
    layers, hidden, feed_forward, vocabulary, heads, kv = SHAPES[name]
    sizes = {"vocab_size": vocabulary, "hidden_size": hidden, "intermediate_size": feed_forward}
    shape = {"num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**sizes, **shape, tie_word_embeddings=True))
    model.eval().requires_grad_(False)
    for parameter in model.model.layers.parameters():
        # As initialised, the layers add so little that the model repeats one token, and equal
        # tokens would prove nothing.
        parameter.mul_(4.0 if parameter.ndim > 1 else 1.0)
    return model.to(dtype)


def bar(figure: str, model: str, dtype: str) -> dict[str, float]:
    """`at_least` or `at_most` of a figure, empty where it has no bar."""
    for (name, of, kind), (least, most) in BARS.items():
        if name == figure and of in (None, model) and kind in (None, dtype):
            return {k: v for k, v in (("at_least", least), ("at_most", most)) if v is not None}
    return {}


def interleaved(calls: dict[str, Callable[[], Any]], runs: int) -> list[dict[str, float]]:
    """Seconds of each call in every turn; a turn before them is not counted."""
    turns, names, times = random.Random(0), list(calls), list[dict[str, float]]()
    for _ in range(runs + 1):
        order = turns.sample(names, len(names))
        times.append({name: timed(calls[name], torch.device("cpu")) for name in order})
    return times[1:]


def ratio(times: list[dict[str, float]], above: str, below: str) -> float:
    """Median over the turns of one call's time over another's."""
    return statistics.median(t[above] / t[below] for t in times)


def measure(name: str, runs: int, tokens: int, dtype: torch.dtype) -> dict[str, float]:
    """Ratios of one model."""
    theirs = checkpoint(name, dtype)
    theirs.generation_config.eos_token_id = theirs.config.eos_token_id = None
    ours = {engine: LM(checkpoint(name, dtype), engine) for engine in ("fused", "reference")}
    for lm in ours.values():
        lm.allocate(max(512, 50 + tokens + 16))
    prompt = list(range(300, 350))

    def hugging_face() -> list[int]:
        how = {"max_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
        return theirs.generate(torch.tensor([prompt]), **how)[0, len(prompt) :].tolist()

    def vanilla(engine: str) -> list[int]:
        return generate(ours[engine], Vanilla(), prompt, tokens).tokens

    wanted = hugging_face()
    assert len(wanted) == tokens
    same = all(vanilla(engine) == wanted for engine in ours)
    fused = ours["fused"]
    half = fixed_set("uniform", fused.layers, 0.5)

    def passes(rows: int, skip: Any = None) -> Callable[[], None]:
        def run() -> None:
            for _ in range(tokens):
                fused.logits([5] * rows, TokenRows.chain(100, rows), skip).argmax(-1).tolist()

        return run

    calls: dict[str, Callable[[], Any]] = {
        "generate": hugging_face, "fused": lambda: vanilla("fused"),
        "reference": lambda: vanilla("reference"), "half": passes(1, half),
    }  # fmt: skip
    calls |= {f"rows {k}": passes(k) for k in (1, 2, 5, 9)}
    print(name, *fused.engine.kernels, *fused.notes(), sep="\n", file=sys.stderr)
    with torch.inference_mode():
        times = interleaved(calls, runs)
    found = {
        FULL: ratio(times, "generate", "fused"),
        "vanilla reference / generate": ratio(times, "generate", "reference"),
        "draft half skipped / full pass": ratio(times, "half", "rows 1"),
    }
    found |= {f"verify {k} rows / 1 row": ratio(times, f"rows {k}", "rows 1") for k in (2, 5, 9)}
    return found | {EQUAL: float(same), f"distinct tokens of {tokens}": float(len(set(wanted)))}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", nargs="+", default=["tiny", "12x768"], choices=["tiny", *SHAPES])
    add("--runs", type=int, default=7, help="5 or more")
    add("--tokens", type=int, default=64)
    add("--threads", type=int, default=1)
    add("--dtype", default="float32", choices=["float32", "bfloat16"])
    args = parser.parse_args()
    if args.runs < 5:
        parser.error("a median of fewer than 5 runs says little")
    torch.set_num_threads(args.threads)
    different = False
    for model in args.model:
        figures = measure(model, args.runs, args.tokens, getattr(torch, args.dtype))
        for figure, value in figures.items():
            line = {"model": model, "dtype": args.dtype, "threads": args.threads}
            line |= {"figure": figure, "value": round(value, 3)}
            print(json.dumps(line | bar(figure, model, args.dtype)), flush=True)
        different |= not figures[EQUAL]
    if args.dtype == "float32" and different:
        raise SystemExit("tokens differ from generate's: the ratios compare different work")


if __name__ == "__main__":
    main()
