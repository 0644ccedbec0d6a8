"""Sizes by the price of rows on any device, drafts that go on, and those of a second checkpoint."""

import functools
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

import contract
import pytest
import torch
from conftest import here, make_method, random_lm, random_model, rest_slow
from contract import check_greedy
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from skipbench.config.compose import compose
from skipbench.decode.loop import generate, stream
from skipbench.decode.method import MethodCopies
from skipbench.decode.sampling import Sampler
from skipbench.errors import SkipbenchError
from skipbench.lm.model import LM
from skipbench.methods.draft_model import DraftModel
from skipbench.methods.recycling import CHILDREN, TEMPLATE
from skipbench.methods.vanilla import Vanilla
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


@functools.cache
def folder(vocab: int, noise: float = 0.05) -> str:
    """A checkpoint that says what the random Llama says, more or less, and a tokenizer for it."""
    path = Path(tempfile.mkdtemp(prefix="skipbench-draft"))
    model = random_model("llama", vocab)
    torch.manual_seed(1)
    for parameter in model.parameters():
        parameter.add_(noise * parameter.std() * torch.randn_like(parameter))
    model.save_pretrained(path)
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(vocab)}, unk_token="t0"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(path)
    return str(path)


def method(*overrides: str, vocab: int = 61) -> DraftModel:
    words = ["method=draft-model", f"method.model={folder(vocab)}", *overrides]
    made: DraftModel = compose(words).method.factory()(layers=4)
    return made


@pytest.mark.parametrize("tree", ["", "method.tree=[4,3,2,1]"])
def test_greedy_is_the_plain_loop(tree: str) -> None:
    made, lm = method("method.stop.threshold=0", *filter(None, [tree])), random_lm("llama", "fused")
    contract.check_greedy(lm, made)
    contract.check_ends(lm, made)
    out = generate(lm, made, [3, 1, 4, 1, 5], 40)
    accepted = [r.chain for r in out.rounds]
    assert 0 < sum(accepted) < sum(r.steps for r in out.rounds) and max(accepted) == 5
    rows = made.lm.cache.length  # those of the text
    with torch.inference_mode():
        contract.check_cache(made.lm, [3, 1, 4, 1, 5, *out.tokens][:rows])


@pytest.mark.slow
@pytest.mark.parametrize("tree", ["", "method.tree=[3,2,2,1]"])
def test_sampling(tree: str) -> None:
    made = method(*filter(None, [tree]), vocab=7)
    contract.check_sampling(random_lm("llama", "fused", vocab=7), made)


def test_a_model_drafts_for_itself_without_a_rejection() -> None:
    target = random_lm("llama", "fused")
    made = compose(
        ["method=draft-model", f"method.model={folder(61, 0.0)}", "method.stop.threshold=0"]
    ).method.factory()(layers=4)
    out = generate(target, made, [3, 1, 4, 1, 5], 24)
    assert all(r.chain == r.steps for r in out.rounds) and out.rounds[0].steps == 5
    methods = MethodCopies(made)  # in turns with another request, too
    both = [stream(target, methods, ids, 24) for ids in ([3, 1, 4, 1, 5], [2, 7, 1, 8])]
    for steps in zip(*both, strict=False):
        assert all(s.round is None or s.round.chain == s.round.steps for s in steps)
    assert out.tokens == generate(target, Vanilla(), [3, 1, 4, 1, 5], 24).tokens


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SkipbenchError, match="7 tokens, the target 61"):
        generate(random_lm("llama", "fused"), method(vocab=7), [1, 2], 4, sampler=Sampler())
    target = random_model("llama", 61)
    words = {f"t{i}": 60 - i for i in range(61)}  # as many, in another order
    made = Tokenizer(models.WordLevel(words, unk_token="t0"))
    PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(tmp_path)
    target.config._name_or_path = str(tmp_path)
    lm = LM(target, "fused")
    lm.allocate(400)
    with pytest.raises(SkipbenchError, match="has other tokens than"):
        generate(lm, method(), [1, 2], 4)
