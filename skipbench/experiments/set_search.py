"""The search of a cell's skip set: its command, its trace, its run."""

from pathlib import Path

from msgspec.structs import replace

from skipbench.bench.stored_sets import other_weights, search_folder
from skipbench.config.run_config import RunConfig
from skipbench.console import show_result
from skipbench.errors import SkipbenchError
from skipbench.experiments.last_loaded import LastLoaded
from skipbench.search.run import Trial, best_of_trace


def search_trace(config: RunConfig) -> Path:
    """The trace of a cell's own search, whether its skip set is filled in or not."""
    assert config.search_dataset is not None
    dataset = config.search_dataset.for_search(config.limit)
    method = config.method.but(skip="stored")
    config = replace(config, dataset=dataset, method=method)
    return search_folder(config)[0] / "trace.jsonl"


def ensure_searched(config: RunConfig, load: LastLoaded) -> bool:
    """Searches the skip set of a cell that has a search of its own; False if a dry run does not."""
    trace = search_trace(config)
    assert config.search_dataset is not None
    other = other_weights(trace, config.model)
    if other and not config.fresh:
        raise SkipbenchError(other)
    if not other and best_of_trace(trace, config.search.iterations) is not None:
        return True
    own = replace(config, dataset=config.search_dataset)
    return search_or_check(own, False, load) is not None


def search_or_check(config: RunConfig, store: bool, load: LastLoaded) -> Trial | None:
    """Searches a skip set; a dry run checks and prints what is to be searched. Arguments and errors
    of `search_set`.
    """
    from skipbench.bench.skip_search import search_set

    if not config.dry_run:
        return search_set(config, store, load)
    from skipbench.bench.load import check_model
    from skipbench.bench.memory import check_memory
    from skipbench.models.outline import sized

    check_model(config.model, config.engine)
    check_memory(sized(config.model), config.dataset, [])
    dataset, sets = config.dataset.for_search(config.limit), config.search.iterations
    folder, _ = search_folder(replace(config, dataset=dataset))
    missing = {"folder": str(folder), "search": sets, "state": "missing"}
    show_result(missing, lambda: f"{folder}: a search of {sets} sets, missing")
    return None
