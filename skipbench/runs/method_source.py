"""The hash of a method's source: its own modules and what they import of skipbench."""

import ast
import functools
import hashlib
import importlib.util
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from skipbench.config.paths import PACKAGE
from skipbench.config.run_config import MethodConfig
from skipbench.config.signature import MOVED

OWN = ("skipbench.decode.", "skipbench.methods.")
"""Parts of skipbench that belong to a method."""
MEASURING = (
    "skipset.py",
    "lm",
    "models",
    "decode",
    "profile/clock.py",
    "bench",
    "methods/vanilla.py",
)
"""Files of the package on which a run's tokens and seconds depend, beside its method."""


def hashed(value: Any) -> str:
    """SHA-256 of plain data, independent of the order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def method_sha256(method: MethodConfig) -> str | None:
    """Hash of the source of a method: the files of its `_target_`s and of the decode loop, and what
    they import of their own.

    Of skipbench these are the files under `OWN`; outside of it, the target's package, or what lies
    beside a single module.

    Returns:
        None if a target's source cannot be found.
    """
    return _hash_of(method, of_skipbench=False)


def imports_sha256(method: MethodConfig) -> str | None:
    """Hash of all else of skipbench that those files import, such as `search` and `profile`, but
    for `MEASURING`, which has a hash of its own; None as `method_sha256`.
    """
    return _hash_of(method, of_skipbench=True)


def _hash_of(method: MethodConfig, of_skipbench: bool) -> str | None:
    sources: dict[str, bytes] = {}
    roots = [*_targets(method.node), "skipbench.decode.loop"]
    for root in roots:
        target = _source(root)
        if target is None:
            return None
        todo = [target]
        while todo:
            module, path = todo.pop()
            if module in sources:
                continue
            sources[module] = path.read_bytes()
            package = module if path.name == "__init__.py" else module.rpartition(".")[0]
            for name in _imports(sources[module], package):
                imported = _source(name)
                if imported is not None and _belongs(imported, target):
                    todo.append(imported)
    return hashed(
        {
            module: hashlib.sha256(source).hexdigest()
            for module, source in sources.items()
            if of_skipbench == (module.startswith("skipbench.") and not module.startswith(OWN))
        }
    )


def _targets(node: Any) -> Iterator[str]:
    """Every `_target_` in the method's settings: its own, and that of its stop rule."""
    if isinstance(node, Mapping):
        if isinstance(target := node.get("_target_"), str):
            yield MOVED.get(target, target)
        for value in node.values():
            yield from _targets(value)


def _source(name: str) -> tuple[str, Path] | None:
    """Module and file of a dotted name, whose last parts may be names inside the module.

    Nothing but the path is searched.
    """
    top, *rest = name.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if not spec.submodule_search_locations:
        return (top, Path(spec.origin)) if spec.origin and Path(spec.origin).is_file() else None
    package = None
    for place in map(Path, spec.submodule_search_locations):
        module = top
        for part in [*rest, ""]:
            if (place / "__init__.py").is_file():
                package = module, place / "__init__.py"
            if part and (place / f"{part}.py").is_file():
                return f"{module}.{part}", place / f"{part}.py"
            if not part or not (place / part).is_dir():
                break
            module, place = f"{module}.{part}", place / part
    return package


def _belongs(imported: tuple[str, Path], root: tuple[str, Path]) -> bool:
    """Whether a module is one of skipbench without a hash of its own, is of the root's package, or
    lies beside a root that is a single module.
    """
    module, path = imported
    if module.startswith("skipbench."):
        return module.startswith(OWN) or not any(
            path.is_relative_to(PACKAGE / name) for name in MEASURING
        )
    if module.partition(".")[0] == root[0].partition(".")[0]:
        return True
    beside = path.is_relative_to(root[1].parent)
    return (
        "." not in root[0]
        and root[1].name != "__init__.py"
        and beside
        and "site-packages" not in path.parts
    )


@functools.cache
def _imports(source: bytes, package: str) -> list[str]:
    """Dotted names that a source file imports, in functions too; none if it does not parse."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *([base] if base else [])])
            names += [f"{base}.{alias.name}" for alias in node.names]
    return names
