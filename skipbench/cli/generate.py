"""`generate`: one answer to one prompt, streamed; `--compare` decodes it with vanilla, too."""

from collections.abc import Sequence

from skipbench.cli import answers
from skipbench.cli.commands import Generate
from skipbench.cli.parser import parse

LENGTH = 256
"""Tokens where `max_new_tokens=` does not say otherwise."""


def run(arguments: Sequence[str]) -> None:
    """Answers the prompt of the command line or of stdin.

    The model's chat template is used where it has one; `chat=none` continues the text as it is.

    Raises:
        SkipbenchError: no prompt, a model that cannot be loaded, or a value that cannot be used.
    """
    asked = parse(Generate, arguments)
    text = answers.read_text(asked)
    model = answers.load_model(asked)
    prompt = [*answers.system_of(asked), {"role": "user", "content": text}]
    length, decoding = answers.max_new_tokens(asked, model, LENGTH), answers.decoding(asked, model)
    stream = model.generate(prompt, length, stream=True, **decoding)
    done = [stream.answer if asked.json else answers.show_stream(stream)]
    if asked.compare:
        done += answers.vanilla_beside(model, done[0], prompt, length, decoding, asked.json)
    if asked.json:
        answers.show_json(done)
