"""The planted model: its text, its margins in bfloat16, and what each sub-layer is worth."""

from functools import cache, partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from skipbench.bench.arm import looped
from skipbench.config.architecture import Shape
from skipbench.decode.loop import Generation, generate
from skipbench.decode.stopping import Fixed
from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.lm.cuda_graphs.capture import EagerCapture
from skipbench.lm.cuda_graphs.engine import CudaGraphsEngine
from skipbench.lm.engine import MakeEngine
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.methods.fixed import FixedSet
from skipbench.methods.vanilla import Vanilla
from skipbench.models.planted_text import LENGTH, REACH, PlantedText, strengths
from skipbench.models.random_weights import PLANTABLE, planted_model, text_of
from skipbench.skipset import planted_set

WORDS, TOKENS, MANY = 400, 512, 200
SHAPE = Shape(4, 256, 4, 2, 704, WORDS, 1024)
REDUNDANT = planted_set(SHAPE.layers, 1 / 4, 0)
PROMPT = [7 * i % WORDS for i in range(REACH * LENGTH + 3)]
TIE = 4.0  # nats; logits near 20 are 1/8 apart in bfloat16


def planted(shape: Shape = SHAPE, dtype: torch.dtype = torch.bfloat16) -> Any:
    return planted_model(shape, REDUNDANT, 0, dtype, "cpu", WORDS)


def held(engine: str | MakeEngine, model: Any) -> LM:
    lm = LM(model, engine)
    lm.allocate(TOKENS + 64)
    return lm


@cache
def fused() -> LM:
    return held("fused", planted())


@cache
def vanilla() -> list[int]:
    return generate(fused(), Vanilla(), PROMPT, TOKENS).tokens


@cache
def text() -> PlantedText:
    return text_of(SHAPE.hidden, REDUNDANT, 0, WORDS)


def drafted(lm: LM, *skipped: int, length: int = MANY) -> Generation:
    skip = DraftPlan.of(SHAPE.layers, skipped)
    return generate(lm, FixedSet("set", skip, Fixed(4)), PROMPT, length)


def alpha(out: Generation) -> tuple[float, float]:
    """`alpha`, and `alpha_cond`: the chance that one drafted token is right."""
    accepted = sum(r.accepted for r in out.rounds)
    rejections = sum(r.accepted < r.steps for r in out.rounds)
    return accepted / sum(r.steps for r in out.rounds), accepted / (accepted + rejections)


def following(said: PlantedText, tokens: list[int], count: int) -> list[int]:
    """What the text has behind `tokens`, of which the last `REACH` phrases count."""
    tokens = [*tokens]
    for _ in range(count):
        word = said.read_as[tokens[-1]]
        phrase, place = divmod(word, LENGTH)
        if place == LENGTH - 1:
            decides = said.read_as[tokens[-1 - REACH * LENGTH]]
            chosen = decides % LENGTH == place and decides // LENGTH in said.chosen
            word = LENGTH * (said.on if chosen else said.off)[phrase] - 1
        tokens.append(said.ids[word + 1])
    return tokens[-count:]


def test_engines_and_the_planted_set_agree_in_bfloat16() -> None:
    graphs = held(partial(CudaGraphsEngine, capture=EagerCapture), fused().model)
    assert graphs.engine.name == "cuda_graphs" and fused().engine.name == "fused"
    assert generate(graphs, Vanilla(), PROMPT, 24).tokens == vanilla()[:24]
    for lm, length in ((graphs, 48), (fused(), MANY)):
        out = drafted(lm, *REDUNDANT.skipped, length=length)
        assert out.tokens == vanilla()[:length] and alpha(out)[0] >= 0.99


def test_it_says_its_text_which_repeats_phrases_and_never_itself() -> None:
    said = vanilla()
    assert said == following(text(), PROMPT, TOKENS) and not looped(said)
    assert len(set(said)) > 0.9 * len(text().ids)
    assert all(said[-2 * p : -p] != said[-p:] for p in range(LENGTH + 1, TOKENS // 2))
    phrases = [said[i : i + LENGTH + 1] for i in range(TOKENS // 2, TOKENS - LENGTH)]
    met = [p for p in phrases if p in [said[i : i + LENGTH + 1] for i in range(TOKENS // 2)]]
    assert 0.3 < len(met) / len(phrases) < 1


@torch.inference_mode()
def test_the_lead_is_far_above_the_noise_of_bfloat16() -> None:
    """Rows alone against 9 at once, and in float32."""
    exact, tokens, lm = held("fused", planted(dtype=torch.float32)), PROMPT + vanilla(), fused()
    noise, leads = [], []
    for start in range(len(PROMPT), 300, 50):
        lm.prefill(tokens[:start])
        exact.prefill(tokens[:start])
        rows = tokens[start : start + 9]
        together = lm.logits(rows, TokenRows.chain(start, 9)).float()
        alone = [lm.logits([t], TokenRows.chain(start + n, 1))[0] for n, t in enumerate(rows)]
        wanted = exact.logits(rows, TokenRows.chain(start, 9))
        noise += [(x.float() - wanted).abs().max() for x in (together, torch.stack(alone))]
        best = wanted.topk(2).values
        leads.append((best[:, 0] - best[:, 1]).min())
    assert min(leads) > TIE > 8 * max(noise)
    assert float(best[:, 0].mean()) == pytest.approx(20, rel=0.2)  # the size that TIE counts on


def test_what_is_left_out_costs_what_is_stated() -> None:
    shares = text().shares(SHAPE.layers)
    weakest_first = [*strengths(REDUNDANT, 0)][::-1]
    last = len(weakest_first)
    found, stated = [], []
    for count in sorted({*range(0, last, 2), last - 1, last}):
        skipped = [*REDUNDANT.skipped, *weakest_first[:count]]
        out = drafted(fused(), *skipped)
        assert out.tokens == vanilla()[:MANY]
        found.append(alpha(out)[1])
        stated.append(1 - sum(shares[s] for s in skipped))
    assert found == pytest.approx(stated, abs=0.05)
    assert all(more >= fewer for more, fewer in pairwise(found)) and found[-1] < 0.5 < found[-2]
    # the first layer decides between phrases, and shows the word to the head
    assert alpha(drafted(fused(), 0))[1] == pytest.approx(1 - shares[0], abs=0.05)
    assert alpha(drafted(fused(), 1, length=20))[1] == 0


@pytest.mark.parametrize("family", PLANTABLE)
def test_families_and_tied_tables_say_the_text(family: str) -> None:
    shape = replace(SHAPE, family=family, head_dim=128, tied=family in ("qwen2", "qwen3"))
    lm = held("reference", planted(shape, torch.float32))
    assert generate(lm, Vanilla(), PROMPT, 48).tokens == following(text(), PROMPT, 48)


def test_too_few_words_for_a_text_are_refused() -> None:
    for hidden, words in ((32, WORDS), (256, 40)):
        with pytest.raises(SkipbenchError, match="too few for a text of 24 words"):
            text_of(hidden, REDUNDANT, 0, words)


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["32x512", "3x2048"])
def test_larger_shapes_agree_in_bfloat16(shape: str) -> None:
    from skipbench.config.catalog import shape_of

    wide = replace(shape_of(shape), vocab=WORDS)
    redundant = planted_set(wide.layers, 0.5 if wide.layers > 3 else 1 / 3, 0)
    lm = held("fused", planted_model(wide, redundant, 0, torch.bfloat16, "cpu", WORDS))
    said = text_of(wide.hidden, redundant, 0, WORDS)
    own = said.ids[: len(PROMPT)]  # attention decides by the word before
    out = generate(lm, FixedSet("set", redundant, Fixed(8)), own, TOKENS)
    assert out.tokens == following(said, own, TOKENS) and alpha(out)[0] >= 0.99
