"""Guided windows: a draft reads the rows that verification attended to most, and no others."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from conftest import make_method, random_lm, random_model
from torch import Tensor

from skipbench.decode.loop import generate, stream
from skipbench.decode.method import MethodCopies
from skipbench.draft_plan import SINKS, DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.lm.fused.engine import FusedEngine
from skipbench.lm.model import LM
from skipbench.lm.most_read import RECENT
from skipbench.lm.rows import TokenRows

PROMPT = [3 + i * 7 % 50 for i in range(50)]
WINDOW = 12
GUIDED = DraftPlan.parse(f"guided:{WINDOW}", 4)
PLAIN = DraftPlan.parse(f"window:{WINDOW}", 4)
ENGINES = ["fused", FusedEngine, "cuda_graphs"]
IDS = ["own kernels", "torch", "cuda_graphs"]


def made(engine: Any, family: str = "llama") -> LM:
    lm = random_lm(family, engine) if isinstance(engine, str) else LM(random_model(family), engine)
    lm.allocate(200)
    return lm


class Definition:
    """The model of an `LM`, row by row, by torch alone."""

    def __init__(self, lm: LM) -> None:
        self.lm, model = lm, lm.model.model
        self.layers, self.tables = model.layers, lm.metadata(TokenRows.chain(0, 1)).tables.rope
        self.keys: list[list[Tensor]] = [[] for _ in self.layers]  # [KV, d] by row
        self.values: list[list[Tensor]] = [[] for _ in self.layers]
        self.queries: list[list[Tensor]] = [[] for _ in self.layers]  # [KV, G, d]

    def __call__(self, token: int, seen: Sequence[Tensor] | None = None) -> Tensor:
        """Logits of the next row; `seen`: by layer, the rows [KV, N] that each key head reads."""
        lm, at = self.lm, len(self.keys[0])
        (cos, sin), d, kv = self.tables, lm.cache.head_dim, lm.cache.kv_heads
        x = lm.model.model.embed_tokens(torch.tensor([token]))
        for i, layer in enumerate(self.layers):
            normed, attention = layer.input_layernorm(x), layer.self_attn
            q, k, v = (
                of(normed).view(-1, d)
                for of in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            q, k = (t * cos[at] + t.roll(d // 2, 1) * sin[at] for t in (q, k))
            self.keys[i].append(k)
            self.values[i].append(v)
            self.queries[i].append(q.view(kv, -1, d))
            keys, values = (torch.stack(of[i], 1) for of in (self.keys, self.values))
            rows = torch.arange(at + 1).expand(kv, -1) if seen is None else seen[i]
            index = rows[..., None].expand(-1, -1, d)
            score = self.queries[i][-1] @ keys.gather(1, index).mT * d**-0.5
            out = score.softmax(-1) @ values.gather(1, index)
            x = x + attention.o_proj(out.reshape(1, -1))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        logits: Tensor = lm.model.lm_head(lm.model.model.norm(x))
        return logits

    def most_read(self) -> list[Tensor]:
        """By layer the rows [KV, SINKS + WINDOW] that the last row reads most."""
        found = list[Tensor]()
        for asked, keys in zip(self.queries, self.keys, strict=True):
            k = torch.stack(keys, 1)
            score = (asked[-1] @ k.mT * k.shape[-1] ** -0.5).softmax(-1).sum(1)
            score[:, :SINKS] = score[:, len(keys) - WINDOW // RECENT :] = torch.inf
            found.append(score.topk(SINKS + WINDOW).indices)
        return found


@pytest.mark.parametrize("engine", ENGINES, ids=IDS)
@torch.inference_mode()
def test_a_guided_draft_is_the_model_over_the_rows_that_were_read_most(engine: Any) -> None:
    """Behind a prompt, and behind a verification of which rows were rejected."""
    lm = made(engine)
    lm.prefill(PROMPT, guides=True)
    wanted = Definition(lm)
    for token in PROMPT:
        wanted(token)

    def drafts_of(tokens: Sequence[int]) -> None:
        chosen, end = wanted.most_read(), len(wanted.keys[0])
        assert not all(torch.equal(c.sort().values, chosen[0].sort().values) for c in chosen)
        for n, token in enumerate(tokens):
            own = torch.arange(end, end + n + 1).expand(lm.cache.kv_heads, -1)
            found = lm.logits([token], TokenRows.chain(end + n, 1), GUIDED)
            by_definition = wanted(token, [torch.cat((c, own), 1) for c in chosen])
            torch.testing.assert_close(found, by_definition, rtol=1e-4, atol=1e-4)
        for of in (wanted.keys, wanted.values, wanted.queries):
            for layer in of:
                del layer[end:]

    drafts_of([5, 9, 2])
    end, tokens = len(PROMPT), [7, 8, 40, 41]
    tree = TokenRows.tree(end, (-1, 0, 0, 1)).verified()
    assert torch.equal(lm.score(tokens, tree).clone(), lm.score(tokens, tree, guides=True))
    lm.cache.keep([end, end + 2])
    lm.guide.keep(2)
    for rows in lm.cache.rows:
        rows[end + 2 :] = 100.0  # what was rejected is not read
    for token in (tokens[0], tokens[2]):
        wanted(token)
    drafts_of([6, 1])


@pytest.mark.parametrize("engine", ENGINES, ids=IDS)
@torch.inference_mode()
def test_a_text_within_the_window_is_read_whole(engine: Any) -> None:
    lm = made(engine)
    lm.prefill(PROMPT, guides=True)
    wide = DraftPlan(lm.layers, window=len(PROMPT) - SINKS, guided=True)
    for n, token in enumerate([5, 9, 2]):
        rows = TokenRows.chain(len(PROMPT) + n, 1)
        found = lm.logits([token], rows, wide)
        assert torch.equal(found, lm.logits([token], rows))


@torch.inference_mode()
def test_a_choice_is_of_one_request_and_length() -> None:
    """Else a draft reads a plain window."""
    lm, first, second = made("fused"), type("Request", (), {})(), type("Request", (), {})()

    def differ(at: int) -> bool:
        rows = TokenRows.chain(at, 1)
        return not torch.equal(*(lm.logits([5], rows, plan) for plan in (GUIDED, PLAIN)))

    with lm.cache.turn(first):
        lm.prefill(PROMPT, guides=True)
        assert differ(len(PROMPT))
        assert not differ(len(PROMPT) - 1), "not behind the text"
        lm.cache.length -= 1
        assert not differ(len(PROMPT) - 1), "the text is another"
        lm.cache.length += 1
        assert differ(len(PROMPT))
        lm.prefill(PROMPT[::-1])
        assert not differ(len(PROMPT)), "it left no queries"
        lm.prefill(PROMPT, guides=True)
    with lm.cache.turn(second):
        lm.cache.length = len(PROMPT)
        assert not differ(len(PROMPT)), "another request"
    with lm.cache.turn(first):
        assert not differ(len(PROMPT))


@pytest.mark.parametrize("tree", ["[]", "[3,2,1,1]"])
@pytest.mark.parametrize(("engine", "family"), [("fused", "llama"), ("cuda_graphs", "mistral")])
def test_tokens_stay_the_models_own(engine: str, family: str, tree: str) -> None:
    """Alone and with another request in turns; in Mistral the layers have windows of their own."""
    lm = made(engine, family)
    options = "method.kv_window=9", "method.kv_guided=true", f"method.tree={tree}"
    method = make_method("fixed", 'method.skip="mlp:1"', *options, layers=lm.layers)
    assert str(method.skip) == "guided:9;mlp:1"
    vanilla, prompts = make_method("vanilla", layers=lm.layers), (PROMPT, PROMPT[::-1])
    wanted = [generate(lm, vanilla, prompt, 24, frozenset()).tokens for prompt in prompts]
    out = generate(lm, method, PROMPT, 24, frozenset())
    assert out.tokens == wanted[0] and lm.guide.side.capacity > 0
    copies, found = MethodCopies(method), ([], [])
    streams = [stream(lm, copies, prompt, 24) for prompt in prompts]
    for _ in range(24):
        for at, steps in zip(found, streams, strict=True):
            at += getattr(next(steps, None), "tokens", [])
    assert [*found] == wanted


def test_what_has_no_guided_window_says_so() -> None:
    lm = random_lm("llama", "reference")
    lm.prefill(PROMPT)
    with pytest.raises(SkipbenchError, match=r"engine=reference.*kv_guided=false"):
        lm.logits([5], TokenRows.chain(len(PROMPT), 1), GUIDED)
    with pytest.raises(SkipbenchError, match=r"kv_guided=true.*wanted kv_window"):
        make_method("uniform", "method.kv_guided=true")
    with pytest.raises(SkipbenchError, match="second window"):
        DraftPlan.parse("window:5;guided:5", 4)
