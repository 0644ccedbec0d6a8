"""The compiled library: what stands in its place where it cannot be made, and that it is closed to
others; one that was replaced is not loaded.
"""

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from test_few_rows import BF16, kernel_or_skip

from skipbench.contrib.cpu.elementwise import native_norm
from skipbench.contrib.cpu.few_rows import few_rows_kernel, functions
from skipbench.contrib.cpu.native import (
    AVX2,
    UnavailableError,
    compiled,
    digest,
    is_sealed,
    library,
)
from skipbench.contrib.cpu.weights import CpuWeights


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
