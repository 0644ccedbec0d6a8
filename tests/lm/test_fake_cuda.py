"""The CUDA code path on FakeTensors: devices, host reads, copies, captures and attention kernels of
every method and engine, counted on a machine without CUDA.
"""

import itertools
from functools import partial
from typing import Any

import msgspec
import pytest
import torch
import transformers
from conftest import (
    ANYWHERE,
    EVERY_ENGINE,
    composed_method,
    here,
    make_method,
    random_model,
    rest_slow,
    settings_of,
)
from fake_cuda import (
    Journal,
    PhaseClock,
    fake_cuda,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaForCausalLM

from skipbench.decode.loop import Generation, generate
from skipbench.decode.sampling import Sampler
from skipbench.lm.cuda_graphs.capture import CudaGraphCapture, EagerCapture
from skipbench.lm.cuda_graphs.engine import CudaGraphsEngine
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.metrics.prices import Prices

pytestmark = pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
FAULTS = ("device", "capture", "kernel", "pageable")
TREE = "method.tree=[4,3,2,1]"
MECHANISMS = here(
    [  # every day; all methods in the slow tier
        ("uniform", "greedy", "fused", "fp32"),
        ("uniform", "sampling", "fused", "bf16"),
        ("swift", "tree", "fused", "bf16"),
        ("uniform", "greedy", "reference", "bf16"),
        ("clasp", "greedy", "cuda_graphs", "fp32"),
        ("uniform", "int8", "cuda_graphs", "bf16"),
    ]
)
VARIANTS: dict[str, tuple[str, ...]] = {
    "greedy": (),
    "sampling": (),
    "tree": (TREE,),
    "threshold": ("method.stop.threshold=0.3",),
    "sampled tree": (TREE,),
    "int8": ("method.precision=int8",),
    "int8 tree": ("method.precision=int8", TREE),
}
OWN_STATES = ("layerskip", "del")  # whose verification continues from the draft's states


def has(method: str, variant: str) -> bool:
    keys = settings_of(method)
    if variant.startswith("int8") and (method in OWN_STATES or "precision" not in keys):
        return False
    return ("tree" not in variant or "tree" in keys) and (variant != "threshold" or "stop" in keys)


def overrides_of(method: str, variant: str) -> tuple[str, ...]:
    own = ("method.share=false",) if method == "layerskip" and "tree" in variant else ()
    return (*VARIANTS[variant], *own)


PRODUCT = here(
    (m, v, e, d)
    for m, v, e, d in itertools.product(ANYWHERE, VARIANTS, EVERY_ENGINE, DTYPES)
    if has(m, v) and not (e == "reference" and v.startswith("int8"))
)


def fake_lm(
    engine: str,
    dtype: torch.dtype,
    config: Any = None,
    capacity: int = 300,
    capture: Any = CudaGraphCapture,
) -> LM:
    """The random model on a device that is not there; inside `fake_cuda`."""
    torch.set_default_dtype(dtype)
    try:
        with torch.device("cuda"):
            model = random_model("llama") if config is None else LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(torch.float32)
    make: Any = engine
    if engine == "cuda_graphs":  # its self-test compares numbers, which are not there
        blind = type("Blind", (CudaGraphsEngine,), {"self_test": lambda *_: None})
        make = partial(blind, capture=capture)
    lm = LM(model, make)
    lm.allocate(capacity)
    return lm


def decoded(
    method: str, variant: str, engine: str, dtype: str, tokens: int = 8
) -> tuple[Generation, Journal]:
    """One generation, and what the host did meanwhile; in one before, graphs are captured and
    products in fewer bits are tried.
    """
    composed_method(
        method, *overrides_of(method, variant)
    )  # composed outside, where nothing is watched
    with fake_cuda() as journal:
        made: Any = make_method(method, *overrides_of(method, variant))
        if method == "knapspec":  # its latencies are given, and have no 8 bits
            parts = made.given_prices.model
            parts = msgspec.structs.replace(parts, variants={"int8": parts})
            made.given_prices = Prices(model=parts)
        sampler = Sampler(0.8 if "sampl" in variant else 0.0, top_p=0.9)
        lm = fake_lm(engine, DTYPES[dtype])
        if engine == "cuda_graphs" or "int8" in variant:
            generate(lm, made, PROMPT, tokens, sampler=sampler)
        journal.mark("")
        assert not (wrong := journal.lines("device", "capture", "kernel")), "\n".join(wrong)
        journal.clear()
        clock: Any = PhaseClock(journal)
        return generate(lm, made, PROMPT, tokens, sampler=sampler, clock=clock), journal


def excess(out: Generation, journal: Journal, variant: str) -> list[str]:
    """What the host did that it must not do, or more often than it may."""
    found = journal.lines(*FAULTS)
    rounds, steps = len(out.rounds), sum(r.steps for r in out.rounds)
    fetches = 2 * steps if variant == "sampled tree" else rounds
    # One transfer of the tokens per round, and one event per confidence; in verification one
    # transfer, and under sampling two more, of the chances and of the bonus; of a tree one more per
    # node whose first child is rejected: those that are accepted, and the one behind them.
    tree = any(how.tree for _, how in out.verified)
    verified = 3 * rounds + (sum(r.accepted + 1 for r in out.rounds) if tree else 0)
    if journal.count("draft", "read") > fetches or journal.count("draft", "wait") > steps:
        found += journal.lines("read", "wait")
    if journal.count("verify", "read", "wait") > (verified if "sampl" in variant else rounds):
        found += journal.lines("read", "wait")
    if journal.count("other", "read", "wait"):
        found += journal.lines("read", "wait")
    return found


@pytest.mark.parametrize(
    ("method", "variant", "engine", "dtype"), rest_slow(PRODUCT, MECHANISMS.__contains__)
)
def test_the_host_reads_little_and_nothing_is_in_a_wrong_place(
    method: str, variant: str, engine: str, dtype: str
) -> None:
    assert not excess(*decoded(method, variant, engine, dtype), variant)


@pytest.mark.parametrize("engine", ["fused", "cuda_graphs"])
def test_the_host_reads_a_greedy_chain_once_a_round(engine: str) -> None:
    out, journal = decoded("uniform", "greedy", engine, "bf16")
    assert sum(r.steps for r in out.rounds) > 0 == journal.count("draft", "read", "wait")
    assert journal.count("verify", "read", "wait") == len(out.rounds)


class Allocated(TorchDispatchMode):
    """Bytes of the storages that operators made while this is on."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {
            t.untyped_storage()._cdata
            for t in tree_leaves((args, kwargs))
            if isinstance(t, torch.Tensor)
        }
        out = func(*args, **(kwargs or {}))
        for made in tree_leaves(out):
            if isinstance(made, torch.Tensor) and made.untyped_storage()._cdata not in given:
                self.bytes += made.untyped_storage().nbytes()
        return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("engine", EVERY_ENGINE)
@pytest.mark.parametrize(
    "rows", [TokenRows.chain(8192, 11), TokenRows.tree(8192, (-1,) + 10 * (0,))]
)
@pytest.mark.slow
def test_verification_allocates_little(rows: TokenRows, engine: str, dtype: str) -> None:
    """One layer's attention of 11 rows at 8,192 tokens, with Llama-3.1-8B's heads, allocates at
    most twice the keys and values that it reads; the reference engine runs Hugging Face's module,
    which repeats the heads.
    """
    config = transformers.LlamaConfig(
        hidden_size=4096, intermediate_size=64, num_hidden_layers=1, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=64, max_position_embeddings=8704,
    )  # fmt: skip
    with fake_cuda() as journal:
        lm = fake_lm(engine, DTYPES[dtype], config=config, capacity=8704, capture=EagerCapture)
        metadata = lm.metadata(rows).on(torch.device("cuda", 0))
        hidden = torch.empty(11, 4096, dtype=DTYPES[dtype], device="cuda")
        lm.engine.sublayers[0](hidden, metadata)  # graphs are captured
        journal.clear()
        with Allocated() as seen:
            lm.engine.sublayers[0](hidden, lm.metadata(rows).on(torch.device("cuda", 0)))
        journal.mark("")
    read = 2 * 8203 * 8 * 128 * DTYPES[dtype].itemsize
    assert not journal.lines("kernel", "device")
    assert seen.bytes <= (10 if engine == "reference" else 2) * read, seen.bytes / read


@pytest.mark.parametrize(  # capacities whose rows of the band are aligned, and not
    ("capacity", "kv_heads", "dtype"),
    [(296, 4, "bf16"), (296, 2, "fp32"), (300, 4, "fp32"), (300, 2, "bf16")],
)
@pytest.mark.slow
def test_no_chain_meets_the_math_kernel(capacity: int, kv_heads: int, dtype: str) -> None:
    """Prefill, one row, and verification at every alignment of the text, with and without groups;
    the efficient kernel refuses a mask whose address is odd.
    """
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=kv_heads, vocab_size=61, max_position_embeddings=512,
    )  # fmt: skip
    with fake_cuda() as journal:
        lm = fake_lm("fused", DTYPES[dtype], config=config, capacity=capacity)
        lm.prefill(PROMPT)
        for start in range(20, 29):
            for rows in (1, 3, 70):
                lm.logits([5] * rows, TokenRows.chain(start, rows))
        journal.mark("")
    assert not journal.lines("kernel", "device")
    assert journal.kernels["efficient"] and not journal.kernels["math"]
