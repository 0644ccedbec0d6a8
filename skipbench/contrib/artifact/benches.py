"""What a bundle leaves out of a row of servers: addresses, keys, what servers say of themselves but
of their models, and texts that they quote; an arm's letter stands for its address.
"""

import json
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from skipbench.contrib.artifact.places import public, public_word
from skipbench.contrib.servers.about import FIRST, LEFT_OUT, MODELS
from skipbench.runs.record import Arm
from skipbench.runs.store import OF_ARM

PRIVATE = ("prompt", "messages", "user")  # fields of a request: texts, and who asks
TOLD = ("id", "owned_by", "max_model_len", "meta")  # of what a server says of a model


def addresses_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """What stands for the addresses of a row's servers; empty for a row of methods."""
    urls = [url for url, _ in settings.get("servers", [])]
    return {url: f"http://{chr(ord(FIRST) + at)}" for at, url in reversed([*enumerate(urls)])}


def public_settings(settings: Mapping[str, Any], addresses: Mapping[str, str]) -> dict[str, Any]:
    """The settings of a row, or of one of its arms, without places."""
    found: dict[str, Any] = public({**settings})
    if "servers" in found:
        found["servers"] = [[addresses[url], _fields(extra)] for url, extra in found["servers"]]
    if addresses and OF_ARM in found:
        server = found[OF_ARM]
        model = {k: v for k, v in server.get("pages", {}).get(MODELS, {}).items() if k in TOLD}
        known = {"url": addresses[server["url"]], "pages": {MODELS: model}}
        found[OF_ARM] = _fields({**server, **known})
    return found


def command_word(word: str, addresses: Mapping[str, str]) -> str:
    """A word of a command line; of `bench` it may be an address, or a JSON object of fields."""
    if addresses and word.lstrip().startswith("{"):
        return json.dumps(_fields(json.loads(word)))
    return addresses.get(word.partition("#")[0].rstrip("/")) or public_word(word)


def without_texts(arm: Arm) -> Arm:
    """An arm; of a server without ids, and of faults the kind, since it may quote the prompt."""
    if arm.served is None:
        return arm
    faults = [_kind(fault) for fault in arm.served.faults]
    error = arm.error and _kind(arm.error)
    return replace(arm, tokens=[], error=error, served=replace(arm.served, faults=faults))


def _fields(value: Any) -> Any:
    """Fields of a request, and of settings in it, without prompts, keys and persons."""
    if isinstance(value, list):
        return [_fields(one) for one in value]
    if not isinstance(value, dict):
        return public(value)
    names = (k for k in value if k not in PRIVATE and not LEFT_OUT.search(k))
    return {name: _fields(value[name]) for name in names}


def _kind(fault: str) -> str:
    return fault.partition(": ")[0]
