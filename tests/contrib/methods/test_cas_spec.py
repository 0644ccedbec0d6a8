"""CAS-Spec: T(s, k), the estimates, and that every node is what its own skip set says."""

import itertools

import pytest
import torch
from conftest import make_method, random_lm
from contract import PROMPT
from test_traces import tiny

from skipbench.contrib.methods.cas_spec import CASSpec, Estimate, worth
from skipbench.decode.draft import State
from skipbench.decode.loop import generate
from skipbench.decode.rounds import in_turn, prefill
from skipbench.decode.sampling import Sampler
from skipbench.lm.rows import TokenRows
from skipbench.profile.clock import Clock


def test_T_by_hand() -> None:
    """alpha 0.5, cost 0.5, two tokens, then a copy of chance 0.2 at 0.1 passes."""
    tokens, passes = 0.5 + 0.25 + 0.25 * 0.2, 2 * 0.5 + 0.1
    assert worth(0.5, 0.5, 2, 0.2, 0.1, "drafting") == pytest.approx(tokens / passes)
    walltime = worth(0.5, 0.5, 2, 0.2, 0.1, "walltime")
    assert walltime == pytest.approx((1 + tokens) / (1 + passes))


@pytest.mark.parametrize("alpha", [0.3, 0.6, 0.9, 0.99])
def test_without_the_verification_one_token_is_always_best(alpha: float) -> None:
    """Why `walltime` is the default; with it, a good draft goes on."""

    def best(objective: str) -> int:
        return max(range(1, 9), key=lambda k: worth(alpha, 0.5, k, 0.3, 0.01, objective))

    assert best("drafting") == 1
    assert (best("walltime") > 1) == (alpha > 0.8)


def test_an_estimate_follows_the_last_twenty_tries() -> None:
    estimate = Estimate(0.5).after([True] * 10 + [False] * 30)
    assert estimate.tries == [0] * 20 and estimate.value == pytest.approx(0.7 * 0.5)


def test_drafts_that_fell_below_their_cost_are_tried_again() -> None:
    """As a prompt without copies leaves the estimates; the next prompt's output repeats itself."""
    lm, tokenizer = tiny()
    for forget in (0.0, 0.01):
        method = make_method("cas-spec", f"method.forget={forget}", layers=lm.layers)
        assert isinstance(method, CASSpec)
        method.rounds, method.alpha = 99, [Estimate(0.005, [0] * 20) for _ in method.alpha]
        rounds = generate(lm, method, tokenizer("Tom has 3 apples")["input_ids"], 64).rounds
        drafted = sum(r.steps for r in rounds[len(rounds) // 2 :])
        assert (drafted > 0) == (forget > 0)
    assert make_method("cas-spec").forget > 0


@torch.inference_mode()
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_every_node_is_what_its_own_set_says_behind_its_path(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was drafted or copied before it, in the same pass as siblings or not; drafts take
    turns, so that each goes on behind the others.
    """
    lm = random_lm(family, "fused")
    method = make_method("cas-spec", "method.top_p=1", "method.warm_up=0", "method.forget=0")
    assert isinstance(method, CASSpec)
    turns = itertools.cycle((0, 1, method.bottom, 1, 0, method.bottom))

    def each_in_turn(leaf: int, most: int, copies: int) -> tuple[int, int]:
        draft = next(turns) if copies else next(turns) % method.bottom
        return draft, min(2, copies if draft == method.bottom else most)

    monkeypatch.setattr(method, "_choose", each_in_turn)
    state = State(lm, [*PROMPT, *PROMPT], Sampler(), 64, frozenset())
    state.emit([prefill(state)[0]])
    method.begin(state)
    method.costs[:-1] = [0.01] * method.bottom  # cheap, so that trees are deep
    clock, seen = Clock(lm.output_device), set[tuple[str, bool]]()
    clock.start()
    for _ in range(14):
        verification, _ = in_turn(state, method, clock)
        if state.finish is not None:
            break
        check_nodes(method, state, seen)
        assert verification.draft.tokens
    assert {("set", True), ("set", False), ("copy", False)} <= seen


def check_nodes(method: CASSpec, state: State, seen: set[tuple[str, bool]]) -> None:
    """A new tree, each node held against a plain chain; `seen`: kinds, and whether behind a node of
    another draft.
    """
    draft, lm = method.propose(state, 8), state.lm
    for node, (parent, (source, match)) in enumerate(
        zip(draft.parents(), method.tree.kinds, strict=True)
    ):
        path = method.tree.path(parent)
        if source == method.bottom:
            seen.add(("copy", False))
            continue
        rows = TokenRows.chain(lm.cache.length, 1 + len(path))
        logits = lm.logits([state.pending, *path], rows, method.skips[source])[-1]
        top = logits.topk(method.width).indices.tolist()
        assert draft.tokens[node] in (top[1:] if match < 0 else top[:1])
        above = method.tree.kinds[parent][0] if parent >= 0 else source
        seen.add(("set", above != source))
