"""The bars of the GPU engine, measured with one command; every line of JSON is one figure with its
bar.

    python scripts/bench_gpu.py               a GPU: planted Llama-3-8B shape, bf16, 2k context
    python scripts/bench_gpu.py --device cpu --shape 6x128 --dtype float32 --context 64 --words 500
                                              proves that the script runs; no figure means a GPU

The model is planted: half of its sub-layers are redundant and known. Medians of --runs runs that
take turns, after one of each that is not counted. On a CPU graphs are re-executed, not captured,
and no bar is judged.
"""

import argparse
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch

from scripts.gpu_bars import BARS, HALF, IDENTITY, NEAR, VERIFY
from skipbench.config.architecture import Shape
from skipbench.config.catalog import known_hardware, shape_of
from skipbench.decode.loop import Generation, generate
from skipbench.decode.lossless import compare
from skipbench.decode.stopping import Fixed
from skipbench.draft_plan import DraftPlan
from skipbench.lm.engines import EAGER_GRAPHS
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.methods.fixed import FixedSet
from skipbench.methods.vanilla import Vanilla
from skipbench.metrics.formulas import expected_speedup
from skipbench.models.load import DTYPES
from skipbench.models.random_weights import planted_model
from skipbench.profile import roofline
from skipbench.profile.clock import timed
from skipbench.skipset import fixed_set, planted_set

K = 8
SETS = 16


class Figure(NamedTuple):
    """A figure by its name, with its own bar where `BARS` has none."""

    name: str
    value: float | None
    note: str = ""
    bar: float | None = None


Figures = Iterator[Figure]


def interleaved(lm: LM, calls: dict[str, Callable[[], object]], runs: int) -> dict[str, float]:
    """Median seconds of each call, all taking turns, the first of which is not counted."""
    device = lm.output_device
    turns = [{k: timed(call, device) for k, call in calls.items()} for _ in range(runs + 1)]
    return {name: statistics.median(turn[name] for turn in turns[1:]) for name in calls}


def decode_seconds(out: Generation) -> float:
    return sum(out.seconds.values()) - out.seconds["prefill"]


def byte_share(shape: Shape, context: int, skip: DraftPlan) -> float:
    """Share of the bytes of a step at `context` tokens, weights and K/V, that a draft without
    `skip` still reads: no engine can cost less.
    """
    kv_cache = 2 * context * shape.kv_heads * shape.width
    attention = 2 * shape.hidden * shape.width * (shape.heads + shape.kv_heads) + kv_cache
    mlp, head = 3 * shape.hidden * shape.intermediate, shape.hidden * shape.vocab
    left_out = len(skip.attention) * attention + len(skip.mlp) * mlp
    return 1 - left_out / (shape.layers * (attention + mlp) + head)


def draft_bar(args: argparse.Namespace) -> float:
    """Most that a draft of half the sub-layers may cost, in full steps."""
    shape = shape_of(args.shape)
    return byte_share(shape, args.context, planted_set(shape.layers, 0.5, args.seed)) + HALF


def bandwidths(lm: LM, args: argparse.Namespace) -> dict[str, float]:
    """Bytes/s by what they are of; the first is that of the bar."""
    if args.bandwidth:
        return {"given": args.bandwidth * 1e9}
    device = lm.output_device
    if device.type != "cuda":
        return {"read": roofline.read_bandwidth(device, lm.weight_bytes)}
    known, rates = known_hardware(), roofline.memory_rates(device)
    bytes_per_s = {"copy": rates.copy, "read": rates.read}
    name = roofline.match(roofline.device_name(device), known)
    sheet = known[name].bandwidth if name is not None else None
    return bytes_per_s | ({"datasheet": sheet} if sheet else {})


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
    rates = bandwidths(lm, args)
    read = lm.weight_bytes + context * roofline.row_bytes(lm)
    floors = {k: read / rate / s["full"] for k, rate in rates.items()}
    shares = [f"{floors[k]:.3f} of {k} ({rates[k] / 1e9:.0f} GB/s)" for k in rates]
    note = f"{1e3 * s['full']:.3f} ms per token: {', '.join(shares)}"
    yield Figure("vanilla / bandwidth roofline", next(iter(floors.values())), note)
    bar = draft_bar(args)
    note = f"of the bytes {bar - HALF:.4f}"
    yield Figure("draft half skipped / full step", s["half"] / s["full"], note, bar)
    yield Figure("verify 9 rows / 1 row", s["9 rows"] / s["full"])
    note = f"{SETS} sets, {each} steps of each: in turns, or in one stretch each"
    yield Figure("cost of a new skip set, us", 1e6 * change, note)
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
    bar = NEAR * expected_speedup(emitted, alpha, draft_bar(args), VERIFY)
    yield Figure("alpha of the planted set, K=8", alpha, f"{len(rounds)} rounds, M {emitted:.2f}")
    yield Figure("speedup of the planted set, K=8", speedup, "", bar)
    share = speedup / predicted if predicted else None
    yield Figure("measured / predicted speedup", share, f"predicted {predicted:.3f}")


def allocations(
    decode: Callable[[], int], seconds: float, stats: Callable[[], dict[str, Any]]
) -> tuple[int, int, int]:
    """Tokens decoded within `seconds`, at least one text, and by how much the driver's allocations
    and the reserved bytes grew meanwhile. Before that come two texts: captures of the first empty
    the allocator, and the prompt of the second allocates anew.
    """
    decode()
    decode()
    before, until, tokens = stats(), time.monotonic() + seconds, 0
    while not tokens or time.monotonic() < until:
        tokens += decode()
    after = stats()
    counted = ("num_device_alloc", "reserved_bytes.all.current")
    grown = [int(after.get(key, 0)) - int(before.get(key, 0)) for key in counted]
    return tokens, grown[0], grown[1]


def memory_figures(lm: LM, args: argparse.Namespace) -> Figures:
    """Allocations that the driver saw while decoding, once every length has been met."""
    prompt = [7 * i % args.words for i in range(args.context)]
    method = FixedSet("planted", planted_set(lm.layers, 0.5, args.seed), Fixed(K))
    cuda = lm.output_device.type == "cuda"
    tokens, made, grown = allocations(
        lambda: len(generate(lm, method, prompt, args.long).tokens),
        60 * args.minutes,
        partial(torch.cuda.memory_stats, lm.output_device) if cuda else dict,
    )
    counted = f"reserved memory grew by {grown} bytes" if cuda else "only a GPU counts allocations"
    note = f"{tokens} tokens in {args.minutes} minutes; {counted}"
    yield Figure("device allocations in a long decode", float(made) if cuda else None, note)


def identity(fused: LM, prompt: list[int], wanted: list[int], given: list[int]) -> Figure:
    """A text of graphs beside that of fused over the same weights, judged as outputs of a run are:
    up to the first tie they are equal.
    """
    found = compare(fused, prompt, wanted, given)
    same = len(given) if found.position is None else found.position
    note = f"{same} of {len(given)} before they part, {len(set(given))} distinct"
    if found.gap is not None:
        note += f"; {found.kind}, logits {found.gap:.3g} apart"
    equal = found.kind in ("identical", "tie")
    return Figure(IDENTITY, 1.0 if equal else same / len(given), note)


def identity_figures(lm: LM, args: argparse.Namespace, fused: LM) -> Figures:
    prompt = [7 * i % args.words for i in range(args.context)]
    theirs, ours = (generate(m, Vanilla(), prompt, args.tokens).tokens for m in (fused, lm))
    yield identity(fused, prompt, theirs, ours)


def make(args: argparse.Namespace) -> tuple[LM, LM]:
    """The planted model under graphs, and under fused, with one set of weights."""
    shape = shape_of(args.shape)
    skip = planted_set(shape.layers, 0.5, args.seed)
    model = planted_model(shape, skip, args.seed, DTYPES[args.dtype], args.device, args.words)
    lm = LM(model, "cuda_graphs")
    fused = LM(model, "fused")
    for m in (lm, fused):
        m.allocate(args.context + max(args.tokens, args.long) + 2 * K)
    return lm, fused


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add("--device", default="cuda:0")
    add("--shape", default="llama3-8b", help="a model of conf/model, or LAYERSxHIDDEN")
    add("--dtype", default="bfloat16", choices=sorted(DTYPES))
    add("--context", type=int, default=2048)
    add("--tokens", type=int, default=128, help="steps of a timed run")
    add("--long", type=int, default=1024, help="tokens of one text of the long decode")
    add("--minutes", type=float, default=1.0, help="of the long decode")
    add("--runs", type=int, default=5)
    add("--words", type=int, default=4096, help="ids that text is made of")
    add("--bandwidth", type=float, default=0.0, help="GB/s of the roofline; 0 measures it")
    add("--seed", type=int, default=0)
    return made


def main(words: list[str] | None = None) -> None:
    args = parser().parse_args(words)
    on_gpu = args.device != "cpu"
    if on_gpu and not torch.cuda.is_available():
        parser().error("no CUDA device is at hand; --help says how a CPU runs this")
    if not on_gpu:
        os.environ[EAGER_GRAPHS] = "1"
        torch.set_num_threads(1)  # on a busy machine two threads can stall one another
    lm, fused = make(args)
    name = torch.cuda.get_device_name(args.device) if on_gpu else "cpu, re-executed: no figure"
    origin = {k: getattr(args, k) for k in ("shape", "dtype", "context", "runs")}
    used = lm.engine.name
    origin |= {"torch": torch.__version__, "device": name, "engine": used, "notes": lm.notes()}
    origin |= {"engine_asked": "cuda_graphs"} if used != "cuda_graphs" else {}
    figures = step_figures(lm, args), decode_figures(lm, args), identity_figures(lm, args, fused)
    for name, value, note, own in itertools.chain(*figures, memory_figures(lm, args)):
        sign, bar, _ = BARS[name]
        bar = own if own is not None else bar
        met = None
        if value is not None and bar is not None and on_gpu:
            met = value >= bar if sign == ">=" else value <= bar
        line: dict[str, object] = {"figure": name, "value": value and round(value, 4)}
        line |= {"bar": None if bar is None else f"{sign} {bar:.4g}", "met": met}
        print(json.dumps(line | ({"note": note} if note else {}) | origin), flush=True)


if __name__ == "__main__":
    main()
