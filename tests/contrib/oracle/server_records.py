"""Records of servers: chats of which a parser took something out, settings, and each one's own."""

from typing import Any

from records import CALL, EOS, TEXT, USER, Cases, N, beside, chat, ids_of, made, other


def parts() -> Cases:
    """What parsers take out of an answer, and settings of requests."""
    (own, text), whole, bad = made(N), made(60)[1], other()[1]
    shown, stopped = [{"type": "text", "text": text}], {"finish_reason": "stop"}
    asked: list[Any] = [{"type": "text", "text": TEXT}]
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    settings: dict[str, Any] = {
        "repetition_penalty": 1.3, "presence_penalty": 1, "frequency_penalty": -0.5,
        "logit_bias": {"16": -100}, "response_format": {"type": "json_object"},
        "guided_json": {"type": "object"}, "structured_outputs": {"choice": ["a"]},
        "grammar": 'root ::= "a"', "allowed_token_ids": [5, 6], "num_beams": 3,
        "tool_choice": "required", "tools": [CALL], "chat_template": "{{ messages }}",
    }  # fmt: skip
    off: Any = {"presence_penalty": 0.0, "repetition_penalty": 1, "logit_bias": None, "top_k": -1}
    off |= {"response_format": {"type": "text"}, "tools": [], "tool_choice": "auto", "min_p": 0}

    def said(content: list[Any]) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": content}]}

    thinking = {"messages": [*USER, {"role": "assistant", "content": "It"}]}
    return {k: ("?", chat({"content": bad}, {k: v})) for k, v in settings.items()} | {
        "all off": ("=", chat({"content": text, "reasoning_content": None, "tool_calls": []}, off)),
        "all off, wrong": ("!", chat({"content": bad}, off)),
        "parts": ("=", chat({"content": shown})),
        "null": ("?", chat({"content": None})),
        "empty": ("?", chat({"content": ""})),
        "empty, stopped": ("?", chat({"content": ""}, **stopped)),
        "blank": ("?", chat({"content": "\n\n"}, **stopped)),
        "missing": ("?", chat({})),
        "reasoning_content": ("?", chat({"content": None, "reasoning_content": text})),
        "reasoning": ("?", chat({"content": text, "reasoning": "Let me see."})),
        "reasoning, ids": ("=", chat({"content": None, "reasoning": text}, token_ids=own)),
        "reasoning, counted": ("?", beside(
            {"messages": USER}, choices=[{"message": {"content": bad}}],
            usage={"completion_tokens_details": {"reasoning_tokens": 5}},
        )),
        "more counted": ("?", chat({"content": text[:9]})),
        "thinking": ("?", chat({"content": [{"type": "thinking"}, *shown]})),
        "tool_calls": ("?", chat({"content": None, "tool_calls": [CALL]}, **stopped)),
        "tool_calls, text": ("?", chat({"content": text, "tool_calls": [CALL]})),
        "function_call": ("?", chat({"content": "", "function_call": {"name": "f"}})),
        "refusal": ("?", chat({"content": None, "refusal": "No."}, **stopped)),
        "filtered": ("=", chat({"content": text[:19]}, finish_reason="content_filter")),
        "prompt in a part": ("=", chat({"content": text}, said(asked))),
        "image": ("?", chat({"content": text}, said([image, *asked]))),
        "answer begun": ("?", chat({"content": bad}, thinking)),
        "ended": ("=", chat({"content": whole}, {"max_tokens": 60}, **stopped)),
        "ended, spaces cut off": ("=", {
            "prompt": TEXT, "output": made(60, eos_token_id=450)[1][:-8], **stopped,
            "eos_token_id": [ids_of("\nSummary")[-1]],
        }),
        "ended early": ("!", chat({"content": text[:19]}, **stopped)),
        "stop string": ("=", chat(
            {"content": whole[: whole.index(".")]}, **stopped, stop_reason=".",
        )),
        "error": ("?", beside({"messages": USER}, error={"code": 500})),
        "no response": ("?", {"request": {"messages": USER}, "response": None}),
        "batch": ("=", beside(
            {"method": "POST", "body": {"messages": USER}}, status_code=200,
            body=chat({"content": text})["response"],
        )),
        "LM Studio": ("=", {**chat({"content": text}), "stats": {"stop_reason": "eosFound"}}),
        "LM Studio, v1": ("=", beside(
            {"input": TEXT}, output=[{"type": "message", "content": text}],
        )),
        "LM Studio, v1, reasoning": ("?", beside(
            {"input": TEXT}, output=[{"type": "reasoning", "content": text}], stats={},
        )),
        "Responses": ("=", beside(
            {"input": TEXT}, status="incomplete", usage={"output_tokens": N},
            output=[{"type": "message", "content": [{"type": "output_text", "text": text}]}],
        )),
        "Responses, a call": ("?", beside(
            {"input": TEXT}, status="completed", output=[{"type": "function_call", "name": "f"}],
        )),
        "Anthropic": ("=", beside({"messages": USER}, content=shown, stop_reason="max_tokens")),
        "Anthropic, thinking": ("?", beside(
            {"messages": USER}, content=[{"type": "thinking"}, *shown], stop_reason="end_turn",
        )),
    }  # fmt: skip


def servers() -> Cases:
    (own, text), (long, whole), penalty = made(N), made(60), made(N, repetition_penalty=1.3)[1]
    banned, first = made(48, suppress_tokens=(EOS,)), whole[: whole.index(".")]
    native = {"text": TEXT, "sampling_params": {"max_new_tokens": N, "temperature": 0}}
    meta = {"id": "a", "finish_reason": {"type": "length", "length": N}, "completion_tokens": N}
    matched = {"finish_reason": {"type": "stop", "matched": own[6]}}
    cpp = {"content": text, "tokens": [], "prompt": TEXT, "stop": True, "stop_type": "limit"}
    cpp |= {"tokens_predicted": N, "generation_settings": {"repeat_penalty": 1.0, "mirostat": 0}}
    tgi = {"inputs": TEXT, "parameters": {"max_new_tokens": N, "do_sample": False}}
    steps = [{"id": token, "text": "", "logprob": None, "special": False} for token in own]
    ended = {"finish_reason": "eos_token", "generated_tokens": len(long)}
    pieces = [{"message": {"content": piece}, "done": False} for piece in (text[:9], text[9:])]
    done = {"done": True, "done_reason": "length", "eval_count": N}
    return {
        "SGLang": ("=", beside(native, text=text, output_ids=own, meta_info=meta)),
        "SGLang, text": ("=", beside(native, text=text, meta_info=meta)),
        "SGLang, batch": ("==", {"request": {**native, "text": [TEXT, TEXT]}, "response": [
            {"text": text, "meta_info": meta | {"id": name}} for name in "ab"
        ]}),
        "SGLang, streamed": ("=", {"request": native, "response": [
            {"text": text[:9], "meta_info": {"id": "a", "finish_reason": None}},
            {"text": text, "meta_info": meta},
        ]}),
        "SGLang, stop id": ("=", beside(native, output_ids=own[:7], meta_info=matched)),
        "SGLang, aborted": ("?", beside(
            native, text="", output_ids=[], meta_info={"finish_reason": {"type": "abort"}},
        )),
        "SGLang, penalty": ("?", beside(
            {**native, "sampling_params": {"frequency_penalty": 0.5}}, text=penalty, meta_info=meta,
        )),
        "llama.cpp": ("=", cpp),
        "llama.cpp, tokens": ("=", cpp | {"tokens": own}),
        "llama.cpp, nothing": ("?", cpp | {"content": ""}),
        "llama.cpp, ignore_eos": ("=", cpp | {
            "content": banned[1], "tokens": banned[0], "generation_settings": {"ignore_eos": True},
        }),
        "llama.cpp, penalty": ("?", cpp | {
            "content": penalty, "generation_settings": {"repeat_penalty": 1.3},
        }),
        "llama.cpp, stop word": ("=", cpp | {
            "content": first, "stop_type": "word", "stopping_word": ".", "tokens_predicted": 9,
        }),
        "llama.cpp, streamed": ("=", {"request": {"prompt": TEXT}, "response": [
            {"content": text[:9], "stop": False}, {"content": text[9:], "stop": False},
            {"content": "", "stop": True, "stop_type": "limit", "tokens_predicted": N},
        ]}),
        "TGI": ("=", beside(tgi, generated_text=text, details={
            "finish_reason": "length", "generated_tokens": N, "tokens": steps,
        })),
        "TGI, ended": ("=", beside({"inputs": TEXT}, generated_text=whole, details=ended)),
        "TGI, in a list": ("=", {"request": tgi, "response": [{"generated_text": text}]}),
        "TGI, penalty": ("?", beside(
            {"inputs": TEXT, "parameters": {"repetition_penalty": 1.3}}, generated_text=penalty,
        )),
        "TGI, streamed": ("=", {"request": tgi, "response": [
            *({"token": one, "generated_text": None, "details": None} for one in steps[:-1]),
            {"token": steps[-1], "generated_text": text, "details": {"finish_reason": "length"}},
        ]}),
        "pipeline": ("=", {"prompt": TEXT, "generated_text": TEXT + text}),
        "pipeline, chat": ("=", {"messages": USER, "generated_text": [
            *USER, {"role": "assistant", "content": text},
        ]}),
        "Ollama": ("=", {"request": {"prompt": TEXT}, "response": text, **done}),
        "Ollama, thinking": ("?", beside(
            {"messages": USER}, message={"content": "", "thinking": text}, **done,
        )),
        "Ollama, streamed": ("=", {"request": {"messages": USER}, "response": [
            *pieces, {"message": {"content": ""}, **done},
        ]}),
        "lm-eval": ("=?", {"doc_id": 0, "arguments": [[TEXT, {"until": ["\n\n"]}]], "resps": [
            [text, ""],
        ]}),
        "own": ("=", {"prompt": TEXT, "output": text, "max_tokens": N}),
        "own, cut": ("!", {"prompt": TEXT, "output_ids": own[:9], "max_tokens": N}),
        "own, nothing": ("?", {"prompt": TEXT, "output": ""}),
        "own, no ids": ("?", {"prompt": TEXT, "output_ids": []}),
        "own, null": ("?", {"prompt": TEXT, "output": None, "output_ids": None}),
    }  # fmt: skip
