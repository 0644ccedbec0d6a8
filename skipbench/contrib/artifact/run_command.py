"""The command that makes a run, from the settings that it recorded."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from skipbench.config.compose import compose
from skipbench.config.derived import quoted
from skipbench.errors import SkipbenchError
from skipbench.runs.provenance import config_hash, portable


def overrides_of(record: Mapping[str, Any]) -> list[str] | None:
    """The overrides that compose a cell with this record, as `config.yaml` has it; None where the
    choices at hand give none, as for a method of one's own, or a model in a folder.
    """
    words = [f"{kind}={record[kind]['name']}" for kind in ("model", "method", "dataset")]
    try:
        plain = dict(_flat(portable(compose(words).record())))
        own = {key: value for key, value in _flat(record) if plain.get(key, ...) != value}
        words += [f"{key}={_text(value)}" for key, value in own.items()]
        made = compose(words).record()
    except SkipbenchError:
        return None
    return words if config_hash(made) == config_hash(record) else None


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, part in value.items():
            yield from _flat(part, f"{key}.{name}" if key else name)
    else:
        yield key, value


def _text(value: Any) -> str:
    return quoted(value) if isinstance(value, str) else json.dumps(value)
