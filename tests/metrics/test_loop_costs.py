"""Prices of a pass by a device's datasheet, and of rounds by those that were timed."""

import math

import msgspec
import pytest
from conftest import Command
from skipbench.metrics.costs import Datasheet, LatencyModel
from skipbench.metrics.loop_costs import LoopCosts, TimedRound

from skipbench.bench.round_costs import kinds
from skipbench.config.catalog import known_hardware, shape_of
from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.profile.roofline import match
from skipbench.runs.record import Verified
from skipbench.skipset import fixed_set


def test_a_datasheet_gives_what_reading_the_weights_takes() -> None:
    shape, device = shape_of("llama3.1-8b"), known_hardware()["a100-80gb"]
    costs = Datasheet(shape, "bfloat16", device)
    read = shape.weight_bytes("bfloat16") - 2 * shape.vocab * shape.hidden
    one = costs.at(0).pass_s()
    assert device.bandwidth is not None and one == pytest.approx(read / (0.6 * device.bandwidth))
    half = fixed_set("uniform", shape.layers, 0.5)
    assert 0.4 < costs.at(0).pass_s(half) / one < 0.6
    assert costs.at(16384).pass_s() > 1.1 * one
    assert costs.at(0, 4096).pass_s() > 5 * one  # arithmetic
    quantized = Datasheet(shape, "bfloat16", device, "int8").at(0).pass_s()
    read = shape.weight_bytes("bfloat16", "int8") - 2 * shape.vocab * shape.hidden
    assert quantized == pytest.approx(read / (0.6 * device.bandwidth))


def test_costs_of_rounds_are_found_again() -> None:
    """Points that follow the model give the model back, between the points as well."""
    layers, plain = 10, Verified()

    def point(
        context: int, rows: int, steps: int, attention: int, mlp: int, how: Verified
    ) -> TimedRound:
        draft = 3e-5 + steps * (1e-4 + attention * (2e-4 + 1e-7 * context) + mlp * 3e-4)
        verify = 5e-3 + rows * (1e-3 + 1e-6 * context) + 2e-3 * how.tree * rows
        verify += (5e-4 - 3e-4 * how.tree) * bool(how.top_tokens) * rows
        return TimedRound(
            context, rows, steps, attention, mlp, how, draft if steps else 0.0, verify
        )

    points = [point(c, r, 0, 10, 10, plain) for c in (64, 512) for r in (1, 5, 17)]
    sets = ((10, 10), (5, 5), (0, 10), (10, 0))
    points += [point(c, 5, 4, a, m, plain) for c in (64, 512) for a, m in sets]
    points += [point(64, 2, 1, 5, 5, plain), point(64, 9, 8, 5, 5, plain)]
    points += [point(64, r, 0, 10, 10, Verified(tree=True)) for r in (5, 17)]
    points += [point(64, r, 0, 10, 10, Verified(tree=True, top_tokens=6)) for r in (5, 17)]
    points += [point(64, r, 0, 10, 10, Verified(top_tokens=6)) for r in (5, 17)]
    costs = LoopCosts(layers, points)
    half = fixed_set("uniform", layers, 0.5)
    at = 300 + 6 / 2
    kept = layers - len(half.attention), layers - len(half.mlp)
    wanted = 3e-5 + 6 * (1e-4 + kept[0] * (2e-4 + 1e-7 * at) + kept[1] * 3e-4)
    assert costs.draft_s(300, 6, half, Verified()) == pytest.approx(wanted)
    wanted = 5e-3 + 11 * (1e-3 + 1e-6 * 300)
    assert costs.verify_s(300, 11, Verified()) == pytest.approx(wanted)
    tree = costs.verify_s(300, 11, Verified(tree=True))
    assert tree == pytest.approx(wanted + 2e-3 * 11)
    # timed together, a tree and top tokens are taken as they are, not as a sum
    both = costs.verify_s(300, 11, Verified(tree=True, top_tokens=6))
    assert both == pytest.approx(wanted + (2e-3 + 5e-4 - 3e-4) * 11)


def test_costs_of_plans_are_those_that_made_the_rounds() -> None:
    layers, model = 10, LatencyModel(2e-4, 1e-7, 3e-4, 1e-3, 10)
    low = msgspec.structs.replace(model, attention_s=9e-5, mlp_s=1.4e-4, head_s=4e-4)
    model = msgspec.structs.replace(model, variants={"int8": low}, likely_head_s=2e-4)
    rounds = []
    for kind in kinds(layers, (64, 512), {"int8", "likely"}):
        draft_s = kind.steps * (model.at(kind.context).pass_s(kind.plan))
        kept = layers - len(kind.plan.attention), layers - len(kind.plan.mlp)
        text = str(kind.plan) if kind.plan.variants else ""
        if kind.how == Verified():
            made = TimedRound(kind.context, kind.rows, kind.steps, *kept, kind.how, draft_s, 1e-3)
            rounds.append(msgspec.structs.replace(made, plan=text))
    costs = LoopCosts(layers, rounds)
    texts = "int8-attn:1-4;int8-mlp:2;mlp:5,7", "int8-attn:1-4;int8-mlp:2;head:int8;mlp:5,7"
    for text in (*texts, "int8:all;window:100;head:int8;attn:3"):
        plan = DraftPlan.parse(text, layers)
        wanted = model.draft_s(300, 5, plan)
        assert costs.draft_s(300, 5, plan) == pytest.approx(wanted, rel=1e-6)
    without = LoopCosts(layers, [round_ for round_ in rounds if not round_.plan])
    with pytest.raises(SkipbenchError, match="no prices of int8"):
        without.draft_s(300, 5, plan)


def test_the_first_step_of_an_early_exit_has_a_price_of_its_own() -> None:
    """A short draft up to an exit is not a part of a long one: each length is found again."""
    layers, first, step = 10, 9e-4, 3e-4

    def point(steps: int, kept: int, exits: int, draft_s: float) -> TimedRound:
        how = Verified(exit_sublayer=exits)
        return TimedRound(64, 1 + steps, steps, kept, kept, how, draft_s, 5e-3)

    points = [point(0, layers, 0, 0.0)]
    points += [point(n, kept, 0, n * kept * 4e-4) for n in (1, 4, 8) for kept in (5, 10)]
    points += [point(n, 1, 2, first + (n - 1) * step) for n in (1, 4)]
    costs = LoopCosts(layers, points)
    late = DraftPlan.of(layers, range(2, 2 * layers))
    for steps in (1, 2, 4, 8):
        found = costs.draft_s(64 - steps / 2, steps, late, Verified(exit_sublayer=2))
        assert found == pytest.approx(first + (steps - 1) * step, rel=1e-3)


def test_one_row_behind_many_takes_longer() -> None:
    """The same share per e-fold of the rows before, and none behind another single row."""

    def point(rows: int) -> TimedRound:
        behind_s = 1.1e-3 * (1 + 0.03 * math.log(rows))
        return TimedRound(64, rows, 0, 4, 4, Verified(), 0.0, 1e-3 * rows, behind_s)

    costs = LoopCosts(4, [point(n) for n in (1, 5, 17)])
    assert costs.verify_s(64, 1, Verified()) == pytest.approx(1e-3)
    behind = costs.verify_s(64, 1, Verified(), before=9)
    assert behind == pytest.approx(1e-3 * (1 + 0.03 * math.log(9)))
    assert costs.verify_s(64, 5, Verified(), before=9) == pytest.approx(5e-3)


def test_measured_hardware_is_no_place_and_no_datasheet(skipbench: Command) -> None:
    assert match("NVIDIA H100 80GB HBM3", known_hardware()) == "h100-sxm"
    table = "table", "swift-table2", "scale=paper", "--plan"
    for words, why in (
        (["hardware=h100-measured"], "hardware=h100-measured is no place where cells run"),
        (["hardware=slurm-a100", "hardware.device=h100-measured"], "wanted one of a100-40gb"),
    ):
        done = skipbench(*table, *words)
        assert done.returncode == 2 and why in done.stderr and done.stderr.count("\n") == 1
