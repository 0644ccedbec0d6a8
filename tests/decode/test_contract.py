"""The contract of every method in `conf/method`, found by listing the folder; every engine and
family by pairs.
"""

import contract
import pytest
from conftest import (
    ALONE,
    ANYWHERE,
    EVERY_ENGINE,
    FAMILIES,
    LAYERS,
    ONE_SET,
    here,
    make_method,
    random_lm,
    rest_slow,
    settings_of,
)

from skipbench.decode.method import Method
from skipbench.draft_plan import DraftPlan

VARIANTS = {
    "default": (),
    "chain": ("stop@method.stop=fixed", "method.stop.max_steps=5", "method.stop.threshold=0"),
    "adaptive": ("stop@method.stop=adaptive", "method.stop.threshold=0.1"),
    "price": ("stop@method.stop=price", "method.stop.row_prices=[1,1,1.1,1.2,1.3,1.4]"),
    "tree": ("stop@method.stop=fixed", "method.stop.max_steps=4", "method.tree=[4,3,2,1]"),
}
SWITCHES = {
    "swift": [
        "tree=[10,5,3,1]", "stop.threshold=0", "steps=0", "beta=0", "initial=odd", "context=recent",
        "register=raw", "protect_ends=false", "bayes_starts=1", "bayes_restarts=1", "max_score=1",
        "adjust_below=1", "rescore=false", "stop.confidence=sampled",
    ],
    "clasp": [
        "unit=sublayer", "interval_unit=tokens", "start=full", "programme=sequential",
        "ratio=0.25", "ratio=0.75",
    ],
    "knapspec": [
        "start=carry", "start=full", "protect_ends=true", "drop_first=true", "use_gamma=true",
        "lengths=[0,17]", "weight_cap=2", "budget=0.9", "tau=0.97", "tau=1", "history=1",
        "interval=1", "latency=[1e-4,0,3e-4]", "latency=[3e-4,0,1e-4]",
    ],
    "layerskip": ["exit_layer=1", "exit_layer=3", "share=false"],
    "del": ["use_gamma=false", "dynamic_threshold=false", "count_rejected=true", "omega=1"],
    "asd": ["threshold=-1", "threshold=1", "keep_first=0", "keep_last=0", "most=0.3", "every=1"],
    "parallel": ["init=prompt", "init=random", "window=sliding", "block_size=2"],
    "lookahead": ["pool_from_prompt=true", "repeat_hit=true", "whole=false", "window=2", "level=3",
    "guesses=1", "window=0"],
    "prompt-lookup": ["occurrence=first", "output=false", "ngram=1", "length=2",
    "continuation=full", "continuation=cut"],
    "suffix": ["factor=0.5", "shortest=1", "min_share=0.6", "earlier=64", "max_nodes=3"],
    "recycling": ["nodes=8", "memory=4"],
    "auto": ["max_nodes=3", "memory=4", "earlier=64", "window=2", "explore=0",
    "draft_prices=[0.3,0.35]"],
    "self-sd": ["stop.first_beta1=code", "stop.full_length_guard=true", "stop.every=2"],
}  # fmt: skip
NEEDS = {name: {"stop"} for name in VARIANTS} | {"default": set(), "tree": {"stop", "tree"}}
CASES = here((m, v) for m in ALONE for v in VARIANTS if settings_of(m) >= NEEDS[v])
# Method, engine and family are nearly independent, and `test_tree_logits` ties every engine to
# every family. So: every method and variant on one engine and family; every engine and family with
# one tree; methods whose passes are no chain and no plain tree on every engine, with a window
# shorter than the text. Every day: every class of methods; trees whose nodes are drafted in
# different ways; every family; the engines but for the reference, whose passes are Hugging Face's.
UNUSUAL = here(("clasp", "del", "knapspec", "layerskip", "lookahead", "swift"))
GREEDY_CASES = dict.fromkeys(
    [
        *((m, v, "llama", "fused") for m, v in CASES if v in ("default", "tree")),
        *(("uniform", "tree", family, engine) for family in FAMILIES for engine in EVERY_ENGINE),
        *((m, "default", "mistral", engine) for m in UNUSUAL for engine in EVERY_ENGINE),
    ]
)
TREES = ("layerskip", "swift", "uniform")
CROSSED = {
    ("llama", "cuda_graphs"), ("qwen2", "fused"), ("qwen3", "cuda_graphs"), ("mistral", "fused"),
    ("llama", "reference"),
}  # fmt: skip
ON_ENGINES = rest_slow([(f, e) for f in FAMILIES for e in EVERY_ENGINE], CROSSED.__contains__)
# Whatever drafts with a skip set samples in `SkipMethod`; the others have ways of their own.
# A guess is verified the same way whoever made it: `test_sampling_nodes.py` has it every day.
SAMPLED = [("uniform", "tree")]
SHAPES = [*SAMPLED, ("auto", "default"), ("lookahead", "default")]
SHAPED = [c for c in CASES if c[1] in ("default", "tree")]
ENDS = [*SHAPES, *(c for c in CASES if c[0] == "uniform")]
SKIPS = ["attn:0;mlp:3", "attn:1-3", "mlp:0,2", "attn:0-3;mlp:0-3"]
SWITCH_CASES = [(m, s) for m, switches in SWITCHES.items() for s in switches]


def method_of(name: str, variant: str) -> Method:
    overrides = VARIANTS.get(variant, (f"method.{variant}",))
    if name == "layerskip" and variant == "tree":
        overrides = (*overrides, "method.share=false")
    return make_method(name, *overrides)


def of_every_day(case: tuple[str, str, str, str]) -> bool:
    name, variant, family, engine = case
    if (family, engine) == ("llama", "fused"):
        return name not in ONE_SET and (variant == "default" or name in TREES)
    if variant == "tree":
        return (family, engine) in CROSSED
    return engine == "cuda_graphs" and name in ("clasp", "del", "knapspec")


@pytest.mark.parametrize(
    ("name", "variant", "family", "engine"), rest_slow(GREEDY_CASES, of_every_day)
)
def test_greedy_is_the_plain_loop(name: str, variant: str, family: str, engine: str) -> None:
    method = method_of(name, variant)
    # DEL finds no exit of the random Llama that pays, and drafts with that of the random Mistral
    drafts = name != "vanilla" and (name, family) != ("del", "llama")
    contract.check_greedy(random_lm(family, engine), method, drafts=drafts)


@pytest.mark.slow
@pytest.mark.parametrize("engine", EVERY_ENGINE)
@pytest.mark.parametrize("name", [m for m in ANYWHERE if m not in UNUSUAL])
def test_greedy_of_every_other_method_behind_a_window(name: str, engine: str) -> None:
    """With `UNUSUAL` that is every method on every engine, one that is added later too."""
    method = make_method(name)
    contract.check_greedy(random_lm("mistral", engine), method, drafts=name != "vanilla")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "switch"), SWITCH_CASES)
def test_every_switch(name: str, switch: str) -> None:
    """Greedy over several prompts with one method, so that what is carried across them counts too;
    then sampling.
    """
    lm = random_lm("qwen3", "fused")
    method = method_of(name, switch)
    copies = switch != "output=false"  # the prompt alone has nothing that the output goes on with
    for first in range(3):
        contract.check_greedy(lm, method, [first, *contract.PROMPT], length=32, drafts=copies)
    contract.check_sampling(
        random_lm("llama", "fused", vocab=7),
        method_of(name, switch),
        runs=150,
        how=(0.3, 0.95, 0),
        drafts=name != "prompt-lookup",  # its switches ask for more than so short a prompt has
    )


@pytest.mark.parametrize(("name", "variant"), rest_slow(CASES, ENDS.__contains__))
def test_eos_and_limits(name: str, variant: str) -> None:
    lm = random_lm("llama", "fused")
    contract.check_ends(lm, method_of(name, variant), 1 if name == "uniform" else 3)


@pytest.mark.parametrize(("family", "engine"), ON_ENGINES)
def test_an_empty_set_is_always_right(family: str, engine: str) -> None:
    contract.check_empty_set(random_lm(family, engine))
    contract.check_empty_set(random_lm(family, engine), (4, 3, 2, 1))


@pytest.mark.parametrize(("family", "engine"), ON_ENGINES)
@pytest.mark.parametrize("skip", rest_slow(SKIPS, SKIPS[0].__eq__))
def test_draft_logits(skip: str, family: str, engine: str) -> None:
    contract.check_draft_logits(random_lm(family, engine), DraftPlan.parse(skip, LAYERS))


@pytest.mark.parametrize(("family", "engine"), ON_ENGINES)
def test_tree_logits(family: str, engine: str) -> None:
    contract.check_tree_logits(random_lm(family, engine), DraftPlan.parse("attn:1;mlp:2", LAYERS))


@pytest.mark.parametrize(("name", "variant"), rest_slow(SHAPED, SAMPLED.__contains__))
def test_sampling(name: str, variant: str) -> None:
    method = method_of(name, variant)
    contract.check_sampling(random_lm("llama", "fused", vocab=7), method, drafts=name != "vanilla")


@pytest.mark.slow
@pytest.mark.parametrize("how", [(0.7, 1.0, 0), (1.0, 0.8, 0), (1.0, 1.0, 3)], ids=str)
@pytest.mark.parametrize(("name", "variant"), [c for c in SHAPED if c[0] != "vanilla"])
def test_sampling_of_many_outputs(name: str, variant: str, how: tuple[float, float, int]) -> None:
    contract.check_sampling(
        random_lm("llama", "fused", vocab=7), method_of(name, variant), 600, how
    )


@pytest.mark.parametrize("engine", EVERY_ENGINE)
@pytest.mark.parametrize("tree", [False, True])
def test_greedy_of_guesses(tree: bool, engine: str) -> None:
    contract.check_greedy(random_lm("qwen3", engine), contract.Guesser(61, tree))


LASTING = {"asd", "auto", "knapspec", "lookahead", "recycling", "swift"}


@pytest.mark.parametrize("name", rest_slow(ALONE, LASTING.__contains__))
def test_what_a_method_carries_is_all_that_lasts(name: str) -> None:
    """A method that goes on behind a stop gives the rounds and the trace of one that never
    stopped.
    """
    contract.check_carried(random_lm("llama", "fused"), make_method(name))


@pytest.mark.parametrize(("name", "variant"), rest_slow(SHAPED, SHAPES.__contains__))
def test_drafts_are_chains_and_trees(name: str, variant: str) -> None:
    contract.check_drafts(random_lm("llama", "fused"), method_of(name, variant))
