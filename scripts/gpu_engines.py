"""Both engines end to end on real prompts of a planted model, by turns in one process, a line of
JSON per figure: seconds to the first token, tokens/s with all captures in the timed part, rounds
that are launched late or in turn, two requests at once, memory of graphs.

    python scripts/gpu_engines.py [--small] [--shape NAME] [--dtype float32]
"""

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from typing import Any

import torch

from scripts.gpu_passes import WORDS, Figures, engine_of, model_of, show
from skipbench.data.datasets import mini
from skipbench.decode.loop import Generation, generate, stream
from skipbench.decode.method import Method, MethodCopies
from skipbench.decode.stopping import Fixed
from skipbench.lm.model import LM
from skipbench.methods.fixed import FixedSet
from skipbench.methods.prompt_lookup import PromptLookup
from skipbench.methods.vanilla import Vanilla
from skipbench.models.load import DTYPES, make_lm
from skipbench.profile.clock import timed
from skipbench.skipset import planted_set

SPARE = 64  # cache rows for drafts
Prompts = list[list[int]]


def prompts_of(count: int, most: int | None) -> Prompts:
    """Stories as ids that the planted model knows; their lengths differ."""
    texts = [example.prompt.encode() for example in mini("mini-stories", count, 0)]
    return [[byte % WORDS for byte in text[:most]] for text in texts]


def methods_of(lm: LM) -> dict[str, Method]:
    skip = planted_set(lm.layers, 0.5, 0)
    return {
        "vanilla": Vanilla(),
        "planted": FixedSet("planted", skip, Fixed(8)),
        "tree": FixedSet("tree", skip, Fixed(4), (5, 3, 2, 1)),
        "prompt-lookup": PromptLookup(name="prompt-lookup"),
    }


def starts(model: Any, prompt: list[int], capacity: int, small: bool) -> Iterator[Any]:
    """Lines on the seconds until the first token, with kernels that are compiled, the proof of
    strict, and captures: fused and graphs, cold and warm. Then the LM on graphs.
    """
    lm: Any = None
    for engine, state in product(("fused", "cuda_graphs"), ("cold", "warm")):
        lm = None
        gc.collect()
        began, strict = time.perf_counter(), True if small and engine == "cuda_graphs" else None
        lm = make_lm(model, engine, strict)
        lm.allocate(capacity)
        generate(lm, Vanilla(), prompt, 1)
        line = {"table": "start", **engine_of(lm, engine), "from": state}
        line |= {"first token s": time.perf_counter() - began}
        line |= {"dtype": str(lm.dtype).removeprefix("torch."), "strict": lm.strict}
        yield line | lm.engine.captured()._asdict()
    yield lm


def engines(small: bool, shape: str, dtype: str) -> Figures:
    """All of it. Captures fall into the time of graphs; those of a key are made once."""
    prompts, tokens = prompts_of(*(2, 20) if small else (12, None)), 8 if small else 64
    capacity = max(map(len, prompts)) + tokens + SPARE
    *lines, lm = starts(model_of(small, shape, DTYPES[dtype]), prompts[0], capacity, small)
    yield from lines
    if lm.engine.name != "cuda_graphs":
        return
    graphs, fused = lm.engine, lm.engine.fused
    graphs.works_ahead = True  # on a CPU, too: rounds are late
    methods, outputs = methods_of(lm), dict[tuple[str, str, int], list[int]]()
    for name, method in methods.items():
        seconds = {"graphs": 0.0, "fused": 0.0}
        accepted = steps = 0
        for number, prompt in enumerate(prompts):
            arms = [("graphs", graphs), ("fused", fused)]
            for arm, engine in arms[:: -1 if number % 2 else 1]:
                lm.engine, made = engine, list[Generation]()
                seconds[arm] += timed(
                    lambda p=prompt, m=method, made=made: made.append(generate(lm, m, p, tokens)),
                    lm.output_device,
                )
                outputs[name, arm, number] = made[0].tokens
                if arm == "graphs":
                    accepted += sum(r.accepted for r in made[0].rounds)
                    steps += sum(r.steps for r in made[0].rounds)
        lm.engine = graphs
        rates = {f"{arm} tok/s": len(prompts) * tokens / s for arm, s in seconds.items()}
        yield {
            "table": "both engines, end to end", **engine_of(lm), "dtype": dtype,
            "strict": lm.strict, "method": name, **rates,
            "graphs / fused": seconds["fused"] / seconds["graphs"],
            "alpha": accepted / steps if steps else None, "texts": len(prompts),
            "as vanilla": same(outputs, (name, "graphs"), ("vanilla", "graphs"), len(prompts)),
            "as fused": same(outputs, (name, "graphs"), (name, "fused"), len(prompts)),
        }  # fmt: skip
    yield from late(lm, prompts, tokens)
    yield from two_requests(lm, prompts[:2], tokens, methods)
    held = graphs.captured()
    line = {"table": "memory", **engine_of(lm), "GiB of graphs": held.mib / 1024}
    if not small:
        free, whole = torch.cuda.mem_get_info()
        line |= {"GiB free": free / 2**30, "GiB in all": whole / 2**30}
    yield line | {"graphs": held.graphs, "captures s": held.seconds}


def same(outputs: Any, one: tuple[str, str], other: tuple[str, str], count: int) -> int:
    return sum(outputs[*one, n] == outputs[*other, n] for n in range(count))


def late(lm: LM, prompts: Prompts, tokens: int) -> Figures:
    """Vanilla's rounds, launched late and in turn, every graph captured."""
    seconds, texts, how = {True: 0.0, False: 0.0}, dict[bool, list[list[int]]](), list[str]()
    for ahead in (True, False, True, False):
        lm.engine.works_ahead, made = ahead, list[Generation]()
        for prompt in prompts:
            seconds[ahead] += timed(
                lambda p=prompt, made=made: made.append(generate(lm, Vanilla(), p, tokens)),
                lm.output_device,
            )
        texts[ahead] = [out.tokens for out in made]
        how.append(made[0].strategy)
    lm.engine.works_ahead = True
    equal = sum(a == b for a, b in zip(texts[True], texts[False], strict=True))
    us = 1e6 * (seconds[False] - seconds[True]) / (2 * len(prompts) * tokens)
    line = {"table": "late rounds", **engine_of(lm), "strategies": ", ".join(how), "us gained": us}
    yield line | {"texts": len(prompts), "equal": equal}


def two_requests(lm: LM, prompts: Prompts, tokens: int, methods: dict[str, Method]) -> Figures:
    """Two texts, round by round in turn, against each alone."""
    equal = texts = 0
    for method in methods.values():
        alone = [generate(lm, method, prompt, tokens).tokens for prompt in prompts]
        copies, found = MethodCopies(method), [list[int]() for _ in prompts]
        running = [stream(lm, copies, prompt, tokens) for prompt in prompts]
        while any(running):
            for number, one in enumerate(running):
                step = next(one, None) if one else None
                if step is None:
                    running[number] = None  # type: ignore[call-overload]  # it has ended
                else:
                    found[number] += step.tokens
        equal += sum(a == b for a, b in zip(found, alone, strict=True))
        texts += len(prompts)
    yield {"table": "two requests", **engine_of(lm), "texts": texts, "equal": equal}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--shape", default="llama3-8b")
    parser.add_argument("--dtype", default="bfloat16", choices=sorted(DTYPES))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as cold:  # no kernel that an earlier process compiled
        os.environ["TRITON_CACHE_DIR"] = cold
        show(engines(args.small, args.shape, args.dtype), args.small)


if __name__ == "__main__":
    main()
