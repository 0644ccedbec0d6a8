"""Real outputs of the embedded model, one with a fault, and records of five forms around them."""

import json
from functools import cache
from typing import Any

import torch
import transformers
from conftest import ROOT

import skipbench as package
from skipbench.contrib.oracle.replay import Replay
from skipbench.language_model import LanguageModel
from skipbench.lm.model import LM

TINY = ROOT / "skipbench" / "models" / "tiny"
LENGTH = 44
TEXTS = (
    "Erik often played with Zoe, a mouse. One day Erik lost the white drum.",
    "Ella often played with Zoe, a frog. One day Ella lost the green basket.",
    "Dan's best friend was a bear named Zoe. One morning the blue key was gone.",
)
TEMPLATE = (
    "{% if messages[0].role != 'system' %}It was a cold winter.\n{% endif %}"
    "{% for m in messages %}{{ m.content }}\n{% endfor %}"
)

TEXT, OTHER = "Once upon a time there was a dog named Tim.", "Erik often played with Zoe, a mouse."
EOS, PAD, N = 1, 2, 24
USER = [{"role": "user", "content": TEXT}]
CALL = {"id": "0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
Cases = dict[str, tuple[str, Any]]
"""By name the verdicts on the outputs of a record, a letter each, and the record."""


@cache
def tiny() -> tuple[Any, LM, Any]:
    """The embedded model for Hugging Face and for the oracle, and its tokenizer."""
    pair = [
        transformers.AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32).eval()
        for _ in range(2)
    ]
    tokenizer = transformers.AutoTokenizer.from_pretrained(TINY)
    tokenizer.chat_template = TEMPLATE
    lm = LM(pair[1], "fused")
    lm.allocate(512)
    return pair[0], lm, tokenizer


@cache
def plain(prompt: tuple[int, ...]) -> list[int]:
    """The model's own output."""
    return Replay(tiny()[1]).greedy([*prompt], LENGTH, frozenset())


def kept(prompt: list[int], at: int) -> list[int]:
    """What a loop gives that keeps a rejected draft token: the model's third choice at `at`, and
    its own text after it. Its second choice may be the first one after another form of the prompt.
    """
    model, lm, _ = tiny()
    own = plain(tuple(prompt))[:at]
    other = int(model(torch.tensor([[*prompt, *own]])).logits[0, -1].topk(3).indices[2])
    rest = Replay(lm).greedy([*prompt, *own, other], LENGTH - at - 1, frozenset())
    return [*own, other, *rest]


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
    asked = {"prompt": TEXT, "max_tokens": N, "temperature": 0} | dict(request)
    return beside(asked, choices=[one])


def own() -> Cases:
    (ids, text), bad = made(N), other()
    said = {"generated_text": [*USER, {"role": "assistant", "content": text}]}
    line = {"id": "q", "prompt": TEXT, "text": text, "tokens": ids, "finish": "length"}
    return {
        "generate's": ("=", line | {"settings": "0123456789abcdef"}),
        "generate's, a stop string": ("=", line | {"tokens": ids[:9], "finish": "stop"}),
        "generate's, not at its end": ("!", line | {"tokens": ids[:9], "finish": "eos"}),
        "cut": ("!", {"prompt": TEXT, "output_ids": ids[:9], "max_tokens": N}),
        "a setting": ("?", {"prompt": TEXT, "output_ids": bad[0], "repetition_penalty": 1.3}),
        "a setting, the model's": ("=", {"prompt": TEXT, "output_ids": ids, "min_p": 0.1}),
        "nothing": ("?", {"prompt": TEXT, "output": ""}),
        "a pipeline's chat": ("=", said | {"max_new_tokens": N}),
        "a pipeline's text": ("=", {"prompt": TEXT, "generated_text": TEXT + text}),
        "padding or not": ("?", {"prompt": TEXT, "output_ids": [*made(60)[0], 7, 7]}),
    }


def openai() -> Cases:
    (ids, text), whole, bad = made(N), made(60)[1], other()[1]
    shown, stopped = [{"type": "text", "text": text}], {"finish_reason": "stop"}
    settings: dict[str, Any] = {"repetition_penalty": 1.3, "ignore_eos": True, "a_new_one": 0}
    off = {"presence_penalty": 0.0, "repetition_penalty": 1, "logit_bias": None, "top_k": -1}
    off |= {"tools": [], "min_p": 0, "user": "me", "seed": 3}
    image = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    thinking = [*USER, {"role": "assistant", "content": "It"}]
    reasoned = {"completion_tokens_details": {"reasoning_tokens": 5}}
    beyond = {"ignore_eos": True, "max_tokens": 48}
    return {k: ("?", chat({"content": bad}, {k: v})) for k, v in settings.items()} | {
        "chat": ("=", chat({"content": text})),
        "all off": ("=", chat({"content": text, "reasoning": None, "tool_calls": []}, off)),
        "all off, wrong": ("!", chat({"content": bad}, off)),
        "parts": ("=", chat({"content": shown})),
        "null": ("?", chat({"content": None})),
        "blank": ("?", chat({"content": "\n\n"}, **stopped)),
        "reasoning": ("?", chat({"content": text, "reasoning_content": "Let me see."})),
        "reasoning, ids": ("=", chat({"content": None, "reasoning": text}, token_ids=ids)),
        "reasoning, counted": ("?", beside(
            {"messages": USER}, choices=[{"message": {"content": bad}}], usage=reasoned,
        )),
        "tool_calls": ("?", chat({"content": text, "tool_calls": [CALL]})),
        "image": ("?", chat({"content": text}, {"messages": [{"role": "user", "content": image}]})),
        "answer begun": ("?", chat({"content": bad}, {"messages": thinking})),
        "ended": ("=", chat({"content": whole}, {"max_tokens": 60}, **stopped)),
        "a piece of a stream": ("?", beside({"messages": USER}, choices=[{"delta": {}}])),
        "stop string": ("=", chat(
            {"content": whole[: whole.index(".")]}, **stopped, stop_reason=".",
        )),
        "SGLang, a token that stops": ("=", completion("", token_ids=ids[:7], matched_stop=ids[6])),
        "error": ("?", {"request": {"messages": USER}, "error": "status 500"}),
        "at its limit": ("=", completion(text, finish_reason="stop")),
        "behind an EOS": ("?", completion("", beyond, token_ids=[*made(60)[0], 5, 9])),
        "two answers": ("==", beside({"prompt": TEXT, "n": 2}, choices=[
            {"index": i, "text": text, "finish_reason": "length"} for i in range(2)
        ])),
    }  # fmt: skip


def vllm() -> Cases:
    (ids, text), bad = made(N), other()[0]

    def out(settings: Any, *outputs: dict[str, Any], **more: Any) -> dict[str, Any]:
        known = {"request_id": "0", "prompt": TEXT, "prompt_token_ids": ids_of(TEXT)}
        return {**known, "finished": True, "sampling_params": settings, "outputs": outputs, **more}

    whole = {"token_ids": ids, "text": text, "finish_reason": "length"}
    cut = {"token_ids": ids[:7], "finish_reason": "stop"}
    return {
        "RequestOutput": ("=", out({"temperature": 0.0, "repetition_penalty": 1.0}, whole)),
        "stop_token_ids": ("=", out({"stop_token_ids": [ids[6]]}, cut)),
        "stop_reason": ("=", out({}, cut | {"stop_reason": ids[6]})),
        "not at its end": ("!", out({}, cut)),
        "aborted": ("=", out({"max_tokens": N}, cut | {"finish_reason": "abort"})),
        "a text": ("?", out("SamplingParams(top_k=0)", whole | {"token_ids": bad})),
        "sampled": ("~", out({"temperature": 0.8}, whole)),
        "sampled, min_p": ("?", out({"temperature": 0.8, "min_p": 0.1}, whole)),
    }


def lm_eval() -> Cases:
    text, bad, said = made(N)[1], other()[1], ([json.dumps(USER)], {"max_gen_toks": N})
    until, beams = {"until": ["\n\n"], "do_sample": False}, {"num_beams": 3}

    def sample(arguments: Any, *texts: str) -> dict[str, Any]:
        return {"doc_id": 0, "doc": {}, "arguments": arguments, "resps": [[*texts]]}

    return {
        "texts": ("=?", sample([[TEXT, until]], text, "")),
        "a chat": ("=", sample({"gen_args_0": {"arg_0": said[0], "arg_1": said[1]}}, text)),
        "a chat, wrong": ("!", sample([said], bad)),
        "beams": ("?", sample([[TEXT, beams]], bad)),
    }


def arrays() -> Cases:
    ids, long, prompt, second = made(N)[0], made(60)[0], ids_of(TEXT), ids_of(OTHER)
    less, most = made(N, OTHER)[0], max(len(ids_of(TEXT)), len(ids_of(OTHER)))

    def batch(pad: int, mask: bool = False) -> dict[str, Any]:
        """Two prompts padded on the left, outputs on the right."""
        left = [[pad] * (most - len(ids)) + ids for ids in (prompt, second)]
        shown = [[int(at >= most - len(ids)) for at in range(most)] for ids in (prompt, second)]
        out = [long + [pad] * 5, less + [pad] * (len(long) + 5 - len(less)) * ({*less} >= {EOS})]
        found = {"input_ids": left, "sequences": [a + b for a, b in zip(left, out, strict=True)]}
        return found | ({"attention_mask": shown} if mask else {})

    def one(ids: list[int], **more: Any) -> dict[str, Any]:
        return {"input_ids": prompt, "sequences": prompt + ids, **more}

    dot = next(i for i, token in enumerate(long) if "." in model().tokenizer.decode(token)) + 1
    return {
        "padded, masked": ("==", batch(PAD, True)),
        "padded": ("==", batch(PAD)),
        "padded with EOS": ("==", batch(EOS)),
        "two sequences each": ("====", {
            "input_ids": [prompt, second], "sequences": [prompt + ids] * 2 + [second + less] * 2,
        }),
        "padded behind a stop string": ("=", one(long[:dot] + [PAD] * 4, stop_strings=["."])),
        "nothing": ("?", one([])),
        "repetition_penalty": ("?", one(other()[0], generation_config={"repetition_penalty": 1.3})),
        "do_sample=False": ("=", one(ids, do_sample=False, temperature=0.7)),
        "do_sample": ("?", one(other()[0], do_sample=True)),
    }  # fmt: skip
