"""Completion in a shell: the words that may come next, asked as click asks."""

import pytest
from conftest import Command

from skipbench.contrib.completion.completion import candidates


@pytest.mark.parametrize(
    ("words", "incomplete", "first"),
    [
        ("", "comp", "compare"),
        ("chat", "model=smo", "model=smollm2-135m"),
        ("chat model =", "smo", "smollm2-135m"),
        ("table", "swift-table2", "swift-table2"),
        ("generate thinking=false", "max", "max_new_tokens="),
        ("verify out.jsonl", "--own", "--own-dtype"),
        ("verify out.jsonl", "fail_on=t", "fail_on=tie"),
        ("list", "mo", "models"),
        ("data", "swift-table2", "swift-table2"),
        ("data", "cnn", "cnndm"),
        ("chat", "--h", "--help"),
        ("chat", "e", "engine="),
        ("compare", "methods=swi", "methods=swift"),
        ("method=swift", "data", "dataset="),
    ],
)
def test_a_word_is_completed(words: str, incomplete: str, first: str) -> None:
    assert candidates(tuple(words.split()), incomplete)[0] == first


def test_the_shell_asks_as_click_does(skipbench: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    script = skipbench("--shell-completion", "bash").stdout
    assert "complete -o nosort -o default -F _skipbench_words skipbench python python3" in script
    monkeypatch.setenv("_SKIPBENCH_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "skipbench\ntable\nclasp-fig")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert "plain,clasp-figure3a" in skipbench().stdout.split()
