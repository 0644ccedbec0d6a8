"""Peak memory of methods against vanilla at a long context, each in a process of its own.

    python scripts/peak_memory.py --context 4096 --shape 12x768

A planted model decodes --tokens tokens behind a prompt that fills the context up. On a CPU the peak
is that of the process (resident set, weights included); on a GPU torch's own count. Medians over
--runs turns. One line of JSON a method follows the table.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from skipbench.bench.latency_file import stored_latency
from skipbench.bench.load import load_model
from skipbench.bench.prompts import SCRATCH_ROWS
from skipbench.config.compose import compose
from skipbench.decode.loop import generate
from skipbench.experiments.cell import resolve_cell

METHODS = ["vanilla", "self-sd", "swift", "clasp", "knapspec"]
SETTINGS = {  # so that the searches and programmes run within a few tokens, at their full size
    "swift": ["method.window=8", "method.beta=4"],
    "clasp": ["method.interval=2"],
    "knapspec": ["method.interval=2", "method.history=1"],
}


def peak(name: str, overrides: list[str], context: int, tokens: int) -> dict[str, float]:
    """Bytes of this process after a method has decoded, before it began, and of the cache; rounds,
    and searches or programmes run.
    """
    config = compose([*overrides, f"method={name}", *SETTINGS.get(name, [])])
    lm, _ = load_model(config.model, config.engine)
    lm.allocate(context + SCRATCH_ROWS)
    method = resolve_cell(config).config.method.factory()(layers=lm.layers)
    if method.needs_latency and method.latency_model is None:
        with tempfile.TemporaryDirectory() as folder:
            method.latency_model = stored_latency(lm, Path(folder) / "latency.json")
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(10, 1000, (context - tokens,), generator=generator).tolist()
    before = _bytes(lm.output_device)
    out = generate(lm, method, prompt, tokens)
    trace = method.trace()
    # programmes of CLaSp and KnapSpec, steps of SWIFT
    searched = len(trace.get("optimised", trace.get("step", [])))
    found = {"peak": _bytes(lm.output_device), "before": before, "cache": lm.cache.bytes}
    return found | {"rounds": len(out.rounds), "searched": searched}


def _bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--shape", default="12x768")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument(
        "--runs",
        type=int,
        default=5,
        help="5 or more; the peak of a process depends on when memory is given back",
    )
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    overrides = [
        "model=planted",
        f"model.shape={args.shape}",
        f"model.dtype={args.dtype}",
        f"model.device={args.device}",
    ]
    if args.one:
        print(json.dumps(peak(args.one, overrides, args.context, args.tokens)))
        return
    if args.runs < 5:
        parser.error("a median of fewer than 5 runs says little")
    names = list(dict.fromkeys(["vanilla", *args.methods]))
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(args.runs):
        for name in names:
            command = [sys.executable, __file__, *sys.argv[1:], "--one", name]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{name}: {done.stderr}")
            found[name].append(json.loads(done.stdout.splitlines()[-1]))
    lines = []
    print(
        f"{'method':12}{'peak MiB':>10}{'before MiB':>12}"
        f"{'cache MiB':>11}{'/ vanilla':>11}{'searched':>10}"
    )
    for name, turns in found.items():
        middle = {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}
        ratio = statistics.median(
            ours["peak"] / base["peak"] for ours, base in zip(turns, found["vanilla"], strict=True)
        )
        mib = (middle[key] / 2**20 for key in ("peak", "before", "cache"))
        print(
            "{:12}{:10.0f}{:12.0f}{:11.0f}{:11.3f}{:10.0f}".format(
                name, *mib, ratio, middle["searched"]
            ),
            flush=True,
        )
        line = {
            "figure": "peak memory / vanilla",
            "shape": args.shape,
            "dtype": args.dtype,
            "context": args.context,
        }
        lines.append(line | {"method": name, "ratio": round(ratio, 3), **middle})
    for line in lines:
        print(json.dumps(line))


if __name__ == "__main__":
    main()
