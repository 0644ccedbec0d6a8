"""Triton kernels of `cuda_graphs.attention` and `ops`, compiled for GPUs that are not here: the
interpreter runs code that the compiler refuses. Run as a script it compiles for one architecture
and prints a line of JSON per kernel.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("triton") is None:  # an import here would be without the interpreter
    pytest.skip("Triton is not installed", allow_module_level=True)

LIMITS = {80: 163, 86: 99, 90: 227}
"""Shared memory of a program, KiB, by architecture."""
DIMS = [("bf16", 64), ("bf16", 128), ("fp32", 128), ("fp32", 256)]  # dtype and head dimension
TYPES = {
    "bounds": "*i64", "depth": "*i64", "tree_mask": "*i1", "target": "*i64", "paths": "*i32",
    "outs": "*fp32", "log_sums": "*fp32", "scale": "fp32", "q_eps": "fp32", "k_eps": "fp32",
}  # fmt: skip
COUNTS = ("rows", "positions", "splits", "window", "width", "q_heads", "kv")
OF_OPS = {"silu_times": {"BLOCK": 1024}, "rotate_and_write": {"NORMED": True}}
PTXAS = "backends/nvidia/bin/ptxas"


@pytest.mark.slow
@pytest.mark.parametrize("architecture", LIMITS)
def test_every_kernel_compiles_and_spills_nothing(architecture: int) -> None:
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    words = [sys.executable, __file__, str(architecture)]
    told = subprocess.run(words, env=env, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    made = [json.loads(line) for line in told.stdout.splitlines()]
    assert [k["d"] for k in made if k["kernel"] == "attend_splits"] == [d for _, d in DIMS]
    for kernel in made:
        # products of another form (`wgmma`) could add in another order
        assert (
            kernel["spills"] == 0
            and not kernel["wgmma"]
            and kernel["shared"] <= LIMITS[architecture] << 10
        ), kernel


def compiled(kernel: Any, dtype: str, constants: dict[str, int], warps: int, arch: int) -> Any:
    """A kernel as `attention` launches it."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = [p.name for p in kernel.params]
    constants = {n: value for n, value in constants.items() if n in names}
    types = {n: "i32" if n in COUNTS else TYPES.get(n, f"*{dtype}") for n in names}
    types |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(
        fn=kernel,
        signature=types,
        constexprs={(names.index(n),): value for n, value in constants.items()},
        attrs={(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if types[n][0] == "*"},
    )
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": warps})


def spilled(made: Any, arch: int) -> tuple[int, int]:
    """Bytes of registers that spill, stored and read, and registers of a thread."""
    import triton

    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(made.asm["ptx"])
        file.flush()
        name = f"--gpu-name=sm_{arch}{'a' if arch == 90 else ''}"
        words = [Path(triton.__file__).parent / PTXAS, "-v", name, file.name, "-o", "/dev/null"]
        told = subprocess.run(words, capture_output=True, text=True, check=True).stderr
    spills = re.findall(r"(\d+) bytes spill", told)
    assert spills
    return sum(map(int, spills)), max(map(int, re.findall(r"Used (\d+) registers", told)))


def main(arch: int) -> None:
    import torch

    from skipbench.lm.cuda_graphs import attention, attention_triton, kernels

    for dtype, d in DIMS:
        of = {"bf16": torch.bfloat16, "fp32": torch.float32}[dtype]
        split = attention.split_size(of, d)
        constants = {"d": d, "BLOCK_D": d, "GROUP": 4, "SPLIT": split}
        constants |= {n: getattr(attention, n) for n in ("PATH", "TILE", "CHUNK")}
        for name in ("attend_splits", *("place", "join", *OF_OPS) * (d == 128)):
            warps = {"attend_splits": attention.warps(of), "rotate_and_write": 1}.get(name, 4)
            kernel = getattr(kernels if name in OF_OPS else attention_triton, name)
            given = constants | OF_OPS.get(name, {})
            made = compiled(kernel, dtype, given, warps, arch)
            spills, registers = spilled(made, arch)
            told = {"kernel": name, "dtype": dtype, "d": d, "shared": made.metadata.shared}
            told |= {"spills": spills, "registers": registers, "wgmma": "wgmma" in made.asm["ptx"]}
            print(json.dumps(told))  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]))
