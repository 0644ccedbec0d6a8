"""The front door: a first bare word is a command, all else one cell or a sweep through Hydra."""

import contextlib
import difflib
import importlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from skipbench.cli.command import GROUPS, Compared, declared
from skipbench.cli.commands import COMMANDS, module_of
from skipbench.cli.parser import parse
from skipbench.config.catalog import as_choices, check_base, choices, with_search_path
from skipbench.config.compose import checked, hydra_errors, run_hydra, to_run_config, use_config_dir
from skipbench.config.explain import did_you_mean, meant
from skipbench.config.paths import CONF
from skipbench.console import complain, json_lines, say
from skipbench.errors import SkipbenchError
from skipbench.runs.cell import Cell
from skipbench.runs.state import Interrupted, handle_signals

NEAR = 0.75  # likeness from which a dashed word is taken for a misspelt setting or flag
WITH_VALUE = {"-c", "--cfg", "-p", "--package", "-i", "--info", "-cd", "--config-dir"}  # of Hydra
HYDRA_FLAGS = WITH_VALUE | {"-m", "--multirun", "-r", "--run", "--resolve", "--hydra-help"}
NEXT = "next: report (a page of runs), compare model.path=FOLDER (what is fastest on it), --help"
OWN_FLAGS = {"-h", "--help", "--version"}.union(*(declared(c)[1] for c in COMMANDS.values()))


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; exit status 0 done, 1 something failed, 2 the command was wrong, 130
    interrupted, 128 + n signal n.
    """
    # modules of the working directory, as `python -m skipbench` sees them
    if argv is None and not sys.flags.safe_path:
        sys.path.insert(0, "")
    with contextlib.ExitStack() as stack:
        stack.enter_context(one_kind_of_error())  # outside: a signal may come at any line
        stack.enter_context(handle_signals())
        dispatch(list(sys.argv[1:] if argv is None else argv))


def dispatch(argv: list[str]) -> None:
    """Runs what a command line asks for. Raises SkipbenchError where it is wrong."""
    check_base(CONF / "local")
    argv = _with_config_dir(argv)
    if "--version" in argv:
        sys.stdout.write(f"skipbench {metadata.version('skipbench')}\n")
    elif {"-h", "--help"} & set(argv):
        from skipbench.cli.help import print_help

        print_help([a for a in argv if a not in ("-h", "--help")])
    elif argv and re.fullmatch(r"[a-z]+", argv[0]):
        if argv[0] not in COMMANDS:
            raise _stray(argv[0])
        name = argv[0]
        asked = parse(COMMANDS[name], _with_path(argv[1:]))
        getattr(importlib.import_module(module_of(name)), f"run_{name}")(asked)
    else:
        _cell_or_sweep(_with_path(argv))


def _cell_or_sweep(argv: list[str]) -> None:
    keys, own_flags = declared(Compared)
    own = [a for a in argv if a in own_flags or a.partition("=")[0] in keys]
    asked, words = parse(Compared, own), [a for a in argv if a not in own]
    _check_flags(words)
    overrides = [checked(a) for a in words if "=" in a and not a.startswith("-")]
    # argparse wants them together, in front
    flags = [a for a in words if "=" not in a or a.startswith("-")]
    from skipbench.cli.compare import cells_of_methods, run_cells

    with json_lines(asked.json):
        chosen = dict(word.split("=", 1) for word in overrides)
        sweeper, launcher = (chosen.get(f"hydra/{of}", "basic") for of in ("sweeper", "launcher"))
        if chosen.get("dry_run") == "true" and sweeper not in ("basic", "experiment"):
            raise SkipbenchError(
                f"hydra/sweeper={sweeper} chooses cells by results, which dry_run=true has not"
            )
        if flags or not (cells := cells_of_methods(overrides)):
            sys.argv = ["skipbench", *flags, *with_search_path(overrides)]
            from skipbench.launch.sweeper import job, register

            cells = register()
            # Hydra raises its errors instead of printing them: `hydra_errors` on every route
            os.environ["HYDRA_FULL_ERROR"] = "1"
            with hydra_errors(overrides):
                cells += [Cell(to_run_config(config)) for config in run_hydra(job)]
            if launcher not in ("basic", "slurm") and chosen.get("dry_run") != "true":
                say(
                    f"note: cells that hydra/launcher={launcher} ran at once on one machine slowed "
                    "each other down; submit hardware=local gives each a GPU of its own"
                )
        run_cells(cells, asked)
    if not argv:
        say(NEXT, "dim")


def _check_flags(argv: Sequence[str]) -> None:
    for before, word in zip(["", *argv], argv, strict=False):
        flag = word.partition("=")[0]
        if word.startswith("-") and flag not in HYDRA_FLAGS:
            known = sorted(HYDRA_FLAGS | OWN_FLAGS)
            near = difflib.get_close_matches(flag.lstrip("-"), GROUPS, 1, NEAR)
            text = f".{did_you_mean(flag, known)} Flags: {', '.join(known)}"
            if of := [name for name, command in COMMANDS.items() if flag in declared(command)[1]]:
                text = f": it is a flag of {', '.join(of)}, not of a run, which takes KEY=VALUE"
            elif near and not difflib.get_close_matches(flag, known, 1, NEAR):
                text = f"; settings are written without dashes, as {near[0]}=..."
            raise SkipbenchError(f"unknown flag {flag!r}{text}")
        if not ("=" in word or word.startswith("-") or before in WITH_VALUE):
            raise _stray(checked(word))


def _stray(word: str) -> SkipbenchError:
    if word in GROUPS:
        return SkipbenchError(
            f"{word!r} alone is no setting; write {word}=CHOICE without spaces, as in "
            f"{word}={choices(word)[0]}"
        )
    group, sign, choice = word.partition(":")
    near = [f"{group}={choice}"] if sign and group in GROUPS else as_choices(word)
    hint = meant(near) or did_you_mean(word, [*COMMANDS])
    return SkipbenchError(
        f"{word!r} is neither a command nor an override KEY=VALUE, such as method=uniform."
        f"{hint} Commands: {', '.join(COMMANDS)}"
    )


def _with_config_dir(argv: list[str]) -> list[str]:
    """Takes `--config-dir DIR` from a command line, for commands and Hydra alike."""
    rest, words = list[str](), iter(argv)
    for word in words:
        flag, sign, folder = word.partition("=")
        if flag in ("-cd", "--config-dir"):
            use_config_dir(Path(folder if sign else next(words, "")))
        else:
            rest.append(word)
    return rest


def _with_path(argv: list[str]) -> list[str]:
    """Adds `model=path` to `model.path=`: nothing else is taken from the embedded model."""
    given = {word.partition("=")[0] for word in argv}
    return [*argv, "model=path"] if "model.path" in given and "model" not in given else argv


@contextmanager
def one_kind_of_error() -> Iterator[None]:
    """Prints an error as one line and chooses the exit status."""
    try:
        yield
    except SkipbenchError as error:
        complain(f"error: {error}")
        sys.exit(2)
    # the reader, such as `head`, is gone; the interpreter's last flush must not fail, either
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        complain("interrupted; what is finished is kept, the same command goes on")
        sys.exit(130)
    except Interrupted as interrupted:
        complain(str(interrupted))
        sys.exit(128 + interrupted.signal)
