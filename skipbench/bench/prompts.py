"""From rows to token ids that fit, before anything is timed."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from skipbench.data.chat import History, as_messages, as_text, dated
from skipbench.data.rows import Example
from skipbench.errors import SkipbenchError

if TYPE_CHECKING:  # a plan needs `SCRATCH_ROWS`, and no torch
    from skipbench.lm.model import LM


# cache rows after the text for the largest draft: SWIFT's tree of 25 steps of 10 nodes, and more
SCRATCH_ROWS = 320
# tokens per token at most when an answer is encoded again: a stray byte is shown by a sign of three
BYTES = 3


@dataclass(frozen=True)
class Prompt:
    """One row, ready to be decoded: `cut` tokens were removed, it can have `longest`; `complete`
    makes that of a later turn, whose `ids` lack the answers until they are known.
    """

    example: Example
    ids: list[int]
    cut: int
    longest: int
    complete: Callable[[Mapping[str, str]], "Prompt"] | None = None

    @property
    def hash(self) -> str:
        return hashlib.sha256(repr(self.ids).encode()).hexdigest()[:16]

    @property
    def expected(self) -> int:
        """Its tokens, if answers before it are as long as they may be."""
        return len(self.ids) + (self.longest - len(self.ids)) // BYTES

    def following(self, answers: Mapping[str, str]) -> "Prompt":
        """The prompt with the answers (by row id) of the turns before it; raises SkipbenchError if
        it does not fit now and may not be cut.
        """
        return self if self.complete is None else self.complete(answers)


def encode(
    rows: list[Example],
    tokenizer: Any,
    max_positions: int,
    max_new_tokens: int,
    truncate: str,
    keep: int | str = 0,
    reserve: int = 0,
    context: int | None = None,
    chat: str = "none",
    thinking: bool | None = None,
) -> list[Prompt]:
    """Token ids of every row, as the tokenizer makes them, special tokens included. Raises
    SkipbenchError for a prompt that is empty or too long, or a value that cannot be.

    Args:
        max_positions: of the model, for prompt and output together.
        truncate: of a prompt that with its output and `reserve` is longer than the model's context
            or `context`: `refuse`; `left` cuts its beginning and keeps a first special token; `end`
            cuts its end, but keeps the last `keep` tokens, or as many as the text `keep` has with
            special tokens.
        chat: as of `token_ids`, or `auto`, the template where there is one, else plain text; a
            template is given `thinking` as `enable_thinking`.
    """
    limit = max_positions if context is None else min(context, max_positions)
    if (longest := limit - max_new_tokens - reserve) < 1:
        room = f"no room for a prompt in a context of {limit} tokens"
        raise SkipbenchError(f"dataset.max_new_tokens={max_new_tokens} leaves {room}")
    kept = len(tokenizer.encode(keep)) if isinstance(keep, str) else keep
    if truncate == "end" and not 0 <= kept < longest:
        wanted = f"wanted 0 to {longest - 1}, for prompts have {longest}"
        raise SkipbenchError(f"dataset.keep={keep!r} is {kept} tokens; {wanted}")
    known = {row.id: row for row in rows}
    form = chat_form(tokenizer, chat)
    template = {} if thinking is None else {"enable_thinking": thinking}

    def make(row: Example, history: History, allowed: int) -> tuple[list[int], int]:
        """Token ids after the turns before it, and the number of tokens cut."""
        given = row.prompt if form == "none" else row.messages or row.prompt
        try:
            if row.template and form != "template":
                raise SkipbenchError(f"only a chat template is given {', '.join(row.template)}")
            ids = token_ids(tokenizer, given, form, template | row.template, history)
        except SkipbenchError as error:
            raise SkipbenchError(f"prompt {row.id!r}, dataset.chat={form}: {error}") from error
        cut = max(0, len(ids) - allowed)
        if cut and truncate == "refuse":
            raise SkipbenchError(
                f"prompt {row.id!r} has {len(ids)} tokens; with max_new_tokens={max_new_tokens} at "
                f"most {allowed} fit into the model's context of {limit}. Lower "
                "dataset.max_new_tokens, or cut prompts with dataset.truncate=left"
            )
        return (_shortened(ids, cut, truncate, kept, tokenizer) if cut else ids), cut

    def prompt_of(row: Example) -> Prompt:
        before = _turns_before(row, known)
        ids, cut = make(row, [(turn.prompt, "") for turn in before], longest)
        allowed = min(longest, len(ids) + len(before) * BYTES * max_new_tokens)

        def complete(answers: Mapping[str, str]) -> Prompt:
            history = [(turn.prompt, answers[turn.id]) for turn in before]
            return Prompt(row, *make(row, history, allowed), allowed)

        return Prompt(row, ids, cut, allowed, complete if before else None)

    return [prompt_of(row) for row in rows]


def _shortened(ids: list[int], cut: int, truncate: str, kept: int, tokenizer: Any) -> list[int]:
    """The prompt without `cut` tokens; `truncate` and `kept` as `encode` has them."""
    if truncate == "left":
        head = ids[:1] if ids[0] in tokenizer.all_special_ids else []
        return head + ids[cut + len(head) :]
    return ids[: len(ids) - cut - kept] + ids[len(ids) - kept :]


def _turns_before(row: Example, known: Mapping[str, Example]) -> list[Example]:
    turns = [row]
    while (after := turns[0].after) is not None:
        if after not in known or after in (turn.id for turn in turns):
            raise SkipbenchError(f"row {turns[0].id!r} goes on with {after!r}, no row before it")
        turns.insert(0, known[after])
    return turns[:-1]


def chat_form(tokenizer: Any, chat: str) -> str:
    """What `chat` means: of `auto` the template where the tokenizer has one, else `none`."""
    if chat != "auto":
        return chat
    return "template" if getattr(tokenizer, "chat_template", None) else "none"


def token_ids(
    tokenizer: Any,
    prompt: str | Sequence[Mapping[str, Any]],
    chat: str,
    template: Mapping[str, Any],
    history: History = (),
) -> list[int]:
    """Token ids of a text, or of messages by a template, special tokens included: the one way to
    them. Raises SkipbenchError where there are none, or that form cannot be.

    `chat`: `none`, plain text; `template`, the tokenizer's own, which is given what `template`
    holds; `vicuna`, the conversation of Vicuna 1.1 as text, which Spec-Bench shows to every model.
    """
    text, more = prompt if isinstance(prompt, str) else "", dated(tokenizer, template)
    if chat == "vicuna" and not isinstance(prompt, str):
        raise SkipbenchError("these are messages, and Vicuna's conversation is of texts; use auto")
    if chat == "template" and not (more.get("chat_template") or tokenizer.chat_template):
        raise SkipbenchError(
            "the model's tokenizer has no chat template; use an instruct model, none for plain "
            "text, or vicuna for Vicuna's conversation"
        )
    try:
        text.encode()
        if chat == "template":
            last = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            more |= {"add_generation_prompt": True, "return_dict": False}
            ids = tokenizer.apply_chat_template(as_messages(history, last), **more)
        else:
            ids = tokenizer.encode(as_text(history, text, chat))
    except Exception as error:  # of surrogates, or what a checkpoint's template raises, anything
        by = "the model's chat template" if chat == "template" else "the tokenizer"
        raise SkipbenchError(f"{by} refuses it ({error}); change it, or use none") from error
    if not ids:
        raise SkipbenchError(f"it has no tokens: {prompt!r}")
    return list(ids)


def eos_ids(lm: "LM") -> frozenset[int]:
    """Every id that ends an output, from the generation config, else from the model's. Raises
    SkipbenchError for a value that is neither an id nor a list of ids.
    """
    value = getattr(getattr(lm.model, "generation_config", None), "eos_token_id", None)
    value = lm.config.eos_token_id if value is None else value
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if any(type(one) is not int for one in ids):
        raise SkipbenchError(
            f"eos_token_id={value!r} in the model's generation_config.json or config.json; wanted "
            "a token id or a list of them"
        )
    return frozenset(ids)
