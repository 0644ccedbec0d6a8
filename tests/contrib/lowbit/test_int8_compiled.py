"""The kernel of weights in 8 bits compiled, as a script, for GPUs that are not here."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from test_compiled import COUNTS, LIMITS, compiled, spilled

pytest.importorskip("triton", exc_type=ImportError)

from skipbench.contrib.lowbit import tiles

CASES = [
    *(("bf16", tile, arch) for tile in tiles.HALF for arch in (80, 86, 90)),
    ("fp16", tiles.MANY, 90),
    *(("fp32", tile, arch) for tile in tiles.FLOAT32 for arch in (86, 90)),
]


def made(dtype: str, tile: tiles.Tile, arch: int) -> dict[str, Any]:
    """Shared bytes, and bytes that spill, of `int8_linear` as `int8_gpu` launches it."""
    from skipbench.contrib.lowbit.int8_triton import int8_linear

    constants = {
        "BIASED": True, "ADDED": True, "BLOCK_M": tiles.INT8_ROWS, "BLOCK_N": tile.outputs,
        "BLOCK_K": tile.inputs,
    }  # fmt: skip
    types = {**dict.fromkeys(COUNTS, "i32"), "weight": "*i8", "weight_scale": "*fp32"}
    options = {"num_warps": 4, "num_stages": tile.stages}
    aligned = ("inputs", "outputs")
    kernel = compiled(int8_linear, dtype, types, constants, arch, aligned, **options)
    return {"shared": kernel.metadata.shared, "spills": spilled(kernel, arch)}


@pytest.mark.slow
def test_a_tile_takes_the_memory_that_its_choice_goes_by() -> None:
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    told = subprocess.run([sys.executable, __file__], env=env, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    for (dtype, tile, arch), found in zip(CASES, json.loads(told.stdout), strict=True):
        assert found["spills"] == 0 and found["shared"] <= LIMITS[86]  # the smallest has it
        assert dtype == "fp32" or found["shared"] == tile.shared_bytes, (tile, arch)


if __name__ == "__main__":
    sys.stdout.write(json.dumps([made(*case) for case in CASES]))
