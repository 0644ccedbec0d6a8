"""Rounds: read late on a GPU, which a CPU can do, too; by force of a reference; as printed."""

import functools
import io
import itertools
from collections.abc import Iterator
from functools import partial

import pytest
from conftest import Command, make_method, random_lm, random_model, rest_slow

from skipbench.cli import answers
from skipbench.console import Console
from skipbench.decode.draft import Draft, State
from skipbench.decode.loop import Step, generate
from skipbench.decode.sampling import Logprob, Sampler
from skipbench.language_model import load
from skipbench.lm.cuda_graphs.capture import EagerCapture
from skipbench.lm.cuda_graphs.engine import CudaGraphsEngine
from skipbench.lm.model import LM
from skipbench.methods.vanilla import Vanilla
from skipbench.runs.record import Verified

PROMPT = [3 + i * 7 % 50 for i in range(12)]


@pytest.mark.parametrize("engine", ["fused", "cuda_graphs"])
def test_rounds_read_late_have_the_same_tokens(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = random_lm("llama", "fused")
    if engine == "cuda_graphs":
        lm = LM(random_model("llama"), partial(CudaGraphsEngine, capture=EagerCapture))
        lm.allocate(200)
    wanted = generate(lm, Vanilla(), PROMPT, 20)
    assert wanted.strategy == "in_turn"
    ends = [frozenset[int](), frozenset(wanted.tokens[7:8]), frozenset(wanted.tokens[:1])]
    plain = [generate(lm, Vanilla(), PROMPT, 20, end).tokens for end in ends]
    monkeypatch.setattr(lm.engine, "works_ahead", True)
    passes, score = list[int](), lm.score
    monkeypatch.setattr(lm, "score", lambda *given: passes.append(1) or score(*given))
    generate(lm, Vanilla(), PROMPT, 20)
    assert sum(passes) == len(wanted.rounds), "no pass is launched behind the last one"
    for end, tokens in zip(ends, plain, strict=True):
        found = generate(lm, Vanilla(), PROMPT, 20, end)
        assert found.tokens == tokens and found.strategy == "late"
        assert len(found.rounds) == len(tokens) - 1
    others = itertools.product((make_method("swift"), Vanilla()), (None, Sampler(0.7, seed=1)))
    told = [generate(lm, method, PROMPT, 8, sampler=sampler).strategy for method, sampler in others]
    assert told == ["in_turn", "in_turn", "late", "in_turn"], "drafts and draws are read in turn"


def test_rows_beside_the_nodes_are_told() -> None:
    """Of Lookahead's window, W entries on each of N - 1 levels but for the pending token."""
    method = make_method("lookahead", "method.window=7", "method.level=5")
    out = generate(random_lm("llama", "fused"), method, PROMPT, 24)
    assert out.verified[-1][1] == Verified(extra_rows=7 * 4 - 1, tree=True)


def test_a_step_is_cut_with_what_belongs_to_its_tokens() -> None:
    step = Step([5, 6], ["draft", ""], logprobs=[Logprob(5, -1.0, []), Logprob(6, -2.0, [])])
    assert step.cut(1) == Step([5], ["draft"], logprobs=[Logprob(5, -1.0, [])])


TOKENS = 24
STORY = "Once upon a time there was a dog. Once upon a time"
NAMES = ("uniform", "swift", "lookahead", "prompt-lookup", "del", "clasp")


@functools.cache
def tiny() -> tuple[LM, list[int]]:
    model = load("tiny", "swift")
    model.lm.allocate(480)
    return model.lm, list(model.tokenizer(STORY)["input_ids"])


@pytest.mark.parametrize("name", rest_slow(NAMES, NAMES[:3].__contains__))
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


def test_generate_streams_and_compares(skipbench: Command) -> None:
    done = skipbench("generate", "method=self-sd", "max_new_tokens=24", "--compare", STORY)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip("\n") == load("tiny", "self-sd").generate(STORY, 24).text
    ours, vanilla, ratio = done.stderr.splitlines()[-3:]
    assert ours.startswith("self-sd: 24 tokens in ") and "drafted tokens accepted" in ours
    assert vanilla.startswith("vanilla: 24 tokens in 23 passes, ")
    assert ratio.endswith("x after the first token; the same tokens")


def test_a_terminal_shows_accepted_tokens_in_colour_until_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = io.StringIO()
    terminal = Console(
        file=screen, force_terminal=True, width=40, height=20, color_system="standard"
    )
    monkeypatch.setattr(answers, "out", terminal)
    stream = load("tiny", "self-sd").generate(STORY, 64, stream=True)
    steps = stream._steps

    def pressed() -> Iterator[Step]:
        yield from itertools.islice(steps, 8)
        raise KeyboardInterrupt

    monkeypatch.setattr(stream, "_steps", pressed())
    answer = answers.show_stream(stream)
    assert answer.finish == "unfinished" and answer.accepted > 0
    assert "\x1b[32m" in screen.getvalue()  # green
    said = capsys.readouterr().err
    assert "stopped" in said and "self-sd: " in said
