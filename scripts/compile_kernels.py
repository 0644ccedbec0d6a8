"""Compiles every Triton kernel of engine `cuda_graphs` for an architecture, which needs no GPU: the
interpreter runs code that the compiler refuses. Prints shared memory and registers that spill.

    python scripts/compile_kernels.py 90 bf16
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from skipbench.contrib.lowbit import int8_triton, tiles
from skipbench.lm.cuda_graphs import kernels

NUMBERS = {
    "bounds": "*i64", "depth": "*i64", "windows": "*i64", "target": "*i64", "tree_mask": "*i1",
    "used": "*i32", "parts": "*fp32", "log_sums": "*fp32", "scale": "fp32", "low": "fp32",
    "q_eps": "fp32", "k_eps": "fp32", "weight": "*i8", "weight_scale": "*fp32",
}  # fmt: skip
COUNTS = {
    "width", "q_heads", "kv", "rows", "group", "size", "positions", "splits", "inputs", "outputs",
}  # fmt: skip
ONES = dict.fromkeys(("rows", "group", "kv", "q_heads", "splits"), 1)
"""Triton makes a kernel of its own where an argument is 1."""
ATTEND = {"GROUP": 4, "NORMED": False, "BLOCK_R": 16, "BLOCK_D": 128, "d": 128}
INT8 = {"BIASED": True, "ADDED": True, "BLOCK_M": tiles.INT8_ROWS}
CASES: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
    (kernels.silu_times, {"BLOCK": 1024}, {}),
    (kernels.rotate_and_write, {"NORMED": True, "BLOCK_D": 128, "d": 128}, {"num_warps": 1}),
    (kernels.prepare, {"BLOCK": 256, "BLOCK_D": 128, "d": 128}, {}),
    (kernels.join_parts, {"BLOCK_S": 16, "BLOCK_D": 128, "d": 128}, {}),
]


def _int8(outputs: int, inputs: int, stages: int) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    blocks = {"BLOCK_N": outputs, "BLOCK_K": inputs}
    return int8_triton.int8_linear, INT8 | blocks, {"num_warps": 4, "num_stages": stages}


HALF = [
    *(_int8(*tile) for tile in tiles.HALF),
    (kernels.attend_parts, ATTEND | {"BLOCK_M": 16, "BLOCK_N": 64}, {"num_warps": 4}),
    (kernels.attend_parts, ATTEND | {"BLOCK_M": 64, "BLOCK_N": 64}, {"num_warps": 8}),
]
WIDE = [
    *(_int8(*tile) for tile in tiles.FLOAT32),
    (kernels.attend_parts, ATTEND | {"BLOCK_M": 16, "BLOCK_N": 32}, {"num_warps": 8}),
]


def main(architecture: int, dtype: str) -> None:
    target = GPUTarget("cuda", architecture, 32)
    cases = [*CASES, *(WIDE if dtype == "fp32" else HALF)]
    of_one = [(kernel, ONES | constants, options) for kernel, constants, options in cases]
    for kernel, given, options in [*cases, *of_one]:
        names = [p.name for p in kernel.params]
        constants = {n: value for n, value in given.items() if n in names}
        types = {n: "i32" if n in COUNTS else NUMBERS.get(n, f"*{dtype}") for n in names}
        types |= dict.fromkeys(constants, "constexpr")
        aligned = [i for i, n in enumerate(names) if types[n][0] == "*" or n in ("size", "inputs")]
        source = ASTSource(
            fn=kernel,
            signature=types,
            constexprs={(names.index(n),): value for n, value in constants.items()},
            attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
        )
        made = triton.compile(source, target=target, options={"num_stages": 2} | options)
        name, shared = kernel.fn.__name__, made.metadata.shared
        tile = ("BLOCK_M",) if "size" in names else ("BLOCK_N", "BLOCK_K")
        of = " x ".join(str(constants[n]) for n in tile if n in constants)
        print(f"{name} {of}: {shared} bytes shared, {spilled(made, architecture)}")


def spilled(made: Any, architecture: int) -> str:
    at = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
    if not at.exists():
        return "spills unknown"
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(made.asm["ptx"])
        file.flush()
        name = f"sm_{architecture}{'a' if architecture == 90 else ''}"
        words = [str(at), "-v", f"--gpu-name={name}", file.name, "-o", "/dev/null"]
        told = subprocess.run(words, capture_output=True, text=True, check=True).stderr
    return ", ".join(re.findall(r"\d+ bytes spill stores|\d+ registers", told))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
