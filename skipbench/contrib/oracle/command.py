"""`verify`: verdicts on the outputs of any engine."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from skipbench.cli.command import Loaded
from skipbench.console import complain, progress, say, show, working
from skipbench.runs.files import write_atomic

if TYPE_CHECKING:
    from skipbench.contrib.oracle.causes import Judged


class Verify(Loaded):
    """were these the model's own tokens? outputs of any engine:  verify OUTPUTS model=M
    [--fail-on wrong] [--json F]
    """

    WORDS = 1, 1
    NEEDS = "needs one file of outputs or a run's folder, as in verify out.jsonl model=tiny"
    fail_on: Annotated[
        Literal["wrong", "unchecked", "tie"] | None,
        "exit status 1 where an output is wrong or unchecked, with tie where not identical",
    ] = None
    chat: Annotated[
        Literal["none", "template"],
        "prompts of text: as they are, or through the model's chat template",
    ] = "none"
    own_dtype: Annotated[bool, "computes as the model does in model.dtype, not in float32"] = False
    json: Annotated[Path | None, "a file for the verdicts"] = None


def run_verify(asked: Verify) -> None:
    """Judges a file of outputs; exits with 1 where `--fail-on` says so or none could be
    checked, with 130 after Ctrl-C.
    """
    from skipbench.contrib.oracle.api import oracle_of
    from skipbench.contrib.oracle.outputs import read_outputs
    from skipbench.contrib.oracle.report import report
    from skipbench.language_model import load_settings

    outputs, form = read_outputs(Path(asked.words[0]))
    say(f"{asked.words[0]}: {len(outputs)} outputs, read as {form}", "dim")
    with working("loading the model"):
        model = load_settings(asked.model_settings(), "vanilla")
    oracle = oracle_of(model, asked.chat, asked.own_dtype)
    judged, stopped = list["Judged"](), False
    try:
        with progress("verify", len(outputs)) as advance:
            for one in oracle.judge(outputs):
                judged.append(one)
                advance("" if one.verdict.kind == "identical" else one.verdict.kind)
    except KeyboardInterrupt:
        stopped = True
        say(f"stopped; {len(judged)} of {len(outputs)} outputs are judged")
    result = oracle.result(judged, len(outputs), form, model.config.model.name)
    for line in report(result):
        show(line)
    if asked.json is not None:
        write_atomic(asked.json, msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    if stopped:
        sys.exit(130)
    if nothing := {*result.counts} == {"unchecked"}:
        complain(f"no output of {asked.words[0]} could be checked")
    if nothing or (asked.fail_on is not None and result.failed(asked.fail_on)):
        sys.exit(1)
