"""The kernel of weights in 8 bits compiled, as a script, for GPUs that are not here."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from test_attention_compiled import LIMITS, spilled

pytest.importorskip("triton", exc_type=ImportError)

from skipbench.contrib.lowbit import tiles

CASES = [
    *(("bf16", tile, arch) for tile in tiles.HALF for arch in (80, 86, 90)),
    ("fp16", tiles.MANY, 90),
    *(("fp32", tile, arch) for tile in tiles.FLOAT32 for arch in (86, 90)),
]


def compiled(dtype: str, tile: tiles.Tile, arch: int) -> dict[str, Any]:
    """Shared bytes, and bytes that spill, of `int8_linear` as `int8_gpu` launches it."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from skipbench.contrib.lowbit.int8_triton import int8_linear

    names = [p.name for p in int8_linear.params]
    constants = {
        "BIASED": True, "ADDED": True, "BLOCK_M": tiles.INT8_ROWS, "BLOCK_N": tile.outputs,
        "BLOCK_K": tile.inputs,
    }  # fmt: skip
    types = dict.fromkeys(("rows", "inputs", "outputs"), "i32")
    types |= {"weight": "*i8", "weight_scale": "*fp32"} | dict.fromkeys(constants, "constexpr")
    types = {n: types.get(n, f"*{dtype}") for n in names}
    aligned = [n for n in names if types[n][0] == "*" or n in ("inputs", "outputs")]
    source = ASTSource(
        fn=int8_linear,
        signature=types,
        constexprs={(names.index(n),): value for n, value in constants.items()},
        attrs={(names.index(n),): [["tt.divisibility", 16]] for n in aligned},
    )
    options = {"num_warps": 4, "num_stages": tile.stages}
    made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    return {"shared": made.metadata.shared, "spills": spilled(made, arch)[0]}


@pytest.mark.slow
def test_a_tile_takes_the_memory_that_its_choice_goes_by() -> None:
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    told = subprocess.run([sys.executable, __file__], env=env, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    for (dtype, tile, arch), made in zip(CASES, json.loads(told.stdout), strict=True):
        assert made["spills"] == 0 and made["shared"] <= LIMITS[86] << 10  # the smallest has it
        assert dtype == "fp32" or made["shared"] == tile.shared_bytes, (tile, arch)


if __name__ == "__main__":
    sys.stdout.write(json.dumps([compiled(*case) for case in CASES]))
