"""Files that are damaged, or made to do harm: every reader gives values back or refuses in one line
that names the file; never a traceback, never a hang.
"""

import functools
import io
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders import make_run
from conftest import random_model, unseal
from malformed import WHOLE, damaged
from test_gguf import written

from skipbench.bench.latency_file import valid_record
from skipbench.bench.prompts import eos_ids
from skipbench.bench.stored_sets import Stored
from skipbench.cli.answer_file import _done
from skipbench.cli.figure import _brute_force
from skipbench.config.compose import compose
from skipbench.config.model import Model, adapter_base
from skipbench.config.paths import PACKAGE
from skipbench.contrib.artifact.cards import card_of, read_cards
from skipbench.contrib.artifact.claims import check
from skipbench.contrib.artifact.project_command import _costs
from skipbench.contrib.oracle.outputs import read_outputs
from skipbench.data.own import prompts
from skipbench.data.rows import Row
from skipbench.draft_plan import DraftPlan
from skipbench.errors import LONGEST, SkipbenchError
from skipbench.launch import manifest
from skipbench.models.load import load
from skipbench.models.outline import read_config, sized
from skipbench.models.tokenizer import read_tokenizer
from skipbench.report.figures.runs import dump_runs, read_runs
from skipbench.report.page.collect import all_runs
from skipbench.report.tables.stored import read_table, summary, would_lose
from skipbench.runs.fingerprint import weights_sha256
from skipbench.runs.reading import read_json
from skipbench.runs.run import frame, read_run
from skipbench.runs.store import read_completions
from skipbench.search.run import read_retimed, read_trials

TINY = PACKAGE / "models" / "tiny"
MOST_S = 2.0
"""To refuse a file; also on a busy machine, so that it is asked of the CPU's time."""
MOST_BYTES = 500 << 20
"""Of memory, in addition."""


SLOW = {"generation_config.json", "model.safetensors", "brute.jsonl"}
SLOW |= {"tokenizer.json", "tokenizer_config.json"}
"""A tenth of a second each: a model is loaded, a figure is drawn, a process begins."""
UNNAMED = {"plan.txt", "set.json"}
"""Values of settings, whose messages quote the text."""


class Reader(NamedTuple):
    """A file, and what reads it."""

    path: Path
    read: Callable[[], object]


def plan(path: Path) -> object:
    return DraftPlan.parse(path.read_text(errors="replace"), 12)


def stored_plan(path: Path) -> object:
    stored = read_json(path, Stored)
    return stored and DraftPlan.parse(stored.skip, 12)


def records(place: Path) -> dict[str, Reader]:
    """Those of a results folder, and what users give beside one."""
    results = place / "results"
    run = make_run(results)
    unseal(run)
    readers = {}

    def add(name: str, text: str, read: Callable[[Path], object]) -> None:
        (path := place / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        readers[name] = Reader(path, lambda: read(path))

    def whole(path: Path) -> object:
        if path.name == "completions.jsonl":
            return read_completions(path)
        frames = frame(results), frame(results, samples=True)
        return read_run(path.parent), frames, all_runs(results)

    for path in (*run.glob("*.json*"), run / "config.yaml"):
        readers[path.name] = Reader(path, functools.partial(whole, path))
    made, config = read_run(run), compose(["model=tiny", "method=uniform"]).to_dict()
    row = {"name": "a", "folders": ["x"], "configs": [json.loads(json.dumps(config, default=str))]}
    trial = {"iteration": 0, "skip": "attn:1", "value": 1.0, "detail": {}, "point": None}
    retimed = {"iterations": 1, "sets": ["attn:1"], "values": [[0.1]], "best": "a", "value": 0.1}
    latency = {"attention_s": 1e-3, "attention_s_per_token": 1e-7, "mlp_s": 1e-3, "head_s": 1e-3}
    given = {"prompt": "a", "output": "b", "output_token_ids": [1, 2], "prompt_token_ids": [3]}
    spoken = {"messages": [{"role": "user", "content": "a"}]}
    crate = {"@graph": [{"@id": "claims.json", "sha256": "0"}]}
    forced = {"programme": "a", "model": "m", "cases": 1, "best": 1, "found": 0.9, "random": 0.1}
    card = msgspec.json.decode(msgspec.json.encode(card_of(made, 12, {})))

    def lines(*values: object) -> str:
        return "".join(json.dumps(value) + "\n" for value in values)

    def asked(path: Path) -> object:
        return prompts(str(path), None, 0, False)

    def submitted(path: Path) -> object:
        manifest.refuse_unanswered(place)
        return manifest.tasks(place), manifest.read_row(path.with_name("cells.jsonl"), 0)

    add("card.jsonl", lines(card), read_cards)
    add("figure.json", dump_runs("swift-figure6", [made]), read_runs)
    add("table.json", table := summary("methods", "embedded", [made]), read_table)
    add("before.json", table, lambda path: would_lose(path, table))
    add("brute.jsonl", lines(forced), _brute_force)
    add("latency.json", lines({"format": 4, "model": latency | {"layers": 12}}), _costs)
    add("stored.json", lines({"format": 4, "model": latency}), lambda p: valid_record(p, "fused"))
    add("set.json", lines({"skip": "attn:1", "settings": {}}), stored_plan)
    add("plan.txt", "attn:1,3-5;mlp:2;window:64;head:likely", plan)
    seconds = {"seconds_suggest": 0.1, "seconds_objective": 0.1}
    add("s/trace.jsonl", lines({"settings": {}}, trial | seconds), lambda p: read_trials(p, 9, 12))
    add("s/retimed.jsonl", lines(retimed), lambda path: read_retimed(path.parent, 1))
    add("submit/a/cells.jsonl", lines(row), submitted)
    add("submit/a/jobs.jsonl", lines({"job": "1", "first": 0, "count": 1}), submitted)
    add("outputs.jsonl", lines(given), read_outputs)
    answer = {"id": "p", "settings": "s", "prompt": "a"}
    add("answers.jsonl", lines(answer), lambda path: _done(path, [Row("p", "a")], "s"))
    add("prompts.jsonl", lines({"prompt": "a b c"}, spoken), asked)
    add("prompts.txt", "a b c\nd\n", asked)
    add("prompts.parquet", "", asked)
    pq.write_table(pa.table({"prompt": ["a b c", "d"], "x": [1, 2]}), place / "prompts.parquet")
    add("bundle/claims.json", lines({"claims": []}), lambda path: [*check(path.parent)])
    add("bundle/ro-crate-metadata.json", lines(crate), lambda path: [*check(path.parent)])
    return readers


def checkpoints(place: Path) -> dict[str, Reader]:
    """Those of a model."""
    readers, model = dict[str, Reader](), random_model("llama")
    folder, adapter = place / "m", place / "a"
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / name, folder)
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "../m"}')
    gguf = written(place / "m.gguf", model)
    (folder / "other.safetensors.index.json").write_text(
        '{"weight_map": {"a": "model.safetensors"}}'
    )

    def whole() -> object:
        return eos_ids(load(str(folder))[0])

    def config() -> object:
        sizes = sized(Model(path=str(folder), architecture=None))
        return read_config(str(folder), None), sizes, weights_sha256(Model(path=str(folder)))

    def tokenizer() -> object:
        return read_tokenizer(str(folder))

    for name in ("generation_config.json", "model.safetensors"):
        readers[name] = Reader(folder / name, whole)
    for name in ("config.json", "other.safetensors.index.json"):
        readers[name] = Reader(folder / name, config)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        readers[name] = Reader(folder / name, tokenizer)
    file = adapter / "adapter_config.json"
    readers[file.name] = Reader(file, lambda: adapter_base(str(adapter)))
    readers[gguf.name] = Reader(gguf, lambda: read_tokenizer(str(gguf)))
    return readers


def resident_bytes(field: str) -> int:
    """`VmRSS`, what is in memory now, or `VmHWM`, the most since the last call for `VmRSS`."""
    if field == "VmRSS":
        Path("/proc/self/clear_refs").write_text("5")
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{field}:")[2].split()[0]) << 10


def cpu_s() -> float:
    """Of this process and of those that it waited for."""
    return sum(os.times()[:4])


def fault(reader: Reader, contents: bytes) -> str | None:
    """What is wrong with how a file of these contents is read; the old ones are put back."""
    before = reader.path.read_bytes()
    reader.path.write_bytes(contents)
    before_bytes, began, text = resident_bytes("VmRSS"), cpu_s(), ""
    try:
        reader.read()
    except SkipbenchError as error:
        text = str(error)
        place = (reader.path.name, reader.path.parent.name)
        if not any(name in text for name in place) and reader.path.name not in UNNAMED:
            return f"{text!r:.300} names no file"
        if not text.isprintable() or len(text) > 10 * LONGEST:
            return f"{text!r:.300} is no line"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"{error!r:.300}"
    finally:
        reader.path.write_bytes(before)
    took_s = cpu_s() - began
    more_bytes = resident_bytes("VmHWM") - before_bytes
    far = took_s > MOST_S or more_bytes > MOST_BYTES
    return f"{took_s:.1f} s, {more_bytes >> 20} MiB, {text!r:.100}" if far else None


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reader]:
    place = tmp_path_factory.mktemp("malformed")
    return records(place) | checkpoints(place)


def test_sound_files_are_read(readers: dict[str, Reader]) -> None:
    for reader in readers.values():
        reader.read()


@pytest.mark.filterwarnings("ignore")  # of a library that reads nonsense
@pytest.mark.parametrize("each", [4, pytest.param(3450, marks=pytest.mark.slow)])
def test_whatever_a_file_holds_is_read_or_refused_in_one_line(
    each: int, readers: dict[str, Reader]
) -> None:
    """Each file with hostile contents, and damaged so many times; the slow ones less often."""
    faults = list[str]()
    for name, reader in readers.items():
        rng, sound = random.Random(f"{each} {name}"), reader.path.read_bytes()
        count = each // 30 if name in SLOW else each
        tries = [*(WHOLE if count else []), *(damaged(sound, rng) for _ in range(count))]
        found = ((fault(reader, contents), contents) for contents in tries)
        faults += [f"{name}: {what}; {contents[:200]!r}" for what, contents in found if what]
    assert not faults, "\n".join(faults[:20])


@pytest.mark.parametrize(("rows", "longest"), [(2**20, 5), (200, 15 << 20)])
def test_a_parquet_file_that_unpacks_to_gigabytes_is_refused(
    rows: int, longest: int, readers: dict[str, Reader]
) -> None:
    """One text, which each row refers to."""
    prompt = pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), ["a" * longest])
    table, bomb = pa.table({"prompt": prompt}), io.BytesIO()
    pq.write_table(table, bomb, compression="zstd", dictionary_pagesize_limit=1 << 30)
    assert len(bomb.getvalue()) < 10_000
    reader = readers["prompts.parquet"]

    def refused() -> None:
        with pytest.raises(SkipbenchError, match="takes more than 256 MiB of memory") as caught:
            reader.read()
        raise caught.value

    assert fault(reader._replace(read=refused), bomb.getvalue()) is None


@pytest.mark.parametrize("kind", ["a pipe", "a folder", "a link to endless zeros", "none"])
def test_what_is_no_file_is_refused_and_not_waited_for(
    kind: str, readers: dict[str, Reader]
) -> None:
    for name, reader in readers.items():
        before = reader.path.read_bytes()
        reader.path.unlink()
        if kind == "a pipe":
            os.mkfifo(reader.path)
        elif kind == "a folder":
            reader.path.mkdir()
        elif kind != "none":
            reader.path.symlink_to("/dev/zero")
        try:
            if name not in UNNAMED:
                reader.read()
        except SkipbenchError as error:
            assert str(error).isprintable()
        finally:
            reader.path.rmdir() if kind == "a folder" else reader.path.unlink(missing_ok=True)
            reader.path.write_bytes(before)
