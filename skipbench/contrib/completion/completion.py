"""Completion in a shell, by click: commands, keys, flags, choices and experiments."""

import sys
from collections.abc import Iterable, Sequence
from typing import get_args

import click
from click.shell_completion import shell_complete

from skipbench.cli.command import GROUPS, Command, declared
from skipbench.cli.commands import COMMANDS, Data, Experiments, List
from skipbench.cli.inventory import KINDS
from skipbench.config.catalog import choices
from skipbench.errors import SkipbenchError

VARIABLE = "_SKIPBENCH_COMPLETE"  # what click is asked for, such as `bash_complete`
SHELLS = "bash", "zsh", "fish"
NAMES = {"models": "model", "methods": "method", "arm": "method"}
"""Keys of commands whose values are the choices of a group."""
# click's function knows `skipbench` alone; a key's value follows it without a space
BASH = r"""
_skipbench_words() {
  local run=$1
  if [[ ${COMP_WORDS[0]##*/} == python* ]]; then
    [[ ${COMP_WORDS[1]} == -m && ${COMP_WORDS[2]} == skipbench ]] || return
    run=$1$'\n-m\nskipbench'
    COMP_WORDS=(skipbench "${COMP_WORDS[@]:3}") COMP_CWORD=$((COMP_CWORD - 2))
  fi
  _skipbench_completion "$run"
  [[ ${COMPREPLY[0]} != *= ]] || compopt -o nospace
}
complete -o nosort -o default -F _skipbench_words skipbench python python3
"""


def complete(instruction: str) -> None:
    """Prints what click makes of an instruction: `SHELL_source`, the script, or `SHELL_complete`,
    the candidates for the words in the environment. Raises SkipbenchError for another shell.
    """
    shell = instruction.partition("_")[0]
    words = click.Argument(["words"], nargs=-1, shell_complete=_of_context)
    settings = {"ignore_unknown_options": True, "help_option_names": []}
    command = click.Command("skipbench", params=[words], context_settings=settings)
    if shell not in SHELLS:
        raise SkipbenchError(f"--shell-completion {shell}; wanted one of: {', '.join(SHELLS)}")
    shell_complete(command, {}, "skipbench", VARIABLE, instruction)
    if instruction == "bash_source":
        sys.stdout.write(BASH)


def _of_context(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return candidates(ctx.params["words"] or (), incomplete)


def candidates(words: Sequence[str], incomplete: str) -> list[str]:
    """Candidates for `incomplete` after `words`. Bash makes three words of KEY=VALUE."""
    command = COMMANDS.get(words[0]) if words else None
    key, sign, _ = incomplete.partition("=")
    before = [word for word in words[-2:] if word != "="]
    if not sign and before and (words[-1] == "=" or _values(before[-1], command)):
        every: Iterable[str] = _values(before[-1], command)
    elif sign:
        every = (f"{key}={value}" for value in _values(key, command))
    else:
        every = _words(command) if command or not words else _groups()
    return [word for word in every if word.startswith(incomplete)]


def _values(key: str, command: type[Command] | None) -> list[str]:
    """The values of a key that can be listed."""
    group, kinds = NAMES.get(key, key), declared(command)[0] if command else {}
    literal = get_args(kinds.get(key))
    nested = [word for part in literal for word in get_args(part)]
    return choices(group) if group in GROUPS else [w for w in [*literal, *nested] if type(w) is str]


def _words(command: type[Command] | None) -> list[str]:
    """Bare words, keys and flags."""
    if command is None:
        return [*COMMANDS, *_groups(), "--help", "--config-dir", "--multirun", "--version"]
    kinds = ["experiment"] * issubclass(command, Experiments) + ["dataset", "model"] * (
        command is Data
    )
    bare = [*KINDS] if command is List else [name for kind in kinds for name in choices(kind)]
    keys, flags = declared(command)
    groups = [f"{group}=" for group in command.GROUPS if command.SETTINGS]
    own = dict.fromkeys(f"{key}=" for key in keys)
    return [*bare, *own, *(g for g in groups if g not in own), *flags, "--help"]


def _groups() -> list[str]:
    return [f"{group}=" for group in GROUPS]
