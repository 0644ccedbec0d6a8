"""Records as engines write them, around real outputs of the embedded model: ids of Hugging Face and
vLLM, and streams.
"""

import json
from functools import cache
from typing import Any

import skipbench as package
from skipbench.api import LanguageModel

TEXT, OTHER = "Once upon a time there was a dog named Tim.", "Erik often played with Zoe, a mouse."
EOS, PAD, N = 1, 2, 24
USER = [{"role": "user", "content": TEXT}]
CALL = {"id": "0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
Cases = dict[str, tuple[str, Any]]
"""By name the verdicts on the outputs of a record, a letter each, and the record, or several."""


@cache
def model() -> LanguageModel:
    return package.load("tiny", "vanilla", dtype="float32")


@cache
def made(count: int, prompt: str = TEXT, **options: Any) -> tuple[list[int], str]:
    """Ids and text of an output, by options of `generate`; a tuple stands for a list."""
    given = {k: [*v] if isinstance(v, tuple) else v for k, v in options.items()}
    answer = model().generate(prompt, count, **given)
    return answer.tokens, answer.text


def ids_of(text: str) -> list[int]:
    ids: list[int] = model().tokenizer.encode(text)
    return ids


def other() -> tuple[list[int], str]:
    """Without a token of the model's: what penalties, biases and grammars do."""
    return made(48, suppress_tokens=(made(N)[0][6],))


def beside(request: dict[str, Any], **response: Any) -> dict[str, Any]:
    return {"request": request, "response": response}


def chat(message: dict[str, Any], request: Any = (), **choice: Any) -> dict[str, Any]:
    """A chat completion; its usage is told where it ends at its length."""
    one = {"index": 0, "message": {"role": "assistant"} | message, "finish_reason": "length"}
    usage = {} if "finish_reason" in choice else {"usage": {"completion_tokens": N}}
    asked = {"messages": USER, "max_tokens": N} | dict(request)
    return beside(asked, id="c", object="chat.completion", choices=[one | choice], **usage)


def completion(text: str, request: Any = (), **choice: Any) -> dict[str, Any]:
    one = {"index": 0, "text": text, "logprobs": None, "finish_reason": "length"} | choice
    return beside(
        {"prompt": TEXT, "max_tokens": N, "temperature": 0} | dict(request), choices=[one]
    )


def hugging_face() -> Cases:
    own, long, prompt, second = made(N)[0], made(60)[0], ids_of(TEXT), ids_of(OTHER)
    less, most = made(N, OTHER)[0], max(len(ids_of(TEXT)), len(ids_of(OTHER)))

    def batch(pad: int, end: int, mask: bool) -> dict[str, Any]:
        """Two prompts padded on the left, outputs on the right."""
        left = [[pad] * (most - len(ids)) + ids for ids in (prompt, second)]
        shown = [[int(at >= most - len(ids)) for at in range(most)] for ids in (prompt, second)]
        out = [long + [end] * 5, less + [end] * (len(long) + 5 - len(less)) * ({*less} >= {EOS})]
        found = {"input_ids": left, "sequences": [a + b for a, b in zip(left, out, strict=True)]}
        return found | ({"attention_mask": shown} if mask else {})

    def one(ids: list[int], **more: Any) -> dict[str, Any]:
        return {"input_ids": prompt, "sequences": prompt + ids, **more}

    dot = next(i for i, token in enumerate(long) if "." in model().tokenizer.decode(token)) + 1
    config = "generation_config"
    return {
        "padded, masked": ("==", batch(PAD, PAD, True)),
        "padded": ("==", batch(PAD, PAD, False)),
        "padded with EOS": ("==", batch(EOS, EOS, False)),
        "padded with others": ("==", batch(7, 9, True)),
        "no padding in the rows": ("=", {
            "input_ids": [[PAD, PAD, *prompt]], "attention_mask": [[0, 0] + [1] * len(prompt)],
            "sequences": [prompt + own],
        }),
        "two sequences each": ("====", {
            "input_ids": [prompt, second], "sequences": [prompt + own] * 2 + [second + less] * 2,
        }),
        "TRL": ("==", {
            "prompt_ids": [[9, 9, *prompt], [*prompt, 9, 9]],
            "prompt_mask": [[0, 0] + [1] * len(prompt), [1] * len(prompt) + [0, 0]],
            "completion_ids": [[*long, 9, 9], own],
            "completion_mask": [[1] * len(long) + [0, 0], [1] * N],
        }),
        "pad_token_id": ("=", {"prompt": TEXT, "output_ids": [*long, 7, 7], "pad_token_id": 7}),
        "padding or not": ("?", {"prompt": TEXT, "output_ids": [*long, 7, 7]}),
        "padded behind a stop string": ("=", one(long[:dot] + [PAD] * 4, stop_strings=["."])),
        "nothing": ("?", one([])),
        "min_new_tokens": ("=", one(
            made(48, min_new_tokens=45)[0], **{config: {"min_new_tokens": 45}},
        )),
        "repetition_penalty": ("?", one(
            made(N, repetition_penalty=1.3)[0], **{config: {"repetition_penalty": 1.3}},
        )),
        "no_repeat_ngram_size": ("?", one(
            made(48, no_repeat_ngram_size=2)[0], no_repeat_ngram_size=2,
        )),
        "do_sample=False": ("=", one(own, do_sample=False, temperature=0.7)),
        "do_sample": ("?", one(other()[0], do_sample=True)),
        "top_k=1": ("=", one(own, top_k=1, temperature=0.7)),
        "eos_token_id": ("=", one(made(48, eos_token_id=2000)[0], eos_token_id=2000)),
        "goes on behind EOS": ("!", one([*long, 9, 12, 9])),
    }  # fmt: skip


def vllm() -> Cases:
    (own, text), whole, (bad, bad_text) = made(N), made(60)[1], other()
    on, on_text = made(48, eos_token_id=2000)

    def out(settings: Any, *outputs: dict[str, Any], **more: Any) -> dict[str, Any]:
        known = {"request_id": "0", "prompt": TEXT, "prompt_token_ids": ids_of(TEXT)}
        return {**known, "finished": True, "sampling_params": settings, "outputs": outputs, **more}

    ids = {"token_ids": own, "text": text, "finish_reason": "length"}
    cut = {"token_ids": own[:7], "finish_reason": "stop"}
    return {
        "RequestOutput": ("=", out({"temperature": 0.0, "repetition_penalty": 1.0}, ids)),
        "n=2": ("==", out({"n": 2, "max_tokens": N}, ids, ids | {"index": 1})),
        "padded prompt": ("=", out({}, ids, prompt_token_ids=[PAD, PAD, *ids_of(TEXT)])),
        "ignore_eos": ("=", out({"ignore_eos": True}, ids | {"token_ids": on})),
        "stop_token_ids": ("=", out({"stop_token_ids": [own[6]]}, cut)),
        "stop_reason": ("=", out({}, cut | {"stop_reason": own[6]})),
        "not at its end": ("!", out({}, cut)),
        "not finished": ("=", out({"max_tokens": N}, cut | {"finish_reason": None})),
        "aborted": ("=", out({"max_tokens": N}, cut | {"finish_reason": "abort"})),
        "aborted at once": ("?", out({}, {"token_ids": [], "text": "", "finish_reason": "abort"})),
        "bad_words": ("?", out({"bad_words": ["x"]}, ids | {"token_ids": bad})),
        "settings as a text": ("?", out("SamplingParams(top_k=0)", ids | {"token_ids": bad})),
        "settings as JSON": ("!", out('{"temperature": 0.0}', ids | {"token_ids": bad})),
        "sampled, ignore_eos": ("~", out({"temperature": 0.8, "ignore_eos": True}, ids)),
        "sampled, min_p": ("?", out({"temperature": 0.8, "min_p": 0.1}, ids)),
        "sampled, min_tokens": ("?", out({"temperature": 0.8, "min_tokens": 9}, ids)),
        "no outputs": ("?", out({})),
        "server": ("=", completion(text)),
        "server, at its limit": ("=", completion(text, finish_reason="stop")),
        "server, ids": ("=", completion("", {"return_token_ids": True}, token_ids=own)),
        "server, two prompts": ("====", {
            "request": {"prompt": [TEXT, TEXT], "n": 2},
            "choices": [{"index": i, "text": text, "finish_reason": "length"} for i in range(4)],
        }),
        "server, echo": ("=", completion(TEXT + text, {"echo": True})),
        "server, ignore_eos": ("=", completion(on_text, {"ignore_eos": True, "max_tokens": 48})),
        "server, no EOS": ("=", completion(
            made(48, suppress_tokens=(EOS,))[1], {"extra_body": {"ignore_eos": True}},
        )),
        "server, min_tokens": ("=", completion(
            made(48, min_new_tokens=45)[1], {"min_tokens": 45}, finish_reason="stop",
        )),
        "server, min_tokens passed": ("!", completion(whole + " x", {"min_tokens": 5})),
        "server, special tokens": ("=", completion(
            whole + "</s>", {"skip_special_tokens": False}, finish_reason="stop",
        )),
        "server, EOS at once": ("!", completion("", token_ids=[EOS], finish_reason="stop")),
        "server, LoRA": ("?", completion(bad_text, {"lora_request": {"lora_name": "a"}})),
        "logprobs": ("=", completion(text, logprobs={"token_logprobs": [-1.0] * 3, "tokens": []})),
    }  # fmt: skip


def streams() -> Cases:
    text, asked = made(N)[1], {"messages": USER, "max_tokens": N, "stream": True}

    def pieces(*deltas: dict[str, Any], end: str | None = "length") -> list[Any]:
        found = [{"delta": delta, "finish_reason": None} for delta in deltas]
        found = [{"id": "c", "choices": [{"index": 0, **one}]} for one in found]
        found[-1]["choices"][0]["finish_reason"] = end
        return [*found, {"id": "c", "choices": [], "usage": {"completion_tokens": N}}]

    whole = pieces(
        {"role": "assistant", "content": ""}, {"content": text[:9]}, {"content": text[9:]}
    )
    sent = "".join(f"data: {json.dumps(one)}\n\n" for one in whole) + "data: [DONE]\n\n"
    texts = [
        {"text": text[:9], "finish_reason": None},
        {"text": text[9:], "finish_reason": "length"},
    ]
    given = {
        "events": ("=", sent), "pieces": ("=", whole), "one piece": ("?", whole[0]),
        "reasoning": ("?", pieces({"reasoning": text[:9]}, {"content": text[9:]})),
        "tool call": ("?", pieces({"content": text}, {"tool_calls": [CALL]})),
        "broken off": ("=", pieces({"content": text[:19]}, end=None)[:-1]),
    }  # fmt: skip
    return {k: (kind, {"request": asked, "response": r}) for k, (kind, r) in given.items()} | {
        "completion": ("=", {"request": {"prompt": TEXT}, "response": [
            {"id": "c", "choices": [{"index": 0, **one}]} for one in texts
        ]}),
    }  # fmt: skip
