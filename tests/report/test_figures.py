"""Figures from records of the embedded model: axes, legends, what is drawn, bytes, and what is said
of missing records.
"""

from functools import partial
from pathlib import Path

import pytest
from builders import with_arm
from msgspec import structs

from skipbench.cli.main import dispatch
from skipbench.config.compose import compose
from skipbench.errors import SkipbenchError
from skipbench.experiments.row import run_cell
from skipbench.metrics.acceptance import tokens_per_time
from skipbench.metrics.prices import Latencies, Prices
from skipbench.report.figures import courses, curves, maps, style
from skipbench.report.figures.maps import refined, sets_by_step
from skipbench.report.figures.registry import draw, draw_run
from skipbench.report.figures.runs import acceptances, finished_run, repeated
from skipbench.report.figures.style import METHODS, PHASES, caption, save
from skipbench.report.measured import measure
from skipbench.report.published import numbers_of
from skipbench.runs.cell import Cell
from skipbench.runs.measures import Metrics, Speedup
from skipbench.runs.record import Round, Seconds
from skipbench.runs.run import Run

CELLS = {
    # searches that long
    "swift": ["method=swift", "limit=2", "dataset.max_new_tokens=48"],
    "clasp2": ["method=clasp", "method.interval=2"],
    "clasp8": ["method=clasp", "method.interval=8"],
    "uniform": ["method=uniform"],
}
SHORT = ["limit=1", "engine.warmup=0", "dataset.max_new_tokens=32"]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    results = tmp_path_factory.mktemp("figures")
    found = {}
    for name, overrides in CELLS.items():
        config = compose([*SHORT, *overrides, f"results={results}"])
        run_cell(config, print_table=False)
        found[name] = finished_run(Cell(config).folder)
    return found


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


def test_a_skip_map_shows_the_set(runs: dict[str, Run]) -> None:
    run, layers = runs["clasp8"], 12
    shown = maps.skip_map([run], []).axes[0].get_images()[0].get_array()
    assert shown is not None and shown.shape == (2, layers)
    skipped = run.measured.skipped
    assert 0 < shown.sum() <= 2 * layers and skipped and skipped.ratio
    assert maps.layers_of(run) == layers
    with pytest.raises(SkipbenchError, match="skips no sub-layer"):
        maps.layers_of(structs.replace(run, kept=[]))


def test_similarity_is_one_at_most(runs: dict[str, Run]) -> None:
    found = maps.jaccard_by_distance(runs["clasp2"])
    assert len(found) and found.between(0, 1).all()
    axis = maps.jaccard([runs["clasp2"]], []).axes[0]
    assert list(axis.get_lines()[0].get_xdata()) == list(found.index)
    assert axis.get_xlabel() == "distance (tokens)"


def test_similarity_is_over_tokens_and_has_no_largest_distance(runs: dict[str, Run]) -> None:
    """100 sets of one sample, 3 tokens apart, that skip layer 0 and an attention."""
    run, count = runs["clasp2"], 100
    rounds = [Round(2, 2, 2, 2, 3)] * count
    skips = [[at, f"attn:0,{1 + at % 4};mlp:0"] for at in range(count)]
    trace = {"optimised": [*range(count)], "skip": skips}
    made = with_arm(run.sound[0], run.arm, rounds=rounds, trace=trace)
    found = maps.jaccard_by_distance(structs.replace(run, kept=[made]))
    assert len(found) <= maps.BINS and found.index.max() > 3 * (count - 4)
    width = -(-3 * (count - 1) // maps.BINS)
    ours = {d: 1.0 if d % 4 == 0 else 0.5 for d in range(1, count)}
    for number, (distance, similarity) in enumerate(found.items()):
        pairs = [(count - d, d) for d in ours if (3 * d - 1) // width == number]
        total = sum(n for n, _ in pairs)
        assert distance == pytest.approx(sum(n * 3 * d for n, d in pairs) / total)
        assert similarity == pytest.approx(sum(n * ours[d] for n, d in pairs) / total)


def test_a_sweep_has_a_point_a_run_and_the_papers_best(runs: dict[str, Run]) -> None:
    figure, shown = draw("clasp-figure4b", [runs["clasp8"], runs["clasp2"]])
    assert len(shown) == 2
    axis = figure.axes[1]
    labels = axis.get_ylabel(), axis.get_xlabel()
    assert labels == ("speedup (x)", "rounds between optimisations")
    assert list(axis.get_lines()[0].get_xdata()) == [2, 8]
    assert axis.get_lines()[0].get_ydata()[0] == measure(runs["clasp2"].measured, "speedup")[0]
    assert "paper: falls beyond 128" in axis.get_legend_handles_labels()[1]


def test_a_correlation_has_a_point_per_sample(
    runs: dict[str, Run],
) -> None:
    two, all_runs = [runs["clasp2"], runs["clasp8"]], [*runs.values()]
    assert "r needs 3 samples" in curves.correlation(two, []).axes[0].get_title(loc="left")
    figure = curves.correlation(all_runs, [])
    assert "(5 samples of 4 runs, too few to tell)" in figure.axes[1].get_title(loc="left")
    many = [structs.replace(run, kept=[*run.sound] * 6) for run in all_runs]
    assert "(30 samples of 4 runs)" in curves.correlation(many, []).axes[1].get_title(loc="left")
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


def test_an_interval_stretches_no_axis() -> None:
    for ends in ((0.05, 12.0), (1.28, 1.31)):
        _, axis = style.one_axis()
        axis.plot([1, 2], [1.1, 1.3])
        style.whisker(axis, 2, Metrics(speedup=Speedup(e2e=1.3, e2e_ci95=ends)), "black")
        bottom, top = axis.get_ylim()
        assert 1.0 < bottom < 1.1 and 1.3 < top < 1.5
        drawn = [tuple(end) for end in axis.collections[0].get_segments()[0]]
        assert drawn == [(2, end) for end in ends]


def test_the_same_records_give_the_same_pdf(tmp_path: Path) -> None:
    drawn = [save(style.one_axis()[0], [], tmp_path / n / "figure") for n in ("a", "b")]
    one, other = ({path.suffix: path.read_bytes() for path in paths} for paths in drawn)
    assert one == other and [*one] == [".png", ".svg", ".pdf"] and one[".pdf"].startswith(b"%PDF")


@pytest.mark.slow
def test_the_same_records_give_the_same_bytes(runs: dict[str, Run], tmp_path: Path) -> None:
    run = runs["clasp2"]
    for kind in draw_run(run):
        pairs = [save(draw_run(run)[kind], [run], tmp_path / name / kind) for name in ("a", "b")]
        assert all(
            one.read_bytes() == other.read_bytes() for one, other in zip(*pairs, strict=True)
        )


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


@pytest.mark.parametrize(("rounds_behind", "same"), [(0, True), (-1, False)])
def test_a_set_counts_if_it_drafted(runs: dict[str, Run], rounds_behind: int, same: bool) -> None:
    one = runs["clasp8"]
    first, *rest = one.sound
    own = first.arms[one.arm]
    at = len(own.rounds) + rounds_behind
    trace = own.trace | {"skip": [*own.trace["skip"], [at, "attn:0"]]}
    changed = with_arm(first, one.arm, trace=trace)
    other = structs.replace(one, kept=[changed, *rest])
    assert repeated([one, other]).startswith("2 runs") == same


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
    with pytest.raises(SkipbenchError, match="draw a run of swift"):
        refined([runs["clasp2"]], [])


def test_brute_force_lines_are_drawn_or_refused() -> None:
    line = {"programme": "clasp", "model": "m", "cases": 3}
    line |= {"best": 0.9, "found": 0.8, "random": 0.2}
    figure, models = curves.brute_force([line])
    assert [b[0].get_width() for b in figure.axes[0].containers] == [0.9, 0.8, 0.2]
    assert models == "m"
    with pytest.raises(SkipbenchError, match=r"scripts/brute_force\.py"):
        curves.brute_force([{"programme": "clasp"}])


def test_missing_records_are_named(tmp_path: Path) -> None:
    with pytest.raises(SkipbenchError, match="holds no run"):
        dispatch(["figure", str(tmp_path)])
    with pytest.raises(SkipbenchError, match="figure needs an experiment, not 'nothing'"):
        dispatch(["figure", "nothing"])
