"""`doctor`: what this machine can run, and what is missing for more."""

import sys
from collections.abc import Sequence

from skipbench.cli.commands import Doctor
from skipbench.cli.parser import parse
from skipbench.config.catalog import known_hardware, known_models
from skipbench.config.compose import compose
from skipbench.console import show


def run(arguments: Sequence[str]) -> None:
    """Prints one line per finding: `ok`, `note` or `missing`; with `--gpu` what only a GPU can
    show, and `fault` for what is wrong there.

    Raises:
        SystemExit: 1, when `--gpu` found a fault, or no GPU.
    """
    asked = parse(Doctor, arguments)
    if asked.gpu:
        _gpu()
        return
    from skipbench.bench.doctor import findings

    for line in findings(compose(asked.settings).results, known_models()):
        show(line)


def _gpu() -> None:
    import torch

    from skipbench.bench.gpu_check import gpu_findings

    if not torch.cuda.is_available():
        show("missing  no CUDA device is at hand: nothing was checked")
        sys.exit(1)
    faults = 0
    for line in gpu_findings(torch.device("cuda", 0), known_hardware()):
        show(line)
        faults += line.startswith("fault")
    if faults:
        sys.exit(1)
