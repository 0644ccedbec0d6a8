"""`profile`: sub-layer latencies against context length and rows, the model fitted to them, and the
roofline.
"""

from collections.abc import Sequence

from msgspec import to_builtins
from msgspec.structs import replace

from skipbench.cli.commands import Profile
from skipbench.cli.parser import parse
from skipbench.config.catalog import known_hardware
from skipbench.config.compose import compose
from skipbench.console import progress, say, show

CALLS_PER_VISIT = 5
"""A kind of round is visited once for so many repeats of a sub-layer."""


def run(arguments: Sequence[str]) -> None:
    """Measures, prints and draws; keeps the latency model that KnapSpec and TPT use.

    Raises:
        SkipbenchError: a model that does not fit, or numbers that no line can be laid through.
    """
    config = compose(parse(Profile, arguments).settings)
    from skipbench.bench.latency_file import latency_path, points_to_measure, profile, write_record
    from skipbench.bench.load import load_model
    from skipbench.bench.memory import check_memory
    from skipbench.bench.round_costs import measure_rounds
    from skipbench.profile.roofline import device_name
    from skipbench.report.figures.latency import latency
    from skipbench.report.figures.style import save, styled
    from skipbench.report.latencies import latency_table, title

    options = config.profile
    check_memory(
        config.model, config.dataset.with_max_new_tokens(max(options.contexts, default=0)), []
    )
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
    if left_out := sorted(set(options.contexts) - set(contexts)):
        say(
            f"left out, beyond the model's {lm.max_positions} positions: "
            f"{', '.join(map(str, left_out))}"
        )
    with styled():
        drawn = latency(to_builtins(record))
    figures = save(drawn, [], config.results / "figures" / f"profile-{path.stem}", text)
    say(
        f"written: {path}, which method=knapspec and TPT now use; {figures[0]} and "
        f"{figures[1].suffix}"
    )
