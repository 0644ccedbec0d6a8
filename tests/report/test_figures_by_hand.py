"""What figures draw of rounds, skip sets and speedups by hand."""

import pytest
from builders import traced
from msgspec.structs import replace

from skipbench.report.figures.courses import threshold
from skipbench.report.figures.curves import by_task, flexible
from skipbench.report.figures.maps import against_context, frequencies, jaccard_by_distance
from skipbench.report.figures.runs import optimised_sets
from skipbench.report.figures.style import caption
from skipbench.report.figures.sweeps import bars, sweep
from skipbench.runs.measures import Metrics, Speedup
from skipbench.runs.provenance import Provenance
from skipbench.runs.record import Arm, Round, Seconds, Turn
from skipbench.runs.run import Run

SETS = {"skip": [[0, "attn:1"], [1, "attn:1;mlp:2"]]}
ROUNDS = [Round(3, 3, 2, 2, 3), Round(1, 1, 1, 1, 2), Round(2, 2, 0, 0, 1)]


def of(*turns: Turn) -> Run:
    """A run of a sweep over `method.steps`."""
    known = {"model": "m", "method": "clasp", "dataset": "d"}
    swept = {"axes": {"method.steps": "2"}, "settings": {"method": {"steps": 2}}}
    more = {"id": "row/method", "provenance": Provenance(layers=4)}
    return Run(**known, **swept, **more, kept=[*turns])


def test_a_map_has_the_share_of_rounds_of_each_sub_layer() -> None:
    attention, mlp = frequencies(of(traced(0, ROUNDS, SETS)), 4)
    assert list(attention) == [0, 1, 0, 0] and list(mlp) == pytest.approx([0, 0, 2 / 3, 0])


def test_similarity_is_the_intersection_over_the_union() -> None:
    """The first round emits 3 tokens, which the sets are apart."""
    assert jaccard_by_distance(of(traced(0, ROUNDS, SETS))).to_dict() == {3: 0.5}


def test_a_set_that_no_round_followed_is_left_out() -> None:
    late = {"skip": [*SETS["skip"], [3, "attn:0"], [4, "attn:3"]]}
    before, after = (optimised_sets(of(traced(0, ROUNDS, trace)), 4) for trace in (SETS, late))
    assert before == after == [[(0, {2}), (3, {2, 5})]]


def test_a_set_stands_at_the_context_that_it_was_chosen_behind() -> None:
    """3 tokens of the prompt, and as many of the first round."""
    (axis,) = against_context([of(traced(0, ROUNDS, SETS))], []).axes
    attention, mlp = (points.get_offsets().tolist() for points in axis.collections)
    assert attention == [[3, 1], [6, 1]] and mlp == [[3, 0], [6, 1]]


def test_speedups_of_a_task_and_so_far_are_geometric_means() -> None:
    def timed(index: int, seconds: float) -> Turn:
        both = (Seconds(0, s, 0, 0, 0) for s in (4.0, seconds))
        vanilla, own = (Arm([1, 2], [Round(0, 0, 0, 0, 1)], one, "length") for one in both)
        arms = {"vanilla": vanilla, "method": replace(own, lossless="identical")}
        return Turn(index, f"{index}", "h", 3, [*arms], arms)

    run = of(timed(0, 4.0), timed(1, 1.0))
    drawn = [by_task([run], []).axes[0], flexible([run], []).axes[0]]
    values = [list(axis.get_lines()[0].get_ydata()) for axis in drawn]
    assert values == [pytest.approx([2.0]), pytest.approx([1.0, 2.0])]


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
    runs = [replace(timed(*n), axes={"dataset": "a,b"}) for n in names]
    (axis,) = bars(runs, [], "dataset.name", ["speedup"]).axes
    placed = sorted((b.get_x() + b.get_width() / 2, b.get_height()) for b in axis.patches)
    assert [height for _, height in placed] == [1.1, 1.3, 1.2, 1.4]  # swift, clasp of b, then of a
    assert [x for x, _ in placed] == pytest.approx([-0.2, 0.2, 0.8, 1.2])
    assert [text.get_text() for text in axis.get_xticklabels()] == ["b", "a"]


def test_a_caption_counts_the_samples_that_did_not_fail() -> None:
    one, failed = traced(0, ROUNDS, SETS), traced(1, ROUNDS, SETS)
    own = replace(failed.arms["method"], lossless="failed")
    failed = replace(failed, arms=failed.arms | {"method": own})
    assert "samples 1;" in f"{caption([of(one, failed)])};"
    assert "samples 1 to 2" in caption([of(one, failed), of(one, replace(one, index=1))])


def test_the_rate_beside_a_threshold_is_of_all_rounds_so_far() -> None:
    (axis,) = threshold([of(traced(0, ROUNDS, {"threshold": [0.5, 0.6, 0.7]}))], []).axes
    mean, rate = axis.get_lines()
    assert list(rate.get_xdata()) == list(mean.get_xdata()) == [1, 2, 3]
    assert list(rate.get_ydata()) == pytest.approx([2 / 3, 3 / 4, 3 / 6])
