"""`chat`: a conversation in the terminal."""

import sys
from typing import TYPE_CHECKING

from skipbench.cli import answers
from skipbench.console import complain, err, say
from skipbench.errors import SkipbenchError

if TYPE_CHECKING:
    from skipbench.api import LanguageModel

FLAGS = ["--compare"]
LENGTH = 512
HELP = "/new forgets the conversation, /quit or Ctrl-D ends, Ctrl-C stops an answer"
Messages = list[dict[str, str]]


def run(arguments: list[str]) -> None:
    """Reads a line, streams the answer, and goes on until the input ends.

    Raises:
        SkipbenchError: a model that cannot be loaded, or a value that cannot be used.
    """
    asked = answers.parse(arguments, "chat", FLAGS)
    if asked.text or "prompt" in asked.own:
        raise SkipbenchError(
            "chat reads its prompts from the terminal; for a single one use generate"
        )
    model = answers.load_model(asked)
    templated = bool(getattr(model.tokenizer, "chat_template", None))
    if not templated and asked.own.get("chat", "auto") == "auto":
        say("this model has no chat template: it continues the text of the conversation")
    say(f"{model.config.model.name}, {model.method.name}. {HELP}", "dim")
    system = asked.own.get("system")
    first: Messages = [{"role": "system", "content": system}] if system else []
    history: Messages = []
    while (line := _read()) is not None:
        if line == "/quit":
            break
        if line == "/new":
            history = []
        elif line.startswith("/"):
            say(HELP)
        elif line:
            history = _turn(model, asked, first, [*history, {"role": "user", "content": line}])


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


def _turn(
    model: "LanguageModel", asked: answers.Asked, first: Messages, history: Messages
) -> Messages:
    """Streams the answer to the last message; returns the conversation with it.

    The oldest turns are left out where all do not fit into the model's context.
    """
    length, decoding = asked.max_new_tokens(model, LENGTH), asked.decoding(model)
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
    if "--compare" in asked.flags:
        answers.vanilla_beside(model, answer, [*first, *history], length, decoding)
    return [*history, {"role": "assistant", "content": answer.text}]
