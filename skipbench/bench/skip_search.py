"""`search`: the offline search of Self-SD for a skip set, over the engine at hand."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from skipbench.bench.load import Loaded, LoadModel, load_model, prepare
from skipbench.bench.prompts import eos_ids
from skipbench.bench.stored_sets import other_weights, search_folder, stored_path, write_stored
from skipbench.config.run_config import RunConfig
from skipbench.console import progress, say
from skipbench.data.rows import Row
from skipbench.errors import SkipbenchError
from skipbench.methods.self_sd import objective
from skipbench.profile.influence import rank_sublayers
from skipbench.runs.files import set_aside
from skipbench.runs.fingerprint import weights_sha256
from skipbench.search.run import (
    TIMES,
    Objective,
    Trial,
    candidates,
    read_retimed,
    read_trials,
    retime,
    search,
    write_retimed,
)
from skipbench.search.strategies import make_strategy
from skipbench.skipset import SkipSet


def search_skip_set(
    config: RunConfig,
    rows: list[Row],
    shared: int = 0,
    store: bool = True,
    calibration: Sequence[Row] = (),
    loaded: Loaded | None = None,
    load: LoadModel = load_model,
) -> Trial:
    """Searches the set that decodes the development rows fastest, and stores it under the results
    folder.

    Args:
        rows: development prompts, of the training split, or of rows that the run leaves out.
        shared: how many of them the run decodes too, for want of others; the trace and the stored
            set say so.
        store: whether `method.skip=stored` means the best set from now on.
        calibration: rows for `load_model`.
        loaded: what `load_model` gave for these settings before.
        load: what loads the model where it is not.

    Raises:
        SkipbenchError: no rows, or the trace of another search or of other weights in the way.
    """
    options = config.search
    if not rows:
        raise SkipbenchError(
            f"dataset={config.dataset.name} has no development prompts; a search needs at least one"
        )
    lm, tokenizer = loaded or load(config.model, config.engine, calibration)
    dataset = config.dataset.with_max_new_tokens(options.max_new_tokens)
    # a later turn has no prompt before there is an answer
    first = [row for row in rows if row.after is None]
    prompts = [p.ids for p in prepare(lm, tokenizer, first, dataset)]
    goal = objective(lm, prompts, options.max_new_tokens, eos_ids(lm), config.method.make_stop)
    folder, settings = search_folder(config)
    if shared:
        settings |= {"prompts_shared_with_run": shared}
        say(
            f"{shared} of {len(prompts)} prompts of this search are decoded by the run, too: "
            f"dataset {config.dataset.name} has no training split and too few other rows"
        )
    settings |= {"weights_sha256": weights_sha256(config.model)}
    if config.fresh:
        set_aside(folder)
    elif other := other_weights(folder / "trace.jsonl", config.model):
        raise SkipbenchError(other)
    order = rank_sublayers(lm, prompts[0]) if options.strategy == "nested" else ()
    strategy = make_strategy(options, lm.layers, order)
    goal(SkipSet.parse(options.start, lm.layers))  # warm-up
    with progress("search", options.iterations) as advance:

        def report(trial: Trial, best: Trial) -> None:
            advance(
                f"best {best.detail.get('tokens_per_s', 0):.0f} tokens/s, alpha "
                f"{best.detail.get('alpha', 0):.3f}"
            )

        best = search(
            goal, strategy, lm.layers, options.iterations, folder / "trace.jsonl", settings, report
        )
    best = _retimed(goal, best, lm.layers, options.iterations, folder)
    assert best.value is not None
    if store:
        path = stored_path(config.results, config.model, config.method.name)
        write_stored(path, best.skip, best.value, settings)
    return best


def _retimed(goal: Objective, best: Trial, layers: int, iterations: int, folder: Path) -> Trial:
    """The trial of the set that is best when the best ones are timed again in turns."""
    trials = read_trials(folder / "trace.jsonl", layers, iterations)
    found = read_retimed(folder, iterations)
    if found is None:
        sets = candidates(trials)
        if len(sets) == 1:
            return best
        with progress("best sets again", len(sets) * TIMES) as advance:
            found = retime(goal, sets, layers, iterations, lambda: advance(""))
        write_retimed(folder, found)
    say(
        f"the best {len(found.sets)} sets of the search, timed again {TIMES} times in turns: its "
        f"number {found.rank} is the best"
    )
    own = next(t for t in trials if t.skip == found.best)
    return replace(own, value=found.value)
