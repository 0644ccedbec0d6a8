"""ASD against its rule, computed again."""

import pytest
import torch
from common import make_method
from test_rules import PROMPT, rounds, second, states_of

from skipbench.config.compose import compose
from skipbench.errors import SkipbenchError


@torch.inference_mode()
def test_asd_drops_the_attention_that_turns_the_state_least() -> None:
    given = ("method.threshold=-1", "method.most=0.5", "method.keep_first=0", "method.keep_last=0")
    method = make_method("asd", *given)
    rounds(method, 4)
    x = states_of(second(), PROMPT).float()
    cosine = torch.cosine_similarity(x[:-1:2], x[1::2], dim=-1).mean(-1)
    assert method.skip.attention == tuple(sorted(cosine.topk(2).indices.tolist()))  # type: ignore[attr-defined]  # of the class
    assert not method.skip.mlp  # type: ignore[attr-defined]  # as above
    assert method.log["cosine"][0] == pytest.approx(cosine.tolist(), abs=1e-4)  # type: ignore[attr-defined]  # as above


@pytest.mark.parametrize("word", ["keep_first=13", "threshold=2"])
def test_a_setting_out_of_bounds_is_named(word: str) -> None:
    with pytest.raises(SkipbenchError, match=word.partition("=")[0]):
        compose(["method=asd", f"method.{word}"]).method.factory()(layers=12)
