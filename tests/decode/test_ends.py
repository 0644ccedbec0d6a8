"""Where an answer ends: an EOS inside of accepted drafts, a context that it fills exactly, and
models whose rows depend on the place in the text.
"""

from typing import Any

import pytest
from conftest import ALONE, ENGINES, make_method, random_lm, rest_slow
from contract import PROMPT, plain_greedy
from described import made

from skipbench.decode.loop import generate
from skipbench.lm.model import LM

LONG = (PROMPT * 13)[:104]  # of a context of 128
YARN = {
    **{"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0},
    **{"original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.5},
    **{"mscale": 1.0, "mscale_all_dim": 1.0},
}


def heads(queries: int, keys: int, hidden: int, **more: Any) -> tuple[str, dict[str, Any]]:
    counts = {"num_attention_heads": queries, "num_key_value_heads": keys}
    return "llama", counts | {"hidden_size": hidden, **more}


ODD: dict[str, tuple[str, dict[str, Any]]] = {
    "window of 1": ("mistral", {"sliding_window": 1}),  # a cached generate of HF is wrong there
    "scaled by place": ("ministral3", {"sliding_window": None, "rope_parameters": YARN}),
    "heads of 6": ("llama", {"head_dim": 6, "hidden_size": 60, "intermediate_size": 33}),
    "9 heads over 3": heads(9, 3, 90, head_dim=10),
    "7 heads over 7": heads(7, 7, 42, rms_norm_eps=0.5),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True, "hidden_act": "gelu"}),
    "no epsilon": ("llama", {"rms_norm_eps": 0.0, "hidden_act": "relu", "intermediate_size": 77}),
}


@pytest.mark.parametrize("name", rest_slow(ALONE, ("auto", "swift", "lookahead").__contains__))
def test_an_eos_in_accepted_drafts_and_a_context_that_is_filled(name: str) -> None:
    lm = random_lm("llama", "fused")
    full = generate(lm, make_method(name), LONG, 128 - len(LONG))
    assert full.tokens == plain_greedy(lm.model, LONG, 128 - len(LONG)) and full.finish == "length"
    for eos in full.tokens[1:16:5]:
        cut = full.tokens[: full.tokens.index(eos) + 1]
        found = generate(lm, make_method(name), LONG, 128 - len(LONG), frozenset([eos]))
        assert (found.tokens, found.finish) == (cut, "eos")
        assert all(r.emitted == r.accepted + 1 for r in found.rounds[:-1])
        assert 1 + sum(r.emitted for r in found.rounds) == len(cut)


@pytest.mark.parametrize("engine", rest_slow(ENGINES, "fused".__eq__))
@pytest.mark.parametrize("name", ODD)
def test_odd_configurations_are_hugging_faces(name: str, engine: str) -> None:
    family, more = ODD[name]
    lm = LM(made(family, **more), engine)
    lm.allocate(96)
    prompt = [(7 * i) % 61 for i in range(20)]
    assert generate(lm, make_method("uniform"), prompt, 12).tokens == plain_greedy(
        lm.model, prompt, 12
    )
