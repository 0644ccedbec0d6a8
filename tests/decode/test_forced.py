"""Teacher forcing: verification accepts the tokens of a reference, whatever the target chooses."""

import functools

import pytest
from conftest import make_method, rest_slow

import skipbench
from skipbench.decode.draft import Draft, State
from skipbench.decode.loop import generate
from skipbench.decode.sampling import Sampler
from skipbench.lm.model import LM
from skipbench.methods.vanilla import Vanilla

TOKENS = 24


@functools.cache
def tiny() -> tuple[LM, list[int]]:
    model = skipbench.load("tiny", "swift")
    ids = model.tokenizer("Once upon a time there was a dog. Once upon a time")["input_ids"]
    model.lm.allocate(480)
    return model.lm, list(ids)


@pytest.mark.parametrize(
    "name",
    rest_slow(
        ["uniform", "swift", "prompt-lookup", "lookahead", "del", "clasp"],
        ("uniform", "swift", "lookahead").__contains__,
    ),
)
@pytest.mark.parametrize("temperature", rest_slow([0.0, 1.0], (1.0).__eq__))
def test_the_output_is_the_reference_by_force(name: str, temperature: float) -> None:
    """A reference that is not vanilla's; matches are counted as KnapSpec's script counts them."""
    (lm, ids), method = tiny(), make_method(name, layers=12)
    plain = generate(lm, Vanilla(), ids, TOKENS).tokens
    reference = [*plain[:6], plain[3], *plain[6:-1]]
    assert reference != plain
    drafts: list[tuple[int, Draft]] = []
    propose = method.propose

    def kept(state: State, budget: int) -> Draft:
        drafts.append((len(state.output), propose(state, budget)))
        return drafts[-1][1]

    method.propose = kept  # type: ignore[method-assign]  # of one test
    sampler = Sampler(temperature, seed=3)
    out = generate(lm, method, ids, TOKENS, sampler=sampler, reference=reference)
    assert out.tokens == reference
    assert 1 + sum(r.emitted for r in out.rounds) == len(reference)
    for (at, draft), counts in zip(drafts, out.rounds, strict=True):
        if draft.parent is None:  # the leading drafted tokens that are the reference's
            pairs = [*zip(draft.tokens[: draft.num_verifiable], reference[at:], strict=False)]
            unlike = [i for i, (ours, theirs) in enumerate(pairs) if ours != theirs]
            assert counts.accepted == (unlike[0] if unlike else len(pairs))


def test_vanilla_s_own_tokens_force_nothing_and_an_eos_ends() -> None:
    lm, ids = tiny()
    plain = generate(lm, Vanilla(), ids, TOKENS).tokens
    free = generate(lm, make_method("uniform", layers=12), ids, TOKENS)
    forced = generate(lm, make_method("uniform", layers=12), ids, TOKENS, reference=plain)
    assert (forced.tokens, forced.rounds) == (free.tokens, free.rounds)
    eos, end = frozenset({plain[9]}), plain.index(plain[9]) + 1
    cut = generate(lm, make_method("uniform", layers=12), ids, TOKENS, eos, reference=plain[:end])
    assert cut.tokens == plain[:end] and cut.finish == "eos"
