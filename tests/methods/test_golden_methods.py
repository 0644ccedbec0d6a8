"""Real checkpoints against recorded values of Hugging Face, and our methods with their switches at
`code` against what the papers' published code really computes.

The counts in the asserts are those of the recorded cases; a case may be left out only where its
records say that it ties.
"""

import itertools
import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import ENGINES, SHARED, rest_slow
from recorded import MODELS, NEEDS_RECORDS, checkpoint, golden, skip_of, ties

from skipbench.decode.draft import State
from skipbench.decode.loop import generate
from skipbench.decode.sampling import Sampler
from skipbench.decode.stopping import Adaptive, Fixed
from skipbench.decode.trial_passes import parallel_branches
from skipbench.decode.verify import verify_greedy
from skipbench.draft_plan import DraftPlan
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.methods.clasp import CLaSp, choose_layers
from skipbench.methods.del_ import DEL
from skipbench.methods.fixed import FixedSet
from skipbench.methods.knapspec import KnapSpec
from skipbench.methods.lookahead import Lookahead
from skipbench.methods.swift import SWIFT
from skipbench.methods.vanilla import Vanilla
from skipbench.metrics.host import NO_HOST

pytestmark = NEEDS_RECORDS
SWIFT_CODE_TREE = (10, 8, 5, 3)


def of_models(*models: str) -> pytest.MarkDecorator:
    """A case per checkpoint; the smallest is decoded every day."""
    return pytest.mark.parametrize("model", rest_slow(models, "stories260K".__eq__))


def cases(paper: str, kind: str, model: str) -> list[Any]:
    found = [case for case in golden(paper)[kind] if case["model"] == model]
    assert found
    return found


def same_rounds(ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    """Equal but for the last two rounds, where the published code runs over its length."""
    shared = min(len(ours), len(theirs)) - 2
    return abs(len(ours) - len(theirs)) <= 1 and list(ours[:shared]) == list(theirs[:shared])


def verified_states(lm: LM, prompt: list[int], chunks: list[list[int]]) -> list[torch.Tensor]:
    """States [S + 1, n, D] of chunks that are verified one after the other; the cache then holds
    all of them.
    """
    lm.prefill(prompt)
    found = []
    for tokens in chunks:
        hidden_states: list[torch.Tensor] = []
        rows = TokenRows.chain(lm.cache.length, len(tokens))
        lm.run(lm.embed(tokens), rows, hidden_states=hidden_states)
        lm.cache.length += len(tokens)
        found.append(torch.stack(hidden_states))
    return found


@pytest.mark.slow
@torch.inference_mode()
def test_clasp_sets_and_cosines() -> None:
    """The cosines of every cell on the way to the last one, to 1e-5, and the set in every case
    without exact ties.
    """
    equal = untied = 0
    for case in golden("clasp")["dp"]:
        lm, root, skipped = checkpoint(case["model"]), case["root_position"], case["M"]
        (states,) = verified_states(lm, case["token_ids"][:root], [case["token_ids"][root:]])
        lm.cache.length = case["position"] + 1
        x, run = states[::2, case["number_of_matches"]], parallel_branches(lm, 1, skipped, 2)
        chosen, executes, skips, last = choose_layers(
            x, lambda i, g, run=run: run(i, g[:, None])[:, 0], skipped
        )  # type: ignore[misc]  # mypy cannot infer a lambda with a default
        record = case["float32"]
        cosine = torch.cosine_similarity(last.double(), x[-1].double(), dim=0)
        assert float(cosine) == pytest.approx(record["final_cosine"], abs=1e-5)
        equal += chosen == record["skipped_layers"]
        if ties(case["model"]):
            continue
        untied += 1
        assert chosen == record["skipped_layers"]
        for cell, (execute, skip, executed) in record["decisions"].items():
            i, j = (int(n) - 1 for n in cell.split(","))
            if j + 1 < skipped - (len(x) - 2 - i):  # too few are left to skip: not computed here
                assert executes[i, j] == skips[i, j] == -torch.inf
                continue
            assert float(executes[i, j]) == pytest.approx(execute, abs=1e-5)
            assert float(skips[i, j]) == pytest.approx(skip, abs=1e-5)
            assert bool(executes[i, j] > skips[i, j]) == executed
    assert untied == 102
    assert equal >= 115  # of 138; the rest tie exactly, and the machine's kernels decide


def knapspec_code(layers: int, stop: Fixed, **options: Any) -> KnapSpec:
    code = {"lengths": [0, 17], "weight_cap": 5, "protect_ends": True, "drop_first": True}
    return KnapSpec(layers=layers, name="knapspec", stop=stop, start="full", **code, **options)


@pytest.mark.slow
@torch.inference_mode()
def test_knapspec_weights_candidates_and_choice() -> None:
    sets = candidates = 0
    for case in golden("knapspec")["optimize"]:
        lm, start, record = checkpoint(case["model"]), case["start"], case["float32"]
        ends = [start, *(start + n for n in itertools.accumulate(case["chunks"]))]
        chunks = [case["token_ids"][a:b] for a, b in itertools.pairwise(ends)]
        latency = [case["t_mlp"], 0.0, case["t_attn"]]
        tau = case["sim_threshold"]
        method = knapspec_code(lm.layers, Fixed(10, 0.7), tau=tau, latency=latency)
        states = verified_states(lm, case["token_ids"][:start], chunks)
        method.begin(State(lm, [1], Sampler(), 1, frozenset()))
        method._x = states
        method._optimise(lm, NO_HOST)
        trace = method.trace()
        assert trace["weights"] == [(record["w_attn"], record["w_mlp"])]
        final = [int(s in method.skip.skipped) for s in range(lm.sublayers)]
        if record["all_pruned"]:
            assert not any(final)
            assert trace["candidates"] == [[]]
            sets, candidates = sets + 1, candidates + 1
            continue
        weight, cosine, alpha = zip(*trace["candidates"][0], strict=True)
        untied = case["fp32_equals_fp64"]
        rates = pytest.approx(record["alpha"], abs=1e-6)
        same = list(weight) == record["valid_js"] and list(alpha) == rates
        candidates += same
        assert same or not untied["alpha"]
        if same:
            cosines = [c / case["r"] for c in record["candidate_sum_cos"]]
            assert list(cosine) == pytest.approx(cosines, abs=2e-5)
        # -1: one survivor, about which nothing was computed
        if same and untied["final"] and record["best_tpt"] > 0:
            assert trace["tpt"][0] == pytest.approx(record["best_tpt"], rel=1e-6)
        sets += final == record["final_skip_set"]
        # At length 0 all candidates promise the same, and the code's float32 rounding picks one of
        # them.
        tied = ties(case["model"]) or not untied["final"] or trace["gamma"] == [0]
        assert final == record["final_skip_set"] or tied
    # How many of the models that tie exactly agree is up to the rounding of the kernels that won on
    # this machine.
    assert (candidates, sets >= 330) == (364, True)


def swift(layers: int, **options: Any) -> SWIFT:
    return SWIFT(layers=layers, name="swift", stop=Fixed(25, 0.8), **options)


def clasp_of(case: Any, lm: LM) -> CLaSp:
    stop, ratio = Fixed(case["gamma"], case["th_exit"]), case["M"] / lm.layers
    given: dict[str, Any] = {"interval": case["optimize_interval"], "start": "full"}
    return CLaSp(layers=lm.layers, name="clasp", stop=stop, ratio=ratio, **given)


def knapspec_of(case: Any, lm: LM) -> KnapSpec:
    given = {"interval": case["optimize_interval"], "latency": case["coefficients_c1_c2_c3"]}
    return knapspec_code(lm.layers, Fixed(case["gamma"], case["conf_exit"]), **given)


def del_of(case: Any, lm: LM) -> DEL:
    given: dict[str, Any] = {"use_gamma": False, "count_rejected": True}
    return DEL(layers=lm.layers, name="del", stop=Fixed(case["num_speculations_cap"]), **given)


def swift_of(case: Any, lm: LM) -> FixedSet:
    skip = skip_of(lm, case["attn_skip"], case["mlp_skip"])
    return FixedSet("swift", skip, Fixed(25, 0.8), SWIFT_CODE_TREE)


MAKERS: dict[str, Any] = {
    "clasp": clasp_of, "del": del_of, "knapspec": knapspec_of, "swift": swift_of,
}  # fmt: skip
GENERATED = [(name, model) for name in MAKERS for model in MODELS]
DAILY = [("clasp", "stories260K"), ("del", "stories260K")]


def counts_of(case: Any) -> list[tuple[int, ...]]:
    """Accepted and drafted tokens of the published code's rounds, and DEL's exit layers."""
    if "draft_top1_prob_and_chain_per_round" in case:
        chains = case["draft_top1_prob_and_chain_per_round"]
        accepted = case["accept_length_list_incl_root"]
        return [(n - 1, len(chain)) for n, (_, chain) in zip(accepted, chains, strict=False)]
    names = ("accepted", "drafted", "exit_layer_used")
    # theirs begins with the prefill
    return [tuple(r[name] for name in names if name in r) for r in case["rounds"][1:]]


@pytest.mark.parametrize(("name", "model"), rest_slow(GENERATED, DAILY.__contains__))
def test_generation(name: str, model: str) -> None:
    for case in cases(name, "generation", model):
        method = MAKERS[name](case, checkpoint(model))
        length = case["max_new_tokens"]
        out = generate(checkpoint(model), method, case["prompt_ids"], length)
        assert out.tokens == case["tokens"][:length]
        ours = [(r.accepted, r.steps) for r in out.rounds]
        if name == "del":
            ours = [(*r, e) for r, e in zip(ours, method.trace()["exit_layer"], strict=True)]
        assert same_rounds(ours, counts_of(case))


@of_models(*MODELS)
@torch.inference_mode()
def test_swift_matchness(model: str) -> None:
    for case in cases("swift", "matchness", model):
        lm, window = checkpoint(case["model"]), case["context_window"]
        state = State(lm, case["prompt_ids"], Sampler(), 100, frozenset())
        lm.prefill(case["prompt_ids"] + case["generated_ids"][:-1])
        state.tokens += case["generated_ids"]
        method = swift(lm.layers, window=window)
        for record in case["sets"]:
            skip = skip_of(lm, record["attn"], record["mlp"])
            assert round(method.matchness(state, skip) * window) == record["matched"]


def test_swift_candidates() -> None:
    for case in golden("swift")["random_search"]:
        options = {"ratio": case["skip_ratio"], "seed": case["np_seed"]}
        method = swift(case["num_hidden_layers"], **options)
        for attention, mlp in case["draws"]:
            skip = method.rounded(method._suggest())
            assert (list(skip.attention), list(skip.mlp)) == (attention, mlp)
    for case in golden("swift")["bo_point_rounding"]:
        method = swift(case["num_hidden_layers"])
        method.count = case["num_skip_layers"]
        point = dict(map(tuple, case["point_in_key_order"]))
        skip = method.rounded([point[f"x{i}"] for i in range(len(point))])
        assert (list(skip.attention), list(skip.mlp)) == (case["attn"], case["mlp"])


class Replay:
    """A model that answers with given draft logits, one row per step."""

    engine = SimpleNamespace(works_ahead=False)

    def __init__(self, rows: list[list[float]]) -> None:
        self.rows = iter(rows)

    def metadata(self, rows: Any) -> Any:
        return rows

    def embed(self, tokens: Any) -> Any:
        return tokens

    def run(self, hidden: Any, *args: Any) -> Any:
        return hidden

    def head(self, hidden: Any, *args: Any) -> torch.Tensor:
        return torch.tensor([next(self.rows)])


def path_of(parents: list[int], tokens: list[int], node: int) -> tuple[int, ...]:
    """Tokens from below the root to a node; identifies a node in any order of nodes."""
    found: tuple[int, ...] = ()
    while node > 0:
        found, node = (tokens[node], *found), parents[node]
    return found


def test_swift_trees_and_their_acceptance() -> None:
    """Trees, and the accepted path for every recorded target; its padding bug accepts what is no
    node, there we must differ.
    """
    compared = bugs = 0
    for case in golden("swift")["trees"]:
        lm: Any = Replay(case["draft_logits"])
        lm.cache = type("Cache", (), {"length": 1})()
        state = State(lm, [case["root_token"]], Sampler(), 99, frozenset())
        stop = Fixed(len(case["draft_logits"]))
        method = FixedSet("swift", DraftPlan.of(1), stop, SWIFT_CODE_TREE)
        method.begin(state)
        draft = method.propose(state, 98)
        parents = [-1, *(p + 1 for p in draft.parents())]
        tokens = [case["root_token"], *draft.tokens]
        ours = [path_of(parents, tokens, n) for n in range(len(tokens))]
        theirs = [path_of(case["parents"], case["tree_tokens"], n) for n in range(len(tokens))]
        assert sorted(ours) == sorted(theirs)
        for record in case["accept"]:
            best = dict(zip(theirs, record["target_argmax_per_node"], strict=True))
            path, bonus = verify_greedy(draft, [best[p] for p in ours])
            if record["contains_padding_node"]:
                bugs += 1
                continue
            compared += 1
            assert [tokens[n + 1] for n in path] == record["accepted_tokens_incl_root"][1:]
            assert bonus == record["next_token"]
    assert compared > 30


@of_models(*MODELS)
def test_swift_search(model: str) -> None:
    """The on-the-fly random search over three prompts: every score, the best set, and every round
    but the last.
    """
    prompts = {(g["model"], g["prompt"]): g["prompt_ids"] for g in golden("swift")["generation"]}
    for case in cases("swift", "optimisation_run", model):
        lm = checkpoint(case["model"])
        if case["prompt"] == 0:
            code = {"beta": 0, "initial": "odd", "seed": case["np_seed"], "tree": SWIFT_CODE_TREE}
            code["rescore"] = False
            options = {"ratio": case["skip_ratio"], "window": case["context_window"]}
            method = swift(lm.layers, **code, **options)
        # As many tokens as the code overshoots to, and the bonus that it does not count.
        out = generate(lm, method, prompts[case["model"], case["prompt"]], len(case["tokens"]) + 1)
        assert out.tokens[:-1] == case["tokens"]
        assert [score for _, score in method.tried] == case["scores_so_far"]
        assert method.score == case["origin_score"]
        assert [list(method.skip.attention), list(method.skip.mlp)] == case["set_after"]
        accepted = [r.accepted + 1 for r in out.rounds]
        assert same_rounds(accepted, case["accept_length_list_incl_root"])


@of_models(*MODELS[:2])
def test_lookahead_steps(model: str) -> None:
    for case in cases("lade", "generation", model):
        lm, config = checkpoint(case["model"]), case["config"]
        names = {"window": "WINDOW_SIZE", "level": "LEVEL", "guesses": "GUESS_SET_SIZE"}
        sizes = {ours: config[theirs] for ours, theirs in names.items()}
        code = {"pool_from_prompt": config["POOL_FROM_PROMPT"], "repeat_hit": True, "whole": False}
        first = case["initial_window_level0"]
        method = Lookahead(name="lookahead", **sizes, **code, first_window=first)
        out = generate(lm, method, case["prompt_ids"], len(case["tokens"]))
        assert out.tokens == case["tokens"]
        generated = list(itertools.accumulate([1, *(r.emitted for r in out.rounds)]))
        assert generated[:-1] == case["generated_before_each_step"][1:]


@pytest.mark.parametrize("engine", rest_slow(ENGINES, "fused".__eq__))
@pytest.mark.parametrize("name", rest_slow(MODELS, lambda n: n.startswith("stories")))
def test_vanilla_is_hugging_face_greedy(name: str, engine: str) -> None:
    for case in golden("hf_greedy")["models"][name]:
        lm = checkpoint(name, engine)
        assert generate(lm, Vanilla(), case["prompt_ids"], 64).tokens == case["tokens_no_stop"]
        ended = generate(lm, Vanilla(), case["prompt_ids"], 64, frozenset([2, 1])).tokens
        assert ended == case["tokens_eos_stop"]


@pytest.mark.parametrize("engine", rest_slow(ENGINES, "fused".__eq__))
def test_the_identity_layers_are_found_free(engine: str) -> None:
    """With exactly the identity layers skipped, every draft token is right."""
    name = "babyllama-361-deep12-noop"
    noop = json.loads((SHARED / "models" / name / "DERIVED.json").read_text())["noop_layers"]
    skip = DraftPlan.of(12, [s for i in noop for s in (2 * i, 2 * i + 1)])
    for case in golden("hf_greedy")["models"][name]:
        method = FixedSet("noop", skip, Fixed(8))
        out = generate(checkpoint(name, engine), method, case["prompt_ids"], 64)
        assert out.tokens == case["tokens_no_stop"]
        assert all(r.accepted == r.steps for r in out.rounds)


def adaptive(most: int, threshold: float, auto: list[float]) -> Adaptive:
    """The stop rule of Self-SD's code."""
    every, beta1, target, step, beta2 = auto
    code: dict[str, Any] = {"first_beta1": "code", "full_length_guard": True, "every": int(every)}
    own = {"target": target, "step": step, "beta1": beta1, "beta2": beta2}
    return Adaptive(max_steps=most, threshold=threshold, **own, **code)


def test_self_sd_threshold_is_that_of_the_published_code() -> None:
    for case in golden("selfsd")["threshold_trajectories"]:
        rule = adaptive(case["max_step_draft"], case["th0"], case["auto_parameters"])
        for number, r in enumerate(case["rounds"]):
            rule.update(r["matched"], r["drafted"])
            assert rule.threshold == pytest.approx(r["th_after"], abs=1e-12), (case["name"], number)


@pytest.mark.slow
def test_self_sd_rounds_are_those_of_the_published_code() -> None:
    """Tokens, and accepted and drafted counts of every round but the last two, where the code
    overshoots its length.
    """
    for case in golden("selfsd")["generation"]:
        lm, config = checkpoint(case["model"]), case["config"]
        given = config["max_step_draft"], config["th_stop_draft"]
        skip, adapts = skip_of(lm, case["attn_skip"], case["mlp_skip"]), "auto_th_stop_draft"
        stop = adaptive(*given, case["auto_parameters"]) if config[adapts] else Fixed(*given)
        method = FixedSet("self-sd", skip, stop)
        out = generate(lm, method, case["prompt_ids"], case["max_new_tokens"])
        assert out.tokens == case["tokens"]
        ours = [(r.accepted, r.steps) for r in out.rounds][:-2]
        assert ours == [(r["matched"], r["drafted"]) for r in case["rounds"]][: len(ours)]
