"""What follows from the settings of a model: sizes, path, name, and the skip set that is known."""

import dataclasses
from pathlib import Path
from typing import Any

from skipbench.config.catalog import shape_of
from skipbench.config.model import Source, Wheel, is_gguf
from skipbench.errors import SkipbenchError
from skipbench.skipset import deepened_set, planted_set

KNOWN = ("self-sd", "self-sd-c", "fixed")
"""Methods to which the known set of a deepened model is given as `skip=stored`."""


def planted(model: dict[str, Any]) -> dict[str, Any]:
    """What follows from the shape of a planted model: its sizes, and the skip set that was
    planted.
    """
    if "redundant" not in model:
        return {}
    architecture = shape_of(model["shape"])
    skip = str(planted_set(architecture.layers, model["redundant"], model["seed"]))
    return {
        "architecture": dataclasses.asdict(architecture),
        "sets": {"self-sd": skip, "self-sd-c": skip},
    }


def packaged(model: dict[str, Any]) -> dict[str, Any]:
    """Path and name of a checkpoint that is taken from the package that holds it, too.

    With `source=auto` that is done where the package was fetched and the hub's cache is without the
    weights.

    Raises:
        SkipbenchError: `source=package` for a model that comes in no package.
    """
    if model["wheel"] is None or is_gguf(model["path"]) or Path(model["path"]).is_dir():
        if model["source"] == Source.package:
            raise SkipbenchError(
                f"model.source=package, but {model['path']!r} comes in no package; leave it out"
            )
        return {}
    wheel = Wheel(**model["wheel"])
    there = (wheel.folder / "config.json").is_file()
    if model["source"] == Source.hub or (
        model["source"] == Source.auto
        and (not there or _in_hub_cache(model["path"], model["revision"]))
    ):
        return {}
    return {
        "path": str(wheel.folder),
        "revision": None,
        "name": f"{model['name']}-{wheel.label}",
    }


def _in_hub_cache(path: str, revision: str | None) -> bool:
    from huggingface_hub import try_to_load_from_cache  # slow to import

    try:
        return isinstance(try_to_load_from_cache(path, "model.safetensors", revision=revision), str)
    except ValueError:  # no id of the hub; loading says so
        return False


def deepened(model: dict[str, Any]) -> dict[str, Any]:
    """Name of a deepened model, and its known skip set where the checkpoint's sizes are known.

    Raises:
        SkipbenchError: a share that cannot be, or a planted model.
    """
    share, seed = model["deepened"], model["deepened_seed"]
    if not share:
        return {}
    if "redundant" in model:
        raise SkipbenchError(
            f"model.deepened={share}: a planted model has its redundant sub-layers already; set "
            "model.redundant"
        )
    ending = "-deep" if share == 1 else f"-deep{share:g}"
    name = str(model["name"])
    found: dict[str, Any] = {"name": name if name.endswith(ending) else name + ending}
    if model["architecture"] is not None:
        skip = str(deepened_set(model["architecture"]["layers"], share, seed))
        found["sets"] = dict.fromkeys(KNOWN, skip) | model["sets"]
    return found
