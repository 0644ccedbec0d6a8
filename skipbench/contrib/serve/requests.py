"""The bodies of requests, in OpenAI's form: what is read of them, and what is refused by name."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import Meta, Struct

from skipbench.bench.ask import PromptType
from skipbench.config.configurable import Positive, in_words
from skipbench.errors import SkipbenchError

Probability = Annotated[float, Meta(gt=0, le=1)]
Token = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Zero = Annotated[float, Meta(ge=0, le=0, title="0")] | None
Unused = Any  # known to OpenAI's clients, without a meaning here
MOST = 1024  # answers of a request
SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "typical_p"),
    *("repetition_penalty", "no_repeat_ngram_size"),
)  # of `generate`, too


class Refused(SkipbenchError):
    """A request that is answered with an error."""

    def __init__(
        self, message: str, status: int = 400, param: str | None = None, code: str | None = None
    ) -> None:
        """`status`: of HTTP; `param`: the wrong field; `code`: OpenAI's, where it has one."""
        super().__init__(message)
        self.status, self.param, self.code = status, param, code


class StreamOptions(Struct, forbid_unknown_fields=True):
    include_usage: bool = False


class _Request(Struct, forbid_unknown_fields=True, kw_only=True):
    """What both kinds have; a field that only has one type or value is refused with another."""

    model: str
    max_tokens: Positive | None = None
    min_tokens: Annotated[int, Meta(ge=0)] = 0
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    typical_p: Probability | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    no_repeat_ngram_size: Positive | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    frequency_penalty: Zero = None
    presence_penalty: Zero = None
    stop: str | Annotated[list[str], Meta(max_length=16)] | None = None
    stop_token_ids: list[Token] | None = None
    ignore_eos: bool | None = None
    seed: Seed | None = None
    n: Annotated[int, Meta(ge=1, le=16)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Unused = None
    metadata: Unused = None
    store: Unused = None
    service_tier: Unused = None


class Completion(_Request):
    """`/v1/completions`."""

    prompt: str | Annotated[list[str | int | list[int]], Meta(min_length=1)]
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=1, title="1")] | None = None
    echo: bool | None = None
    suffix: None = None


class _Format(Struct):
    type: Literal["text"]


class ChatCompletion(_Request):
    """`/v1/chat/completions`."""

    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    parallel_tool_calls: Unused = None
    response_format: Annotated[_Format, Meta(title="the type text")] | None = None
    chat_template_kwargs: dict[Literal["enable_thinking"], bool] | None = None


@dataclass(frozen=True)
class Asked:
    """A request as `LanguageModel.generate` takes it: one choice per prompt and seed.

    Attributes:
        options: what all choices share, without `seed`.
        choices: per prompt.
    """

    chat: bool
    model: str
    prompts: Sequence[PromptType]
    seeds: Sequence[int]
    options: dict[str, Any]
    stream: bool
    include_usage: bool
    choices: int


def read_request(
    body: bytes, chat: bool, eos: frozenset[int], defaults: dict[str, Any], vocabulary: int
) -> Asked:
    """Reads a body. Raises Refused for one that is no JSON, or has a field or a value that is not
    taken, by its name.

    Args:
        eos: ids of the model that end an answer, besides those of a request.
        defaults: options of what a request leaves out.
        vocabulary: number of the model's token ids.
    """
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Refused(f"the body is no JSON: {error}") from error
    try:
        asked: Any = msgspec.convert(fields, ChatCompletion if chat else Completion)
    except msgspec.ValidationError as error:
        raise _named(fields, str(error), ChatCompletion if chat else Completion) from error
    options = {**defaults, "max_new_tokens": asked.max_tokens, "stop": asked.stop or ()}
    options |= {k: value for k in SAMPLING if (value := getattr(asked, k)) is not None}
    if options.get("top_k") == -1:  # vLLM's word for off
        options["top_k"] = 0
    if options.get("top_p") == 0:  # OpenAI's for the best token alone
        options |= {"top_p": 1.0, "temperature": 0.0}
    if asked.min_tokens:
        options["min_new_tokens"] = asked.min_tokens
    if asked.stop_token_ids or asked.ignore_eos:
        own = frozenset[int]() if asked.ignore_eos else eos
        options["eos_token_id"] = sorted(own | {*(asked.stop_token_ids or ())})
    if asked.logit_bias:
        biases = asked.logit_bias.items()
        options["sequence_bias"] = [[[_id(k, vocabulary)], bias] for k, bias in biases]
    prompts = _of_chat(asked, options) if isinstance(asked, ChatCompletion) else _of(asked, options)
    first, several = asked.seed or 0, asked.n or 1
    if (count := len(prompts) * several) > MOST:
        raise Refused(f"prompts times n are {count}; at most {MOST} in a request", param="prompt")
    return Asked(
        chat=chat,
        model=asked.model,
        prompts=[prompt for prompt in prompts for _ in range(several)],
        seeds=[first + i for _ in prompts for i in range(several)],
        options=options,
        stream=bool(asked.stream),
        include_usage=bool(asked.stream_options and asked.stream_options.include_usage),
        choices=several,
    )


def _of_chat(asked: ChatCompletion, options: dict[str, Any]) -> list[PromptType]:
    if asked.max_completion_tokens:
        options["max_new_tokens"] = asked.max_completion_tokens
    if asked.top_logprobs is not None and not asked.logprobs:
        raise Refused("top_logprobs needs logprobs=true", param="top_logprobs")
    if asked.logprobs:
        options["logprobs"] = asked.top_logprobs or 0
    if asked.tool_choice != "none":
        options["tools"] = asked.tools
    if asked.chat_template_kwargs:
        options["thinking"] = asked.chat_template_kwargs["enable_thinking"]
    return [asked.messages]


def _of(asked: Completion, options: dict[str, Any]) -> list[PromptType]:
    if asked.echo:
        raise Refused("echo=true is not supported; wanted false", param="echo")
    options["logprobs"] = asked.logprobs
    prompt = asked.prompt
    if isinstance(prompt, str) or all(type(one) is int for one in prompt):
        return [prompt]  # type: ignore[list-item]  # a text, or ids
    if any(type(one) is int for one in prompt):
        raise Refused("prompt mixes token ids with texts; wanted one of them", param="prompt")
    return prompt  # type: ignore[return-value]  # texts and lists of ids


def _id(key: str, vocabulary: int) -> int:
    if not key.isdecimal() or len(key) > 10 or int(key) >= vocabulary:
        wanted = f"token ids from 0 to {vocabulary - 1}"
        raise Refused(f"logit_bias has the key {key[:20]!r}; wanted {wanted}", param="logit_bias")
    return int(key)


def _named(fields: Any, error: str, kind: type[Struct]) -> Refused:
    """msgspec's error with the name of the field, its value, and what was allowed."""
    allowed, _, path = error.partition(" - at `")
    name = re.match(r"(?:key in `)?\$\.(\w+)", path)
    if unknown := re.search(r"unknown field `(.*?)`|missing required field `(.*?)`", allowed):
        param = unknown[1] or unknown[2]
        what = "is not supported" if unknown[1] else "is missing"
        return Refused(f"{param} {what}", param=param)
    if name is None or not isinstance(fields, dict):
        return Refused(f"the body: {allowed}")
    param, given = name[1], str(fields.get(name[1]))[:80]
    words = in_words(get_type_hints(kind, include_extras=True)[param])
    wanted = f"wanted {words}" if words else allowed.lower()
    return Refused(f"{param}={given} is not supported; {wanted}", param=param)
