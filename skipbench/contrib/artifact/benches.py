"""A copy of a bench of servers for others: without texts, addresses and places."""

import hashlib
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from skipbench.contrib.artifact.places import OF_PLACES, public, public_word
from skipbench.contrib.servers.about import FILE, About
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

PROMPTS = ("prompt", "messages")  # fields of a request that hold texts
TEXTS = ("text", "content", "reasoning_content", "reasoning")  # of an answer


def copy_bench(folder: Path, out: Path) -> None:
    """Writes a bench into the bundle `out`: digests in place of texts, an arm's letter in place of
    its server's address, and of what servers say of themselves models and version alone.
    """
    copy = out / PLACE / folder.name
    about = read_json(folder / FILE, About) or About()
    settings = public(read_json(folder / CONFIG, dict[str, Any]) or {})
    addresses = {own.url: f"http://{arm}" for arm, own in reversed(about.arms.items())}
    settings["arms"] = [[addresses[url], extra] for url, extra in settings["arms"]]
    words = [word for word in about.command if not word.startswith(OF_PLACES)]
    command = [addresses.get(word.rstrip("/"), public_word(word)) for word in words]
    arms = {
        arm: replace(
            own,
            url=addresses[own.url],
            model=public(own.model),
            identity=public(own.identity),
            said={},
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
    """A record whose request has no prompt, and whose texts are their SHA-256: equal as before."""
    request = {name: public(v) for name, v in record.request.items() if name not in PROMPTS}
    if record.response is None:
        return replace(record, request=request)
    choices = [_hashed(choice) for choice in record.response["choices"]]
    return replace(record, request=request, response={**record.response, "choices": choices})


def _hashed(fields: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in fields.items() if name != "token_ids"}
    texts = {name: text for name in TEXTS if isinstance(text := kept.get(name), str)}
    kept |= {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
    if isinstance(message := kept.get("message"), dict):
        kept["message"] = _hashed(message)
    return kept
