"""`diff`: two folders of results against each other, by hand."""

from pathlib import Path

import pytest
from builders import CONFIG, folder_of
from msgspec.structs import replace
from test_metrics import timed

from skipbench.report.difference import differences
from skipbench.runs.provenance import Provenance
from skipbench.runs.record import Texts
from skipbench.runs.store import RunStore, append_turn


def stored(results: Path, seconds: list[float], failed: int) -> Path:
    """A folder of one run; `failed`: the prompt without an output."""
    folder = folder_of(results, CONFIG)
    store = RunStore(folder, CONFIG, Provenance(commit=results.name))
    for one in timed(seconds):
        kind = "failed" if one.index == failed else "identical"
        own = replace(one.arms["method"], lossless=kind)
        arms = {"vanilla": one.arms["vanilla"], folder.name: own}
        turn = replace(one, order=[*arms], arms=arms)
        append_turn(folder.parent, turn, Texts(one.index, one.id, "", {}, {folder.name: ""}))
    store.close()
    return results


def test_the_second_folder_is_over_the_first_on_the_prompts_of_both(tmp_path: Path) -> None:
    """Vanilla takes 5 s with its prefill, the first folder's method as long, the second's 2.5."""
    first = stored(tmp_path / "a", [4.0] * 8, failed=7)
    second = stored(tmp_path / "b", [1.4, 1.6] * 4, failed=6)
    ((cell,), others) = differences(first, second)
    assert cell.samples == 6 and cell.same_tokens and others == [[], []]
    assert cell.speedups == pytest.approx((1.0, cell.ratio))
    assert cell.ratio == pytest.approx(2.0, abs=0.01) and cell.apart
    assert cell.interval is not None and 1.8 < cell.interval[0] < cell.ratio < cell.interval[1]
    assert "commit: a | b" in cell.origins
