"""Formats of outputs: what tells each from the others, its answers, and each answer's fields."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from skipbench.contrib.oracle.parts import Fields, apart, first, mapping, text_of, unmasked
from skipbench.contrib.oracle.stated import stated
from skipbench.errors import SkipbenchError

TEXTS = ("output", "text", "completion", "generated_text", "response", "content")
IDS = ("output_ids", "output_token_ids", "completion_ids", "token_ids", "tokens")
STEPS = ("output_token_logprobs", "completion_probabilities", "logprobs", "tokens")
ENDS = ("finish_reason", "finish", "stop_type", "done_reason", "stop_reason", "status")
COUNTS = (
    *("completion_tokens", "output_tokens", "generated_tokens", "tokens_predicted", "eval_count"),
    *("total_output_tokens", "tokens"),
)
AROUND = ("meta_info", "details", "stats", "message", "delta")  # hold fields of an answer
LENGTH = {"length", "limit", "max_tokens", "max_new_tokens", "max_output_tokens", "incomplete"}
STOP = {"stop", "eos", "word", "eos_token", "stop_sequence", "end_turn", "completed", "eosfound"}
STOP |= {"tool_calls", "tool_use", "function_call"}
Split = tuple[Fields, Sequence[Any]]
"""A record with its request, and the answers in it."""


def answers(record: Fields, split: Callable[[Fields], Split]) -> Iterator[dict[str, Any]]:
    """Fields of an `Output` for every answer of a record. Raises what a value of another form
    causes: ValueError, LookupError, TypeError or AttributeError.
    """
    record, ones = split(record)
    if not isinstance(ones, list | None):
        raise ValueError(f"answers {str(ones)[:40]!r}; wanted a list")
    asked = stated(record)
    for number, one in enumerate(ones or []):
        one = one if isinstance(one, Mapping) else {"text": one}
        index, of = one.get("index"), len(ones or [])
        at = index if isinstance(index, int) and of > 1 else number
        own = ("prompt", "prompt_ids", "mask", "shown")
        fields = asked | {name: nth(asked[name], at, of) for name in own}
        if of > 1 and asked["id"] is not None:
            fields["id"] = f"{asked['id']}-{at}"
        yield _answer(fields, one, mapping(record.get("usage")) if of == 1 else {})


def nth(value: Any, at: int, of: int) -> Any:
    """The prompt of answer `at` of `of`, where a request has several. Raises SkipbenchError where
    their numbers do not fit.
    """
    if not (isinstance(value, list) and value and isinstance(value[0], str | list)):
        return value
    if of % len(value) or not 0 <= at < of:
        raise SkipbenchError(f"answer {at} of {of} to {len(value)} prompts")
    return value[at * len(value) // of]


def _answer(asked: dict[str, Any], one: Fields, usage: Fields) -> dict[str, Any]:
    said = {**one, **{k: v for name in AROUND for k, v in mapping(one.get(name)).items()}}
    mask, shown, unsure, whole = (asked.pop(k) for k in ("mask", "shown", "unsure", "whole"))
    ids, logprobs = _tokens(said)
    prompt_ids, pads = unmasked(first(said, "prompt_token_ids") or asked["prompt_ids"], mask)
    text, why = text_of(first(said, *TEXTS))
    doubts, prompt = asked["doubts"] + ([] if prompt_ids else unsure), asked["prompt"]
    whole = whole or ("generated_text" in said and "details" not in said)
    if whole and text and prompt and str(text).startswith(prompt):
        text = text[len(prompt) :]
        doubts.append("the prompt at the beginning of its text")
    details = mapping(usage.get("completion_tokens_details"))
    if not ids and (thought := first({**usage, **details}, "reasoning_tokens")):
        doubts.append(f"{thought} tokens of reasoning that are not in its text")
    why = apart(said) or why or ("" if isinstance(text, str) else "neither text nor token ids")
    counts = [count for k in COUNTS if type(count := {**usage, **said}.get(k)) is int]
    return asked | {
        "prompt_ids": prompt_ids,
        "ids": ids,
        "text": text,
        "logprobs": logprobs,
        "pads": [*asked["pads"], *one.get("padding", ()), *pads, *unmasked(ids, shown)[1]],
        "count": next(iter(counts), None),
        "unread": (why if ids is None else "") or (asked["unread"] if not prompt_ids else ""),
        "doubts": doubts,
        **_end(said, asked),
    }


def _end(said: Fields, asked: Fields) -> dict[str, Any]:
    """How it ended, and what ended it."""
    reason, told = first(said, *ENDS), said.get("finish_reason") is not None
    matched = first(said, "matched_stop", "stopping_word", *(["stop_reason"] if told else []))
    if kind := mapping(reason):  # of SGLang
        reason, matched = kind.get("type"), kind.get("matched")
    word = "" if reason is None else str(reason).lower()
    finish = "length" if word in LENGTH else "stop" if word in STOP else "cut"
    finish = finish if {*ENDS} & said.keys() else ""
    ends, stop = list(asked["ends"] or []), list(asked["stop"] or [])
    if type(matched) is int:
        ends.append(matched)
    elif isinstance(matched, str) and matched and matched.lower() not in STOP | LENGTH:
        stop.append(matched)
    return {"finish": finish, "ends": ends, "stop": stop}


def _tokens(said: Fields) -> tuple[list[int] | None, list[float] | None]:
    """Ids of the output, and the engine's log-probabilities of them."""
    lists = [said[name] for name in IDS if isinstance(said.get(name), list)]
    ids = next((found for found in lists if found and isinstance(found[0], int)), None)
    steps = next((said[k] for k in STEPS if said.get(k) and said[k] is not ids), None)
    if isinstance(steps, Mapping):
        values = steps.get("token_logprobs") or []
        names = steps.get("tokens") or [None] * len(values)
        pairs = zip(names, values, strict=False)
        steps = steps.get("content") or [{"token": t, "logprob": p} for t, p in pairs]
    steps = steps if isinstance(steps, list) else []
    found = [
        _step(step, ids[at] if ids and at < len(ids) else None) for at, step in enumerate(steps)
    ]
    named, values = ([pair[i] for pair in found] for i in (0, 1))
    ids = ids or (named if named and None not in named else None)
    if ids is None and first(said, *TEXTS) is None and [] in lists:
        ids = []
    return ids, None if None in values else values


def _step(step: Any, token: int | None) -> tuple[Any, Any]:
    """The id and the log-probability of one token."""
    if isinstance(step, list):
        return step[1], step[0]
    if not isinstance(step, Mapping):
        return None, step if isinstance(step, float | int) else None
    if "logprob" in step:
        name = str(step.get("token"))
        known = int(name[9:]) if name.startswith("token_id:") else step.get("id")
        return known, step["logprob"]
    own = step.get(str(token))  # of vLLM: by id
    return None, own.get("logprob") if isinstance(own, Mapping) else own


def _plain(r: Fields) -> Split:
    rows = next((r[name] for name in IDS if name in r), None)
    if not (isinstance(rows, list) and rows and isinstance(rows[0], list)):
        return r, [r]
    return r, [{"output_ids": row, "padding": row[-1:]} for row in rows]


def _hugging_face(r: Fields) -> Split:
    """`generate` gives the prompt's ids with the output's, rows of a batch padded on both ends."""
    rows, asked = r["sequences"], stated(r)
    rows, ones = rows if rows and isinstance(rows[0], list) else [rows], []
    for at, row in enumerate(rows):
        prompt, mask = (nth(asked[k], at, len(rows)) or [] for k in ("prompt_ids", "mask"))
        heads = [one for one in (prompt, unmasked(prompt, mask)[0]) if one]
        if not (fit := [head for head in heads if row[: len(head)] == head]):
            raise ValueError("`sequences` does not begin with `input_ids`")
        ones.append({"output_ids": row[len(fit[0]) :], "padding": row[-1:]})
    return r, ones


def _lm_eval(r: Fields) -> Split:
    given = r["arguments"]
    one = next(iter(given.values())) if isinstance(given, Mapping) else given[0]
    prompt, how = (one["arg_0"], one["arg_1"]) if isinstance(one, Mapping) else one[:2]
    if not isinstance(how, Mapping):
        raise ValueError("no generation: its second argument is no mapping of settings")
    texts = r["resps"][0] if isinstance(r["resps"][0], list) else r["resps"]
    return {"doc_id": r["doc_id"], "prompt": prompt, "request": how}, texts


# name of a format, the fields that tell it from others, and what splits a record of it
FORMATS: tuple[tuple[str, str, Callable[[Fields], Split]], ...] = (
    ("vLLM, RequestOutput", "outputs", lambda r: (r, r["outputs"])),
    ("SGLang, Engine.generate or /generate", "meta_info", _plain),
    ("lm-evaluation-harness, --log_samples", "arguments + resps", _lm_eval),
    ("OpenAI-style, llama-cpp-python among them", "choices", lambda r: (r, r["choices"])),
    ("llama.cpp, /completion", "content + stop_type or content + tokens_predicted", _plain),
    ("Hugging Face, generate", "sequences", _hugging_face),
    (
        "servers' own: TGI, Ollama, Anthropic",
        "generated_text or message + done or response + done or content + stop_reason",
        _plain,
    ),
    (
        "skipbench, JSONL",
        "output or output_ids or output_token_ids or completion_ids or token_ids or text "
        "or completion",
        _plain,
    ),
)
