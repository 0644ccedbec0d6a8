"""Each paper's own computation, written out from its scripts, on the samples of a real run."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

import pytest
from msgspec.structs import replace

from skipbench.config.compose import compose
from skipbench.experiments.row import run_cell
from skipbench.metrics.estimators import estimators
from skipbench.metrics.interval import paired_ratio_interval
from skipbench.metrics.summary import summarise
from skipbench.runs.reading import run_folders
from skipbench.runs.record import Arm, Sample
from skipbench.runs.run import read_run

LAYERS = 12  # of the embedded model
WORDS = ["method=uniform", "dataset=mini-summary", "limit=5", "dataset.max_new_tokens=32"]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("results")
    run_cell(compose([*WORDS, "engine.warmup=0", f"results={results}"]))
    (folder,) = run_folders(results)
    return folder


@pytest.fixture
def samples(ran: Path) -> list[Sample]:
    """Five prompts, the last two as the two turns of one question; one output ends at its EOS."""
    found = list(read_run(ran).sound)
    assert len(found) == 5 and {len(s.method.tokens) for s in found} != {1}
    found[3] = replace(found[3], id="q-7", groups={"turn": "1"})
    found[4] = replace(found[4], id="q-7/2", groups={"turn": "2"}, question="q-7")
    ended = {n: replace(getattr(found[1], n), finish="eos") for n in ("vanilla", "method")}
    found[1] = replace(found[1], **ended)
    return found


Script = Callable[[Sequence[Sample]], float]


def wall_time(arm: Arm) -> float:
    """The scripts read the clock before the prefill and after the last round."""
    t = arm.seconds
    return t.prefill + t.draft + t.verify + t.adapt + t.other


def of_swift(samples: Sequence[Sample]) -> float:
    """SWIFT, speed.py: the mean over the prompts of new_tokens / wall_time, over the baseline's."""
    speeds = fmean(len(s.method.tokens) / wall_time(s.method) for s in samples)
    return speeds / fmean(len(s.vanilla.tokens) / wall_time(s.vanilla) for s in samples)


def of_self_sd(samples: Sequence[Sample]) -> float:
    """Self-SD, evaluate_sum.ipynb: `E2E mean token speed up`, from time / generate_ids.shape[1]."""
    base = fmean(wall_time(s.vanilla) / len(s.vanilla.tokens) for s in samples)
    return base / fmean(wall_time(s.method) / len(s.method.tokens) for s in samples)


def of_knapspec(samples: Sequence[Sample]) -> float:
    """KnapSpec, benchmark.py: avg_tokens_per_sec, from output_tokens / elapsed_sec; the generators
    cut the output before the EOS.
    """

    def average(arms: Sequence[Arm]) -> float:
        cut = [(arm, arm.tokens[:-1] if arm.finish == "eos" else arm.tokens) for arm in arms]
        return fmean(len(tokens) / wall_time(arm) for arm, tokens in cut)

    return average([s.method for s in samples]) / average([s.vanilla for s in samples])


def of_clasp(samples: Sequence[Sample]) -> float:
    """CLaSp published no code; it evaluates on Spec-Bench, whose speed.py sums new_tokens and
    wall_time of a question's turns.
    """

    def average(arms: Sequence[Arm]) -> float:
        questions = [*([arm] for arm in arms[:-2]), arms[-2:]]
        rates = (sum(len(a.tokens) for a in q) / sum(map(wall_time, q)) for q in questions)
        return fmean(rates)

    return average([s.method for s in samples]) / average([s.vanilla for s in samples])


SCRIPTS: dict[str, Script] = {"swift": of_swift, "self_sd": of_self_sd}
SCRIPTS |= {"knapspec": of_knapspec, "clasp": of_clasp}


def with_arms(sample: Sample, **seconds: float) -> Sample:
    """The sample with other seconds in both arms."""
    arms = {name: getattr(sample, name) for name in ("vanilla", "method")}
    changed = {n: replace(a, seconds=replace(a.seconds, **seconds)) for n, a in arms.items()}
    return replace(sample, **changed)


@pytest.mark.parametrize("paper", SCRIPTS)
def test_each_paper_s_script_gives_its_estimate(paper: str, samples: list[Sample]) -> None:
    wanted = SCRIPTS[paper](samples)
    metrics = summarise(samples, LAYERS, None, None, None)
    assert metrics.estimators
    found = getattr(metrics.estimators, paper)
    assert found.speedup == pytest.approx(wanted, rel=1e-9, abs=0)
    assert found.tokens_per_s / found.tokens_per_s_vanilla == pytest.approx(wanted, rel=1e-9)
    # the four differ from one another, and from the decode-only aggregations
    others = {n: script(samples) for n, script in SCRIPTS.items() if n != paper}
    by = metrics.speedup
    decode_only = (by.micro, by.macro, by.s_per_token, by.paired)
    assert min(abs(wanted - x) for x in (*others.values(), *decode_only) if x) > 1e-7
    # without the prefill the clock, and so the estimate, is another
    cut = [with_arms(s, prefill=0.0) for s in samples]
    assert getattr(estimators(cut), paper).speedup != pytest.approx(wanted, rel=1e-6)


def test_alpha_of_self_sd_and_knapspec_is_a_mean_over_samples(samples: list[Sample]) -> None:
    """decoding.py's `matchness` and benchmark.py's acceptance_rate: matched / drafted, averaged."""
    each = [s.method.rounds for s in samples]
    rates = [sum(r.accepted for r in rounds) / sum(r.steps for r in rounds) for rounds in each]
    metrics = summarise(samples, LAYERS, None, None, None)
    assert metrics.alpha_macro == pytest.approx(fmean(rates), rel=1e-9)
    assert metrics.alpha != pytest.approx(metrics.alpha_macro, rel=1e-6)


def test_the_interval_is_of_the_ratio_of_means(samples: list[Sample]) -> None:
    found = estimators(samples).swift
    assert found.ci95 and found.speedup and found.ci95[0] < found.speedup < found.ci95[1]
    # equal prompts: no spread; prompts whose vanilla is equally fast: nearly that of the logs
    one = estimators([replace(samples[0], index=i, id=str(i)) for i in range(5)]).swift
    assert one.ci95 == pytest.approx((one.speedup, one.speedup))
    base = replace(samples[0].vanilla, seconds=replace(samples[0].vanilla.seconds, draft=1e3))
    near, ratios = [], []
    for i, more in enumerate((1.0, 1.01, 0.99, 1.02, 0.98)):
        method = replace(base, seconds=replace(base.seconds, draft=1e3 / more))
        near.append(replace(samples[0], index=i, id=str(i), vanilla=base, method=method))
        ratios.append(method.seconds.total / base.seconds.total)
    swift, wanted = estimators(near).swift, paired_ratio_interval([1 / r for r in ratios])[1]
    assert swift.ci95 == pytest.approx(wanted, rel=1e-3)


def test_an_empty_run_has_no_estimate(samples: list[Sample]) -> None:
    assert estimators([]).swift.speedup is None
    failed = [replace(s, lossless="failed") for s in samples]
    assert estimators(failed) == estimators([])


def test_the_record_holds_them(ran: Path) -> None:
    stored = json.loads((ran / "metrics.json").read_text())
    assert list(stored["estimators"]) == ["swift", "self-sd", "knapspec", "clasp"]
