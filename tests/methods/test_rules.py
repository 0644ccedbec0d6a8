"""What a method proposes, held against its paper's rule written plainly: over full passes without
skipping, and without the method's own code for it.
"""

import functools
from typing import Any

import pytest
import torch
from conftest import make_method, random_lm, random_model
from contract import PROMPT, knapsack_plain

from scripts.brute_force import states_of
from skipbench.decode.draft import Draft, State, Verification
from skipbench.decode.loop import generate
from skipbench.decode.method import Method
from skipbench.decode.sampling import Sampler
from skipbench.decode.stopping import Fixed
from skipbench.decode.trial_passes import parallel_branches
from skipbench.draft_plan import DraftPlan
from skipbench.lm.model import LM
from skipbench.methods.clasp import choose_layers
from skipbench.methods.self_sd import objective

FAMILY = "qwen3"


@functools.cache
def second() -> LM:
    """The same model in another engine, whose cache no method has touched."""
    lm = LM(random_model(FAMILY), "reference")
    lm.allocate(480)
    return lm


def rounds(
    method: Method, length: int = 32, prompt: list[int] = PROMPT
) -> list[tuple[Draft, Verification, list[int]]]:
    """Of every round: the draft, its verification, and the tokens that stand in the cache
    thereafter.
    """
    found = []
    adapt = method.adapt

    def watched(state: State, verification: Verification) -> None:
        found.append((verification.draft, verification, state.tokens[:-1]))
        adapt(state, verification)

    method.adapt = watched  # type: ignore[method-assign]  # the method of one test
    generate(random_lm(FAMILY, "fused"), method, prompt, length)
    return found


@torch.inference_mode()
def greedy_choices(tokens: list[int]) -> list[int]:
    """The full model's best token behind every one of `tokens`, without a cache."""
    best: list[int] = second().model(torch.tensor([tokens])).logits[0].argmax(-1).tolist()
    return best


def test_prompt_lookup_tries_the_longest_ngram_first_and_the_latest_occurrence() -> None:
    method = make_method("prompt-lookup", "method.length=2")
    #        the longest match        the latest of one token
    tokens = [4, 1, 2, 3, 9, 8, 7, 5, 2, 3, 6, 6, 3, 0, 0, 1, 2, 3]
    state = State(random_lm(FAMILY, "fused"), tokens, Sampler(), 99, frozenset())
    method.begin(state)
    assert method.propose(state, 10).tokens == [9, 8]
    state.tokens += [6, 6, 9, 5, 2, 3]  # 5 2 3 stands once, 2 3 twice
    method.adapt(state, Verification(Draft(), [], 0, [0], []))
    assert method.propose(state, 10).tokens == [6, 6]
    state.tokens += [4, 2, 3]  # no three tokens: the latest 2 3 is followed by 4
    method.adapt(state, Verification(Draft(), [], 0, [0], []))
    assert method.propose(state, 10).tokens == [4, 2]


def test_parallel_decoding_is_jacobi_iteration() -> None:
    """Every pass puts the model's choice in place of each token of the block."""
    n, length = 6, 32
    method = make_method("parallel", f"method.block_size={n}")
    found = [draft.tokens for draft, *_ in rounds(method, length)]
    tokens, block, wanted = [*PROMPT, greedy_choices(PROMPT)[-1]], [], []
    while (left := length - (len(tokens) - len(PROMPT))) > 0:
        block = (block or [tokens[-1]] * (n - 1))[: left - 1]
        wanted.append(block)
        choices = greedy_choices(tokens + block)[len(tokens) - 1 :]
        fixed = next((i for i, b in enumerate(block) if b != choices[i]), len(block))
        tokens, block = tokens + choices[: fixed + 1], choices[fixed + 1 :]
    assert found == wanted and any(0 < len(b) < n - 1 for b in wanted)


@torch.inference_mode()
def test_del_exits_where_tpl_is_largest() -> None:
    """The states that a draft hands over end behind the exit layer, which has most tokens per layer
    (Eq. 2 of KnapSpec) over all tokens seen so far.
    """
    method: Any = make_method("del", "method.dynamic_threshold=false", "method.max_length=4")
    omega, layers, seen, drafted = 0.95, 4, 0, 0
    counts = torch.zeros(layers - 1, 2, dtype=torch.float64)
    found = rounds(method, 48)
    texts = [PROMPT, *(tokens for *_, tokens in found)]  # before every round
    for at, (draft, *_) in enumerate(found):
        tokens, states = texts[at], draft.early_exit_states
        x = states_of(second(), tokens)[2::2, seen:]
        best = second().head(x.flatten(0, 1)).argmax(-1).view(layers, -1)
        match = (best[:-1] == best[-1]).double()
        counts = omega * counts + torch.stack((match.sum(1), (1 - match).sum(1)), -1)
        seen = len(tokens)
        alpha = counts[:, 0] / counts.sum(-1)
        tpl = {
            (d, exit_layer): sum(float(a) ** i for i in range(d + 1)) / (d * exit_layer + layers)
            for exit_layer, a in enumerate(alpha, 1)
            for d in range(4)
        }
        length, exit_layer = max(tpl, key=lambda pair: tpl[pair])
        assert method.log["exit_layer"][at] == exit_layer
        assert method.log["length"][at] == length
        assert all(len(row) == 2 * exit_layer + 1 for row in states)
        drafted += len(states)
    assert drafted > 0


def test_lookahead_keeps_the_newest_ngrams_of_a_key() -> None:
    method: Any = make_method("lookahead", "method.guesses=2", "method.window=5")
    entered: dict[int, list[tuple[int, ...]]] = {}
    enter = method._enter

    def watched(key: int, gram: tuple[int, ...]) -> None:
        entered.setdefault(key, []).append(gram)
        enter(key, gram)

    method._enter = watched
    rounds(method, 96)
    for key, grams in entered.items():
        newest = list(dict.fromkeys(reversed(grams)))[:2]
        assert method.pool[key] == newest[::-1]
    assert any(len(set(grams)) > 2 for grams in entered.values())


@torch.inference_mode()
def test_clasp_looks_at_the_last_accepted_token() -> None:
    method: Any = make_method("clasp", "method.interval=1", "method.stop.max_steps=3")
    sets = []
    choose = method._optimise
    method._optimise = lambda *given: (choose(*given), sets.append(method.skip))
    found = rounds(method, 40)
    several = 0
    # the first set is of the prompt, and behind the end of the output none is chosen
    for skip, (_, verification, tokens) in zip(sets[1:], found[:-1], strict=True):
        x = states_of(second(), tokens)[::2, -1]
        run = parallel_branches(second(), 1, 2, 2)
        chosen, *_ = choose_layers(x, lambda u, g, run=run: run(u, g[:, None])[:, 0], 2)  # type: ignore[misc]  # mypy cannot infer a lambda with a default
        assert skip == DraftPlan.of(4, [2 * layer + k for layer in chosen for k in range(2)])
        assert len(skip.skipped) == 4  # half of the layers
        several += bool(verification.accepted)
    assert several > 2


@torch.inference_mode()
def test_knapspec_solves_eq_4_over_the_last_rounds_at_the_present_length() -> None:
    mlp_s, per_token_s, attention_s = 1e-4, 1e-5, 1e-4
    layers, lengths, history, interval = 4, range(1, 6), 2, 3
    given = (
        f"method.latency=[{mlp_s},{per_token_s},{attention_s}]",
        f"method.interval={interval}",
        f"method.history={history}",
        "method.lengths=[1,5]",
        "method.weight_cap=null",
        "method.tau=0.2",
        "method.budget=0.5",
        "method.stop.max_steps=3",
    )
    method: Any = make_method("knapspec", *given)
    found = rounds(method, 64)
    log = method.log
    weights_seen, skips = set(), dict(map(tuple, method.draft_log["skip"]))
    current, programmes = DraftPlan.of(layers), 0
    for at, (weights, candidates) in zip(
        log["optimised"], zip(log["weights"], log["candidates"], strict=True), strict=True
    ):
        tokens = found[at - 1][2]
        r = sum(len(v.accepted) + 1 for _, v, _ in found[at - history : at])
        attention = attention_s + per_token_s * len(tokens)
        w = (round(attention / min(attention, mlp_s)), round(mlp_s / min(attention, mlp_s)))
        assert tuple(weights) == w
        x = states_of(second(), tokens)[:, -r:]
        budget = int(sum(w) * layers / 2)
        run = parallel_branches(second(), r, 64)
        weight, sets, cosine, states = knapsack_plain(
            x, run, w * layers, budget, 0.2, [True] * (2 * layers)
        )
        best = second().head(torch.cat((x[-1:], states)).flatten(0, 1)).argmax(-1).view(-1, r)
        alpha = (best[1:] == best[0]).double().mean(-1).tolist()
        summed = [sum(w[s % 2] for s in skipped) for skipped in sets]
        assert [c[0] for c in candidates] == weight == summed
        assert [c[1] for c in candidates] == pytest.approx(cosine, abs=1e-4)
        assert [c[2] for c in candidates] == pytest.approx(alpha)

        def per_s(skipped: frozenset[int], a: float, g: int, attention: float = attention) -> float:
            cost = [attention, mlp_s]
            draft = sum(cost[s % 2] for s in range(2 * layers) if s not in skipped)
            return sum(a**i for i in range(g + 1)) / (g * draft + layers * sum(cost))

        value = [max(per_s(z, a, g) for g in lengths) for z, a in zip(sets, alpha, strict=True)]
        chosen = DraftPlan(layers, sets[value.index(max(value))])
        if at < len(found):
            current = DraftPlan.parse(skips.get(at, str(current)), layers)
            assert current == chosen
        assert log["tpt"][programmes] == pytest.approx(max(value))
        weights_seen.add(w)
        programmes += 1
    assert programmes > 4 and len(weights_seen) > 2


@torch.inference_mode()
def test_asd_drops_the_attention_that_turns_the_state_least() -> None:
    given = ("method.threshold=-1", "method.most=0.5", "method.keep_first=0", "method.keep_last=0")
    method: Any = make_method("asd", *given)
    rounds(method, 4)
    x = states_of(second(), PROMPT).float()
    cosine = torch.cosine_similarity(x[:-1:2], x[1::2], dim=-1).mean(-1)
    assert method.skip.attention == tuple(sorted(cosine.topk(2).indices.tolist()))
    assert not method.skip.mlp
    assert method.log["cosine"][0] == pytest.approx(cosine.tolist(), abs=1e-4)


def test_self_sd_searches_for_the_shortest_time_per_token() -> None:
    lm = random_lm(FAMILY, "fused")
    f = objective(lm, [PROMPT], 8, frozenset(), functools.partial(Fixed, 3))
    value, more = f(DraftPlan.parse("mlp:1", lm.layers))
    assert value > 0 and value * more["tokens_per_s"] == pytest.approx(1)
