"""What is asked of a model: a text, messages or token ids, and how the answer is sampled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skipbench.bench.prompts import SCRATCH_ROWS, chat_form, eos_ids, token_ids
from skipbench.config.dataset import CHATS
from skipbench.data.chat import plain_message, plain_text
from skipbench.decode.draft import Process
from skipbench.decode.processors import process_by
from skipbench.decode.sampling import Sampler
from skipbench.errors import SkipbenchError
from skipbench.lm.model import LM
from skipbench.models.generation import prepare_call

STEP_ROWS = 512  # by which the cache grows, so that not every turn reallocates it
Message = Mapping[str, Any]
"""`role` and `content`, a text or a list of parts `{"type": "text", "text": ...}`, and whatever
else the chat template knows.
"""
PromptType = str | Sequence[Message] | Sequence[int]
WANTED = "wanted a text, messages, token ids, or a list of these"


class NoRoomError(SkipbenchError):
    """A prompt that with its answer is longer than the model's context."""


def listed(prompt: Any) -> list[PromptType] | None:
    """The prompts of a list of them; `None` where it is a single one."""
    if isinstance(prompt, str) or not isinstance(prompt, Sequence):
        return None
    single = not prompt or all(isinstance(one, Mapping) or type(one) is int for one in prompt)
    return None if single else list(prompt)


def encode_prompt(
    lm: LM,
    tokenizer: Any,
    prompt: PromptType,
    max_new_tokens: int,
    chat: str | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    thinking: bool | None = None,
) -> list[int]:
    """Token ids of a prompt, with rows of the cache for them and the output; arguments as of
    `LanguageModel.generate`. Raises SkipbenchError where there is no prompt, a message has another
    form, or it does not fit.
    """
    if max_new_tokens < 1:
        raise SkipbenchError(f"{max_new_tokens=}; wanted 1 or more")
    if not isinstance(prompt, str | Sequence) or isinstance(prompt, bytes | bytearray | memoryview):
        raise SkipbenchError(f"{prompt=}; {WANTED}")
    if prompt and type(prompt[0]) is int:
        ids = list(map(int, prompt))  # type: ignore[arg-type]  # `listed` has seen them
    else:
        given = {"tools": tools, "enable_thinking": thinking}
        template = {key: value for key, value in given.items() if value is not None}
        ids = _encoded(tokenizer, prompt, chat, template)  # type: ignore[arg-type]  # no ids
    if (most := lm.max_positions - len(ids)) < max_new_tokens:
        advice = f"lower max_new_tokens to {most} or less" if most > 0 else "shorten the prompt"
        raise NoRoomError(
            f"the prompt has {len(ids)} tokens, which leaves no room for {max_new_tokens=}: this "
            f"model's maximum context length is {lm.max_positions} tokens; {advice}"
        )
    lm.allocate(-(-(len(ids) + max_new_tokens + SCRATCH_ROWS) // STEP_ROWS) * STEP_ROWS)
    return ids


def _encoded(
    tokenizer: Any, prompt: str | Sequence[Message], chat: str | None, template: dict[str, Any]
) -> list[int]:
    """Ids of a text or of messages."""
    form = chat_form(tokenizer, chat or ("none" if isinstance(prompt, str) else "auto"))
    if template and form in ("none", "vicuna"):
        named = "tools" if "tools" in template else "thinking"
        raise SkipbenchError(
            f"{named}= is for a chat template, but here it is chat={form}; give messages to a "
            "model with a template, or chat=FILE"
        )
    if form not in CHATS:
        template, form = template | {"chat_template": _template(form)}, "template"
    if not isinstance(prompt, str):
        prompt = [*map(plain_message, prompt)]
        if not prompt:
            raise SkipbenchError(f"no messages; {WANTED}")
        if form == "none":
            prompt = plain_text(prompt)
    try:
        return token_ids(tokenizer, prompt, form, template)
    except SkipbenchError as error:
        raise SkipbenchError(f"the prompt, chat={form}: {error}") from error


def _template(path: str) -> str:
    """The text of a template's file."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        wanted = f"wanted {', '.join(CHATS)}, or a template's file"
        raise SkipbenchError(f"chat={path}; {wanted} ({error})") from error


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen, and what ends the output."""

    sampler: Sampler
    process: Process | None
    eos: frozenset[int]
    criteria: list[Any]


def sampling_of(
    lm: LM,
    tokens: list[int],
    max_new_tokens: int,
    seed: int,
    config: Any,
    processors: Sequence[Any],
    options: dict[str, Any],
) -> Sampling:
    """Sampling by Hugging Face's names; errors as of `prepare_call`. `options` are fields of a
    `GenerationConfig`, before those of `config`; without `do_sample` a temperature above 0 samples.
    """
    eos, direct = eos_ids(lm), {"temperature", "top_p", "top_k"}
    if config is None and not processors and options.keys() <= direct:
        return Sampling(Sampler(**options, seed=seed), None, eos, [])
    options = dict(options)
    if (temperature := options.get("temperature")) is not None:
        Sampler(temperature, options.get("top_p", 1.0), options.get("top_k", 0))  # in range
        options.setdefault("do_sample", temperature > 0)
        if temperature == 0:
            del options["temperature"]
    if config is None:  # Hugging Face's default is 50
        options.setdefault("top_k", 0)
        options.setdefault("do_sample", False)
    if getattr(config, "eos_token_id", None) is None and eos:
        options.setdefault("eos_token_id", sorted(eos))
    options.setdefault("pad_token_id", 0)  # there is no padding
    options["max_new_tokens"] = max_new_tokens
    call = prepare_call(lm.model, tokens, config, processors, options)
    process = process_by(call.processors, lm.output_device)
    return Sampling(Sampler(**call.sampling, seed=seed), process, call.eos, call.criteria)
