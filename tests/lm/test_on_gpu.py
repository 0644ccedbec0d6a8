"""What only a GPU shows, on planted models of a large model's sizes: kernels of attention, tokens
of every engine, strict rows, memory of long prompts, waits of the host.

`make gpu` runs the tests marked `gpu`. With SKIPBENCH_EAGER_GRAPHS=1 they run on a CPU, as its
rehearsal does: with small sizes; kernels, memory and waits are not judged there.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from conftest import DEVICE, EVERY_ENGINE, NEEDS_GPU, ON_GPU, host_waits
from msgspec.structs import replace
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode

from skipbench.config.architecture import Shape
from skipbench.decode.loop import generate
from skipbench.decode.stopping import Fixed
from skipbench.errors import NotStrictError
from skipbench.lm.float32 import float32_logits
from skipbench.lm.model import LM
from skipbench.lm.proof import compare_rows
from skipbench.lm.rows import TokenRows
from skipbench.methods.clasp import CLaSp
from skipbench.methods.fixed import FixedSet
from skipbench.methods.vanilla import Vanilla
from skipbench.models.random_weights import planted_model
from skipbench.skipset import fixed_set


class Sizes(NamedTuple):
    """Of the model, the long prompt, the output of a method, and the rows that are compared."""

    shape: Shape
    long: int
    tokens: int
    rows: int


LARGE = Sizes(Shape(8, 4096, 32, 8, 14336, 32000, 20480), 16384, 48, 1000)
SIZES = LARGE if ON_GPU else Sizes(Shape(2, 128, 4, 2, 128, 96, 2048), 600, 12, 40)
PROMPT = [5, 17, 3, 44, 9, 28, 51, 2, 13, 40, 6, 33]
WORDS = 64  # ids that planted text keeps to
TREE = (5, 3, 2, 1)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
pytestmark = [pytest.mark.gpu, NEEDS_GPU]


def planted(
    dtype: torch.dtype, engine: str, capacity: int, layers: int = 0, strict: bool = False
) -> LM:
    shape = replace(SIZES.shape, layers=layers or SIZES.shape.layers)
    redundant = fixed_set("uniform", shape.layers, 0.5)
    lm = LM(planted_model(shape, redundant, 0, dtype, str(DEVICE), WORDS), engine, strict)
    lm.allocate(capacity)
    assert lm.engine.name == engine, lm.notes()
    return lm


def draft(lm: LM, threshold: float = 0.0, widths: tuple[int, ...] = ()) -> FixedSet:
    skip = fixed_set("uniform", lm.layers, 0.5)
    return FixedSet("tree" if widths else "chain", skip, Fixed(6, threshold), widths)


class Kernels(TorchFunctionMode):
    """Which kernels torch chooses for the calls of attention."""

    found: set[SDPBackend]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.scaled_dot_product_attention:
            given = dict(zip(("query", "key", "value", "attn_mask"), args, strict=False)) | kwargs
            self.found.add(SDPBackend(torch._fused_sdp_choice(**given)))
        return func(*args, **kwargs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.inference_mode()
def test_fused_never_meets_the_math_kernel(dtype: torch.dtype) -> None:
    """That kernel holds all scores in float32. One row, eleven, a tree, and a prompt."""
    lm = planted(dtype, "fused", 512, 2)
    with Kernels() as kernels:
        kernels.found = set()
        lm.prefill(PROMPT * 20)
        lm.logits([5], TokenRows.chain(240, 1))
        lm.logits([5] * 11, TokenRows.chain(240, 11))
        lm.logits([5] * 11, TokenRows.tree(240, (-1, *(0,) * 10)))
    own = lm.engine.identity().get("native_kernels") == "amx"  # C attends in the place of torch
    assert kernels.found or (own and not ON_GPU)
    assert not (ON_GPU and SDPBackend.MATH in kernels.found)


def test_every_engine_and_method_gives_the_same_tokens_in_float32() -> None:
    wanted: list[int] = []  # of the first
    for engine in EVERY_ENGINE:
        lm = planted(torch.float32, engine, 1024)
        clasp = CLaSp(layers=lm.layers, name="clasp", stop=Fixed(6, 0.0), interval=4)
        for method in (Vanilla(), draft(lm, 0.05), draft(lm, 0.0, TREE), clasp):
            tokens = generate(lm, method, PROMPT, SIZES.tokens).tokens
            wanted = wanted or tokens
            assert tokens == wanted, (engine, method.name)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("engine", ["cuda_graphs", "fused"])
def test_strict_rows_of_a_large_model_have_the_bits_that_they_have_alone(
    engine: str, dtype: torch.dtype
) -> None:
    try:
        lm = planted(dtype, engine, 512, strict=True)
    except NotStrictError as error:
        pytest.skip(f"refused: {error}")
    assert engine != "fused" or lm.engine.padded_rows == 16 * ON_GPU
    assert compare_rows(lm, SIZES.rows).differing == 0


@torch.inference_mode()
def test_a_long_prompt_takes_little_beside_its_cache() -> None:
    """Verification of 11 rows at most twice the keys and values that a layer reads, the float32
    check of ties at most 2 GiB.
    """
    lm = planted(torch.bfloat16, "fused", SIZES.long + 64, 2)
    tokens = (PROMPT * (SIZES.long // len(PROMPT) + 1))[: SIZES.long]
    read = 2 * 2 * SIZES.long * lm.cache.kv_heads * lm.cache.head_dim
    lm.prefill(tokens)
    verify = partial(lm.logits, [5] * 11, TokenRows.chain(SIZES.long, 11))
    assert grown(verify) <= 2 * read
    assert grown(partial(float32_logits, lm.model, tokens)) <= 2**31


def grown(work: Callable[[], object]) -> int:
    """Bytes of the GPU that `work` takes at most beside what is there; 0 on a CPU."""
    if not ON_GPU:
        work()
        return 0
    torch.cuda.synchronize(DEVICE)
    torch.cuda.reset_peak_memory_stats(DEVICE)
    before = torch.cuda.memory_allocated(DEVICE)
    work()
    torch.cuda.synchronize(DEVICE)
    return torch.cuda.max_memory_allocated(DEVICE) - before


@pytest.mark.parametrize("widths", [(), TREE], ids=["chain", "tree"])
def test_the_host_waits_once_a_step_and_twice_a_round(widths: tuple[int, ...]) -> None:
    lm = planted(torch.bfloat16, "fused", 1024)
    decode = partial(generate, lm, draft(lm, widths=widths), PROMPT, SIZES.tokens)
    decode()
    out, waits = host_waits(decode)
    assert waits <= sum(r.steps for r in out.rounds) + 2 * len(out.rounds) + 4
