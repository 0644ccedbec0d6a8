"""`predict`: a paper's table of speedups by the prices of a machine that was timed."""

from functools import partial
from pathlib import Path
from typing import Annotated

from skipbench.cli.command import Command
from skipbench.config.catalog import file_of, known_hardware, shape_of
from skipbench.console import say, show
from skipbench.errors import SkipbenchError
from skipbench.metrics.prices import Prices
from skipbench.runs.files import write_atomic
from skipbench.runs.reading import read_json


class Predict(Command):
    """what a paper's table would hold on a machine that was timed, or by a datasheet, with the
    acceptance that papers print:  predict swift-table2 hardware=h100-measured
    """

    SETTINGS = False
    WORDS = 1, 1
    NEEDS = "needs a paper's table, as in predict swift-table2 hardware=h100-measured"
    hardware: Annotated[
        str | None, "a device of conf/hardware: its passes that were timed, or its datasheet"
    ] = None
    results: Annotated[Path, "the folder of predicted tables"] = Path("results")


def run_predict(asked: Predict) -> None:
    """Prints the table and writes `results/predicted/NAME.HARDWARE.predicted.md`."""
    (name,) = asked.words
    text = prediction(name, asked.hardware)
    path = asked.results / "predicted" / f"{name}.{asked.hardware}.predicted.md"
    write_atomic(path, text)
    show(text.rstrip())
    say(f"written: {path}")


def prediction(name: str, hardware: str | None) -> str:
    """The table in Markdown. Raises SkipbenchError for one without predictions, and a machine
    without prices.
    """
    from skipbench.contrib.artifact.predict import MachinePrices
    from skipbench.contrib.artifact.predict_table import lines_of, predicted_table
    from skipbench.report.tables.formats import markdown

    priced = {k: facts for k, facts in known_hardware().items() if facts.prices or facts.bandwidth}
    if hardware not in priced:
        given = f"hardware={hardware} has no prices" if hardware else "predict needs hardware="
        raise SkipbenchError(f"{given}; those that have: {', '.join(sorted(priced))}")
    device = priced[hardware]
    if device.prices and device.model:
        file = file_of("hardware", hardware).parent / device.prices
        prices, timed = read_json(file, Prices), shape_of(device.model)
        if prices is None or prices.model is None or not prices.curves:
            missing = f"{file} holds no curve over rows"
            raise SkipbenchError(f"{missing}; python -m skipbench profile has it")
        machine_for = partial(MachinePrices, prices, timed)
        origin = f"timed with {device.model}; other sizes by the bytes that each part reads"
    else:
        machine_for = partial(MachinePrices.of_datasheet, hardware, device)
        origin = "by its datasheet: a pass reads its bytes at full rate, and launches take no time"
    return markdown(predicted_table(name, hardware, origin, lines_of(name, machine_for)))
