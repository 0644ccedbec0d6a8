"""`list`, `doctor`, `check`: choices, what this machine can run, and a method's contract."""

import sys
from functools import partial

from skipbench.cli.command import GROUPS
from skipbench.cli.commands import Check, Doctor, List
from skipbench.config.catalog import choices, file_of, known_models
from skipbench.config.compose import compose
from skipbench.config.documented import described
from skipbench.config.explain import did_you_mean
from skipbench.console import json_lines, show, show_result
from skipbench.errors import SkipbenchError

KINDS = {"models": "model", "methods": "method", "stop": "stop", "datasets": "dataset"}
KINDS |= {"experiments": "experiment"}


def run_list(asked: List) -> None:
    """Prints the choices of one kind with their first comments, of models with sizes; without a
    kind the names of all.
    """
    if not asked.words:
        for kind, group in KINDS.items():
            show(f"{kind:{max(map(len, KINDS))}} {', '.join(choices(group))}")
        return
    known = KINDS | {group: group for group in GROUPS}
    if len(asked.words) != 1 or asked.words[0] not in known:
        hint = did_you_mean(asked.words[0], list(KINDS))
        raise SkipbenchError(f"list needs one of: {', '.join(KINDS)}.{hint}")
    from skipbench.bench.memory import size_text

    group = known[asked.words[0]]
    names = choices(group)
    models = known_models() if group == "model" else {}
    width = max(16, *map(len, names))
    for name in names:
        words = []
        if model := models.get(name):
            marks = {"gated": model.gated, "revision not pinned": model.revision == "main"}
            words = [size_text(model), *(mark for mark, holds in marks.items() if holds)]
        show(f"{name:{width}} {described(file_of(group, name))} {'; '.join(words)}".rstrip())


def run_doctor(asked: Doctor) -> None:
    """Prints one line per finding: `ok`, `note` or `missing`; with `--json` as {"kind",
    "finding"}.
    """
    from skipbench.bench.doctor import findings

    with json_lines(asked.json):
        for line in findings(compose(asked.settings).results):
            kind, _, text = line.partition(" ")
            show_result({"kind": kind, "finding": text.strip()}, partial(str, line))


def run_check(asked: Check) -> None:
    """Prints a line per property, with the fault where one is broken, which exits with 1."""
    if not any(word.startswith("method=") for word in asked.settings):
        raise SkipbenchError(f"check {Check.NEEDS}")
    method = compose(asked.settings).method
    from skipbench.bench.contract import check_contract

    broken = 0
    for name, fault in check_contract(method.factory()):
        show(f"FAILED  {name}: {fault}" if fault else f"ok      {name}")
        broken += fault is not None
    show(f"{method.name}: {broken or 'no'} propert{'y' if broken == 1 else 'ies'} broken")
    if broken:
        show("what each asks for: docs/adding.md, The contract")
        sys.exit(1)
