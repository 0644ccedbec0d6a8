"""Ranks the methods that can run on a model by their speedup, within a budget of time."""

import contextlib
import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from skipbench.config.catalog import choices
from skipbench.config.compose import compose
from skipbench.config.explain import did_you_mean
from skipbench.console import say
from skipbench.errors import NotHereError, SkipbenchError
from skipbench.experiments.last_loaded import LastLoaded
from skipbench.experiments.resolve import fill_skip_set
from skipbench.experiments.row import deadline_of, run_rows
from skipbench.experiments.set_search import search_or_check
from skipbench.report.compared import BASELINE
from skipbench.runs.cell import Cell
from skipbench.runs.files import write_atomic

if TYPE_CHECKING:
    from skipbench.bench.ask import PromptType

FIRST = (BASELINE, "auto", "prompt-lookup", "swift", "clasp", "knapspec")
"""The first to run; others follow in the order of their names, a search for a skip set last."""
TRAINED = ("layerskip", "del")  # for checkpoints trained for early exit
LEFT_OUT = ("first", "last", "middle", "random", "fixed", "self-sd-c", "draft-model", *TRAINED)
"""Run where they are named alone."""
EARLY_EXIT = "layerskip"  # in the name or path of a checkpoint trained for early exit
PROMPTS = 20  # per method
SEARCH = ("search.iterations=24", "search.prompts=2", "search.max_new_tokens=24")
LONG = 2048  # tokens of context from which the prompts are sections of Python's reference


def cells_to_rank(
    settings: Sequence[str], methods: Sequence[str] = (), limit: int | str | None = None
) -> list[Cell]:
    """A cell per method, by default for each that can run, with `settings` and `limit` prompts (20;
    `null` for all). Without a dataset these are sections of Python's own reference, or generated
    stories for a short context. Raises SkipbenchError for a model that cannot be used, or no such
    method.
    """
    from skipbench.bench.load import check_model
    from skipbench.bench.memory import check_memory
    from skipbench.models.outline import context_of, sized

    base = compose([*settings, f"method={BASELINE}"])
    names = _named(methods, f"{base.model.name} {base.model.path}")
    check_model(base.model, base.engine)
    check_memory(sized(base.model), base.dataset, [])
    given = dict.fromkeys(word.partition("=")[0] for word in settings)
    if "dataset" not in given:  # no network is needed for either
        long = context_of(base.model) >= LONG
        settings = [*settings, f"dataset={'pydoc-summary' if long else 'mini-stories'}"]
    cells = list[Cell]()
    for name in names:
        more = [f"limit={limit or PROMPTS}", *(SEARCH if name == "self-sd" else ())]
        try:
            cells.append(Cell(compose([*settings, f"method={name}", *more])))
        except SkipbenchError as error:
            names_of = base.names | {"method": name}
            cells.append(Cell(overrides=names_of, reason=str(error), runnable=False))
    return cells


def run_ranked(cells: Sequence[Cell], minutes: float | None) -> None:
    """Runs cells of one row, those that have to search a skip set first at the end. Raises the
    error of the first one where nothing was measured. After so many `minutes` no prompt begins but
    the first, and no search.
    """
    load, deadline = LastLoaded(always=True), deadline_of(minutes)
    able, later = [c for c in cells if c.runnable], [c for c in cells if _searches(c)]
    now = [cell for cell in able if cell not in later]
    say(f"prompts by turns: {', '.join(cell.config.method.name for cell in now)}")
    run_rows(now, load, deadline)
    for cell in later:
        try:
            if time.monotonic() > deadline:
                raise NotHereError("no time is left of minutes= for its search")
            if search_or_check(cell.config, True, load) is not None:
                run_rows([cell], load, deadline)
        except Exception as error:  # kept; the other methods do not depend on it
            cell.error = error
    states = [cell.run.status.state for cell in able if cell.run is not None]
    if "interrupted" in states:
        say("the time of minutes= was up; the same command goes on with further prompts")
    if not states and (failed := [cell.error for cell in able if cell.error is not None]):
        raise failed[0]


def _searches(cell: Cell) -> bool:
    """True if its skip set is not searched yet."""
    with contextlib.suppress(NotHereError):
        if cell.runnable:
            fill_skip_set(cell)
    return cell.runnable and not cell.filled


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


def prompts_file(prompts: "Sequence[PromptType]", results: Path) -> Path:
    """The prompts as a file, whose name is their hash. Raises SkipbenchError for other kinds."""
    if wrong := [p for p in prompts if not isinstance(p, str | list | tuple)]:
        raise SkipbenchError(f"prompt {wrong[0]!r}; wanted a text, or a list of messages")
    lines = [{"prompt": p} if isinstance(p, str) else {"messages": p} for p in prompts]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    path = results / "prompts" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsonl"
    write_atomic(path, text)
    return path
