"""Hashes of the code that a run uses: of the rooms that measure it, and of its method.

Code is a file's syntax tree: comments and layout change nothing.
"""

import ast
import functools
import re
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from skipbench.config.extensions import registered
from skipbench.config.paths import PACKAGE
from skipbench.config.run_config import MethodConfig
from skipbench.runs.provenance import hashed, leaves

ROOMS = ("bench", "decode", "lm", "metrics", "models", "profile", "scoring", "search")
FILES = ("draft_plan.py", "skipset.py", "methods/vanilla.py")
PARTS = ("checkpoint", "engine", "kernel", "variant")  # of `extensions`, with their folders
CUDA_GRAPHS = "cuda_graphs"  # an engine and its folder, which no other engine uses
_NOT_CODE = re.compile(rb'("(?:\\.|[^"\\\n])*")|/\*.*?\*/|//[^\n]*|\s+', re.DOTALL)  # of C
_EMPTY = re.compile(r"(?:, )?[a-z_]+=\[\]")  # fields that Python 3.13 leaves out


@functools.cache
def package_sha256(engine: str) -> str:
    """Hash of the code that measures a run with this engine; `engine` as a setting or in the form
    of `engine_text`.
    """
    rooms = {f"skipbench.{room}" for room in ROOMS}
    rooms |= {path.rsplit(".", 2)[0] for kind in PARTS for path in registered(kind).values()}
    files = [PACKAGE / name for name in FILES]
    for room in rooms:
        files += (PACKAGE.parent / room.replace(".", "/")).rglob("*.*")
    others = PACKAGE / "lm" / CUDA_GRAPHS
    return _hash(f for f in files if CUDA_GRAPHS in engine or not f.is_relative_to(others))


def method_sha256(method: MethodConfig) -> str | None:
    """Hash of the source of a method: `decode/`; the module of each `_target_`, with what it
    imports of its own folder and of `methods/`; and of a package outside of skipbench all files.
    None if a target's source cannot be found.
    """
    hashes = [_hash((PACKAGE / "decode").glob("*.py"))]
    for key, target in leaves(method.node):
        if key.endswith("_target_"):
            if not (files := _modules(str(target))):
                return None
            hashes.append(_hash(files))
    return hashed(hashes)


def _modules(target: str) -> list[Path]:
    """The files of a target; none where it is not found."""
    top, *names = target.split(".")[:-1] or [""]
    spec = find_spec(top) if top else None  # which imports nothing
    if spec is None or not spec.origin:
        return []
    origin = Path(spec.origin)
    if spec.submodule_search_locations and top != PACKAGE.name:
        return [*origin.parent.rglob("*.py")]
    found = list[Path]()
    todo = [origin.parent.joinpath(*names).with_suffix(".py") if names else origin]
    while todo:
        if (path := todo.pop()) not in found and path.is_file():
            found.append(path)
            for name in _imported(path):
                todo += [path.with_name(f"{name}.py"), PACKAGE / "methods" / f"{name}.py"]
    return found


def _imported(path: Path) -> Iterable[str]:
    """Last parts of the names that a file imports."""
    for node in ast.walk(_parsed(path.read_bytes())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            yield from (name.rpartition(".")[2] for name in names)


def _hash(files: Iterable[Path]) -> str:
    """Hash of files of Python and C, by their names, wherever they are."""
    paths = sorted(path for path in files if path.suffix in (".py", ".c", ".h"))
    return hashed([[path.name, _code(path.read_bytes(), path.suffix)] for path in paths])


@functools.cache
def _code(source: bytes, suffix: str) -> str:
    if suffix == ".py":
        return _EMPTY.sub("", ast.dump(_parsed(source)))
    return _NOT_CODE.sub(rb"\1", source).decode(errors="replace")


@functools.cache
def _parsed(source: bytes) -> ast.Module:
    """The syntax tree; of a file that is no Python, of its bytes as one text."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module([ast.Expr(ast.Constant(source))], [])
