"""`search`: the offline layer-set search of Self-SD over the engine at hand."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from skipbench.bench.prompts import eos_ids
from skipbench.bench.run import load_model, prepare
from skipbench.bench.stored import other_weights, search_folder, stored_path, write_stored
from skipbench.data.rows import Row
from skipbench.decode.stopping import StopRule
from skipbench.errors import SkipbenchError
from skipbench.methods.self_sd import objective
from skipbench.runs.files import set_aside
from skipbench.runs.fingerprint import weights_sha256
from skipbench.search.run import Trial, search
from skipbench.search.strategies import make_strategy
from skipbench.skipset import SkipSet


def search_skip_set(
    config: dict[str, Any],
    rows: list[Row],
    make_stop: Callable[[], StopRule],
    console: Console,
    store: bool = True,
    calibration: Sequence[Row] = (),
    shared: int = 0,
) -> Trial:
    """Searches the set that decodes the development rows fastest, and stores it under the results folder.

    Args:
        rows: development prompts, of the training split, or of rows that the run leaves out.
        shared: how many of them the run decodes too, for want of others; the trace and the stored set say so.
        calibration: rows for `load_model`.
        store: whether `method.skip=stored` means the best set from now on.

    Raises:
        SkipbenchError: no rows, or the trace of another search or of other weights in the way.
    """
    options = config["search"]
    if not rows:
        raise SkipbenchError("a search needs development prompts; dataset gave none")
    lm, tokenizer = load_model(config["model"], config["engine"], calibration)
    dataset = config["dataset"] | {"max_new_tokens": options["max_new_tokens"]}
    first = [row for row in rows if row.after is None]  # a later turn has no prompt before there is an answer
    prompts = [p.ids for p in prepare(lm, tokenizer, first, dataset)]
    goal = objective(lm, prompts, options["max_new_tokens"], eos_ids(lm), make_stop)
    folder, settings = search_folder(config)
    if shared:
        settings |= {"prompts_shared_with_run": shared}
        console.print(
            f"{shared} of {len(prompts)} prompts of this search are decoded by the run, too: "
            f"dataset {dataset['name']} has no training split and too few other rows",
            highlight=False,
            soft_wrap=True,
        )
    settings |= {"weights_sha256": weights_sha256(config["model"])}
    if config.get("fresh"):
        set_aside(folder)
    elif other := other_weights(folder / "trace.jsonl", config["model"]):
        raise SkipbenchError(other)
    made = {k: options[k] for k in ("seed", "ratio", "protect", "init", "rounded", "tol")}
    start = SkipSet.parse(options["start"], lm.layers)
    strategy = make_strategy(options["strategy"], lm.layers, **made, start=start if start.skipped else None)
    goal(start)  # warm-up
    total = options["iterations"]
    columns = (
        TextColumn("search"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console, auto_refresh=False, disable=not console.is_terminal) as bar:
        task = bar.add_task("search", total=total, note="")

        def advance(trial: Trial, best: Trial) -> None:
            note = f"best {best.detail.get('tokens_per_s', 0):.0f} tokens/s, alpha {best.detail.get('alpha', 0):.3f}"
            bar.update(task, completed=trial.iteration + 1, note=note, refresh=True)
            if not console.is_terminal and (trial.iteration + 1) % max(1, total // 10) == 0:
                console.print(f"{trial.iteration + 1}/{total} sets, {note}", highlight=False)

        best = search(goal, strategy, lm.layers, total, folder / "trace.jsonl", settings, advance)
    assert best.value is not None
    if store:
        path = stored_path(Path(config["results"]), config["model"], config["method"]["name"])
        write_stored(path, best.skip, best.value, settings)
    return best
