"""What each arm of a bench is, as its server says of itself: the `config.yaml` of the arm."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import yaml

from skipbench.contrib.servers.client import Fault, fetch
from skipbench.errors import SkipbenchError
from skipbench.runs.files import write_atomic
from skipbench.runs.reading import read_yaml
from skipbench.runs.store import CONFIG, OF_ARM

FIRST = "A"
"""The server that others are compared with."""
MODELS = "/v1/models"
PAGES = {"/version": "version", "/props": "build_info", "/get_server_info": "version"}
"""What servers say of themselves, and the field that has their version: vLLM and TensorRT-LLM;
llama.cpp; SGLang."""
LEFT_OUT = re.compile(
    r"^(created|permission|status|internal_states|random_seed|max_total_num_tokens|id_task"
    r"|next_token|is_\w+ing)$"
    "|(api|admin|ssl|auth).*key|secret|password|credential|authorization"
    "|(access|auth|bearer|hf)_?token",
    re.IGNORECASE,
)  # of these pages: what varies with time or from start to start, and what nobody else may know
OWNERS = {"llamacpp": "llama.cpp", "vllm": "vLLM", "sglang": "SGLang"}
"""Engines by the owner that they name for their models; others stand as they are."""
SHOWN = 3  # fields that a message names
Pages = Mapping[str, Mapping[str, Any]]
Addressed = tuple[str, dict[str, Any], str]
"""An address, further fields of the requests to it, and its key."""


class Server(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An arm, in the place of a method's settings.

    Attributes:
        name: what it is called: its letter, where no name was given.
        extra: further fields of the requests to it.
        pages: what it says of its model and of itself, which has to stay while it is measured.
    """

    name: str
    url: str
    model: str
    engine: str
    extra: dict[str, Any] = {}
    pages: dict[str, dict[str, Any]] = {}

    def __str__(self) -> str:
        more = {key: value for key, value in self.extra.items() if key != "model"}
        extra = json.dumps(more) if more else ""
        name = self.name if len(self.name) > 1 else ""
        return ", ".join(filter(None, (name, self.url, self.model, self.engine, extra)))


def introduced(row: Path, given: Sequence[Addressed], names: Sequence[str]) -> dict[str, Server]:
    """The servers by letter, whose settings it writes. A server that is gone is what it was before,
    and without `names` each is called as before. Raises SkipbenchError where one serves no model,
    or is not what it was.
    """
    found = dict[str, Server]()
    for number, (url, extra, key) in enumerate(given):
        path = row / (letter := chr(ord(FIRST) + number)) / CONFIG
        before = read_yaml(path)
        was = msgspec.convert(before[OF_ARM], Server) if before else None
        found[letter] = now = _server(url, extra, key, was)
        if was and (changed := changes(was.pages, now.pages)):
            raise SkipbenchError(f"{path}: {url}: {changed}; fresh=true sets the records aside")
        now.name = names[number] if names else was.name if was else letter
    first = found[FIRST]
    for letter, server in found.items():
        model = {"name": Path(first.model).name, "path": server.model}
        own = {OF_ARM: msgspec.to_builtins(server), "model": model, "over": first.name}
        write_atomic(row / letter / CONFIG, yaml.safe_dump(own, sort_keys=False))
    return found


def changes(was: Pages, now: Pages) -> str:
    """The fields that differ on pages that are there both times."""
    names = [(page, name) for page in was if page in now for name in {**was[page], **now[page]}]
    pairs = [(f"{p} {n}", was[p].get(n), now[p].get(n)) for p, n in names]
    found = [f"{what} was {str(a)[:80]} and is {str(b)[:80]}" for what, a, b in pairs if a != b]
    return "; ".join(found[:SHOWN])


def _server(url: str, extra: dict[str, Any], key: str, was: Server | None) -> Server:
    """A server as it is now; what it was, where nobody listens any more."""
    try:
        model = model_of(url, extra.get("model"), key)
    except Fault as fault:
        if was is None:
            raise SkipbenchError(f"{url}: {fault}; is it a server?") from fault
        return was
    pages = {MODELS: model, **pages_of(url, key)}
    versions = (said.get(PAGES.get(page, "")) for page, said in pages.items())
    version = next((str(one) for one in versions if one), "")
    owner = str(model.get("owned_by") or "server")
    engine = " ".join(filter(None, (OWNERS.get(owner, owner), version)))
    return Server(name="", url=url, model=model["id"], engine=engine, extra=extra, pages=pages)


def model_of(url: str, name: str | None, key: str) -> dict[str, Any]:
    """What a server says of the model of the requests: the one of that name, else its first. Raises
    SkipbenchError where it names none, and Fault where nobody listens.
    """
    try:
        listed = json.loads(fetch(url, MODELS, key), object_pairs_hook=_kept)["data"]
        known = [{**one, "id": one["id"] + ""} for one in listed]
        why = "an empty list"
    except Fault as fault:
        if fault.absent:
            raise
        known, why = [], str(fault)
    except (ValueError, LookupError, TypeError, RecursionError):
        known, why = [], "no list of models"
    known = [one for one in known if name in (None, one["id"])] or ([{"id": name}] if name else [])
    if not known:
        how = """'{"model": NAME}' behind the address names one"""
        if why.startswith(("status 401", "status 403")):
            how = f"{url}#key=VARIABLE sends the key that an environment variable holds"
        raise SkipbenchError(f"{url} names no model at {MODELS} ({why}); {how}")
    return known[0]


def pages_of(url: str, key: str) -> dict[str, dict[str, Any]]:
    """What a server says of itself, by page, as far as it has them."""
    found = dict[str, dict[str, Any]]()
    for page in PAGES:
        with suppress(Fault, ValueError, RecursionError):
            said = json.loads(fetch(url, page, key), object_pairs_hook=_kept)
            found |= {page: said} if isinstance(said, dict) else {}
    return found


def _kept(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in pairs if not LEFT_OUT.search(name)}
