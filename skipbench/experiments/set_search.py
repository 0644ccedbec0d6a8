"""The search of a cell's skip set: its command, its trace, its run."""

import dataclasses
import shlex
from pathlib import Path

from skipbench.bench.stored_sets import other_weights, search_folder
from skipbench.config.catalog import choices, model_facts
from skipbench.config.run_config import RunConfig
from skipbench.console import show_result
from skipbench.errors import SkipbenchError
from skipbench.experiments.last_loaded import LastLoaded
from skipbench.runs.run import SetSearch
from skipbench.search.run import best_of_trace, read_trials

BUDGETS = {
    "self-sd": ["search=self-sd", "search.iterations=1000", "search.max_new_tokens=32"],
    "self-sd-c": ["search=constrained"],
}  # the papers' searches: Self-SD 4.1 and appendix B, SWIFT D.4 (8 prompts of 32 tokens)


def search_trace(config: RunConfig) -> Path:
    """The trace of a cell's own search."""
    assert config.search_dataset is not None
    dataset = config.search_dataset.for_search(config.limit)
    return search_folder(dataclasses.replace(config, dataset=dataset))[0] / "trace.jsonl"


def search_of(config: RunConfig) -> SetSearch | None:
    """What the search of a cell took; None for a cell without one."""
    if config.search_dataset is None:
        return None
    sets = config.search.iterations
    seconds = sum(trial.seconds for trial in read_trials(search_trace(config), sets))
    return SetSearch(on=config.search_dataset.name, sets=sets, seconds=seconds)


def search_command(config: RunConfig) -> str:
    """The command that searches a skip set for a cell, with the budget of the papers."""
    model, dataset = config.model, config.dataset
    words = ["python", "-m", "skipbench", "search", f"method={config.method.name}"]
    facts = model_facts(model.name) if model.name in choices("model") else {}
    listed = facts.get("path") == model.path
    words.append(f"model={model.name if listed else 'path'}")  # or a checkpoint of the user's own
    keys = ["dtype"] if listed else ["path", "name", "revision", "dtype", "device"]
    keys += [k for k in ("quantization", "sparsity") if getattr(model, k) != "none"]
    words += [f"model.{k}={getattr(model, k)}" for k in keys if getattr(model, k) is not None]
    own = {key: dataset.node.get(key) for key in ("prompt", "path", "shots_path")}
    words += [f"dataset={dataset.name}"]
    words += [f"dataset.{key}={value}" for key, value in own.items() if value is not None]
    if "run_limit" in dataset.for_search(None).node:  # there is no training split
        words += [f"limit={'null' if config.limit is None else config.limit}"]
    words += BUDGETS.get(config.method.name, BUDGETS["self-sd"])
    words += [f"engine={config.engine.name}"] if config.engine.name != "fused" else []
    words += [f"results={config.results}"] if str(config.results) != "results" else []
    return shlex.join(words)


def ensure_searched(config: RunConfig, load: LastLoaded) -> bool:
    """Searches the skip set of a cell that has a search of its own; False if a dry run does not."""
    trace = search_trace(config)
    assert config.search_dataset is not None
    other = other_weights(trace, config.model)
    if other and not config.fresh:
        raise SkipbenchError(other)
    if not other and best_of_trace(trace, config.search.iterations) is not None:
        return True
    if config.dry_run:
        from skipbench.bench.load import check_model
        from skipbench.bench.memory import check_memory
        from skipbench.models.outline import sized

        check_model(config.model, config.engine)
        check_memory(sized(config.model), config.search_dataset, [])
        sets = config.search.iterations
        missing = {"folder": str(trace.parent), "search": sets, "state": "missing"}
        show_result(missing, lambda: f"{trace.parent}: a search of {sets} sets, missing")
        return False
    from skipbench.bench.skip_search import search_set

    search_set(dataclasses.replace(config, dataset=config.search_dataset), False, load)
    return True
