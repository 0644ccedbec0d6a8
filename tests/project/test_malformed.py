"""Damaged files: every reader gives values back, or refuses in one line that names the file."""

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders import make_run
from conftest import random_model
from malformed import Reader, faults, reader_of

from skipbench.bench.prompts import eos_ids
from skipbench.bench.stored_sets import Stored
from skipbench.cli.figure import _brute_force
from skipbench.cli.generate import _done
from skipbench.config.compose import compose
from skipbench.config.model import Model
from skipbench.config.paths import PACKAGE
from skipbench.data.own import prompts
from skipbench.data.rows import Example
from skipbench.draft_plan import DraftPlan
from skipbench.launch import manifest
from skipbench.metrics.prices import Prices
from skipbench.models.load import load
from skipbench.models.outline import read_config, sized
from skipbench.report.frame import frame
from skipbench.report.page import readable_runs
from skipbench.report.tables.stored import Summary, read_summary, table_of
from skipbench.runs.fingerprint import weights_sha256
from skipbench.runs.reading import read_json, readable
from skipbench.runs.run import read_run
from skipbench.runs.store import read_texts
from skipbench.search.run import read_retimed, read_trials

TINY = PACKAGE / "models" / "tiny"


def plan(path: Path) -> object:
    return DraftPlan.parse(path.read_text(errors="replace"), 12)


def stored_plan(path: Path) -> object:
    stored = read_json(path, Stored)
    return stored and DraftPlan.parse(stored.skip, 12)


def records(place: Path) -> dict[str, Reader]:
    """Those of a results folder, and what users give beside one."""
    results = place / "results"
    run = make_run(results)
    readers = {}

    def add(name: str, text: str, read: Callable[[Path], object]) -> None:
        readers[name] = reader_of(place / name, text, read)

    def whole(path: Path) -> object:
        if path.name == "texts.jsonl":
            return read_texts(run)
        if path.suffix == ".yaml":
            return read_run(run)
        frames = frame(results), frame(results, turns=True)
        return read_run(run), frames, readable_runs(results)

    for path in (*run.glob("*.[jy]*"), *run.parent.glob("*.[jy]*")):
        readers[f"{path.parent.name}/{path.name}"] = Reader(path, functools.partial(whole, path))
    made, config = read_run(run), compose(["model=tiny", "method=uniform"]).to_dict()
    row = {
        "name": "a",
        "folders": ["x"],
        "names": ["x"],
        "configs": [json.loads(json.dumps(config, default=str))],
    }
    trial = {"iteration": 0, "skip": "attn:1", "value": 1.0, "detail": {}, "point": None}
    retimed = {"iterations": 1, "sets": ["attn:1"], "values": [[0.1]], "best": "a", "value": 0.1}
    latency = {"attention_s": 1e-3, "attention_s_per_token": 1e-7, "mlp_s": 1e-3, "head_s": 1e-3}
    spoken = {"messages": [{"role": "user", "content": "a"}]}
    forced = {"programme": "a", "model": "m", "cases": 1, "best": 1, "found": 0.9, "random": 0.1}

    def lines(*values: object) -> str:
        return "".join(json.dumps(value) + "\n" for value in values)

    def asked(path: Path) -> object:
        return prompts(str(path), None, 0, False)

    def rendered(path: Path) -> object:
        with readable(path):
            return table_of(read_summary(path))

    def submitted(path: Path) -> object:
        return manifest.tasks(place), manifest.read_row(path.with_name("cells.jsonl"), 0)

    add("table.json", Summary("methods", "embedded", [made]).text, rendered)
    add("brute.jsonl", lines(forced), _brute_force)
    add("stored.json", lines({"format": 4, "model": latency}), lambda p: Prices.read(p, "fused"))
    add("set.json", lines({"skip": "attn:1", "settings": {}}), stored_plan)
    add("plan.txt", "int8;attn:1,3-5;mlp:2", plan)
    seconds = {"seconds_suggest": 0.1, "seconds_objective": 0.1}
    add("s/trace.jsonl", lines({"settings": {}}, trial | seconds), lambda p: read_trials(p, 9, 12))
    add("s/retimed.jsonl", lines(retimed), lambda path: read_retimed(path.parent, 1))
    add("submit/a/cells.jsonl", lines(row), submitted)
    add("submit/a/jobs.jsonl", lines({"job": "1", "first": 0, "count": 1}), submitted)
    answer = {"id": "p", "settings": "s", "prompt": "a"}
    add("answers.jsonl", lines(answer), lambda path: _done(path, [Example("p", "a")], "s"))
    add("prompts.jsonl", lines({"prompt": "a b c"}, spoken), asked)
    add("prompts.txt", "a b c\nd\n", asked)
    add("prompts.parquet", "", asked)
    pq.write_table(pa.table({"prompt": ["a b c", "d"], "x": [1, 2]}), place / "prompts.parquet")
    return readers


def checkpoints(place: Path) -> dict[str, Reader]:
    """Those of a model."""
    readers, model = dict[str, Reader](), random_model("llama")
    folder = place / "m"
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / name, folder)
    (folder / "other.safetensors.index.json").write_text(
        '{"weight_map": {"a": "model.safetensors"}}'
    )

    def whole() -> object:
        return eos_ids(load(str(folder))[0])

    def config() -> object:
        sizes = sized(Model(path=str(folder), architecture=None))
        return read_config(str(folder), None), sizes, weights_sha256(Model(path=str(folder)))

    for name in ("generation_config.json", "model.safetensors"):
        readers[name] = Reader(folder / name, whole)
    for name in ("config.json", "other.safetensors.index.json"):
        readers[name] = Reader(folder / name, config)
    return readers


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reader]:
    place = tmp_path_factory.mktemp("malformed")
    return records(place) | checkpoints(place)


@pytest.mark.filterwarnings("ignore")  # of a library that reads nonsense
@pytest.mark.parametrize("each", [4, pytest.param(3450, marks=pytest.mark.slow)])
def test_whatever_a_file_holds_is_read_or_refused_in_one_line(
    each: int, readers: dict[str, Reader]
) -> None:
    for reader in readers.values():
        reader.read()
    found = faults(readers, each)
    assert not found, "\n".join(found[:20])
