"""Settings of the class that a node builds: names, types, defaults, documentation,
from the source, which is parsed and not imported: composing does not pay for torch.
"""

import ast
import contextlib
import functools
import importlib.util
import typing
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
from omegaconf import MISSING

from skipbench.config import configurable
from skipbench.config.configurable import GIVEN_BY_CODE, Settings
from skipbench.errors import SkipbenchError

TYPES = {**vars(typing), **vars(configurable), "DraftPlan": str}
PLAIN = bool, dict, float, int, list, str, tuple
TYPES |= {"__builtins__": {kind.__name__: kind for kind in PLAIN}}
"""By the names that annotations of settings use, and nothing that could be called besides."""


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
def schema_of(target: str) -> type[Settings]:
    """A Struct with a field per setting of `target`. Raises SkipbenchError as `settings`."""
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
                made = msgspec.field(default_factory=partial(container, made))
            fields.append((name, _type(annotation), made))
    name, bases = target.rpartition(".")[2], (Settings,)
    return cast(type[Settings], msgspec.defstruct(name, fields, bases=bases, frozen=True))


def source_of(module: str) -> Path:
    """The source file of a module that may not be imported yet. Raises SkipbenchError for none."""
    with contextlib.suppress(ModuleNotFoundError):
        if module and (spec := importlib.util.find_spec(module)) and spec.origin:
            return Path(spec.origin)
    raise SkipbenchError(
        f"no module {module!r}; it must be installed, or be in the working directory"
    )


def _type(annotation: ast.expr | None) -> Any:
    """The type, with its bounds; `Any` for an object, such as a stop rule."""
    if annotation is None:
        return Any
    try:
        return eval(ast.unparse(annotation), dict(TYPES))
    except NameError:  # of an object, or in bounds that are computed
        match annotation:
            case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[kind, *_])):
                return _type(kind)
        return Any
