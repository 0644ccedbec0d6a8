"""`servers.json` of a bench: what each arm is, as its server says of itself."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from skipbench.contrib.oracle.parts import mapping
from skipbench.contrib.servers.client import Fault, fetch
from skipbench.errors import SkipbenchError
from skipbench.runs.files import write_json
from skipbench.runs.reading import read_json

FILE = "servers.json"
MODELS = "/v1/models"
PAGES = (MODELS, "/version", "/props", "/get_server_info")
"""What servers say of themselves: all; vLLM, SGLang, TensorRT-LLM; llama.cpp; SGLang."""
LEFT_OUT = re.compile(
    "^(created|permission|status)$|(api|admin|ssl|auth).*key|secret|password|credential"
    "|authorization|(access|auth|bearer|hf)_?token",
    re.IGNORECASE,
)  # of these pages: what varies, and what nobody else may know
MOST = 64 << 10  # characters of a page that are kept
OWNERS = {"llamacpp": "llama.cpp", "vllm": "vLLM", "sglang": "SGLang"}
"""Engines by the owner that they name for their models; others stand as they are."""


class Server(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An arm.

    Attributes:
        extra: further fields of the requests to it.
        identity: what has to stay while it is measured: its models and version.
        pages: what it says of itself, by page.
    """

    url: str
    model: str
    engine: str
    extra: dict[str, Any]
    identity: dict[str, Any]
    pages: dict[str, Any] = {}


class About(msgspec.Struct, kw_only=True):
    """The file: the arms by letter and what they are called, the machine that they run on, the
    number of prompts (0: by an earlier version), and the command and the version of the client that
    asked.
    """

    arms: dict[str, Server] = {}
    names: list[str] = []
    machine: str = ""
    prompts: int = 0
    command: list[str] = []
    skipbench: str = ""

    def called(self, arm: str) -> str:
        """An arm's name; empty where the arms have none."""
        return self.names[[*self.arms].index(arm)] if self.names else ""

    def described(self, arm: str) -> str:
        """What an arm is, in a line."""
        own = self.arms[arm]
        more = {key: value for key, value in own.extra.items() if key != "model"}
        extra = json.dumps(more) if more else ""
        known = (self.called(arm), own.url, own.model, own.engine, extra)
        return ", ".join(filter(None, known))


def introduced(folder: Path, given: Sequence[tuple[str, dict[str, Any]]], asked: About) -> None:
    """Fills in the arms, and writes the file. A server that is gone is what it was before. Raises
    SkipbenchError where one serves no model, or is not what it was.

    Args:
        asked: names, machine and command, as far as given; others are those of before.
    """
    before = read_json(path := folder / FILE, About) or About()
    for number, (url, extra) in enumerate(given):
        letter = chr(ord("A") + number)
        was = before.arms.get(letter)
        now = asked.arms[letter] = _server(url, extra, was)
        if was and was.identity != now.identity:
            texts = " and is ".join(json.dumps(one.identity) for one in (was, now))
            raise SkipbenchError(f"{path}: {url} was {texts}; fresh=true sets the records aside")
    asked.names, asked.machine = asked.names or before.names, asked.machine or before.machine
    write_json(path, msgspec.to_builtins(asked))


def _server(url: str, extra: dict[str, Any], was: Server | None) -> Server:
    try:
        pages, model = says(url, extra.get("model"))
    except SkipbenchError:
        if was is None:
            raise
        return was
    version = pages.get("/version", mapping(pages.get("/props")).get("build_info"))
    return Server(
        url=url,
        model=model["id"],
        engine=engine_of(pages, model),
        extra=extra,
        identity={"models": [model], "version": version},
        pages=pages,
    )


def engine_of(pages: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """The engine and its version, as far as a server tells them."""
    owner = str(model.get("owned_by") or "server")
    props, own = mapping(pages.get("/props")), mapping(pages.get("/get_server_info"))
    told = mapping(pages.get("/version")).get("version") or own.get("version")
    told = told or props.get("build_info")
    return " ".join([OWNERS.get(owner, owner), *([str(told)] if told else [])])


def says(url: str, name: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a server says of itself, by page, without keys, and of the model of the requests: the
    one of that name, else its first. Raises SkipbenchError for no server and for no model.
    """
    pages, faults, known = dict[str, Any](), dict[str, str](), list[dict[str, Any]]()
    for page in PAGES:
        try:
            text = fetch(url, page)
            kept = len(text) < MOST
            pages[page] = json.loads(text, object_pairs_hook=_public) if kept else len(text)
        except (Fault, ValueError, RecursionError) as error:
            faults[page] = str(error)
            if isinstance(error, Fault) and error.absent:
                raise SkipbenchError(f"{url}: {error}; is it a server?") from error
    try:
        known = [{**one, "id": one["id"] + ""} for one in pages[MODELS]["data"]]
    except (LookupError, TypeError):
        faults.setdefault(MODELS, "no list of models")
    known = [one for one in known if name in (None, one["id"])] or ([{"id": name}] if name else [])
    if not known:
        how = """'{"model": NAME}' behind the address names one"""
        why = faults.get(MODELS, "an empty list")
        raise SkipbenchError(f"{url} names no model at {MODELS} ({why}); {how}")
    return pages, known[0]


def _public(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in pairs if not LEFT_OUT.search(name)}
