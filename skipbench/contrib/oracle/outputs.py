"""Outputs of any engine: files and records of every form as `Output`."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import msgspec

from skipbench.contrib.oracle.readers import READERS, reader_of
from skipbench.errors import SkipbenchError
from skipbench.runs.reading import MALFORMED, read_bytes, readable
from skipbench.runs.record import VANILLA
from skipbench.runs.run import Run, read_run
from skipbench.runs.store import CONFIG, TURNS

Record = tuple[str, dict[str, Any]]
"""With its place."""


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """One output of an engine and what the record says of its request.

    `unread`: why it cannot be checked. `doubts`: reasons for which tokens that are not the model's
    show no fault, such as a setting that no reader knows.
    """

    id: str = ""
    prompt: str | None = None
    messages: list[dict[str, Any]] = []
    template: dict[str, Any] = {}  # what the chat template is given beside the messages
    prompt_ids: list[int] = []
    prompt_hash: str = ""  # of the prompt's ids, in a run of this package, which does not keep them
    prompt_tokens: int = 0  # their number
    turns: list[tuple[str, str]] = []  # prompts and answers of the turns before it, in such a run
    day: str = ""  # that a chat template prints, as in 2026-11-27
    text: str | None = None
    ids: list[int] | None = None
    count: int | None = None  # of its tokens, as the record says
    finish: Literal["stop", "length", "cut", ""] = ""  # by itself, at its longest, or from outside
    stop: list[str] = []
    limit: int | None = None  # tokens that the request allowed
    ends: list[int] = []  # ids that end it beside an EOS
    pads: list[int] = []  # ids that may fill it up behind its end
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    unread: str = ""
    doubts: list[str] = []

    def __post_init__(self) -> None:
        if self.unread:
            return
        if not (self.prompt_ids or self.messages or self.prompt is not None):
            raise ValueError("no prompt; add `prompt`, `messages` or `prompt_token_ids`")
        texts = (self.prompt, self.text, *(m["content"] for m in self.messages))
        "".join(text or "" for text in texts).encode()  # a lone surrogate is no text


def read_outputs(path: Path) -> tuple[list[Output], str]:
    """The outputs of a JSONL or JSON file, or of a run's folder, and the name of their form.

    Raises SkipbenchError for a file that cannot be read, a record of no known form, and records
    of several forms.
    """
    if (path / TURNS).exists():
        arms = ", ".join(sorted(str(place.parent) for place in path.glob(f"*/{CONFIG}")))
        raise SkipbenchError(f"{path} is a row of several runs; give one of {arms}")
    if path.is_dir():
        run = _with_texts(read_run(path))
        if run.base == VANILLA:
            return _outputs(run), "a run of this package"
        return from_records((str(path), one) for one in _requests(run))
    if (data := read_bytes(path)) is None:
        raise SkipbenchError(f"{path} is no file; wanted a .jsonl or .json file, or a run's folder")
    with readable(path):
        return from_records(_records(path, data))


def from_records(records: Iterable[Record]) -> tuple[list[Output], str]:
    """Outputs of records, each with its place, and their form; raises as `read_outputs`."""
    outputs, names = list[Output](), dict[str, None]()
    for place, given in records:
        record = json.loads(json.dumps(given, default=str))
        if (found := reader_of(record)) is None and {"request", "error"} & record.keys():
            failed = str(record.get("error") or record.get("response"))[:80]
            outputs.append(Output(id=_name(record, len(outputs)), unread=f"no answer but {failed}"))
            continue
        if found is None:
            known = "; ".join(f"{name} ({fields})" for name, fields, _ in READERS)
            fields = ", ".join(record)[:200]
            raise SkipbenchError(f"{place}: fields {fields}; wanted those of one of: {known}")
        form, reader = found
        names[form] = None
        try:
            answers = [*reader(record)] or [{"unread": "a record without answers"}]
            for at, one in enumerate(answers):
                values = {k: v for k, v in one.items() if v is not None}
                if values.keys().isdisjoint(("text", "ids")) and not values.get("unread"):
                    values["unread"] = "neither text nor token ids"
                values["id"] = _name(record, len(outputs)) + f"-{at}" * (len(answers) > 1)
                outputs.append(msgspec.convert(values, Output, strict=False))
        except MALFORMED as error:
            raise SkipbenchError(f"{place}, read as {form}: {error}") from error
    if len(names) > 1 or not outputs:
        said = " and ".join(names) or "no record"
        raise SkipbenchError(f"the outputs are {said}; wanted records of one form")
    return outputs, next(iter(names), "no answers")


def _name(record: dict[str, Any], number: int) -> str:
    """What a record is called: by its id, else by its place from 1."""
    names = ("id", "custom_id", "request_id", "doc_id")
    return str(next((record[name] for name in names if record.get(name) is not None), number + 1))


def _records(path: Path, data: bytes) -> Iterator[Record]:
    """The objects of a file, a line each or one JSON value, with their places."""
    try:
        whole = json.loads(data)
        values = list(whole) if isinstance(whole, list) else [whole]
        parts = (one if isinstance(one, list) else [one] for one in values)  # batches
        pairs = [(f"{path}, record {n}", one) for n, one in enumerate(chain(*parts), 1)]
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


def _with_texts(run: Run) -> Run:
    """The run. Raises SkipbenchError for one without turns or texts."""
    if not run.turns:
        raise SkipbenchError(f"{run.folder} has no turns; wanted a run's folder, results/runs/RUN")
    if not run.texts:
        raise SkipbenchError(
            f"{run.folder} has no texts.jsonl beside it, which holds the prompts and is no part of "
            "a bundle; give the folder of the run itself, or run its command again"
        )
    return run


def _requests(run: Run) -> Iterator[dict[str, Any]]:
    """The requests to a server of a bench, with its answers."""
    extra = run.setting("method.extra") or {}
    how = {"model": run.setting("method.model"), **run.setting("decoding"), **extra}
    for turn in run.turns:
        texts, own = run.texts.get(turn.index), turn.arms[run.arm]
        if texts is None or own.served is None or own.lossless == "failed":
            yield {"id": turn.id, "error": own.error or "its prompt is not in texts.jsonl"}
            continue
        asked: dict[str, Any] = {"prompt": texts.prompt}
        said: dict[str, Any] = {"text": texts.arms[run.arm]}
        if texts.messages:
            apart = {part: "not kept" for part in own.served.apart}
            asked = {"messages": texts.messages}
            said = {"message": {"role": "assistant", "content": said["text"], **apart}}
        choice = {**said, "token_ids": own.tokens or None, "finish_reason": own.served.reason}
        response = {"choices": [choice], "usage": own.served.usage}
        yield {"id": turn.id, "request": asked | how, "response": response}


def _outputs(run: Run) -> list[Output]:
    """The method's outputs of a run, with the prompts' texts and the hashes of their ids."""
    turns, outputs = defaultdict[str, list[tuple[str, str]]](list), list[Output]()
    how = {k: run.setting(f"decoding.{k}") for k in ("temperature", "top_p", "top_k")}
    for turn in run.turns:
        before, own = turns[turn.unit], turn.arms[run.arm]
        if (texts := run.texts.get(turn.index)) is None:
            outputs.append(Output(id=turn.id, unread="its prompt is not in texts.jsonl"))
            continue
        one = Output(
            id=turn.id,
            prompt=texts.prompt,
            prompt_hash=turn.prompt_hash,
            prompt_tokens=turn.prompt_tokens,
            turns=list(before),
            day=run.provenance.started[:10],
            ids=own.tokens,
            finish="stop" if own.finish == "eos" else "length",
            limit=run.setting("dataset.max_new_tokens"),
            unread="it failed in its run" if own.lossless == "failed" else "",
            **how,
        )
        outputs.append(one)
        # vanilla's answer goes before the next turn
        before.append((texts.prompt, texts.arms[VANILLA]))
    return outputs
