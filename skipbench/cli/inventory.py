"""`list`, `doctor`, `check`: choices, what this machine can run, and a method's contract."""

import sys
from collections.abc import Iterator
from functools import partial

from skipbench.cli.commands import Check, Doctor, List
from skipbench.config.catalog import choices, file_of, known_hardware, known_models
from skipbench.config.compose import compose
from skipbench.config.documented import described
from skipbench.config.explain import did_you_mean
from skipbench.console import json_lines, show, show_result
from skipbench.errors import SkipbenchError

KINDS = {"models": "model", "methods": "method", "datasets": "dataset", "experiments": "experiment"}


def run_list(asked: List) -> None:
    """Prints the choices of one kind with their first comments, of models with sizes; without a
    kind the names of all.
    """
    if not asked.words:
        for kind, group in KINDS.items():
            show(f"{kind:{max(map(len, KINDS))}} {', '.join(choices(group))}")
        return
    if len(asked.words) != 1 or asked.words[0] not in KINDS:
        hint = did_you_mean(asked.words[0], list(KINDS))
        raise SkipbenchError(f"list needs one of: {', '.join(KINDS)}.{hint}")
    from skipbench.bench.memory import size_text

    group = KINDS[asked.words[0]]
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
    """Prints one line per finding: `ok`, `note` or `missing`; with `--gpu` what only a GPU can
    show, and `fault` for what is wrong there, which exits with 1. With `--json` each line is
    {"kind", "finding"}.
    """
    if asked.gpu:
        lines = _gpu_lines(asked.rehearse)
    else:
        from skipbench.bench.doctor import findings

        lines = iter(findings(compose(asked.settings).results, known_models()))
    wrong = False
    with json_lines(asked.json):
        for line in lines:
            kind, _, text = line.partition(" ")
            show_result({"kind": kind, "finding": text.strip()}, partial(str, line))
            wrong |= asked.gpu and kind in ("fault", "missing")
    if wrong:
        sys.exit(1)


def _gpu_lines(rehearse: bool) -> Iterator[str]:
    import torch

    from skipbench.bench.gpu_check import ON_CPU, ON_GPU, gpu_findings

    if not (rehearse or torch.cuda.is_available()):
        return iter(["missing  no CUDA device is at hand: nothing was checked"])
    device = torch.device("cpu") if rehearse else torch.device("cuda", 0)
    return gpu_findings(device, known_hardware(), ON_CPU if rehearse else ON_GPU)


def run_check(asked: Check) -> None:
    """Prints a line per property, and what to do where one is broken, which exits with 1."""
    if not any(word.startswith("method=") for word in asked.settings):
        raise SkipbenchError(f"check {Check.NEEDS}")
    method = compose(asked.settings).method
    from skipbench.bench.check_method import check_method

    broken = 0
    for name, fault, advice in check_method(method.factory()):
        if fault is None:
            show(f"ok      {name}")
            continue
        broken += 1
        show(f"FAILED  {name}: {fault}\n        {advice}")
    show(f"{method.name}: {broken or 'no'} propert{'y' if broken == 1 else 'ies'} broken")
    if broken:
        sys.exit(1)
