"""`generate`: one answer to one prompt, streamed; `--compare` decodes it with vanilla, too."""

from skipbench.cli import answers

FLAGS = ["--compare", "--json"]
LENGTH = 256
"""Tokens where `max_new_tokens=` does not say otherwise."""


def run(arguments: list[str]) -> None:
    """Answers the prompt of the command line or of stdin.

    The model's chat template is used where it has one; `chat=none` continues the text as it is.

    Raises:
        SkipbenchError: no prompt, a model that cannot be loaded, or a value that cannot be used.
    """
    asked = answers.parse(arguments, "generate", FLAGS)
    text = answers.read_text(asked)
    model = answers.load_model(asked)
    system = asked.own.get("system")
    before = [{"role": "system", "content": system}] if system else []
    prompt = [*before, {"role": "user", "content": text}]
    length, decoding = asked.max_new_tokens(model, LENGTH), asked.decoding(model)
    stream = model.generate(prompt, length, stream=True, **decoding)
    quiet = "--json" in asked.flags
    done = [stream.answer if quiet else answers.show_stream(stream)]
    if "--compare" in asked.flags:
        done += answers.vanilla_beside(model, done[0], prompt, length, decoding, quiet)
    if quiet:
        answers.show_json(done)
