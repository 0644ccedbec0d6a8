"""Each paper's own computation, and paired ratios, by their definition on real and made samples."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from builders import with_arm
from msgspec.structs import replace

from skipbench.config.compose import compose
from skipbench.experiments.row import run_cell
from skipbench.metrics.estimators import estimators
from skipbench.metrics.interval import paired_ratio_interval
from skipbench.metrics.pairs import standings
from skipbench.metrics.summary import summarise
from skipbench.runs.measures import Estimators
from skipbench.runs.reading import run_folders
from skipbench.runs.record import Arm, Turn
from skipbench.runs.run import read_run

LAYERS = 12  # of the embedded model
WORDS = ["method=uniform", "dataset=mini-summary", "limit=5", "dataset.max_new_tokens=16"]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("results")
    run_cell(compose([*WORDS, "engine.warmup=0", f"results={results}"]))
    (folder,) = run_folders(results)
    return folder


@pytest.fixture
def turns(ran: Path) -> list[Turn]:
    """Five prompts, the last two as the two turns of one question; one output ends at its EOS."""
    run = read_run(ran)
    found = list[Turn]()
    for turn in run.sound:
        arms = {"vanilla": turn.arms["vanilla"], "method": turn.arms[run.arm]}
        found.append(replace(turn, order=[*arms], arms=arms))
    assert len(found) == 5 and {len(turn.arms["method"].tokens) for turn in found} != {1}
    found[3] = replace(found[3], id="q-7", groups={"turn": "1"})
    found[4] = replace(found[4], id="q-7/2", groups={"turn": "2"}, question="q-7")
    for name in found[1].arms:
        found[1] = with_arm(found[1], name, finish="eos")
    return found


Script = Callable[[Sequence[Arm], Sequence[Arm]], float]
"""Of the method's and vanilla's outputs."""


def wall_time(arm: Arm) -> float:
    """The scripts read the clock before the prefill and after the last round."""
    t = arm.seconds
    return t.prefill + t.draft + t.verify + t.adapt + t.other


def of_swift(method: Sequence[Arm], vanilla: Sequence[Arm]) -> float:
    """SWIFT, speed.py: the mean over the prompts of new_tokens / wall_time, over the baseline's."""
    speeds = fmean(len(arm.tokens) / wall_time(arm) for arm in method)
    return speeds / fmean(len(arm.tokens) / wall_time(arm) for arm in vanilla)


def of_self_sd(method: Sequence[Arm], vanilla: Sequence[Arm]) -> float:
    """Self-SD, evaluate_sum.ipynb: `E2E mean token speed up`, from time / generate_ids.shape[1]."""
    base = fmean(wall_time(arm) / len(arm.tokens) for arm in vanilla)
    return base / fmean(wall_time(arm) / len(arm.tokens) for arm in method)


def of_knapspec(method: Sequence[Arm], vanilla: Sequence[Arm]) -> float:
    """KnapSpec, benchmark.py: avg_tokens_per_sec, from output_tokens / elapsed_sec; the generators
    cut the output before the EOS.
    """

    def average(arms: Sequence[Arm]) -> float:
        cut = [(arm, arm.tokens[:-1] if arm.finish == "eos" else arm.tokens) for arm in arms]
        return fmean(len(tokens) / wall_time(arm) for arm, tokens in cut)

    return average(method) / average(vanilla)


def of_clasp(method: Sequence[Arm], vanilla: Sequence[Arm]) -> float:
    """CLaSp published no code; it evaluates on Spec-Bench, whose speed.py sums new_tokens and
    wall_time of a question's turns.
    """

    def average(arms: Sequence[Arm]) -> float:
        questions = [*([arm] for arm in arms[:-2]), arms[-2:]]
        rates = (sum(len(a.tokens) for a in q) / sum(map(wall_time, q)) for q in questions)
        return fmean(rates)

    return average(method) / average(vanilla)


SCRIPTS: dict[str, Script] = {"swift": of_swift, "self_sd": of_self_sd}
SCRIPTS |= {"knapspec": of_knapspec, "clasp": of_clasp}


def arms(turns: Sequence[Turn]) -> list[list[Arm]]:
    """The method's outputs, and vanilla's."""
    return [[turn.arms[name] for turn in turns] for name in ("method", "vanilla")]


def found_in(turns: Sequence[Turn]) -> Estimators:
    return estimators(turns, "method")


@pytest.mark.parametrize("paper", SCRIPTS)
def test_each_paper_s_script_gives_its_estimate(paper: str, turns: list[Turn]) -> None:
    wanted = SCRIPTS[paper](*arms(turns))
    metrics = summarise(turns, "method", LAYERS)
    found, base = (getattr(m.estimators, paper) for m in (metrics, metrics.baseline))
    assert found.speedup == pytest.approx(wanted, rel=1e-9, abs=0)
    assert found.tokens_per_s / base.tokens_per_s == pytest.approx(wanted, rel=1e-9)
    # the four differ from one another, and from the speedup of decoding alone
    others = {n: script(*arms(turns)) for n, script in SCRIPTS.items() if n != paper}
    alone = metrics.speedup.paired or 0.0
    assert min(abs(wanted - x) for x in (*others.values(), alone)) > 1e-7
    # without the prefill the clock, and so the estimate, is another
    cut = list[Turn]()
    for turn in turns:
        for name, arm in turn.arms.items():
            turn = with_arm(turn, name, seconds=replace(arm.seconds, prefill=0.0))
        cut.append(turn)
    assert getattr(found_in(cut), paper).speedup != pytest.approx(wanted, rel=1e-6)


def test_alpha_of_self_sd_and_knapspec_is_a_mean_over_samples(turns: list[Turn]) -> None:
    """decoding.py's `matchness` and benchmark.py's acceptance_rate: matched / drafted, averaged."""
    each = [arm.rounds for arm in arms(turns)[0]]
    rates = [sum(r.accepted for r in rounds) / sum(r.steps for r in rounds) for rounds in each]
    metrics = summarise(turns, "method", LAYERS)
    assert metrics.alpha_macro == pytest.approx(fmean(rates), rel=1e-9)
    assert metrics.alpha != pytest.approx(metrics.alpha_macro, rel=1e-6)


def test_the_interval_is_of_the_ratio_of_means(turns: list[Turn]) -> None:
    found = found_in(turns).swift
    assert found.ci95 and found.speedup and found.ci95[0] < found.speedup < found.ci95[1]
    # equal prompts: no spread; prompts whose vanilla is equally fast: nearly that of the logs
    same = [replace(turns[0], index=i, id=str(i)) for i in range(5)]
    one = found_in(same).swift
    assert one.ci95 == pytest.approx((one.speedup, one.speedup))
    base = turns[0].arms["vanilla"]
    base = replace(base, seconds=replace(base.seconds, draft=1e3))
    near, ratios = list[Turn](), list[float]()
    for turn, more in zip(same, (1.0, 1.01, 0.99, 1.02, 0.98), strict=True):
        method = replace(base, seconds=replace(base.seconds, draft=1e3 / more))
        near.append(replace(turn, arms={"vanilla": base, "method": method}))
        ratios.append(method.seconds.total / base.seconds.total)
    swift, wanted = found_in(near).swift, paired_ratio_interval([1 / r for r in ratios])[1]
    assert swift.ci95 == pytest.approx(wanted, rel=1e-3)


def test_an_empty_run_has_no_estimate(turns: list[Turn]) -> None:
    assert found_in([]).swift.speedup is None
    failed = [with_arm(turn, lossless="failed") for turn in turns]
    assert summarise(failed, "method", LAYERS).estimators == found_in([])


def row(rng: np.random.Generator, n: int, speeds: list[float]) -> list[dict[str, float]]:
    """Speedups by question: prompts differ a lot, loop at times, and methods a little on each."""
    prompts = rng.normal(0.3, 0.275, n) + math.log(4.5) * (rng.random(n) < 0.18)
    logs = [prompts + math.log(speed) + rng.normal(0, 0.089, n) for speed in speeds]
    return [dict(zip(map(str, range(n)), np.exp(each).tolist(), strict=True)) for each in logs]


def test_the_ratio_to_the_fastest_by_hand() -> None:
    fast = {"a": 4.0, "b": 1.0, "c": 2.0, "d": 2.0, "e": 3.0, "only here": 9.0}
    slow = {q: r / (4 if q == "b" else 1) for q, r in fast.items() if q != "only here"}
    (first, second) = standings([fast, slow])
    assert (first.ratio, first.interval, first.tied) == (1.0, None, True)
    assert second.ratio == pytest.approx(4**-0.2) and second.tied
    alone = standings([fast])[0]
    assert alone.ratio == 1 and alone.tied and not alone.faster


def test_prompts_that_differ_do_not_hide_which_method_is_faster() -> None:
    arms = row(np.random.default_rng(3), 14, [1.15, 1.0])
    (_, a), (_, b) = (paired_ratio_interval([*arm.values()]) for arm in arms)
    assert a is not None and b is not None and b[1] > a[0]  # marginal intervals overlap
    fast, slow = standings(arms)
    assert fast.tied and fast.faster and not slow.tied
    assert slow.interval is not None and slow.interval[0] < 1 / 1.15 < slow.interval[1] < 1


@pytest.mark.parametrize("n", [8, pytest.param(20, marks=pytest.mark.slow)])
def test_all_intervals_of_a_row_hold_at_once(n: int) -> None:
    """Whichever method comes out first; single intervals would do in three of four rows."""
    rng, runs, held, kept = np.random.default_rng(n), 60 if n < 20 else 200, 0, 0
    for _ in range(runs):
        found = standings(row(rng, n, [1.0] * 6))
        held += all(s.interval is None or s.interval[0] <= 1 <= s.interval[1] for s in found)
        kept += found[0].tied
    assert held / runs > 0.92 and kept / runs > 0.97


def test_vanilla_against_itself_is_a_bar_and_no_method() -> None:
    rng = np.random.default_rng(1)
    names = list(map(str, range(10)))
    noise, method = (
        dict(zip(names, np.exp(rng.normal(mean, 0.01, 10)).tolist(), strict=True))
        for mean in (0.05, 0.06)
    )
    assert standings([method])[0].faster
    of_noise, of_method = standings([noise, method], vanilla=[0])
    assert not of_method.faster and not of_noise.tied and of_method.ratio == 1


def test_nothing_is_told_of_few_questions_or_of_others() -> None:
    few = standings([{q: 2.0 for q in "abcd"}, {q: 1.0 for q in "abcd"}])
    assert [s.ratio for s in few] == [1, pytest.approx(0.5)]
    assert not any(s.tied or s.faster or s.interval for s in few)
    assert standings([{"a": 2.0}, {"b": 1.0}]) == standings([]) == []
    same = standings([{q: 2.0 for q in "abcde"}] * 2)
    assert [(s.ratio, s.tied, s.faster) for s in same] == [(1, True, True)] * 2
