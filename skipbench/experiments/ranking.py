"""Ranks the methods that can run on a model by their speedup, within a budget of time."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from skipbench.config.catalog import DEFAULT_METHOD, choices
from skipbench.config.compose import compose
from skipbench.config.explain import did_you_mean
from skipbench.config.run_config import RunConfig
from skipbench.console import say_replaced
from skipbench.errors import NotHereError, SkipbenchError, reason_of
from skipbench.experiments.last_loaded import LastLoaded
from skipbench.experiments.resolve import resolve_cell
from skipbench.experiments.row import run_row
from skipbench.experiments.table_runs import run_entry
from skipbench.metrics.summary import summarise
from skipbench.report.compared import BASELINE, Comparison, conclude
from skipbench.runs.files import write_atomic
from skipbench.runs.record import drafted
from skipbench.runs.run import Run

if TYPE_CHECKING:
    from skipbench.bench.ask import PromptType

FIRST = (BASELINE, DEFAULT_METHOD, "prompt-lookup", "swift", "clasp", "knapspec")
"""The first to run; others follow in the order of their names, a search for a skip set last."""
TRAINED = ("layerskip", "del")  # for checkpoints trained for early exit
LEFT_OUT = ("first", "last", "middle", "random", "fixed", "self-sd-c", "draft-model", *TRAINED)
"""Run where they are named alone."""
EARLY_EXIT = "layerskip"  # in the name or path of a checkpoint trained for early exit
PROMPTS = 20  # per method
SEARCH = ("search.iterations=24", "search.prompts=2", "search.max_new_tokens=24")
LONG = 2048  # tokens of context from which the prompts are sections of Python's reference


def rank_methods(
    settings: Sequence[str],
    budget_s: float,
    methods: Sequence[str] = (),
    limit: int | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Runs every method that can run on the model of `settings`, by turns on each prompt, until
    the time is up. Raises SkipbenchError for a model or dataset that cannot be used, or an unknown
    method.

    Args:
        settings: overrides of all cells: model, dataset, engine; without a dataset, prompts are
            sections of Python's own reference, or generated stories for a short context.
        budget_s: seconds after which no further prompt begins, and no search for a skip set; one
            prompt is always decoded.
        methods: only these; all where empty.
        limit: prompts per method, 20 by default.
        tell: gets a line on what runs.
    """
    from skipbench.bench.load import check_model
    from skipbench.bench.memory import check_memory
    from skipbench.models.outline import sized

    deadline = time.monotonic() + budget_s
    base = compose([*settings, f"method={BASELINE}"])
    names = _named(methods, f"{base.model.name} {base.model.path}")
    check_model(base.model, base.engine)
    check_memory(sized(base.model), base.dataset, [])
    load = LastLoaded(always=True)
    loaded = load(base.model, base.engine, base.calibration_rows())
    say_replaced(base.engine.name, loaded[0])
    if not any(word.startswith("dataset=") for word in settings):
        long = loaded[0].max_positions >= LONG  # no network is needed for either
        settings = [*settings, f"dataset={'pydoc-summary' if long else 'mini-stories'}"]
        base = compose([*settings, f"method={BASELINE}"])
    limit = len(base.dataset.rows(limit or PROMPTS))  # a file may hold fewer
    row, reasons = dict[str, RunConfig](), dict[str, str]()
    for name in names:
        try:
            row[name] = _composed([*settings, f"limit={limit}"], name)
        except SkipbenchError as error:
            reasons[name] = str(error)
    tell(f"{limit} prompts, by turns: {', '.join(row)}")
    reasons |= _run(row, load, deadline)
    runs = [_so_far(run_entry(resolve_cell(row[name]))) for name in row if name not in reasons]
    if any(run.status.state == "interrupted" for run in runs):
        tell("the time of minutes= was up; the same command goes on with further prompts")
    model, dataset = base.model.name, base.dataset.name
    for name, reason in reasons.items():
        runs.append(Run(model=model, method=name, dataset=dataset, reason=reason))
    return conclude(runs)


def _run(row: Mapping[str, RunConfig], load: LastLoaded, deadline: float) -> dict[str, str]:
    """Runs the cells of a row, those that have to search a skip set first at the end, and each in a
    row of its own; returns for each that did not run why.
    """
    from skipbench.bench.skip_search import search_set

    later, reasons = [name for name in row if _searches(row[name])], dict[str, str]()
    now = [name for name in row if name not in later]
    outcomes = run_row([row[name] for name in now], load, deadline)
    for name in later:
        if time.monotonic() > deadline:
            reasons[name] = "no time is left of minutes= for its search"
            continue
        try:
            search_set(row[name], True, load)
            outcomes += run_row([row[name]], load, deadline)
        except Exception as error:  # the other methods do not depend on it
            reasons[name] = reason_of(error)
    errors = {outcome.config.method.name: outcome.error for outcome in outcomes}
    return reasons | {name: reason_of(error) for name, error in errors.items() if error}


def _so_far(run: Run) -> Run:
    """A run whose time was up, with the metrics of the prompts that it has decoded."""
    if run.metrics is not None or run.provenance.layers is None:
        return run
    metrics = summarise(run.turns, run.arm, run.provenance.layers)
    return replace(run, metrics=metrics, drafted=drafted(run.turns, run.arm), reason=None)


def _named(methods: Sequence[str], model: str) -> list[str]:
    """The methods to run, vanilla first; where none is named, those that need nothing by hand."""
    known = choices("method")
    if unknown := [name for name in methods if name not in known]:
        hint = did_you_mean(unknown[0], known)
        raise SkipbenchError(
            f"unknown method {unknown[0]!r}.{hint} Allowed here: {', '.join(known)}"
        )
    able = [name for name in FIRST if name in known]
    able += [name for name in known if name not in LEFT_OUT]
    able += TRAINED if EARLY_EXIT in model.lower() else ()
    return list(dict.fromkeys([BASELINE, *(methods or able)]))


def _composed(settings: Sequence[str], name: str) -> RunConfig:
    """The cell of a method. Raises SkipbenchError where the method does not fit the model."""
    from skipbench.bench.load import check_method

    config = compose([*settings, f"method={name}", *(SEARCH if name == "self-sd" else ())])
    if not _searches(config):
        resolved = resolve_cell(config).config
        check_method(resolved.model, resolved.method.factory())
    return config


def _searches(config: RunConfig) -> bool:
    """True if its skip set is not searched yet."""
    if config.method.skip == "stored":
        try:
            resolve_cell(config)
        except NotHereError:
            return True
    return False


def prompts_file(prompts: "Sequence[PromptType]", results: Path) -> Path:
    """The prompts as a file, whose name is their hash."""
    lines = [{"prompt": p} if isinstance(p, str) else {"messages": p} for p in prompts]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    path = results / "prompts" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsonl"
    write_atomic(path, text)
    return path
