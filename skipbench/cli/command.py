"""`Command`: the declaration of a command's keys, flags and bare words, and the types of its keys.

A string in a field's annotation says what it means, `Meta` its bounds, and the words for what is
wanted (`title`).
"""

from inspect import getdoc
from typing import Annotated, Any, ClassVar, TypeVar, get_type_hints

from msgspec import Meta, Struct

from skipbench.config.catalog import DEFAULT_METHOD
from skipbench.config.configurable import Positive, PositiveFloat
from skipbench.config.derived import model_words

T = TypeVar("T")
Names = tuple[str, ...]
GROUPS = (
    *("model", "method", "dataset", "decoding", "engine"),
    *("search", "experiment", "scale", "hardware"),
)
CHOSEN_BY = {group: group for group in GROUPS} | {"stop": "stop@method.stop"}
"""By group, the key that takes one of its choices."""

Prompts = Annotated[str | None, "a file, .jsonl or .parquet with `prompt` or `messages`, or .txt"]
Columns = Annotated[Names, "only these columns of the table, in this order, or all there are"]
Over = Annotated[str, "a method, such as swift: paired ratios to it, with intervals"]
Minutes = Annotated[PositiveFloat | None, "after which no prompt begins; the same command goes on"]
Json = Annotated[bool, "results for machines"]
RenderOnly = Annotated[bool, "runs nothing"]


class Command(Struct):
    """Base of the commands.

    A subclass is the command of its name in lower case; its docstring is the command's help: what
    it does, and an example. A field of type `bool` is a flag, any other a key.

    Attributes:
        words: bare words, in order.
        settings: overrides of a cell.
        given: all words KEY=VALUE, keys of the command among them.
    """

    words: Names = ()
    settings: Names = ()
    given: Names = ()

    SETTINGS: ClassVar[bool] = True  # takes other keys as settings of a cell
    GROUPS: ClassVar[Names] = GROUPS  # those of settings that matter to it, for help
    WORDS: ClassVar[tuple[int, int | None]] = (0, 0)  # bare words, minimum and maximum
    NEEDS: ClassVar[str] = ""  # message about a wrong number of bare words, after the name

    def model_settings(self) -> list[str]:
        """The settings, where `model=` may also be a folder, a GGUF file or a hub id."""
        return [
            word
            for one in self.settings
            for word in (model_words(one[6:]) if one.startswith("model=") else [one])
        ]


class Compared(Command):
    """What a cell, several methods and a sweep take, and base of the command that ranks methods."""

    columns: Columns = ()
    over: Over = ""
    minutes: Minutes = None
    json: Json = False


class Loaded(Command):
    """Base of the commands that load a model."""

    GROUPS = "model", "engine", "decoding"


class Prompted(Loaded):
    """Base of the commands that answer prompts."""

    method: Annotated[str, "the decoding method"] = DEFAULT_METHOD
    system: Annotated[str | None, "the system message"] = None
    stop: Annotated[str | None, "a text before which the answer ends"] = None
    max_new_tokens: Annotated[Positive | None, "maximum length of an answer"] = None
    chat: Annotated[str, "auto, none for plain text, template, vicuna, or a template file"] = "auto"
    thinking: Annotated[
        bool | None,
        Meta(title="true or false"),
        "whether a chat template that knows enable_thinking lets the model think",
    ] = None
    compare: Annotated[bool, "decodes the same with vanilla, too"] = False

    LENGTH: ClassVar[int] = 256  # tokens of an answer without `max_new_tokens=`


def help_of(command: type[Command]) -> tuple[str, list[str]]:
    """What a command does, and examples, from its documentation."""
    what, _, examples = (getdoc(command) or "").replace("\n", " ").partition(":  ")
    return what, examples.split(" | ")


def annotated(command: type[Command], kind: type[T]) -> dict[str, T]:
    """The `str` or `Meta` in the annotations of a command's fields, by field."""
    hints = get_type_hints(command, include_extras=True)
    extras = ((name, getattr(hint, "__metadata__", ())) for name, hint in hints.items())
    return {name: part for name, parts in extras for part in parts if isinstance(part, kind)}


def declared(command: type[Command]) -> tuple[dict[str, Any], dict[str, str]]:
    """Types of a command's keys by name, and fields of its flags by word (`--render-only`)."""
    kinds = get_type_hints(command)
    own = [name for name in command.__struct_fields__ if name not in Command.__struct_fields__]
    return (
        {name: kinds[name] for name in own if kinds[name] is not bool},
        {f"--{name.replace('_', '-')}": name for name in own if kinds[name] is bool},
    )
