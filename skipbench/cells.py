"""From a composed configuration to its run: one cell."""

import contextlib
import functools
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from skipbench.catalogue import choices, known_hardware, known_models, model_facts
from skipbench.compose import calibration_of, development, development_rows, instantiate, method_of, rows_of
from skipbench.errors import NotHereError, SkipbenchError
from skipbench.runs.terminal import Console

NOT_HASHED = (
    "results",
    "dry_run",
    "fresh",
    "search",
    "profile",
    "own_search",
    "hardware",
)  # what does not change the records of a cell
BUDGETS = {
    "self-sd": ["search=self-sd", "search.iterations=1000", "search.max_new_tokens=32"],
    "self-sd-c": ["search=constrained"],
}
"""Settings of the papers' searches, by method: Self-SD section 4.1 and appendix B, SWIFT D.4 (8 prompts of 32 tokens)."""
console = Console()


def finish(plain: dict[str, Any]) -> tuple[dict[str, Any], Path]:
    """Settings with the stored set filled in, and the run's folder, named by their hash.

    Raises:
        NotHereError: no set is stored, or the cell's own search is not done or of other weights.
    """
    from skipbench.bench.stored import best_of_trace, hashed_model, other_weights, resolve
    from skipbench.runs.provenance import config_hash, run_name

    results = Path(plain["results"])
    method = dict(plain["method"])
    if plain.get("own_search"):
        if other := other_weights(search_trace(plain), plain["model"]):
            raise NotHereError(other)
        method["skip"] = best_of_trace(search_trace(plain), plain["search"]["iterations"])
        if method["skip"] is None:
            raise NotHereError(f"its search of {plain['search']['iterations']} sets is not done yet")
    elif "skip" in method:
        try:
            method["skip"] = resolve(method["skip"], plain["model"], method["name"], results)
        except NotHereError as error:
            raise NotHereError(f"{error}; or search one: {search_command(plain)}") from error
    left_out = ("settings", "gated")  # the method has taken what it needs
    model = {k: v for k, v in hashed_model(plain["model"]).items() if k not in left_out}
    settings = {k: v for k, v in plain.items() if k not in NOT_HASHED} | {"method": method, "model": model}
    parts = [settings[k]["name"] for k in ("model", "method", "dataset")]
    return settings, results / "runs" / run_name(parts, config_hash(settings))


def search_command(plain: dict[str, Any]) -> str:
    """The command that searches a skip set for a cell: on its own model and dataset, with the budget of the papers."""
    model, method, dataset = plain["model"], plain["method"]["name"], plain["dataset"]
    words = ["python", "-m", "skipbench", "search", f"method={method}"]
    facts = model_facts(model["name"]) if model["name"] in choices("model") else {}
    if facts.get("path") == model["path"]:
        words += [f"model={model['name']}", f"model.dtype={model['dtype']}"]
    else:  # a checkpoint of the user's own, whatever it is called
        given = ("path", "name", "revision", "dtype", "device")
        words += ["model=path", *(f"model.{key}={model[key]}" for key in given if model[key] is not None)]
    words += [f"model.{key}={model[key]}" for key in ("quantization", "sparsity") if model[key] != "none"]
    words += [f"dataset={dataset['name']}"]
    words += [
        f"dataset.{key}={dataset[key]}" for key in ("prompt", "path", "shots_path") if dataset.get(key) is not None
    ]
    if "run_limit" in development(dataset, None):  # without a training split the search must know what the run takes
        words += [f"limit={'null' if plain['limit'] is None else plain['limit']}"]
    words += BUDGETS.get(method, BUDGETS["self-sd"])
    words += [f"engine={plain['engine']['name']}"] if plain["engine"]["name"] != "lean" else []
    words += [f"results={plain['results']}"] if plain["results"] != "results" else []
    return shlex.join(words)


def search_trace(plain: dict[str, Any]) -> Path:
    """The trace of a cell's own search: on the cell's dataset, or on the one that `own_search` holds."""
    from skipbench.bench.stored import search_folder

    return search_folder(plain | {"dataset": development(plain["own_search"], plain["limit"])})[0] / "trace.jsonl"


def header(settings: dict[str, Any], provenance: dict[str, Any] | None) -> dict[str, str]:
    device = (provenance or {}).get("device", settings["model"]["device"])
    from skipbench.runs.provenance import engine_text

    names = {k: settings[k]["name"] for k in ("model", "method", "dataset")}
    used = (provenance or {}).get("engine") or engine_text(settings["engine"])
    return {
        **names,
        "engine": used,
        "dtype": settings["model"]["dtype"],
        **({"sparsity": settings["model"]["sparsity"]} if "sparsity" in settings["model"] else {}),
        "device": device,
        "threads": str(settings["engine"]["threads"]),
    }


def checked_run(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Reads the record of a cell, made with today's weights and method, and whole if it is done.

    Raises:
        SkipbenchError: it is of others, cannot be read, or lost samples.
    """
    from skipbench.runs.fingerprint import refuse_other
    from skipbench.runs.store import load_run, read_samples

    state = load_run(folder)
    if (state["status"] or {}).get("state") == "done":
        read_samples(folder / "samples.jsonl")
    refuse_other(folder, settings["model"], settings["method"])
    return state


def cell(plain: dict[str, Any], show: bool = True) -> bool:
    """Runs one cell and prints its table. Returns whether every sample is sound.

    Raises:
        SkipbenchError: a value that cannot be used, samples that failed, or a record of other
            weights or method code.
    """
    from skipbench.report.cell import markdown_cell, render_cell
    from skipbench.runs.files import set_aside, write_atomic
    from skipbench.runs.store import load_run
    from skipbench.scoring.execute import waits_for_score

    if plain.get("own_search") and not _searched(plain):
        return True
    settings, folder = finish(plain)
    make_method = method_of(settings["method"])
    if plain["fresh"] and not plain["dry_run"]:
        set_aside(folder)
    state = load_run(folder) if plain["fresh"] else checked_run(settings, folder)
    if state["provenance"] and "weights_sha256" not in state["provenance"]:
        console.print(
            f"{folder}: an earlier version began it, without fingerprints of weights and method code; "
            f"they are not checked",
            style="dim",
            highlight=False,
            soft_wrap=True,
        )
    metrics = state["metrics"] if (state["status"] or {}).get("state") == "done" else None
    if metrics is None and not plain["dry_run"]:
        from skipbench.bench.memory import check_memory

        # The weights alone may be too much; that is known before a dataset is fetched.
        fit = functools.partial(
            check_memory,
            settings["model"],
            settings["dataset"]["max_new_tokens"],
            models=known_models(),
            context=settings["dataset"]["context"],
        )
        fit([])
    rows = rows_of(settings["dataset"], settings["limit"])
    if plain["dry_run"]:
        from skipbench.bench.run import check_method

        check_method(settings["model"], make_method)
        status = (state["status"] or {"state": "missing"})["state"]
        console.print(f"{folder}: {len(rows)} samples, {status}", highlight=False, soft_wrap=True)
        return True
    if metrics is None:
        from skipbench.bench.run import run

        fit(rows)
        console.print(f"{folder}", style="dim", highlight=False, soft_wrap=True)
        metrics = run(settings, folder, rows, make_method, console, known_hardware(), calibration_of(settings))
        write_atomic(folder / "table.md", markdown_cell(metrics, header(settings, load_run(folder)["provenance"])))
    if show:
        console.print(render_cell(metrics, header(settings, load_run(folder)["provenance"])))
        if waits_for_score(settings["dataset"]["scorer"], metrics):
            console.print(to_score(folder), highlight=False, soft_wrap=True)
    lossless = metrics["lossless"]
    if lossless["failed"]:
        raise SkipbenchError(f"{lossless['failed']} samples failed; see {folder / 'status.json'}")
    return not lossless["diverged"]


def _searched(plain: dict[str, Any]) -> bool:
    """Searches the set of a cell whose set is of its own search; False where a dry run leaves it at that."""
    from skipbench.bench.stored import best_of_trace, other_weights

    options, trace = plain["search"], search_trace(plain)
    plain = plain | {"dataset": plain["own_search"]}
    other = other_weights(trace, plain["model"])
    if other and not plain["fresh"]:
        raise SkipbenchError(other)
    if not other and best_of_trace(trace, options["iterations"]) is not None:
        return True
    if plain["dry_run"]:
        console.print(
            f"{trace.parent}: a search of {options['iterations']} sets, missing", highlight=False, soft_wrap=True
        )
        return False
    from skipbench.bench.memory import check_memory
    from skipbench.bench.offline import search_skip_set

    check_memory(plain["model"], options["max_new_tokens"], [], known_models(), plain["dataset"]["context"])
    calibration = calibration_of(plain)
    plain |= {"dataset": development(plain["dataset"], plain["limit"])}
    rows, shared = development_rows(plain["dataset"], options["prompts"])
    make_stop = functools.partial(instantiate, plain["method"]["stop"])
    search_skip_set(plain, rows, make_stop, console, store=False, calibration=calibration, shared=shared)
    return True


def to_score(folder: Path) -> str:
    """What a run whose code is not executed yet is told by."""
    return f"not scored yet: python -m skipbench score {folder}"


@contextlib.contextmanager
def steps_shown(out: Console, name: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on a terminal, else a plain line for about every quarter of the steps; nothing is drawn while a step is timed."""
    if out.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=out, transient=True, auto_refresh=False) as bar:
            task = bar.add_task(name, total=total)
            yield lambda: bar.update(task, advance=1, refresh=True)
        return
    done = 0

    def line() -> None:
        nonlocal done
        done += 1
        if done == total or done % max(1, total // 4) == 0:
            out.print(f"{name}: {done}/{total} steps", highlight=False)

    yield line
