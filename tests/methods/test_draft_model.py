"""`draft-model`: the contract with a second checkpoint that the test makes, and its own cache."""

import functools
import tempfile
from pathlib import Path

import contract
import pytest
import torch
from conftest import compose, random_lm, random_model
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from skipbench.decode.loop import generate, stream
from skipbench.decode.method import MethodCopies
from skipbench.decode.sampling import Sampler
from skipbench.errors import SkipbenchError
from skipbench.lm.model import LM
from skipbench.methods.draft_model import DraftModel
from skipbench.methods.vanilla import Vanilla


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
