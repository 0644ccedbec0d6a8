"""Bad input and commands as users mistype them: each gets one line that names the value and has the
right hint, before anything is lost.
"""

import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Command, rest_slow

from skipbench.config import catalog
from skipbench.config.compose import compose
from skipbench.decode.sampling import Sampler
from skipbench.errors import SkipbenchError

SETTINGS = [
    ("method.ratio=nan", "method.ratio=nan; wanted a finite number"),
    ("engine.name=fast", "reference or fused"),
    ("model.dtype=float8", "float32 or bfloat16 or float16"),
    ("dataset.truncate=right", "refuse or left"),
    ("decoding.top_p=1.5", "decoding.top_p=1.5; wanted above 0 to 1"),
    ("method=fixed method.skip=everything", "attn:1,3-5;mlp:2,4"),
    ("method.stop.max_steps=0", "max_steps=0; wanted 1 or more"),
    ("method.tree=[3,2]", "4 positive numbers"),
    ("method=swift method.ratio=0", r"choose from 0\.050 to 0\.950"),
    ("method=swift method.beta=-1", "beta=-1; wanted 0 or more"),
    ("method=knapspec method.interval=0", "interval"),
    ("method=knapspec method.lengths=[5,2]", "lengths"),
    ("method=knapspec method.budget=0", "above 0 to 1"),
    ("method=layerskip method.exit_layer=12", "1 to 11"),
    ("method=layerskip method.tree=[4,3,2,1]", r"method\.share=false"),
    ("method=del method.omega=2", "omega"),
    ("method=del method.tree=[4,3,2,1]", r"unknown key 'method\.tree'\..* Allowed here: "),
    ("method=lookahead method.level=1", "level"),
    ("method=self-sd method.stop.target=2", "target"),
    ("model=llama2-7b model.architecture.layrs=3", "layrs"),
    ("model=llama2-7b model.quantization=int7", "none or int8 or fp4 or nf4"),
    ("model=planted model.redundant=much", "much"),
]


@pytest.mark.parametrize(("words", "says"), SETTINGS)
def test_settings(words: str, says: str) -> None:
    """Refused when the method is made, which a dry run does as well, with what is allowed."""
    start = [] if "method=" in words else ["method=uniform"]
    with pytest.raises(SkipbenchError, match=says):
        compose([*start, *words.split()]).method.factory()(layers=12)


@pytest.mark.parametrize("values", [
    {"temperature": -0.1}, {"temperature": math.nan}, {"temperature": math.inf},
    {"top_p": 0.0}, {"top_p": 1.1}, {"top_p": math.nan}, {"top_k": -1},
])  # fmt: skip
def test_sampler(values: dict[str, Any]) -> None:
    with pytest.raises(SkipbenchError, match="wanted"):
        Sampler(**values)


MINI = f"{ROOT}/skipbench/models/tiny"
MISTYPED = [
    ("compare prompts=nope.jsonl", "nope.jsonl does not exist; give a file that ends"),
    ("compare prompt=p.jsonl", "compare does not take prompt=p.jsonl; "),
    ("compare --minuts 5", "unknown flag '--minuts' of compare. Did you mean --minutes?"),
    ("compare --minutes limit=3", "--minutes needs a value, as in --minutes VALUE"),
    ("compare minutes=five", "minutes=five; wanted a number above 0"),
    ("compare swift", "'swift' is no KEY=VALUE"),
    ("table swift-table22", "not 'swift-table22'. Did you mean swift-table2 or"),
    ("submit swift-table2", "submit needs hardware=NAME, one of: local, slurm-a100"),
    ("submit swift-table2 hardware=slurm-a100 partition=gpu", "Did you mean hardware.partition?"),
    ("submit swift-table8 models=llama-13b", "Did you mean llama2-13b? Allowed here: llama2-13b"),
    ("submit swift-table2 methods=swift,lookahed", "'lookahed' is no method of swift-table2"),
    ("status tiny columns=M", "status does not take columns=M; it takes scale, models, methods"),
    ("score all results=", "results needs a value, as in results=FILE"),
    ("generate temprature=0.7 hi", "Did you mean decoding.temperature?"),
    ("generate tiny hello", "'tiny' stands before the prompt; write model=tiny"),
    ("figure results/runs/nope", "there is no run results/runs/nope"),
    ("tabel swift-table2", "Did you mean table?"),
    ("check", "check needs a method, as in check method=swift"),
    ("search search.prompts=0", "search.prompts"),
]


@pytest.mark.parametrize(("words", "says"), MISTYPED)
def test_a_mistyped_command_gets_the_right_hint(
    words: str, says: str, skipbench: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    done = skipbench(*shlex.split(words))
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


MISTAKES = [
    ("limt=3", "unknown key 'limt'. Did you mean limit?"),
    ("max_new_tokens=20", "Did you mean dataset.max_new_tokens or"),
    ("nonsense.key=1", "unknown key 'nonsense.key'. Allowed here: dataset, "),
    ("method.interval=3 method=swift", "unknown key 'method.interval'. Did you mean method.in"),
    ("model=", "unknown model ''. Allowed here: "),
    ("method=swfit", "unknown method 'swfit'. Did you mean swift? Allowed"),
    ("hydra/launcher=nope", "unknown launcher 'nope'. Allowed here: "),
    ("limit=abc", "limit=abc; wanted 1 or more, or null for all"),
    ("model=path", "model.path must be given, as in model.path=VALUE"),
    ("model.path=/nope", "model.path='/nope' is neither a folder, nor a .gguf file"),
    ("model.path=meta-llama/Llama-3.2-1B", "python -m skipbench data"),
    ("method=fixed method.skip=attn:1;mlp:3", "quoted twice, as in 'method.skip=\"attn:1;mlp:3"),
    ("dry_run=true hydra/sweeper=optuna", "hydra/sweeper=optuna chooses cells by results"),
    ("method.skip=attn:99", "a model of 12 layers has 0 to 23"),
    ("method.stop=fixed", "a stop rule is chosen by stop@method.stop=adaptive|fixed"),
    (f"method=self-sd model.path={MINI}", "no skip set"),
    ("dataset=tinystories dataset.prompt=x", "dataset.prompt=x; tinystories has: swift, plain"),
    ("+method.foo=1", "unknown key 'method.foo'. "),
    ("hardware.gpus=1", "unknown key 'hardware.gpus'. Choose a place first, as hardware=local"),
    ("~seed", "~seed: a key cannot be deleted"),
    ("=3", "'=3' is no override; wanted KEY=VALUE"),
    ("swift", "an override KEY=VALUE, such as method=uniform. Did you mean method=swift?"),
    ("--methd", "unknown flag '--methd'; settings are written without dashes, as method=..."),
    ("hydra.run.dir=/tmp/x", "hydra.run.dir=/tmp/x: records go below results=FOLDER"),
    ("--render-only", "unknown flag '--render-only': it is a flag of table, "),
]
# One of each kind every day: a choice, a value that the cell refuses, what Hydra would add or
# delete, a stray word, a flag.
DAILY = ("--methd", "method=swfit", "method.skip=attn:99", "~seed", "swift")


@pytest.mark.parametrize(("words", "says"), rest_slow(MISTAKES, lambda case: case[0] in DAILY))
def test_a_mistake_is_told_in_one_line_on_every_route(
    words: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skipbench: Command
) -> None:
    """A cell, a sweep, a folder of configurations of one's own."""
    (tmp_path / "conf" / "dataset").mkdir(parents=True)
    # the added folder goes when the test ends
    monkeypatch.setattr(catalog, "_folders", catalog.config_folders())
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
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


def test_a_broken_file_is_named_with_its_line(
    skipbench: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "method").mkdir()
    monkeypatch.setattr(catalog, "_folders", catalog.config_folders())
    broken = {"torn": "name: [torn", "gone": "_target_: not_there.X", "base": "k: 12:00:00 # limit"}
    for name, text in broken.items():
        path = tmp_path / "method" / f"{name}.yaml"
        path.write_text(f"defaults: [_self_]\n{text}\n")
        done = skipbench("--config-dir", str(tmp_path), f"method={name}", "dry_run=true")
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        assert re.search(rf'error: .*{re.escape(str(path))}"?, line 2', done.stderr), done.stderr
