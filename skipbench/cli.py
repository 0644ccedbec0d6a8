"""The command line: which words go to a command, which to Hydra, and what an error exits with."""

import contextlib
import io
import os
import re
import sys
from typing import Any

from skipbench.catalogue import choices, paper_side
from skipbench.cells import cell, console
from skipbench.commands import command
from skipbench.compose import compose, sweep
from skipbench.errors import SkipbenchError
from skipbench.runs.stop import Interrupted, listening
from skipbench.runs.terminal import Console


def main() -> None:
    """Entry point. Exit status 0 done, 1 something failed, 2 the command was wrong, 130 interrupted, 128 + n signal n."""
    argv = sys.argv[1:]
    if any(a.startswith("model.path=") for a in argv) and not any(a.startswith("model=") for a in argv):
        # A folder of one's own takes nothing else from the embedded model, its name least of all.
        argv = [*argv, "model=path"]
        sys.argv = [sys.argv[0], *argv]
    with listening():
        _obey(argv)


def _obey(argv: list[str]) -> None:
    try:
        if argv and re.fullmatch(r"[a-z]+", argv[0]):
            command(argv[0], argv[1:])
        elif {"--help", "-h"} & set(argv):
            _help()
        elif any(a.startswith("-") for a in argv) or any("experiment=" in a for a in argv):
            _check_grid(argv)
            sweep(_job)
        else:
            cell(compose(argv))
    except SkipbenchError as error:
        Console(stderr=True).print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
    except BrokenPipeError:  # the reader, such as `head`, has gone; nor may the interpreter's last flush fail
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted; what is finished is kept, the same command goes on")
        sys.exit(130)
    except Interrupted as interrupted:
        Console(stderr=True).print(str(interrupted), highlight=False, soft_wrap=True)
        sys.exit(128 + interrupted.signal)


def _check_grid(argv: list[str]) -> None:
    """Hydra sweeps axes alone; cases of an experiment, each with settings of its own, would be lost without a word."""
    for name in (name for a in argv if a.startswith("experiment=") for name in a.partition("=")[2].split(",")):
        if name in choices("experiment") and paper_side(name).get("cases"):
            raise SkipbenchError(
                f"experiment {name} is more than a grid; run it by: python -m skipbench table {name}, or on a cluster by: "
                f"python -m skipbench submit {name} hardware=slurm-a100"
            )


def _job(plain: dict[str, Any]) -> None:
    console.rule(f"{plain['model']['name']} / {plain['method']['name']} / {plain['dataset']['name']}")
    cell(plain)


def _help() -> None:
    """Hydra's help without the schemas, which it lists among the choices: their names begin with an underscore."""
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        sweep(_job)
    choices, _, keys = said.getvalue().partition("keys (override")
    sys.stdout.write(re.sub(r"(?<=[ ])_\w+(?:, |$)", "", choices, flags=re.M) + "keys (override" + keys)
