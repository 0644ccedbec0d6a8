"""Whatever values a record holds, it is read to the same ones."""

import random
import string
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from skipbench.errors import SkipbenchError
from skipbench.runs.measures import Metrics
from skipbench.runs.provenance import Provenance
from skipbench.runs.reading import strict_json
from skipbench.runs.record import Texts, Turn, dump, parse
from skipbench.runs.state import Status

ODD = "é\u2028\ufeff\U0001f600\u202e"
CONTROLS = "\x85\x00\x1b\x7f\n\r\x9b"
NUMBERS = (0.0, -0.0, 5e-324, 1.7976931348623157e308, 0.1, 1 / 3, 1e22, -1e-7)


def value(kind: Any, rng: random.Random) -> Any:
    """A plain value of a type, by chance."""
    match kind:
        case inspect.NoneType():
            return None
        case inspect.BoolType():
            return rng.random() < 0.5
        case inspect.IntType():
            least, most = (-(2**63) if kind.ge is None else kind.ge), 2**63 - 1
            return rng.choice((least, most, 7, rng.randrange(least, most + 1)))
        case inspect.FloatType():
            number = rng.choice((*NUMBERS, rng.lognormvariate(0, 50)))
            return number if kind.ge is None else abs(number)
        case inspect.StrType():
            letters = string.printable[:62] + ODD + CONTROLS
            return "".join(rng.choices(letters, k=rng.randrange(6)))
        case inspect.LiteralType():
            return rng.choice(kind.values)
        case inspect.UnionType():
            return value(rng.choice(kind.types), rng)
        case inspect.ListType():
            return [value(kind.item_type, rng) for _ in range(rng.randrange(4))]
        case inspect.TupleType():
            return [value(part, rng) for part in kind.item_types]
        case inspect.NamedTupleType():
            return [value(field.type, rng) for field in kind.fields]
        case inspect.DictType():
            key, item = kind.key_type, kind.value_type
            return {value(key, rng): value(item, rng) for _ in range(rng.randrange(4))}
        case inspect.StructType():
            wanted = (field for field in kind.fields if field.required or rng.random() < 0.8)
            return {field.encode_name: value(field.type, rng) for field in wanted}
        case inspect.AnyType():
            return rng.choice((None, [1, {"a": 0.5}], {"b": ["é"]}, "x", 2**63 - 1))
    raise AssertionError(kind)


@pytest.mark.parametrize("kind", [Turn, Texts, Metrics, Provenance, Status])
def test_a_record_is_read_to_the_values_that_were_written(kind: Any) -> None:
    rng, described, whole = random.Random(0), inspect.type_info(kind), 0
    for _ in range(100):
        plain = value(described, rng)
        if kind is Turn:
            plain["order"] = [*plain["arms"]]
        try:
            made = msgspec.convert(plain, kind)
        except msgspec.ValidationError as error:  # `resumed` of a provenance is checked, too
            assert kind is Provenance and "resumed" in plain, error
            continue
        whole += 1
        if kind in (Turn, Texts):
            assert parse(dump(made), kind) == made
        else:
            assert msgspec.convert(strict_json(msgspec.json.encode(made)), kind) == made
    assert whole > 20


@pytest.mark.parametrize("text", ['{"a": 1, "a": 1}', "NaN", '"\\ud800"', "1e999", "{"])
def test_what_has_no_one_value_is_refused(text: str) -> None:
    with pytest.raises((ValueError, SkipbenchError)):
        strict_json(text)
