"""Errors in OpenAI's shape and a request's words."""

import json
import re
from typing import Any, cast, get_type_hints

from msgspec import Struct

from skipbench.bench.ask import NoRoomError
from skipbench.config.configurable import WORDS, in_words
from skipbench.errors import SkipbenchError

OF_TEMPLATE = {"tools": "tools", "thinking": "chat_template_kwargs"}
NUMBERS = {"int": WORDS[int], "float": WORDS[float]}


class Refused(SkipbenchError):
    """A request that is answered with an error."""

    def __init__(
        self, message: str, status: int = 400, param: str | None = None, code: str | None = None
    ) -> None:
        """`status`: of HTTP; `param`: the wrong field; `code`: OpenAI's, where it has one."""
        super().__init__(message)
        self.status, self.param, self.code = status, param, code


def named(fields: dict[str, Any], error: str, kind: type[Struct]) -> Refused:
    """msgspec's error with the name of the field, its value, and what was allowed."""
    allowed, _, path = error.partition(" - at `")
    if unknown := re.search(r"(unknown|required) field `(\w+)`$", error):
        what = "is not supported" if unknown[1] == "unknown" else "is missing"
        return Refused(f"{unknown[2]} {what}", param=unknown[2])
    name, end = re.findall(r"\$\.(\w+)(`?)", path)[0]
    words = in_words(get_type_hints(kind, include_extras=True)[name])
    if end and (number := re.match(r"Expected `(int|float)\b.*got", allowed)):
        words = f"{NUMBERS[number[1]]}, {words}"
    return other(name, fields[name], words)


def other(name: str, value: Any, wanted: str) -> Refused:
    """Of a value that is not taken."""
    return Refused(f"{name}={shown(value)} is not supported; wanted {wanted}", param=name)


def shown(value: Any) -> str:
    """A value as a request has it, cut."""
    return json.dumps(value, ensure_ascii=False)[:80]


def by_generate(error: SkipbenchError, chat: bool) -> Refused:
    """An error of `LanguageModel.generate`, whose words are another's than a request's."""
    param, why = "messages" if chat else "prompt", cast(BaseException, error)
    if isinstance(error, NoRoomError):
        said = str(error).replace("max_new_tokens", "max_tokens")
        return Refused(said, param=param, code="context_length_exceeded")
    if field := OF_TEMPLATE.get(str(error).partition("=")[0]):
        return Refused(f"{field} needs a chat template, and the model has none", param=field)
    while why.__cause__ is not None:
        why = why.__cause__
    by = "the model's chat template" if chat else "the tokenizer"
    said = str(why) if isinstance(why, SkipbenchError) else f"{by} refuses it: {why}"
    return Refused(f"{param}: {said}", param=param)
