"""The contract of every method in `conf/method`, found by listing the folder, on both engines and every family."""

import contract
import pytest
from conftest import ENGINES, FAMILIES, LAYERS, METHODS, make_method, random_lm

from skipbench.decode.method import Method
from skipbench.skipset import SkipSet, fixed_set

VARIANTS = {
    "default": (),
    "chain": ("stop@method.stop=fixed", "method.stop.max_steps=5"),
    "adaptive": ("stop@method.stop=adaptive", "method.stop.threshold=0.1"),
    "tree": ("stop@method.stop=fixed", "method.stop.max_steps=4", "method.tree=[4,3,2,1]"),
}
CASES = [(m, v) for m in METHODS for v in (VARIANTS if m != "vanilla" else ["default"])]


def method_of(name: str, variant: str) -> Method:
    return make_method(name, *VARIANTS[variant])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("name", "variant"), [c for c in CASES if c[1] in ("default", "tree")])
def test_greedy_is_the_plain_loop(name: str, variant: str, family: str, engine: str) -> None:
    contract.check_greedy(random_lm(family, engine), method_of(name, variant))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("name", "variant"), CASES)
def test_eos_and_limits(name: str, variant: str, engine: str) -> None:
    lm = random_lm("llama", engine)
    contract.check_eos(lm, method_of(name, variant))
    contract.check_limits(lm, method_of(name, variant))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("family", FAMILIES)
def test_an_empty_set_is_always_right(family: str, engine: str) -> None:
    contract.check_empty_set(random_lm(family, engine))
    contract.check_empty_set(random_lm(family, engine), (4, 3, 2, 1))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("skip", ["attn:0;mlp:3", "attn:1-3", "mlp:0,2", "attn:0-3;mlp:0-3"])
def test_draft_logits(skip: str, family: str, engine: str) -> None:
    contract.check_draft_logits(random_lm(family, engine), SkipSet.parse(skip, LAYERS))


@pytest.mark.parametrize(("name", "variant"), [c for c in CASES if c[1] == "default" or c == ("uniform", "tree")])
def test_sampling(name: str, variant: str) -> None:
    contract.check_sampling(random_lm("llama", "lean", vocab=7), method_of(name, variant), runs=600)


@pytest.mark.parametrize("tree", [False, True])
def test_sampling_of_guesses(tree: bool) -> None:
    contract.check_sampling(random_lm("llama", "modules", vocab=7), contract.Guesser(7, tree), runs=1500)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("tree", [False, True])
def test_greedy_of_guesses(tree: bool, engine: str) -> None:
    contract.check_greedy(random_lm("qwen3", engine), contract.Guesser(61, tree))


def test_the_random_models_accept_some_and_not_all() -> None:
    """Otherwise the contract would hold for any draft."""
    from skipbench.decode.drafting import Drafter
    from skipbench.decode.loop import generate
    from skipbench.decode.stopping import Fixed
    from skipbench.methods.fixed import FixedSet

    method = FixedSet("x", fixed_set("uniform", LAYERS, 0.3), Drafter(Fixed(5)))
    rounds = [r for start in range(8) for r in generate(random_lm("llama", "lean"), method, [start, 2, 3], 24).rounds]
    accepted, steps = sum(r.accepted for r in rounds), sum(r.steps for r in rounds)
    assert 0.02 < accepted / steps < 0.98
