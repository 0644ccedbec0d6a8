"""Outputs of any engine: files and records of any format as `Output`."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from skipbench.contrib.oracle.formats import FORMATS, answers, nth
from skipbench.contrib.oracle.parts import events, is_piece, joined, mapping
from skipbench.errors import SkipbenchError
from skipbench.runs.reading import MALFORMED, read_bytes, readable
from skipbench.runs.run import read_run

Record = tuple[str, dict[str, Any]]
"""With its place."""
SEVERAL = ("prompt", "text", "inputs", "input_ids")  # of several requests in one


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """One output of an engine and what the record says of its request.

    `unread`: why it cannot be checked. Reasons for which tokens that are not the model's do not
    show a fault: `doubts`, and for a sampled one `drawn`, too.
    """

    id: str = ""
    prompt: str | None = None
    messages: list[dict[str, Any]] = []
    template: dict[str, Any] = {}  # what the chat template is given beside the messages
    bos: bool = True  # whether a prompt of text gets special tokens
    prompt_ids: list[int] = []
    prompt_hash: str = ""  # of the prompt's ids, in a run of this package, which does not keep them
    prompt_tokens: int = 0  # their number
    turns: list[tuple[str, str]] = []  # prompts and answers of the turns before it, in such a run
    day: str = ""  # that a chat template prints, as in 2026-11-27
    created: float | None = None  # seconds since 1970, where the day is not told
    text: str | None = None
    special: bool = False  # whether the text shows special tokens
    ids: list[int] | None = None
    logprobs: list[float] = []  # the engine's log-probability of every token of the output
    count: int | None = None  # of its tokens, as the record says
    finish: Literal["stop", "length", "cut", ""] = ""  # by itself, at its longest, or from outside
    stop: list[str] = []
    limit: int | None = None  # tokens that the request allowed
    eos: list[int] | None = None  # in place of the model's
    ends: list[int] = []  # ids that end it beside an EOS
    least: int = 0  # tokens before which no EOS ends it
    pads: list[int] = []  # ids that may fill it up behind its end
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    unread: str = ""
    doubts: list[str] = []
    drawn: list[str] = []

    def __post_init__(self) -> None:
        if self.unread:
            return
        if self.ids is None and self.text is None:
            raise ValueError("no output; wanted its text or its token ids")
        if not (self.prompt_ids or self.messages or self.prompt is not None):
            raise ValueError("no prompt; add `prompt`, `messages` or `prompt_token_ids`")
        texts = (self.prompt, self.text, *(m["content"] for m in self.messages))
        "".join(text or "" for text in texts).encode()  # a lone surrogate is no text


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


def from_records(records: Iterable[Record]) -> tuple[list[Output], str]:
    """Outputs of records, each with its place, and their format; raises as `read_outputs`."""
    outputs, names = list[Output](), dict[str, int]()
    try:
        plain = ((place, json.loads(json.dumps(r, default=str))) for place, r in records)
        found = [one for pair in plain for one in _unfolded(*pair)]
    except MALFORMED as error:
        raise SkipbenchError(f"a request or a response of another form ({error})") from error
    for place, record in found:
        fit = [
            (name, split)
            for name, needs, split in FORMATS
            if any({*words.split(" + ")} <= record.keys() for words in needs.split(" or "))
        ]
        if not fit and ("error" in record or "response" in record):
            failed = str(record.get("error", record.get("response")))[:80]
            outputs.append(Output(id=str(len(outputs) + 1), unread=f"no answer but {failed}"))
            continue
        if not fit:
            known = "; ".join(f"{name} ({needs})" for name, needs, _ in FORMATS)
            fields = ", ".join(record)[:200]
            raise SkipbenchError(f"{place}: fields {fields}; wanted those of one of: {known}")
        form, split = fit[0]
        names.setdefault(form, len(outputs))
        try:
            for one in [*answers(record, split)] or [{"unread": "a record without answers"}]:
                values = {k: v for k, v in one.items() if v is not None}
                values["id"] = str(values.get("id", len(outputs) + 1))
                outputs.append(msgspec.convert(values, Output, strict=False))
        except MALFORMED as error:
            raise SkipbenchError(f"{place}, read as {form}: {error}") from error
    if len(names) > 1 or not outputs:
        said = " and ".join(names) or "no record"
        raise SkipbenchError(f"the outputs are {said}; wanted records of one format")
    return outputs, next(iter(names), "no answers")


def _records(path: Path, data: bytes) -> Iterator[Record]:
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
        yield place, value


def _unfolded(place: str, record: dict[str, Any]) -> Iterator[Record]:
    """A record whose request stands beside one response, several, or the pieces of one."""
    given, request = record.get("response"), mapping(record.get("request"))
    if isinstance(given, str) and "data:" in given[:200]:
        given = events(given)
    many = given if isinstance(given, list) else [given]
    parts = [one for one in many if isinstance(one, dict)]
    ids = {one.get("id") or mapping(one.get("meta_info")).get("id") for one in parts}
    if any(map(is_piece, parts)) or (len(ids) == 1 < len(parts) and None not in ids):
        parts = [joined(parts)]
    for at, one in enumerate(parts):
        answer = mapping(one.get("body")) or one  # of a batch's file
        own = {k: nth(request[k], at, len(parts)) for k in SEVERAL if k in request}
        rest = {k: v for k, v in record.items() if k != "response"}
        yield place, {**rest, **answer, "request": request | own}
    if not parts:
        yield place, record


def _run(folder: Path) -> list[Output]:
    """The method's outputs of a run, with the prompts' texts and the hashes of their ids."""
    run = read_run(folder)
    if not run.samples:
        raise SkipbenchError(f"{folder} has no samples; wanted a run's folder, results/runs/RUN")
    if not run.completions:
        raise SkipbenchError(
            f"{folder} has no completions.jsonl, which holds the prompts and is no part of a "
            "bundle; give the folder of the run itself, or run its command again"
        )
    turns, outputs = defaultdict[str, list[tuple[str, str]]](list), list[Output]()
    how = {k: run.setting(f"decoding.{k}") for k in ("temperature", "top_p", "top_k")}
    for sample in sorted(run.samples, key=lambda s: s.index):
        before = turns[sample.question or sample.id]
        if (texts := run.completions.get(sample.index)) is None:
            outputs.append(Output(id=sample.id, unread="its prompt is not in completions.jsonl"))
            continue
        one = Output(
            id=sample.id,
            prompt=texts.prompt,
            prompt_hash=sample.prompt_hash,
            prompt_tokens=sample.prompt_tokens,
            turns=list(before),
            day=run.provenance.started[:10],
            ids=sample.method.tokens,
            finish="stop" if sample.method.finish == "eos" else "length",
            limit=run.setting("dataset.max_new_tokens"),
            unread="it failed in its run" if sample.lossless == "failed" else "",
            **how,
        )
        outputs.append(one)
        before.append((texts.prompt, texts.vanilla))  # vanilla's answer goes before the next turn
    return outputs
