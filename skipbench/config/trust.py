"""What of the data that is read may be called by name: all else is data, results folders too."""

from collections.abc import Collection, Mapping
from typing import Any

from skipbench.errors import SkipbenchError


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
