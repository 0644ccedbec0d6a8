"""`search`: the offline search of Self-SD for a skip set, over the engine at hand."""

from collections.abc import Sequence

from skipbench.bench.load import Loaded, LoadModel, load_model, prepare
from skipbench.bench.prompts import eos_ids
from skipbench.bench.stored_sets import other_weights, search_folder, stored_path, write_stored
from skipbench.config.run_config import RunConfig
from skipbench.console import say
from skipbench.data.rows import Row
from skipbench.errors import SkipbenchError
from skipbench.methods.self_sd import objective
from skipbench.profile.influence import rank_sublayers
from skipbench.runs.files import set_aside
from skipbench.runs.fingerprint import weights_sha256
from skipbench.search.run import Trial, retime, search
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
    """Searches the set that decodes the development rows fastest, and stores it in the results.
    Raises SkipbenchError without rows, or with the trace of another search or of other weights.

    Args:
        rows: development prompts, of the training split, or of rows that the run leaves out.
        shared: how many of them the run decodes too, for want of others; recorded in the trace and
            with the stored set.
        store: whether `method.skip=stored` means the best set from now on.
        calibration: rows for `load_model`.
        loaded: the model and tokenizer, if these settings were loaded before; else `load` does.
    """
    options, data = config.search, f"dataset={config.dataset.name}"
    if not rows:
        raise SkipbenchError(f"{data} has no development prompts; a search needs at least one")
    lm, tokenizer = loaded or load(config.model, config.engine, calibration)
    dataset = config.dataset.but(max_new_tokens=options.max_new_tokens)
    # a later turn has no prompt before there is an answer
    first = [row for row in rows if row.after is None]
    prompts = [p.ids for p in prepare(lm, tokenizer, first, dataset)]
    goal = objective(lm, prompts, options.max_new_tokens, eos_ids(lm), config.method.make_stop)
    folder, settings = search_folder(config)
    trace = folder / "trace.jsonl"
    if shared:
        settings |= {"prompts_shared_with_run": shared}
        say(
            f"{shared} of {len(prompts)} prompts of this search are decoded by the run, too: "
            f"dataset {config.dataset.name} has no training split and too few other rows"
        )
    settings |= {"weights_sha256": weights_sha256(config.model)}
    if config.fresh:
        set_aside(folder)
    elif other := other_weights(trace, config.model):
        raise SkipbenchError(other)
    order = rank_sublayers(lm, prompts[0]) if options.strategy == "nested" else ()
    strategy = make_strategy(options, lm.layers, order)
    goal(SkipSet.parse(options.start, lm.layers))  # warm-up
    search(goal, strategy, lm.layers, options.iterations, trace, settings)
    best = retime(goal, trace, lm.layers, options.iterations)
    assert best.value is not None
    if store:
        path = stored_path(config.results, config.model, config.method.name)
        write_stored(path, best.skip, best.value, settings)
    return best
