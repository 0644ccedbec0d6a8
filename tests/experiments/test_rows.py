"""Rows: methods that take turns on every prompt."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from builders import interrupt
from conftest import Command, rest_slow
from msgspec import structs

from skipbench.bench.arm import Bench
from skipbench.bench.turns import arm_order
from skipbench.config.compose import compose
from skipbench.config.run_config import DatasetConfig, RunConfig
from skipbench.experiments.last_loaded import LastLoaded
from skipbench.experiments.resolve import resolve_cell
from skipbench.experiments.row import row_key, rows_of, run_cell, run_row
from skipbench.profile.peak import PeakMemory
from skipbench.runs.record import MEASURED, Sample
from skipbench.runs.state import read_status
from skipbench.runs.store import read_samples

METHODS = ("uniform", "swift", "prompt-lookup")
LOAD = LastLoaded()  # one model for all tests
SMALL = ["dataset.max_new_tokens=12", "dataset.scorer=none", "engine.warmup=0"]


def cells(folder: Path, methods: Sequence[str] = METHODS, limit: int = 2) -> list[RunConfig]:
    words = [*SMALL, f"limit={limit}", f"results={folder}"]
    return [compose([*words, f"method={name}"]) for name in methods]


def samples_of(configs: Sequence[RunConfig]) -> list[list[Sample]]:
    return [read_samples(resolve_cell(config).folder / "samples.jsonl") for config in configs]


def decided(sample: Sample) -> dict[str, Any]:
    """What depends neither on the clock nor on which arms took part in the turn."""
    plain: dict[str, Any] = msgspec.to_builtins(structs.replace(sample, config_hash=""))
    for arm in ("vanilla", "method"):
        for name in MEASURED:
            del plain[arm][name]
    for name in ("logit_gap", "error"):
        (plain["divergence"] or {}).pop(name, None)
    plain["trace"].pop("setup_s", None)  # of each process
    del plain["order"]
    return plain


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[list[Sample]]:
    """The samples of a row that nothing disturbed, by arm."""
    configs = cells(tmp_path_factory.mktemp("row"))
    assert rows_of(configs) == [[0, 1, 2]]
    assert all(one.run and one.run.done for one in run_row(configs, LOAD))
    return samples_of(configs)


@pytest.mark.parametrize("count", range(1, 8))
def test_every_arm_is_at_every_place_and_behind_every_other_equally_often(count: int) -> None:
    names = [f"arm{n}" for n in range(count)]
    block = (count + 1) * (1 + (count + 1) % 2)
    orders = [arm_order(3, names, index) for index in range(2 * block)]
    for some in (orders[:block], orders[block:]):
        places = Counter((place, arm) for order in some for place, arm in enumerate(order))
        behind = Counter(pair for order in some for pair in pairwise(order))
        assert len(places) == (count + 1) ** 2 and len(set(places.values())) == 1
        assert len(behind) == count * (count + 1) and len(set(behind.values())) == 1
    assert arm_order(3, names[::-1], 1) == orders[1]
    if count > 2:
        assert orders[:block] != orders[block:]


def test_arms_of_a_turn_have_one_vanilla_and_the_tokens_that_each_has_alone(
    tmp_path: Path, whole: list[list[Sample]]
) -> None:
    for turn in zip(*whole, strict=True):
        assert len({repr(sample.vanilla) for sample in turn}) == 1  # its times, too
        for one, own in zip(turn, METHODS, strict=True):
            others = [method for method in METHODS if method != own]
            assert sorted(one.order) == sorted(["vanilla", "method", *others])
    for config, together in zip(cells(tmp_path / "alone"), whole, strict=True):
        run_cell(config, print_table=False)  # on a model of its own
        (alone,) = samples_of([config])
        assert [decided(s) for s in alone] == [decided(s) for s in together]


def test_a_method_added_later_brings_its_own_vanilla_and_changes_no_record(tmp_path: Path) -> None:
    first = cells(tmp_path, METHODS[:1])
    run_row(first, LOAD)
    before = [(resolve_cell(c).folder / "samples.jsonl").read_bytes() for c in first]
    every = cells(tmp_path)
    run_row(every, LOAD)
    assert before == [(resolve_cell(c).folder / "samples.jsonl").read_bytes() for c in first]
    early, late = samples_of(every)[0], samples_of(every)[2]
    assert all(a.vanilla.tokens == b.vanilla.tokens for a, b in zip(early, late, strict=True))
    assert all(a.vanilla.seconds != b.vanilla.seconds for a, b in zip(early, late, strict=True))
    assert {tuple(sorted(s.order)) for s in late} == {("method", "swift", "vanilla")}


def test_arms_of_fewer_prompts_leave_the_row_early(tmp_path: Path) -> None:
    noise, swift = cells(tmp_path, ["vanilla"])[0], cells(tmp_path, ["swift"], 4)[0]
    assert row_key(noise) == row_key(swift)
    run_row([noise, swift], LOAD)
    few, all_ = samples_of([noise, swift])
    assert [len(s.order) for s in all_] == [3, 3, 2, 2] and len(few) == 2
    assert [s.vanilla for s in few] == [s.vanilla for s in all_[:2]]


def test_a_fresh_run_reads_its_dataset_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (config,) = cells(tmp_path, ["uniform"], 1)
    run_cell(config, print_table=False, load=LOAD)
    read, rows = list[str](), DatasetConfig.rows

    def counted(self: DatasetConfig, *given: Any) -> list[Any]:
        read.append(self.name)
        return rows(self, *given)

    monkeypatch.setattr(DatasetConfig, "rows", counted)
    run_cell(replace(config, fresh=True), print_table=False, load=LOAD)
    assert read == [config.dataset.name]


def test_a_method_that_fails_ends_only_its_own_arm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = Bench.decode

    def failing(self: Bench, method: Any, prompt: Any, index: int, *more: Any) -> Any:
        if self.config.method.name == "swift" and method is self.method and index == 1:
            raise ZeroDivisionError("of this arm")
        return decode(self, method, prompt, index, *more)

    monkeypatch.setattr(Bench, "decode", failing)
    configs = cells(tmp_path)
    outcomes = run_row(configs, LOAD)
    assert [type(one.error) for one in outcomes] == [type(None), ZeroDivisionError, type(None)]
    assert [one.run is None for one in outcomes] == [False, True, False]
    states = [read_status(resolve_cell(config).folder).state for config in configs]
    assert states == ["done", "failed", "done"]
    monkeypatch.undo()
    run_row(configs, LOAD)
    assert [len(samples) for samples in samples_of(configs)] == [2] * 3


def test_what_a_method_carries_on_is_there_again_behind_an_interruption(tmp_path: Path) -> None:
    words = [*SMALL[1:], "dataset.max_new_tokens=24", "dataset=mini-math", "limit=4"]
    words += ["method=self-sd", 'method.skip="attn:2,3,6,7;mlp:3,6,8"', "stop@method.stop=adaptive"]
    config = compose([*words, f"results={tmp_path}"])
    run_cell(config, print_table=False, load=LOAD)
    (before,) = samples_of([config])
    assert len({sample.carry["stop"]["threshold"] for sample in before}) == 4
    interrupt(resolve_cell(config).folder, 2)
    run_cell(config, print_table=False, load=LOAD)
    (after,) = samples_of([config])
    assert [decided(sample) for sample in after] == [decided(sample) for sample in before]


@pytest.mark.parametrize("writes", rest_slow((1, 3, 5), lambda writes: writes == 3))
def test_a_row_that_is_killed_between_two_writes_goes_on_as_if_it_had_not_been(
    tmp_path: Path, whole: list[list[Sample]], monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    configs, left = cells(tmp_path), [writes]
    add = Bench.add

    def killed(self: Bench, *both: Any) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        add(self, *both)

    monkeypatch.setattr(Bench, "add", killed)
    with pytest.raises(KeyboardInterrupt):
        run_row(configs, LOAD)
    assert sum(map(len, samples_of(configs))) == writes
    monkeypatch.undo()
    run_row(configs, LOAD)
    for resumed, samples in zip(samples_of(configs), whole, strict=True):
        ours, theirs = sorted(resumed, key=lambda s: s.index), samples
        assert [decided(s) for s in ours] == [decided(s) for s in theirs]


def test_several_methods_on_the_command_line_are_one_row(
    skipbench: Command, tmp_path: Path
) -> None:
    chosen = ["uniform", "swift"]
    words = [*SMALL, "limit=2", f"results={tmp_path}", "method=uniform,swift"]
    done = skipbench(*words)
    assert all(name in done.stdout for name in chosen)
    (written,) = tmp_path.glob("tables/methods-*.json")
    assert written.with_suffix(".csv").exists()
    again = skipbench("table", str(written), "over=swift").stdout
    assert "over swift" in again and again.count("uniform") == 1
    row = samples_of(cells(tmp_path, chosen))
    assert all(len(sample.order) == 3 for samples in row for sample in samples)
    lines = skipbench(*words, "--json").stdout.splitlines()
    assert [json.loads(line)["method"] for line in lines] == chosen


def test_the_peak_of_memory_begins_anew() -> None:
    cpu = {torch.device("cpu")}
    large = PeakMemory(cpu)
    torch.ones(2**26).sum()
    high = large.peak_bytes()
    small = PeakMemory(cpu)
    if small.peak_bytes() == high:
        pytest.skip("this system does not let the peak begin anew")
    assert high - small.peak_bytes() > 2**27
