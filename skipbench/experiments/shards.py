"""Shards: processes that take disjoint prompts of one row; the whole row's process joins them."""

from collections.abc import Sequence

from skipbench.config.run_config import SHARD, RunConfig
from skipbench.console import say
from skipbench.data.rows import Row
from skipbench.errors import SkipbenchError
from skipbench.experiments.cell import Cell
from skipbench.runs.fingerprint import refuse_other
from skipbench.runs.merge import join_shard
from skipbench.runs.run import Run


def carries(config: RunConfig) -> bool:
    """Whether the method learns from prompt to prompt, so that one process decodes them all."""
    from skipbench.bench.load import depth

    method = config.method if config.method.skip is None else config.method.but(skip="")
    return bool(method.factory()(layers=depth(config.model)).carries)


def check_shard(config: RunConfig) -> None:
    """Raises SkipbenchError for a shard that is none, or a cell that cannot be shared."""
    number, count = map(int, str(config.shard).split("/"))
    if number > count:
        raise SkipbenchError(f"shard={config.shard}; wanted {SHARD}")
    if config.until_ci is not None:
        raise SkipbenchError("until_ci ends a run by all of its prompts; leave it or shard= out")
    if carries(config):
        raise SkipbenchError(
            f"{config.method.name} learns from prompt to prompt, so one process decodes them all; "
            f"run it without shard={config.shard}"
        )


def is_decoded(run: Run, rows: Sequence[Row], config: RunConfig) -> bool:
    """Whether a run has all prompts of its shard; False for a whole run."""
    from skipbench.bench.turns import of_shard

    if config.shard is None:
        return False
    return {s.index for s in run.samples}.issuperset(of_shard(rows, config.shard))


def join_shards(cell: Cell) -> None:
    """Adds the samples of a cell's shards to its record. Raises as `refuse_other`, `join_shard`."""
    for part in cell.shards:
        refuse_other(part.folder, part.config)
        if count := join_shard(part.folder, cell.folder, cell.config.mixed):
            say(f"{cell.folder}: {count} samples of shard {part.config.shard}")
