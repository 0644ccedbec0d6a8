"""`verify`: verdicts on the outputs of any engine."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from skipbench.cli.asking import Verify
from skipbench.console import complain, progress, say, show, working
from skipbench.runs.files import write_atomic

if TYPE_CHECKING:
    from skipbench.oracle.causes import Judged


def run_verify(asked: Verify) -> None:
    """Judges a file of outputs; exits with 1 where `--fail-on` says so or none could be
    checked, with 130 after Ctrl-C.
    """
    from skipbench.api import oracle_of
    from skipbench.language_model import load_settings
    from skipbench.oracle.outputs import read_outputs
    from skipbench.oracle.page import page, report, sides

    outputs, form = read_outputs(Path(asked.words[0]))
    say(f"{asked.words[0]}: {len(outputs)} outputs, read as {form}", "dim")
    with working("loading the model"):
        model = load_settings(asked.model_settings(), "vanilla")
    oracle = oracle_of(model, asked.chat, asked.own_dtype)
    judged, texts, stopped = list["Judged"](), list[dict[str, str]](), False
    try:
        with progress("verify", len(outputs)) as advance:
            for one in oracle.judge(outputs):
                judged.append(one)
                if asked.page and one.verdict.kind in ("wrong", "tie"):
                    texts.append(sides(oracle, one))
                advance("" if one.verdict.kind == "identical" else one.verdict.kind)
    except KeyboardInterrupt:
        stopped = True
        say(f"stopped; {len(judged)} of {len(outputs)} outputs are judged")
    result = oracle.result(judged, len(outputs), form, model.config.model.name)
    for line in report(result):
        show(line)
    if asked.json is not None:
        write_atomic(asked.json, msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    if asked.page is not None:
        write_atomic(asked.page, page(result, texts))
        show(str(asked.page))
    if stopped:
        sys.exit(130)
    if nothing := {*result.counts} == {"unchecked"}:
        complain(f"no output of {asked.words[0]} could be checked")
    if nothing or (asked.fail_on is not None and result.failed(asked.fail_on)):
        sys.exit(1)
