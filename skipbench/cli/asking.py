"""The commands that let a model answer."""

from typing import Annotated

from msgspec import Meta

from skipbench.cli.keys import Count, Json, Prompts
from skipbench.cli.parser import Command
from skipbench.config.catalog import DEFAULT_METHOD


class Loaded(Command):
    """Base of the commands that load a model."""

    GROUPS = "model", "engine", "decoding"


class Prompted(Loaded):
    """Base of the commands that answer prompts."""

    method: Annotated[str, "the decoding method"] = DEFAULT_METHOD
    system: Annotated[str | None, "the system message"] = None
    stop: Annotated[str | None, "a text before which the answer ends"] = None
    max_new_tokens: Annotated[Count, "maximum length of an answer"] = None
    chat: Annotated[str, "auto, none for plain text, template, vicuna, or a template's file"] = (
        "auto"
    )
    thinking: Annotated[
        Annotated[bool, Meta(title="true or false")] | None,
        "whether a chat template that knows enable_thinking lets the model think",
    ] = None
    compare: Annotated[bool, "decodes the same with vanilla, too"] = False


class Generate(Prompted):
    """answer a prompt, streamed, or a file of prompts:  generate model=smollm2-135m "Why is the sky
    blue?" [--compare] [--json] | generate model=smollm2-135m prompts=FILE out=answers.jsonl
    """

    WORDS = 0, None
    prompt: Annotated[str | None, "the text, in place of bare words or stdin"] = None
    prompts: Prompts = None
    out: Annotated[str | None, "the file of the answers; what is in it is not decoded again"] = None
    json: Json = False


class Chat(Prompted):
    """a conversation in the terminal:  chat model=smollm2-135m [--compare]"""

    NEEDS = "reads its prompts from the terminal; for a single one use generate"
