"""Wheels that a machine without a network needs beside torch, transformers and pytest:
`gpu_report.py --carry FOLDER`.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CARRIED = ("hydra-core", "omegaconf", "msgspec", "bayesian-optimization")
CARRIED_SOURCE = ("antlr4-python3-runtime",)  # the index has no wheel of it
PYTHON = "3.12"
PLATFORMS = "manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"


def carry(folder: Path) -> None:
    """Fetches the wheels of the versions in constraints.txt."""
    text = (ROOT / "constraints.txt").read_text()
    pins = {line.partition("==")[0]: line for line in text.splitlines()}
    pip = [sys.executable, "-m", "pip"]
    fetch = [*pip, "download", "--only-binary=:all:", "--python-version", PYTHON]
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    for command, names in (
        ([*fetch, *platforms, "--implementation", "cp", "-d"], CARRIED),
        ([*pip, "wheel", "-w"], CARRIED_SOURCE),
    ):
        wanted = [pins[name] for name in names]
        subprocess.run([*command, str(folder), "--no-deps", *wanted], check=True)
    print(f"{sum(f.stat().st_size for f in folder.glob('*.whl')) / 1e6:.2f} MB in {folder}")
