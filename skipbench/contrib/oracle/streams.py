"""Answers that came in pieces, put together."""

import json
from collections.abc import Sequence
from typing import Any

from skipbench.contrib.oracle.parts import mapping

GROWS = {"content", "text", "response", "reasoning_content", "reasoning", "thinking", "refusal"}
GROWS |= {"token_ids", "tokens", "token_logprobs", "tool_calls", "completion_probabilities"}


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
