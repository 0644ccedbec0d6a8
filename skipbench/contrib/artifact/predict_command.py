"""`predict`: a paper's table of speedups by the prices of a machine that was timed."""

import json
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
    """what a paper's table would hold on a machine that was timed, by the acceptance that papers
    print:  predict swift-table2 hardware=h100-measured
    """

    SETTINGS = False
    WORDS = 1, 1
    NEEDS = "needs a paper's table, as in predict swift-table2 hardware=h100-measured"
    hardware: Annotated[str | None, "a machine of conf/hardware that was timed"] = None
    results: Annotated[Path, "the folder of predicted tables"] = Path("results")
    json: Annotated[bool, "a record per cell, and no more"] = False


def run_predict(asked: Predict) -> None:
    """Prints the table and writes `results/predicted/NAME.HARDWARE.predicted.md`; with `--json`
    prints a record per cell, and no more.
    """
    (name,) = asked.words
    text, records = prediction(name, asked.hardware)
    if asked.json:
        show(json.dumps(records, allow_nan=False))
        return
    path = asked.results / "predicted" / f"{name}.{asked.hardware}.predicted.md"
    write_atomic(path, text)
    show(text.rstrip())
    say(f"written: {path}")


def prediction(name: str, hardware: str | None) -> tuple[str, list[dict[str, object]]]:
    """The table in Markdown, and its records. Raises SkipbenchError for a table without
    predictions, and a machine that was not timed.
    """
    from skipbench.contrib.artifact.predict_table import lines_of, predicted_table, record_of
    from skipbench.report.tables.formats import markdown

    timed = {k: facts for k, facts in known_hardware().items() if facts.prices and facts.model}
    if hardware not in timed:
        wanted = ", ".join(sorted(timed))
        given = f"hardware={hardware} was not timed" if hardware else "predict needs hardware="
        raise SkipbenchError(f"{given}; those that were: {wanted}")
    device = timed[hardware]
    assert device.prices is not None and device.model is not None
    file = file_of("hardware", hardware).parent / device.prices
    prices = read_json(file, Prices)
    if prices is None or prices.model is None or not prices.curves:
        raise SkipbenchError(f"{file} holds no curve over rows; python -m skipbench profile has it")
    lines = lines_of(name, prices, shape_of(device.model))
    table = predicted_table(name, hardware, device.model, lines)
    return markdown(table), [record_of(line) for line in lines]
