"""From a configuration node to the object that it describes."""

from collections.abc import Collection, Mapping
from typing import Any

import hydra
from hydra.errors import HydraException

from skipbench.config.catalog import targets
from skipbench.errors import SkipbenchError


def instantiate(node: Mapping[str, Any], **more: Any) -> Any:
    """Calls the node's `_target_`, which a file of `conf` or of a `--config-dir` must name.

    Raises SkipbenchError: the called function's own, or why it could not be called.
    """
    check_targets(node, targets())
    try:
        return hydra.utils.instantiate(node, _convert_="all", **more)
    except HydraException as error:
        root: BaseException = error
        while root.__cause__ is not None:
            if isinstance(root := root.__cause__, SkipbenchError):
                raise root from error
        text = str(error).partition(", set env var HYDRA_FULL_ERROR")[0]
        cause = "" if str(root) in str(error) else f": {type(root).__name__}: {root}"
        raise SkipbenchError(f"{text}{cause}") from error


def check_targets(node: Any, known: Collection[object]) -> None:
    """Raises SkipbenchError for a `_target_` that is not among `known`, and for an interpolation,
    which could become one: nodes come out of results folders, too.
    """
    match node:
        case {"_target_": target} if target is not None and str(target) not in known:
            raise SkipbenchError(
                f"_target_={target} is named by no file of conf; where it is your own, give the "
                "folder whose file names it, --config-dir FOLDER"
            )
        case Mapping() | list() | tuple():
            for part in node.values() if isinstance(node, Mapping) else node:
                check_targets(part, known)
        case str() if "${" in node:
            raise SkipbenchError(f"{node!r} is an interpolation; wanted a value")
