"""From a record to the ids of its prompt, and of other forms of it."""

import hashlib
from collections.abc import Iterator
from copy import copy
from datetime import datetime, timedelta
from typing import Any

from skipbench.contrib.oracle.outputs import Output
from skipbench.data.chat import as_messages, as_text, dated, pin_day, plain_text
from skipbench.errors import SkipbenchError

DAYS = 8  # before a run began on which another method of its row may have fixed its date


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
            "(another model, messages instead of a text, "
            f"{'another date in its chat template, ' if prints_date(tokenizer) else ''}"
            "or cut at its end); give the run's own model"
        )
    if not output.messages and chat == "none":
        return list(tokenizer.encode(output.prompt))
    if (ids := _templated(tokenizer, output, messages_of(output), **output.template)) is None:
        if chat == "none" and not getattr(tokenizer, "chat_template", None):  # as `generate`
            return list(tokenizer.encode(plain_text(output.messages)))
        advice = "give the prompt as ids, or as text with chat=none"
        raise SkipbenchError(f"output {output.id}: the model has no chat template for it; {advice}")
    return ids


def _of_run(tokenizer: Any, output: Output) -> Iterator[list[int]]:
    """Ids of a prompt in every form of a run: plain, Vicuna's, the template's; whole or cut."""
    last = [{"role": "user", "content": output.prompt or ""}]
    for turns in (output.turns, []) if output.turns else ([],):
        texts = (as_text(turns, output.prompt or "", chat) for chat in ("none", "vicuna"))
        forms = [tokenizer.encode(text) for text in texts]
        for back in range(DAYS if prints_date(tokenizer) else 1):
            for how in ({}, {"enable_thinking": True}, {"enable_thinking": False}):
                made = _templated(tokenizer, output, as_messages(turns, last), back, **how)
                forms.append(made or [])
        for ids in forms:
            yield list(ids)
            head = [token for token in ids[:1] if token in tokenizer.all_special_ids]
            yield [*head, *ids[len(ids) - output.prompt_tokens + len(head) :]]


def prints_date(tokenizer: Any) -> bool:
    return "strftime_now" in str(getattr(tokenizer, "chat_template", None))


def unsure(tokenizer: Any, output: Output, ids: list[int], chat: str) -> list[str]:
    """Why the engine may have read another prompt than `ids`."""
    templated = bool(output.messages) or chat == "template"
    known = output.prompt_ids or output.prompt_hash or output.day
    if templated and not known and prints_date(tokenizer):
        return ["a chat template that prints the date"]
    if output.prompt_ids and ids[:1] == ids[1:2] and ids[0] in {0, *tokenizer.all_special_ids}:
        return [f"a prompt that begins with token {ids[0]} twice or more, which may be padding"]
    return []


def messages_of(output: Output) -> list[dict[str, Any]]:
    """Its messages, or its text as one of the user after the turns before it."""
    last = [{"role": "user", "content": output.prompt or ""}]
    return list(output.messages) or as_messages(output.turns, last)


def _templated(
    tokenizer: Any, output: Output, messages: list[dict[str, Any]], back: int = 0, **how: Any
) -> list[int] | None:
    """Ids by the chat template, with the date `back` days before the output where it prints one."""
    if not getattr(tokenizer, "chat_template", None):
        return None
    options = {"add_generation_prompt": True, "return_dict": False} | how
    try:
        if output.day:
            at, tokenizer = datetime.fromisoformat(output.day), copy(tokenizer)
            pin_day(tokenizer, (at - timedelta(back)).date().isoformat())
        return list(tokenizer.apply_chat_template(messages, **dated(tokenizer, options)))
    except Exception:  # a checkpoint's template, in jinja's sandbox, raises anything
        return None


def other_prompts(tokenizer: Any, output: Output, used: list[int]) -> dict[str, list[int]]:
    """Other ids that an engine may have read in place of `used`, by what differs."""
    bos, messages = tokenizer.bos_token_id, messages_of(output)
    if not (output.messages or output.prompt):
        text = tokenizer.decode(used, skip_special_tokens=True)
        messages = [{"role": "user", "content": text}]
    rest = [m for m in messages if m["role"] != "system"]
    empty, plain = {"role": "system", "content": ""}, "\n\n".join(m["content"] for m in rest)

    def template(messages: list[dict[str, Any]], **how: Any) -> list[int] | None:
        return _templated(tokenizer, output, messages, **output.template | how)

    head = "the chat template"
    forms: dict[str, Any] = {
        "BOS doubled": None if bos is None else [bos, *used],
        "no BOS": used[1:] if used[0] == bos else None,
        "the text without a chat template": tokenizer.encode(plain),
        "the prompt without the spaces around it": tokenizer.encode(plain.strip()),
        head: template(messages),
        f"{head} without the system message": template(rest),
        f"{head} with an empty system message": template([empty, *rest]),
        f"{head} without the generation prompt": template(messages, add_generation_prompt=False),
    }
    return {name: list(ids) for name, ids in forms.items() if ids}
