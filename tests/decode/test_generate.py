"""`generate`: what a user types and reads, in a pipe and on a terminal."""

import io
from collections.abc import Iterator

import pytest
from conftest import Command

from skipbench.cli import answers
from skipbench.console import Console
from skipbench.decode.loop import Step
from skipbench.language_model import load

STORY = "Once upon a time there was a dog. Once upon a time"


def test_generate_streams_and_compares(skipbench: Command) -> None:
    done = skipbench("generate", "method=self-sd", "max_new_tokens=24", "--compare", STORY)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip("\n") == load("tiny", "self-sd").generate(STORY, 24).text
    ours, vanilla, ratio = done.stderr.splitlines()[-3:]
    assert ours.startswith("self-sd: 24 tokens in ") and "drafted tokens accepted" in ours
    assert vanilla.startswith("vanilla: 24 tokens in 23 passes, ")
    assert ratio.endswith("x after the first token; the same tokens")


def test_a_terminal_shows_accepted_tokens_in_colour(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = io.StringIO()
    terminal = Console(
        file=screen, force_terminal=True, width=40, height=20, color_system="standard"
    )
    monkeypatch.setattr(answers, "out", terminal)
    answer = answers.show_stream(load("tiny", "self-sd").generate(STORY, 24, stream=True))
    shown = screen.getvalue()
    assert answer.accepted > 0 and "\x1b[32m" in shown  # green
    said = capsys.readouterr().err
    assert "self-sd: 24 tokens in" in said and "tokens/s" in said


def test_ctrl_c_ends_an_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = load("tiny", "swift").generate(STORY, 64, stream=True)
    read = iter(stream)
    texts = [next(read).text, next(read).text]

    def pressed() -> Iterator[Step]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(stream, "_steps", pressed())
    answer = answers.show_stream(stream)
    assert answer.finish == "unfinished" and answer.text.startswith("".join(texts))
    assert "stopped" in capsys.readouterr().err
