"""Skip sets: text form, ranges, and the fixed strategies; the best token of logits."""

import random

import pytest
import torch

from skipbench.decode.sampling import best_tokens
from skipbench.draft_plan import VARIANTS, DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.skipset import fixed_set


def test_text_and_back() -> None:
    rng = random.Random(0)
    for _ in range(200):
        layers = rng.randint(1, 40)
        skipped = frozenset(rng.sample(range(2 * layers), rng.randint(0, 2 * layers)))
        plan = DraftPlan(layers, skipped, rng.choice(["", *VARIANTS]))
        assert DraftPlan.parse(str(plan), layers) == plan


def test_parse() -> None:
    skip = DraftPlan.parse(" attn:1,3-5 ; mlp:2", 6)
    assert (skip.attention, skip.mlp) == ((1, 3, 4, 5), (2,))
    assert skip.skipped == {2, 6, 8, 10, 5}
    assert skip.ratio == 5 / 12
    assert DraftPlan.parse("", 6).skipped == frozenset()


UNREADABLE = ("attn", "attn:", "attn:a", "heads:1", "attn:1,", "attn:1 mlp:2", "1,2", "attn:-1")
OUTSIDE = ("mlp:6", "attn:6", "attn:2-6", "attn:0;mlp:999")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        *((text, "cannot read") for text in (*UNREADABLE, "attn:5-3", "int8:1")),
        *((text, "0 to 11") for text in OUTSIDE),
    ],
)
def test_text_of_no_plan(text: str, says: str) -> None:
    with pytest.raises(SkipbenchError, match=says):
        DraftPlan.parse(text, 6)


@pytest.mark.parametrize("index", [-1, 12])
def test_sublayers_outside_the_model(index: int) -> None:
    with pytest.raises(SkipbenchError, match=rf"\[{index}\].*0 to 11"):
        DraftPlan.of(6, [0, index, 11])


@pytest.mark.parametrize(
    ("kind", "layers", "ratio", "skipped"),
    [
        ("first", 8, 0.5, (0, 1, 2, 3)),
        ("last", 8, 0.5, (4, 5, 6, 7)),
        ("middle", 8, 0.5, (2, 3, 4, 5)),
        ("middle", 7, 0.3, (2, 3)),  # an uneven rest goes behind the block
        ("uniform", 8, 0.375, (2, 4, 6)),
    ],
)
def test_fixed_sets(kind: str, layers: int, ratio: float, skipped: tuple[int, ...]) -> None:
    skip = fixed_set(kind, layers, ratio)
    assert skip.attention == skip.mlp == skipped


@pytest.mark.parametrize("layers", range(3, 40))
def test_uniform_keeps_both_ends(layers: int) -> None:
    for ratio in (0.2, 0.5, 0.8):
        chosen = fixed_set("uniform", layers, max(ratio, 0.51 / layers)).attention
        assert 0 not in chosen and layers - 1 not in chosen
        assert len(chosen) == min(max(1, round(layers * ratio)), layers - 2)


def test_random_set() -> None:
    one, again, other = (fixed_set("random", 12, 0.5, seed) for seed in (1, 1, 2))
    assert one == again != other and len(one.skipped) == 12


@pytest.mark.parametrize("kind", ["uniform", "first", "middle", "last", "random"])
@pytest.mark.parametrize("ratio", [-0.5, 0.0, 0.01, 0.99, 1.0, 1.5])
def test_a_ratio_that_skips_nothing_or_everything(kind: str, ratio: float) -> None:
    with pytest.raises(SkipbenchError, match=f"ratio={ratio} "):
        fixed_set(kind, 12, ratio)


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shift", [0.0, 8.0, -8.0])
def test_the_largest_of_every_row_and_the_first_of_equal_ones(
    dtype: torch.dtype, shift: float
) -> None:
    torch.manual_seed(0)
    logits = (torch.randn(64, 300) + shift).to(dtype)  # in bfloat16 many of the largest are equal
    logits[::3, 7], logits[1::3, 100:] = -INF, INF
    wide = logits.double()
    largest = wide.max(-1, keepdim=True).values
    first = [int((row == top).nonzero()[0]) for row, top in zip(wide, largest, strict=True)]
    assert best_tokens(logits).tolist() == first


@pytest.mark.parametrize(
    "bits", [0x7FC0, 0x7F81, 0x7FFF, 0xFFC0 - 0x10000, 0xFFFF - 0x10000, 0xFF81 - 0x10000]
)
def test_the_first_nan_is_found_whatever_its_bits(bits: int) -> None:
    logits = torch.randn(3, 40, dtype=torch.bfloat16)
    logits[1, 9], logits[1, 3] = NAN, INF
    logits.view(torch.int16)[1, 5] = bits
    found = best_tokens(logits).tolist()
    assert logits[1].isnan().nonzero()[:, 0].tolist() == [5, 9] and found[1] == 5
    assert found[::2] == logits[::2].float().argmax(-1).tolist()


def test_zeros_of_both_signs_are_equal() -> None:
    rows = torch.tensor([[-1.0, -0.0, 0.0, -2.0], [-1.0, -0.5, -0.5, -3.0], [2.0, 1.0, 2.0, 0.0]])
    assert best_tokens(rows.bfloat16()).tolist() == [1, 1, 0]
