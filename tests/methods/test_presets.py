"""Sizes of drafts by the price of rows on any device, and drafts that go on."""

from statistics import mean
from typing import Any

import pytest
from conftest import here, make_method, random_lm, rest_slow
from contract import check_greedy

from skipbench.config.compose import compose
from skipbench.errors import SkipbenchError
from skipbench.lm.model import LM
from skipbench.methods.recycling import CHILDREN, TEMPLATE
from skipbench.metrics.prices import ROWS, Curve, Latencies, Prices

EACH_ROW = {"free": 0.0, "proportional": 1.0}
"""What a verified row costs beside the first, in passes of one row."""


def test_sizes_are_by_the_price_of_rows_on_every_device() -> None:
    def settings(*words: str) -> tuple[object, ...]:
        ahead = compose(["method=lookahead", *words]).method.node
        recycling = compose(["method=recycling", *words]).method.node
        return ahead["window"], ahead["pool_from_prompt"], recycling["nodes"]

    paper, ours = (7, False, 80), (0, True, 0)
    assert compose(["model=llama2-7b"]).model.device == "cuda"
    assert settings() == settings("model=llama2-7b") == ours
    assert settings("preset=paper") == settings("preset=paper", "model=llama2-7b") == paper
    with pytest.raises(SkipbenchError, match="preset=cpu; wanted tuned or paper"):
        compose(["method=lookahead", "preset=cpu"])
    with pytest.raises(SkipbenchError, match=r"level=3.*window=0 chooses"):
        make_method("lookahead", "preset=tuned", "method.level=3")


def test_the_first_nodes_of_the_tree_are_the_likeliest() -> None:
    """A part of the tree has depth; the whole of it is the published template."""
    paths: list[str] = []
    for parent, rank in TEMPLATE:
        paths.append((paths[parent] if parent >= 0 else "") + str(rank))
    assert len(set(paths)) == 80 == sum(CHILDREN.values())
    assert {path[:-1] for path in paths} == CHILDREN.keys()
    assert max(map(len, paths[:8])) > 2 and paths[0] == "0"


class Watched:
    """Rows of every verification of a model, which costs what it is told to."""

    def __init__(self, lm: LM, each_row: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows, self._score = list[int](), lm.score
        monkeypatch.setattr(lm, "score", self.score)
        curve = Curve(0, {n: 1 + each_row * (n - 1) for n in ROWS})
        lm.prices = Prices(model=Latencies(0.0, 0.0, 0.0, 1.0, lm.layers), curves=[curve])

    def score(self, tokens: list[int], *rest: Any, **options: Any) -> Any:
        self.rows.append(len(tokens))
        return self._score(tokens, *rest, **options)


@pytest.mark.parametrize("engine", rest_slow(["fused", "cuda_graphs"], "fused".__eq__))
@pytest.mark.parametrize("name", here(["recycling", "lookahead", "auto"]))
def test_free_rows_make_large_drafts_and_dear_ones_small(
    name: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By prices as they are measured. The output is vanilla's."""
    own = ["method.explore=0", "method.row_prices=[]"] if name == "auto" else ["preset=tuned"]
    lm, found = random_lm("llama", engine), list[list[int]]()
    for each_row in EACH_ROW.values():
        with monkeypatch.context() as patched:
            watched = Watched(lm, each_row, patched)
            check_greedy(lm, make_method(name, *own), [3, 1, 4, 1, 5] * 3, 48, not each_row)
            found.append(watched.rows)
        lm.prices = Prices()
    free, dear = found
    assert max(free) > 24 and max(dear) < 12 and mean(free) > 2 * mean(dear)
