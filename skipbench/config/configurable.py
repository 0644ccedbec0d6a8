"""`Configurable`: a class whose annotated fields are its settings; and bounds of settings."""

import copy
import dataclasses
import functools
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

import msgspec
from msgspec import Meta, Struct

from skipbench.errors import SkipbenchError

Positive = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
"""0 to 1."""
PositiveFloat = Annotated[float, Meta(gt=0, title="a number above 0")]
PositiveShare = Annotated[float, Meta(gt=0, le=1)]
TwoOrMore = Annotated[int, Meta(ge=2)]
File = Annotated[str, Meta()]
"""A file, or a checkpoint: its content is part of what a run is known by."""
T = typing.TypeVar("T")
GIVEN_BY_CODE = ("layers", "node", "search_dataset")
"""Fields that code sets; they are no keys."""


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of settings: a field is a key, with its type, its default, and its bounds if it has any;
    a string below is its documentation.
    """


def typed(value: Any, kind: type[T], key: str) -> T:
    """The settings `key` as their type; a number is a text where one is wanted. Raises
    SkipbenchError, with the whole key, for a value of another type or out of its bounds.
    """
    whole = {key: value}
    while True:
        try:
            return msgspec.convert(
                whole[key],
                kind,
                strict=False,
                dec_hook=lambda of, value: Path(str(value)) if of is Path else value,
            )
        except msgspec.ValidationError as error:
            within, names, wanted = whole, [key], cast(Any, kind)
            for name in re.findall(r"\.(\w+)", str(error).partition("`$")[2]):
                if not isinstance(within[names[-1]], dict) or name not in within[names[-1]]:
                    break
                within, struct = within[names[-1]], _struct_of(wanted)
                names, wanted = [*names, name], kinds_of(struct).get(name, Any)
            found, text = within[names[-1]], str(error)
            if text.startswith("Expected `str") and type(found) in (int, float):
                within[names[-1]] = str(found)
                continue
            at = ".".join(names)
            if unknown := re.search("unknown field `(.*?)`", text):
                known = ", ".join(kinds_of(_struct_of(wanted)))
                said = f"unknown key '{at}.{unknown[1]}'. Allowed here: {known}"
            elif words := in_words(wanted):
                said = f"{at}={found}; wanted {words}"
            else:
                said = f"{at}: {text}"
            raise SkipbenchError(said) from error


def _struct_of(kind: Any) -> Any:
    """The class of a type such as `Shape | None`."""
    return next((k for k in (kind, *typing.get_args(kind)) if isinstance(k, type)), object)


def kind_of(node: Mapping[str, Any], kinds: Sequence[Any]) -> Any:
    """Of these settings the kind with the most keys, all of which the node has; else the first."""
    if not isinstance(node, Mapping):
        return kinds[0]
    none = {"node", "variants"}  # which no composed node has
    fits = [kind for kind in kinds if {*kind.__struct_fields__} - none <= node.keys()]
    return max(fits, key=lambda kind: len(kind.__struct_fields__), default=kinds[0])


class Decoding(Settings, frozen=True):
    temperature: Annotated[float, Meta(ge=0, le=1e308, title="a finite number, 0 or more")] = 0.0
    """0 decodes greedily; above 0 is speculative sampling at that temperature."""
    top_p: PositiveShare = 1.0
    """Nucleus sampling: the smallest set of tokens with this probability; 1 keeps all."""
    top_k: Natural = 0
    """Samples among the k most likely tokens; 0 keeps all."""


class Stateful:
    """Base of everything that learns from prompt to prompt."""

    carried: ClassVar[tuple[str, ...]] = ()
    """Attributes that the next prompt starts from: plain JSON values, or `Stateful` themselves."""

    def state_dict(self) -> Any:
        """All state that lasts from prompt to prompt, as plain JSON values."""
        values = [getattr(self, name) for name in self.carried]
        states = (v.state_dict() if isinstance(v, Stateful) else copy.copy(v) for v in values)
        return dict(zip(self.carried, states, strict=True))

    def load_state_dict(self, state: Any) -> None:
        """Restores what `state_dict` returned."""
        for name in self.carried:
            if isinstance(value := getattr(self, name), Stateful):
                value.load_state_dict(state[name])
            else:
                setattr(self, name, copy.copy(state[name]))


@typing.dataclass_transform(eq_default=False, kw_only_default=True, field_specifiers=(field,))
class Configurable(Stateful):
    """Base of methods and stop rules: keyword arguments from annotated fields.

    A string below a field is its documentation; fields with `field(init=False)` are state.

    >>> class Repeat(Configurable):
    ...     length: Positive = 4
    ...     init: typing.Literal["last", "prompt"] = "last"
    >>> Repeat(length=2).length
    2
    >>> Repeat(init="first")
    Traceback (most recent call last):
    skipbench.errors.SkipbenchError: Repeat: init=first; wanted last or prompt
    """

    def __init_subclass__(cls, kw_only: bool = True) -> None:
        super().__init_subclass__()
        if "__annotations__" in cls.__dict__ or len(cls.__bases__) > 1:
            dataclasses.dataclass(kw_only=kw_only, eq=False)(cls)

    def __post_init__(self) -> None:
        for name, kind in _bounds(type(self)).items():  # type: ignore[arg-type]  # mypy: no class is hashable
            try:
                setattr(self, name, typed(getattr(self, name), cast(Any, kind), name))
            except SkipbenchError as error:
                raise SkipbenchError(f"{self.label}: {error}") from error

    @property
    def label(self) -> str:
        """What messages call it."""
        return type(self).__name__


def kinds_of(cls: Any) -> dict[str, Any]:
    """The types of a class's fields, with their bounds."""
    return typing.get_type_hints(cls, include_extras=True)


@functools.cache
def _bounds(cls: Any) -> dict[str, object]:
    """Types of the settings; those of objects, such as a stop rule, are not checked."""
    kinds = kinds_of(cls)
    given = [f.name for f in dataclasses.fields(cls) if f.init]
    objects = {n for n in given if isinstance(kinds[n], type) and kinds[n].__module__ != "builtins"}
    return {name: kinds[name] for name in given if name not in objects}


WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def in_words(kind: Any) -> str:
    """Allowed words, or the bounds of a number, as in `above 0 to 1`; empty for other types."""
    if typing.get_origin(kind) is typing.Literal:
        return " or ".join(typing.get_args(kind))
    for meta in (m for m in getattr(kind, "__metadata__", ()) if isinstance(m, Meta)):
        if meta.title:
            return str(meta.title)
        low = f"{meta.ge:g}" if meta.ge is not None else f"above {meta.gt or 0:g}"
        if meta.le is not None or meta.lt is not None:
            return f"{low} to {meta.le:g}" if meta.le is not None else f"{low} to below {meta.lt:g}"
        if meta.ge is not None or meta.gt is not None:
            return low if meta.ge is None else f"{low} or more"
    words = next(filter(None, map(in_words, typing.get_args(kind))), WORDS.get(kind, ""))
    return f"a list, each {words}" if typing.get_origin(kind) in (list, Sequence) else words
