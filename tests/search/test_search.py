"""Offline search: what the strategies find, and that a search goes on after a stop as if nothing
had been.
"""

import json
import math
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from builders import traced
from msgspec.structs import replace

from skipbench.bench import skip_search as offline
from skipbench.cli.main import dispatch
from skipbench.config.compose import compose
from skipbench.config.configurable import typed
from skipbench.config.run_config import Search
from skipbench.draft_plan import DraftPlan
from skipbench.errors import NotHereError, SkipbenchError
from skipbench.experiments.resolve import resolve_cell
from skipbench.experiments.row import run_cell
from skipbench.experiments.table_runs import search_costs
from skipbench.report.measured import measure
from skipbench.runs.lock import held
from skipbench.runs.measures import Metrics, PhaseSeconds, Profiled, Skipped
from skipbench.runs.record import Round
from skipbench.runs.run import Run, read_run
from skipbench.search import strategies
from skipbench.search.bayes import suggest_point
from skipbench.search.run import Trial, best_of_trace, retime, search
from skipbench.search.strategies import Space, Strategy, make_strategy, random_sets

# of skipping each sub-layer of a model of 4 layers
COST = [0.3, -0.2, -0.4, 0.5, -0.1, 0.2, -0.3, 0.1]


@pytest.fixture(autouse=True)
def little_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of Bayesian optimisation of the published effort takes two seconds."""
    monkeypatch.setattr(strategies, "suggest_point", partial(suggest_point, draws=500, starts=1))


def toy(skip: DraftPlan) -> tuple[float, dict[str, float]]:
    value = 2 + sum(COST[s] for s in skip.skipped) + (0.3 if {4, 6} <= skip.skipped else 0.0)
    return value, {"skipped": len(skip.skipped)}


def make(name: str, **more: Any) -> Any:
    return make_strategy(
        typed({"strategy": name, "seed": 3, "init": 3} | more, Search, "search"), 4
    )


def run(name: str, trace: Path, iterations: int, objective: Any = toy, **more: Any) -> Trial:
    return search(objective, make(name, **more), 4, iterations, trace, {"strategy": name} | more)


def trials(trace: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in trace.read_text().splitlines()[1:]]


@pytest.mark.slow
def test_bayes_beats_random_at_the_same_budget() -> None:
    """In the mean over seeds."""

    def best(name: str, seed: int) -> float:
        strategy, values = make(name, seed=seed), list[float]()
        for _ in range(12):
            skip = strategy.suggest()
            values.append(toy(skip)[0])
            strategy.register(skip, values[-1])
        return min(values)

    found = {name: [best(name, seed) for seed in range(6)] for name in ("bayes", "random")}
    assert statistics.mean(found["bayes"]) < statistics.mean(found["random"]) - 0.05


@pytest.mark.parametrize(("name", "rounded"), [("random", False), ("bayes", True)])
def test_a_search_that_was_stopped_goes_on(name: str, rounded: bool, tmp_path: Path) -> None:
    run(name, tmp_path / "whole", 5, rounded=rounded)
    for stop in (2, 4):

        def until(skip: DraftPlan, stop: int = stop) -> tuple[float, dict[str, float]]:
            if len(trials(tmp_path / "parts")) >= stop:
                raise KeyboardInterrupt
            return toy(skip)

        with pytest.raises(KeyboardInterrupt):
            run(name, tmp_path / "parts", 5, until, rounded=rounded)
    with open(tmp_path / "parts", "a") as file:
        file.write('{"iteration": 5, "sk')  # a torn line
    run(name, tmp_path / "parts", 5, rounded=rounded)
    whole, parts = trials(tmp_path / "whole"), trials(tmp_path / "parts")
    for trial in (*whole, *parts):
        del trial["seconds_suggest"], trial["seconds_objective"]
    assert parts == whole
    bests = [t["best"] for t in whole]
    assert bests == [min(t["value"] for t in whole[: i + 1]) for i in range(len(whole))]


def test_a_set_without_a_value_counts_the_same_after_a_stop(tmp_path: Path) -> None:
    class Spy(Strategy):
        def register(self, skip: DraftPlan, value: float) -> None:
            registered.append(value)
            super().register(skip, value)

    def objective(skip: DraftPlan) -> tuple[float, dict[str, float]]:
        tried = len(registered)
        if tried == 4:
            raise FloatingPointError
        value = {1: math.nan, 2: math.inf}.get(tried, 0.05 + 0.001 * tried)
        return value, {"alpha": math.nan, "tried": tried}

    courses = []
    for name, stops in (("whole", [6]), ("parts", [3, 6])):
        for stop in stops:
            registered: list[float] = []
            search(objective, Spy(Space(4), random_sets(Space(4), 3)), 4, stop, tmp_path / name, {})
        courses.append(registered)
    assert courses[0] == courses[1] == pytest.approx([0.05, 0.05, 0.05, 0.053, 0.053, 0.055])
    whole = trials(tmp_path / "whole")
    assert [n for n, trial in enumerate(whole) if trial["value"] is None] == [1, 2, 4]
    assert whole[1]["detail"] == {"tried": 1}


def test_the_best_sets_are_timed_again_in_turns(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    noise = iter([0.0, -0.9, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0])

    def noisy(skip: DraftPlan) -> tuple[float, dict[str, float]]:
        value, detail = toy(skip)
        return value + next(noise), detail

    best = run("random", trace, 8, noisy)
    assert best_of_trace(trace, 8) == best.skip == trials(trace)[1]["skip"]
    asked: list[str] = []

    def again(skip: DraftPlan) -> tuple[float, dict[str, float]]:
        asked.append(str(skip))
        return toy(skip)

    found = retime(again, trace, 4, 8)
    sets = asked[:5]
    assert sets[0] == best.skip and len(asked) == 3 * len({*sets})
    # every turn has every set once, and begins with another
    assert [sorted(asked[i : i + 5]) for i in (0, 5, 10)] == [sorted(sets)] * 3
    assert [asked[i] for i in (0, 5, 10)] == sets[:3]
    assert found.value == min(toy(DraftPlan.parse(s, 4))[0] for s in sets)
    assert best_of_trace(trace, 8) == found.skip != best.skip
    assert best_of_trace(trace, 7) == best.skip  # what ended there was not timed again
    assert retime(again, trace, 4, 8) == found and len(asked) == 15  # the timings are kept


def test_another_search_in_the_way_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    with held(tmp_path), pytest.raises(SkipbenchError, match=r"another process \(pid"):
        run("random", trace, 2)
    assert not trace.exists()

    def again(iterations: int, of: Any = (1,)) -> Trial:
        return search(toy, make("random"), 4, iterations, trace, {"of": of})

    for iterations in (2, 3):  # settings are compared as they are stored: a tuple is a list
        again(iterations)
    assert len(trials(trace)) == 3
    with pytest.raises(SkipbenchError, match=r"other settings \(of\)"):
        again(3, (2,))
    with pytest.raises(SkipbenchError, match=r"line 2.*another version or seed"):
        other = Strategy(Space(4), random_sets(Space(4), 99))
        search(toy, other, 4, 3, trace, {"of": [1]})
    lines = trace.read_text().splitlines()
    for change in ({"skip": "nonsense"}, {"skip": "attn:99"}, {"value": "fast"}, {"iteration": 7}):
        wrong = json.dumps(json.loads(lines[2]) | change)
        trace.write_text("\n".join([*lines[:2], wrong, *lines[3:]]) + "\n")
        with pytest.raises(SkipbenchError, match=r"trace\.jsonl, line 3: not a trial"):
            again(4)


@pytest.mark.parametrize(("name", "ratio"), [("random", None), ("random", 0.5), ("bayes", 0.5)])
def test_the_ratio_holds(name: str, ratio: float | None) -> None:
    strategy, tried = make(name, ratio=ratio, init=2), 0
    while tried < (5 if name == "bayes" else 64) and (skip := strategy.suggest()) is not None:
        assert ratio is None or len(skip.skipped) == 4
        strategy.register(skip, toy(skip)[0])
        tried += 1
    assert tried > 4


def questions(path: Path, name: str, count: int) -> Path:
    lines = ({"question": f"{name} {i} + 1?", "answer": f"#### {i + 1}"} for i in range(count))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def searched(
    results: Path, words: list[str], patch: pytest.MonkeyPatch
) -> tuple[list[str], dict[str, Any], dict[str, Any]]:
    """Prompts of a search on questions as GSM8K has them, the settings in its trace, and those of
    the stored set.
    """
    seen: list[str] = []
    prepare = offline.prepare

    def spy(lm: Any, tokenizer: Any, rows: Any, dataset: Any) -> Any:
        seen.extend(row.prompt for row in rows)
        return prepare(lm, tokenizer, rows, dataset)

    patch.setattr(offline, "prepare", spy)
    small = ["search.strategy=random", "search.iterations=1", "search.prompts=4"]
    words = [*small, "search.max_new_tokens=2", f"results={results}", *words]
    dispatch(["search", "method=self-sd", "dataset=gsm8k", *words])
    (trace,) = results.glob("search/*/trace.jsonl")
    (stored,) = results.glob("skip_sets/*.json")
    first = json.loads(trace.read_text().splitlines()[0])
    return seen, first["settings"], json.loads(stored.read_text())["settings"]


def test_a_search_draws_from_the_training_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test, train = (questions(tmp_path / f"{n}.jsonl", n, 6) for n in ("test", "train"))
    words = [f"dataset.path={test}", f"dataset.shots_path={train}", "dataset.shots=1"]
    prompts, settings, stored = searched(tmp_path, words, monkeypatch)
    asked = [prompt.rpartition("Question: ")[2] for prompt in prompts]
    assert len(set(asked)) == 4 and all(question.startswith("train ") for question in asked)
    (shot,) = {prompt.partition("Question: ")[2].partition("?")[0] for prompt in prompts}
    assert not any(question.startswith(shot) for question in asked), "a prompt holds its own answer"
    assert settings["dataset"]["path"] == stored["dataset"]["path"] == str(train)


@pytest.mark.parametrize(("limit", "shared"), [(6, 0), (8, 2)])
def test_without_a_training_split_a_search_avoids_the_rows_of_the_run(
    limit: int, shared: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = questions(tmp_path / "all.jsonl", "all", 10)
    words = [f"dataset.path={path}", "dataset.prompt=self-sd", f"limit={limit}"]
    prompts, *settings = searched(tmp_path, words, monkeypatch)
    run = {row.prompt for row in compose(["dataset=gsm8k", *words]).dataset.rows(limit)}
    assert len(prompts) == 4 and len(run & set(prompts)) == shared
    assert [record.get("prompts_shared_with_run", 0) for record in settings] == [shared] * 2


def test_a_searched_set_is_of_the_prompts_that_it_avoided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = questions(tmp_path / "all.jsonl", "all", 10)
    words = [f"dataset.path={path}", "dataset.prompt=self-sd"]
    searched(tmp_path, [*words, "limit=3"], monkeypatch)
    again = ["dataset=gsm8k", *words, "method=self-sd", f"results={tmp_path}"]
    assert resolve_cell(compose([*again, "limit=2"])).config.method.skip is not None
    with pytest.raises(NotHereError, match=r"for the first 3 prompts of gsm8k.*limit=4"):
        resolve_cell(compose([*again, "limit=4"]))


def test_a_search_of_a_stream_has_the_training_splits_of_its_parts() -> None:
    parts = compose(["dataset=stream"]).dataset.for_search(7).node["parts"]
    assert parts["summarization"]["split"] == "train" and "run_limit" not in parts["summarization"]
    assert parts["instruction"]["run_limit"] == 7


SMALL = ["limit=2", "dataset.max_new_tokens=48", "engine.warmup=0"]
PARTS = Profiled(attention_s=1.0, mlp_s=3.0, head_s=2.0, layers=10)
METRICS = Metrics(
    tokens_per_s=20.0,
    vanilla=Metrics(tokens_per_s=10.0, profiled=PARTS),
    seconds=PhaseSeconds(prefill=9.0, draft=2.0, verify=1.0, adapt=0.5, other=0.5),
    skipped=Skipped(attention=5.0, mlp=0.0, ratio=0.25),
    profiled=PARTS,
)


def test_times_per_token_are_the_phases_and_split_as_profiled() -> None:
    """50 ms per token, half of them drafts: of these 5 of 10 attention blocks are left out."""

    def of(*column: str, metrics: Metrics = METRICS) -> float | None:
        return measure(metrics, *column)[0]

    assert (of("ms", "draft", "all"), of("ms", "verify", "all")) == pytest.approx((25.0, 12.5))
    attention = [of("ms", phase, "attention") for phase in ("draft", "verify", "latency")]
    assert attention == pytest.approx([25 * 5 / 37, 12.5 * 10 / 42, 25 * 5 / 37 + 12.5 * 10 / 42])
    assert of("ms", "latency", "all") == pytest.approx(50.0)
    assert of("us", "threshold update", "all") == pytest.approx(6250.0)
    vanilla = METRICS.baseline
    assert of("ms", "latency", "all", metrics=vanilla) == pytest.approx(100.0)
    assert of("ms", "latency", "mlp", metrics=vanilla) == pytest.approx(100 * 30 / 42)
    before = replace(METRICS, profiled=None)
    assert measure(before, "ms", "draft", "mlp")[0] is None


def test_a_search_while_decoding_is_counted_and_timed(tmp_path: Path) -> None:
    steps = ["method.steps=9", "method.beta=4", "method.window=8", "method.max_score=1"]
    config = compose(["method=swift", f"results={tmp_path}", *SMALL, *steps])
    run_cell(config, print_table=False)
    cell = resolve_cell(config)
    run = read_run(cell.folder)
    metrics = replace(run.measured, optimisation=search_costs(config, run))
    adapt_s, tried = run.measured.seconds.adapt, run.arms[-1].trace["step"][-1]
    assert adapt_s and 4 <= tried <= 9
    assert measure(metrics, "bayes_steps")[0] == tried // 4
    assert measure(metrics, "random_steps")[0] == tried - tried // 4
    assert measure(metrics, "search_s")[0] == pytest.approx(adapt_s)
    assert measure(metrics, "opt_step_ms")[0] == pytest.approx(1e3 * adapt_s / tried)
    assert measure(metrics, "ms", "draft", "attention")[0] is not None  # the run was profiled
    assert search_costs(compose(["method=uniform", *SMALL]), run) is None


def test_a_programme_and_a_verification_take_their_share() -> None:
    own = traced(0, [Round(2, 2, 1, 1, 2)] * 3, {"optimised": [0, 2]})
    costs = search_costs(compose(["method=clasp"]), Run(id="method", kept=[own, own]))
    assert costs and (costs.programmes, costs.steps) == (4, 4)
    timed = replace(METRICS, rounds=6, optimisation=replace(costs, seconds=0.5))
    assert measure(timed, "pass_s", "adapt")[0] == pytest.approx(0.5 / 4)
    assert measure(timed, "pass_s", "verify")[0] == pytest.approx(1.0 / 6)
    assert measure(METRICS, "pass_s", "adapt")[0] is None
