"""`chat`: a conversation in the terminal."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from skipbench.cli import answers
from skipbench.cli.commands import Chat
from skipbench.cli.parser import parse
from skipbench.console import complain, err, say
from skipbench.errors import SkipbenchError

if TYPE_CHECKING:
    from skipbench.api import LanguageModel

LENGTH = 512
HELP = "/new forgets the conversation, /quit or Ctrl-D ends, Ctrl-C stops an answer"
Messages = list[dict[str, str]]


def run(arguments: Sequence[str]) -> None:
    """Reads a line, streams the answer, and goes on until the input ends.

    Raises:
        SkipbenchError: a model that cannot be loaded, or a value that cannot be used.
    """
    asked = parse(Chat, arguments)
    if any(word.startswith("prompt=") for word in asked.settings):
        raise SkipbenchError(f"chat {Chat.NEEDS}")
    model = answers.load_model(asked)
    templated = bool(getattr(model.tokenizer, "chat_template", None))
    if not templated and asked.chat == "auto":
        say("this model has no chat template: it continues the text of the conversation")
    say(f"{model.config.model.name}, {model.method.name}. {HELP}", "dim")
    history: Messages = []
    while (line := _read()) is not None:
        if line == "/quit":
            break
        if line == "/new":
            history = []
        elif line.startswith("/"):
            say(HELP)
        elif line:
            history = _turn(model, asked, [*history, {"role": "user", "content": line}])


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


def _turn(model: "LanguageModel", asked: Chat, history: Messages) -> Messages:
    """Streams the answer to the last message; returns the conversation with it.

    The oldest turns are left out where all do not fit into the model's context.
    """
    length, decoding = answers.max_new_tokens(asked, model, LENGTH), answers.decoding(asked, model)
    first = answers.system_of(asked)
    asked_now = history
    while True:
        try:
            stream = model.generate([*first, *history], length, stream=True, **decoding)
            break
        except SkipbenchError as error:
            if len(history) < 3:
                complain(f"error: {error}")
                return asked_now[:-1]
            history = history[2:]
            say("the oldest turn no longer fits and is left out", "dim")
    answer = answers.show_stream(stream)
    if asked.compare:
        answers.vanilla_beside(model, answer, [*first, *history], length, decoding)
    return [*history, {"role": "assistant", "content": answer.text}]
