"""A typical mistake gets the same one line on every route: a cell, a sweep, a folder of
configurations of one's own.
"""

from pathlib import Path

import pytest
from conftest import Command, rest_slow

from skipbench.config import catalog

MISTAKES = [
    ("limt=3", "unknown key 'limt'. Did you mean limit?"),
    (
        "decoding.temprature=1",
        "unknown key 'decoding.temprature'. Did you mean decoding.temperature",
    ),
    ("nonsense.key=1", "unknown key 'nonsense'. Allowed here: dataset, "),
    ("model=tinny", "unknown model 'tinny'. Did you mean tiny?"),
    ("model=", "unknown model ''. Allowed here: "),
    ("method=swfit", "unknown method 'swfit'. Did you mean swift"),
    ("dataset=mini-maht", "unknown dataset 'mini-maht'. Did you mean mini-math"),
    ("engine=fussed", "unknown engine 'fussed'. Did you mean fused?"),
    ("search=selfsd", "unknown search 'selfsd'. Did you mean self-sd?"),
    ("experiment=swift-tabel8", "unknown experiment 'swift-tabel8'. Did you mean swift-table8"),
    ("hydra/launcher=nope", "unknown launcher 'nope'. Allowed here: "),
    (
        "limit=abc",
        "limit: value 'abc' of type 'str' could not be converted to Integer; wanted a whole number",
    ),
    ("seed=x", "seed: value 'x' of type 'str' could not be converted to Integer"),
    (
        "engine.threads=two",
        "engine.threads: value 'two' of type 'str' could not be converted to Integer",
    ),
    (
        "decoding.temperature=hot",
        "decoding.temperature: value 'hot' of type 'str' could not be converted to Float",
    ),
    ("decoding.temperature=nan", "wanted a finite temperature >= 0"),
    (
        "model.dtype=fp16",
        "model.dtype: invalid value 'fp16', expected one of [float32, bfloat16, float16]. Did you "
        "mean float16",
    ),
    ("model=path", "model.path must be given, as in model.path=VALUE"),
    ("model.path=/nope", "model.path='/nope' is neither a folder, nor a .gguf file"),
    ("method=fixed", "method.skip must be given, as in method.skip=VALUE"),
    ("method=fixed method.skip=attn:1,2", "is quoted twice, as in 'method.skip=\"attn:1,2\"'"),
    (
        "method=fixed method.skip=attn:1;mlp:3",
        "is quoted twice, as in 'method.skip=\"attn:1;mlp:3\"'",
    ),
    ("method.skip=attn:99", "a model of 12 layers has 0 to 23"),
    ("method.stop=fixed", "a stop rule is chosen by stop@method.stop=adaptive|fixed"),
    ("stop=fixed", "unknown key 'stop'. Did you mean method.stop"),
    ("dataset=tinystories dataset.prompt=x", "dataset.prompt=x; tinystories has: swift, plain"),
    ("+unknown=1", "unknown key 'unknown'. Allowed here: dataset, "),
    ("+method.foo=1", "unknown key 'method.foo'. "),
    (
        "hardware.gpus=1",
        "hardware has no keys; it is null, choose one first, as hardware=a100-40gb",
    ),
    ("model.architecture.layers=3", "model.architecture has no keys; it is one value, or null"),
    ("hydra.foo=1", "unknown key 'hydra.foo'; --cfg hydra prints Hydra's own"),
    ("~seed", "~seed: a key cannot be deleted"),
    ("=3", "'=3' is no override; wanted KEY=VALUE"),
    (
        "swift",
        "'swift' is neither a command nor an override KEY=VALUE, such as method=uniform. Did "
        "you mean method=swift?",
    ),
    ("--methd", "unknown flag '--methd'; settings are written without dashes, as method=..."),
    ("--model", "unknown flag '--model'; settings are written without dashes, as model=..."),
    ("method = swift", "'method' alone is no setting; write method=CHOICE without spaces"),
    ("hydra.run.dir=/tmp/x", "hydra.run.dir=/tmp/x: records go below results=FOLDER"),
    ("hydra.sweep.dir=/tmp/x", "hydra.sweep.dir=/tmp/x: records go below results=FOLDER"),
    ("seed=x", "seed: value 'x' of type 'str' could not be converted to Integer"),
    ("--force", "unknown flag '--force': it is a flag of table, "),
    ("--forse", "unknown flag '--forse'. Did you mean --force"),
    ("limit=0", "limit=0; wanted 1 or more, or null for all"),
]


# One of each kind every day: a choice, a value that the cell refuses, what Hydra would add or
# delete, a stray word, a flag. Keys, types and other values: `test_bad_input.py`, on one route.
DAILY = ("--methd", "method=swfit", "method.skip=attn:99", "~seed", "swift")


@pytest.mark.parametrize(
    ("words", "says"),
    rest_slow(MISTAKES, lambda case: case[0] in DAILY),
    ids=[words for words, _ in MISTAKES],
)
def test_a_mistake_is_told_in_one_line_on_every_route(
    words: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skipbench: Command
) -> None:
    (tmp_path / "conf" / "dataset").mkdir(parents=True)
    # the added folder goes when the test ends
    monkeypatch.setattr(catalog, "_folders", catalog.config_folders())
    given = words.split()
    rest = [w for w in ("limit=1", "dry_run=true") if w.partition("=")[0] not in words]
    given += [*rest, f"results={tmp_path / 'results'}"]
    told = set()
    for route in ([], ["-m"], ["--config-dir", str(tmp_path / "conf")]):
        done = skipbench(*route, *given)
        assert done.returncode == 2
        told.add(done.stderr)
    (line,) = told
    assert line.startswith("error: ") and line.count("\n") == 1 and says in line
    assert "Traceback" not in line and "HYDRA_FULL_ERROR" not in line


@pytest.mark.slow
def test_a_sweep_begins_only_if_all_its_cells_compose(tmp_path: Path, skipbench: Command) -> None:
    done = skipbench("-m", "method=uniform,fixed", "limit=1", f"results={tmp_path}")
    assert (done.returncode, done.stderr) == (
        2,
        "error: method.skip must be given, as in method.skip=VALUE\n",
    )
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow  # tests/launch/test_sweep.py has one of every day
def test_a_sweep_tells_which_cell_failed_and_why(tmp_path: Path, skipbench: Command) -> None:
    done = skipbench(
        "-m", "method.skip='attn:1','attn:99'", "limit=1", "dry_run=true", f"results={tmp_path}"
    )
    assert done.returncode == 1 and "1 samples, missing" in done.stdout
    assert done.stderr.startswith("failed: method.skip=attn:99: skip set names sub-layers [198]")


def test_an_experiment_without_a_cell_is_refused(tmp_path: Path, skipbench: Command) -> None:
    done = skipbench(
        "experiment=swift-table8", "scale=embedded", "models=nope", f"results={tmp_path}"
    )
    assert (
        done.returncode == 2
        and "error: 'nope' is no model of swift-table8. Allowed here: llama2-13b" in done.stderr
    )
