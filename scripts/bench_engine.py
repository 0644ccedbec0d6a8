"""Ratios of interleaved runs: our vanilla on both engines against Hugging Face `generate`, and the
cost of a round.

    python scripts/bench_engine.py --model tiny 12x768
    python scripts/bench_engine.py --model tiny 12x768 --dtype bfloat16 --strict 64

Every turn runs each call once, in random order; a figure is the median over --runs turns of the
ratio within a turn, so that a machine that slows down in between moves both. The first turn is not
counted; tokens are checked to be the same. `--strict N` adds what strict mode costs, and on how
many of N prompts its outputs are vanilla's bit for bit. One line of JSON a figure, with its bar
where there is one; lines on what was chosen or is missing go to stderr.
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

from skipbench.bench.load import load_model
from skipbench.config.compose import compose
from skipbench.decode.loop import generate
from skipbench.decode.stopping import Fixed
from skipbench.draft_plan import DraftPlan
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.methods.fixed import FixedSet
from skipbench.methods.vanilla import Vanilla
from skipbench.profile.clock import timed
from skipbench.skipset import fixed_set

TINY = Path(__file__).resolve().parent.parent / "skipbench" / "models" / "tiny"
EQUAL = "tokens equal generate's"
IDENTICAL = "strict outputs identical to vanilla bit for bit"
FULL, VERIFY = "vanilla fused / generate", "verify 9 rows / 1 row"
BARS = {  # (figure, model, dtype), None for any: at least, at most
    (FULL, "tiny", None): (1.7, None),
    (FULL, "24x256", None): (1.6, None),
    (FULL, "12x768", "float32"): (1.12, None),
    (FULL, "12x768", "bfloat16"): (1.4, None),
    ("draft half skipped / full pass", None, None): (None, 0.60),
    (VERIFY, None, "bfloat16"): (None, 1.30),  # with AMX
    (VERIFY, None, "float32"): (None, 2.1),
    (IDENTICAL, None, "bfloat16"): (1.0, None),
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
    print(f"{name} kernels: {fused.engine.kernels}", *fused.notes(), sep="\n", file=sys.stderr)
    with torch.inference_mode():
        times = interleaved(calls, runs)
    found = {
        FULL: ratio(times, "generate", "fused"),
        "vanilla reference / generate": ratio(times, "generate", "reference"),
        "draft half skipped / full pass": ratio(times, "half", "rows 1"),
    }
    found |= {f"verify {k} rows / 1 row": ratio(times, f"rows {k}", "rows 1") for k in (2, 5, 9)}
    return found | {EQUAL: float(same), f"distinct tokens of {tokens}": float(len(set(wanted)))}


def strict(name: str, prompts: int, tokens: int) -> dict[str, float]:
    """Cost and identity of strict mode in bfloat16: the embedded model, or a planted one of that
    shape, half or more skipped.
    """
    chosen = ["model.dtype=bfloat16", "engine.strict=true"]
    chosen += [] if name == "tiny" else ["model=planted", f"model.shape={name}"]
    config = compose(chosen)
    lm, tokenizer = load_model(config.model, config.engine)
    print(name, *lm.notes(), sep="\n", file=sys.stderr)
    skip = fixed_set("uniform", lm.layers, 0.4)
    if name != "tiny":
        skip = DraftPlan.parse(config.model.sets["self-sd"], lm.layers)
    lm.allocate(640)
    chain = FixedSet("chain", skip, Fixed(8))
    tree = FixedSet("tree", skip, Fixed(5), (4, 3, 2, 1))
    rows = compose(["dataset=mini-stories"]).dataset.rows(prompts)
    same = 0
    for row in rows:
        ids = tokenizer(row.prompt).input_ids[:256]
        wanted = generate(lm, Vanilla(), ids, tokens).tokens
        bits = [layer[: lm.cache.length].clone() for layer in lm.cache.rows]
        same += all(
            generate(lm, method, ids, tokens).tokens == wanted
            and all(torch.equal(a[: len(b)], b) for a, b in zip(lm.cache.rows, bits, strict=True))
            for method in (chain, tree)
        )
    return {IDENTICAL: same / len(rows), "strict verify 9 rows / not strict": lm.strict_cost or 0.0}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", nargs="+", default=["tiny", "12x768"], choices=["tiny", *SHAPES])
    add("--runs", type=int, default=7, help="5 or more")
    add("--tokens", type=int, default=64)
    add("--threads", type=int, default=1)
    add("--strict", type=int, default=0, metavar="N", help="prompts to check strict mode on")
    add("--dtype", default="float32", choices=["float32", "bfloat16"])
    args = parser.parse_args()
    if args.runs < 5:
        parser.error("a median of fewer than 5 runs says little")
    torch.set_num_threads(args.threads)
    if args.strict and args.dtype != "bfloat16":
        parser.error("--strict needs --dtype bfloat16")
    different = False
    for model in args.model:
        figures = measure(model, args.runs, args.tokens, getattr(torch, args.dtype))
        if args.strict:
            figures |= strict(model, args.strict, args.tokens)
        for figure, value in figures.items():
            line = {"model": model, "dtype": args.dtype, "threads": args.threads}
            line |= {"figure": figure, "value": round(value, 3)}
            print(json.dumps(line | bar(figure, model, args.dtype)), flush=True)
        different |= not figures[EQUAL]
    if args.dtype == "float32" and different:
        raise SystemExit("tokens differ from generate's: the ratios compare different work")


if __name__ == "__main__":
    main()
