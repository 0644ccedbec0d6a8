"""Lemma 4.1 of KnapSpec (Eq. 10): states whose cosine is near enough to 1 have the same token."""

import torch
from torch import Tensor

DRAWS, TOKENS, WIDTH = 2000, 12, 6


def turned(x: Tensor, towards: Tensor, cosine: Tensor) -> Tensor:
    """A vector of the length of `x` at this cosine to it, in the plane of both."""
    length = x.norm()
    aside = towards - (towards @ x) * x / length**2
    return cosine * x + (1 - cosine**2).clamp(min=0).sqrt() * length * aside / aside.norm()


def test_a_cosine_above_the_bound_keeps_the_token_and_the_bound_is_near() -> None:
    torch.manual_seed(0)
    changed = 0
    for _ in range(DRAWS):
        embeddings, x = torch.randn(TOKENS, WIDTH).double(), torch.randn(WIDTH).double()
        logits = embeddings @ x
        best, second = logits.topk(2).indices
        margin = logits[best] - logits[second]
        apart = (embeddings[best] - embeddings).norm(dim=1).max()
        room = margin**2 / (2 * x.norm() ** 2 * apart**2)  # 1 less this: Eq. 10
        towards = embeddings[second] - embeddings[best]  # the way to the nearest rival
        for share in (torch.rand(()).double(), torch.tensor(0.999)):
            other = turned(x, towards, 1 - share * room)
            assert (embeddings @ other).argmax() == best
        far = turned(x, towards, (1 - 16 * room).clamp(min=-1))
        changed += int((embeddings @ far).argmax() != best)
    assert changed > DRAWS // 2
