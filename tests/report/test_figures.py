"""Figures from records of the embedded model: axes, legends, what is drawn, bytes, and what is said
of missing records; and every figure of the registry over the cells of its own experiment.

The records are those of a few real runs; what an experiment sets comes from its own grid.
"""

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import traced, with_arm
from conftest import rest_slow
from msgspec import structs
from test_metrics import timed as turns_of

from skipbench.cli.main import dispatch
from skipbench.config.catalog import choices
from skipbench.config.compose import compose
from skipbench.errors import SkipbenchError
from skipbench.experiments import grid
from skipbench.experiments.plan import composed, once
from skipbench.experiments.row import run_rows
from skipbench.metrics.acceptance import tokens_per_time
from skipbench.metrics.prices import Latencies, Prices
from skipbench.report.compared import BASELINE
from skipbench.report.figures import courses, curves
from skipbench.report.figures.courses import threshold
from skipbench.report.figures.curves import by_task, flexible
from skipbench.report.figures.maps import (
    against_context,
    frequencies,
    jaccard_by_distance,
    refined,
    sets_by_step,
    skip_map,
)
from skipbench.report.figures.registry import FIGURES, NOT_RUN, PRINTED, draw
from skipbench.report.figures.runs import acceptances, finished_run, optimised_sets, repeated
from skipbench.report.figures.style import METHODS, PHASES, caption
from skipbench.report.figures.sweeps import bars, setting, sweep
from skipbench.report.published import numbers_of, papers, published
from skipbench.runs.cell import Cell
from skipbench.runs.measures import Metrics, Optimisation, Speedup
from skipbench.runs.provenance import Provenance
from skipbench.runs.record import Round, Seconds, Turn
from skipbench.runs.run import Run

CELLS = {
    "swift": ["method=swift", "limit=2", "dataset.max_new_tokens=48"],  # searches that long
    "clasp2": ["method=clasp", "method.interval=2"],
    "clasp8": ["method=clasp", "method.interval=8"],
}
SHORT = ["limit=1", "engine.warmup=0", "dataset.max_new_tokens=32"]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    words = [*SHORT, f"results={tmp_path_factory.mktemp('figures')}"]
    cells = {name: Cell(compose([*words, *own])) for name, own in CELLS.items()}
    run_rows([*cells.values()])
    return {name: finished_run(cell.folder) for name, cell in cells.items()}


def test_a_course_draws_every_sample_and_the_papers_values(runs: dict[str, Run]) -> None:
    axes = courses.course([runs["swift"]], numbers_of("swift-figure6")).axes
    assert [a.get_ylabel() for a in axes] == ["acceptance rate", "best matchness", "speedup (x)"]
    assert axes[-1].get_xlabel() == "sample"
    line = axes[0].get_lines()[0]
    assert list(line.get_ydata()) == acceptances(runs["swift"])
    assert line.get_color() == METHODS["swift"][0]
    labels = [text for axis in axes for text in axis.get_legend_handles_labels()[1]]
    assert labels.count("swift") == 1
    assert sum("paper" in text for text in axes[1].get_legend_handles_labels()[1]) == 3
    low, high = axes[2].get_ylim()
    assert low < 1 < high and [1.0, 1.0] in [list(a.get_ydata()) for a in axes[2].get_lines()]


def test_a_breakdown_adds_up(runs: dict[str, Run]) -> None:
    axis = courses.breakdown([runs["swift"], runs["clasp2"]], []).axes[0]
    assert axis.get_legend_handles_labels()[1] == list(PHASES)
    for row in range(2):
        assert sum(bars[row].get_width() for bars in axis.containers) == pytest.approx(100)


def test_a_correlation_has_a_point_per_sample(runs: dict[str, Run]) -> None:
    many = [structs.replace(run, kept=[*run.sound] * 6) for run in runs.values()]
    assert "(24 samples of 3 runs)" in curves.correlation(many, []).axes[1].get_title(loc="left")
    swift = runs["swift"]
    one = structs.replace(swift, kept=[swift.sound[0]])
    of = swift.measured.profiled
    assert of is not None
    model = Latencies(of.attention_s, 0.0, of.mlp_s, of.head_s, of.layers)
    pass_s = partial(Prices(model=model).pass_s, 1, 0.0)
    (arm,) = one.arms
    tpt = tokens_per_time([arm], arm.rounds, of.layers, pass_s)
    (point,) = curves.correlation([one], []).axes[0].collections
    assert point.get_offsets().tolist() == [[tpt, 1 / (arm.s_per_token or 0.0)]]


def test_runs_with_the_same_draft_are_counted_below_the_figure(runs: dict[str, Run]) -> None:
    one, other = runs["clasp2"], runs["clasp8"]
    seconds = Seconds(9.0, 9.0, 9.0, 9.0, 9.0)
    slower = [with_arm(turn, one.arm, seconds=seconds) for turn in one.sound]
    again = structs.replace(one, kept=slower)
    assert "2 runs drafted the same tokens as another" in caption([one, again, other])
    assert "swept key" not in caption([one, other])
    assert "not a replication" in caption([one])
    vanilla = structs.replace(one, method="vanilla")
    asd = structs.replace(again, method="asd")
    assert repeated([one, asd]) == repeated([vanilla, vanilla]) == ""


def test_a_set_of_swift_stands_at_the_step_that_found_it(runs: dict[str, Run]) -> None:
    """A step that finds a better set has its own matchness as the best."""
    run = runs["swift"]
    traces = [arm.trace for arm in run.arms]
    matchness, best = ([v for t in traces for v in t[name]] for name in ("matchness", "best"))
    (first, _), *found = sets = sets_by_step(run, 12)
    assert first == 0 and found
    assert all(matchness[step - 1] == best[step - 1] for step, _ in found)
    attention, mlp = refined([run], []).axes
    drawn = [axis.get_images()[0].get_array() for axis in (attention, mlp)]
    for row, (_, plan) in enumerate(sets):
        skipped = [2 * layer + kind for kind in (0, 1) for layer in drawn[kind][row].nonzero()[0]]
        assert {*skipped} == plan.skipped
    assert [t.get_text() for t in mlp.get_yticklabels()] == [str(step) for step, _ in sets]
    assert mlp.get_ylim() == (len(sets) - 0.5, -0.5)
    with pytest.raises(SkipbenchError, match="draw a run of swift"):
        refined([runs["clasp2"]], [])


def test_missing_records_are_named(tmp_path: Path) -> None:
    with pytest.raises(SkipbenchError, match="holds no run"):
        dispatch(["figure", str(tmp_path)])
    with pytest.raises(SkipbenchError, match="figure needs an experiment, not 'nothing'"):
        dispatch(["figure", "nothing"])
    commands = r"brute_force\.py .*--keep 10 > \S+' and 'python -m skipbench figure"
    with pytest.raises(SkipbenchError, match=commands):  # no run gives it
        dispatch(["figure", "clasp-figure3b"])


# By hand


SETS = {"skip": [[0, "attn:1"], [1, "attn:1;mlp:2"]]}
ROUNDS = [Round(3, 3, 2, 2, 3), Round(1, 1, 1, 1, 2), Round(2, 2, 0, 0, 1)]


def by_hand(*turns: Turn) -> Run:
    """A run of a sweep over `method.steps`."""
    known = {"model": "m", "method": "clasp", "dataset": "d"}
    swept = {"axes": {"method.steps": "2"}, "settings": {"method": {"steps": 2}}}
    more = {"id": "row/method", "provenance": Provenance(layers=4)}
    return Run(**known, **swept, **more, kept=[*turns])


def test_a_map_has_the_share_of_rounds_of_each_sub_layer() -> None:
    attention, mlp = frequencies(by_hand(traced(0, ROUNDS, SETS)), 4)
    assert list(attention) == [0, 1, 0, 0] and list(mlp) == pytest.approx([0, 0, 2 / 3, 0])
    (image,) = skip_map([by_hand(traced(0, ROUNDS, SETS))], []).axes[0].get_images()
    assert image.get_array().tolist() == [list(attention), list(mlp)]


def test_brute_force_lines_are_drawn_or_refused() -> None:
    line = {"programme": "clasp", "model": "m", "cases": 3}
    line |= {"best": 0.9, "found": 0.8, "random": 0.2}
    figure, models = curves.brute_force([line])
    assert [b[0].get_width() for b in figure.axes[0].containers] == [0.9, 0.8, 0.2]
    with pytest.raises(SkipbenchError, match=r"scripts/brute_force\.py"):
        curves.brute_force([{"programme": models}])


def test_similarity_is_the_intersection_over_the_union() -> None:
    """The first round emits 3 tokens, which the sets are apart."""
    assert jaccard_by_distance(by_hand(traced(0, ROUNDS, SETS))).to_dict() == {3: 0.5}


def test_a_set_that_no_round_followed_is_left_out() -> None:
    late = {"skip": [*SETS["skip"], [3, "attn:0"], [4, "attn:3"]]}
    before, after = (optimised_sets(by_hand(traced(0, ROUNDS, trace)), 4) for trace in (SETS, late))
    assert before == after == [[(0, {2}), (3, {2, 5})]]


def test_a_set_stands_at_the_context_that_it_was_chosen_behind() -> None:
    """3 tokens of the prompt, and as many of the first round."""
    (axis,) = against_context([by_hand(traced(0, ROUNDS, SETS))], []).axes
    attention, mlp = (points.get_offsets().tolist() for points in axis.collections)
    assert attention == [[3, 1], [6, 1]] and mlp == [[3, 0], [6, 1]]


def test_speedups_of_a_task_and_so_far_are_geometric_means() -> None:
    run = by_hand(*turns_of([4.0, 0.25]))  # of 5 s with vanilla, 1 s of these its prefill
    drawn = [by_task([run], []).axes[0], flexible([run], []).axes[0]]
    values = [list(axis.get_lines()[0].get_ydata()) for axis in drawn]
    assert values == [pytest.approx([2.0]), pytest.approx([1.0, 2.0])]
    assert drawn[0].get_xlim() == (-0.5, 0.5)


def timed(gain: float, dataset: str = "a", method: str = "clasp") -> Run:
    """A run whose interval is 0.05 to each side, of a sweep over `method.steps`, its gain."""
    metrics = Metrics(speedup=Speedup(e2e=gain, e2e_ci95=(gain - 0.05, gain + 0.05)))
    settings = {"dataset": {"name": dataset}, "method": {"steps": gain}}
    known = {"model": "m", "method": method, "dataset": dataset, "settings": settings}
    return Run(**known, axes={"method.steps": str(gain)}, metrics=metrics, kept=[])


def test_every_point_of_a_sweep_has_its_own_interval() -> None:
    (axis,) = sweep([timed(1.5), timed(1.0), timed(2.0)], [], "method.steps", ["speedup"], "").axes
    assert axis.get_lines()[0].get_xydata().tolist() == [[1, 1], [1.5, 1.5], [2, 2]]
    drawn = [whisker.get_segments()[0].tolist() for whisker in axis.collections]
    assert drawn == [[[x, x - 0.05], [x, x + 0.05]] for x in (1.0, 1.5, 2.0)]


def test_bars_stand_in_their_group_in_the_order_of_the_methods() -> None:
    names = [(1.1, "b", "swift"), (1.4, "a", "clasp"), (1.3, "b", "clasp"), (1.2, "a", "swift")]
    runs = [structs.replace(timed(*n), axes={"dataset": "a,b"}) for n in names]
    (axis,) = bars(runs, [], "dataset.name", ["speedup"]).axes
    placed = sorted((b.get_x() + b.get_width() / 2, b.get_height()) for b in axis.patches)
    assert [height for _, height in placed] == [1.1, 1.3, 1.2, 1.4]  # swift, clasp of b, then of a
    assert [x for x, _ in placed] == pytest.approx([-0.2, 0.2, 0.8, 1.2])
    assert [text.get_text() for text in axis.get_xticklabels()] == ["b", "a"]


def test_a_caption_counts_the_samples_that_did_not_fail() -> None:
    one = traced(0, ROUNDS, SETS)
    failed = with_arm(traced(1, ROUNDS, SETS), lossless="failed")
    assert "samples 1;" in f"{caption([by_hand(one, failed)])};"
    assert "samples 1 to 2" in caption(
        [by_hand(one, failed), by_hand(one, structs.replace(one, index=1))]
    )


def test_the_rate_beside_a_threshold_is_of_all_rounds_so_far() -> None:
    (axis,) = threshold([by_hand(traced(0, ROUNDS, {"threshold": [0.5, 0.6, 0.7]}))], []).axes
    mean, rate = axis.get_lines()
    assert list(rate.get_xdata()) == list(mean.get_xdata()) == [1, 2, 3]
    assert list(rate.get_ydata()) == pytest.approx([2 / 3, 3 / 4, 3 / 6])


# The registry


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


def runs_of(name: str, scale: str, records: dict[str, Run]) -> list[Run]:
    """The grid of `name` with real records in its cells; of cells that differ in values only, one
    is composed.
    """
    runs: list[Run] = []
    cells = once(grid.plan(name, [], scale))
    like = {(*c.overrides, c.overrides["method"]): c for c in cells}
    plain = [cell.config.to_dict() for cell in composed([*like.values()])]
    configs = dict(zip(like, plain, strict=True))
    for number, planned in enumerate(cells):
        key = *planned.overrides, planned.overrides["method"]
        own = set_values(configs[key], planned.overrides)
        names = {k: own[k]["name"] for k in ("model", "method", "dataset")}
        known = {"settings": own, "axes": planned.overrides, "keys": planned.keys, **names}
        record = records["swift" if names["method"] == "swift" else "clasp2"]
        costs = Optimisation(seconds=10.0 + number)
        known["metrics"] = structs.replace(record.measured, optimisation=costs)
        runs.append(structs.replace(record, **known))
    return runs


def set_values(plain: dict[str, Any], overrides: dict[str, str]) -> dict[str, Any]:
    """`plain` with the numbers of `overrides` in the places that it has for them."""
    plain = copy.deepcopy(plain)
    for key, value in overrides.items():
        if key in ("model", "dataset"):
            plain[key]["name"] = value
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


@pytest.mark.parametrize("scale", rest_slow(grid.SCALES, "embedded".__eq__))
@pytest.mark.parametrize("name", rest_slow(DRAWN, lambda n: n.startswith("clasp")))
def test_a_figure_has_its_axes_and_values(name: str, scale: str, runs: dict[str, Run]) -> None:
    every = runs_of(name, scale, runs)
    if name in WITHOUT_CELLS:
        assert every == []
        return
    swept = getattr(FIGURES[name], "keywords", {}).get("axis")
    for axis in (swept,) if swept else AXES.get(name, ()):
        values = {str(setting(run, axis)) for run in every if run.method != BASELINE}
        known = scale != "paper" and axis in ("model.name", "dataset.name")
        assert len(values) > 1 or known, (axis, values)
    drawn, shown = draw(name, every)
    assert len(shown) == len([run for run in every if run.method != BASELINE])
    text = texts_of(drawn)
    for row in numbers_of(PRINTED.get(name, name)):
        if (value := row.value) is not None and row.column not in LEFT_OUT.get(name, ()):
            assert any(form in text for form in (f"{value:g}", f"{100 * value:g}%")), row
    assert "paper" not in texts_of(draw(name, every, beside=False)[0])
