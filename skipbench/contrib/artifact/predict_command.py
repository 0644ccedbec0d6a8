"""`project` of a paper's table: its speedups by the prices of a machine that was timed."""

import json
from pathlib import Path

from skipbench.config.catalog import file_of, known_hardware, shape_of
from skipbench.console import say, show
from skipbench.contrib.artifact.predict_table import lines_of, predicted_table, record_of
from skipbench.errors import SkipbenchError
from skipbench.metrics.prices import Prices
from skipbench.report.tables.formats import markdown
from skipbench.runs.files import write_atomic
from skipbench.runs.reading import read_json


def run_prediction(name: str, hardware: str | None, results: Path, as_json: bool) -> None:
    """Prints the table and writes `results/predicted/NAME.HARDWARE.predicted.md`; with `as_json`
    prints a record per cell, and no more.

    Raises SkipbenchError for a table without predictions, and a device that was not timed.
    """
    text, records = prediction(name, hardware)
    if as_json:
        show(json.dumps(records, allow_nan=False))
        return
    path = results / "predicted" / f"{name}.{hardware}.predicted.md"
    write_atomic(path, text)
    show(text.rstrip())
    say(f"written: {path}")


def prediction(name: str, hardware: str | None) -> tuple[str, list[dict[str, object]]]:
    """The table in Markdown, and its records. Raises SkipbenchError as `run_prediction`."""
    timed = {k: facts for k, facts in known_hardware().items() if facts.prices and facts.model}
    if hardware not in timed:
        wanted = ", ".join(sorted(timed))
        raise SkipbenchError(f"project {name} hardware={hardware}; wanted a timed one: {wanted}")
    device = timed[hardware]
    assert device.prices is not None and device.model is not None
    file = file_of("hardware", hardware).parent / device.prices
    prices = read_json(file, Prices)
    if prices is None or prices.model is None or not prices.rounds:
        raise SkipbenchError(f"{file} holds no timed rounds; python -m skipbench profile has them")
    lines = lines_of(name, prices, shape_of(device.model))
    table = predicted_table(name, hardware, device.model, lines)
    return markdown(table), [record_of(line) for line in lines]
