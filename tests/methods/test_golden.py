"""Real checkpoints against recorded values of Hugging Face and of the papers' published code, where
that folder is at hand.
"""

import json
from typing import Any

import pytest
from conftest import ENGINES, SHARED, rest_slow
from recorded import MODELS, NEEDS_RECORDS, checkpoint, golden

from skipbench.decode.loop import generate
from skipbench.decode.stopping import Adaptive, Fixed, StopRule
from skipbench.draft_plan import DraftPlan
from skipbench.methods.fixed import FixedSet
from skipbench.methods.vanilla import Vanilla

pytestmark = NEEDS_RECORDS


@pytest.mark.parametrize("engine", rest_slow(ENGINES, "fused".__eq__))
@pytest.mark.parametrize("name", rest_slow(MODELS, lambda n: n.startswith("stories")))
def test_vanilla_is_hugging_face_greedy(name: str, engine: str) -> None:
    for case in golden("hf_greedy")["models"][name]:
        lm = checkpoint(name, engine)
        assert generate(lm, Vanilla(), case["prompt_ids"], 64).tokens == case["tokens_no_stop"]
        assert (
            generate(lm, Vanilla(), case["prompt_ids"], 64, frozenset([2, 1])).tokens
            == case["tokens_eos_stop"]
        )


@pytest.mark.parametrize("engine", rest_slow(ENGINES, "fused".__eq__))
def test_the_identity_layers_are_found_free(engine: str) -> None:
    """With exactly the identity layers skipped, every draft token is right."""
    name = "babyllama-361-deep12-noop"
    noop = json.loads((SHARED / "models" / name / "DERIVED.json").read_text())["noop_layers"]
    skip = DraftPlan.of(12, [s for i in noop for s in (2 * i, 2 * i + 1)])
    for case in golden("hf_greedy")["models"][name]:
        out = generate(
            checkpoint(name, engine),
            FixedSet("noop", skip, Fixed(8)),
            case["prompt_ids"],
            64,
        )
        assert out.tokens == case["tokens_no_stop"]
        assert all(r.accepted == r.steps for r in out.rounds)


def stop_rule(config: dict[str, Any], auto: list[float]) -> StopRule:
    if not config["auto_th_stop_draft"]:
        return Fixed(config["max_step_draft"], config["th_stop_draft"])
    every, beta1, target, step, beta2 = auto
    return Adaptive(
        max_steps=config["max_step_draft"],
        threshold=config["th_stop_draft"],
        target=target,
        step=step,
        beta1=beta1,
        beta2=beta2,
        every=int(every),
        first_beta1="code",
        full_length_guard=True,
    )


def test_self_sd_threshold_is_that_of_the_published_code() -> None:
    for case in golden("selfsd")["threshold_trajectories"]:
        config = {
            "max_step_draft": case["max_step_draft"],
            "th_stop_draft": case["th0"],
            "auto_th_stop_draft": True,
        }
        rule = stop_rule(config, case["auto_parameters"])
        for number, r in enumerate(case["rounds"]):
            rule.update(r["matched"], r["drafted"])
            assert rule.threshold == pytest.approx(r["th_after"], abs=1e-12), (case["name"], number)


@pytest.mark.slow
def test_self_sd_rounds_are_those_of_the_published_code() -> None:
    """Tokens, and accepted and drafted counts of every round but the last two, where the code
    overshoots its length.
    """
    for case in golden("selfsd")["generation"]:
        lm = checkpoint(case["model"], "fused")
        skip = DraftPlan.of(
            lm.layers, [2 * i for i in case["attn_skip"]] + [2 * i + 1 for i in case["mlp_skip"]]
        )
        method = FixedSet("self-sd", skip, stop_rule(case["config"], case["auto_parameters"]))
        out = generate(lm, method, case["prompt_ids"], case["max_new_tokens"])
        assert out.tokens == case["tokens"]
        ours = [(r.accepted, r.steps) for r in out.rounds][:-2]
        assert ours == [(r["matched"], r["drafted"]) for r in case["rounds"]][: len(ours)]
