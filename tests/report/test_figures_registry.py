"""Every figure of the registry, drawn over the cells of its own experiment: its axes are there, its
printed values are shown.

The records are those of two real runs; what an experiment sets, and what it stands for, comes from
its own grid.
"""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import rest_slow
from msgspec import structs

from skipbench.cli.commands import Figure
from skipbench.cli.experiments import cells_asked
from skipbench.cli.main import dispatch
from skipbench.cli.parser import parse
from skipbench.config.catalog import choices
from skipbench.config.compose import compose
from skipbench.errors import SkipbenchError
from skipbench.experiments.grid import SCALES, plan
from skipbench.experiments.plan import composed, once
from skipbench.experiments.resolve import resolve_cell
from skipbench.experiments.row import run_cell
from skipbench.report.compared import BASELINE
from skipbench.report.definitions import LABELS
from skipbench.report.figures.registry import FIGURES, NOT_RUN, PRINTED, draw
from skipbench.report.figures.runs import finished_run
from skipbench.report.figures.sweeps import setting
from skipbench.report.published import numbers_of, papers, published
from skipbench.runs.run import Run, SetSearch

DRAWN = sorted(FIGURES)
WITHOUT_CELLS = {"self-sd-figure9"}
AXES = {
    "swift-figure8": ("method.steps", "method.beta", "method.ratio"),
    "clasp-figure5": ("model.name",),
    "self-sd-figure2": ("method.stop.max_steps",),
}
"""Settings that are axes of figures other than sweeps and bars."""
LEFT_OUT = {"swift-figure6": {"share"}, "swift-figure6b": {"matchness", "speedup"}}
"""Columns that the other of the two draws."""


@pytest.fixture(scope="session")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    results = tmp_path_factory.mktemp("records")
    found, short = {}, ["limit=2", "engine.warmup=0", "dataset.max_new_tokens=48"]
    for method, more in (("swift", []), ("clasp", ["method.interval=2"])):
        config = compose([f"method={method}", *more, *short, f"results={results}"])
        run_cell(config, print_table=False)
        found[method] = finished_run(resolve_cell(config).folder)
    return found


def runs_of(name: str, scale: str, records: dict[str, Run]) -> list[Run]:
    """The grid of `name` with real records in its cells; of cells that differ in values only, one
    is composed.
    """
    runs: list[Run] = []
    cells = once(plan(name, [], scale))
    like = {(*c.overrides, c.overrides["method"]): c for c in cells}
    plain = [cell.config.to_dict() for cell in composed([*like.values()])]
    configs = dict(zip(like, plain, strict=True))
    for number, planned in enumerate(cells):
        key = *planned.overrides, planned.overrides["method"]
        own = set_values(configs[key], planned.overrides)
        names = {k: own[k]["name"] for k in ("model", "method", "dataset")}
        known = {"settings": own, "axes": planned.overrides, "keys": planned.keys, **names}
        if planned.searches:
            on, sets = own["search_dataset"]["name"], own["search"]["iterations"]
            known["search"] = SetSearch(on=on, sets=sets, seconds=10.0 + number)
        record = records["swift" if names["method"] == "swift" else "clasp"]
        runs.append(structs.replace(record, **({"search": None} | known)))
    return runs


def set_values(plain: dict[str, Any], overrides: dict[str, str]) -> dict[str, Any]:
    """`plain` with the numbers of `overrides` in the places that it has for them."""
    plain = copy.deepcopy(plain)
    for key, value in overrides.items():
        if key in ("model", "dataset"):
            plain[key]["name"] = value
        if key == "search.on":
            plain["search_dataset"]["name"] = value
        if "." not in key or "@" in key:  # a group: what is composed holds it
            continue
        node, (*path, last) = plain, key.split(".")
        for part in path:
            node = node[part]
        assert last in node, key
        node[last] = yaml.safe_load(value)
    return plain


def texts_of(drawn: Any) -> str:
    """All that is written in a figure."""
    found = []
    for axis in drawn.axes:
        found += [axis.get_title(loc="left"), axis.get_title()]
        found += axis.get_legend_handles_labels()[1]
        found += [t.get_text() for t in axis.texts] + [t.get_text() for t in axis.get_yticklabels()]
    return "\n".join(found)


def test_every_figure_with_an_experiment_is_drawn_or_says_why_not() -> None:
    experiments = {name for name in choices("experiment") if "-figure" in name}
    assert experiments == set(FIGURES) | set(NOT_RUN) and not set(FIGURES) & set(NOT_RUN)
    tables = {f"{paper}-{row['table']}" for paper in papers() for row in published(paper)}
    assert {name for name in tables if "-figure" in name} <= experiments


@pytest.mark.parametrize("scale", rest_slow(SCALES, "embedded".__eq__))
@pytest.mark.parametrize("name", rest_slow(DRAWN, lambda n: n.startswith("clasp")))
def test_a_figure_has_its_axes_and_values(name: str, scale: str, records: dict[str, Run]) -> None:
    runs = runs_of(name, scale, records)
    if name in WITHOUT_CELLS:
        assert runs == []
        return
    swept = getattr(FIGURES[name], "keywords", {}).get("axis")
    for axis in (swept,) if swept else AXES.get(name, ()):
        values = {str(setting(run, axis)) for run in runs if run.method != BASELINE}
        known = scale != "paper" and axis in ("model.name", "dataset.name")
        assert len(values) > 1 or known, (axis, values)
    drawn, shown = draw(name, runs)
    assert len(shown) == len([run for run in runs if run.method != BASELINE])
    text = texts_of(drawn)
    for row in numbers_of(PRINTED.get(name, name)):
        if (value := row.value) is not None and row.column not in LEFT_OUT.get(name, ()):
            assert any(form in text for form in (f"{value:g}", f"{100 * value:g}%")), row
    assert "paper" not in texts_of(draw(name, runs, beside=False)[0])


@pytest.mark.parametrize("name", DRAWN)
def test_columns_are_known_and_what_is_left_out_is_printed(name: str) -> None:
    keywords = getattr(FIGURES[name], "keywords", {})
    assert set(keywords.get("columns", [])) <= set(LABELS)
    paper, _, table = PRINTED.get(name, name).rpartition("-")
    columns = {row["column"] for row in published(paper) if row["table"] == table}
    assert LEFT_OUT.get(name, set()) <= columns


def test_a_figure_that_no_run_gives_names_its_commands() -> None:
    commands = r"brute_force\.py .*--keep 10 > \S+' and 'python -m skipbench figure"
    with pytest.raises(SkipbenchError, match=commands):
        dispatch(["figure", "clasp-figure3b"])


@pytest.mark.slow
def test_sets_of_tasks_are_searched_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["scale=embedded", "dataset=mini-math", "search.on=mini-math,mini-code", "limit=1"]
    words += ["search.iterations=3", "dataset.max_new_tokens=16", f"results={tmp_path}"]
    dispatch(["figure", "swift-figure2b", *words])
    searches = {p.parent.name for p in tmp_path.glob("search/*/trace.jsonl")}
    assert len(searches) == 2 and (tmp_path / "figures" / "swift-figure2b.embedded.svg").exists()
    dispatch(["figure", "swift-figure2b", *words, "dataset=mini-code"])
    assert {p.parent.name for p in tmp_path.glob("search/*/trace.jsonl")} == searches
    (own,) = cells_asked(parse(Figure, ["swift-figure2b", *words]), DRAWN).values()
    cells = once(own)
    assert [c.overrides["search.on"] for c in cells] == ["mini-math", "mini-code"]
    searched = [c.config.search_dataset and c.config.search_dataset.name for c in cells]
    assert searched == ["mini-math", "mini-code"]
