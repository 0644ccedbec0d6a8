"""Files that are damaged, or made to do harm: every reader gives values back or refuses in one line
that names the file; never a traceback, never a hang.
"""

import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from conftest import random_model, unseal
from test_bad_records import make_run
from test_gguf import written

from skipbench.bench.latency_file import valid_record
from skipbench.bench.prompts import eos_ids
from skipbench.bench.stored_sets import Stored
from skipbench.cli.answer_file import _done
from skipbench.cli.figure import _brute_force
from skipbench.cli.offline import _costs
from skipbench.config.compose import compose
from skipbench.config.model import Model, adapter_base
from skipbench.config.paths import PACKAGE
from skipbench.data.own import prompts
from skipbench.data.rows import Row
from skipbench.draft_plan import DraftPlan
from skipbench.errors import LONGEST, SkipbenchError
from skipbench.launch import manifest
from skipbench.metrics.card import card_of, read_cards
from skipbench.models.gguf import read_gguf
from skipbench.models.load import load
from skipbench.models.outline import read_config, sized
from skipbench.models.tokenizer import read_tokenizer
from skipbench.oracle.outputs import read_outputs
from skipbench.report.bundle.claims import check
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


UNNAMED = {"plan.txt", "set.json"}
"""Values of settings, whose messages quote the text."""


class Reader(NamedTuple):
    """A file, and what reads it."""

    path: Path
    read: Callable[[], object]


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
        return read_run(path.parent), frame(results), frame(results, samples=True), all_runs(results)

    for path in sorted(run.glob("*.json*")) + [run / "config.yaml"]:
        readers[path.name] = Reader(path, lambda path=path: whole(path))  # type: ignore[misc]  # bound
    made = read_run(run)
    costs = '{"format": 4, "model": {"attention_s": 1e-3, "attention_s_per_token": 1e-7, "mlp_s": 1e-3, "head_s": 1e-3, "layers": 12}}'
    trial = '{"iteration": 0, "skip": "attn:1", "value": 1.0, "detail": {}, "point": null, "seconds_suggest": 0.1, "seconds_objective": 0.1}'
    add("card.jsonl", msgspec.json.encode(card_of(made, 12, {})).decode() + "\n", read_cards)
    add("figure.json", dump_runs("swift-figure6", [made]), read_runs)
    add("table.json", summary("methods", "embedded", [made]), lambda p: (read_table(p), would_lose(p, p.read_text())))
    add("brute.jsonl", '{"programme": "a", "cases": 1, "lost": 0.1, "random_lost": 0.1}\n', _brute_force)
    add("latency.json", costs, lambda p: (valid_record(p, "fused"), _costs(p)))
    add("set.json", '{"skip": "attn:1", "settings": {}}', stored_plan)
    add("plan.txt", "attn:1,3-5;mlp:2;window:64;head:likely", lambda p: DraftPlan.parse(p.read_text(errors="replace"), 12))
    add("search/trace.jsonl", '{"settings": {}}\n' + trial + "\n", lambda p: read_trials(p, 10, 12))
    add("search/retimed.jsonl", '{"iterations": 1, "sets": ["attn:1"], "values": [[0.1]], "best": "attn:1", "value": 0.1}\n', lambda p: read_retimed(p.parent, 1))
    config = compose(["model=tiny", "method=uniform"]).to_dict()
    add("submit/a-1/cells.jsonl", json.dumps({"name": "a", "folders": ["x"], "configs": [config]}, default=str) + "\n", lambda p: (manifest.tasks(place), manifest.read_row(p, 0)))
    add("submit/a-1/jobs.jsonl", '{"job": "1", "first": 0, "count": 1}\n', lambda p: manifest.tasks(place))
    add("outputs.jsonl", '{"prompt": "a", "output": "b", "output_token_ids": [1, 2], "prompt_token_ids": [3]}\n', read_outputs)
    add("answers.jsonl", '{"id": "prompts-1", "settings": "s", "prompt": "a"}\n', lambda p: _done(p, [Row("prompts-1", "a")], "s"))
    add("prompts.jsonl", '{"prompt": "a b c"}\n{"messages": [{"role": "user", "content": "a"}]}\n', lambda p: prompts(str(p), None, 0, False))
    add("prompts.txt", "a b c\nd\n", lambda p: prompts(str(p), None, 0, False))
    add("prompts.parquet", "", lambda p: prompts(str(p), None, 0, False))
    pq.write_table(pa.table({"prompt": ["a b c", "d"], "x": [1, 2]}), place / "prompts.parquet")
    add("bundle/claims.json", '{"claims": []}', lambda p: [*check(p.parent)])
    add("bundle/ro-crate-metadata.json", '{"@graph": [{"@id": "claims.json", "sha256": "0"}]}', lambda p: [*check(p.parent)])
    return readers


def checkpoints(place: Path) -> dict[str, Reader]:
    """Those of a model."""
    readers, model = {}, random_model("llama")
    folder, adapter = place / "m", place / "a"
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / name, folder)
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "../m"}')
    gguf = written(place / "m.gguf", model)
    index = folder / "model.safetensors.index.json"

    def whole() -> object:
        return eos_ids(load(str(folder))[0])

    def config() -> object:
        return read_config(str(folder), None), sized(Model(path=str(folder), architecture=None))

    def indexed() -> object:
        return config(), weights_sha256(Model(path=str(folder)))

    readers["config.json"] = Reader(folder / "config.json", config)
    readers["generation_config.json"] = Reader(folder / "generation_config.json", whole)
    readers["model.safetensors"] = Reader(folder / "model.safetensors", whole)
    readers["tokenizer.json"] = Reader(folder / "tokenizer.json", lambda: read_tokenizer(str(folder)))
    readers["tokenizer_config.json"] = Reader(folder / "tokenizer_config.json", lambda: read_tokenizer(str(folder)))
    readers["index"] = Reader(index, indexed)
    readers["adapter_config.json"] = Reader(adapter / "adapter_config.json", lambda: adapter_base(str(adapter)))
    readers["gguf"] = Reader(gguf, lambda: read_gguf(str(gguf)).tokenizer())
    return readers


HOSTILE: list[Any] = [
    None, True, False, -1, 0, 1, 2**31, 2**63, 10**30, 1e308, -0.5, 1e-320, float("nan"), float("inf"),
    "", "\x1b[2J\x07", "\ud800", "a" * 5000, "9" * 5000, "../../etc/passwd", "/dev/zero", "os.system",
    [], [[]], [None], {}, {"": 0}, {"a": {"a": {}}}, ["attn:1"] * 3, [2**63, -1, 0.5], "attn:0-999999999999", "window:" + "9" * 5000,
]  # fmt: skip
WHOLE = [
    b"", b"\n", b"[" * 100_000 + b"\n", b"\0" * 64, b"{", b"[]", b"{}", b"null", b"7", b'"a"', b"\xff\xfe\x00a\n", b"\xef\xbb\xbf{}\n",
    b"[" * 100_000, b'{"a":' * 100_000, b"- " * 50_000, b'{"x": NaN}', b'{"x": 1e999}', b'{"a": 1, "a": 2}',
    b'{"x": ' + b"9" * 100_000 + b"}", b'{"prompt": "\\ud800"}\n', b'{"id": "\\u001b[2J"}\n', b"a: &a [x, x]\nb: [*a, *a]\n",
    b"!!python/object/apply:os.system ['true']\n", b"{}\n" * 20_000, b"PAR1" + b"\0" * 100 + b"PAR1",
    b"GGUF" + bytes([3, 0, 0, 0]) + b"\xff" * 16, b"\xff\xff\xff\xff\xff\xff\xff\x7f{}", b"a" * 1_000_000,
]  # fmt: skip
"""Contents in place of a file."""


def damaged(text: bytes, rng: random.Random) -> bytes:
    """The contents with one value, or some bytes, exchanged."""
    lines = text.split(b"\n")
    at = rng.randrange(len(lines))
    if rng.random() < 0.7:
        try:
            line, value = (at, json.loads(lines[at])) if rng.random() < 0.5 else (None, json.loads(text))
            new = exchanged(value, rng)
            made = json.dumps(new).encode()
            return made if line is None else b"\n".join([*lines[:line], made, *lines[line + 1 :]])
        except (ValueError, RecursionError):
            pass
    start, size = rng.randrange(len(text) + 1), rng.choice((0, 1, 1, 2, 8, 100))
    fresh = rng.choice((b"", rng.randbytes(rng.randrange(9)), b"\0" * 40, b"9" * 30, b"[" * 3000, b"\xff", b"-", b"\x1b["))
    return text[:start] + fresh + text[start + size :]


def exchanged(value: Any, rng: random.Random) -> Any:
    """The value with a part of it, found by chance, replaced, left out or doubled."""
    if isinstance(value, dict | list) and value and rng.random() < 0.9:
        keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
        key, new = rng.choice(keys), value.copy()
        if (chance := rng.random()) < 0.1:
            del new[key]
        elif chance < 0.15 and isinstance(new, list):
            new += new
        else:
            new[key] = exchanged(value[key], rng)
        return new
    return rng.choice(HOSTILE)


class Refusals:
    """What readers made of files."""

    def __init__(self) -> None:
        self.files = self.refused = 0
        self.faults: list[str] = []

    def attack(self, name: str, reader: Reader, contents: bytes) -> None:
        """Reads a file with these contents, and puts the old ones back."""
        before = reader.path.read_bytes() if reader.path.exists() else None
        reader.path.write_bytes(contents)
        self.files += 1
        began = time.process_time()
        try:
            reader.read()
        except SkipbenchError as error:
            self.refused += 1
            text = str(error)
            named = reader.path.name in text or reader.path.parent.name in text or name in UNNAMED
            if not named or not text.isprintable() or len(text) > 2 * LONGEST:
                self.faults.append(f"{name}: {text[:200]!r} of {contents[:80]!r}")
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            self.faults.append(f"{name}: {error!r:.200} of {contents[:300]!r}")
        if (took_s := time.process_time() - began) > MOST_S:
            self.faults.append(f"{name}: {took_s:.1f} s of {contents[:80]!r}")
        if before is None:
            reader.path.unlink()
        else:
            reader.path.write_bytes(before)
