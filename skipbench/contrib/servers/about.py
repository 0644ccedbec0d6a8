"""What each arm of a bench is, as its server says of itself: the `config.yaml` of the arm."""

import json
import re
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path, PureWindowsPath
from typing import Any

import msgspec
import yaml

from skipbench.console import say
from skipbench.contrib.servers.client import Fault, fetch
from skipbench.errors import SkipbenchError
from skipbench.runs.files import write_atomic
from skipbench.runs.provenance import leaves
from skipbench.runs.reading import read_yaml
from skipbench.runs.store import CONFIG, OF_ARM

FIRST = "A"
"""The server that others are compared with."""
MODELS = "/v1/models"
PAGES = {"/version": "version", "/props": "build_info", "/get_server_info": "version"}
"""What servers say of themselves, and the field that has their version: vLLM and TensorRT-LLM;
llama.cpp; SGLang."""
VERSIONS = {MODELS: "version", **PAGES}  # `serve` has it beside the model
SETTINGS = re.compile("spec|draft|settings")  # parts of a field's path
LEFT_OUT = re.compile(
    r"^(created|permission|status|internal_states|max_total_num_tokens|id_task|next_token"
    r"|is_\w+ing|(\w+_)?(at|date|load|marker|pid|port|seed|time|timestamp|uptime\w*|usage|uuid)"
    r"|(available|free|last|used)_\w+|\w+_(available|free|used))$"
    "|(api|admin|ssl|auth).*key|secret|password|credential|authorization"
    "|(access|auth|bearer|hf)_?token",
    re.IGNORECASE,
)  # of these pages: what varies with time or from start to start, and what nobody else may know
OWNERS = {"llamacpp": "llama.cpp", "vllm": "vLLM", "sglang": "SGLang"}
"""Engines by the owner that they name for their models; others stand as they are."""
SHORT = re.compile(r"^.*(settings|params)\.")
SHOWN = 3  # fields that a message names
PAUSE_S = 0.5  # before a server that does not answer is asked again
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


def introduced(
    row: Path, given: Sequence[Addressed], names: Sequence[str], timeout_s: float
) -> dict[str, Server]:
    """The servers by letter, whose settings it writes. A server that is gone or loads is what it
    was before, one that is not known is waited for, and without `names` each is called as before.
    Raises SkipbenchError where one serves no model, or is not what it was.
    """
    found = dict[str, Server]()
    for number, (url, extra, key) in enumerate(given):
        path = row / (letter := chr(ord(FIRST) + number)) / CONFIG
        before = read_yaml(path)
        was = msgspec.convert(before[OF_ARM], Server) if before else None
        found[letter] = now = _server(url, extra, key, was, timeout_s)
        if was:
            refuse_changes(was, now.pages)
            now.pages = was.pages | now.pages
        now.name = names[number] if names else was.name if was else letter
    first = found[FIRST]
    for letter, server in found.items():
        model = {"name": PureWindowsPath(first.model).name, "path": server.model}
        own = {OF_ARM: msgspec.to_builtins(server), "model": model, "over": first.name}
        write_atomic(row / letter / CONFIG, yaml.safe_dump(own, sort_keys=False))
    return found


def settings_of(servers: Mapping[str, Server]) -> dict[str, str]:
    """By arm, settings that its server tells and that not all servers have alike."""
    told = {arm: dict(chain(*map(leaves, of.pages.values()))) for arm, of in servers.items()}
    every = dict.fromkeys(key for of in told.values() for key in of if SETTINGS.search(key))
    unlike = [key for key in every if len({str(of.get(key)) for of in told.values()}) > 1]
    found = dict[str, str]()
    for arm, of in told.items():
        words = [f"{SHORT.sub('', key)}={of[key]}" for key in unlike if of.get(key)]
        found[arm] = ", ".join(words[: 2 * SHOWN])
    return found


def refuse_changes(server: Server, now: Pages) -> None:
    """Raises SkipbenchError where fields differ on pages that are known both times."""
    was = json.loads(json.dumps(server.pages), object_pairs_hook=_kept)  # records may be older
    found = list[str]()
    for page in was.keys() & now.keys():
        a, b = dict(leaves(was[page])), dict(leaves(now[page]))
        for key in {**a, **b}:
            if (x := a.get(key)) != (y := b.get(key)):
                found.append(f"{page} {key} was {str(x)[:80]} and is {str(y)[:80]}")
    if found:
        changed = "; ".join(found[:SHOWN])
        raise SkipbenchError(f"{server.url}: {changed}; fresh=true sets the records aside")


def _server(
    url: str, extra: dict[str, Any], key: str, was: Server | None, timeout_s: float
) -> Server:
    """A server as it is now; what it was, where nobody listens any more, or it loads."""
    until, told, pages = time.monotonic() + timeout_s, "", dict[str, dict[str, Any]]()
    while not pages:
        try:
            pages = pages_of(url, extra.get("model"), key)
        except Fault as fault:
            if was is not None:
                return was
            if time.monotonic() > until:
                raise SkipbenchError(f"{url}: {fault}; is it a server?") from fault
            if not told:
                say(told := f"{url}: {fault}; waits for it, up to timeout={timeout_s:g} s")
            time.sleep(PAUSE_S)
    model = pages[MODELS]
    owner = str(model.get("owned_by") or "server")
    versions = (of.get(VERSIONS[page]) for page, of in pages.items())
    version = next((str(one) for one in versions if one), "")
    words = OWNERS.get(owner, owner), version, str(model.get("method") or "")
    engine = " ".join(filter(None, words))
    return Server(name="", url=url, model=model["id"], engine=engine, extra=extra, pages=pages)


def pages_of(url: str, name: str | None, key: str) -> dict[str, dict[str, Any]]:
    """What a server says of its model and of itself, by page; a page that it does not have is
    empty, and one that does not answer is left out. Raises as `model_of`.
    """
    found = {MODELS: model_of(url, name, key)}
    for page in PAGES:
        try:
            about = json.loads(fetch(url, page, key), object_pairs_hook=_kept)
            found[page] = about if isinstance(about, dict) else {}
        except (ValueError, RecursionError):
            found[page] = {}
        except Fault as fault:
            if fault.loads:
                raise
            found |= {} if fault.passing else {page: {}}
    return found


def model_of(url: str, name: str | None, key: str) -> dict[str, Any]:
    """What a server says of the model of the requests: the one of that name, else its first. Raises
    SkipbenchError where it names none, and Fault where nobody listens or it loads.
    """
    try:
        listed = json.loads(fetch(url, MODELS, key), object_pairs_hook=_kept)["data"]
        known = [{**one, "id": one["id"] + ""} for one in listed]
        why = "an empty list"
    except Fault as fault:
        if fault.loads or (fault.passing and not name):
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


def _kept(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in pairs if not LEFT_OUT.search(name)}
