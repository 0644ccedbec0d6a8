"""Config schemas derived from the signature of the class or function that a node builds.

The source file is parsed, not imported: listing or composing methods does not pay for torch.
"""

import ast
import dataclasses
import functools
import importlib.util
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from skipbench.errors import SkipbenchError

TYPES: dict[str, Any] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "Sequence[int]": list[int],
    "Sequence[float]": list[float],
    "Sequence[str]": list[str],
    "Mapping[str, str]": dict[str, str],
}
GIVEN_BY_CODE = ("self", "layers")
"""Parameters that the caller passes when it builds the object; they are no keys."""


@functools.cache
def schema_of(target: str) -> type:
    """Returns a dataclass with one field per parameter of `target`, with its type and default.

    Args:
        target: dotted path of a class or function, such as `skipbench.methods.clasp.CLaSp`.

    Raises:
        SkipbenchError: no such module, or no such class or function in it.
    """
    module, _, name = target.rpartition(".")
    tree = ast.parse(source_of(module).read_text(encoding="utf-8"))
    defined = next((node for node in tree.body if getattr(node, "name", None) == name), None)
    if isinstance(defined, ast.ClassDef):
        methods = [n for n in defined.body if isinstance(n, ast.FunctionDef)]
        defined = next((n for n in methods if n.name == "__init__"), None)
    if not isinstance(defined, ast.FunctionDef):
        raise SkipbenchError(f"_target_={target}: {module} defines no class or function {name!r}")
    fields: list[Any] = [("_target_", str, target)]
    fields += [_field(*parameter) for parameter in _parameters(defined.args)]
    made = dataclasses.make_dataclass(name, fields)
    made.__module__, made.__qualname__ = __name__, target.replace(".", "/")
    return made


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


def _parameters(arguments: ast.arguments) -> list[tuple[str, ast.expr | None, ast.expr | None]]:
    """Name, annotation and default of every parameter that a config can give."""
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults))
    pairs = [*zip(plain, [*defaults, *arguments.defaults], strict=True)]
    pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return [(a.arg, a.annotation, default) for a, default in pairs if a.arg not in GIVEN_BY_CODE]


def _field(name: str, annotation: ast.expr | None, default: ast.expr | None) -> Any:
    kind = _type(annotation)
    if default is None:
        return name, kind, dataclasses.field(default=MISSING)
    value = ast.literal_eval(default)
    if isinstance(value, tuple | list | dict):
        container: Any = dict if isinstance(value, dict) else list
        return name, kind, dataclasses.field(default_factory=functools.partial(container, value))
    return name, kind, dataclasses.field(default=value)


def _type(annotation: ast.expr | None) -> Any:
    """The type that OmegaConf checks; `Any` for a node that builds an object of its own, such as a
    stop rule.
    """
    if isinstance(annotation, ast.BinOp):
        sides = [ast.unparse(annotation.left), ast.unparse(annotation.right)]
        found = next((TYPES[side] for side in sides if side in TYPES), None)
        return found | None if "None" in sides and found is not None else Any
    return TYPES.get(ast.unparse(annotation), Any) if annotation is not None else Any
