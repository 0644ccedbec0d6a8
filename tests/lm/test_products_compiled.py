"""The kernels of `cuda_graphs.products` compiled for GPUs that are not here: shared memory, spills,
and what they read before the kernel before them has ended.

The kernels are compiled in a process of its own, as a script: Triton's interpreter is chosen where
one is defined.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

SHARED = {80: 163 << 10, 86: 99 << 10, 90: 227 << 10}
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
    """A kernel and what it is compiled for; `shape` is that of the weight."""

    kernel: str
    architecture: int
    shape: tuple[int, int] = (0, 0)
    dtype: str = "bf16"
    normed: bool = True
    early: bool = False
    constants: tuple[tuple[str, Any], ...] = ()


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
DAILY = CASES[1:4]
PLANTED = [Case("planted", 90, early=True, constants=(("WAIT", wait),)) for wait in (0, 1, 2)]


@triton.jit
def planted(x: tl.tensor, weight: tl.tensor, out: tl.tensor, WAIT: tl.constexpr) -> None:
    """Reads `x` too early: it waits behind that, or not at all; right with WAIT 2."""
    at = tl.arange(0, 128)
    tl.extra.cuda.gdc_launch_dependents()
    w = tl.load(weight + at)
    if WAIT == 2:
        tl.extra.cuda.gdc_wait()
    v = tl.load(x + at)
    if WAIT == 1:
        tl.extra.cuda.gdc_wait()
    tl.store(out + at, w + v)


def compiled(case: Case) -> dict[str, Any]:
    """Shared bytes, bytes of stack (of registers that spill), arguments in order (numbers have no
    name), those by whose value Triton makes no kernel of its own, and PTX.
    """
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from skipbench.lm.cuda_graphs import products, products_triton

    kernel = planted if case.kernel == "planted" else getattr(products_triton, case.kernel)
    names = [p.name for p in kernel.params]
    itemsize = 4 if case.dtype == "fp32" else 2
    tile = products.tile_of(*case.shape, itemsize, SHARED[case.architecture])
    given = {
        "inputs": case.shape[1], "BIASED": False, "NORMED": case.normed, "ADDED": False,
        "BLOCK_N": tile.outputs, "BLOCK_K": tile.inputs, "PDL": case.early, **dict(case.constants),
    }  # fmt: skip
    numbers = dict.fromkeys(("rows", "outputs", "q_heads", "kv"), "i32")
    numbers |= {"eps": "fp32", "target": "*i64"} | dict.fromkeys(given, "constexpr")
    types = {n: numbers.get(n, f"*{case.dtype}") for n in names}
    aligned = [i for i, n in enumerate(names) if types[n][0] == "*" or n == "outputs"]
    source = ASTSource(
        fn=kernel,
        signature=types,
        constexprs={(names.index(n),): value for n, value in given.items() if n in names},
        attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
    )
    options = {"num_warps": tile.warps, "num_stages": tile.stages, "launch_pdl": case.early}
    made = triton.compile(source, target=GPUTarget("cuda", case.architecture, 32), options=options)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        words = [str(tool), "-res-usage", file.name]
        told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    stack = max(int(n) for n in re.findall(r"(?:STACK|LOCAL):(\d+)", told))
    arguments = [n if types[n][0] == "*" else "" for n in names if types[n] != "constexpr"]
    return {
        "shared": made.metadata.shared, "most": tile.shared_bytes(itemsize), "stack": stack,
        "arguments": arguments, "ptx": made.asm["ptx"],
        "general": [p.name for p in kernel.params if p.do_not_specialize],
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
    if made["stack"] > 0 or made["shared"] > SHARED[case.architecture]:
        return f"spills, or takes {made['shared']} bytes"
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


def compiled_all(cases: list[Case]) -> dict[Case, Any]:
    """By one process."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    words = [sys.executable, __file__, *(str((CASES + PLANTED).index(case)) for case in cases)]
    told = subprocess.run(words, env=env, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    return dict(zip(cases, json.loads(told.stdout), strict=True))


def check(cases: list[Case], found: dict[Case, Any]) -> None:
    refused = {case: refusal(case, found[case]) for case in cases}
    assert not any(refused.values()), {c: why for c, why in refused.items() if why}


@pytest.mark.slow
def test_kernels_fit_other_gpus() -> None:
    others = [case for case in CASES if case not in DAILY]
    check(others, compiled_all(others))


def test_kernels_fit_an_h100_and_wait_before_they_read() -> None:
    """One test, for all are compiled by one process; with planted kernels that are refused."""
    found = compiled_all(DAILY + PLANTED)
    check(DAILY, found)
    never, late, right = (found[case] for case in PLANTED)
    with pytest.raises(AssertionError, match="no wait"):
        read_early(never["ptx"], never["arguments"])
    assert read_early(late["ptx"], late["arguments"]) == {"weight", "x"}
    assert read_early(right["ptx"], right["arguments"]) == {"weight"}
    made, wait = found[CASES[2]], "griddepcontrol.wait"
    assert read_early(made["ptx"], made["arguments"]) == {"weight"}  # fetched ahead
    for without in ("", "bar.sync 0"):  # left out, and moved to the end
        body, end = made["ptx"].replace(wait, without), f"{wait};" if without else ""
        with pytest.raises(AssertionError, match="branch" if without else "no wait"):
            read_early(body + end, made["arguments"])


if __name__ == "__main__":
    chosen = [(CASES + PLANTED)[int(index)] for index in sys.argv[1:]]
    sys.stdout.write(json.dumps([compiled(case) for case in chosen]))
