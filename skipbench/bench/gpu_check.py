"""`doctor --gpu`: checks of a GPU that no test on another machine can make. Five minutes.

Kernels of attention, token identity of the engines, memory of long prompts, time per pass against
the roofline, graphs or the reason against them, and what the host waits for. Everything runs on
planted models: nothing is downloaded.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode

from skipbench.config.architecture import Shape
from skipbench.decode.drafting import Drafter
from skipbench.decode.loop import generate
from skipbench.decode.stopping import Fixed
from skipbench.lm.engine import ENGINES
from skipbench.lm.float32 import float32_logits
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.methods.clasp import CLaSp
from skipbench.methods.fixed import FixedSet
from skipbench.methods.vanilla import Vanilla
from skipbench.metrics.costs import Point
from skipbench.models.random_weights import planted_model
from skipbench.profile.latency import part_times
from skipbench.profile.roofline import Known, roofline, row_bytes
from skipbench.skipset import SkipSet, fixed_set

PROMPT = [5, 17, 3, 44, 9, 28, 51, 2, 13, 40, 6, 33]
WORDS = 64  # ids that planted text keeps to


@dataclass(frozen=True)
class Sizes:
    """Sizes of the checks, small enough for a test or as large as the papers' models.

    Attributes:
        shape: of the models; the layers of `long` are fewer, so that only attention counts.
        long: tokens of the long prompt.
        tokens: decoded per method.
    """

    shape: Shape
    long: int
    tokens: int


ON_GPU = Sizes(Shape(8, 4096, 32, 8, 14336, 32000, 20480), 16384, 48)


def gpu_findings(device: torch.device, known: Known, sizes: Sizes = ON_GPU) -> Iterator[str]:
    """Lines that begin with `ok`, `note` or `fault`, as they are found; a check that fails says
    why, and the next one is made.
    """
    checks: list[tuple[str, Callable[[], Iterator[str]]]] = [
        ("attention kernels", lambda: _kernels(device, sizes)),
        ("token identity", lambda: _identity(device, sizes)),
        ("long prompts", lambda: _memory(device, sizes)),
        ("time per pass", lambda: _time(device, sizes, known)),
        ("host reads", lambda: _reads(device, sizes)),
    ]
    for name, check in checks:
        try:
            yield from check()
        except Exception as error:  # whatever a driver or kernel does is the finding
            first = str(error).partition("\n")[0]
            yield f"fault    {name}: {type(error).__name__}: {first}"


def _lm(
    device: torch.device, sizes: Sizes, dtype: torch.dtype, engine: str, capacity: int, layers: int
) -> LM:
    shape = replace(sizes.shape, layers=layers)
    redundant = fixed_set("uniform", layers, 0.5) if layers > 1 else SkipSet.of(layers)
    lm = LM(planted_model(shape, redundant, 0, dtype, str(device), WORDS), engine)
    lm.allocate(capacity)
    return lm


def _stop(threshold: float = 0.0) -> Any:
    return Fixed(6, threshold)


class _Choices(TorchFunctionMode):
    """Counts which kernel torch chooses for every call of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.scaled_dot_product_attention:
            given = dict(zip(("query", "key", "value", "attn_mask"), args, strict=False)) | kwargs
            chosen = torch._fused_sdp_choice(**given)
            self.found[SDPBackend(chosen).name.lower()] += 1
        return func(*args, **kwargs)


@torch.inference_mode()
def _kernels(device: torch.device, sizes: Sizes) -> Iterator[str]:
    for engine in ENGINES:
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            lm = _lm(device, sizes, dtype, engine, 512, 1)
            tree = TokenRows.tree(240, (-1, *(0,) * 10))
            passes: dict[str, Callable[[], Tensor]] = {
                "prefill": partial(lm.prefill, PROMPT * 20),
                "one row": partial(lm.logits, [5], TokenRows.chain(240, 1)),
                "11 rows": partial(lm.logits, [5] * 11, TokenRows.chain(240, 11)),
                "a tree": partial(lm.logits, [5] * 11, tree),
            }
            told = []
            for name, run in passes.items():
                with _Choices() as choices:
                    run()
                told.append(f"{name} {'+'.join(choices.found) or 'captured'}")
            bad = device.type == "cuda" and any("math" in t for t in told)
            # one query head per key head everywhere: Hugging Face's module groups float32, too
            kind = "note " if bad and engine == "reference" else "fault" if bad else "ok   "
            name = str(dtype).removeprefix("torch.")
            yield f"{kind}    attention, engine={engine} {name}: {', '.join(told)}"


def _identity(device: torch.device, sizes: Sizes) -> Iterator[str]:
    wanted: list[int] | None = None
    for engine in ENGINES:
        lm = _lm(device, sizes, torch.float32, engine, 1024, sizes.shape.layers)
        skip = fixed_set("uniform", lm.layers, 0.5)
        methods: dict[str, Any] = {
            "vanilla": Vanilla(),
            "chain": FixedSet("chain", skip, Drafter(_stop(0.05))),
            "tree": FixedSet("tree", skip, Drafter(_stop(), (5, 3, 2, 1))),
            "clasp": CLaSp(layers=lm.layers, name="clasp", stop=_stop(), interval=4),
        }
        unlike = []
        for name, method in methods.items():
            tokens = generate(lm, method, PROMPT, sizes.tokens).tokens
            wanted = tokens if wanted is None else wanted
            unlike += [name] if tokens != wanted else []
        used = lm.engine.name
        notes = [note for note in lm.notes() if "cuda_graphs" in note]
        said = f" (runs as {used}: {notes[0]})" if used != engine and notes else ""
        if unlike:
            parted = ", ".join(unlike)
            yield f"fault    engine={engine}{said}: other tokens than reference: {parted}"
        else:
            yield f"ok       engine={engine}{said}: {sizes.tokens} tokens of {', '.join(methods)}"
        for note in lm.notes():
            if "left out" in note:
                yield f"note     {note}"


@torch.inference_mode()
def _memory(device: torch.device, sizes: Sizes) -> Iterator[str]:
    lm = _lm(device, sizes, torch.bfloat16, "fused", sizes.long + 64, 2)
    tokens = (PROMPT * (sizes.long // len(PROMPT) + 1))[: sizes.long]
    read = 2 * 2 * sizes.long * lm.cache.kv_heads * lm.cache.head_dim
    verify = partial(lm.logits, [5] * 11, TokenRows.chain(sizes.long, 11))
    passes: list[tuple[str, Callable[[], object], int | None]] = [
        ("prefill", partial(lm.prefill, tokens), None),
        ("verification of 11 rows", verify, 2 * read),
        ("the float32 check of ties", partial(float32_logits, lm.model, tokens), 2**31),
    ]
    for name, run, limit in passes:
        if device.type != "cuda":
            run()
            yield f"note     {name} at {sizes.long} tokens ran; memory is counted on a GPU alone"
            continue
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        grown = torch.cuda.max_memory_allocated(device) - before
        kind = "ok   " if limit is None or grown <= limit else "fault"
        wanted = "" if limit is None else f", wanted at most {limit / 2**20:.0f}"
        yield f"{kind}    {name} at {sizes.long} tokens: {grown / 2**20:.0f} MiB beside{wanted}"


def _time(device: torch.device, sizes: Sizes, known: Known) -> Iterator[str]:
    for engine in ENGINES:
        lm = _lm(device, sizes, torch.bfloat16, engine, 1100, sizes.shape.layers)
        rates = roofline(device, lm.dtype, lm.weight_bytes(), known)
        floor = (lm.weight_bytes() + 1000 * row_bytes(lm)) / rates.bandwidth
        for rows in (1, 11):
            point = Point.of(1000, rows, part_times(lm, 1000, rows, 10))
            yield (
                f"note     engine={lm.engine.name}: {rows} rows at 1000 tokens take "
                f"{point.whole_s * 1e3:.2f} ms, the roofline ({rates.source}) {floor * 1e3:.2f}"
            )


def _reads(device: torch.device, sizes: Sizes) -> Iterator[str]:
    lm = _lm(device, sizes, torch.bfloat16, "fused", 1024, sizes.shape.layers)
    skip = fixed_set("uniform", lm.layers, 0.5)
    for name, widths in (("chain", ()), ("tree", (5, 3, 2, 1))):
        method = FixedSet(name, skip, Drafter(_stop(), widths))
        generate(lm, method, PROMPT, sizes.tokens)
        if device.type != "cuda":
            yield f"note     host reads of a {name}: counted on a GPU alone"
            continue
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                out = generate(lm, method, PROMPT, sizes.tokens)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        waits = sum("synchroniz" in str(w.message) for w in found)
        rounds, steps = len(out.rounds), sum(r.steps for r in out.rounds)
        kind = "ok   " if waits <= steps + 2 * rounds + 4 else "fault"
        yield f"{kind}    host reads of a {name}: {waits} in {rounds} rounds, {steps} steps"
