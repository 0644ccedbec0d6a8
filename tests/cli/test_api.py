"""The Python API, used as a stranger would: tokens are vanilla's, streams add up to the answer,
and mistakes are answered in one line.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from builders import make_run
from conftest import ROOT, random_lm, rest_slow

import skipbench
from skipbench.decode.answer import Piece, StopStrings
from skipbench.decode.draft import Draft
from skipbench.decode.loop import Step, generate, stream
from skipbench.decode.method import Method, MethodCopies
from skipbench.errors import SkipbenchError
from skipbench.language_model import LanguageModel
from skipbench.methods.prompt_lookup import PromptLookup

STORY = "Once upon a time there was a dog. Once upon a time"


@pytest.fixture(scope="module")
def tiny() -> LanguageModel:
    return skipbench.load("tiny", method="self-sd")


@pytest.mark.parametrize(
    ("code", "without"),
    [
        ("import skipbench", "torch hydra pandas"),
        ("import skipbench as s; s.frame({0!r}); s.published('swift')", "torch transformers hydra"),
        pytest.param(
            "from skipbench.cli.main import main; main(['method=swift', 'dry_run=true', {1!r}])",
            "bayes_opt sklearn scipy transformers.generation.utils transformers.modeling_utils",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_little_is_imported(code: str, without: str, tmp_path: Path) -> None:
    make_run(tmp_path)
    code = code.format(str(tmp_path), f"results={tmp_path}")
    code += f"; import sys; assert not {set(without.split())} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize(
    "method", rest_slow(["prompt-lookup", "swift", "knapspec"], "swift".__eq__)
)
def test_every_method_gives_vanillas_tokens(tiny: LanguageModel, method: str) -> None:
    vanilla = tiny.with_method("vanilla").generate(STORY, 32)
    answer = tiny.with_method(method).generate(STORY, 32)
    assert (answer.tokens, answer.text) == (vanilla.tokens, vanilla.text) and vanilla.text
    assert (answer.method, vanilla.accepted, vanilla.drafted) == (method, 0, 0)
    assert answer.accepted > 0 and answer.rounds == vanilla.rounds - answer.accepted
    assert answer.tokens_per_s > 0 and 0 < answer.first_token_s < answer.seconds


def test_a_stream_adds_up_to_the_answer(tiny: LanguageModel) -> None:
    whole = tiny.generate(STORY, 32)
    pieces = list(tiny.generate(STORY, 32, stream=True))
    assert "".join(map(str, pieces)) == whole.text
    assert {p.source for p in pieces} == {"", "draft"}
    tokens = [t for p in pieces for t in p.tokens]
    assert tokens == whole.tokens[: len(tokens)]


def test_stop_strings_end_the_text_before_them(tiny: LanguageModel) -> None:
    whole = tiny.generate(STORY, 32)
    word = whole.text.split()[3]
    cut = tiny.generate(STORY, 32, stop=[word, "never there"])
    assert cut.text == whole.text[: whole.text.index(word)] and cut.finish == "stop"
    assert cut.tokens == whole.tokens[: len(cut.tokens)] and len(cut.tokens) < len(whole.tokens)


def test_a_stop_string_may_lie_across_pieces() -> None:
    stops = StopStrings(["\n\nUser:"])
    texts = ["a\n", "\nUs", "ing\n\n", "User", ": b"]
    shown = [p.text for text in texts for p in stops.add(Piece(text, (1,)))]
    assert "".join(shown) == "a\n\nUsing" and stops.stopped_by == "\n\nUser:"


def test_a_closed_stream_keeps_what_there_is(tiny: LanguageModel) -> None:
    running = tiny.generate(STORY, 32, stream=True)
    first = next(running)
    running.close()
    assert list(running) == [] or running.so_far.finish == "unfinished"
    assert running.so_far.text.startswith(first.text)
    assert tiny.generate(STORY, 8).tokens  # the model is usable afterwards


@pytest.mark.parametrize(
    ("model", "method", "says"),
    [
        ("tinny", "vanilla", "Did you mean tiny"),
        ("tiny", "swfit", "Did you mean swift"),
        ("tiny", "fixed", "method.skip must be given"),
        (Path("/nope"), "vanilla", "neither a folder"),
        (object(), "vanilla", "not object; a model that Hugging Face has loaded"),
    ],
)
def test_a_wrong_name_is_told_before_loading(model: Any, method: str, says: str) -> None:
    with pytest.raises(SkipbenchError, match=says):
        skipbench.load(model, method)


class Named(Method):
    """Drafts two tokens that name their sources."""

    def propose(self, state: object, budget: int) -> Draft:
        return Draft(self.guess[:budget], steps=budget, sources=["copy", "skip"][:budget])


def test_steps_say_what_proposed_their_tokens() -> None:
    lm, prompt = random_lm("llama", "reference"), [5, 9, 2]
    target = generate(lm, PromptLookup(name="x"), prompt, 6).tokens
    method = Named(name="named")
    method.guess = [target[1], (target[2] + 1) % 61]
    steps: list[Step] = list(stream(lm, MethodCopies(method), prompt, 3))
    assert [s.tokens for s in steps] == [[target[0]], target[1:3]]
    assert [s.sources for s in steps] == [[""], ["copy", ""]]
