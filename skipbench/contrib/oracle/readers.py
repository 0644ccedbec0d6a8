"""Readers of five forms of outputs: each takes a record and gives the fields of its `Output`s."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Fields = Mapping[str, Any]
LIMITS = ("max_tokens", "max_completion_tokens", "max_new_tokens", "max_gen_toks")
STOPS = ("stop", "until", "stop_strings")
READ = {*LIMITS, *STOPS, "temperature", "top_p", "top_k", "do_sample", "stop_token_ids"}
READ |= {"chat_template_kwargs", "prompt", "messages", "prompt_token_ids"}
WITHOUT_EFFECT = {
    *("model", "n", "seed", "stream", "stream_options", "user", "logprobs", "top_logprobs"),
    *("prompt_logprobs", "return_token_ids", "include_stop_str_in_output", "detokenize"),
    *("timings_per_token", "cache_prompt", "return_spec_tokens_details"),
}  # settings that change no token
NEUTRAL = {
    **dict.fromkeys(("repetition_penalty", "length_penalty", "typical_p", "num_beams"), 1),
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "min_p", "min_tokens"), 0),
    **dict.fromkeys(("min_new_tokens", "no_repeat_ngram_size"), 0),
    **dict.fromkeys(("ignore_eos", "echo", "use_beam_search", "continue_final_message"), False),
    **dict.fromkeys(("skip_special_tokens", "spaces_between_special_tokens"), True),
    **dict.fromkeys(("add_special_tokens", "add_generation_prompt"), True),
}  # settings that change tokens unless they have this value
TEXTS = ("output", "text", "completion", "generated_text")
IDS = ("output_ids", "token_ids", "tokens")
APART = ("reasoning_content", "reasoning", "tool_calls", "function_call", "refusal")
"""What an engine's parser takes out of a text."""
MASK = "attention_mask"
FINISH = {"stop": "stop", "eos": "stop", "length": "length", "max_tokens": "length", "": ""}


def first(fields: Fields, *names: str) -> Any:
    """The first value that is there and not null."""
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def mapping(value: Any) -> dict[str, Any]:
    """The value, or no fields where it is something else."""
    return dict(value) if isinstance(value, Mapping) else {}


def text_of(content: Any) -> str | None:
    """A text, which may be a list of parts; None where it is none, or a part is none."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else None
    parts = [text_of(mapping(part).get("text")) for part in content]
    return None if None in parts else "".join(map(str, parts))


def asked(request: Fields) -> dict[str, Any]:
    """What a request decides: the prompt, limits and sampling. Settings that are not known here are
    doubts.
    """
    known = {name: value for name, value in request.items() if value not in (None, "", [], {})}
    greedy = known.get("do_sample") is False or known.get("top_k") == 1 or known.get("top_p") == 0
    temperature = 0.0 if greedy else known.get("temperature")
    unknown = (name for name in known if name not in READ | WITHOUT_EFFECT)
    doubts = [f"{k}={str(known[k])[:40]}" for k in unknown if NEUTRAL.get(k) != known[k]]
    if known.get("do_sample") and temperature is None:
        doubts.append("do_sample without a temperature")
    prompt, ids = known.get("prompt"), known.get("prompt_token_ids", [])
    if isinstance(prompt, list):
        alone = len(prompt) == 1 and isinstance(prompt[0], str)
        prompt, ids = (prompt[0], ids) if alone else (None, prompt)
    messages = known.get("messages", [])
    texts = [text_of(message.get("content")) for message in messages]
    if messages and messages[-1].get("role") == "assistant":
        doubts.append("a last message of the assistant")
    stop, ends, top_k = first(known, *STOPS), known.get("stop_token_ids", []), known.get("top_k")
    return {
        "prompt": prompt,
        "prompt_ids": ids,
        "messages": [{**m, "content": t or ""} for m, t in zip(messages, texts, strict=True)],
        "template": mapping(known.get("chat_template_kwargs")),
        "stop": [stop] if isinstance(stop, str) else stop or [],
        "ends": [ends] if isinstance(ends, int) else ends,
        "limit": first(known, *LIMITS),
        "temperature": temperature,
        "top_p": known.get("top_p"),
        "top_k": None if top_k is None else max(0, top_k),  # -1: off
        "doubts": doubts,
        "unread": "a message of its prompt is no text" if None in texts else "",
    }


def ended(given: Fields, reason: Any, matched: Any = None) -> dict[str, Any]:
    """How an answer ended, and what ended it beside what was asked for."""
    stop = [matched] if isinstance(matched, str) and matched else []
    ends = [matched] if isinstance(matched, int) else []
    finish = {"finish": FINISH.get(reason, "cut")}
    return finish | {"stop": [*given["stop"], *stop], "ends": [*given["ends"], *ends]}


def own(record: Fields) -> Iterator[dict[str, Any]]:
    """Lines of `generate out=`, lines of your own, and chats of Hugging Face's pipeline."""
    made = record.get("generated_text")
    if isinstance(made, list):
        record = {**record, "messages": made[:-1], "text": made[-1]["content"]}
    elif made:  # the whole text, or what is new
        record = {**record, "text": str(made).removeprefix(record.get("prompt") or "")}
    settings = {k: v for k, v in record.items() if k in READ or k in NEUTRAL}
    given = asked(settings | mapping(record.get("request")))
    given["template"] |= {"tools": record["tools"]} if record.get("tools") else {}
    reason = record.get("finish_reason", "")
    if finish := record.get("finish"):  # ours, which does not name a stop string
        reason = "cut" if finish == "stop" else finish
    said = {"text": text_of(first(record, *TEXTS)), "ids": first(record, *IDS)}
    yield given | said | {"day": record.get("date") or ""} | ended(given, reason)


def openai(record: Fields) -> Iterator[dict[str, Any]]:
    """Chats and completions of OpenAI's API, as vLLM, SGLang and llama.cpp serve them, beside their
    request.
    """
    response = mapping(record.get("response")) or record
    request = mapping(record.get("request")) or {k: v for k, v in record.items() if k in READ}
    given, usage = asked(request), mapping(response.get("usage"))
    for choice in response["choices"]:
        said = choice.get("message") or {"content": choice.get("text")}
        alone = len(response["choices"]) == 1
        apart = ", ".join(name for name in APART if said.get(name))
        thought = mapping(usage.get("completion_tokens_details")).get("reasoning_tokens")
        apart = apart or f"{thought} tokens of reasoning" * bool(thought)
        ids, text = choice.get("token_ids"), text_of(said.get("content"))
        matched = first(choice, "stop_reason", "matched_stop")
        unread = f"{apart}: taken out of its text" if apart and not ids else given["unread"]
        prompt_ids = first(choice, "prompt_token_ids") or response.get("prompt_token_ids")
        yield given | {
            "prompt_ids": prompt_ids or given["prompt_ids"],
            "text": text,
            "ids": ids,
            "count": usage.get("completion_tokens") if alone else None,
            "unread": unread,
            **ended(given, choice.get("finish_reason", ""), matched),
        }


def vllm(record: Fields) -> Iterator[dict[str, Any]]:
    """vLLM's `RequestOutput`, with its `sampling_params` as a mapping."""
    how = record.get("sampling_params") or {}
    names = "prompt", "prompt_token_ids"
    given = asked(mapping(how) | {name: record.get(name) for name in names})
    given["doubts"] += [] if isinstance(how, Mapping) else ["sampling_params as a text"]
    for one in record["outputs"]:
        said = {"text": one.get("text"), "ids": one.get("token_ids") or None}
        yield given | said | ended(given, one.get("finish_reason", ""), one.get("stop_reason"))


def lm_eval(record: Fields) -> Iterator[dict[str, Any]]:
    """lm-evaluation-harness's samples of generations, `--log_samples`; a chat is a JSON text."""
    one = record["arguments"]
    one = next(iter(one.values())) if isinstance(one, Mapping) else one[0]
    prompt, how = (one["arg_0"], one["arg_1"]) if isinstance(one, Mapping) else one[:2]
    if not isinstance(how, Mapping):
        raise ValueError("no generation: its second argument is no mapping of settings")
    chat = isinstance(prompt, list) and str(prompt[0]).startswith("[{")
    given = asked({**how, **({"messages": json.loads(prompt[0])} if chat else {"prompt": prompt})})
    texts = record["resps"][0]
    for text in texts if isinstance(texts, list) else [texts]:
        yield given | {"text": text}


def arrays(record: Fields) -> Iterator[dict[str, Any]]:
    """Arrays of Hugging Face's `generate`: rows of prompt and output, padded on both ends."""
    settings = {k: v for k, v in record.items() if k in READ or k in NEUTRAL}
    given = asked(settings | mapping(record.get("generation_config")))
    rows, heads, masks = (rows_of(record.get(k)) for k in ("sequences", "input_ids", MASK))
    if not heads or len(rows) % len(heads):
        raise ValueError(f"{len(rows)} rows of `sequences` to {len(heads)} of `input_ids`")
    for at, row in enumerate(rows):
        place = at * len(heads) // len(rows)
        head = prompt = heads[place]
        if row[: len(head)] != head:
            raise ValueError("`sequences` does not begin with `input_ids`")
        if masks:
            prompt = [token for token, on in zip(head, masks[place], strict=True) if on]
        yield given | {"prompt_ids": prompt, "ids": row[len(head) :], "pads": row[-1:]}


def rows_of(ids: Any) -> list[list[int]]:
    """The rows of an array, which may be one row."""
    return ids if not ids or isinstance(ids[0], list) else [ids]


Reader = Callable[[Fields], Iterator[dict[str, Any]]]
READERS: tuple[tuple[str, str, Reader], ...] = (
    ("vLLM, RequestOutput", "outputs", vllm),
    ("lm-evaluation-harness, --log_samples", "arguments and resps", lm_eval),
    ("Hugging Face, generate", "sequences and input_ids", arrays),
    ("OpenAI-style", "choices", openai),
    ("skipbench, JSONL", f"{' or '.join((*TEXTS, *IDS))}", own),
)
"""Name of a form, the fields that tell it from the others, and its reader."""


def reader_of(record: Fields) -> tuple[str, Reader] | None:
    """The first reader whose fields a record has; those of a response count as the record's."""
    there = {*record, *mapping(record.get("response"))}
    for name, fields, reader in READERS:
        if any({*words.split(" and ")} <= there for words in fields.split(" or ")):
            return name, reader
    return None
