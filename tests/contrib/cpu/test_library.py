"""The compiled library is closed to others, and one that was replaced is not loaded."""

import os
from pathlib import Path

import pytest

from skipbench.contrib.cpu.native import AVX2, compiled, digest, is_sealed


def test_a_library_that_was_replaced_is_compiled_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a umask that lets a group write, too: the folder and the file are closed to it."""
    (tmp_path / "gcc").write_text("#!/bin/sh\nwhile [ $1 != -o ]; do shift; done\necho so > $2\n")
    (tmp_path / "gcc").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = os.umask(0o002)
    try:
        whole = (first := compiled(AVX2)).read_bytes()
    finally:
        os.umask(before)
    assert [p.stat().st_mode & 0o777 for p in (first, first.parent)] == [0o700, 0o700]
    assert compiled(AVX2) == first, "no second compilation"
    first.write_bytes(b"code of another")
    assert compiled(AVX2).read_bytes() == whole
    first.chmod(0o770)
    assert compiled(AVX2).stat().st_mode & 0o777 == 0o700
    assert [*first.parent.iterdir()] == [first]


def test_a_sealed_file_is_this_users_and_as_its_name_says(tmp_path: Path) -> None:
    (made := tmp_path / "made.so").write_bytes(b"code")
    made.chmod(0o700)
    sealed = made.rename(tmp_path / f"name-{digest(made)}.so")
    assert is_sealed(sealed)
    sealed.chmod(0o770)
    assert not is_sealed(sealed)
    sealed.chmod(0o700)
    sealed.write_bytes(b"c0de")
    assert not is_sealed(sealed)
    assert not is_sealed(tmp_path / "gone.so")
