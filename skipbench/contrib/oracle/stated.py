"""What a record states of its request: limits, stop rules, and settings that change the tokens."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from skipbench.contrib.oracle.parts import Fields, conversation, first, mapping

PLACES = (
    *("sampling_params", "parameters", "options", "extra_body", "generation_settings"),
    *("generation_config", "generation_kwargs", "gen_kwargs", "nvext"),
)  # fields of a request that hold settings, by engine
CHOICE = re.compile(
    r"(?!length)\w*penalty|penalty_alpha|dola_layers|\w*no_repeat_ngram_size|dry_multiplier"
    r"|xtc_probability|\w*_?bias|\w*bad_words\w*|banned_\w+|custom_token_bans|constraints"
    r"|allowed_token_ids|(begin_)?suppress_tokens|forced_[be]os_token_id|force_words_ids|min_length"
    r"|\w*logits?_processors?|watermark\w*|prefix_allowed_tokens_fn|use_beam_search|num_beams"
    r"|(guidance|cfg)_scale|response_format|structured(_outputs)?|guided_(?!\w*backend)\w+|format"
    r"|json_schema|regex|ebnf|grammar|structural_tag|tool_choice|stop_regex|truncated"
    r"|(thinking|reasoning)_(\w+_)?budget|max_(thinking|reasoning)_tokens|lora\w*|control_vectors?"
    r"|adapter(s|_\w+)?|images?|image_data|multi_modal_data|\w*_embeds|extra_args|vllm_xargs"
)  # change which token is the likeliest, or the model
DRAWN = re.compile(
    r"min_p|typical(_p)?|top_a|top_h|tfs_z|top_n_sigma|epsilon_cutoff|eta_cutoff|mirostat(_mode)?"
    r"|dynatemp_range|smoothing_factor|best_of"
)  # change the distribution alone
PROMPT = re.compile(
    r"tools|functions|documents|chat_template|instructions|system|template|previous_response_id"
    r"|truncate(_prompt_tokens)?|suffix"
)  # change the prompt
OFF_AT_ONE = re.compile(r".*repe.*|num_beams|best_of|.*_scale|typical.*|tfs_z|top_h")
OFF: tuple[Any, ...] = (None, False, 0, "", [], {}, "none", "auto", "text", {"type": "text"})
DAY = re.compile(r"\d{4}-\d\d-\d\d")
NO_EOS = 2**31  # tokens before which no EOS ends an output, where none does


def stated(record: Fields) -> dict[str, Any]:
    """Fields of an `Output` that a record and the request in it hold; `prompt`, `prompt_ids`
    and their `mask`, and `shown`, that of the output, may be those of several answers.
    """
    request, fields, doubts = mapping(record.get("request")), dict[str, Any](), list[str]()
    request = mapping(request.get("body")) or request  # of a batch's file
    for place in (record, request):
        for inner in (place, *(_settings(place.get(name)) for name in PLACES)):
            fields |= {k: v for k, v in mapping(inner).items() if v is not None}
    texts = (k for k in PLACES if isinstance(_settings(fields.get(k)), str))
    doubts += [f"{k} as a text" for k in texts]
    found = conversation(first(fields, "messages") or first(request, "input"))
    stop = first(fields, "stop", "until", "stop_strings", "stop_sequences")
    stop = [] if isinstance(stop, bool | None) else stop  # llama.cpp's: the answer is complete
    limit = first(
        fields, "max_tokens", "max_completion_tokens", "max_new_tokens", "max_gen_toks",
        "max_output_tokens", "n_predict", "num_predict",
    )  # fmt: skip
    told = ("tools", "documents", "reasoning_effort", "add_generation_prompt")
    template = {k: fields[k] for k in told if k in fields}
    if fields.get("continue_final_message"):
        template |= {"continue_final_message": True, "add_generation_prompt": False}
    return {
        "id": first(record, "id", "request_id", "rid", "custom_id", "doc_id"),
        **_prompts(fields, request),
        "mask": first(fields, "attention_mask", "prompt_mask"),
        "shown": first(fields, "completion_mask", "response_mask"),
        "messages": found["messages"],
        "unread": found["unread"],
        "template": {**template, **mapping(fields.get("chat_template_kwargs"))},
        "bos": fields.get("add_special_tokens"),
        "day": date if isinstance(date := record.get("date"), str) and DAY.fullmatch(date) else "",
        "created": first(record, "created"),
        "stop": [one for one in ([stop] if isinstance(stop, str) else stop) if one],
        "limit": limit if isinstance(limit, int) and limit > 0 else None,
        **_ends(fields),
        **_sampling(fields, doubts),
        "doubts": [*doubts, *_named(CHOICE, fields)],
        "drawn": [*_named(DRAWN, fields)],
        "unsure": [*found["unsure"], *_named(PROMPT, fields)],
        "whole": bool(fields.get("echo") or fields.get("return_full_text")),
        "special": fields.get("skip_special_tokens") is False,
    }


def _settings(value: Any) -> Any:
    """Settings as `transformers serve` takes them, a JSON object in a text; others as they are."""
    with suppress(ValueError, TypeError, RecursionError):
        return mapping(json.loads(value)) or value
    return value


def _prompts(fields: Fields, request: Fields) -> dict[str, Any]:
    """The prompt as text or as ids; `text` is one in a request, an output in a response."""
    prompt = first({**fields, "text": request.get("text")}, "prompt", "inputs", "text")
    ids = first(fields, "prompt_token_ids", "prompt_ids", "input_ids")
    if isinstance(prompt, dict):  # of vLLM
        return {"prompt": prompt.get("prompt"), "prompt_ids": prompt.get("prompt_token_ids", ids)}
    if isinstance(prompt, list) and not any(isinstance(one, str) for one in prompt):
        prompt, ids = None, prompt
    return {"prompt": prompt, "prompt_ids": ids}


def _ends(fields: Fields) -> dict[str, Any]:
    """Ids that end the output, tokens before which none does, and padding."""
    own, more = fields.get("eos_token_id"), fields.get("stop_token_ids")
    own = own if own is None or isinstance(own, list) else [own]
    ignored = any(fields.get(k) for k in ("ignore_eos", "ban_eos_token", "ignore_eos_token"))
    return {
        "eos": None if own is None else [token for token in own if token >= 0],
        "ends": [more] if isinstance(more, int) else more,
        "least": NO_EOS if ignored else first(fields, "min_tokens", "min_new_tokens"),
        "pads": [pad for pad in (fields.get("pad_token_id"),) if isinstance(pad, int)],
    }


def _sampling(fields: Fields, doubts: list[str]) -> dict[str, Any]:
    top_k, drawn = fields.get("top_k"), fields.get("do_sample")
    greedy = drawn is False or top_k == 1 or fields.get("top_p") == 0
    temperature = 0.0 if greedy else fields.get("temperature")
    doubts += ["do_sample without a temperature"] if drawn and temperature is None else []
    return {
        "temperature": temperature,
        "top_p": fields.get("top_p"),
        "top_k": None if top_k is None else max(0, top_k),  # -1: off
    }


def _named(names: re.Pattern[str], fields: Fields) -> Iterator[str]:
    """Settings that are not off, as texts."""
    for name, value in fields.items():
        off = value in OFF or (value == 1 and value is not True and OFF_AT_ONE.fullmatch(name))
        off = off or (value == -1 and "penalty" not in name)
        if names.fullmatch(name) and not off:
            yield f"{name}={value if isinstance(value, int | float) else str(value)[:40]}"
