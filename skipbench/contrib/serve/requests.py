"""The bodies of requests, in OpenAI's form: what is read of them, and what is refused by name."""

import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from skipbench.bench.ask import PromptType
from skipbench.config.configurable import Positive
from skipbench.contrib.serve.refused import Refused, named, other, shown
from skipbench.data.chat import ROLES

Token = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Prompts = Annotated[list[str | int | list[int]], Meta(min_length=1)]
Stops = Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(max_length=16)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
Biases = Annotated[dict[Token, Bias], Meta(title="token ids with numbers from -100 to 100")]
Thinking = Annotated[dict[Literal["enable_thinking"], bool], Meta(title="enable_thinking")]
MOST = 1024  # answers of a request
SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "typical_p"),
    *("repetition_penalty", "no_repeat_ngram_size"),
)  # of `generate`, too
HINTS = {
    *("user", "metadata", "store", "service_tier", "safety_identifier", "parallel_tool_calls"),
    *("prompt_cache_key", "prompt_cache_retention", "prediction", "reasoning_effort", "verbosity"),
    *("request_id", "cache_salt", "priority", "include_reasoning", "cache_prompt"),
    *("continuous_usage_stats", "include_obfuscation"),  # of `stream_options`
}  # fields that change no answer here
NEUTRAL = {
    **dict.fromkeys(("frequency_penalty", "presence_penalty"), 0),
    **dict.fromkeys(("length_penalty", "best_of"), 1),
    **dict.fromkeys(("echo", "use_beam_search", "early_stopping", "continue_final_message"), False),
    **dict.fromkeys(("include_stop_str_in_output", "return_token_ids"), False),
    **dict.fromkeys(("skip_special_tokens", "spaces_between_special_tokens", "detokenize"), True),
    **{"return_tokens_as_token_ids": False, "mm_processor_kwargs": {}, "vllm_xargs": {}},
    **{"bad_words": [], "documents": [], "functions": [], "logits_processors": []},
    **{"modalities": ["text"], "response_format": {"type": "text"}, "suffix": ""},
}  # fields that are taken with this value alone, or null
OF_CHAT = {"add_generation_prompt": True, "add_special_tokens": False}
OF_TEXTS = {"add_special_tokens": True}


class StreamOptions(Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool = False


class _Request(Struct, forbid_unknown_fields=True, kw_only=True):
    """What both kinds have; a field that only has one type or value is refused with another."""

    model: str
    max_tokens: Positive | None = None
    max_completion_tokens: Positive | None = None
    min_tokens: Annotated[int, Meta(ge=0)] = 0
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    typical_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    no_repeat_ngram_size: Positive | None = None
    logit_bias: Biases = {}
    stop: Annotated[str | Stops, Meta(title="a text, or up to 16, none empty")] = []
    stop_token_ids: Annotated[list[Token], Meta(title="a list of token ids")] = []
    ignore_eos: bool = False
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1, title="0 to 2**63 - 1")] | None = None
    n: Annotated[int, Meta(ge=1, le=16)] = 1
    stream: bool = False
    stream_options: Annotated[StreamOptions, Meta(title="include_usage")] = StreamOptions()


class Completion(_Request):
    """`/v1/completions`."""

    prompt: Annotated[str | Prompts, Meta(title="a text, token ids, or a list of these")]
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


class ChatCompletion(_Request):
    """`/v1/chat/completions`."""

    messages: Annotated[list[dict[str, Any]], Meta(min_length=1, title="a list of messages")]
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: Annotated[list[dict[str, Any]], Meta(title="a list of functions")] = []
    tool_choice: Literal["auto", "none"] = "auto"
    chat_template_kwargs: Thinking = {}


@dataclass(frozen=True)
class Asked:
    """A request as `LanguageModel.generate` takes it: one choice per prompt and seed."""

    body: Any  # Completion or ChatCompletion
    chat: bool
    prompts: Sequence[PromptType]
    seeds: Sequence[int]
    options: dict[str, Any]


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
    kind, neutral = (ChatCompletion, OF_CHAT) if chat else (Completion, OF_TEXTS)
    try:
        fields = _asking(msgspec.json.decode(body, type=dict[str, Any]), NEUTRAL | neutral)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Refused(f"the body is no JSON object: {error}") from error
    try:
        asked: Any = msgspec.convert(fields, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise named(fields, str(error), kind) from error
    longest = asked.max_completion_tokens or asked.max_tokens
    options = {**defaults, "max_new_tokens": longest, "stop": asked.stop or []}
    options |= {k: value for k in SAMPLING if (value := getattr(asked, k)) is not None}
    options["top_k"] = max(0, options.get("top_k", 0))  # vLLM's word for off is -1
    if options.get("top_p") == 0:
        options |= {"top_p": 1.0, "temperature": 0.0}
    if asked.min_tokens:
        options["min_new_tokens"] = asked.min_tokens
    if asked.stop_token_ids or asked.ignore_eos:
        own = frozenset[int]() if asked.ignore_eos else eos
        options["eos_token_id"] = sorted(own.union(asked.stop_token_ids))
    if biases := asked.logit_bias:
        if max(biases) >= vocabulary:
            raise other("logit_bias", biases, f"token ids from 0 to {vocabulary - 1}")
        options["sequence_bias"] = [[[token], bias] for token, bias in biases.items()]
    prompts = _of_chat(asked, options) if isinstance(asked, ChatCompletion) else _of(asked, options)
    first = secrets.randbits(62) if asked.seed is None else asked.seed
    if (count := len(prompts) * asked.n) > MOST:
        raise Refused(f"prompts times n are {count}; at most {MOST} in a request", param="prompt")
    seeds = [first + i for _ in prompts for i in range(asked.n)]
    prompts = [prompt for prompt in prompts for _ in range(asked.n)]
    return Asked(asked, chat, prompts, seeds, options)


def _of_chat(asked: ChatCompletion, options: dict[str, Any]) -> list[PromptType]:
    if asked.top_logprobs is not None and not asked.logprobs:
        raise Refused("top_logprobs needs logprobs=true", param="top_logprobs")
    options["logprobs"] = asked.top_logprobs or 0 if asked.logprobs else None
    options["tools"] = asked.tools if asked.tools and asked.tool_choice != "none" else None
    options["thinking"] = asked.chat_template_kwargs.get("enable_thinking")
    return [[_message(f"messages[{at}]", said) for at, said in enumerate(asked.messages)]]


def _message(place: str, given: dict[str, Any]) -> dict[str, Any]:
    """A message as chat templates read it: without nulls, and with arguments of calls as objects.
    Raises Refused for another role, and for a content that is no text.
    """
    said = {name: value for name, value in given.items() if value is not None}
    if said.get("role") not in ROLES:
        raise other(f"{place}.role", said.get("role"), " or ".join(ROLES))
    if said["role"] == "assistant" and (said.get("tool_calls") or said.get("function_call")):
        said.setdefault("content", "")
    content = said.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts):
        raise other(f"{place}.content", content, "a text, or parts of the type text")
    if isinstance(calls := said.get("tool_calls"), list):
        said["tool_calls"] = [*map(_call, calls)]
    return said


def _call(call: Any) -> Any:
    """A tool call; clients send its arguments as JSON, templates write them as JSON again."""
    with suppress(msgspec.DecodeError, LookupError, TypeError):
        made = call["function"]
        read = {"arguments": msgspec.json.decode(made["arguments"] or "{}")}
        return {**call, "function": {**made, **read}}
    return call


def _of(asked: Completion, options: dict[str, Any]) -> list[PromptType]:
    options["logprobs"] = asked.logprobs
    prompt = asked.prompt
    if isinstance(prompt, str) or all(type(one) is int for one in prompt):
        return [prompt]  # type: ignore[list-item]  # a text, or ids
    if any(type(one) is int for one in prompt):
        raise Refused("prompt mixes token ids with texts; wanted one of them", param="prompt")
    return prompt  # type: ignore[return-value]  # texts and lists of ids


def _asking(fields: dict[str, Any], neutral: dict[str, Any]) -> dict[str, Any]:
    """The fields that ask for something: not null, no hint, not neutral. Raises Refused for a value
    that is not neutral where nothing else is taken.
    """
    given = {k: _saying(v) if isinstance(v, dict) else v for k, v in _saying(fields).items()}
    for name in given.keys() & neutral.keys():
        if (value := given.pop(name)) != neutral[name]:
            raise other(name, value, shown(neutral[name]))
    return given


def _saying(fields: dict[str, Any]) -> dict[str, Any]:
    return {k: value for k, value in fields.items() if value is not None and k not in HINTS}
