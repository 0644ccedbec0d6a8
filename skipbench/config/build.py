"""From a configuration node to the object that it describes."""

from collections.abc import Mapping
from typing import Any

import hydra
from hydra.errors import HydraException

from skipbench.config.signature import MOVED, with_targets
from skipbench.errors import SkipbenchError


def instantiate(node: Mapping[str, Any], **more: Any) -> Any:
    """Calls the node's `_target_`; an error of the called function comes out as itself, without
    Hydra's wrapping.

    Raises:
        SkipbenchError: what the called function raised, or why it could not be called.
    """
    try:
        return hydra.utils.instantiate(with_targets(node, MOVED), _convert_="all", **more)
    except HydraException as error:
        causes: list[BaseException] = [error]
        while (cause := causes[-1].__cause__) is not None:
            causes.append(cause)
        own = next((cause for cause in causes if isinstance(cause, SkipbenchError)), None)
        raise own or SkipbenchError(_message(error, causes[-1])) from error


def _message(error: HydraException, root: BaseException) -> str:
    """Hydra's message without its advice, with the root cause where that is not in it."""
    text = str(error).partition(", set env var HYDRA_FULL_ERROR")[0]
    return text if str(root) in str(error) else f"{text}: {type(root).__name__}: {root}"
