"""What a bundle leaves out of a row of servers: addresses, keys, what servers say of themselves but
of their models, and texts that they quote; an arm's letter stands for its address.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from skipbench.contrib.servers.about import FIRST, LEFT_OUT, MODELS
from skipbench.runs.record import Arm
from skipbench.runs.store import OF_ARM

PRIVATE = ("prompt", "messages", "user")  # fields of a request: texts, and who asks
TOLD = ("id", "owned_by", "max_model_len", "meta")  # of what a server says of a model


class PublicRow:
    """What of a row of servers may be public.

    Args:
        settings: those of the row.
        public: leaves places of this machine out of a value.
    """

    def __init__(self, settings: Mapping[str, Any], public: Callable[[Any], Any]) -> None:
        urls, self._public = [url for url, _ in settings["servers"]], public
        pairs = reversed([*enumerate(urls)])
        self._addresses = {url: f"http://{chr(ord(FIRST) + at)}" for at, url in pairs}

    def settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of the row, or of one of its arms, without addresses."""
        found, addresses = {**settings}, self._addresses
        if pairs := found.get("servers"):
            found["servers"] = [[addresses[url], self._fields(extra)] for url, extra in pairs]
        if OF_ARM in found:
            server = found[OF_ARM]
            model = {k: v for k, v in server.get("pages", {}).get(MODELS, {}).items() if k in TOLD}
            known = {"url": addresses[server["url"]], "pages": {MODELS: model}}
            found[OF_ARM] = self._fields({**server, **known})
        return found

    def word(self, word: str) -> str:
        """A word of the command line; it may be an address, or a JSON object of fields."""
        if word.lstrip().startswith("{"):
            return json.dumps(self._fields(json.loads(word)))
        return self._addresses.get(word.partition("#")[0].rstrip("/"), word)

    def arm(self, arm: Arm) -> Arm:
        """An arm without ids, and of faults the kind, since they may quote the prompt."""
        if arm.served is None:
            return arm
        faults = [fault.partition(": ")[0] for fault in arm.served.faults]
        error = arm.error and arm.error.partition(": ")[0]
        return replace(arm, tokens=[], error=error, served=replace(arm.served, faults=faults))

    def _fields(self, value: Any) -> Any:
        """Fields of a request, and of settings in it, without prompts, keys and persons."""
        if isinstance(value, list):
            return [self._fields(one) for one in value]
        if not isinstance(value, dict):
            return self._public(value)
        names = (k for k in value if k not in PRIVATE and not LEFT_OUT.search(k))
        return {name: self._fields(value[name]) for name in names}
