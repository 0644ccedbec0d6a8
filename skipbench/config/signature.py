"""Settings of the class that a node builds: names, types, defaults, documentation,
from the source, which is parsed and not imported: composing does not pay for torch.
"""

import ast
import contextlib
import dataclasses
import functools
import importlib.util
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import MISSING

from skipbench.config import configurable
from skipbench.errors import SkipbenchError

TYPES: dict[str, Any] = {"int": int, "float": float, "str": str, "bool": bool, "DraftPlan": str}
bounded = {name: kind for name, kind in vars(configurable).items() if hasattr(kind, "__metadata__")}
TYPES |= {name: kind.__origin__ for name, kind in bounded.items()}
GIVEN_BY_CODE = ("layers",)
"""Parameters that the caller passes when it builds the object; they are no keys."""


class Setting(NamedTuple):
    """One parameter as it stands in the source; `default` is `None` where it must be given."""

    annotation: ast.expr | None
    default: ast.expr | None
    text: str


@functools.cache
def settings(target: str) -> dict[str, Setting]:
    """Fields of a class, such as `skipbench.methods.clasp.CLaSp`, and of its bases, by name.

    Raises SkipbenchError where there is no such module or class.
    """
    module, _, _ = target.rpartition(".")
    tree, named, node = _definition(target)
    modules = dict.fromkeys(named, module)
    for part in tree.body:
        if isinstance(part, ast.ImportFrom) and part.module:
            modules |= {alias.name: part.module for alias in part.names}
    fields: dict[str, Setting] = {}
    for base in map(ast.unparse, node.bases):
        with contextlib.suppress(SkipbenchError):  # a base that is no class of a source file
            fields |= settings(f"{modules.get(base, '')}.{base}")
    for part, below in pairwise([*node.body, ast.Pass()]):
        if isinstance(part, ast.AnnAssign):
            name, default = ast.unparse(part.target), part.value
            if ast.unparse(part.annotation).startswith("ClassVar"):
                continue
            text = fields[name].text if name in fields else ""
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                text = " ".join(str(below.value.value).split())
            if isinstance(default, ast.Call) and ast.unparse(default.func) == "field":
                keywords = {k.arg: k.value for k in default.keywords}
                if "init" in keywords:  # state is none, either
                    fields.pop(name, None)
                    continue
                default = keywords.get("default")
                if "default_factory" in keywords:
                    plain_dict = ast.unparse(keywords["default_factory"]) == "dict"
                    default = ast.Dict([], []) if plain_dict else ast.List([])
            fields[name] = Setting(part.annotation, default, text)
    return fields


def _definition(target: str) -> tuple[ast.Module, dict[str, ast.ClassDef], ast.ClassDef]:
    """A target's module, the classes there, and itself."""
    module, _, name = target.rpartition(".")
    file = source_of(module)
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except SyntaxError as error:
        raise SkipbenchError(f"{file}, line {error.lineno}: {error.msg}") from error
    named = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}
    if name not in named:
        raise SkipbenchError(f"_target_={target}: {module} defines no class {name!r}")
    return tree, named, named[name]


def summary(target: str) -> str:
    """The first line of what a target's docstring says. Raises SkipbenchError as `settings`."""
    return (ast.get_docstring(_definition(target)[2]) or "").partition("\n")[0]


@functools.cache
def schema_of(target: str) -> type:
    """A dataclass with a field per setting of `target`. Raises SkipbenchError as `settings`."""
    fields: list[Any] = [("_target_", str, target)]
    for name, (annotation, default, _) in settings(target).items():
        if name not in GIVEN_BY_CODE:
            try:
                made: Any = MISSING if default is None else ast.literal_eval(default)
            except ValueError as error:
                text = f"the default of {name} is computed; wanted a value, as 4 or [1, 2]"
                raise SkipbenchError(f"{target}: {text}") from error
            if isinstance(made, tuple | list | dict):
                container: Any = dict if isinstance(made, dict) else list
                made = dataclasses.field(default_factory=partial(container, made))
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
    """The source file of a module that may not be imported yet. Raises SkipbenchError for none."""
    with contextlib.suppress(ModuleNotFoundError):
        if module and (spec := importlib.util.find_spec(module)) and spec.origin:
            return Path(spec.origin)
    raise SkipbenchError(
        f"no module {module!r}; it must be installed, or be in the working directory"
    )


def _type(annotation: ast.expr | None) -> Any:
    """The type that OmegaConf checks; `Any` for an object, such as a stop rule."""
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
