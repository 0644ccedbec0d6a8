"""`doctor --gpu`: checks of a GPU that no test on another machine can make, on planted models. Five
minutes.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode

from skipbench.config.architecture import Shape
from skipbench.decode.loop import generate
from skipbench.decode.stopping import Fixed
from skipbench.draft_plan import DraftPlan
from skipbench.errors import NotStrictError
from skipbench.lm.engine import ENGINES, MakeEngine
from skipbench.lm.float32 import float32_logits
from skipbench.lm.model import LM
from skipbench.lm.proof import compare_rows
from skipbench.lm.rows import TokenRows
from skipbench.methods.clasp import CLaSp
from skipbench.methods.fixed import FixedSet
from skipbench.methods.vanilla import Vanilla
from skipbench.metrics.prices import Point
from skipbench.models.random_weights import planted_model
from skipbench.profile.latency import part_times
from skipbench.profile.roofline import Known, bandwidth, roofline_s_per_token
from skipbench.skipset import fixed_set

PROMPT = [5, 17, 3, 44, 9, 28, 51, 2, 13, 40, 6, 33]
WORDS = 64  # ids that planted text keeps to
TREE = (5, 3, 2, 1)


class Sizes(NamedTuple):
    """Sizes of the checks: tokens of the long prompt, tokens decoded per method, and rows of which
    strict is probed.
    """

    shape: Shape
    long: int
    tokens: int
    rows: int = 1000


ON_GPU = Sizes(Shape(8, 4096, 32, 8, 14336, 32000, 20480), 16384, 48)
ON_CPU = Sizes(Shape(2, 128, 4, 2, 128, 96, 2048), 600, 12, 40)  # shows that the checks run


def gpu_findings(device: torch.device, known: Known, sizes: Sizes = ON_GPU) -> Iterator[str]:
    """Lines that begin with `ok`, `note` or `fault`; a line that fails says why, and the next is
    made.
    """
    checks: dict[str, Callable[[torch.device, Sizes], Iterator[str]]] = {
        "attention kernels": _kernels,
        "token identity": _identity,
        "strict": _strict,
        "long prompts": _memory,
        "time per pass": partial(_time, known),
        "host reads": _reads,
    }
    for name, check in checks.items():
        yield from _tried(name, check, device, sizes)


def _tried(what: str, check: Callable[..., Iterator[str]], *given: Any) -> Iterator[str]:
    """The lines of a check, or the fault that ended it."""
    try:
        yield from check(*given)
    except Exception as error:  # whatever a driver or kernel does is the finding
        first = str(error).partition("\n")[0]
        yield f"fault    {what}: {type(error).__name__}: {first}"


def _lm(
    device: torch.device,
    sizes: Sizes,
    dtype: torch.dtype,
    engine: str | MakeEngine,
    capacity: int,
    layers: int,
    strict: bool = False,
) -> LM:
    shape = replace(sizes.shape, layers=layers)
    redundant = fixed_set("uniform", layers, 0.5) if layers > 1 else DraftPlan.of(layers)
    lm = LM(planted_model(shape, redundant, 0, dtype, str(device), WORDS), engine, strict)
    lm.allocate(capacity)
    return lm


def _draft(lm: LM, threshold: float = 0.0, widths: tuple[int, ...] = ()) -> FixedSet:
    skip = fixed_set("uniform", lm.layers, 0.5)
    return FixedSet("tree" if widths else "chain", skip, Fixed(6, threshold), widths)


class _Choices(TorchFunctionMode):
    """Counts which kernel torch chooses for every call of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.scaled_dot_product_attention:
            given = dict(zip(("query", "key", "value", "attn_mask"), args, strict=False)) | kwargs
            self.found[SDPBackend(torch._fused_sdp_choice(**given)).name.lower()] += 1
        return func(*args, **kwargs)


def _kernels(device: torch.device, sizes: Sizes) -> Iterator[str]:
    for engine, dtype in product(ENGINES, (torch.float16, torch.bfloat16, torch.float32)):
        name = f"attention, engine={engine} {str(dtype).removeprefix('torch.')}"
        yield from _tried(name, _kernels_of, name, engine, dtype, device, sizes)


@torch.inference_mode()
def _kernels_of(
    name: str, engine: str, dtype: torch.dtype, device: torch.device, sizes: Sizes
) -> Iterator[str]:
    tree = TokenRows.tree(240, (-1, *(0,) * 10))
    lm = _lm(device, sizes, dtype, engine, 512, 1)
    passes: dict[str, Callable[[], Tensor]] = {
        "prefill": partial(lm.prefill, PROMPT * 20),
        "one row": partial(lm.logits, [5], TokenRows.chain(240, 1)),
        "11 rows": partial(lm.logits, [5] * 11, TokenRows.chain(240, 11)),
        "a tree": partial(lm.logits, [5] * 11, tree),
    }
    kernels = []
    for what, run in passes.items():
        with _Choices() as choices:
            run()
        kernels.append(f"{what} {'+'.join(choices.found) or 'captured'}")
    bad = device.type == "cuda" and any("math" in t for t in kernels)
    # one query head per key head everywhere: Hugging Face's module groups float32, too
    kind = "note " if bad and engine == "reference" else "fault" if bad else "ok   "
    yield f"{kind}    {name}: {', '.join(kernels)}"


def _identity(device: torch.device, sizes: Sizes) -> Iterator[str]:
    wanted: list[int] = []  # of the first engine that works
    for engine in ENGINES:
        yield from _tried(f"engine={engine}", _identity_of, engine, wanted, device, sizes)


def _identity_of(
    engine: str, wanted: list[int], device: torch.device, sizes: Sizes
) -> Iterator[str]:
    lm = _lm(device, sizes, torch.float32, engine, 1024, sizes.shape.layers)
    clasp = CLaSp(layers=lm.layers, name="clasp", stop=Fixed(6, 0.0), interval=4)
    methods = (Vanilla(), _draft(lm, 0.05), _draft(lm, 0.0, TREE), clasp)
    tokens = {m.name: generate(lm, m, PROMPT, sizes.tokens).tokens for m in methods}
    wanted[:] = wanted or tokens["vanilla"]
    unlike = ", ".join(name for name in tokens if tokens[name] != wanted)
    reason = next((note for note in lm.notes() if "cuda_graphs" in note), "")
    other = reason and lm.engine.name != engine
    used = f"engine={engine}{f' (runs as {lm.engine.name}: {reason})' if other else ''}"
    fine = f"ok       {used}: {sizes.tokens} tokens of {', '.join(tokens)}"
    yield f"fault    {used}: other tokens than the first engine: {unlike}" if unlike else fine
    yield from (f"note     {note}" for note in lm.notes() if "left out" in note)


def _strict(device: torch.device, sizes: Sizes) -> Iterator[str]:
    for engine, dtype in product(("cuda_graphs", "fused"), (torch.bfloat16, torch.float32)):
        name = f"strict, {engine}, {str(dtype).removeprefix('torch.')}"
        yield from _tried(name, _strict_of, name, engine, dtype, device, sizes)


def _strict_of(
    name: str, engine: str, dtype: torch.dtype, device: torch.device, sizes: Sizes
) -> Iterator[str]:
    given = device, sizes, dtype, engine, 512, sizes.shape.layers
    before = compare_rows(_lm(*given), sizes.rows)
    without = f"without strict {before.differing} of {before.compared}"
    try:
        lm = _lm(*given, strict=True)
    except NotStrictError as error:
        yield f"note     {name}: refused, {error}; {without}"
        return
    found = compare_rows(lm, sizes.rows)
    worst = f" (first {found.first}, gap {found.gap:.3g})" if found.differing else ""
    differ = f"{found.differing} of {found.compared} verified rows differ from the same row alone"
    yield f"{'fault' if worst else 'ok   '}    {name}: {differ}{worst}, {without}"


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
        name += f" at {sizes.long} tokens"
        yield from _tried(name, _memory_of, name, run, limit, device)


@torch.inference_mode()
def _memory_of(
    name: str, run: Callable[[], object], limit: int | None, device: torch.device
) -> Iterator[str]:
    if device.type != "cuda":
        run()
        yield f"note     {name} ran; memory is counted on a GPU alone"
        return
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    grown = torch.cuda.max_memory_allocated(device) - before
    kind = "ok   " if limit is None or grown <= limit else "fault"
    wanted = "" if limit is None else f", wanted at most {limit / 2**20:.0f}"
    yield f"{kind}    {name}: {grown / 2**20:.0f} MiB beside{wanted}"


def _time(known: Known, device: torch.device, sizes: Sizes) -> Iterator[str]:
    for engine in ENGINES:
        yield from _tried(f"time of engine={engine}", _time_of, engine, known, device, sizes)


def _time_of(engine: str, known: Known, device: torch.device, sizes: Sizes) -> Iterator[str]:
    lm = _lm(device, sizes, torch.bfloat16, engine, 1100, sizes.shape.layers)
    rate = bandwidth(device, lm.weight_bytes, known)
    floor = roofline_s_per_token(lm, 1000, rate)
    for rows in (1, 11):
        point = Point.of(1000, rows, part_times(lm, 1000, rows, 10))
        takes = f"{rows} rows at 1000 tokens take {point.whole_s * 1e3:.2f} ms"
        least = f"the roofline at {rate / 1e9:.0f} GB/s {floor * 1e3:.2f}"
        yield f"note     engine={lm.engine.name}: {takes}, {least}"


def _reads(device: torch.device, sizes: Sizes) -> Iterator[str]:
    lm = _lm(device, sizes, torch.bfloat16, "fused", 1024, sizes.shape.layers)
    for method in (_draft(lm), _draft(lm, 0.0, TREE)):
        yield from _tried(f"host reads of a {method.name}", _reads_of, lm, method, device, sizes)


def _reads_of(lm: LM, method: FixedSet, device: torch.device, sizes: Sizes) -> Iterator[str]:
    generate(lm, method, PROMPT, sizes.tokens)
    if device.type != "cuda":
        yield f"note     host reads of a {method.name}: counted on a GPU alone"
        return
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            out = generate(lm, method, PROMPT, sizes.tokens)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits, rounds, steps = host_waits(found), len(out.rounds), sum(r.steps for r in out.rounds)
    kind = "ok   " if waits <= steps + 2 * rounds + 4 else "fault"
    yield f"{kind}    host reads of a {method.name}: {waits} in {rounds} rounds, {steps} steps"


def host_waits(found: Iterable[warnings.WarningMessage]) -> int:
    """Operations that made the host wait, by the warnings of torch's sync debug mode; the first one
    of a process comes with another warning, that the mode is a prototype.
    """
    return sum("called a synchronizing" in str(warning.message) for warning in found)
