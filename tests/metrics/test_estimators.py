"""Each paper's own computation, written out from its scripts, on the samples of a real run."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

import pytest
from msgspec import json as packed
from msgspec.structs import replace

from skipbench.config.compose import compose
from skipbench.experiments.row import run_cell
from skipbench.metrics.estimators import estimators
from skipbench.metrics.interval import paired_ratio_interval
from skipbench.metrics.repeats import summarise_repeats
from skipbench.metrics.summary import summarise
from skipbench.runs.measures import Metrics
from skipbench.runs.reading import run_folders
from skipbench.runs.record import Sample
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
    found[1] = replace(
        found[1],
        vanilla=replace(found[1].vanilla, finish="eos"),
        method=replace(found[1].method, finish="eos"),
    )
    return found


Script = Callable[[Sequence[Sample]], float]


def of_swift(samples: Sequence[Sample]) -> float:
    """SWIFT, speed.py: the mean over the prompts of new_tokens / wall_time, over the baseline's;
    eval.py reads the clock before the prefill and after the last round.
    """
    speeds: list[float] = []
    speeds0: list[float] = []
    for s in samples:
        for arm, found in ((s.method, speeds), (s.vanilla, speeds0)):
            t = arm.seconds
            wall_time = t.prefill + t.draft + t.verify + t.adapt + t.other
            found.append(len(arm.tokens) / wall_time)
    return fmean(speeds) / fmean(speeds0)


def of_self_sd(samples: Sequence[Sample]) -> float:
    """Self-SD, evaluate_sum.ipynb: `E2E mean token speed up`, from time / generate_ids.shape[1]."""
    token_time: dict[str, list[float]] = {"base": [], "essg": []}
    for s in samples:
        for name, arm in (("base", s.vanilla), ("essg", s.method)):
            t = arm.seconds
            time = t.prefill + t.draft + t.verify + t.adapt + t.other
            token_time[name].append(time / len(arm.tokens))
    return fmean(token_time["base"]) / fmean(token_time["essg"])


def of_knapspec(samples: Sequence[Sample]) -> float:
    """KnapSpec, benchmark.py: avg_tokens_per_sec, from output_tokens / elapsed_sec; the generators
    cut the output before the EOS.
    """
    averages = []
    for arms in ([s.method for s in samples], [s.vanilla for s in samples]):
        tokens_per_sec = 0.0
        for arm in arms:
            output_tokens = len(arm.tokens[:-1] if arm.finish == "eos" else arm.tokens)
            t = arm.seconds
            elapsed_sec = t.prefill + t.draft + t.verify + t.adapt + t.other
            tokens_per_sec += output_tokens / elapsed_sec
        averages.append(tokens_per_sec / len(arms))
    return averages[0] / averages[1]


def of_clasp(samples: Sequence[Sample]) -> float:
    """CLaSp published no code; it evaluates on Spec-Bench, whose speed.py sums new_tokens and
    wall_time of a question's turns.
    """
    last = samples[-2:]
    questions = [[s] for s in samples[:-2]] + [[*last]]
    speeds = []
    for arms in (
        [[s.method for s in q] for q in questions],
        [[s.vanilla for s in q] for q in questions],
    ):
        rates = []
        for turns in arms:
            seconds = [a.seconds for a in turns]
            times = sum(t.prefill + t.draft + t.verify + t.adapt + t.other for t in seconds)
            rates.append(sum(len(a.tokens) for a in turns) / times)
        speeds.append(fmean(rates))
    return speeds[0] / speeds[1]


SCRIPTS: dict[str, Script] = {
    "swift": of_swift,
    "self_sd": of_self_sd,
    "knapspec": of_knapspec,
    "clasp": of_clasp,
}


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
    cut = [
        replace(
            s,
            vanilla=replace(s.vanilla, seconds=replace(s.vanilla.seconds, prefill=0.0)),
            method=replace(s.method, seconds=replace(s.method.seconds, prefill=0.0)),
        )
        for s in samples
    ]
    assert getattr(estimators([cut]), paper).speedup != pytest.approx(wanted, rel=1e-6)


def test_alpha_of_self_sd_and_knapspec_is_a_mean_over_samples(samples: list[Sample]) -> None:
    """decoding.py's `matchness` and benchmark.py's acceptance_rate: matched / drafted, averaged."""
    rates = [
        sum(r.accepted for r in s.method.rounds) / sum(r.steps for r in s.method.rounds)
        for s in samples
    ]
    metrics = summarise(samples, LAYERS, None, None, None)
    assert metrics.alpha_macro == pytest.approx(fmean(rates), rel=1e-9)
    assert metrics.alpha != pytest.approx(metrics.alpha_macro, rel=1e-6)


def test_the_interval_is_of_the_ratio_of_means(samples: list[Sample]) -> None:
    found = estimators([samples]).swift
    assert found.ci95 and found.speedup and found.ci95[0] < found.speedup < found.ci95[1]
    # equal prompts: no spread; prompts whose vanilla is equally fast: nearly that of the logs
    one = estimators([[replace(samples[0], index=i, id=str(i)) for i in range(5)]]).swift
    assert one.ci95 == pytest.approx((one.speedup, one.speedup))
    base = replace(samples[0].vanilla, seconds=replace(samples[0].vanilla.seconds, draft=1e3))
    near, ratios = [], []
    for i, more in enumerate((1.0, 1.01, 0.99, 1.02, 0.98)):
        method = replace(base, seconds=replace(base.seconds, draft=1e3 / more))
        near.append(replace(samples[0], index=i, id=str(i), vanilla=base, method=method))
        ratios.append(method.seconds.total / base.seconds.total)
    swift, wanted = estimators([near]).swift, paired_ratio_interval([1 / r for r in ratios])[1]
    assert swift.ci95 == pytest.approx(wanted, rel=1e-3)


def test_processes_are_pooled_and_an_empty_run_has_no_estimate(samples: list[Sample]) -> None:
    slower = [
        replace(s, method=replace(s.method, seconds=replace(s.method.seconds, other=0.5)))
        for s in samples
    ]
    runs = [(one, summarise(one, LAYERS, None, None, None)) for one in (samples, slower)]
    joined = summarise_repeats(runs, LAYERS).estimators
    assert joined
    for name in ("swift", "self_sd", "knapspec"):
        wanted = SCRIPTS[name]([*samples, *slower])
        assert getattr(joined, name).speedup == pytest.approx(wanted, rel=1e-9)
    assert estimators([[]]).swift.speedup is None
    failed = [replace(s, lossless="failed") for s in samples]
    assert estimators([failed]) == estimators([[]])


def test_the_record_holds_them_and_an_older_one_is_read(ran: Path, samples: list[Sample]) -> None:
    stored = json.loads((ran / "metrics.json").read_text())
    assert list(stored["estimators"]) == ["swift", "self-sd", "knapspec", "clasp"]
    del stored["estimators"]
    assert not packed.decode(packed.encode(stored), type=Metrics).estimators
