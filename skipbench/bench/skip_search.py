"""`search`: the offline search of Self-SD for a skip set, over the engine at hand."""

from msgspec.structs import replace

from skipbench.bench.load import LoadModel, load_model, prepare
from skipbench.bench.memory import check_memory
from skipbench.bench.prompts import eos_ids
from skipbench.bench.stored_sets import other_weights, search_folder, stored_path, write_stored
from skipbench.config.run_config import RunConfig
from skipbench.console import say
from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.methods.self_sd import objective
from skipbench.runs.fingerprint import weights_sha256
from skipbench.runs.lock import move_aside
from skipbench.search.run import Trial, retime, search
from skipbench.search.strategies import make_strategy


def search_set(config: RunConfig, store: bool, load: LoadModel = load_model) -> Trial:
    """Searches the set that decodes prompts of the training split fastest, or else of rows that the
    run leaves out; with `store`, `method.skip=stored` means it from now on. Raises SkipbenchError
    without rows, or with the trace of another search or of other weights.
    """
    options, model, name = config.search, config.model, config.dataset.name
    shorter = config.dataset.but(max_new_tokens=options.max_new_tokens)
    check_memory(model, shorter, [])
    calibration = config.calibration_rows()
    config = replace(config, dataset=config.dataset.for_search(config.limit))
    rows, shared = config.dataset.search_rows(options.prompts)
    if not rows:
        raise SkipbenchError(f"dataset={name} has no development prompts; a search needs some")
    lm, tokenizer = load(model, config.engine, calibration)
    # a later turn has no prompt before there is an answer
    first = [row for row in rows if row.after is None]
    prompts = [p.ids for p in prepare(lm, tokenizer, first, shorter)]
    method = config.method.but(skip="").factory()(layers=lm.layers)
    made = config.method.make_stop, method.cheaper
    goal = objective(lm, prompts, options.max_new_tokens, eos_ids(lm), *made)
    folder, settings = search_folder(config)
    trace = folder / "trace.jsonl"
    if shared:
        settings |= {"prompts_shared_with_run": shared}
        say(
            f"{shared} of {len(prompts)} prompts of this search are decoded by the run, too: "
            f"dataset {name} has no training split and too few other rows"
        )
    settings |= {"weights_sha256": weights_sha256(model)}
    if config.fresh:
        move_aside(folder)
    elif other := other_weights(trace, model):
        raise SkipbenchError(other)
    strategy = make_strategy(options, lm.layers)
    goal(DraftPlan.parse("", lm.layers))  # warm-up
    search(goal, strategy, lm.layers, options.iterations, trace, settings)
    best = retime(goal, trace, lm.layers, options.iterations)
    assert best.value is not None
    if store:
        path = stored_path(config.results, model, config.method.name, config.method.draft_options)
        write_stored(path, best.skip, best.value, settings)
    return best
