"""`chat`: a conversation in a pipe and on a terminal."""

import io
import os
import re
import select
import subprocess
import sys

import pytest
from conftest import ROOT, Command

from skipbench.language_model import LanguageModel, load


@pytest.fixture(scope="module")
def tiny() -> LanguageModel:
    return load("tiny")


def test_chat_keeps_its_history(
    tiny: LanguageModel, skipbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sys, "stdin", io.StringIO("Hello\n/help\nAnd then?\n/new\nHello\n/quit\nx\n")
    )
    done = skipbench("chat", "max_new_tokens=12")
    assert done.returncode == 0, done.stderr
    turns = [{"role": "user", "content": "Hello"}]
    first = tiny.generate(turns, 12).text
    turns += [{"role": "assistant", "content": first}, {"role": "user", "content": "And then?"}]
    assert done.stdout == f"{first}\n{tiny.generate(turns, 12).text}\n{first}\n"
    assert "/new forgets" in done.stderr and "no chat template" in done.stderr


def test_chat_leaves_old_turns_out(
    tiny: LanguageModel, skipbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = " ".join(["dog"] * (tiny.lm.max_positions // 3))
    monkeypatch.setattr(
        sys, "stdin", io.StringIO(f"{words}\n{words}\n{words}\n{words} {words} {words}\n")
    )
    done = skipbench("chat", "max_new_tokens=4")
    assert done.returncode == 0 and "no longer fits and is left out" in done.stderr
    assert "error: the prompt has" in done.stderr


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_stops_an_answer_and_keeps_the_session() -> None:
    spawn = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]))"
    # so hot that no EOS comes before the key is pressed
    settings = ["engine=reference", "decoding.temperature=9", "max_new_tokens=500"]
    chat = [sys.executable, "-m", "skipbench", "chat", "method=vanilla", *settings]
    environment = os.environ | {"TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(
        [sys.executable, "-c", spawn, *chat],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=environment,
    ) as session:
        assert session.stdin is not None and session.stdout is not None
        shown = b""

        def type_and_wait(keys: bytes, *texts: bytes) -> str:
            """Types, and reads until the texts have come, one after another."""
            nonlocal shown
            assert session.stdin is not None and session.stdout is not None
            begin = at = len(shown)
            session.stdin.write(keys)
            session.stdin.flush()
            for text in texts:
                while text not in shown[at:]:
                    ready, _, _ = select.select([session.stdout], [], [], 60)
                    read = os.read(session.stdout.fileno(), 1 << 16) if ready else b""
                    if not read:
                        session.kill()  # else the end of `with` waits for it
                    assert read, shown.decode()
                    shown += read
                at = shown.index(text, at) + len(text)
            return shown[begin:].decode()

        asks = b"> "
        type_and_wait(b"", asks)
        type_and_wait(b"Once upon a time\n", b"a time", b" ")
        stopped = type_and_wait(b"\x03", b"stopped", b"first after", asks)
        assert int(re.findall(r"vanilla: (\d+) tokens? in", stopped)[-1]) < 500
        # one that comes too late ends nothing either, and the next answer comes
        type_and_wait(b"\x03", b"/quit", asks)
        type_and_wait(b"And then?\n", b"then?", b" ")
        session.stdin.write(b"/quit\n")
        session.stdin.close()
        assert session.wait(60) == 0, shown.decode()
