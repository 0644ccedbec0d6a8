"""Parts of a record: fields by any of their names, and texts that come in parts."""

from collections.abc import Mapping
from typing import Any

Fields = Mapping[str, Any]
APART = (
    *("reasoning_content", "reasoning", "reasoning_details", "thinking"),
    *("tool_calls", "function_call", "refusal", "audio"),
)  # what an engine's parser takes out of a text
TEXT = (None, "text", "input_text", "output_text", "message")


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
