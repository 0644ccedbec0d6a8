"""Ratios of interleaved runs: our vanilla on both engines against Hugging Face `generate`, and the cost of a round.

    python scripts/bench_engine.py --model tiny 12x768

Medians of --runs runs in turns, after one of each that is not counted; tokens are checked to be the same. One line of JSON
a figure follows the table.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from skipbench.decode.loop import generate
from skipbench.lm.model import LM
from skipbench.lm.span import Span
from skipbench.methods.vanilla import Vanilla
from skipbench.skipset import fixed_set

TINY = Path(__file__).resolve().parent.parent / "skipbench" / "models" / "tiny"
EQUAL = "tokens equal generate's"
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
    model = LlamaForCausalLM(LlamaConfig(**sizes, **shape, tie_word_embeddings=True)).eval().requires_grad_(False)
    for parameter in model.model.layers.parameters():
        # As initialised, the layers add so little that the model repeats one token, and equal tokens would prove nothing.
        parameter.mul_(4.0 if parameter.ndim > 1 else 1.0)
    return model.to(dtype)


def seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def interleaved(calls: dict[str, Callable[[], Any]], runs: int) -> dict[str, float]:
    """Median seconds of each call, all taking turns."""
    for call in calls.values():
        call()
    times = [{name: seconds(call) for name, call in calls.items()} for _ in range(runs)]
    return {name: statistics.median(t[name] for t in times) for name in calls}


def measure(name: str, runs: int, tokens: int, dtype: torch.dtype) -> dict[str, float]:
    """Ratios of one model."""
    theirs = checkpoint(name, dtype)
    theirs.generation_config.eos_token_id = theirs.config.eos_token_id = None
    ours = {engine: LM(checkpoint(name, dtype), engine) for engine in ("lean", "modules")}
    for lm in ours.values():
        lm.allocate(max(512, 50 + tokens + 16))
    prompt = list(range(300, 350))

    def hugging_face() -> list[int]:
        out = theirs.generate(torch.tensor([prompt]), max_new_tokens=tokens, do_sample=False, pad_token_id=0)
        return list(map(int, out[0, len(prompt) :]))

    def vanilla(engine: str) -> list[int]:
        return generate(ours[engine], Vanilla(), prompt, tokens).tokens

    wanted = hugging_face()
    assert len(wanted) == tokens
    same = all(vanilla(engine) == wanted for engine in ours)
    lean = ours["lean"]
    half = fixed_set("uniform", lean.layers, 0.5)

    def passes(rows: int, skip: Any = None) -> Callable[[], None]:
        def run() -> None:
            for _ in range(tokens):
                lean.logits([5] * rows, Span.chain(100, rows), skip).argmax(-1).tolist()

        return run

    calls: dict[str, Callable[[], Any]] = {"generate": hugging_face, "lean": lambda: vanilla("lean")}
    calls |= {"modules": lambda: vanilla("modules"), "half": passes(1, half)}
    calls |= {f"rows {k}": passes(k) for k in (1, 2, 5, 9)}
    with torch.inference_mode():
        s = interleaved(calls, runs)
    found = {
        "vanilla lean / generate": s["generate"] / s["lean"],
        "vanilla modules / generate": s["generate"] / s["modules"],
    }
    found["draft half skipped / full pass"] = s["half"] / s["rows 1"]
    found |= {f"verify {k} rows / 1 row": s[f"rows {k}"] / s["rows 1"] for k in (2, 5, 9)}
    return found | {EQUAL: float(same), f"distinct tokens of {tokens}": float(len(set(wanted)))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["tiny", "12x768"], choices=["tiny", *SHAPES])
    parser.add_argument("--runs", type=int, default=7, help="5 or more")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    args = parser.parse_args()
    if args.runs < 5:
        parser.error("a median of fewer than 5 runs says little")
    torch.set_num_threads(args.threads)
    figures = [
        (m, k, v) for m in args.model for k, v in measure(m, args.runs, args.tokens, getattr(torch, args.dtype)).items()
    ]
    for model, figure, value in figures:
        print(f"{model:8} {figure:32} {value:6.2f}")
    for model, figure, value in figures:
        print(json.dumps({"model": model, "dtype": args.dtype, "figure": figure, "value": round(value, 3)}))
    if args.dtype == "float32" and any(figure == EQUAL and not value for _, figure, value in figures):
        raise SystemExit("tokens differ from generate's: the ratios compare different work")


if __name__ == "__main__":
    main()
