"""A copy of a bench of servers for others: without texts, addresses, keys and places."""

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from skipbench.contrib.artifact.places import OF_PLACES, public, public_word
from skipbench.contrib.servers.about import FILE, LEFT_OUT, MODELS, About
from skipbench.contrib.servers.published import PLACE
from skipbench.contrib.servers.records import (
    CONFIG,
    REQUESTS,
    VERDICTS,
    Record,
    read_records,
    read_verdicts,
    write_verdicts,
)
from skipbench.runs.files import write_atomic, write_json
from skipbench.runs.reading import read_json

PRIVATE = ("prompt", "messages", "user")  # fields of a request: texts, and who asks
TEXTS = ("text", "content", "reasoning_content", "reasoning")  # of an answer
TOLD = ("id", "owned_by", "max_model_len", "meta")  # of what a server says of a model


def copy_bench(folder: Path, out: Path) -> None:
    """Writes a bench into the bundle `out`: digests in place of texts, an arm's letter in place of
    its server's address, and of what servers say of themselves that of their models alone.
    """
    copy = out / PLACE / folder.name
    about = read_json(folder / FILE, About) or About()
    settings = public(read_json(folder / CONFIG, dict[str, Any]) or {})
    addresses = {own.url: f"http://{arm}" for arm, own in reversed(about.arms.items())}
    settings["arms"] = [[addresses[url], _fields(extra)] for url, extra in settings["arms"]]
    words = [word for word in about.command if not word.startswith(OF_PLACES)]
    command = [addresses.get(word.partition("#")[0].rstrip("/"), _word(word)) for word in words]
    arms = {
        arm: replace(
            own,
            url=addresses[own.url],
            model=public(own.model),
            extra=_fields(own.extra),
            pages={
                MODELS: public({k: v for k, v in own.pages.get(MODELS, {}).items() if k in TOLD})
            },
        )
        for arm, own in about.arms.items()
    }
    write_json(copy / CONFIG, settings)
    write_json(copy / FILE, msgspec.to_builtins(replace(about, arms=arms, command=command)))
    lines = [msgspec.json.encode(without_texts(r)).decode() for r in read_records(folder)]
    write_atomic(copy / REQUESTS, "".join(f"{line}\n" for line in lines))
    if (folder / VERDICTS).is_file():
        write_verdicts(copy, read_verdicts(folder))


def without_texts(record: Record) -> Record:
    """A record whose request has no prompt, and whose texts are their SHA-256: equal as before. Of
    faults it keeps the kind, since a server may quote the prompt.
    """
    record = replace(
        record,
        request=_fields(record.request),
        faults=[_kind(fault) for fault in record.faults],
        error=_kind(record.error),
    )
    if record.response is None:
        return record
    choices = [_hashed(choice) for choice in record.response["choices"]]
    return replace(record, response={**record.response, "choices": choices})


def _fields(value: Any) -> Any:
    """Fields of a request, and of settings in it, without prompts, keys and persons."""
    if isinstance(value, list):
        return [_fields(one) for one in value]
    if not isinstance(value, dict):
        return public(value)
    names = (k for k in value if k not in PRIVATE and not LEFT_OUT.search(k))
    return {name: _fields(value[name]) for name in names}


def _word(word: str) -> str:
    """A word of the command, which may be a JSON object of such fields."""
    return (
        json.dumps(_fields(json.loads(word)))
        if word.lstrip().startswith("{")
        else public_word(word)
    )


def _kind(fault: str) -> str:
    return fault.partition(": ")[0]


def _hashed(fields: dict[str, Any]) -> dict[str, Any]:
    hashed = {name: value for name, value in fields.items() if name != "token_ids"}
    texts = {name: text for name in TEXTS if isinstance(text := hashed.get(name), str)}
    hashed |= {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
    if isinstance(message := hashed.get("message"), dict):
        hashed["message"] = _hashed(message)
    return hashed
