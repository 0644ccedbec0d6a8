"""The page keys.md of the site: every key with its type, default and meaning, from the schemas."""

from collections.abc import Iterable, Iterator

import yaml

from skipbench.config.catalog import file_of
from skipbench.config.documented import Entry, documented
from skipbench.config.paths import CONF

KINDS = ("Any", "Model", "Decoding", "Engine", "Search", "Profile")
"""Types of groups."""
GROUPS: dict[str, str] = {
    group: str(choice).lower().replace("none", "null")
    for entry in yaml.safe_load((CONF / "config.yaml").read_text(encoding="utf-8"))["defaults"]
    if isinstance(entry, dict)
    for group, choice in entry.items()
    if "/" not in group and " " not in group
}
HEAD = """\
# Keys

Every key of a cell, with its type, its default and its meaning, from the schemas.
`python -m skipbench --help KEY` prints one entry.

- A key is set on the command line as `key=value`, as in `limit=50 method.interval=32`.
- Two defaults joined by "or" belong to different choices of a group: the papers' models, for
  example, have another `model.dtype` than a checkpoint of your own.
- `${variant:...}` takes the value that `dataset.prompt` chooses from the dataset's file.
- A method's file in `conf/method` may set other values than the defaults of its class. They are
  listed above the table of the method; `${setting:...}` and `model.settings` are values that the
  model's file gives for this method, where it gives any. `${tuned:...}` is the value unless
  `preset=paper` is given; then the default of the class holds, which is the paper's.
"""


def page() -> str:
    """Its text, in Markdown."""
    rows: dict[str, dict[str, list[Entry]]] = {}
    for entry in documented():
        if not entry.key.endswith("_target_"):
            rows.setdefault(entry.owner, {}).setdefault(entry.key, []).append(entry)
    return "\n".join(
        [HEAD, *(line for owner, keys in rows.items() for line in _section(owner, keys))]
    )


def _default(entry: Entry) -> str:
    """As code; for a group its choice in conf/config.yaml."""
    if entry.key in GROUPS:
        return f"`{GROUPS[entry.key]}`"
    return "" if entry.default is None else f"`{entry.default}`" if entry.default else "empty"


def _section(owner: str, keys: dict[str, list[Entry]]) -> Iterator[str]:
    yield f"## {owner or 'The cell'}\n"
    group, _, choice = owner.partition("=")
    if choice:
        yield from _settings(group, choice)
    yield "| key | type | default | meaning |"
    yield "|---|---|---|---|"
    for key, entries in keys.items():
        kinds = ("group" if e.kind in KINDS else e.kind.rpartition(".")[2] for e in entries)
        cells = [
            f"`{key}`",
            _joined(kinds, " or "),
            _joined(map(_default, entries), " or ") or "must be given",
            _joined((e.text for e in entries), " "),
        ]
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""


def _joined(texts: Iterable[str], between: str) -> str:
    return between.join(dict.fromkeys(filter(None, texts)))


def _settings(group: str, choice: str) -> Iterator[str]:
    """What the file of a method or a stop rule sets, beside its `_target_`."""
    given = yaml.safe_load(file_of(group, choice).read_text(encoding="utf-8"))
    stop = next((d["/stop@stop"] for d in given.pop("defaults", []) if isinstance(d, dict)), None)
    texts = [] if stop is None else [f"`stop@method.stop={stop}`"]
    if stop and "/" in stop:
        constants = yaml.safe_load(file_of("stop", stop).read_text(encoding="utf-8"))
        texts += [f"`stop.{k}: {v}`" for k, v in constants.items() if k != "defaults"]
    texts += [f"`{k}: {v}`" for k, v in given.items() if k not in ("_target_", "name")]
    yield f"`{given['_target_']}`{'; its file sets ' if texts else ''}{', '.join(texts)}.\n"
