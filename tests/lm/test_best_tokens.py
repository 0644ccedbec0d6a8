"""The search for the best token: the first of the largest, whatever the logits and their type."""

import pytest
import torch

from skipbench.decode.sampling import best_tokens

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
    assert [found[0], found[2]] == [
        int(logits[0].float().argmax()),
        int(logits[2].float().argmax()),
    ]


def test_zeros_of_both_signs_are_equal() -> None:
    assert best_tokens(torch.tensor([[-1.0, -0.0, 0.0, -2.0]]).bfloat16()).tolist() == [1]
    assert best_tokens(torch.tensor([[-1.0, -0.5, -0.5], [2.0, 1.0, 2.0]]).bfloat16()).tolist() == [
        1,
        0,
    ]
