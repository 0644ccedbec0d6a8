"""Hashes of the code that a run uses: the package's, its method's, and what the method imports.

Code is a file's syntax tree: comments, docstrings and layout change nothing.
"""

import ast
import contextlib
import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.machinery import PathFinder
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any

from skipbench.config.extensions import registered
from skipbench.config.paths import PACKAGE
from skipbench.config.run_config import MethodConfig
from skipbench.runs.provenance import hashed

SCHEME = "2:"  # begins these hashes; earlier ones, without it, were of whole files and equal none
ROOTS = ("skipbench.bench.run", "skipbench.bench.turns")  # what measures a run
PARTS = ("checkpoint", "engine", "kernel", "variant")  # of `extensions`
UNHASHED = ("config", "console", "errors", "report", "runs")  # no token or second depends on them
ENGINE = ("bench", "draft_plan", "lm", "models", "skipset")  # rooms of the package's hash alone
OWN = ("skipbench.decode.", "skipbench.methods.")  # parts of skipbench that belong to a method
CUDA_GRAPHS = "cuda_graphs"  # an engine and its folder, which no other engine uses
_NOT_CODE = re.compile(rb'("(?:\\.|[^"\\\n])*")|/\*.*?\*/|//[^\n]*|\s+', re.DOTALL)

Place = tuple[str, Path]  # a module's dotted name and its file


@functools.cache
def package_sha256(engine: str) -> str:
    """Hash of the modules of skipbench that measure a run with this engine, and of the C sources;
    `engine` as a setting or in the form of `engine_text`.
    """
    unused = UNHASHED if CUDA_GRAPHS in engine else (*UNHASHED, f"lm.{CUDA_GRAPHS}")
    found = dict[str, str]()
    parts = [name for kind in PARTS for name in registered(kind).values()]
    for name in (*ROOTS, *parts):
        root = _of_package(name)
        assert root is not None
        found |= _reached(root, lambda place: _within(place[0], unused))
    for path in (PACKAGE / "contrib" / "cpu").glob("*.[ch]"):
        found[path.name] = _digest(_NOT_CODE.sub(rb"\1", path.read_bytes()))
    return SCHEME + hashed(found)


def method_sha256(method: MethodConfig, imported: bool = False) -> str | None:
    """Hash of the source of a method: the files of its `_target_`s and of the decode loop, and what
    they import: of skipbench the files under `OWN`; elsewhere those of the target's package, or
    beside a single module.

    Args:
        imported: instead, all else of skipbench that those files import, such as `search`, but for
            `ENGINE`.

    Returns:
        None if a target's source cannot be found.
    """
    found = dict[str, str]()
    targets = [v for k, v in leaves(method.node) if k.endswith("_target_") and isinstance(v, str)]
    for name in (*targets, "skipbench.decode.loop"):
        if (root := _source(name)) is None:
            return None
        found |= _reached(root, functools.partial(_foreign, root=root))
    ours = {m: m.startswith("skipbench.") and not m.startswith(OWN) for m in found}
    return SCHEME + hashed({m: digest for m, digest in found.items() if ours[m] == imported})


def other_scheme(recorded: str | None, now: str) -> bool:
    """True for a hash of an earlier version, which says nothing about the code of today."""
    return recorded is not None and now.startswith(SCHEME) and not recorded.startswith(SCHEME)


def leaves(settings: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of each setting, of parts such as a stop rule too."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{at}{key}.")
        else:
            yield f"{at}{key}", value


def _reached(root: Place, foreign: Callable[[Place], bool]) -> dict[str, str]:
    """Hashes of a module and of what it imports, and those import, without `foreign` ones."""
    found, todo = dict[str, str](), [root]
    while todo:
        module, path = todo.pop()
        if module in found:
            continue
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        found[module], names = _parsed(path.read_bytes(), package)
        if root[0].startswith("skipbench."):  # all else is foreign then: it need not be located
            names = [name for name in names if name.partition(".")[0] == "skipbench"]
        todo += [p for p in map(_source, names) if p is not None and not foreign(p)]
    return found


def _within(module: str, parts: Iterable[str]) -> bool:
    """True of code outside of skipbench, and of these parts of it."""
    inside = tuple(f"skipbench.{part}." for part in parts)
    return not module.startswith("skipbench.") or f"{module}.".startswith(inside)


def _foreign(place: Place, root: Place) -> bool:
    """True if an imported module is not hashed with the root of a method."""
    module, path = place
    if module.startswith("skipbench."):
        return _within(module, UNHASHED + ENGINE)
    if module.partition(".")[0] == root[0].partition(".")[0]:
        return False
    single = "." not in root[0] and root[1].name != "__init__.py"
    beside = path.is_relative_to(root[1].parent) and "site-packages" not in path.parts
    return not (single and beside)


def _source(name: str) -> Place | None:
    """`_located`, once per process for the modules of this package."""
    return _of_package(name) if name.startswith("skipbench.") else _located(name)


def _located(name: str) -> Place | None:
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
def _parsed(source: bytes, package: str) -> tuple[str, list[str]]:
    """A source file's hash and the names it imports; of one that does not parse, of its bytes."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return _digest(source), []
    imports = list[ast.Import | ast.ImportFrom]()
    digest, names = _digest(repr(_plain(tree, imports)).encode()), list[str]()
    for node in imports:
        base = ""
        if isinstance(node, ast.ImportFrom):
            try:
                base = resolve_name("." * node.level + (node.module or ""), package) + "."
            except ImportError:  # beyond the top of its package
                continue
        names += [f"{base}{alias.name}" for alias in node.names]
    return digest, names


def _plain(node: Any, imports: list[ast.Import | ast.ImportFrom]) -> Any:
    """A syntax tree without places, lone texts and empty fields; adds its imports to the list."""
    if isinstance(node, list):
        return [_plain(one, imports) for one in node if not _is_text(one)]
    if not isinstance(node, ast.AST):
        return node
    if isinstance(node, ast.Import | ast.ImportFrom):
        imports.append(node)
    plain = [type(node).__name__]
    for name in node._fields:
        if name != "ctx" and (value := getattr(node, name, None)) is not None and value != []:
            plain += [name, _plain(value, imports)]
    return plain


def _is_text(node: Any) -> bool:
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return text and isinstance(node.value.value, str)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
