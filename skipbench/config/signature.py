"""Settings of the class or function that a node builds: names, types, defaults, documentation.

The source file is parsed, not imported: listing or composing methods does not pay for torch.
"""

import ast
import contextlib
import dataclasses
import functools
import importlib.util
import re
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import MISSING

from skipbench.config import configurable
from skipbench.errors import SkipbenchError

TYPES: dict[str, Any] = {"int": int, "float": float, "str": str, "bool": bool, "SkipSet": str}
TYPES |= {  # a bound is the type that it bounds
    name: kind.__origin__
    for name, kind in vars(configurable).items()
    if hasattr(kind, "__metadata__")
}
GIVEN_BY_CODE = ("self", "layers")
"""Parameters that the caller passes when it builds the object; they are no keys."""


MOVED = {
    "skipbench.decode.tapout.TapOut": "skipbench.methods.contrib.tapout.TapOut",
    "skipbench.methods.asd.ASD": "skipbench.methods.contrib.asd.ASD",
    "skipbench.methods.cas_spec.CASSpec": "skipbench.methods.contrib.cas_spec.CASSpec",
    "skipbench.methods.conflayers.ConfLayers": "skipbench.methods.contrib.conflayers.ConfLayers",
    "skipbench.methods.fixed.explicit": "skipbench.methods.fixed.Explicit",
    "skipbench.methods.fixed.strategy": "skipbench.methods.fixed.Strategy",
    "skipbench.methods.layerskip.layerskip": "skipbench.methods.layerskip.LayerSkip",
    "skipbench.methods.leap.LEAP": "skipbench.methods.contrib.leap.LEAP",
    "skipbench.methods.self_sd.self_sd": "skipbench.methods.self_sd.SelfSD",
    "skipbench.methods.vanilla.vanilla": "skipbench.methods.vanilla.Vanilla",
}
"""Where a class is now, by the path under which records know it: a run's name is a hash of its
record, which therefore keeps the first path.
"""
FIRST = {now: first for first, now in MOVED.items()}


def with_targets(node: Any, paths: Mapping[str, str]) -> Any:
    """A node whose `_target_`s, its own and those of nodes inside, are replaced by `paths`."""
    if not isinstance(node, Mapping):
        return node
    return {
        key: paths.get(value, value) if key == "_target_" else with_targets(value, paths)
        for key, value in node.items()
    }


class Setting(NamedTuple):
    """One parameter as it stands in the source; `default` is `None` where it must be given."""

    annotation: ast.expr | None
    default: ast.expr | None
    text: str


@functools.cache
def settings(target: str) -> dict[str, Setting]:
    """Parameters by name: fields of a class and its bases, or arguments of `__init__` or a
    function, which are documented under `Args:`.

    Args:
        target: dotted path of a class or function, such as `skipbench.methods.clasp.CLaSp`.

    Raises:
        SkipbenchError: no such module, or no such class or function in it.
    """
    module, _, name = MOVED.get(target, target).rpartition(".")
    tree = ast.parse(source_of(module).read_text(encoding="utf-8"))
    node = next((n for n in tree.body if getattr(n, "name", None) == name), None)
    if isinstance(node, ast.FunctionDef):
        return _of_arguments(node, ast.get_docstring(node) or "")
    if not isinstance(node, ast.ClassDef):
        raise SkipbenchError(f"_target_={target}: {module} defines no class or function {name!r}")
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            texts = ast.get_docstring(node), ast.get_docstring(part)
            return _of_arguments(part, "\n".join(filter(None, texts)))
    modules = {n.name: module for n in tree.body if isinstance(n, ast.ClassDef)}
    for n in tree.body:
        if isinstance(n, ast.ImportFrom) and n.module:
            modules |= {alias.name: n.module for alias in n.names}
    found: dict[str, Setting] = {}
    for base in map(ast.unparse, node.bases):
        with contextlib.suppress(SkipbenchError):  # a base that is no class of a source file
            found |= settings(f"{modules.get(base, '')}.{base}")
    for part, below in pairwise([*node.body, ast.Pass()]):
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            _add_field(found, part.target.id, part, below)
    return found


def _add_field(found: dict[str, Setting], name: str, node: ast.AnnAssign, below: ast.stmt) -> None:
    """Enters a field with the string below it; class attributes and state are no settings."""
    default = node.value
    if ast.unparse(node.annotation).startswith("ClassVar"):
        return
    if isinstance(default, ast.Call) and ast.unparse(default.func) == "field":
        keywords = {k.arg: k.value for k in default.keywords}
        default = keywords.get("default")
        if "default_factory" in keywords:
            empty = {"dict": "{}"}.get(ast.unparse(keywords["default_factory"]), "[]")
            default = ast.parse(empty, mode="eval").body
        if "init" in keywords:
            found.pop(name, None)
            return
    text = found[name].text if name in found else ""
    if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
        text = " ".join(str(below.value.value).split())
    found[name] = Setting(node.annotation, default, text)


def _of_arguments(node: ast.FunctionDef, document: str) -> dict[str, Setting]:
    """The parameters of a function, documented under `Args:`."""
    texts: dict[str, str] = {}
    for section in re.findall(r"^Args:\n((?:[ \t]+.*\n?|\n)+)", document, re.MULTILINE):
        entries = r"^ {4}([\w, ]+): ((?:.*\n?)(?: {8,}.*\n?)*)"
        for names, text in re.findall(entries, section, re.MULTILINE):
            texts |= {name.strip(): " ".join(text.split()) for name in names.split(",")}
    arguments = node.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults))
    pairs = [*zip(plain, [*defaults, *arguments.defaults], strict=True)]
    pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return {a.arg: Setting(a.annotation, default, texts.get(a.arg, "")) for a, default in pairs}


@functools.cache
def schema_of(target: str) -> type:
    """Returns a dataclass with one field per setting of `target`, with its type and default.

    Raises:
        SkipbenchError: as `settings`.
    """
    fields: list[Any] = [("_target_", str, target)]
    for name, (annotation, default, _) in settings(target).items():
        if name in GIVEN_BY_CODE:
            continue
        made = dataclasses.field(default=MISSING)
        if default is not None:
            value = ast.literal_eval(default)
            made = dataclasses.field(default=value)
            if isinstance(value, tuple | list | dict):
                container: Any = dict if isinstance(value, dict) else list
                made = dataclasses.field(default_factory=partial(container, value))
        fields.append((name, _type(annotation), made))
    schema = dataclasses.make_dataclass(target.rpartition(".")[2], fields)
    schema.__module__, schema.__qualname__ = __name__, target.replace(".", "/")
    return schema


def __getattr__(name: str) -> type:
    """A schema by its target, `/` for `.`: so the jobs of a launcher unpickle the class itself."""
    if "/" not in name:
        raise AttributeError(name)
    return schema_of(name.replace("/", "."))


def source_of(module: str) -> Path:
    """Returns the source file of a module that may not be imported yet.

    Raises:
        SkipbenchError: no such module.
    """
    try:
        spec = importlib.util.find_spec(module) if module else None
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        raise SkipbenchError(
            f"no module {module!r}; it must be installed, or be in the working directory"
        )
    return Path(spec.origin)


def _type(annotation: ast.expr | None) -> Any:
    """The type that OmegaConf checks; `Any` for a node that builds an object of its own, such as a
    stop rule.
    """
    if isinstance(annotation, ast.BinOp):
        sides = [annotation.left, annotation.right]
        given = [_type(side) for side in sides if ast.unparse(side) != "None"]
        return given[0] | None if len(given) == 1 and given[0] is not Any else Any
    if not isinstance(annotation, ast.Subscript):
        return Any if annotation is None else TYPES.get(ast.unparse(annotation), Any)
    kind, inner = ast.unparse(annotation.value), annotation.slice
    parts = [_type(part) for part in (inner.elts if isinstance(inner, ast.Tuple) else [inner])]
    if kind in ("Literal", "Annotated"):
        return str if kind == "Literal" else parts[0]
    if kind in ("Sequence", "list"):
        return list.__class_getitem__(parts[0])
    return dict.__class_getitem__(tuple(parts)) if kind in ("Mapping", "dict") else Any
