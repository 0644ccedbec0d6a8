"""Whatever a run's tokens or seconds depend on is in its record: each input is changed, one by one,
and the record is refused by a line that names the input, or the settings make another folder.
"""

import json
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from builders import edit, interrupt, tiny_copy
from conftest import rest_slow
from msgspec.structs import asdict, replace

from skipbench.bench.load import preflight
from skipbench.config import catalog
from skipbench.config.catalog import choices
from skipbench.config.compose import compose, use_config_dir
from skipbench.config.extensions import registered
from skipbench.config.paths import PACKAGE
from skipbench.config.run_config import RunConfig
from skipbench.errors import SkipbenchError
from skipbench.experiments.resolve import resolve_cell
from skipbench.experiments.row import run_cell
from skipbench.runs import fingerprint, source
from skipbench.runs.cell import Cell
from skipbench.runs.fingerprint import compare_identity, fingerprints
from skipbench.runs.provenance import COMPUTING, Provenance, leaves
from skipbench.runs.run import read_run

METHOD = """
from dataclasses import field

from skipbench.config.configurable import File
from skipbench.methods.draft_model import DraftModel
from halves_parts import times

class Halves(DraftModel):
    table: File
    more: dict[str, int] = field(default_factory=dict)
    needs_latency = True
"""
YAML = """
defaults: [_halves, /stop@stop: fixed, _self_]
_target_: halves.Halves
name: halves
stop: {max_steps: 2}
"""
TOKENIZERS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
TEXT = ("tokenizer.json", *TOKENIZERS, "chat_template.jinja", "additional_chat_templates/a.jinja")
FILES = {
    **{f"target/{name}": "other weights (model.path=" for name in ("config.json", "*.safetensors")},
    **{f"target/{name}": "another tokenizer or chat template (model.path=" for name in TEXT},
    "target/generation_config.json": "another generation_config.json, which has EOS ids",
    **{f"draft/{n}": "other content of method.model=" for n in ("config.json", "*.safetensors")},
    "table.json": "other content of method.table=",
    "halves.py": "other code of method halves (halves.Halves)",
    "halves_parts.py": "other code of method halves (halves.Halves)",
    "prompts.jsonl": "the rows of the dataset have changed",
    "results/latency/*.json": "other latencies (",
}
"""What is refused, by file."""
OF_C = ["contrib/cpu/attention.c", "contrib/cpu/int8.h"] if registered("engine") else []
MEASURING = ["bench/prompts.py", "decode/verify.py", *OF_C]
MEASURING += ["contrib/gguf/checkpoint.py"] * ("gguf" in registered("checkpoint"))
MEASURING += ["models/load.py", "profile/clock.py", "scoring/scorers.py", "draft_plan.py"]
MEASURING += ["search/bayes.py", "methods/vanilla.py"]
CODE = {
    **dict.fromkeys(MEASURING, "other code of skipbench"),
    **dict.fromkeys(["decode/loop.py", "methods/draft_model.py"], "other code of method halves"),
}
"""What is refused, by file of the package."""
UNUSED = ["lm/cuda_graphs/engine.py", "methods/swift.py", "report/columns.py", "runs/store.py"]
STRETCHES = ["device", "cpu", "threads", "engine", "native_kernels", "arithmetic", "python"]
STRETCHES += ["torch", "transformers", "numpy", "bayesian-optimization", "triton"]
"""What samples of one run have in common."""
NO_INPUTS = ["search", "profile", "results", "dry_run", "fresh", "label", "hardware", "limit"]
NO_INPUTS += ["search_dataset", "model.settings", "model.gated", "model.calibration"]
NO_INPUTS += ["model.wheel", "model.strict"]
"""Settings on which no sample depends; those of pruning where none is done."""


class Made(NamedTuple):
    """A run that was stopped, and where its inputs are."""

    config: RunConfig
    folder: Path
    at: Path

    def file(self, pattern: str) -> Path:
        (path,) = self.at.glob(pattern)
        return path

    def refusal(self, rows: bool = False) -> str:
        """The line that refuses it; empty without one. `rows`: compares the dataset, too."""
        try:
            compare_identity(self.folder, self.config, done=False)
            if rows:
                preflight(Cell(self.config), held=True)
        except SkipbenchError as error:
            return str(error)
        return ""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    at = tmp_path_factory.mktemp("inputs")
    for name in ("target", "draft"):
        tiny_copy(at / name)
    (at / "target" / "additional_chat_templates").mkdir()
    texts = {"halves.py": METHOD, "halves_parts.py": "times = 2\n", "table.json": "[1]"}
    texts |= {"conf/method/halves.yaml": YAML, "prompts.jsonl": '{"prompt": "Once upon"}\n' * 2}
    texts |= {f"target/{n}": "{}" for n in TEXT if not (at / "target" / n).exists()}
    texts["target/chat_template.jinja"] = "{{ messages[0].content }}"
    for name, text in texts.items():
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(at)
        patch.setattr(catalog, "_folders", catalog.config_folders())
        use_config_dir(at / "conf")
        words = ["limit=1", "dataset.max_new_tokens=2", "engine.warmup=0", "method=halves"]
        words += ["model=path", f"model.path={at}/target", f"method.model={at}/draft"]
        words += [f"method.table={at}/table.json", "dataset=prompts"]
        config = compose([*words, f"dataset.path={at}/prompts.jsonl", f"results={at}/results"])
        run_cell(config, print_table=False)
        interrupt(folder := resolve_cell(config).folder, 0)
        made = Made(config, folder, at)
        assert made.refusal(rows=True) == ""
        yield made


@pytest.mark.parametrize("name", FILES)
def test_another_file_is_refused_by_its_setting(made: Made, name: str) -> None:
    path = made.file(name)
    before = path.read_bytes()
    after = bytearray(before.replace(b"Once", b"Only").replace(b'_s": ', b'_s": 1'))
    path.write_bytes(bytes(after) if after != before else before + b"\nx = 1\n")
    told = made.refusal(rows=name == "prompts.jsonl")
    if name.startswith("results/"):  # measured again by another cell: a done run is told of
        (note,) = compare_identity(made.folder, made.config, done=True)
        assert note == "decided by other latencies; fresh=true measures it anew"
    path.write_bytes(before)
    assert FILES[name] in told and "\n" not in told


def edited(patch: pytest.MonkeyPatch, name: str, added: bytes) -> None:
    """Lets a file of the package be read with more at its end."""
    assert (PACKAGE / name).is_file()

    def read(path: Path, real: Callable[[Path], bytes] = Path.read_bytes) -> bytes:
        return real(path) + added * (path == PACKAGE / name)

    patch.setattr(Path, "read_bytes", read)
    patch.setattr(source, "package_sha256", source.package_sha256.__wrapped__)
    patch.setattr(fingerprint, "package_sha256", source.package_sha256)


@pytest.mark.parametrize("name", [*CODE, *UNUSED])
def test_other_code_is_refused_where_the_run_uses_it(made: Made, name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        edited(patch, name, b"\nint more;" if name.endswith(".c") else b"\nmore = 1\n")
        told = made.refusal()
    assert CODE.get(name, "") in told and (name in CODE) == bool(told)


def test_comments_and_layout_are_no_code(made: Made) -> None:
    comments = {"decode/loop.py": b"\n\n\n# more\n"} | dict.fromkeys(
        OF_C[:1], b"\n/* more */ // words"
    )
    for name, more in comments.items():
        with pytest.MonkeyPatch.context() as patch:
            edited(patch, name, more)
            assert made.refusal() == ""


def test_the_engine_that_captures_graphs_is_code_of_its_own_runs_alone() -> None:
    before = {engine: source.package_sha256(engine) for engine in ("fused", "cuda_graphs, strict")}
    with pytest.MonkeyPatch.context() as patch:
        edited(patch, "lm/cuda_graphs/engine.py", b"\nmore = 1\n")
        assert [e for e in before if source.package_sha256(e) != before[e]] == [[*before][1]]


@pytest.mark.parametrize("name", STRETCHES)
def test_another_device_version_or_arithmetic_does_not_go_on(made: Made, name: str) -> None:
    here = read_run(made.folder).provenance
    if name in COMPUTING:  # not all of them are installed
        here = replace(here, versions={name: "1"} | here.versions)
        now = replace(here, versions=here.versions | {name: "0"})
    else:
        assert name in here.conditions
        now = replace(here, **{name: 0 if name == "threads" else "another"})
    with pytest.raises(SkipbenchError, match=rf"\({name} .* -> .*\).* fresh=true"):
        here.resumed_by(now, 1, made.folder)


def others(value: Any) -> list[Any]:
    """Other values to try for a setting."""
    match value:
        case bool():
            return [not value]
        case int() | float():
            return [value + 1, value + 0.25, value / 2]
        case list():
            return [[*value, 1], [*value, "x"], [*value, "int8"]]
    names = ["cuda", "bfloat16", "reference", "int8", "left", "hub", "max", "bayes", "random"]
    return [f"{value}x", *names, "template", "1/2", 7, 0.5, True, {"rows": 3}, {}]


def settings(config: RunConfig) -> dict[str, Any]:
    empty = {k: v for k, v in config.to_dict().items() if v is None}
    return {k: v for k, v in leaves(config.to_dict())} | empty


def value_at(node: Any, key: str) -> Any:
    for name in key.split("."):
        node = node.get(name)
    return node


def changed(config: RunConfig, key: str) -> RunConfig:
    """The configuration with another value at a dotted key."""
    *parents, last = key.split(".")
    for value in others(settings(config)[key]):
        plain = node = json.loads(json.dumps(config.to_dict()))
        for parent in parents:
            node = node[parent]
        node[last] = value
        try:
            if (other := RunConfig.from_dict(plain)).to_dict() != config.to_dict():
                return other
        except (SkipbenchError, TypeError):
            continue
    raise AssertionError(f"{key}: no other value that it may have")


def run_id(config: RunConfig) -> tuple[str, str]:
    cell = Cell(config)
    return cell.row.name, cell.folder.name


def test_every_setting_but_those_that_change_nothing_makes_another_run(made: Made) -> None:
    config = made.config
    counted = 0
    for key in settings(config):
        other = changed(config, key)
        if any(f"{key}.".startswith(f"{name}.") for name in NO_INPUTS):
            assert run_id(other) == run_id(config), key
            continue
        assert run_id(other) != run_id(config), key
        assert value_at(other.record(), key) != value_at(config.record(), key), key
        counted += 1
    assert counted >= 40


def test_a_vocabulary_counts_where_there_is_no_tokenizer_json(made: Made) -> None:
    def digest() -> str | None:
        return fingerprints(made.config)["tokenizer_sha256"]

    tokenizer, found = made.at / "target" / "tokenizer.json", set[str | None]()
    moved = tokenizer.rename(made.at / "moved.json")
    names = "vocab.json", "merges.txt", "tokenizer.model", "tekken.json"
    for name in names:
        found.add(digest())
        made.file("target").joinpath(name).write_text("x")
    assert len({*found, digest()}) == 5
    moved.rename(tokenizer)
    assert made.refusal() == ""  # nobody reads them beside tokenizer.json
    for name in names:
        made.file(f"target/{name}").unlink()


def test_other_code_of_skipbench_is_told_of_a_done_run_and_refuses_another(made: Made) -> None:
    path = made.folder / "provenance.json"
    now = path.read_text()
    edit(path, package_sha256="f" * 64)
    assert "made with other code of skipbench: changed since; fresh=true" in made.refusal()
    (package,) = compare_identity(made.folder, made.config, done=True)
    assert "another version of skipbench's code" in package
    path.write_text(now)
    assert compare_identity(made.folder, made.config, done=True) == []


@pytest.mark.parametrize(
    "method", rest_slow([m for m in choices("method") if m != "path"], "swift".__eq__)
)
def test_no_file_of_the_working_directory_is_part_of_a_run_for_its_name(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file and a checkpoint named like each value of a cell's settings."""
    more = {"draft-model": f"method.model={PACKAGE}/models/tiny", "fixed": "method.skip=attn:1"}
    config = compose([f"method={method}", "dataset=gsm8k", *filter(None, [more.get(method)])])
    before, name = fingerprints(config), run_id(config)
    values = {str(value) for value in settings(config).values()} - {config.model.path}
    names = [v for v in values if v and len(v) < 200 and not v.startswith("/") and v.isprintable()]
    assert {"test", "none", method} <= {*names}
    monkeypatch.chdir(tmp_path)
    for make in (Path.touch, lambda path: path.symlink_to(PACKAGE / "models/tiny")):
        for path in map(Path, names):
            path.parent.mkdir(parents=True, exist_ok=True)
            make(path)
        assert (fingerprints(config), run_id(config)) == (before, name)
        for path in map(Path, names):
            path.unlink()


def test_nothing_of_the_record_is_left_uncompared(made: Made) -> None:
    """A fingerprint that is added to the provenance needs its line above."""
    origin = asdict(read_run(made.folder).provenance)
    digests = {k for k, v in chain(origin.items()) if k.endswith("sha256") and v is not None}
    compared = {*fingerprints(made.config)} - {"files"}
    assert digests == compared | {"rows_sha256", "prompts_sha256", "latency_sha256"}
    assert origin["files"].keys() == {"method.model", "method.table"}
    assert {*Provenance().conditions} == set()
