"""The commands that let a model answer, or judge answers."""

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from skipbench.cli.keys import Count, Json, Positive, Prompts
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


class Serve(Loaded):
    """OpenAI's API over a model, one decoding at a time:  serve model=smollm2-135m method=auto
    [port=8000] [host=127.0.0.1]
    """

    method: Annotated[str, "the decoding method"] = DEFAULT_METHOD
    host: Annotated[str, "for another than this machine a key in SKIPBENCH_API_KEY is needed"] = (
        "127.0.0.1"
    )
    port: Annotated[
        Annotated[int, Meta(ge=1, le=65535, title="1 to 65535")], "where it listens"
    ] = 8000
    queue: Annotated[
        Annotated[int, Meta(ge=1, title="1 or more")], "requests at the same time; more get a 429"
    ] = 64
    timeout: Annotated[Positive, "seconds of one request"] = 600.0


class Verify(Loaded):
    """were these the model's own tokens? outputs of any engine:  verify OUTPUTS model=M
    [--fail-on wrong] [--json F] [--page F]
    """

    WORDS = 1, 1
    NEEDS = "needs one file of outputs or a run's folder, as in verify out.jsonl model=tiny"
    fail_on: Annotated[
        Annotated[
            Literal["wrong", "unchecked", "tie"] | None, Meta(title="wrong, unchecked or tie")
        ],
        "exit status 1 where an output is wrong or unchecked, with tie where not identical",
    ] = None
    chat: Annotated[
        Annotated[Literal["none", "template"], Meta(title="none or template")],
        "prompts of text: as they are, or through the model's chat template",
    ] = "none"
    own_dtype: Annotated[bool, "computes as the model does in model.dtype instead of float32"] = (
        False
    )
    json: Annotated[Path | None, "a file for the verdicts"] = None
    page: Annotated[Path | None, "an HTML file with the texts side by side"] = None
