"""From rows to token ids that fit, before anything is timed."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from skipbench.data.rows import Row
from skipbench.errors import SkipbenchError

if TYPE_CHECKING:  # a plan needs `SCRATCH_ROWS`, and no torch
    from skipbench.lm.model import LM


class Context(Protocol):
    """As much of a model as prompts are cut by."""

    @property
    def max_positions(self) -> int:
        """The most tokens of prompt and output."""
        ...


# cache rows behind the text for the largest draft: SWIFT's tree of 25 steps of 10 nodes, and more
SCRATCH_ROWS = 320


# an answer is read back as at most so many tokens per token: a stray byte is shown by a sign of
# three
BYTES = 3
VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions. "
)
Turns = list[tuple[str, str]]


@dataclass(frozen=True)
class Prompt:
    """One row, ready to be decoded. `cut` is the number of tokens removed from it; it can be
    `longest` tokens long.

    That of a later turn is made by `complete` when the answers before it are known; until then
    `ids` leave them out.
    """

    row: Row
    ids: list[int]
    cut: int
    longest: int
    complete: Callable[[Mapping[str, str]], "Prompt"] | None = None

    @property
    def hash(self) -> str:
        return hashlib.sha256(repr(self.ids).encode()).hexdigest()[:16]

    def following(self, answers: Mapping[str, str]) -> "Prompt":
        """The prompt with the answers (by row id) of the turns before it.

        Raises:
            SkipbenchError: it does not fit now, and may not be cut.
        """
        return self if self.complete is None else self.complete(answers)


def encode(
    rows: list[Row],
    tokenizer: Any,
    lm: Context,
    max_new_tokens: int,
    truncate: str,
    keep: int | str = 0,
    reserve: int = 0,
    context: int | None = None,
    chat: str = "none",
    thinking: bool | None = None,
) -> list[Prompt]:
    """Token ids of every row, as the tokenizer makes them, special tokens included.

    Args:
        truncate: what happens to a prompt that with its output and `reserve` is longer than the
            model's context, or than `context` tokens if those are fewer: `refuse`; `left` cuts its
            beginning and keeps a first special token; `end` cuts its end, but keeps the last `keep`
            tokens, or as many as the text `keep` has with special tokens.
        chat: `none`, plain text; `template`, the tokenizer's own, given `thinking` as
            `enable_thinking`; `auto`, that where the tokenizer has one, else plain text; `vicuna`,
            the conversation of Vicuna 1.1 as text, which Spec-Bench shows to every model.

    Raises:
        SkipbenchError: an empty prompt; one that is too long and may not be cut; no chat template;
            a value that cannot be.
    """
    if max_new_tokens < 1:
        raise SkipbenchError(f"dataset.max_new_tokens={max_new_tokens}; wanted 1 or more")
    if reserve < 0 or (context is not None and context < 1):
        raise SkipbenchError(
            f"dataset.reserve={reserve}, dataset.context={context}; wanted 0 or more, and 1 "
            "or more or null"
        )
    limit = lm.max_positions if context is None else min(context, lm.max_positions)
    room = limit - max_new_tokens - reserve
    if room < 1:
        raise SkipbenchError(
            f"dataset.max_new_tokens={max_new_tokens} leaves no room for a prompt in a "
            f"context of {limit} tokens"
        )
    kept = len(tokenizer.encode(keep)) if isinstance(keep, str) else keep
    if truncate == "end" and not 0 <= kept < room:
        raise SkipbenchError(
            f"dataset.keep={keep!r} is {kept} tokens; wanted 0 to {room - 1}, for prompts "
            f"have {room}"
        )
    known = {row.id: row for row in rows}
    form = chat if chat != "auto" else "template" if _has_template(tokenizer) else "none"

    def make(row: Row, answers: Mapping[str, str], most: int) -> tuple[list[int], int]:
        try:
            row.prompt.encode()
        except UnicodeEncodeError as error:
            raise SkipbenchError(
                f"prompt {row.id!r} is no Unicode text ({error}); correct or remove the row"
            ) from error
        ids = _render(_before(row, known, answers), row, tokenizer, form, thinking)
        if not ids:
            raise SkipbenchError(f"prompt {row.id!r} has no tokens: {row.prompt!r}")
        cut = max(0, len(ids) - most)
        if cut and truncate == "refuse":
            raise SkipbenchError(
                f"prompt {row.id!r} has {len(ids)} tokens; with max_new_tokens={max_new_tokens} at "
                f"most {most} fit into the model's context of {limit}. Lower "
                "dataset.max_new_tokens, or cut prompts with dataset.truncate=left"
            )
        if cut and truncate == "left":
            head = ids[:1] if ids[0] in tokenizer.all_special_ids else []
            ids = head + ids[cut + len(head) :]
        elif cut:
            ids = ids[: len(ids) - cut - kept] + ids[len(ids) - kept :]
        return ids, cut

    def later(row: Row, longest: int) -> Callable[[Mapping[str, str]], Prompt]:
        return lambda answers: Prompt(row, *make(row, answers, longest), longest)

    prompts = []
    for row in rows:
        if row.after is None:
            ids, cut = make(row, {}, room)
            prompts.append(Prompt(row, ids, cut, len(ids)))
        else:
            turns = _depth(row, known)
            ids, cut = make(row, dict.fromkeys(known, ""), room)
            longest = min(room, len(ids) + turns * BYTES * max_new_tokens)
            prompts.append(Prompt(row, ids, cut, longest, later(row, longest)))
    return prompts


def _depth(row: Row, known: Mapping[str, Row]) -> int:
    """How many turns come before a row."""
    turns, seen = 0, {row.id}
    while row.after is not None:
        if row.after not in known or row.after in seen:
            raise SkipbenchError(
                f"row {row.id!r} goes on with {row.after!r}, which is no row before it"
            )
        row = known[row.after]
        seen.add(row.id)
        turns += 1
    return turns


def _before(row: Row, known: Mapping[str, Row], answers: Mapping[str, str]) -> Turns:
    turns: Turns = []
    while row.after is not None:
        row = known[row.after]
        turns.insert(0, (row.prompt, answers[row.id]))
    return turns


def _has_template(tokenizer: Any) -> bool:
    return bool(getattr(tokenizer, "chat_template", None))


def _render(turns: Turns, row: Row, tokenizer: Any, chat: str, thinking: bool | None) -> list[int]:
    """Token ids of a prompt behind the turns before it, each a prompt and its answer."""
    ids: list[int]
    prompt = row.prompt
    if chat == "none":
        # An answer stands behind its prompt as it was made, so that the model reads on in its own
        # text.
        ids = tokenizer.encode("".join(f"{said}{answer}\n\n" for said, answer in turns) + prompt)
        return ids
    if chat == "vicuna" and row.messages:
        raise SkipbenchError(
            f"dataset.chat=vicuna, but row {row.id!r} holds messages; use dataset.chat=auto"
        )
    if chat == "vicuna":
        text = "".join(f"USER: {said} ASSISTANT: {answer.strip()}</s>" for said, answer in turns)
        ids = tokenizer.encode(f"{VICUNA}{text}USER: {prompt} ASSISTANT:")
        return ids
    if not _has_template(tokenizer):
        raise SkipbenchError(
            "dataset.chat=template, but the model's tokenizer has no chat template; use an "
            "instruct model, or dataset.chat=none for plain text, dataset.chat=vicuna for Vicuna's "
            "conversation"
        )
    messages = []
    for said, answer in turns:
        messages += [
            {"role": "user", "content": said},
            {"role": "assistant", "content": answer.strip()},
        ]
    messages += row.messages or [{"role": "user", "content": prompt}]
    more = {} if thinking is None else {"enable_thinking": thinking}
    try:
        ids = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False, **more
        )
    except Exception as error:  # of the checkpoint's text, in jinja's sandbox: it raises anything
        raise SkipbenchError(
            f"the model's chat template refuses row {row.id!r} ({error}); change the row, or use "
            "dataset.chat=none"
        ) from error
    return ids


def eos_ids(lm: "LM") -> frozenset[int]:
    """Every id that ends an output, from the generation config, else from the model's.

    Raises:
        SkipbenchError: a value that is neither an id nor a list of ids.
    """
    generation = getattr(lm.model, "generation_config", None)
    value = getattr(generation, "eos_token_id", None)
    value = lm.config.eos_token_id if value is None else value
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if any(type(one) is not int for one in ids):
        raise SkipbenchError(
            f"eos_token_id={value!r} in the model's generation_config.json or config.json; wanted "
            "a token id or a list of them"
        )
    return frozenset(ids)
