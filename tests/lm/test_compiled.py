"""Kernels of `cuda_graphs` compiled for GPUs that are not here: memory, spills, and what they
read before the one before them has ended. Triton's interpreter runs what its compiler refuses.

They are compiled in a process of its own, as a script: the interpreter is chosen where a kernel is
defined.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

triton = pytest.importorskip("triton")

LIMITS = {80: 163 << 10, 86: 99 << 10, 90: 227 << 10}
"""Bytes of shared memory that a program may take, by architecture."""
WEIGHTS = {"weight", "norm", "bias"}
LLAMA = {
    "qkv": (6144, 4096),
    "gate_up": (28672, 4096),
    "down": (4096, 14336),
    "head": (128256, 4096),
}
SMALL = {"qkv": (960, 576), "gate_up": (3072, 576)}  # SmolLM2-135M


class Case(NamedTuple):
    """A kernel and what it is compiled for; `shape` is that of the weight of a product, `d` the
    size of a head.
    """

    kernel: str
    architecture: int
    shape: tuple[int, int] = (0, 0)
    dtype: str = "bf16"
    normed: bool = True
    early: bool = False
    constants: tuple[tuple[str, Any], ...] = ()
    d: int = 0


HEADS_OF_128, HEADS_OF_64 = (("half", 64),), (("half", 32),)
ADDED = (("ADDED", True), ("BIASED", True))
CASES = [
    Case("linear", 90, LLAMA["head"], early=True),
    Case("linear", 90, LLAMA["down"], normed=False, early=True, constants=ADDED),
    Case("qkv_rotated", 90, LLAMA["qkv"], early=True, constants=HEADS_OF_128),
    Case("gated", 90, LLAMA["gate_up"], early=True, constants=(("half", 14336),)),
    Case("qkv_rotated", 90, SMALL["qkv"], early=True, constants=HEADS_OF_64),
    Case("linear", 90, LLAMA["head"], "fp32", early=True),
    Case("rms_norm", 90, early=True, constants=(("d", 576), ("BLOCK_D", 1024))),
    Case("linear", 90, LLAMA["qkv"], "fp16", normed=False),
    Case("linear", 80, LLAMA["down"], normed=False, constants=ADDED),
    Case("gated", 80, LLAMA["gate_up"], constants=(("half", 14336),)),
    Case("qkv_rotated", 86, LLAMA["qkv"], constants=(*HEADS_OF_128, ("BIASED", True))),
    Case("gated", 86, SMALL["gate_up"], constants=(("half", 1536),)),
    Case("qkv_rotated", 86, SMALL["qkv"], "fp32", constants=HEADS_OF_64),
]
ATTENDS = [("bf16", 64), ("bf16", 128), ("fp32", 128), ("fp32", 256)]  # dtype and head dimension
BESIDE = ("place", "join", "silu_times", "rotate_and_write")
for arch in LIMITS:
    CASES += [Case("attend_splits", arch, dtype=dtype, d=d) for dtype, d in ATTENDS]
    CASES += [Case(name, arch, dtype=dtype, d=128) for name in BESIDE for dtype in ("bf16", "fp32")]
DAILY = CASES[2:3]
TYPES = {
    "bounds": "*i64", "depth": "*i64", "tree_mask": "*i1", "target": "*i64", "paths": "*i32",
    "outs": "*fp32", "log_sums": "*fp32", "scale": "fp32", "q_eps": "fp32", "k_eps": "fp32",
    "eps": "fp32",
}  # fmt: skip
COUNTS = ("rows", "positions", "splits", "window", "width", "q_heads", "kv", "inputs", "outputs")
TYPES |= dict.fromkeys(COUNTS, "i32")
OF_OPS = {"silu_times": {"BLOCK": 1024}, "rotate_and_write": {"NORMED": True}}


def compiled(
    kernel: Any,
    dtype: str,
    types: dict[str, str],
    constants: dict[str, Any],
    arch: int,
    aligned: Iterable[str] = (),
    **options: Any,
) -> Any:
    """A kernel as Triton makes it for a GPU; arguments that `types` does not name point to `dtype`,
    pointers and those `aligned` are multiples of 16.
    """
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = [p.name for p in kernel.params]
    constants = {n: value for n, value in constants.items() if n in names}
    types = {n: types.get(n, f"*{dtype}") for n in names} | dict.fromkeys(constants, "constexpr")
    whole = [n for n in names if types[n][0] == "*" or n in aligned]
    source = ASTSource(
        fn=kernel,
        signature=types,
        constexprs={(names.index(n),): value for n, value in constants.items()},
        attrs={(names.index(n),): [["tt.divisibility", 16]] for n in whole},
    )
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def spilled(made: Any, arch: int) -> int:
    """Bytes of registers that spill, stored and read."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(made.asm["ptx"])
        file.flush()
        name = f"--gpu-name=sm_{arch}{'a' if arch == 90 else ''}"
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
        words = [tool, "-v", name, file.name, "-o", "/dev/null"]
        told = subprocess.run(words, capture_output=True, text=True, check=True).stderr
    spills = re.findall(r"(\d+) bytes spill", told)
    assert spills
    return sum(map(int, spills))


def made_of(case: Case) -> dict[str, Any]:
    """Shared bytes and the most of them, bytes that spill, arguments in order (numbers have no
    name), those by whose value Triton makes no kernel of its own, and PTX.
    """
    import torch

    from skipbench.lm.cuda_graphs import (
        attention,
        attention_triton,
        kernels,
        products,
        products_triton,
    )

    if case.d:
        dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[case.dtype]
        constants: dict[str, Any] = {"d": case.d, "BLOCK_D": case.d, "GROUP": 4}
        constants |= {"SPLIT": attention.split_size(dtype, case.d), **OF_OPS.get(case.kernel, {})}
        constants |= {n: getattr(attention, n) for n in ("PATH", "TILE", "CHUNK")}
        kernel = getattr(kernels if case.kernel in OF_OPS else attention_triton, case.kernel)
        warps = {"attend_splits": attention.warps(dtype), "rotate_and_write": 1}
        options = {"num_warps": warps.get(case.kernel, 4)}
        most, aligned = LIMITS[case.architecture], list[str]()
    else:
        kernel, itemsize = getattr(products_triton, case.kernel), 4 if case.dtype == "fp32" else 2
        tile = products.tile_of(*case.shape, itemsize, LIMITS[case.architecture])
        constants = {
            "inputs": case.shape[1], "BIASED": False, "NORMED": case.normed, "ADDED": False,
            "BLOCK_N": tile.outputs, "BLOCK_K": tile.inputs, "PDL": case.early,
        } | dict(case.constants)  # fmt: skip
        options = {"num_warps": tile.warps, "num_stages": tile.stages, "launch_pdl": case.early}
        most, aligned = tile.shared_bytes(itemsize), ["outputs"]
    made = compiled(kernel, case.dtype, TYPES, constants, case.architecture, aligned, **options)
    names = [p.name for p in kernel.params if p.name not in constants]
    return {
        "shared": made.metadata.shared, "most": most, "spills": spilled(made, case.architecture),
        "arguments": [n if TYPES.get(n, "*")[0] == "*" else "" for n in names],
        "ptx": made.asm["ptx"], "general": [p.name for p in kernel.params if p.do_not_specialize],
    }  # fmt: skip


def read_early(ptx: str, arguments: list[str]) -> set[str]:
    """Arguments whose memory is touched before `griddepcontrol.wait`, which stands in no branch."""
    before, wait, _ = ptx[ptx.index("\n{") :].partition("griddepcontrol.wait")
    assert wait, "no wait"
    of: dict[str, set[str]] = {}  # of a register: the arguments that its value is of
    touched: set[str] = set()
    for line in re.split(r"[;\n]", before):
        words = re.sub(r"//.*|^\s*@!?%p\d+", "", line).strip()
        assert not words.startswith(("bra", "call", "ret")), "a branch before the wait"
        name = re.match(r"(\S+)", words)
        sources = set().union(*(of.get(r, set()) for r in re.findall(r"%\w+", words)))
        if argument := re.search(r"_param_(\d+)\]", words):
            at = int(argument[1])
            sources = {arguments[at]} if at < len(arguments) else set()
        elif name and re.match(r"(ld|st|red|atom|cp|prefetch)\b.*|ldmatrix", name[1]):
            touched |= sources
            sources = set()
        to = re.match(r"\S+\s+(\{[^}]*\}|%\w+)", words)
        of |= dict.fromkeys(re.findall(r"%\w+", to[1]) if to else [], sources)
    return touched - {""}


def refusal(case: Case, made: dict[str, Any]) -> str:
    """Why a compiled kernel is none for its GPU, or nothing."""
    if made["spills"] > 0 or made["shared"] > LIMITS[case.architecture]:
        return f"spills, or takes {made['shared']} bytes"
    if case.d:  # products of that form could add in another order
        return "wgmma" if "wgmma" in made["ptx"] else ""
    if case.kernel != "rms_norm":
        if made["general"] != ["rows"]:
            return "another kernel for another number of rows"
        # `dependent` goes by what a tile takes at most
        least = 0.95 * made["most"] if case.early and case.dtype == "bf16" else 0
        if not least < made["shared"] <= made["most"]:
            return f"takes {made['shared']} bytes, not {made['most']}"
    if not case.early:
        return "waits" if "griddepcontrol" in made["ptx"] else ""
    too_early = read_early(made["ptx"], made["arguments"]) - WEIGHTS
    return f"reads {too_early} too early" if too_early else ""


def check(cases: list[Case]) -> list[Any]:
    """Compiles them in one process, and returns what was made."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    words = [sys.executable, __file__, *(str(CASES.index(case)) for case in cases)]
    told = subprocess.run(words, env=env, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    found: list[Any] = json.loads(told.stdout)
    refused = {c: refusal(c, made) for c, made in zip(cases, found, strict=True)}
    assert not any(refused.values()), {c: why for c, why in refused.items() if why}
    return found


@pytest.mark.slow
def test_kernels_fit_other_gpus() -> None:
    check([case for case in CASES if case not in DAILY])


def test_kernels_fit_an_h100_and_wait_before_they_read() -> None:
    made, wait = check(DAILY)[0], "griddepcontrol.wait"
    assert read_early(made["ptx"], made["arguments"]) == {"weight"}  # fetched ahead
    for without in ("", "bar.sync 0"):  # left out, and moved to the end
        body, end = made["ptx"].replace(wait, without), f"{wait};" if without else ""
        with pytest.raises(AssertionError, match="branch" if without else "no wait"):
            read_early(body + end, made["arguments"])


if __name__ == "__main__":
    sys.stdout.write(json.dumps([made_of(CASES[int(index)]) for index in sys.argv[1:]]))
