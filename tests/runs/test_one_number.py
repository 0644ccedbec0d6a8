"""Every place that shows a quantity of a run shows that of its record, under one name."""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

import pytest
from conftest import Command

import skipbench as package
from skipbench.cli.compare import advice
from skipbench.config.compose import compose
from skipbench.experiments.row import run_cell
from skipbench.report.columns import COLUMNS, Line
from skipbench.report.compared import Comparison
from skipbench.report.figures.runs import finished_run, speedups
from skipbench.report.figures.sweeps import value as swept
from skipbench.report.measured import measure
from skipbench.report.tables.formats import csv, markdown
from skipbench.report.tables.runs import row_table
from skipbench.runs.measures import Metrics
from skipbench.runs.reading import run_folders
from skipbench.runs.run import Run, read_run

WORDS = ["method=uniform", "method.stop.threshold=0.5", "dataset=mini-math", "limit=3"]
WORDS += ["dataset.max_new_tokens=24", "engine.warmup=0"]


@dataclass(frozen=True)
class Stored:
    """A run of three prompts, and what its command printed."""

    words: list[str]
    run: Run
    out: str
    err: str

    @property
    def metrics(self) -> Metrics:
        return self.run.measured

    @property
    def results(self) -> Path:
        assert self.run.folder is not None
        return self.run.folder.parents[2]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.fixture
def stored(results: Path, capsys: pytest.CaptureFixture[str]) -> Stored:
    words = [*WORDS, f"results={results}"]
    texts = results / "printed.json"
    if not texts.exists():
        run_cell(compose(words))
        done = capsys.readouterr()
        texts.write_text(json.dumps([done.out, done.err]))
    (folder,) = run_folders(results)
    return Stored(words, read_run(folder), *json.loads(texts.read_text()))


def headline(text: str) -> list[str]:
    """Values of the column `speedup` in lines of text."""
    return re.findall(r"(\d+\.\d\d)x [\[(]", text)


def test_every_place_shows_the_speedup_of_the_record(
    stored: Stored, skipbench: Command, tmp_path: Path
) -> None:
    speedup, _ = stored.metrics.speedup.headline
    assert speedup is not None and stored.run.speedup == speedup == stored.metrics.speedup.e2e
    short, long = f"{speedup:.2f}", f"{speedup:.3f}x"

    assert headline(stored.out) == [short]  # a cell's table
    assert re.findall(r"speedup so far (\S+)x", stored.err)[-1] == short
    assert headline(markdown(row_table([stored.run]))) == [short]
    for scale in ([], ["--render-only"]):  # an experiment's table
        assert headline(skipbench("table", "tiny", *stored.words, *scale).stdout) == [short]

    other = tmp_path / "other"
    shutil.copytree(stored.results, other)
    assert skipbench("diff", str(stored.results), str(other)).stdout.count(long) == 2

    assert stored.run.folder is not None
    drawn = finished_run(stored.run.folder)
    assert geometric_mean(speedups(drawn)) == pytest.approx(speedup)
    # the estimator of a paper's table
    assert swept(drawn, "speedup", drawn) == measure(stored.metrics, "speedup")[0]

    assert headline(advice(Comparison([stored.run], stored.run, []), [])[0]) == [short]
    assert package.frame(stored.results)["speedup"].item() == speedup
    names, line = csv(row_table([stored.run])).splitlines()
    assert line.split(",")[names.split(",").index("speedup")] == str(speedup)


@pytest.mark.parametrize("name", ["M", "alpha", "tau", "TPT"])
def test_every_place_shows_the_other_quantities_of_the_record(name: str, stored: Stored) -> None:
    value = {"TPT": stored.metrics.tpt}.get(name, getattr(stored.metrics, name, None))
    text = {of.heading: of.value(Line(stored.run)).text for of in COLUMNS}[name]
    assert value is not None and abs(float(text) / value - 1) < 0.01
    assert measure(stored.metrics, name)[0] == swept(stored.run, name, stored.run) == value

    def column(text: str) -> str:
        lines = [[c.strip() for c in line.split("|")] for line in text.splitlines()]
        place = next(i for i, line in enumerate(lines) if name in line and "speedup" in line)
        rows = (line for line in lines[place + 1 :] if len(line) == len(lines[place]))
        return next(row[lines[place].index(name)] for row in rows if set("".join(row)) - set("-─:"))

    assert column(markdown(row_table([stored.run], ["all"]))) == text
    if name != "tau":  # which the table of a cell leaves to its file
        assert column(stored.out) == text
