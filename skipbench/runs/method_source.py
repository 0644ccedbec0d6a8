"""The hash of a method's source: its own modules and what they import of skipbench."""

import ast
import contextlib
import functools
import hashlib
from collections.abc import Iterator, Mapping
from importlib.machinery import PathFinder
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any

from skipbench.config.paths import PACKAGE
from skipbench.config.run_config import MethodConfig
from skipbench.config.signature import MOVED
from skipbench.runs.provenance import hashed

OWN = ("skipbench.decode.", "skipbench.methods.")
"""Parts of skipbench that belong to a method."""
MEASURING = ["draft_plan.py", "skipset.py", "lm", "models", "decode", "bench"]
MEASURING += ["profile/clock.py", "methods/vanilla.py"]
"""Files of the package on which a run's tokens and seconds depend, beside its method."""


def method_sha256(method: MethodConfig, imported: bool = False) -> str | None:
    """Hash of the source of a method: the files of its `_target_`s and of the decode loop, and what
    they import: of skipbench the files under `OWN`; elsewhere those of the target's package, or
    beside a single module.

    Args:
        imported: instead, all else of skipbench that those files import, such as `search`, but for
            `MEASURING`, which has a hash of its own.

    Returns:
        None if a target's source cannot be found.
    """
    sources: dict[str, bytes] = {}
    targets = [t for node in nodes(method.node) if isinstance(t := node.get("_target_"), str)]
    for name in (*(MOVED.get(target, target) for target in targets), "skipbench.decode.loop"):
        if (root := _source(name)) is None:
            return None
        todo = [root]
        while todo:
            module, path = todo.pop()
            if module in sources:
                continue
            sources[module] = path.read_bytes()
            package = module if path.name == "__init__.py" else module.rpartition(".")[0]
            files = map(_source, _imports(sources[module], package))
            todo += [file for file in files if file is not None and _belongs(file, root)]
    return hashed(
        {
            module: hashlib.sha256(source).hexdigest()
            for module, source in sources.items()
            if imported == (module.startswith("skipbench.") and not module.startswith(OWN))
        }
    )


def nodes(settings: Any) -> Iterator[Mapping[str, Any]]:
    """The settings of a method, and of its parts such as a stop rule."""
    if isinstance(settings, Mapping):
        yield settings
        for value in settings.values():
            yield from nodes(value)


def _source(name: str) -> tuple[str, Path] | None:
    """`_located`, once per process for the modules of this package."""
    return _of_package(name) if name.startswith("skipbench.") else _located(name)


def _located(name: str) -> tuple[str, Path] | None:
    """Module and file of a dotted name, which may end inside the module; imports nothing."""
    module, *rest = name.split(".")
    spec = source = None
    with contextlib.suppress(ImportError, ValueError):
        spec = find_spec(module)
    while spec is not None:
        if spec.has_location and spec.origin:
            source = module, Path(spec.origin)
        if not rest or spec.submodule_search_locations is None:
            break
        module = f"{module}.{rest.pop(0)}"
        spec = PathFinder.find_spec(module, spec.submodule_search_locations)
    return source


_of_package = functools.cache(_located)


@functools.cache
def _measures(path: Path) -> bool:
    return any(path.is_relative_to(PACKAGE / name) for name in MEASURING)


def _belongs(imported: tuple[str, Path], root: tuple[str, Path]) -> bool:
    """True if the source of an imported module is hashed with that of the root."""
    module, path = imported
    if module.startswith("skipbench."):
        return module.startswith(OWN) or not _measures(path)
    if module.partition(".")[0] == root[0].partition(".")[0]:
        return True
    single = "." not in root[0] and root[1].name != "__init__.py"
    beside = path.is_relative_to(root[1].parent) and "site-packages" not in path.parts
    return single and beside


@functools.cache
def _imports(source: bytes, package: str) -> list[str]:
    """Dotted names that a source file imports, in functions too; none if it does not parse."""
    names = []
    with contextlib.suppress(SyntaxError, ValueError):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                with contextlib.suppress(ImportError):  # beyond the top of its package
                    base = resolve_name("." * node.level + (node.module or ""), package)
                    names += [f"{base}.{alias.name}" for alias in node.names]
    return names
