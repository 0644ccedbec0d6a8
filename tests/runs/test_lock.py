"""Locks of folders."""

import errno
import os
from pathlib import Path

import pytest

from skipbench.errors import SkipbenchError
from skipbench.runs.lock import held


def test_a_folder_is_held_once_and_again_after_an_error(tmp_path: Path) -> None:
    with (
        held(tmp_path),
        pytest.raises(SkipbenchError, match=rf"another process \(pid {os.getpid()} on "),
        held(tmp_path),
    ):
        raise AssertionError
    with pytest.raises(KeyboardInterrupt), held(tmp_path):
        raise KeyboardInterrupt
    with held(tmp_path):
        pass


def test_a_lock_without_a_name_is_one(tmp_path: Path) -> None:
    """As on a full disk."""
    with held(tmp_path):
        (tmp_path / ".lock").write_text("")
        with pytest.raises(SkipbenchError, match="it has the lock"), held(tmp_path):
            raise AssertionError


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_flock_is_one_error(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(handle: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)
    with (
        pytest.raises(SkipbenchError, match="on a file system without flock; mount"),
        held(tmp_path),
    ):
        raise AssertionError
