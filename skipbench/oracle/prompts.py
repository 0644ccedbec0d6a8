"""From a record's text to ids: prompts, other forms of them, and outputs known as text only."""

import hashlib
from collections.abc import Iterator
from typing import Any

from skipbench.data.chat import as_messages, as_text
from skipbench.decode.answer import BROKEN
from skipbench.errors import SkipbenchError
from skipbench.oracle.outputs import Output

ANCHOR = 4  # last tokens of the prompt to decode with: a first token alone loses its space


def prompt_ids(tokenizer: Any, output: Output, chat: str) -> list[int]:
    """Ids of an output's prompt.

    Args:
        chat: for a prompt of text: `none`, as it is, or `template`, as a message of the user.

    Raises:
        SkipbenchError: no ids, a chat template that is missing or refuses the messages, or a prompt
            of a run that this tokenizer does not make.
    """
    if output.prompt_ids:
        return list(output.prompt_ids)
    if output.prompt_hash:
        for form in _of_run(tokenizer, output):
            if form and hashlib.sha256(repr(form).encode()).hexdigest()[:16] == output.prompt_hash:
                return form
        raise SkipbenchError(
            f"output {output.id}: its run read another prompt than this tokenizer makes of it "
            "(another model, messages instead of a text, or cut at its end); give the run's own "
            "model"
        )
    if not output.messages and chat == "none":
        return list(tokenizer.encode(output.prompt))
    if (ids := _templated(tokenizer, messages_of(output))) is None:
        if chat == "none" and not getattr(tokenizer, "chat_template", None):  # as `generate`
            texts = (m["content"] for m in output.messages if m["content"])
            return list(tokenizer.encode("\n\n".join(texts)))
        advice = "give the prompt as ids, or as text with chat=none"
        raise SkipbenchError(f"output {output.id}: the model has no chat template for it; {advice}")
    return ids


def _of_run(tokenizer: Any, output: Output) -> Iterator[list[int]]:
    """Ids of a prompt in every form of a run: plain, Vicuna's, the template's; whole or cut."""
    last = [{"role": "user", "content": output.prompt or ""}]
    for turns in (output.turns, []) if output.turns else ([],):
        texts = (as_text(turns, output.prompt or "", chat) for chat in ("none", "vicuna"))
        forms = [tokenizer.encode(text) for text in texts]
        for how in ({}, {"enable_thinking": True}, {"enable_thinking": False}):
            forms.append(_templated(tokenizer, as_messages(turns, last), **how) or [])
        for ids in forms:
            yield list(ids)
            head = [token for token in ids[:1] if token in tokenizer.all_special_ids]
            yield [*head, *ids[len(ids) - output.prompt_tokens + len(head) :]]


def messages_of(output: Output) -> list[dict[str, str]]:
    """Its messages, or its text as one of the user after the turns before it."""
    last = [{"role": "user", "content": output.prompt or ""}]
    return list(output.messages) or as_messages(output.turns, last)


def _templated(tokenizer: Any, messages: list[dict[str, str]], **how: Any) -> list[int] | None:
    if not getattr(tokenizer, "chat_template", None):
        return None
    options = {"add_generation_prompt": True, "return_dict": False} | how
    try:
        return list(tokenizer.apply_chat_template(messages, **options))
    except Exception:  # a checkpoint's template, in jinja's sandbox, raises anything
        return None


def other_prompts(tokenizer: Any, output: Output, used: list[int]) -> dict[str, list[int]]:
    """Other ids that an engine may have read in place of `used`, by what differs."""
    bos, messages = tokenizer.bos_token_id, messages_of(output)
    if not (output.messages or output.prompt):
        text = tokenizer.decode(used, skip_special_tokens=True)
        messages = [{"role": "user", "content": text}]
    rest = [m for m in messages if m["role"] != "system"]
    empty, another = ([{"role": "system", "content": c}, *rest] for c in ("", "x"))
    head, whole = "the chat template", _templated(tokenizer, rest)
    plain, stripped = "\n\n".join(m["content"] for m in rest), (output.prompt or "").strip()
    forms: dict[str, Any] = {
        "BOS doubled": None if bos is None else [bos, *used],
        "no BOS": used[1:] if used[0] == bos else None,
        "the text without a chat template": tokenizer.encode(plain),
        "the prompt without the spaces around it": stripped and tokenizer.encode(stripped),
        head: _templated(tokenizer, messages),
        f"{head} without the system prompt": _templated(tokenizer, empty),
        f"{head} without the system message": whole,
        f"{head} without the generation prompt": _templated(
            tokenizer, messages, add_generation_prompt=False
        ),
    }
    # a template adds a system message by itself: what follows it is what another one leaves alone
    if whole and (other := _templated(tokenizer, another)):
        pairs = enumerate(zip(reversed(whole), reversed(other), strict=False))
        same = next((i for i, (a, b) in pairs if a != b), min(len(whole), len(other)))
        for end in range(min(3, same)):  # the first tokens may still close the system message
            forms[f"{head} without its own system prompt, {end}"] = whole[len(whole) - same + end :]
    return {name: list(ids) for name, ids in forms.items() if ids}


class Texts:
    """Texts of outputs after a prompt."""

    def __init__(self, tokenizer: Any, prompt: list[int]) -> None:
        self._tokenizer, self._anchor = tokenizer, prompt[-ANCHOR:]
        self._start = len(self._decode(self._anchor))

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def text(self, ids: list[int]) -> str:
        """The text that these ids add to the prompt, whole characters only."""
        return self._decode(self._anchor + ids)[self._start :].rstrip(BROKEN)

    def ids(self, text: str) -> list[int]:
        """Ids of a text that goes on after other tokens."""
        return list(self._tokenizer.encode(text, add_special_tokens=False)) if text else []
