"""The bars of the GPU engine, measured with one command; every line of JSON is one figure with its
bar.

    python scripts/bench_gpu.py                                          a GPU: planted Llama-3-8B
    shape, bf16, 2k context python scripts/bench_gpu.py --device cpu --shape 6x128 --dtype float32
    --context 64 --words 500
                                                                         proves that the script
                                                                         runs; no figure means a GPU

The model is planted: half of its sub-layers are redundant and known. Medians of --runs runs that
take turns, after one of each that is not counted. On a CPU graphs are re-executed, not captured,
and no bar is judged.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from skipbench.config.catalog import shape_of
from skipbench.decode.loop import Generation, generate
from skipbench.decode.stopping import Fixed
from skipbench.lm.cuda_graphs.capture import EagerCapture
from skipbench.lm.cuda_graphs.engine import CudaGraphsEngine
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.methods.fixed import FixedSet
from skipbench.methods.vanilla import Vanilla
from skipbench.metrics.formulas import expected_speedup
from skipbench.models.load import DTYPES
from skipbench.models.random_weights import planted_model
from skipbench.profile.roofline import read_bandwidth, roofline_s_per_token
from skipbench.skipset import SkipSet, fixed_set, planted_set

# judged in float32: in half precision a near-tie makes texts part
IDENTITY = "graphs tokens equal fused's"
BARS = {  # figure: whether at least or at most, and the bar on a GPU of the A100 class or better
    "vanilla / bandwidth roofline": (">=", 0.85),
    "draft half skipped / full step": ("<=", 0.53),
    "verify 9 rows / 1 row": ("<=", 1.08),
    "measured / predicted speedup": (">=", 0.95),
    "alpha of the planted set, K=8": (">=", 0.95),
    "speedup of the planted set, K=8": (">=", 1.65),
    "cost of a new skip set, us": ("<=", 50.0),
    "device allocations in a long decode": ("<=", 0.0),
    IDENTITY: (">=", 1.0),
}
K = 8
SETS = 16
Figures = Iterator[tuple[str, float | None, str]]


def wait(lm: LM) -> None:
    if lm.output_device.type == "cuda":
        torch.cuda.synchronize(lm.output_device)


def interleaved(lm: LM, calls: dict[str, Callable[[], object]], runs: int) -> dict[str, float]:
    """Median seconds of each call, all taking turns; the device has finished before and behind
    each.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for run in range(runs + 1):
        for name, call in calls.items():
            wait(lm)
            began = time.perf_counter()
            call()
            wait(lm)
            if run:
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(t) for name, t in times.items()}


def decode_seconds(out: Generation) -> float:
    return sum(out.seconds.values()) - out.seconds["prefill"]


def weight_share(args: argparse.Namespace, skip: SkipSet) -> float:
    """Share of the weights read by a step that a draft without `skip` still reads: no engine can
    cost less.
    """
    shape = shape_of(args.shape)
    attention = 2 * shape.hidden * shape.width * (shape.heads + shape.kv_heads)
    mlp, head = 3 * shape.hidden * shape.intermediate, shape.hidden * shape.vocab
    left_out = len(skip.attention) * attention + len(skip.mlp) * mlp
    return 1 - left_out / (shape.layers * (attention + mlp) + head)


@torch.inference_mode()
def step_figures(lm: LM, args: argparse.Namespace) -> Figures:
    """Costs of passes at one context: nothing between them but the choice of the next token, which
    stays on the device.
    """
    context, half = args.context, planted_set(lm.layers, 0.5, args.seed)
    lm.prefill([7 * i % args.words for i in range(context)])
    others = [fixed_set("random", lm.layers, 0.5, seed) for seed in range(SETS)]
    each = -(-args.tokens // SETS)

    def steps(rows: int, sets: list[Any], count: int) -> Callable[[], None]:
        def run() -> None:
            token = torch.tensor([5] * rows, device=lm.input_device)
            for _, skip in zip(range(count), itertools.cycle(sets), strict=False):
                token = lm.logits(token, TokenRows.chain(context, rows), skip).argmax(-1)

        return run

    calls: dict[str, Callable[[], object]] = {
        "full": steps(1, [None], args.tokens), "half": steps(1, [half], args.tokens),
        "9 rows": steps(K + 1, [None], args.tokens),
        "few changes": steps(1, [skip for skip in others for _ in range(each)], each * SETS),
        "a change a step": steps(1, others, each * SETS),
    }  # fmt: skip
    total = interleaved(lm, calls, args.runs)
    s = {name: total[name] / args.tokens for name in ("full", "half", "9 rows")}
    change = (total["a change a step"] - total["few changes"]) / max(1, (each - 1) * SETS)
    bandwidth = (
        args.bandwidth * 1e9
        if args.bandwidth
        else read_bandwidth(lm.output_device, lm.weight_bytes())
    )
    floor = roofline_s_per_token(lm, context, bandwidth)
    whose = "given" if args.bandwidth else "measured by reading"
    note = (
        f"{1e3 * s['full']:.3f} ms per token, {1e3 * floor:.3f} ms at {bandwidth / 1e9:.0f} "
        f"GB/s, {whose}"
    )
    yield "vanilla / bandwidth roofline", floor / s["full"], note
    yield (
        "draft half skipped / full step",
        s["half"] / s["full"],
        f"by the bytes of its weights {weight_share(args, half):.4f}",
    )
    yield "verify 9 rows / 1 row", s["9 rows"] / s["full"], ""
    note = f"{SETS} sets, {each} steps of each: in turns, or in one stretch each"
    yield "cost of a new skip set, us", 1e6 * change, note
    args.costs = s["half"] / s["full"], s["9 rows"] / s["full"]


def decode_figures(lm: LM, args: argparse.Namespace) -> Figures:
    """Speedup of the planted set with K tokens per draft, and what the costs of the passes
    predict.
    """
    prompt = [7 * i % args.words for i in range(args.context)]
    method = FixedSet("planted", planted_set(lm.layers, 0.5, args.seed), Fixed(K))
    seconds: dict[str, list[float]] = {"vanilla": [], "planted": []}
    for run in range(args.runs + 1):
        for name, arm in (("vanilla", Vanilla()), ("planted", method)):
            out = generate(lm, arm, prompt, args.tokens)
            if run:
                seconds[name].append(decode_seconds(out))
    rounds = out.rounds
    alpha = sum(r.accepted for r in rounds) / max(1, sum(r.steps for r in rounds))
    emitted = sum(r.emitted for r in rounds) / len(rounds)
    speedup = statistics.median(seconds["vanilla"]) / statistics.median(seconds["planted"])
    draft, verify = args.costs
    predicted = expected_speedup(emitted, alpha, draft, verify)
    yield "alpha of the planted set, K=8", alpha, f"{len(rounds)} rounds, M {emitted:.2f}"
    yield "speedup of the planted set, K=8", speedup, ""
    yield (
        "measured / predicted speedup",
        speedup / predicted if predicted else None,
        f"predicted {predicted:.3f}",
    )


def memory_figures(lm: LM, args: argparse.Namespace) -> Figures:
    """Allocations that the driver saw while decoding, once every length has been met."""
    prompt = [7 * i % args.words for i in range(args.context)]
    method = FixedSet("planted", planted_set(lm.layers, 0.5, args.seed), Fixed(K))
    cuda, decoded, until = lm.output_device.type == "cuda", 0, 0.0
    for minutes in (0.0, args.minutes):  # the first time records what is missing
        before = torch.cuda.memory_stats(lm.output_device) if cuda else {}
        until, decoded = time.monotonic() + 60 * minutes, 0
        while not decoded or time.monotonic() < until:
            decoded += len(generate(lm, method, prompt, args.long).tokens)
    value, note = None, f"{decoded} tokens in {args.minutes} minutes; only a GPU counts allocations"
    if cuda:
        after = torch.cuda.memory_stats(lm.output_device)
        value = float(after["num_device_alloc"] - before["num_device_alloc"])
        grown = after["reserved_bytes.all.current"] - before["reserved_bytes.all.current"]
        note = f"{decoded} tokens in {args.minutes} minutes; reserved memory grew by {grown} bytes"
    yield "device allocations in a long decode", value, note


def identity_figures(lm: LM, args: argparse.Namespace, fused: LM) -> Figures:
    """One text of graphs against fused's over the same weights; in half precision one near-tie
    makes the texts part.
    """
    prompt = [7 * i % args.words for i in range(args.context)]
    ours, theirs = (generate(m, Vanilla(), prompt, args.tokens).tokens for m in (lm, fused))
    same = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b), len(ours))
    yield (
        IDENTITY,
        same / len(ours),
        f"{same} of {len(ours)} before they part, {len(set(ours))} distinct",
    )


def make(args: argparse.Namespace) -> tuple[LM, LM]:
    """The planted model under graphs, and under fused, with one set of weights."""
    shape = shape_of(args.shape)
    skip = planted_set(shape.layers, 0.5, args.seed)
    model = planted_model(shape, skip, args.seed, DTYPES[args.dtype], args.device, args.words)
    lm = LM(
        model,
        partial(CudaGraphsEngine, capture=EagerCapture) if args.device == "cpu" else "cuda_graphs",
    )
    fused = LM(model, "fused")
    for m in (lm, fused):
        m.allocate(args.context + max(args.tokens, args.long) + 2 * K)
    return lm, fused


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument(
        "--shape", default="llama3-8b", help="a model of conf/model, or LAYERSxHIDDEN"
    )
    parser.add_argument("--dtype", default="bfloat16", choices=sorted(DTYPES))
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=128, help="steps of a timed run")
    parser.add_argument(
        "--long", type=int, default=1024, help="tokens of one text of the long decode"
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="of the long decode")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--words", type=int, default=4096, help="ids that text is made of")
    parser.add_argument(
        "--bandwidth", type=float, default=0.0, help="GB/s of the roofline; 0 measures it"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(words)
    on_gpu = args.device != "cpu"
    if on_gpu and not torch.cuda.is_available():
        parser.error(
            "no CUDA device is at hand; see above for a run on the CPU, which proves no figure"
        )
    if not on_gpu:
        torch.set_num_threads(1)  # on a busy machine two threads can stall one another
    lm, fused = make(args)
    origin = {k: getattr(args, k) for k in ("shape", "dtype", "context", "runs")} | {
        "torch": torch.__version__
    }
    origin["device"] = (
        torch.cuda.get_device_name(args.device)
        if on_gpu
        else "cpu, re-executed: says nothing of a GPU"
    )
    origin |= {"engine": lm.engine.name, "notes": lm.notes()}
    figures = (
        step_figures(lm, args),
        decode_figures(lm, args),
        identity_figures(lm, args, fused),
        memory_figures(lm, args),
    )
    for figure, value, note in itertools.chain.from_iterable(figures):
        sign, bar = BARS[figure]
        judged = on_gpu and (args.dtype == "float32" or figure != IDENTITY)
        met = (
            None
            if value is None or not judged
            else (value >= bar if sign == ">=" else value <= bar)
        )
        found = {
            "figure": figure,
            "value": None if value is None else round(value, 4),
            "bar": f"{sign} {bar}",
            "met": met,
        }
        print(json.dumps(found | ({"note": note} if note else {}) | origin), flush=True)


if __name__ == "__main__":
    main()
