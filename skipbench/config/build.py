"""From a configuration node to the object that it describes."""

from collections.abc import Mapping
from typing import Any

import hydra
from hydra.errors import HydraException

from skipbench.config.catalog import targets
from skipbench.config.schemas import SCHEMAS
from skipbench.config.trust import check_targets
from skipbench.errors import SkipbenchError


def instantiate(node: Mapping[str, Any], **more: Any) -> Any:
    """Calls the node's `_target_`, which a file of `conf`, of a `--config-dir`, or a schema must
    name.

    Raises SkipbenchError: the called function's own, or why it could not be called.
    """
    of_schemas = {getattr(schema, "_target_", None) for schema in SCHEMAS.values()}
    check_targets(node, targets() | of_schemas)
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
