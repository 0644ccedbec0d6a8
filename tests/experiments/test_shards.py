"""Shards: processes that take disjoint prompts of one row, joined by the process of the whole."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from test_rows import LOAD, cells, decided, samples_of

from skipbench.config.run_config import RunConfig
from skipbench.errors import SkipbenchError
from skipbench.experiments.costs import Cost
from skipbench.experiments.resolve import resolve_cell
from skipbench.experiments.row import row_key, run_row
from skipbench.launch.jobs import Job, schedule_stages
from skipbench.launch.status import CellStatus
from skipbench.runs.merge import join_shard
from skipbench.runs.run import read_run
from skipbench.runs.state import RunState

STATELESS = ("uniform", "prompt-lookup", "clasp")


def shards(configs: Sequence[RunConfig], count: int) -> list[list[RunConfig]]:
    return [[replace(c, shard=f"{n}/{count}") for c in configs] for n in range(1, count + 1)]


def test_the_shards_of_a_row_are_joined_into_the_records_of_one_process(tmp_path: Path) -> None:
    whole, configs = cells(tmp_path / "whole", STATELESS, 3), cells(tmp_path, STATELESS, 3)
    run_row(whole, LOAD)
    one, two = shards(configs, 2)
    assert len({row_key(configs[0]), row_key(one[0]), row_key(two[0])}) == 3
    for row, indices in ((two, [1]), (one, [0, 2])):
        assert all(one.run and one.run.metrics is None for one in run_row(row, LOAD))
        assert [[s.index for s in samples] for samples in samples_of(row)] == [indices] * 3
        # as many arms as in the row, in the order of the row
        orders = [s.order for s in samples_of(whole)[0] if s.index in indices]
        assert [s.order for s in samples_of(row)[0]] == orders
    before = [(resolve_cell(c).folder / "samples.jsonl").read_bytes() for c in one]
    run_row(one, LOAD)
    assert before == [(resolve_cell(c).folder / "samples.jsonl").read_bytes() for c in one]
    (resolve_cell(two[0]).folder / "samples.jsonl").unlink()  # of this arm nothing is left
    folder = resolve_cell(configs[1]).folder  # joined twice, as after a kill
    again = [join_shard(resolve_cell(row[1]).folder, folder, False) for row in (one, two, one)]
    assert again == [2, 1, 0]
    assert all(one.run and one.run.done for one in run_row(configs, LOAD))
    for ours, theirs in zip(samples_of(configs), samples_of(whole), strict=True):
        ordered = sorted(ours, key=lambda s: s.index)
        assert [decided(s) for s in ordered] == [decided(s) for s in theirs]
    late, early = samples_of(configs)[1], [s for row in (two, one) for s in samples_of(row)[1]]
    assert sorted(map(repr, late)) == sorted(map(repr, early))  # their times, too
    assert [read_run(resolve_cell(c).folder).measured.samples for c in configs] == [3] * 3
    assert all(part.run and part.run.done for part in run_row(one, LOAD))


@pytest.mark.parametrize(
    ("method", "shard", "said"),
    [
        ("swift", "1/2", "swift learns from prompt to prompt"),
        ("self-sd", "1/2", "self-sd learns from prompt to prompt"),
        ("uniform", "3/2", "shard=3/2; wanted K/N"),
    ],
)
def test_what_cannot_be_shared_is_refused(
    method: str, shard: str, said: str, tmp_path: Path
) -> None:
    (config,) = cells(tmp_path, [method])
    if method == "self-sd":
        config = replace(config, method=config.method.but(skip="attn:1"))
    (outcome,) = run_row([replace(config, shard=shard)], LOAD)
    assert isinstance(outcome.error, SkipbenchError) and said in str(outcome.error)
    assert not list(tmp_path.glob("*/*"))


def test_a_submission_sends_the_shards_and_what_joins_them_after_all(tmp_path: Path) -> None:
    configs = cells(tmp_path, STATELESS)
    statuses = [CellStatus("", c, resolve_cell(c).folder, RunState("missing")) for c in configs]
    cost = Cost((2, 2, 2), 2, 1, 1, 0.5, (0.0,) * 3, 1.0, shards=2)
    other = Job(statuses[:1])
    parts, (join,) = schedule_stages([Job(statuses, cost), other])
    sent = [[RunConfig.from_dict(one) for one in job.record()["configs"]] for job in (*parts, join)]
    assert sent == [*shards(configs, 2), configs[:1], configs]
    assert len({tuple(job.record()["folders"]) for job in (*parts[:2], join)}) == 1
    assert parts[0].name == f"{join.name} shard=1/2" and parts[2] is other
    assert [job.cost and job.cost.hours for job in (*parts[:2], join)] == [4.5, 4.5, 0.5]
