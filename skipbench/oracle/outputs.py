"""Outputs of any engine: one reader per format, chosen by the fields of a record."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from skipbench.errors import SkipbenchError
from skipbench.runs.reading import read_bytes, readable
from skipbench.runs.run import read_run

Fields = Mapping[str, Any]
Messages = list[dict[str, str]]


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """One output of an engine and what the record says of its request."""

    id: str = ""
    prompt: str | None = None
    messages: Messages = []
    prompt_ids: list[int] = []
    prompt_hash: str = ""  # of the prompt's ids, in a run of this package, which does not keep them
    prompt_tokens: int = 0  # their number
    turns: list[tuple[str, str]] = []  # prompts and answers of the turns before it, in such a run
    text: str | None = None
    ids: list[int] | None = None
    logprobs: list[float] = []  # the engine's log-probability of every token of the output
    finish: Literal["stop", "length", ""] = ""  # ended by itself, or at its longest
    stop: list[str] = []
    limit: int | None = None  # tokens that the request allowed
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None

    def __post_init__(self) -> None:
        if self.ids is None and self.text is None:
            raise ValueError("no output; wanted its text or its token ids")
        if not (self.prompt_ids or self.messages or self.prompt is not None):
            raise ValueError("no prompt; add `prompt`, `messages` or `prompt_token_ids`")


def read_outputs(path: Path) -> tuple[list[Output], str]:
    """The outputs of a JSONL or JSON file, or of a run's folder, and the name of their format.

    Raises SkipbenchError for a file that cannot be read, a record of no known format, and records
    of several formats.
    """
    if path.is_dir():
        return _run(path), "a run of this package"
    if (data := read_bytes(path)) is None:
        raise SkipbenchError(f"{path} is no file; wanted a .jsonl or .json file, or a run's folder")
    with readable(path):
        return from_records(_records(path, data))


def from_records(records: Iterable[tuple[str, dict[str, Any]]]) -> tuple[list[Output], str]:
    """Outputs of records, each with its place, and their format; raises as `read_outputs`."""
    outputs, names = list[Output](), dict[str, int]()
    for place, record in records:
        fit = [
            (name, read)
            for name, needs, read in READERS
            if any({*words.split(" + ")} <= record.keys() for words in needs.split(" or "))
        ]
        if not fit:
            known = "; ".join(f"{name} ({needs})" for name, needs, _ in READERS)
            fields = ", ".join(record)[:200]
            raise SkipbenchError(f"{place}: fields {fields}; wanted those of one of: {known}")
        form, read = fit[0]
        names.setdefault(form, len(outputs))
        try:
            for found in read(record):
                values = {k: v for k, v in found.items() if v is not None}
                values["id"] = str(values.get("id", len(outputs) + 1))
                outputs.append(msgspec.convert(values, Output, strict=False))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise SkipbenchError(f"{place}, read as {form}: {error}") from error
    if len(names) != 1:
        said = " and ".join(names) or "no record"
        raise SkipbenchError(f"the outputs are {said}; wanted records of one format")
    return outputs, next(iter(names))


def _records(path: Path, data: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file, a line each or one JSON value, with their places."""
    try:
        whole = json.loads(data)
        values = list(whole) if isinstance(whole, list) else [whole]
        pairs = [(f"{path}, record {n}", value) for n, value in enumerate(values, 1)]
    except (ValueError, RecursionError):
        pairs = []
        for number, line in enumerate(data.split(b"\n"), 1):
            try:
                pairs += [(f"{path}, line {number}", json.loads(line))] if line.strip() else []
            except (ValueError, RecursionError) as error:
                raise SkipbenchError(f"{path}, line {number}: no JSON ({error})") from error
    for place, value in pairs:
        if not isinstance(value, dict):
            raise SkipbenchError(f"{place}: {str(value)[:80]!r}; wanted a JSON object")
        request, response = (_mapping(value.get(name)) for name in ("request", "response"))
        yield place, ({**value, **response, "request": request} if response else value)


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _first(fields: Fields, *names: str) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _asked(record: Fields, *more: Fields) -> dict[str, Any]:
    """The prompt and the settings of a request; the record itself may hold them, too."""
    places = (*more, _mapping(record.get("request")), record)
    places += tuple(_mapping(place.get("sampling_params")) for place in places)
    fields: dict[str, Any] = {}
    for place in reversed(places):
        fields |= {k: v for k, v in place.items() if v is not None}
    prompt, stop = fields.get("prompt"), _first(fields, "stop", "until", "stop_strings")
    ids = _first(fields, "prompt_token_ids", "prompt_ids", "input_ids")
    if isinstance(prompt, list):
        prompt, ids = None, prompt
    if not isinstance(stop, str | list):  # llama.cpp's `stop` says that the answer is complete
        stop = None
    named = _first(fields, "max_tokens", "max_new_tokens", "max_gen_toks", "n_predict")
    return {
        "id": _first(record, "id", "request_id", "custom_id", "doc_id"),
        "prompt": prompt,
        "messages": fields.get("messages"),
        "prompt_ids": ids,
        "stop": [stop] if isinstance(stop, str) else stop,
        "limit": named if isinstance(named, int) and named > 0 else None,
        **{k: fields.get(k) for k in ("temperature", "top_p")},
        "top_k": None if fields.get("top_k") is None else max(0, fields["top_k"]),  # -1: off
    }


def _finish(reason: Any) -> str:
    """`stop` or `length`, in the words of any engine."""
    reason = reason.get("type") if isinstance(reason, Mapping) else reason
    if reason in ("length", "limit"):
        return "length"
    return "stop" if reason in ("stop", "eos", "word", "eos_token", "stop_sequence") else ""


def _plain(r: Fields) -> Iterator[dict[str, Any]]:
    asked, ids = _asked(r), _first(r, "output_ids", "output_token_ids", "token_ids", "tokens")
    text = _first(r, "output", "text", "completion", "generated_text")
    end = _finish(_first(r, "finish_reason", "finish"))
    yield asked | {"ids": ids, "text": text, "finish": end, "logprobs": r.get("logprobs")}


def _hugging_face(r: Fields) -> Iterator[dict[str, Any]]:
    """`generate` gives the prompt's ids with the output's."""
    asked = _asked(r)
    prompts, rows = asked["prompt_ids"], r["sequences"]
    many = bool(rows) and isinstance(rows[0], list)
    for at, row in enumerate(rows if many else [rows]):
        prompt = prompts[at % len(prompts)] if many and isinstance(prompts[0], list) else prompts
        if row[: len(prompt)] != prompt:
            raise ValueError("`sequences` does not begin with `input_ids`")
        name = f"{asked['id']}-{at}" if many and asked["id"] is not None else asked["id"]
        yield asked | {"id": name, "prompt_ids": prompt, "ids": row[len(prompt) :]}


def _vllm(r: Fields) -> Iterator[dict[str, Any]]:
    asked = _asked(r)
    for one in r["outputs"]:
        ids = list(one.get("token_ids") or []) or None
        given = zip(ids or [], one.get("logprobs") or [], strict=False)
        each = [step.get(str(token)) for token, step in given]
        values = [p["logprob"] if isinstance(p, Mapping) else p for p in each]
        yield asked | {
            "ids": ids, "text": one.get("text"), "finish": _finish(one.get("finish_reason")),
            "logprobs": values if None not in values else None,
        }  # fmt: skip


def _sglang(r: Fields) -> Iterator[dict[str, Any]]:
    meta = r["meta_info"]
    steps = meta.get("output_token_logprobs") or []
    ids = r.get("output_ids") or [step[1] for step in steps] or None
    asked = _asked({**r, "id": _first(r, "id", "rid") or meta.get("id")})
    if asked["prompt"] is None:  # the native request calls it `text`
        asked["prompt"] = _mapping(r.get("request")).get("text")
    yield asked | {
        "ids": ids, "text": r.get("text"), "finish": _finish(meta.get("finish_reason")),
        "logprobs": [step[0] for step in steps],
    }  # fmt: skip


def _llama_cpp(r: Fields) -> Iterator[dict[str, Any]]:
    steps = r.get("completion_probabilities") or []
    known = bool(steps) and all("logprob" in step for step in steps)
    yield _asked(r, _mapping(r.get("generation_settings"))) | {
        "ids": r.get("tokens") or [s["id"] for s in steps if "id" in s] or None,
        "text": r["content"], "finish": _finish(r.get("stop_type")),
        "logprobs": [step["logprob"] for step in steps] if known else None,
    }  # fmt: skip


def _openai(r: Fields) -> Iterator[dict[str, Any]]:
    asked = _asked(r)
    for choice in r["choices"]:
        text = _first(choice, "text") or _mapping(choice.get("message")).get("content") or ""
        found = _mapping(choice.get("logprobs"))
        steps = found.get("content") or []
        tokens = found.get("tokens") or [step.get("token") for step in steps]
        ids = choice.get("token_ids")
        if not ids and tokens and all(str(t).startswith("token_id:") for t in tokens):
            ids = [int(str(t)[9:]) for t in tokens]
        prompt = _first(choice, "prompt_token_ids") or asked["prompt_ids"]
        yield asked | {
            "ids": ids, "text": text, "finish": _finish(choice.get("finish_reason")),
            "prompt_ids": prompt,
            "logprobs": found.get("token_logprobs") or [step["logprob"] for step in steps],
        }  # fmt: skip


def _lm_eval(r: Fields) -> Iterator[dict[str, Any]]:
    given = r["arguments"]
    first = next(iter(given.values())) if isinstance(given, Mapping) else given[0]
    prompt, how = (first["arg_0"], first["arg_1"]) if isinstance(first, Mapping) else first[:2]
    if not isinstance(how, Mapping):
        raise ValueError("no generation: its second argument is no mapping of settings")
    for text in r["resps"][0] if isinstance(r["resps"][0], list) else r["resps"]:
        yield _asked({"doc_id": r["doc_id"]}, how) | {"prompt": prompt, "text": text}


def _run(folder: Path) -> list[Output]:
    """The method's outputs of a run, with the prompts' texts and the hashes of their ids."""
    run = read_run(folder)
    if not run.samples:
        raise SkipbenchError(f"{folder} has no samples; wanted a run's folder, results/runs/RUN")
    turns, outputs = defaultdict[str, list[tuple[str, str]]](list), list[Output]()
    for sample in sorted(run.samples, key=lambda s: s.index):
        if (texts := run.completions.get(sample.index)) is None:
            continue
        before = turns[sample.question or sample.id]
        one = Output(
            id=sample.id,
            prompt=texts.prompt,
            prompt_hash=sample.prompt_hash,
            prompt_tokens=sample.prompt_tokens,
            turns=list(before),
            ids=sample.method.tokens,
            finish="stop" if sample.method.finish == "eos" else "length",
            limit=run.setting("dataset.max_new_tokens"),
            **{k: run.setting(f"decoding.{k}") for k in ("temperature", "top_p", "top_k")},
        )
        outputs += [one] if sample.lossless != "failed" else []
        before.append((texts.prompt, texts.vanilla))  # vanilla's answer goes before the next turn
    return outputs


# name of a format, the fields that tell it from others, and what reads a record of it
READERS: tuple[tuple[str, str, Callable[[Fields], Iterator[dict[str, Any]]]], ...] = (
    ("vLLM, RequestOutput", "outputs", _vllm),
    ("SGLang, Engine.generate or /generate", "meta_info", _sglang),
    ("lm-evaluation-harness, --log_samples", "arguments + resps", _lm_eval),
    ("OpenAI-style, llama-cpp-python among them", "choices", _openai),
    ("llama.cpp, /completion", "content + stop_type or content + tokens_predicted", _llama_cpp),
    ("Hugging Face, generate", "sequences + input_ids", _hugging_face),
    (
        "skipbench, JSONL",
        "output or output_ids or output_token_ids or token_ids or text or completion "
        "or generated_text",
        _plain,
    ),
)
