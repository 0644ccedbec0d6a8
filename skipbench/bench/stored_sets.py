"""Where searched skip sets are kept, and how `stored` becomes a set."""

import glob
import json
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from skipbench.config.derived import KNOWN
from skipbench.config.model import Model, check_path
from skipbench.config.run_config import RunConfig
from skipbench.errors import NotHereError, SkipbenchError
from skipbench.runs.files import read_lines, write_json
from skipbench.runs.fingerprint import FORMS, weights_sha256
from skipbench.runs.provenance import config_hash, portable, run_name
from skipbench.runs.reading import printable, read_json, strict_json
from skipbench.search.retime import read_retimed
from skipbench.skipset import deepened_set


class _Searched(TypedDict, total=False):
    model: dict[str, Any]
    method: dict[str, Any]
    weights_sha256: str | None


class Stored(TypedDict):
    """A stored set's file, as far as it is read."""

    skip: str
    settings: NotRequired[_Searched]


def stored_path(results: Path, model: Model, method: str) -> Path:
    """The file of the last finished search for a method and these weights, wherever they lie."""
    weights = weights_sha256(model) or [
        *(model.path, model.revision),
        *([model.deepened, model.deepened_seed] if model.deepened else []),
    ]
    key = config_hash({"weights": weights} | {form: getattr(model, form) for form in FORMS})
    folder = results / "skip_sets"
    if there := sorted(folder.glob(f"*_{method}_{key}.json")):
        return there[0]
    forms = (
        getattr(model, form).replace(":", "-") for form in FORMS if getattr(model, form) != "none"
    )
    return folder / f"{'_'.join([model.name, *forms, method, key])}.json"


def _is_of(settings: _Searched, model: Model) -> bool:
    """Whether a search was of this checkpoint by its path and revision, where a fingerprint is
    missing.
    """
    if None not in (settings.get("weights_sha256"), weights_sha256(model)):
        return False  # the file's name would have told
    searched = {"sparsity": "none", "deepened": 0.0, "deepened_seed": 0} | settings.get("model", {})
    return all(
        searched.get(key) == portable(getattr(model, key))
        for key in ("path", "revision", "deepened", "deepened_seed", *FORMS)
    )


def write_stored(path: Path, skip: str, value: float, settings: dict[str, Any]) -> None:
    write_json(path, {"skip": skip, "seconds_per_token": value, "settings": settings})


def search_folder(config: RunConfig) -> tuple[Path, dict[str, Any]]:
    """Folder of a search's trace, and the settings that it depends on; a longer search goes on in
    the same trace.
    """
    settings = config.search_record()
    names = [config.model.name, config.method.name, config.search.strategy]
    return config.results / "search" / run_name(names, config_hash(settings)), portable(settings)


def other_weights(trace: Path, model: Model) -> str | None:
    """Why a search cannot be used: it measured other weights than there are now; None where it can,
    or says nothing of them.
    """
    if not trace.exists():
        return None
    try:
        first = next((line for _, line in read_lines(trace)), b"{}")
        before = strict_json(first).get("settings", {}).get("weights_sha256")
    except (ValueError, AttributeError, RecursionError):  # who reads the trace tells
        return None
    now = weights_sha256(model)
    if None in (before, now) or before == now:
        return None
    return (
        f"{trace} is a search of other weights (model.path={model.path}): changed since; "
        "fresh=true sets it aside and starts anew, results=FOLDER keeps both"
    )


def best_of_trace(trace: Path, iterations: int) -> str | None:
    """The best of the first `iterations` sets of a search, by the new timings of the best ones;
    `None` where it has not tried so many yet.

    A search of an earlier version timed none again: there it is the best of the trace.
    """
    if not trace.exists():
        return None
    try:
        lines = [strict_json(line) for _, line in read_lines(trace)]
        trials = [t for t in lines[1 : iterations + 1] if t["value"] is not None]
        if found := read_retimed(trace.parent, iterations):  # also of one that ran out of sets
            return found.best
        if len(lines) <= iterations or not trials:
            return None
        return str(min(trials, key=lambda t: float(t["value"]))["skip"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SkipbenchError(
            f"{trace} cannot be read ({printable(repr(error))}); move it away"
        ) from error


def trials_of_trace(trace: Path, iterations: int) -> list[dict[str, Any]]:
    """The first `iterations` trials of a search, as its trace has them."""
    return [json.loads(line) for _, line in read_lines(trace)][1 : iterations + 1]


def seconds_of_trace(trace: Path, iterations: int) -> float:
    """What the first `iterations` sets of a search took, in seconds."""
    trials = trials_of_trace(trace, iterations)
    return sum(float(t["seconds_suggest"]) + float(t["seconds_objective"]) for t in trials)


def resolve(skip: str, model: Model, method: str, results: Path) -> str:
    """`skip` itself, or for `stored` the set found by a search of these weights here.

    Where there is none, the set that ships with the model or was published.

    Raises:
        NotHereError: nothing is stored, or a set of other weights alone.
        SkipbenchError: there is no such checkpoint.
    """
    if skip != "stored":
        return skip
    searched = stored_path(results, model, method)
    found = read_json(searched, Stored)
    if found is not None:
        return str(found["skip"])
    others = []
    for path in sorted(searched.parent.glob(f"{glob.escape(model.name)}_*.json")):
        other: Any = read_json(path, Stored) or {}
        settings: _Searched = other.get("settings", {})
        if settings.get("method", {}).get("name") != method:
            continue
        if _is_of(settings, model):
            return str(other["skip"])
        origin = printable(str(settings.get("model", {}).get("path")))
        others.append(f"; the one in {path} is of other weights, searched at {origin}")
    shipped = Path(model.skip_sets) if model.skip_sets else None
    if shipped is not None and shipped.exists():
        sets = json.loads(shipped.read_text())
        if method in sets:
            return str(sets[method]["skip"])
    if published := model.sets.get(method):
        return published
    check_path(model.path)
    if model.deepened and model.architecture is None and method in KNOWN:
        from skipbench.models.outline import layer_count  # loads torch, which no other set needs

        own = layer_count(model.path, model.revision)
        return str(deepened_set(own, model.deepened, model.deepened_seed))
    raise NotHereError(
        f"method.skip=stored, but no skip set of {method} is stored for model {model.name!r} "
        f"({model.path}) in {searched.parent}{''.join(others)}; give one, as in "
        "'method.skip=\"attn:1,2;mlp:3\"'"
    )
