"""What the four papers say of the cells of their tables, for `predict`: acceptance, plans, rows."""

import functools
from collections.abc import Iterator
from statistics import fmean
from typing import NamedTuple

from skipbench.config.compose import compose_cells
from skipbench.config.run_config import RunConfig
from skipbench.contrib.artifact.predict import Drafts, PrintedAcceptance, Range
from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.experiments.costs import prompt_tokens_of
from skipbench.experiments.grid import matches, plan, printed_numbers
from skipbench.report.compared import BASELINE
from skipbench.report.published import Printed

OVERALL = "overall"
TABLES = ("self-sd-table1", "swift-table2", "clasp-table1", "knapspec-table2")
"""The papers' main tables of speedups."""
BORROWED = {  # tables with the alpha of a method, for papers that print none
    "swift": ("swift-table3", "swift-table4", "swift-table5", "swift-table6", "swift-table7"),
    "self-sd": ("self-sd-table4", "swift-table10"),
    "clasp": ("knapspec-table2",),
}
ADAPTING = {"swift": "swift-figure6", "clasp": "clasp-figure3c", "knapspec": "knapspec-figure6"}
"""Tables with the share of a method's time that adaptation takes."""
SETS = ("llama2-13b", "llama2-13b-chat", "llama2-70b")
"""Models with a set in Self-SD's published code."""
UNKNOWN = {"del": "the paper prints neither exit layers nor lengths of drafts"}
"""Methods whose cells are not predicted."""


class PaperCell(NamedTuple):
    """A published speedup, and what is known of its drafts; None for one that is not predicted."""

    printed: Printed
    config: RunConfig | None = None
    known: PrintedAcceptance | None = None
    drafts: Drafts | None = None


def cells_of(name: str) -> Iterator[PaperCell]:
    """The speedups of a table but vanilla's, which are 1 by definition, in the paper's order.

    Raises SkipbenchError for a table that is not among `TABLES`.
    """
    if name not in TABLES:
        raise SkipbenchError(f"no predictions of {name}; there are those of {', '.join(TABLES)}")
    planned = [cell for cell in plan(name, [], "paper") if cell.runnable]
    of_table = [n for n in printed_numbers(name) if n.column == "speedup"]
    speedups = [n for n in of_table if n.method != BASELINE]
    words = {
        id(n): next(c for c in planned if matches(c.keys, n.keys)).words
        for n in speedups
        if not is_overall(n) and n.method not in UNKNOWN
    }
    unique = list(dict.fromkeys(words.values()))
    configs = dict(zip(unique, compose_cells(unique), strict=True))
    for printed in speedups:
        if id(printed) not in words:
            yield PaperCell(printed)
            continue
        config = configs[words[id(printed)]]
        yield PaperCell(
            printed, config, _BY_TABLE[name](printed), drafts_of(name, config, printed.method)
        )


def is_overall(printed: Printed) -> bool:
    """True for the mean of a row's tasks."""
    return OVERALL in printed.named("dataset", "subtask")


def numbers(table: str, column: str, **keys: object) -> list[Printed]:
    """The printed numbers of a column whose keys agree, those that the text has lost left out."""
    of = (n for n in printed_numbers(table) if n.column == column and n.value is not None)
    return [n for n in of if matches(keys, n.keys)]


def rounded(printed: Printed, most: float = float("inf")) -> Range:
    """What a printed number may have been before it was rounded."""
    value, half = printed.value or 0.0, 0.5 * 10.0 ** -(printed.digits or 0)
    return Range(value - half, value, min(most, value + half))


def _swift(printed: Printed) -> PrintedAcceptance:
    (M,) = numbers("swift-table2", "M", **printed.keys)
    if printed.method != "swift":
        return PrintedAcceptance(rounded(M), None, "M of the table")
    (alpha,) = numbers("swift-table4", "alpha", **printed.keys)
    return PrintedAcceptance(rounded(M), rounded(alpha, 1.0), "M of the table, alpha of Table 4")


def _clasp(printed: Printed) -> PrintedAcceptance:
    """tau with the bonus, as it is defined; the high end also takes it without."""
    (tau,) = numbers("clasp-table1", "tau", **printed.keys)
    M = rounded(tau)
    with_bonus = Range(M.low, M.value, M.high + 1) if M.low >= 1 else Range(*(x + 1 for x in M))
    source = f"M: tau; alpha: mean of {', '.join(BORROWED[printed.method])}, at most 1"
    return PrintedAcceptance(with_bonus, borrowed(printed.method), source)


def _knapspec(printed: Printed) -> PrintedAcceptance:
    (alpha,) = numbers("knapspec-table2", "alpha", **printed.keys)
    return PrintedAcceptance(None, rounded(alpha, 1.0), "alpha of the table, no M printed")


def _self_sd(printed: Printed) -> PrintedAcceptance:
    """One cell has an acceptance rate, and M by the times of Table 5; the others have the target
    that the stop rule holds, and drafts as long as there, at least one step and at most 12.
    """
    (measured,) = numbers("self-sd-table4", "alpha", stop="adaptive")
    (whole,) = numbers("self-sd-table5", "ms", method=BASELINE, phase="latency", part="all")
    (verify,) = numbers("self-sd-table5", "ms", method="self-sd", phase="verify", part="all")
    assert measured.value and whole.value and verify.value and verify.spread
    M = whole.value / verify.value
    model, dataset = printed.named("model", "dataset")
    if (model, dataset, printed.keys["temperature"]) == ("llama2-13b", "cnndm", 0.0):
        spread = M * verify.spread / verify.value
        source = "alpha: Table 4; M: vanilla's over verification's ms per token, Table 5"
        return PrintedAcceptance(Range(M - spread, M, M + spread), rounded(measured, 1.0), source)
    (target,) = numbers("self-sd-table7", "target", model=model, dataset=dataset)
    (longest,) = numbers("self-sd-table7", "max_steps", model=model, dataset=dataset)
    assert target.value and longest.value
    steps = (M - 1) / measured.value
    source = "alpha: the target of Table 7; M: as many steps a round as of LLaMA-2-13B on CNN/DM"
    return PrintedAcceptance(
        Range(1 + target.value, 1 + target.value * steps, 1 + longest.value),
        Range(target.value, target.value, 1.0),
        source,
    )


_BY_TABLE = {
    "swift-table2": _swift,
    "clasp-table1": _clasp,
    "knapspec-table2": _knapspec,
    "self-sd-table1": _self_sd,
}


def borrowed(method: str) -> Range:
    """The least and the mean alpha that other tables print of a method; at most all is accepted."""
    found = (n for table in BORROWED[method] for n in numbers(table, "alpha", method=method))
    plain = (n for n in found if n.keys.get("variant", "full") == "full")
    values = [n.value or 0.0 for n in plain if n.keys.get("stop") != "fixed"]
    return Range(min(values), fmean(values), 1.0)


def drafts_of(name: str, config: RunConfig, method: str) -> Drafts:
    """Plans, context and rows of a cell, by its configuration."""
    dataset, node = config.dataset, config.method.node
    context = prompt_tokens_of(config.model, dataset) + dataset.max_new_tokens / 2
    if method == "parallel":
        return Drafts(None, context, 0, (2, 0), (node["block_size"], 0))
    if method == "lookahead":
        levels = node["level"] - 1  # the pending token is a row of the first
        rows = [levels * columns for columns in (node["window"], node["guesses"])]
        return Drafts(None, context, 0, (rows[0], 0), (sum(rows), 0))
    most = (1.0, 1.0)
    if tree := node["tree"]:  # in all steps but the last the confidence is above the threshold, .8
        most = (1.0 + tree[0] - tree[2], tree[2])
    shares = numbers(ADAPTING[method], "share") if method in ADAPTING else []
    adapting = min((n.value or 0.0 for n in shares), default=0.0)
    steps = node["stop"]["max_steps"]
    return Drafts(plans_of(name, config, method), context, steps, (1, 1), most, adapting)


def plans_of(name: str, config: RunConfig, method: str) -> tuple[DraftPlan, DraftPlan, DraftPlan]:
    """The cheapest, the likely and the dearest plan of a cell.

    Where the paper prints no set, as many MLPs as attentions are left out; the dearest plan prefers
    attentions as much as the sets of Self-SD's published code do. Where it prints no share, ends
    are the shares that the method's own paper names.
    """
    node, shape = config.method.node, config.model.architecture
    assert shape is not None
    layers, sets = shape.layers, published_sets()
    prefers = fmean(len(plan.attention) / len(plan.skipped) for plan in sets)
    if method == "self-sd" and (text := config.model.sets.get("self-sd")):
        return (DraftPlan.parse(text, layers),) * 3
    of_all, ratio = float(2 * layers), node.get("ratio", 0.0)
    most = least = ratio
    if method == "clasp":  # whole layers
        prefers = 0.5
        if name.startswith(method):
            least, most = _ends(numbers("clasp-section4.1", "ratio"))
    elif method == "swift":  # the first and the last layer stay
        of_all -= 4
        if "swift" not in config.model.settings:
            least, most = _ends(numbers("swift-sectionB.2", "ratio"))
    elif method == "knapspec":  # half of all weight at most
        least, ratio, most = node["budget"] / 2, node["budget"], node["budget"]
    else:
        shares = [plan.ratio for plan in sets]
        least, ratio, most = min(shares), fmean(shares), max(shares)
    return (
        skipping(layers, of_all * most, 0.5),
        skipping(layers, of_all * ratio, 0.5),
        skipping(layers, of_all * least, prefers),
    )


def _ends(printed: list[Printed]) -> tuple[float, float]:
    values = [n.value or 0.0 for n in printed]
    return min(values), max(values)


@functools.cache
def published_sets() -> list[DraftPlan]:
    """The sets of Llama 2 in Self-SD's published code."""
    models = [config.model for config in compose_cells([[f"model={name}"] for name in SETS])]
    shapes = [(model.sets["self-sd"], model.architecture) for model in models]
    return [DraftPlan.parse(text, shape.layers) for text, shape in shapes if text and shape]


def skipping(layers: int, count: float, attention: float) -> DraftPlan:
    """A plan without `count` sub-layers, this share of them attentions; which does not matter."""
    attentions = min(layers, round(count * attention))
    gone = [2 * i for i in range(attentions)]
    gone += [2 * i + 1 for i in range(round(count) - attentions)]
    return DraftPlan.of(layers, gone)
