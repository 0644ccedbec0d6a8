"""Whatever values a record holds, it is read to the same ones, and stands in pandas frames."""

import random
import string
from pathlib import Path
from typing import Any

import msgspec
import pytest
from builders import make_run
from msgspec import inspect

import skipbench
from skipbench.errors import SkipbenchError
from skipbench.report.columns import COLUMNS
from skipbench.report.frame import frame
from skipbench.runs.measures import Metrics
from skipbench.runs.provenance import Provenance
from skipbench.runs.record import VANILLA, Texts, Turn, dump, parse
from skipbench.runs.run import read_run
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
            assert msgspec.json.decode(msgspec.json.encode(made), type=kind) == made
    assert whole > 20


def test_a_frame_holds_settings_and_numbers_by_their_paths(tmp_path: Path) -> None:
    folders = [make_run(tmp_path, seed) for seed in (0, 1)]
    runs = frame(tmp_path, wide=True).set_index("run")
    assert sorted(runs.index) == sorted(str(read_run(folder).id) for folder in folders)
    run = runs.loc[read_run(folders[1]).id]
    assert (run["method"], run["state"], run["origin.commit"]) == ("fixed", "done", "0123abc")
    assert (run["metrics.M"], run["metrics.speedup.e2e"]) == (2.0, 1.0)
    assert (run["settings.engine.threads"], run["settings.seed"]) == (1, 1)


def test_a_frame_has_the_columns_of_the_table_under_their_keys(tmp_path: Path) -> None:
    made = read_run(make_run(tmp_path))
    (run,) = skipbench.frame(tmp_path).to_dict("records")
    assert (run["run"], run["method"], run["state"]) == (made.id, "fixed", "done")
    assert (run["speedup"], run["M"], run["n"]) == (made.speedup, 2.0, made.measured.samples)
    assert (run["speedup_low"], run["speedup_high"]) == made.measured.speedup.headline[1]
    others = {"best", "over", "ttft", "itl", "score"}  # of several runs; not measured here
    assert {column.key for column in COLUMNS} - others <= run.keys()
    assert all(any(name.startswith(column.key) for column in COLUMNS) for name in [*run][2:])


def test_a_frame_of_turns_holds_the_counts_and_seconds_of_every_arm(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path))
    rows = iter(frame(tmp_path, turns=True).to_dict("records"))
    for turn in run.turns:
        for arm, of in turn.arms.items():
            row, first = next(rows), of.rounds[0]
            names = row["row"], row["arm"], row["method"]
            assert names == (run.folder.parent.name, arm, VANILLA if arm == VANILLA else "fixed")
            assert (row["index"], row["tokens"], row["rounds"]) == (turn.index, 3, len(of.rounds))
            assert (row["steps"], row["accepted"], row["emitted"]) == (4, 1, first.emitted)
            assert (row["seconds.draft"], row["speedup"]) == (of.seconds.draft, 1.0)
            if arm != VANILLA:
                assert (row["lossless"], row["divergence.logit_gap"]) == ("tie", 0.5)
    assert next(rows, None) is None
    with pytest.raises(SkipbenchError, match="has no runs"):
        frame(tmp_path / "none")
