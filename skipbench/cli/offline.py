"""`search`, `profile`: a skip set and latencies for later runs."""

from functools import partial
from itertools import groupby

from msgspec import to_builtins
from rich.console import RenderableType
from rich.table import Table

from skipbench.cli.commands import Profile, Search
from skipbench.config.catalog import known_hardware
from skipbench.config.compose import compose
from skipbench.console import json_lines, progress, say, show, show_result
from skipbench.errors import SkipbenchError
from skipbench.experiments.last_loaded import LastLoaded
from skipbench.experiments.set_search import search_or_check
from skipbench.metrics.prices import Prices


def run_search(asked: Search) -> None:
    """Searches on development prompts; `method.skip=stored` then means the best set."""
    config = compose(asked.settings)
    if config.method.skip is None:
        raise SkipbenchError(
            f"method={config.method.name} has no skip set to search; use method=self-sd"
        )
    if config.search.on is not None:
        raise SkipbenchError(
            f"search.on={config.search.on} is for the cells of an experiment; here use dataset="
        )
    best = search_or_check(config, True, LastLoaded())
    if best is None:  # a dry run
        return
    detail = ", ".join(f"{k} {v:.3g}" for k, v in best.detail.items())
    show(f"best of the search: {best.skip or '(nothing skipped)'}\n{detail}")


def run_profile(asked: Profile) -> None:
    """Measures and prints sub-layer latencies; keeps the model of them for KnapSpec and TPT."""
    config = compose(asked.settings)
    if config.dry_run:
        raise SkipbenchError("profile takes no dry_run=: all that it does is measure")
    from skipbench.bench.load import load_model
    from skipbench.bench.memory import check_memory
    from skipbench.profile import latency
    from skipbench.profile.roofline import device_name, roofline

    options = config.profile
    longest = config.dataset.but(max_new_tokens=max(options.contexts, default=0))
    check_memory(config.model, longest, [])
    lm, _ = load_model(config.model, config.engine, config.calibration_rows())
    asked_for = options.contexts, options.rows, options.repeats
    contexts, steps = latency.points_to_measure(lm, *asked_for)
    # The model is fitted to points of one row, and all others are compared with them.
    rows, device = sorted({1, *options.rows}), lm.output_device
    path = latency.latency_path(config, device)
    prices = Prices.read(path, lm.engine.name)
    with progress("profile", steps) as advance:
        measured = latency.measure(lm, contexts, rows, options.repeats, partial(advance, ""))
    latency.set_points(lm, prices, measured, rows)
    prices.bytes = latency.part_bytes(lm)
    prices.roofline = roofline(device, lm.dtype, lm.weight_bytes, known_hardware())
    prices.save(path)
    threads = f"{config.engine.threads} thread{'s' if config.engine.threads > 1 else ''}"
    where = f"{config.model.dtype}, {device_name(device)}, {threads}"
    title = f"{config.model.name}: {prices.layers} layers, engine {config.engine.name}, {where}"
    with json_lines(asked.json):
        show_result(to_builtins(prices), lambda: latency_table(prices, title))
    if left_out := ", ".join(map(str, sorted(set(options.contexts) - set(contexts)))):
        say(f"left out, beyond the model's {lm.max_positions} positions: {left_out}")
    say(f"written: {path}, which method=knapspec and TPT now use")


def latency_table(record: Prices, title: str) -> RenderableType:
    """Microseconds of one attention, one MLP, the head and a whole pass, for every point."""
    rates = record.roofline
    assert rates is not None
    least = Prices.least(rates, record.bytes, record.layers)
    parts = ("attention us", "MLP us", "head us", "pass us")
    table = Table("context", "rows", *parts, "/ 1 row", "roofline", title=title)
    for column in table.columns:
        column.justify = "right"
    for context, group in groupby(record.points, lambda point: point.context):
        points = list(group)
        one = next(p.whole_s for p in points if p.rows == 1)
        for p in points:
            seconds = (p.attention_s, p.mlp_s, p.head_s, p.whole_s)
            floor = least.pass_s(p.rows, context)
            cells = [f"{context}", f"{p.rows}", *(f"{1e6 * s:.1f}" for s in seconds)]
            table.add_row(*cells, f"{p.whole_s / one:.2f}", f"{floor / p.whole_s:.0%}")
        table.add_section()
    table.caption = (
        f"roofline ({rates.name}, {rates.source}): {rates.bandwidth / 1e9:.1f} GB/s, "
        f"{rates.flops / 1e9:.0f} GFLOP/s"
    )
    return table
