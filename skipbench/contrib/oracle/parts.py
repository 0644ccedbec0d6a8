"""Parts of a record: fields by any of their names, texts that come in parts, and answers that came
in pieces.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

Fields = Mapping[str, Any]
APART = (
    *("reasoning_content", "reasoning", "reasoning_details", "thinking"),
    *("tool_calls", "function_call", "refusal", "audio"),
)  # what an engine's parser takes out of a text
TEXT = (None, "text", "input_text", "output_text", "message")
GROWS = {"content", "text", "response", "reasoning_content", "reasoning", "thinking", "refusal"}
GROWS |= {"token_ids", "tokens", "token_logprobs", "tool_calls", "completion_probabilities"}


def mapping(value: Any) -> dict[str, Any]:
    """The value, or no fields where it is something else."""
    return dict(value) if isinstance(value, Mapping) else {}


def first(fields: Fields, *names: str) -> Any:
    """The first value that is there and not null."""
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def text_of(value: Any) -> tuple[Any, str]:
    """A text that may be a list of parts, and why it cannot be read whole."""
    if not isinstance(value, list):
        return value, ""
    if len(value) == 1 and isinstance(value[0], str):
        return value[0], ""
    if value and mapping(value[-1]).get("role") and "type" not in value[-1]:
        return text_of(value[-1].get("content"))  # a conversation that ends with the answer
    texts = [""]
    for part in value:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        text, why = text_of(first(mapping(part), "text", "content"))
        if kind not in TEXT or why:
            return None, why or f"a part of it is of type {kind}"
        texts.append(text or "")
    return "".join(texts), ""


def unmasked(ids: Any, mask: Any) -> tuple[Any, list[Any]]:
    """Ids that a mask of 1 and 0 shows, and those that it hides; all without one."""
    if not ids or not mask or len(mask) < len(ids):
        return ids, []
    pairs = [*zip(ids, mask, strict=False)]
    return [token for token, on in pairs if on], [token for token, on in pairs if not on]


def apart(fields: Fields) -> str:
    """Why the text of an answer is not all that the model wrote."""
    names = [name for name in APART if isinstance(fields.get(name), str | list | dict)]
    names = [name for name in names if fields[name]]
    return f"{', '.join(names)} was taken out of its text" if names else ""


def conversation(given: Any) -> dict[str, Any]:
    """`messages` with texts as contents, why they cannot be read, and what is unsure of them."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    messages, unread, unsure = list[Any](), "", list[str]()
    for message in given or []:
        content = message.get("content")
        text, why = text_of(content)
        if isinstance(content, list) and len(content) > 1:
            unsure.append("a message of several parts")
        unread = unread or (why and f"its prompt: {why}")
        messages.append({"role": "user", **message, "content": str(text or "")})
    if messages and messages[-1].get("role") == "assistant":
        unsure.append("a last message of the assistant")
    return {"messages": messages, "unread": unread, "unsure": unsure}


def events(text: str) -> list[Any]:
    """The values of server-sent events."""
    lines = (line[5:].strip() for line in text.splitlines() if line.startswith("data:"))
    return [json.loads(line) for line in lines if line != "[DONE]"]


def is_piece(record: dict[str, Any]) -> bool:
    """Whether more of the answer follows."""
    choices = [mapping(one) for one in record.get("choices") or ()]
    more = (record.get("stop") is False and "content" in record) or record.get("done") is False
    more = more or ("token" in record and not record.get("generated_text"))
    return more or any("delta" in one or one.get("finish_reason", "") is None for one in choices)


def joined(pieces: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One record of its pieces; SGLang repeats in each what was before."""
    if "meta_info" in pieces[-1]:
        return pieces[-1]
    found = dict[str, Any]()
    for piece in pieces:
        token = piece.get("token")  # of TGI
        found = _added("", found, {**piece, "tokens": [token]} if token else piece)
    for one in found.get("choices") or [found]:
        one.setdefault("finish_reason", None)
    return found


def _added(name: str, a: Any, b: Any) -> Any:
    if name == "choices":
        at = {one.get("index", 0): one for one in a or []}
        for one in b:
            at[one.get("index", 0)] = _added("", at.get(one.get("index", 0), {}), one)
        return [*at.values()]
    if isinstance(b, dict):
        known = {k: _added(k, mapping(a).get(k), v) for k, v in b.items() if v is not None}
        return {**mapping(a), **known}
    return a + b if name in GROWS and type(a) is type(b) else b
