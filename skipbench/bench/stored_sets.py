"""Searched skip sets: their files, their traces, and the set that `stored` means."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from skipbench.config.model import Model, check_path
from skipbench.config.run_config import RunConfig
from skipbench.errors import NotHereError
from skipbench.runs.files import read_lines, write_json
from skipbench.runs.fingerprint import FORMS, weights_sha256
from skipbench.runs.provenance import config_hash, portable, run_name
from skipbench.runs.reading import read_json


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """The file of a stored set, as far as it is read."""

    skip: str
    settings: dict[str, Any] = {}  # of the search


def stored_path(results: Path, model: Model, method: str, options: str = "") -> Path:
    """The file of the last finished search for a method, with the `draft_options` of its settings,
    and these weights, in any folder.
    """
    method = "-".join([method, *options.split()])
    weights = weights_sha256(model) or [model.path, model.revision]
    forms = {form: getattr(model, form) for form in FORMS}
    key, folder = config_hash({"weights": weights} | forms), results / "skip_sets"
    changed = (form.replace(":", "-") for form in forms.values() if form != "none")
    new = folder / f"{'_'.join([model.name, *changed, method, key])}.json"
    return min(folder.glob(f"*_{method}_{key}.json"), default=new)


def write_stored(path: Path, skip: str, value: float, settings: Mapping[str, object]) -> None:
    """Writes the set that a search ended with; `value` in seconds per token."""
    write_json(path, {"skip": skip, "seconds_per_token": value, "settings": settings})


def search_folder(config: RunConfig) -> tuple[Path, dict[str, object]]:
    """Folder of a search's trace, which a longer search continues, and the settings it needs."""
    settings = config.search_record()
    names = [config.model.name, config.method.name, config.search.strategy]
    return config.results / "search" / run_name(names, config_hash(settings)), portable(settings)


def other_weights(trace: Path, model: Model) -> str | None:
    """The reason not to use a search: it measured other weights than there are now; else None."""
    try:
        first = next((line for _, line in read_lines(trace)), b"{}") if trace.exists() else b"{}"
        before = msgspec.json.decode(first).get("settings", {}).get("weights_sha256")
    except (ValueError, AttributeError, RecursionError):  # the reader of the trace reports it
        return None
    if before is None or weights_sha256(model) in (None, before):
        return None
    other = f"{trace} is a search of other weights (model.path={model.path}): changed since"
    return f"{other}; fresh=true sets it aside and starts anew, results=FOLDER keeps both"


def with_stored_set(config: RunConfig) -> RunConfig:
    """Fills in the skip set of `method.skip=stored`; raises SkipbenchError as `resolve`."""
    if (method := config.method).skip is None:
        return config
    skip = resolve(method.skip, config.model, method.name, config.results, method.draft_options)
    return replace(config, method=method.but(skip=skip))


def check_avoided(config: RunConfig) -> None:
    """Raises NotHereError where the set of `method.skip=stored` was searched on prompts that the
    run decodes: one for fewer prompts of the same dataset, which has no training split.
    """
    method, dataset = config.method, config.dataset
    path = stored_path(config.results, config.model, method.name, method.draft_options)
    if method.skip != "stored" or (stored := read_json(path, Stored)) is None:
        return
    of = stored.settings.get("dataset", {})
    same = all(of.get(key) == portable(dataset.node.get(key)) for key in ("name", "path", "seed"))
    avoided = of.get("run_limit")
    if same and avoided is not None and (config.limit is None or config.limit > avoided):
        given = "null" if config.limit is None else config.limit
        raise NotHereError(
            f"method.skip=stored, but that set was searched for the first {avoided} prompts of "
            f"{dataset.name}, on others of it, and limit={given} decodes these, too"
        )


def resolve(skip: str, model: Model, method: str, results: Path, options: str = "") -> str:
    """`skip` itself, or for `stored` the set that a search of these weights chose here, first one
    with the same `draft_options`, else the one that ships with the model or was published. Raises
    NotHereError where nothing is stored; SkipbenchError where there is no such checkpoint.
    """
    if skip != "stored":
        return skip
    if options and (own := read_json(stored_path(results, model, method, options), Stored)):
        return own.skip
    searched = stored_path(results, model, method)
    if stored := read_json(searched, Stored):
        return stored.skip
    if model.skip_sets and (shipped := Path(model.skip_sets)).exists():
        sets = msgspec.json.decode(shipped.read_bytes(), type=dict[str, Stored])
        if method in sets:
            return sets[method].skip
    if published := model.sets.get(method):
        return published
    check_path(model.path)
    place = f"{model.name} ({portable(model.path)}) in {portable(str(searched.parent))}"
    raise NotHereError(
        f"method.skip=stored, but no skip set of {method} is stored for {place}; "
        f"`python -m skipbench search method={method}` with these settings makes one, and "
        "'method.skip=\"attn:1,2;mlp:3\"' gives one"
    )
