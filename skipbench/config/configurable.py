"""`Configurable`: a class whose annotated fields are its settings; and bounds of settings."""

import copy
import dataclasses
import functools
import math
import re
import typing
from collections.abc import Sequence
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
PositiveFloat = Annotated[float, Meta(gt=0)]
PositiveShare = Annotated[float, Meta(gt=0, le=1)]
TwoOrMore = Annotated[int, Meta(ge=2)]
File = Annotated[str, Meta()]
"""A file, or a checkpoint: its content is part of what a run is known by."""
T = typing.TypeVar("T")


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
    skipbench.errors.SkipbenchError: Repeat: init='first'; wanted init of last or prompt
    """

    def __init_subclass__(cls, kw_only: bool = True) -> None:
        super().__init_subclass__()
        if "__annotations__" in cls.__dict__ or len(cls.__bases__) > 1:
            dataclasses.dataclass(kw_only=kw_only, eq=False)(cls)

    def __post_init__(self) -> None:
        for name, kind in _bounds(type(self)).items():  # type: ignore[arg-type]  # mypy: no class is hashable
            value = getattr(self, name)
            try:
                setattr(self, name, msgspec.convert(value, kind))
            except msgspec.ValidationError as error:
                text = str(error).removeprefix("Expected ").replace("`", "")
                wanted = text if "array" in text else in_words(kind) or text
                message = f"{self.label}: {name}={value!r}; wanted {name} of {wanted}"
                raise SkipbenchError(message) from error

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


def check_decoding(temperature: float, top_p: float, top_k: int) -> None:
    """Raises SkipbenchError for a value out of range; NaN is in none."""
    if not 0 <= temperature < math.inf or not 0 < top_p <= 1 or top_k < 0:
        raise SkipbenchError(
            f"decoding: {temperature=}, {top_p=}, {top_k=}; wanted a finite temperature >= 0, 0 < "
            "top_p <= 1, top_k >= 0 (0: off)"
        )


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
