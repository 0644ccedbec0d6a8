"""`chat`: a conversation in the terminal."""

import sys

from skipbench.cli.answers import Messages, Session, show_stream
from skipbench.cli.command import Prompted
from skipbench.console import complain, err, say
from skipbench.errors import SkipbenchError

HELP = "/new forgets the conversation, /quit or Ctrl-D ends, Ctrl-C stops an answer"


class Chat(Prompted):
    """a conversation in the terminal:  chat model=smollm2-135m [--compare]"""

    NEEDS = "reads its prompts from the terminal; for a single one use generate"
    LENGTH = 512


def run_chat(asked: Chat) -> None:
    """Reads a line, streams the answer, and goes on until the input ends."""
    session = Session(asked)
    model = session.model
    if asked.chat == "auto" and not getattr(model.tokenizer, "chat_template", None):
        say("this model has no chat template: it continues the text of the conversation")
    say(f"{model.config.model.name}, {model.method.name}. {HELP}", "dim")
    history: Messages = []
    while (line := _read()) not in (None, "/quit"):
        if line == "/new":
            history = []
        elif line and line.startswith("/") and "\n" not in line:
            say(HELP)
        elif line:
            history = _turn(session, asked.compare, [*history, {"role": "user", "content": line}])


def _read() -> str | None:
    """The next line; `None` where the input ends."""
    while sys.stdin.isatty():
        try:
            return err.input("[bold]> [/bold]").strip()
        except EOFError:
            say("")
            return None
        except KeyboardInterrupt:  # may have been meant for an answer that has just ended
            say(f"\n{HELP}", "dim")
    line = sys.stdin.readline()
    return line.strip() if line else None


def _turn(session: Session, compare: bool, history: Messages) -> Messages:
    """Streams an answer; returns the conversation, without the oldest turns if all do not fit."""
    before = history[:-1]
    while True:
        try:
            stream = session.stream(history)
            break
        except SkipbenchError as error:
            if len(history) < 3:
                complain(f"error: {error}")
                return before
            history = history[2:]
            say("the oldest turn no longer fits and is left out", "dim")
    answer = show_stream(stream)
    if compare:
        session.vanilla(answer, history)
    return [*history, {"role": "assistant", "content": answer.text}]
