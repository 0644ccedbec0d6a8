"""The compiled library: what stands in its place where it cannot be made, and that it is closed to
others; one that was replaced is not loaded.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from test_few_rows import BF16, kernel_or_skip

from skipbench.config.paths import PACKAGE
from skipbench.contrib.cpu import native
from skipbench.contrib.cpu.elementwise import native_norm
from skipbench.contrib.cpu.few_rows import few_rows_kernel, functions
from skipbench.contrib.cpu.native import (
    AVX2,
    BFLOAT16,
    Source,
    UnavailableError,
    compiled,
    digest,
    is_sealed,
    library,
)
from skipbench.contrib.cpu.weights import CpuWeights
from skipbench.runs.provenance import cpu_flags


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The `PATH`, a folder without a compiler, of a machine that has compiled nothing yet."""
    kernel_or_skip()
    (place := tmp_path / "bin").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(place))
    for known in (library, functions, few_rows_kernel):
        known.cache_clear()
    yield place
    for known in (library, functions, few_rows_kernel):
        known.cache_clear()


def install(place: Path, script: str) -> None:
    """A compiler that is to write $2."""
    (place / "gcc").write_text(f"#!/bin/sh\nwhile [ $1 != -o ]; do shift; done\n{script}\n")
    (place / "gcc").chmod(0o755)


def test_without_a_compiler_torch_multiplies_and_the_notes_say_so(bare: Path) -> None:
    like = torch.zeros(8, dtype=BF16)
    (note,) = CpuWeights().notes(like)
    assert "no C compiler on the PATH; install gcc" in note
    made = CpuWeights().made(torch.zeros(64, 32, dtype=BF16), None)
    assert native_norm(like, 1e-5) is None and made.kernel == "torch"


def test_a_compiler_that_fails_and_a_damaged_library_are_named(bare: Path) -> None:
    install(bare, "echo unrecognized option -mfma >&2; exit 1")
    with pytest.raises(UnavailableError, match="gcc failed: unrecognized option -mfma"):
        compiled(AVX2)
    assert [p.name for p in (bare.parent / "skipbench" / "native").iterdir()] == []
    install(bare, "echo no > $2")
    assert compiled(AVX2).exists()
    kernel, fault = few_rows_kernel(BF16)
    assert kernel is None and fault is not None and f"; remove {compiled(AVX2)}" in fault


def test_two_that_compile_at_once_leave_one_library(bare: Path) -> None:
    """What a killed compilation left behind holds up nobody."""
    wait = shutil.which("sleep", path=os.defpath)
    install(bare, f"{wait} 0.3; echo so > $2")
    left = bare.parent / "skipbench" / "native" / ".native-killed"
    left.mkdir(parents=True)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: compiled(AVX2), range(2))
    assert first == second and {*left.parent.iterdir()} == {left, first}


def test_a_library_that_was_replaced_is_compiled_anew(bare: Path) -> None:
    """Under a umask that lets a group write, too: the folder and the file are closed to it."""
    install(bare, "echo so > $2")
    before = os.umask(0o002)
    try:
        whole = (first := compiled(AVX2)).read_bytes()
    finally:
        os.umask(before)
    assert [p.stat().st_mode & 0o777 for p in (first, first.parent)] == [0o700, 0o700]
    first.write_bytes(b"code of another")
    assert compiled(AVX2).read_bytes() == whole
    first.chmod(0o770)
    assert compiled(AVX2).stat().st_mode & 0o777 == 0o700
    assert [*first.parent.iterdir()] == [first]


def test_a_sealed_file_is_this_users_and_as_its_name_says(tmp_path: Path) -> None:
    (made := tmp_path / "made.so").write_bytes(b"code")
    made.chmod(0o700)
    sealed = made.rename(tmp_path / f"name-{digest(made)}.so")
    assert is_sealed(sealed) and not is_sealed(tmp_path / "gone.so")
    sealed.chmod(0o770)
    assert not is_sealed(sealed)
    sealed.chmod(0o700)
    sealed.write_bytes(b"c0de")
    assert not is_sealed(sealed)


SECONDS = 30  # of CPU time
SANITIZERS = "-O1 -g -shared -fPIC -fopenmp -fsanitize=address,undefined -fno-sanitize-recover=all"
TYPED = ["rms_norm", "silu_times", "rotate", "attend", "multiply", "top_k", "two_best"]
FLOAT32, HALF = ([f"{name}_{kind}" for name in TYPED] for kind in ("float32", "bfloat16"))
KERNELS = {
    "AVX2": (AVX2, ["run_sublayers", *FLOAT32, *HALF], AVX2.flags),
    "int8": (AVX2, ["int8_avx2", "quantize_weight"], {"avx2"}),
    "int8, AMX": (AVX2, ["int8_amx"], {"amx_tile", "amx_int8", "avx512_vnni"}),
    "int8, AVX-512": (AVX2, ["int8_avx512"], {"avx512f", "avx512_vnni"}),
    "bfloat16": (BFLOAT16, HALF, BFLOAT16.flags),
    "bfloat16, AMX": (
        BFLOAT16,
        ["multiply_tiles", "mlp_tiles", "attend_tiles"],
        {"amx_tile", "amx_bf16"},
    ),
}


def build(source: Source, options: str, folder: Path) -> Path:
    files = [str(Path(native.__file__).with_name(name)) for name in source.names]
    words = [*options.split(), *source.options.split(), *files, "-o", str(folder / "k.so"), "-lm"]
    subprocess.run(["gcc", *words], check=True, capture_output=True)
    return folder / "k.so"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
@pytest.mark.parametrize("options", [native.OPTIONS, SANITIZERS], ids=["usual", "sanitizers"])
@pytest.mark.parametrize("name", KERNELS)
def test_no_kernel_leaves_its_buffers_or_its_values(
    name: str, options: str, tmp_path: Path
) -> None:
    source, kernels, flags = KERNELS[name]
    if not flags <= cpu_flags():
        pytest.skip(f"the processor has no {', '.join(sorted(flags - cpu_flags()))}")
    library, environment = build(source, options, tmp_path), {**os.environ, "OMP_NUM_THREADS": "1"}
    if options == SANITIZERS:
        asked = ["gcc", "-print-file-name=libasan.so"]
        found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
        environment |= {"LD_PRELOAD": found, "ASAN_OPTIONS": "detect_leaks=0"}
    words = [library, ",".join(kernels), SECONDS, 0, tmp_path / "last"]
    command, root = [sys.executable, "-m", "scripts.kernel_fuzz"], PACKAGE.parent
    done = subprocess.run(
        [*command, *map(str, words)], env=environment, cwd=root, capture_output=True, text=True
    )
    assert done.returncode == 0, f"case {(tmp_path / 'last').read_text()}: {done.stderr[-3000:]}"
    assert int(done.stdout) > SECONDS / 10
