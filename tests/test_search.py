"""Offline search: what the strategies find, and that a search goes on after a stop as if nothing had been."""

import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skipbench.errors import SkipbenchError
from skipbench.search.run import Trial, search
from skipbench.search.strategies import Random, make_strategy
from skipbench.skipset import SkipSet

COST = [0.3, -0.2, -0.4, 0.5, -0.1, 0.2, -0.3, 0.1]  # of skipping each sub-layer of a model of 4 layers
OPTIMUM = frozenset({1, 2, 6})  # -0.2 - 0.4 - 0.3 = -0.9; with 4 as well, -0.1 more and 0.3 for the pair (4, 6)


def toy(skip: SkipSet) -> tuple[float, dict[str, float]]:
    value = 2 + sum(COST[s] for s in skip.skipped) + (0.3 if {4, 6} <= skip.skipped else 0.0)
    return value, {"skipped": len(skip.skipped)}


def make(name: str, **more: Any) -> Any:
    settings: dict[str, Any] = {"seed": 3, "ratio": None, "protect": (), "init": 3, "rounded": False, "tol": 0.0}
    return make_strategy(name, 4, **(settings | more))


def run(name: str, trace: Path, iterations: int, objective: Callable[[SkipSet], Any] = toy, **more: Any) -> Trial:
    return search(objective, make(name, **more), 4, iterations, trace, {"strategy": name} | more)


def trials(trace: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in trace.read_text().splitlines()[1:]]


@pytest.mark.parametrize(("name", "iterations"), [("greedy", 100), ("exhaustive", 300)])
def test_the_optimum_is_found(name: str, iterations: int, tmp_path: Path) -> None:
    best = run(name, tmp_path / "trace.jsonl", iterations)
    assert SkipSet.parse(best.skip, 4).skipped == OPTIMUM
    assert best.value == pytest.approx(1.1)


def test_exhaustive_tries_every_set_once(tmp_path: Path) -> None:
    run("exhaustive", tmp_path / "trace.jsonl", 1000)
    assert len({t["skip"] for t in trials(tmp_path / "trace.jsonl")}) == 2**8


def test_bayes_beats_random_at_the_same_budget(tmp_path: Path) -> None:
    best = run("bayes", tmp_path / "trace.jsonl", 12)
    assert best.value is not None
    drawn = [make("random", seed=s) for s in range(20)]
    bests = []
    for strategy in drawn:
        values = []
        for _ in range(12):
            skip = strategy.suggest()
            values.append(toy(skip)[0])
            strategy.register(skip, values[-1])
        bests.append(min(values))
    assert best.value < statistics.mean(bests)


@pytest.mark.parametrize(
    ("name", "rounded"),
    [("random", False), ("greedy", False), ("exhaustive", False), ("bayes", False), ("bayes", True)],
)
def test_a_search_that_was_stopped_goes_on(name: str, rounded: bool, tmp_path: Path) -> None:
    run(name, tmp_path / "whole.jsonl", 7, rounded=rounded)
    for stop in (2, 4, 6):

        def until(skip: SkipSet, stop: int = stop) -> tuple[float, dict[str, float]]:
            if len(trials(tmp_path / "parts.jsonl")) >= stop:
                raise KeyboardInterrupt
            return toy(skip)

        with pytest.raises(KeyboardInterrupt):
            run(name, tmp_path / "parts.jsonl", 7, until, rounded=rounded)
    with open(tmp_path / "parts.jsonl", "a") as file:
        file.write('{"iteration": 7, "sk')  # a torn line
    run(name, tmp_path / "parts.jsonl", 7, rounded=rounded)
    whole, parts = (
        [(t["iteration"], t["skip"], t["value"]) for t in trials(tmp_path / f"{f}.jsonl")] for f in ("whole", "parts")
    )
    assert parts == whole


def test_another_search_in_the_way_is_refused(tmp_path: Path) -> None:
    run("random", tmp_path / "trace.jsonl", 2)
    with pytest.raises(SkipbenchError, match="protect"):
        run("random", tmp_path / "trace.jsonl", 3, protect=(1,))


def test_a_damaged_trace_names_the_line(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    run("random", trace, 3)
    lines = trace.read_text().splitlines()
    trace.write_text("\n".join([*lines[:2], "garbage", *lines[3:]]) + "\n")
    with pytest.raises(SkipbenchError, match="line 3"):
        run("random", trace, 4)


def test_values_that_are_no_numbers(tmp_path: Path) -> None:
    def sometimes(skip: SkipSet) -> tuple[float, dict[str, float]]:
        if 0 in skip.skipped:
            raise FloatingPointError
        return (math.inf, {}) if 1 in skip.skipped else toy(skip)

    best = run("random", tmp_path / "trace.jsonl", 20, sometimes)
    assert best.value is not None
    assert {0, 1}.isdisjoint(SkipSet.parse(best.skip, 4).skipped)
    assert any(t["value"] is None for t in trials(tmp_path / "trace.jsonl"))


def test_limits() -> None:
    with pytest.raises(SkipbenchError, match="13 sub-layers"):
        make_strategy("exhaustive", 7, 0, None, [0], 3, False, 0.0)
    with pytest.raises(SkipbenchError, match="known: bayes"):
        make("simulated-annealing")
    strategy = Random(4, 0, ratio=0.5, protect=(0, 1))
    for _ in range(20):
        skip = strategy.suggest()
        assert len(skip.skipped) == 4 and {0, 1}.isdisjoint(skip.skipped)
        strategy.register(skip, 1.0)
