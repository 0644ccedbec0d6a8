"""Bad input and commands as users mistype them: each gets one line that names the value and has the
right hint, before anything is lost.
"""

import math
import shlex
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Command, rest_slow

from skipbench.config import catalog
from skipbench.config.compose import compose
from skipbench.decode.sampling import Sampler
from skipbench.errors import SkipbenchError
from skipbench.experiments.row import run_cell

SETTINGS = [
    ("methdo=swift", "Did you mean method"),
    ("method.ratoi=0.5", r"method\.ratio"),
    ("method.ratio=half", "half"),
    ("method.ratio=nan", "method.ratio=nan; wanted a finite number"),
    ("method.stop.threshold=inf", "method.stop.threshold=inf; wanted a finite number"),
    ("engine.name=fast", "reference, fused"),
    ("model.dtype=float8", "float32, bfloat16, float16"),
    ("model=path", r"model\.path"),
    ("method=fixed", r"method\.skip"),
    ("dataset.truncate=right", "refuse, left"),
    ("decoding.temperature=nan", "temperature=nan.*wanted a finite temperature >= 0"),
    ("decoding.top_p=1.5", "top_p=1.5.*wanted .*0 < top_p <= 1"),
    ("method.ratio=0.01", "ratio=0.01"),
    ("method.ratio=1.0", "ratio=1.0"),
    ('method=fixed method.skip="attn:12"', "12 layers has 0 to 23"),
    ("method=fixed method.skip=everything", "attn:1,3-5;mlp:2,4"),
    ("method.stop.max_steps=0", "max_steps of 1 or more"),
    ("method.tree=[3,2]", "4 positive numbers"),
    ("method=swift method.ratio=0", r"choose from 0\.050 to 0\.950"),
    ("method=swift method.ratio=1", r"choose from 0\.050 to 0\.950"),
    ("method=swift method.context=last", "first or recent"),
    ("method=swift method.beta=-1", "beta of 0 or more"),
    ("method=swift method.window=0", "window"),
    ("method=swift method.tree=[10]", "4 positive numbers"),
    ("method=clasp method.interval=0", "interval"),
    ("method=clasp method.ratio=0", "ratio=0"),
    ("method=clasp method.ratio=1.0", "ratio=1"),
    ("method=clasp method.unit=head", "layer or sublayer"),
    ("method=knapspec method.interval=0", "interval"),
    ("method=knapspec method.lengths=[5,2]", "lengths"),
    ("method=knapspec method.start=none", "start"),
    ("method=knapspec method.budget=0", "above 0 to 1"),
    ("method=layerskip method.exit_layer=12", "1 to 11"),
    ("method=layerskip method.exit_layer=0", "1 to 11"),
    ("method=layerskip method.tree=[4,3,2,1]", r"method\.share=false"),
    ("method=del method.max_length=0", "max_length"),
    ("method=del method.omega=2", "omega"),
    ("method=del method.tree=[4,3,2,1]", r"unknown key 'method\.tree'\..* Allowed here: "),
    ("method=parallel method.block_size=0", "block_size"),
    ("method=parallel method.init=zeros", "init"),
    ("method=lookahead method.level=1", "level"),
    ("method=lookahead method.guesses=0", "guesses"),
    ("method=prompt-lookup method.ngram=0", "ngram"),
    ("method=prompt-lookup method.occurrence=all", "first or last"),
    ("method=self-sd method.stop.target=2", "target"),
]


@pytest.mark.parametrize(("words", "says"), SETTINGS)
def test_settings(words: str, says: str) -> None:
    """Refused when the method is made, which a dry run does as well, with what is allowed."""
    start = [] if "method=" in words else ["method=uniform"]
    with pytest.raises(SkipbenchError, match=says):
        compose([*start, *words.split()]).method.factory()(layers=12)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("limit=0", "1 or more"),
        ("dataset.max_new_tokens=5000", "context of 1024"),
        ("engine.threads=0", "1 or more"),
        ("model.device=cuda", "model.device=cpu"),
        ("model=path model.path=/no/such/folder", "neither a folder, nor a .gguf file"),
        ("dataset=tinystories dataset.prompt=clasp", "tinystories has: swift, plain"),
        ("dataset=tinystories dataset.path=/no/such.jsonl", "no/such.jsonl"),
        ("results=file", "results="),
    ],
)
def test_cell(words: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    with pytest.raises(SkipbenchError, match=says):
        run_cell(compose(["method=uniform", "limit=1", "engine.warmup=0", *words.split()]))


@pytest.mark.parametrize("values", [
    {"temperature": -0.1}, {"temperature": math.nan}, {"temperature": math.inf},
    {"top_p": 0.0}, {"top_p": 1.1}, {"top_p": math.nan}, {"top_k": -1},
])  # fmt: skip
def test_sampler(values: dict[str, Any]) -> None:
    with pytest.raises(SkipbenchError, match="wanted"):
        Sampler(**values)


MINI = f"{ROOT}/skipbench/models/tiny"
NO_HINT = "Allowed here: dataset, "
MISTYPED = [
    ("compare prompts=nope.jsonl", "nope.jsonl: no such file; wanted .jsonl or .parquet"),
    ("compare prompt=p.jsonl", "compare does not take prompt=p.jsonl;"),
    ("compare prompt=p.jsonl", "Did you mean prompts?"),
    ("compare method=swift,clsp", "unknown method 'clsp'. Did you mean clasp?"),
    ("compare --minuts 5", "unknown flag '--minuts' of compare. Did you mean --minutes?"),
    ("compare minutes=0", "minutes=0; wanted a number above 0"),
    ("compare minutes=five", "minutes=five; wanted a number above 0"),
    ("compare swift", "'swift' is no KEY=VALUE"),
    ("table", "table needs"),
    ("table swift-table22", "not 'swift-table22'. Did you mean swift-table2 or"),
    ("table swift table2", "Did you mean swift-table2? "),
    ("table swift-table2 scale=large --plan", "scale=large; wanted one of paper, embedded"),
    ("table swift-table2 models=llama-13b --plan", "is no model of swift-table2. Did you mean"),
    ("submit swift-table2", "submit needs hardware=NAME, one of: local, slurm-a100"),
    ("submit swift-table2 hardware=slurm-a100 partition=gpu", "Did you mean hardware.partition?"),
    ("compare --minutes limit=3", "--minutes needs a value, as in --minutes VALUE"),
    ("compare --minutes", "--minutes needs a value"),
    ("score all results=", "results needs a value, as in results=FILE"),
    ("generate temprature=0.7 hi", "Did you mean decoding.temperature?"),
    ("figure results/runs/nope", "there is no run results/runs/nope"),
    ("generate tiny hello", "'tiny' stands before the prompt; write model=tiny"),
    ("tabel swift-table2", "Did you mean table?"),
    ("check", "check needs a method, as in check method=swift"),
    ("list modles", "Did you mean models?"),
]
COMPOSED = [
    ("compare model.path=/nope prompts=p.jsonl", "p.jsonl: no such file"),
    ("compare model.path=/nope", "'/nope' is neither a folder, nor a .gguf file"),
    ("submit swift-table2 hardware=slurm_a100", "Did you mean slurm-a100 or"),
    ("search method=vanilla", "use method=self-sd"),
    ("search method=clasp", "use method=self-sd"),
    ("search search.prompts=0", "search.prompts"),
    ("method=swfit", "unknown method 'swfit'. Did you mean swift? Allowed"),
    ("model=llama-3-8b", "Did you mean llama3-8b or"),
    ("model.path=meta-llama/Llama-3.2-1B dry_run=true", "python -m skipbench data"),
    ("temperature=0.7", "Did you mean decoding.temperature?"),
    ("max_new_tokens=20", "Did you mean dataset.max_new_tokens or"),
    ("model.dtype=bf16", "Did you mean bfloat16?"),
    ("dtype=bfloat16", "Did you mean model.dtype?"),
    ("method=self-sd model.path=" + MINI, "or take method=auto, which needs none"),
    ("method=fixed method.skip=attn:1,2", "quoted twice, as in 'method.skip=\"attn:1,2\"'"),
    ("-m method=clasp,swft", "unknown method 'swft'. Did you mean swift?"),
    ("report results=nope", "no runs, tables or figures in nope; run a cell first"),
    ("limit=0", "limit=0; wanted 1 or more, or null for all"),
    ("seed=abc", "wanted a whole number"),
    ("method = swift", "write method=CHOICE without spaces"),
    ("method:swift", "Did you mean method=swift?"),
    ("swift", "Did you mean method=swift?"),
    ("+foo=1", f"unknown key 'foo'. {NO_HINT}"),
    ("method=swift method.beat=3", "Did you mean method.beta"),
    ("method.interval=3 method=swift", "It is a key of method=clasp, method=conflayers,"),
]
"""Those that Hydra composes first, of which two are of every day."""


@pytest.mark.parametrize(
    ("words", "says"),
    MISTYPED + rest_slow(COMPOSED, lambda case: case[0].startswith(("search", "temperature"))),
)
def test_a_mistyped_command_gets_the_right_hint(
    words: str, says: str, skipbench: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = skipbench(*shlex.split(words, posix="'" not in says))
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


def test_a_broken_file_stops_its_own_method_alone(
    skipbench: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "method").mkdir()
    monkeypatch.setattr(catalog, "_folders", catalog.config_folders())
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_part.py").write_text('class Mine:\n    """Says what it is."""\n')
    for name, text in {
        "gone": "_target_: not_there.X\nname: gone\n",
        "torn": "_target_: own_part.Mine\nname: [torn\n",
        "mine": "_target_: own_part.Mine\nname: mine\n",
    }.items():
        (tmp_path / "method" / f"{name}.yaml").write_text(f"defaults: [_{name}, _self_]\n{text}")
    flag = "--config-dir", str(tmp_path)
    shown = skipbench(*flag, "--help", "method").stdout
    lines = dict(line.strip().split(maxsplit=1) for line in shown.splitlines())
    assert lines["mine"] == "Says what it is." and lines["swift"].startswith("SWIFT")
    assert f"{tmp_path}/method/gone.yaml, line 2: no module 'not_there'" in lines["gone"]
    assert f"{tmp_path}/method/torn.yaml, line " in lines["torn"]
    done = skipbench(*flag, "method=torn", "dry_run=true")
    assert done.returncode == 2 and f"error: {tmp_path}/method/torn.yaml, line " in done.stderr
