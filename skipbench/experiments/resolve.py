"""A cell whose skip set is known: its folder, its run, or several (`repeats=R`, shards)."""

import contextlib
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from skipbench.bench.stored_sets import other_weights, with_stored_set
from skipbench.config.catalog import DEFAULT_METHOD
from skipbench.config.run_config import SHARD, RunConfig
from skipbench.console import say
from skipbench.data.rows import Row, other_rows
from skipbench.errors import NotHereError, SkipbenchError
from skipbench.experiments.set_search import search_command, search_trace
from skipbench.report.compared import joined
from skipbench.runs.fingerprint import Identity, compare_identity
from skipbench.runs.merge import join_shard
from skipbench.runs.provenance import config_hash, run_name
from skipbench.runs.run import Run, read_run
from skipbench.search.run import best_of_trace


@dataclass(frozen=True)
class ResolvedCell:
    """A cell whose skip set is known; the hash of its settings names its folder."""

    config: RunConfig

    @cached_property
    def folder(self) -> Path:
        config = self.config
        names = [config.model.name, config.method.name, config.dataset.name]
        name = run_name(names, config_hash(config.record()))
        if config.shard is None:
            return config.results / "runs" / name
        return config.results / "shards" / config.shard.replace("/", "of") / name

    @property
    def whole(self) -> "ResolvedCell":
        """The cell with all its prompts."""
        return ResolvedCell(dataclasses.replace(self.config, shard=None))

    @property
    def shards(self) -> list["ResolvedCell"]:
        """The shards of a whole cell that have records."""
        if self.config.shard is not None:
            return []
        folders = sorted(self.config.results.glob(f"shards/*of*/{self.folder.name}"))
        names = [folder.parent.name.replace("of", "/") for folder in folders]
        return [ResolvedCell(dataclasses.replace(self.config, shard=name)) for name in names]


def resolve_cell(config: RunConfig) -> ResolvedCell:
    """Fills in the stored skip set. Raises NotHereError without one, or for other weights."""
    if config.search_dataset is not None:
        iterations = config.search.iterations
        if other := other_weights(trace := search_trace(config), config.model):
            raise NotHereError(other)
        if (skip := best_of_trace(trace, iterations)) is None:
            raise NotHereError(f"its search of {iterations} sets is not done yet")
        return ResolvedCell(dataclasses.replace(config, method=config.method.but(skip=skip)))
    try:
        return ResolvedCell(with_stored_set(config))
    except NotHereError as error:
        raise NotHereError(
            f"{error}; or take method={DEFAULT_METHOD}, which needs none; or search one: "
            f"{search_command(config)}"
        ) from error


def checked_run(cell: ResolvedCell) -> Run:
    """The run of a cell. Raises SkipbenchError for other weights, code or rows, or damage."""
    return compared_run(cell)[0]


def compared_run(cell: ResolvedCell) -> tuple[Run, Identity]:
    """`checked_run`, and what differs that is not refused."""
    run, config = read_run(cell.folder), cell.config
    if run.done:
        _ = run.samples  # refused where a sample is missing
        path = config.dataset.path  # rows of the hub are pinned by their revision
        local = path is not None and Path(path).is_file()
        if local and other_rows(run.provenance, config.dataset.rows(config.limit)):
            raise SkipbenchError(
                f"{cell.folder} was made with other rows (dataset.path={path}): changed since; "
                "fresh=true sets it aside and starts anew, results=FOLDER keeps both"
            )
    return run, compare_identity(cell.folder, config).check()


def header(run: Run) -> dict[str, str]:
    """The head of a cell's table; an engine in place of another one comes first."""
    origin = run.origin
    named: dict[str, str | None] = {"engine": origin.engines} if origin.engine_asked else {}
    named |= {"model": run.model, "method": run.method, "dataset": run.dataset}
    named |= {"engine": origin.engines}
    named |= {k: getattr(origin, k) for k in ("dtype", "sparsity", "device", "mixed")}
    return {k: v for k, v in named.items() if v} | {"threads": str(run.setting("engine.threads"))}


def repetitions(cell: ResolvedCell) -> list[ResolvedCell]:
    """The runs of a cell, one per process."""
    return [ResolvedCell(config) for config in cell.config.repetitions()]


def all_done(config: RunConfig) -> bool:
    """True if every process of the cell is done; needs no torch. Raises as `checked_run`."""
    with contextlib.suppress(NotHereError):
        return all(checked_run(resolve_cell(one)).done for one in config.repetitions())
    return False


def is_done(config: RunConfig) -> bool:
    """`all_done`; False too of a record that is refused: what would go on with it says why."""
    with contextlib.suppress(SkipbenchError):
        return all_done(config)
    return False


def joined_run(cell: ResolvedCell) -> Run:
    """The run of a cell; of several processes the first one's, with the metrics and drafts of those
    that are done, and the reason why some are missing. Raises SkipbenchError as `checked_run`.
    """
    runs = [checked_run(one) for one in repetitions(cell)]
    done = [run for run in runs if run.metrics is not None]
    if not done:
        return runs[0]
    return joined(done, planned=len(runs))


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


def join_shards(cell: ResolvedCell) -> None:
    """Adds the samples of a cell's shards to its record. Raises as `compared_run`, `join_shard`."""
    for part in cell.shards:
        compare_identity(part.folder, part.config).check()
        if count := join_shard(part.folder, cell.folder, cell.config.mixed):
            say(f"{cell.folder}: {count} samples of shard {part.config.shard}")


def to_score(folder: Path) -> str:
    """The command for a run whose code is not executed yet."""
    return f"not scored yet: python -m skipbench score {folder}"
