"""Commands as users mistype them: each gets one line with the right hint, and no traceback. Those
that Hydra must compose first belong to the slow tier.
"""

import shlex
from pathlib import Path

import pytest
from conftest import ROOT, Command, rest_slow

from skipbench.cli.completion import candidates
from skipbench.config import catalog

MINI = f"{ROOT}/skipbench/models/tiny"
NO_HINT = "Allowed here: dataset, "
MISTYPED = [
    ("method=swfit", "unknown method 'swfit'. Did you mean swift? Allowed"),
    ("model=llama-3-8b", "Did you mean llama3-8b or"),
    ("model.path=meta-llama/Llama-3.2-1B dry_run=true", "python -m skipbench data"),
    ("compare model.path=/nope prompts=p.jsonl", "p.jsonl: no such file"),
    ("compare model.path=/nope", "'/nope' is neither a folder, nor a .gguf file"),
    ("compare prompts=nope.jsonl", "nope.jsonl: no such file; wanted .jsonl or .parquet"),
    ("compare prompt=p.jsonl", "compare does not take prompt=p.jsonl;"),
    ("compare prompt=p.jsonl", "Did you mean prompts?"),
    ("compare method=swift,clsp", "unknown method 'clsp'. Did you mean clasp?"),
    ("compare --minuts 5", "unknown flag '--minuts' of compare. Did you mean --minutes?"),
    ("compare minutes=five", "minutes=five; wanted a number above 0"),
    ("table swift-table22", "not 'swift-table22'. Did you mean swift-table2 or"),
    ("table swift table2", "Did you mean swift-table2? "),
    ("table swift-table2 scale=large --plan", "scale=large; wanted one of paper, embedded"),
    (
        "table swift-table2 models=llama-13b --plan",
        "is no model of swift-table2. Did you mean",
    ),
    ("submit swift-table2 hardware=slurm_a100", "Did you mean slurm-a100 or"),
    ("submit swift-table2", "submit needs hardware=NAME, one of: local, slurm-a100"),
    ("submit swift-table2 hardware=slurm-a100 partition=gpu", "Did you mean hardware.partition?"),
    ("verify o.jsonl --json model=tiny", "--json needs a value, as in --json VALUE"),
    ("verify o.jsonl --page", "--page needs a value"),
    ("verify o.jsonl json=", "json needs a value, as in json=FILE"),
    ("temperature=0.7", "Did you mean decoding.temperature?"),
    ("max_new_tokens=20", "Did you mean dataset.max_new_tokens or"),
    ("generate temprature=0.7 hi", "Did you mean decoding.temperature?"),
    ("chat temperature=0.7", "Did you mean decoding.temperature?"),
    ("model.dtype=bf16", "Did you mean bfloat16?"),
    ("dtype=bfloat16", "Did you mean model.dtype?"),
    ("method=self-sd model.path=" + MINI, "or take method=auto, which needs none"),
    ("method=fixed method.skip=attn:1,2", "quoted twice, as in 'method.skip=\"attn:1,2\"'"),
    ("-m method=clasp,swft", "unknown method 'swft'. Did you mean swift?"),
    ("figure results/runs/nope", "there is no run results/runs/nope"),
    ("report results=nope", "no runs, tables or figures in nope; run a cell first"),
    ("limit=0", "limit=0; wanted 1 or more, or null for all"),
    ("seed=abc", "wanted a whole number"),
    ("results=/proc/x limit=1", "results="),
    ("generate tiny hello", "'tiny' stands before the prompt; write model=tiny"),
    ("chat tiny", "Did you mean model=tiny?"),
    ("chat prompt=hi", "It reads its prompts from the terminal; for a single one use generate"),
    ("method = swift", "write method=CHOICE without spaces"),
    ("method:swift", "Did you mean method=swift?"),
    ("swift", "Did you mean method=swift?"),
    ("tabel swift-table2", "Did you mean table?"),
    ("+foo=1", f"unknown key 'foo'. {NO_HINT}"),
    ("method=swift method.beat=3", "Did you mean method.beta"),
    ("method.interval=3 method=swift", "It is a key of method=clasp, method=conflayers,"),
    ("check", "check needs a method, as in check method=swift"),
    ("list modles", "Did you mean models?"),
]
COMMANDS = (
    "verify",
    "compare",
    "table",
    "submit",
    "generate",
    "chat",
    "figure",
    "check",
    "list",
    "tabel",
)
COMPOSED = ("compare model.path", "submit swift-table2 hardware=slurm_a100")


@pytest.mark.parametrize(
    ("words", "says"),
    rest_slow(MISTYPED, lambda c: c[0].startswith(COMMANDS) and not c[0].startswith(COMPOSED)),
)
def test_a_mistyped_command_gets_the_right_hint(
    words: str, says: str, skipbench: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = skipbench(*shlex.split(words, posix="'" not in says))
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "incomplete", "first"),
    [
        ((), "comp", "compare"),
        (("chat",), "model=smo", "model=smollm2-135m"),
        (("chat", "model", "="), "smo", "smollm2-135m"),
        (("table",), "swift-table2", "swift-table2"),
        (("generate", "thinking=false"), "max", "max_new_tokens="),
        (("verify", "out.jsonl"), "--own", "--own-dtype"),
        (("verify", "out.jsonl"), "fail_on=t", "fail_on=tie"),
        (("list",), "mo", "models"),
        (("data",), "swift-table2", "swift-table2"),
        (("data",), "cnn", "cnndm"),
        (("chat",), "--h", "--help"),
        (("chat",), "e", "engine="),
        (("compare",), "methods=swi", "methods=swift"),
        (("method=swift",), "data", "dataset="),
    ],
)
def test_a_word_is_completed(words: tuple[str, ...], incomplete: str, first: str) -> None:
    assert candidates(words, incomplete)[0] == first


def test_the_shell_asks_as_click_does(skipbench: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    script = skipbench("--shell-completion", "bash").stdout
    assert "complete -o nosort -o default -F _skipbench_words skipbench python python3" in script
    monkeypatch.setenv("_SKIPBENCH_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "skipbench\ntable\nclasp-fig")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert "plain,clasp-figure3a" in skipbench().stdout.split()


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
