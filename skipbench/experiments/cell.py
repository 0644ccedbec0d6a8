"""One cell: its settings resolved, its folder, its run (with `repeats=R` several), its table."""

import contextlib
import dataclasses
import json
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec
from msgspec.structs import replace

from skipbench.bench.stored_sets import other_weights, resolve
from skipbench.config.catalog import DEFAULT_METHOD, cell_command
from skipbench.config.run_config import RunConfig
from skipbench.console import logged, say, show_result
from skipbench.data.rows import rows_hash
from skipbench.errors import NotHereError, SkipbenchError
from skipbench.experiments.last_loaded import LastLoaded
from skipbench.experiments.set_search import ensure_searched, search_command, search_trace
from skipbench.metrics.drafted import drafted
from skipbench.metrics.repeats import summarise_repeats
from skipbench.models.checks import check_access
from skipbench.report.cell import markdown_cell, render_cell
from skipbench.report.compared import origin_of
from skipbench.runs.files import set_aside, write_atomic
from skipbench.runs.fingerprint import not_compared, other_latency, other_package, refuse_other
from skipbench.runs.measures import Metrics
from skipbench.runs.provenance import CONDITIONS, config_hash, run_name
from skipbench.runs.run import Run, read_run
from skipbench.runs.state import read_status
from skipbench.scoring.scorers import waits_for_score
from skipbench.search.run import best_of_trace


@dataclass(frozen=True)
class Cell:
    """A cell whose skip set is known; the hash of its settings names its folder."""

    config: RunConfig

    @cached_property
    def folder(self) -> Path:
        config = self.config
        names = [config.model.name, config.method.name, config.dataset.name]
        return config.results / "runs" / run_name(names, config_hash(config.record()))

    def state(self) -> str:
        """`done`, `running`, `failed`, `interrupted` as its record says, or `missing`."""
        return read_status(self.folder).state


def resolve_cell(config: RunConfig) -> Cell:
    """Fills in the stored skip set. Raises NotHereError where none is stored, or the cell's own
    search is not done or of other weights.
    """
    method, iterations = config.method, config.search.iterations
    if config.search_dataset is not None:
        if other := other_weights(trace := search_trace(config), config.model):
            raise NotHereError(other)
        if (skip := best_of_trace(trace, iterations)) is None:
            raise NotHereError(f"its search of {iterations} sets is not done yet")
    elif method.skip is not None:
        try:
            skip = resolve(method.skip, config.model, method.name, config.results)
        except NotHereError as error:
            raise NotHereError(
                f"{error}; or take method={DEFAULT_METHOD}, which needs none; or search one: "
                f"{search_command(config)}"
            ) from error
    else:
        return Cell(config)
    return Cell(dataclasses.replace(config, method=method.but(skip=skip)))


def checked_run(cell: Cell) -> Run:
    """The run of a cell; raises SkipbenchError if it is not of today's weights, method and rows,
    cannot be read, or is done and lost samples.
    """
    run, config = read_run(cell.folder), cell.config
    if run.done:
        _ = run.samples  # refused where a sample is missing
        before, path = run.provenance.rows_sha256, config.dataset.path
        # rows of the hub are pinned by their revision
        local = before is not None and path is not None and Path(path).is_file()
        if local and rows_hash(config.dataset.rows(config.limit)) != before:
            raise SkipbenchError(
                f"{cell.folder} was made with other rows (dataset.path={path}): changed since; "
                "fresh=true sets it aside and starts anew, results=FOLDER keeps both"
            )
    refuse_other(cell.folder, config.model, config.method)
    return run


def header(run: Run) -> dict[str, str]:
    """The head of a cell's table."""
    origin = run.origin
    named = {"model": run.model, "method": run.method, "dataset": run.dataset}
    named |= {k: getattr(origin, k) for k in ("engine", "dtype", "sparsity", "device", "mixed")}
    return {k: v for k, v in named.items() if v} | {"threads": str(run.setting("engine.threads"))}


def run_cell(
    config: RunConfig, print_table: bool = True, load: LastLoaded | None = None
) -> Metrics | None:
    """Runs what is missing of one cell, prints its table and returns its metrics; None for a dry
    run. Raises SkipbenchError for a value that cannot be used, or samples that failed.

    Args:
        load: loads the model, unless it holds it; by default for this cell alone.
    """
    if config.repeats != 1:
        return _run_repeats(config, print_table)
    load = load or LastLoaded()
    if config.search_dataset is not None and not ensure_searched(config, load):
        return None
    try:
        cell = resolve_cell(config)
    except NotHereError:
        path, revision = config.model.path, config.model.revision
        check_access(path, revision, config.model.gated)  # a model that is not here comes first
        if not Path(path).exists():
            from skipbench.models.outline import read_config

            read_config(path, revision)
        raise
    if config.dry_run:
        from skipbench.experiments.dry_run import dry_run

        state = "missing" if config.fresh else checked_run(cell).status.state
        dry_run(cell.config, cell.folder, state)
        return None
    held = load.holds(config)
    run = _open_run(cell, held)
    if not run.done:
        from skipbench.bench.cell import decode_missing
        from skipbench.bench.load import preflight
        from skipbench.bench.run import opened

        with logged():
            rows = preflight(cell.config, cell.folder, held).rows
            say(str(cell.folder), "dim")
            with opened(cell.config, cell.folder, rows, load) as bench:
                decode_missing(bench)
        run = read_run(cell.folder)
        write_atomic(cell.folder / "table.md", markdown_cell(run.measured, header(run)))
    if print_table:
        _show(run)
        if waits_for_score(config.dataset.scorer, run.measured):
            say(to_score(cell.folder))
    if failed := run.measured.lossless.failed:
        raise SkipbenchError(f"{failed} samples failed; see {cell.folder / 'status.json'}")
    return run.measured


def _open_run(cell: Cell, held: bool) -> Run:
    """The run of a cell, set aside with `fresh=true`; prints what is not known to be as today."""
    config = cell.config
    if config.fresh:
        from skipbench.bench.load import preflight

        preflight(config, cell.folder, held)
        set_aside(cell.folder)
    run = checked_run(cell)
    if run.status.state == "missing":
        return run
    origin, anew = run.provenance, "fresh=true measures it anew"
    unknown = not_compared(origin, config.model, config.method)
    if not run.done:
        unknown += [f"other {name}" for name in CONDITIONS if name not in origin.conditions]
    if text := "; ".join(unknown):
        say(f"{cell.folder}: begun by an earlier version; whether it is of {text} is not known")
    if run.done and other_package(origin.package_sha256):
        say(f"{cell.folder}: measured by another version of skipbench's code; {anew}")
    if run.done and other_latency(cell.folder, origin):
        say(f"{cell.folder}: decided by other latencies; {anew}")
    return run


def _show(run: Run) -> None:
    head, metrics = header(run), msgspec.to_builtins(run.measured)
    record = {"folder": str(run.folder), "label": run.label, **head, "metrics": metrics}
    show_result(record, lambda: render_cell(run.measured, head))


def to_score(folder: Path) -> str:
    """The command for a run whose code is not executed yet."""
    return f"not scored yet: python -m skipbench score {folder}"


def repetitions(cell: Cell) -> list[Cell]:
    """The runs of a cell, one per process."""
    return [Cell(config) for config in cell.config.repetitions()]


def all_done(config: RunConfig) -> bool:
    """True if every process of the cell has finished; needs neither torch nor the dataset. Raises
    SkipbenchError as `checked_run`.
    """
    with contextlib.suppress(NotHereError):
        return all(checked_run(resolve_cell(one)).done for one in config.repetitions())
    return False


def _run_repeats(config: RunConfig, print_table: bool) -> Metrics | None:
    """`run_cell` of a cell with several processes, one after another."""
    ones = config.repetitions()
    if config.dry_run:
        for one in ones:
            run_cell(one, print_table)
        return None
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as manifest:
        manifest.writelines(json.dumps({"config": one.to_dict()}) + "\n" for one in ones)
        manifest.flush()
        for number, one in enumerate(ones):
            if not config.fresh and all_done(one):
                continue
            say(name := f"process {number + 1} of {len(ones)}", "dim")
            command = cell_command(manifest.name, str(number))
            if code := subprocess.run(command, check=False).returncode:
                reason = "its reason stands above; the same command goes on"
                raise SkipbenchError(f"{name} ended with exit status {code}; {reason}")
    run = joined_run(resolve_cell(config))
    if print_table and run.metrics:
        _show(run)
    return run.metrics


def joined_run(cell: Cell) -> Run:
    """The run of a cell; of several processes the first one's, with the metrics and drafts of those
    that are done, and the reason why some are missing. Raises SkipbenchError as `checked_run`.
    """
    runs = [checked_run(one) for one in repetitions(cell)]
    done = [run for run in runs if run.metrics is not None]
    if not done:
        return runs[0]
    joined = replace(done[0], drafted=drafted(s for run in done for s in run.samples))
    if len(runs) == 1:
        return joined
    reasons = list[str]()
    if len(done) < len(runs):
        reasons.append(f"{len(done)} of {len(runs)} repeats are done")
    if len({origin_of(run) for run in done}) > 1:
        reasons.append("its repeats are of several commits, devices or versions")
    mixed = "; ".join(run.origin.mixed for run in done if run.origin.mixed) or None
    pairs = [(run.samples, run.measured) for run in done]
    metrics = summarise_repeats(pairs, joined.provenance.layers or 0)
    origin = replace(joined.origin, mixed=mixed)
    return replace(joined, metrics=metrics, origin=origin, reason="; ".join(reasons) or None)
