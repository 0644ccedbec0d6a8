"""`search` and `profile`: a skip set, and latencies, measured before the runs that use them."""

from msgspec.structs import replace

from skipbench.cli.commands import Profile, Search
from skipbench.config.catalog import known_hardware
from skipbench.config.compose import compose
from skipbench.console import progress, say, show
from skipbench.errors import SkipbenchError

CALLS_PER_VISIT = 5
"""A kind of round is visited once for so many repeats of a sub-layer."""


def run_search(asked: Search) -> None:
    """Searches on development prompts; `method.skip=stored` then means the best set."""
    from skipbench.bench.skip_search import search_set

    config = compose(asked.settings)
    if config.method.skip is None:
        raise SkipbenchError(
            f"method={config.method.name} has no skip set to search; use method=self-sd"
        )
    if config.search.on is not None:
        raise SkipbenchError(
            f"search.on={config.search.on} is for the cells of an experiment; here use dataset="
        )
    best = search_set(config, store=True)
    detail = ", ".join(f"{k} {v:.3g}" for k, v in best.detail.items())
    show(f"best of the search: {best.skip or '(nothing skipped)'}\n{detail}")


def run_profile(asked: Profile) -> None:
    """Measures, prints and draws sub-layer latencies; keeps the model of them for KnapSpec, TPT."""
    config = compose(asked.settings)
    from skipbench.bench.latency_file import latency_path, points_to_measure, profile, write_record
    from skipbench.bench.load import load_model
    from skipbench.bench.memory import check_memory
    from skipbench.bench.round_costs import measure_rounds
    from skipbench.profile.roofline import device_name
    from skipbench.report.figures.latency import latency
    from skipbench.report.figures.style import save, styled
    from skipbench.report.latencies import latency_table, title

    options = config.profile
    longest = config.dataset.with_max_new_tokens(max(options.contexts, default=0))
    check_memory(config.model, longest, [])
    lm, _ = load_model(config.model, config.engine, config.calibration_rows())
    contexts, steps = points_to_measure(lm, options.contexts, options.rows, options.repeats)
    visits = max(1, options.repeats // CALLS_PER_VISIT)
    with progress("profile", steps + visits) as advance:
        record = profile(
            lm, contexts, options.rows, options.repeats, known_hardware(), lambda: advance("")
        )
        rounds = measure_rounds(lm, contexts, visits, lambda: advance(""))
    device = device_name(lm.output_device)
    path = latency_path(config.model, config.engine, device, config.results)
    write_record(path, replace(record, rounds=rounds))
    text = title(record, config.model, config.engine, device)
    show(latency_table(record, text))
    if left_out := ", ".join(map(str, sorted(set(options.contexts) - set(contexts)))):
        say(f"left out, beyond the model's {lm.max_positions} positions: {left_out}")
    with styled():
        drawn = latency(record)
    png, svg = save(drawn, [], config.results / "figures" / f"profile-{path.stem}", text)[:2]
    say(f"written: {path}, which method=knapspec and TPT now use; {png} and {svg.suffix}")
