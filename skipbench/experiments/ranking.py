"""Ranks the methods that can run on a model by their speedup, within a budget of time."""

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skipbench.config.catalog import DEFAULT_METHOD, choices
from skipbench.config.compose import compose
from skipbench.config.explain import did_you_mean
from skipbench.config.run_config import RunConfig
from skipbench.console import duration, say_replaced
from skipbench.errors import NotHereError, SkipbenchError, reason_of
from skipbench.experiments.last_loaded import LastLoaded
from skipbench.experiments.resolve import is_done, resolve_cell
from skipbench.experiments.row import run_row
from skipbench.experiments.table_runs import run_entry
from skipbench.report.compared import BASELINE, Comparison, conclude
from skipbench.runs.files import write_atomic
from skipbench.runs.run import Run

if TYPE_CHECKING:
    from skipbench.bench.ask import PromptType

FIRST = (BASELINE, DEFAULT_METHOD, "prompt-lookup", "swift", "clasp", "knapspec")
"""The first to run; others follow in the order of their names, a search for a skip set last."""
LEFT_OUT = {
    **dict.fromkeys(
        ("first", "last", "middle", "random"), "a control of the papers; uniform stands for it"
    ),
    "fixed": "takes a skip set by hand: method=fixed method.skip='\"attn:1,2;mlp:3\"'",
    "self-sd-c": "self-sd with another search",
    "draft-model": "takes a second checkpoint: method=draft-model method.model=MODEL",
    **dict.fromkeys(("layerskip", "del"), "for checkpoints trained for early exit"),
}
EARLY_EXIT = "layerskip"  # in the name or path of a checkpoint trained for early exit
PROMPTS = (20, 10, 5)  # per method; the budget chooses
ARM_S = 1.25  # time of a method on a prompt, warm-up included, over that of vanilla at most
SEARCH = ("search.iterations=24", "search.prompts=2", "search.max_new_tokens=24")
SEARCH_TOKENS = 24 * 2 * 24
LONG = 2048  # tokens of context from which the prompts are sections of Python's reference


def rank_methods(
    settings: Sequence[str],
    budget_s: float,
    methods: Sequence[str] = (),
    limit: int | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Runs every method that can run on the model of `settings`, by turns on each prompt. Raises
    SkipbenchError for a model or dataset that cannot be used, or an unknown method.

    Args:
        settings: overrides of all cells: model, dataset, engine; without a dataset, prompts are
            sections of Python's own reference, or generated stories for a short context.
        budget_s: seconds that the runs may take; vanilla and the first method always run.
        methods: only these; all where empty.
        limit: prompts per method; by default as many of `PROMPTS` as the budget allows.
        tell: gets a line per method.
    """
    from skipbench.bench.load import check_model
    from skipbench.bench.memory import check_memory
    from skipbench.bench.skip_search import search_set
    from skipbench.models.outline import sized

    began = time.monotonic()
    names = _ordered(methods)
    base = compose([*settings, f"method={BASELINE}"])
    check_model(base.model, base.engine)
    check_memory(sized(base.model), base.dataset, [])
    load = LastLoaded(always=True)
    loaded = load(base.model, base.engine, base.calibration_rows())
    say_replaced(base.engine.name, loaded[0])
    if not any(word.startswith("dataset=") for word in settings):
        long = loaded[0].max_positions >= LONG  # no network is needed for either
        settings = [*settings, f"dataset={'pydoc-summary' if long else 'mini-stories'}"]
        base = compose([*settings, f"method={BASELINE}"])
    configs = {name: _composed(settings, name, base, given=bool(methods)) for name in names}
    prompt_s = _seconds_per_prompt(loaded, base)
    if limit is None:
        able = sum(isinstance(config, RunConfig) for config in configs.values())
        each_s = ARM_S * prompt_s * (1 + able)
        limit = next((n for n in PROMPTS if n * each_s <= budget_s), PROMPTS[-1])
    limit = len(base.dataset.rows(limit))  # a file may hold fewer
    left_s = budget_s - (time.monotonic() - began)
    row, reasons = _affordable(configs, limit, ARM_S * prompt_s * limit, left_s)
    for name in [name for name, config in row.items() if _searches(config)]:
        try:
            search_set(row[name], True, load)
        except Exception as error:  # the other methods do not depend on it
            reasons[name] = reason_of(error)
            del row[name]
    tell(f"{limit} prompts, by turns: {', '.join(row)}")
    for name, outcome in zip(list(row), run_row([*row.values()], load), strict=True):
        if outcome.error is not None:
            reasons[name] = reason_of(outcome.error)
    runs = [run_entry(resolve_cell(row[name])) for name in row if name not in reasons]
    model, dataset = base.model.name, base.dataset.name
    for name, reason in reasons.items():
        runs.append(Run(model=model, method=name, dataset=dataset, reason=reason))
    return conclude(runs)


def _affordable(
    configs: Mapping[str, RunConfig | str], limit: int, arm_s: float, left_s: float
) -> tuple[dict[str, RunConfig], dict[str, str]]:
    """The cells that fit into `left_s` beside vanilla, and why the others are left out; vanilla and
    the first method always run. `arm_s`: time of one method on all prompts, without a search.
    """
    row, reasons = dict[str, RunConfig](), dict[str, str]()
    for name, config in configs.items():
        if isinstance(config, str):
            reasons[name] = config
            continue
        config, cost_s = dataclasses.replace(config, limit=limit), arm_s
        if _searches(config):
            cost_s += arm_s * SEARCH_TOKENS / (limit * config.dataset.max_new_tokens)
        elif is_done(config):
            cost_s = 0.0
        if cost_s > left_s and len(row) > 1:
            left = f"{duration(max(0.0, left_s))} of minutes= are left"
            reasons[name] = f"not run: it would take {duration(cost_s)}, and {left}"
        else:
            row[name] = config
            left_s -= cost_s
    return row, reasons


def _ordered(methods: Sequence[str]) -> list[str]:
    known = choices("method")
    if unknown := [name for name in methods if name not in known]:
        hint = did_you_mean(unknown[0], known)
        raise SkipbenchError(
            f"unknown method {unknown[0]!r}.{hint} Allowed here: {', '.join(known)}"
        )
    first = [name for name in FIRST if name in known]
    wanted = dict.fromkeys([BASELINE, *methods] if methods else [*first, *known])
    return sorted(wanted, key=lambda name: (name == "self-sd", name in LEFT_OUT))


def _composed(settings: Sequence[str], name: str, base: RunConfig, given: bool) -> RunConfig | str:
    """The cell of a method, or why it is left out; `given`: the user has named the methods."""
    from skipbench.bench.load import check_method

    trained = EARLY_EXIT in f"{base.model.name} {base.model.path}".lower()
    exits = name in ("layerskip", "del")
    if name in LEFT_OUT and not given and not (exits and trained):
        return LEFT_OUT[name]
    try:
        config = compose([*settings, f"method={name}", *(SEARCH if name == "self-sd" else ())])
        if not _searches(config):
            resolved = resolve_cell(config).config
            check_method(resolved.model, resolved.method.factory())
    except SkipbenchError as error:
        return str(error)
    return config


def _searches(config: RunConfig) -> bool:
    """True if its skip set is not searched yet."""
    if config.method.skip == "stored":
        try:
            resolve_cell(config)
        except NotHereError:
            return True
    return False


def _seconds_per_prompt(loaded: Any, base: RunConfig) -> float:
    """Vanilla's time for one prompt of the dataset, from a few tokens of the first."""
    from skipbench.bench.load import prepare
    from skipbench.bench.prompts import eos_ids
    from skipbench.decode.loop import generate
    from skipbench.methods.vanilla import Vanilla

    lm, tokenizer = loaded
    prompt = prepare(lm, tokenizer, base.dataset.rows(1), base.dataset)[0]
    for tokens in (2, 16):  # the first is the warm-up
        out = generate(lm, Vanilla(), prompt.ids, tokens, eos_ids(lm))
    decode_s = sum(out.seconds.values()) - out.seconds["prefill"]
    token_s = decode_s / max(1, len(out.tokens) - 1)
    return out.seconds["prefill"] + token_s * base.dataset.max_new_tokens


def prompts_file(prompts: "Sequence[PromptType]", results: Path) -> Path:
    """The prompts as a file, whose name is their hash."""
    lines = [{"prompt": p} if isinstance(p, str) else {"messages": p} for p in prompts]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    path = results / "prompts" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsonl"
    write_atomic(path, text)
    return path
