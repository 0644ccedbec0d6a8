"""The first process of a sandbox: makes its own root folder, starts the two runners without any
right, waits for the tests, and reports.

A fresh interpreter gets the source of this file: standard library only. As process 1 of its PID
namespace it ends every other process of the namespace with itself. Mounts follow mount(2),
pivot_root(2) and user_namespaces(7).
"""

import contextlib
import errno
import json
import os
import re
import signal
import struct
import subprocess
from typing import Any, NamedTuple

_NOSUID, _NODEV, _RDONLY, _REMOUNT, _BIND, _REC, _RELATIME = 2, 4, 1, 32, 4096, 16384, 1 << 21
# nosuid, nodev, noexec, noatime, nodiratime: the same bits in statvfs and in mount
_KEPT = 2 | 4 | 8 | 1024 | 2048
_ST_RELATIME = 4096
_DETACH = 2
_CAPBSET_DROP, _NO_NEW_PRIVS = 24, 38
_JOIN_SESSION_KEYRING = 1
_ENDED_S = 1.0  # for a program that has closed its descriptors to be gone
_VERDICT_BYTES = 4096
# The system calls of an interpreter that computes and reads files. What is not here does not exist
# for a program: processes and threads, signals to others, sockets, pipes, memory that no limit
# counts, keys, namespaces, mounts, other processes' memory and descriptors, io_uring.
_ALLOWED = """
read write readv writev pread64 pwrite64 open openat close close_range stat fstat lstat newfstatat
statx statfs fstatfs lseek access faccessat faccessat2 getdents64 getcwd chdir fchdir readlink
readlinkat fadvise64 dup dup2 dup3 select pselect6 poll ppoll mmap mprotect munmap mremap
madvise brk rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack pause alarm setitimer getitimer
nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time times getrusage getrlimit
setrlimit sched_yield sched_getaffinity futex set_tid_address set_robust_list rseq getpid getppid
gettid getpgrp getpgid getsid getuid geteuid getgid getegid getresuid getresgid getgroups uname
sysinfo getrandom arch_prctl execve exit exit_group restart_syscall
"""
# Where a call does many things: its argument at that place must be one of these.
_ONLY = {
    "ioctl": (1, (0x5401, 0x5450, 0x5451, 0x541B)),  # TCGETS, FIONCLEX, FIOCLEX, FIONREAD
    "prctl": (0, (15,)),  # PR_SET_NAME
    # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC: with F_SETOWN the kernel sends signals
    "fcntl": (1, (0, 1, 2, 3, 1030)),
    "prlimit64": (0, (0,)),  # of the process itself
}
_SECCOMP = "libseccomp.so.2"
# seccomp.h: actions, what to do with a call of another architecture, and the comparison "equal".
# ENOSYS: the C library then does without the call where it can.
_ALLOW, _DENY, _BAD_ARCHITECTURE, _EQUAL = 0x7FFF0000, 0x00050000 | errno.ENOSYS, 2, 4


class View(NamedTuple):
    """A program sees read-only `binds`, `devices`, `links` (path, target); `uid`: as that user."""

    mount_point: str
    binds: list[str]
    links: list[tuple[str, str]]
    devices: list[str]
    uid: int | None = None


def _call(name: str, *arguments: Any) -> None:
    import ctypes  # only where it is needed: some interpreters are built without it

    kinds: dict[type, Any] = {int: ctypes.c_ulong, str: os.fsencode}
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    if function(*(kinds[type(a)](a) if type(a) in kinds else a for a in arguments)) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}{arguments}: {os.strerror(code)}")


def make_root(view: View) -> None:
    """Replaces the root folder by an empty one with `view`; nothing in it can be written."""
    flags = _NOSUID | _NODEV
    _call("mount", "tmpfs", view.mount_point, "tmpfs", flags, "size=1m,mode=755")
    os.chdir(view.mount_point)
    os.mkdir("old")
    _call("pivot_root", ".", "old")
    os.chdir("/")
    for path in view.binds + view.devices:
        if os.path.isdir(f"/old{path}"):
            os.makedirs(path, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
        _call("mount", f"/old{path}", path, None, _BIND | _REC, None)
    for path, target in view.links:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(target, path)
    with open("/old/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        points = [line.split(" ")[4] for line in lines]
    for point in points:
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point)
        if any(point == path or point.startswith(f"{path}/") for path in view.binds):
            # A remount may not take away what a mount from outside the user namespace already
            # forbids.
            has = os.statvfs(point).f_flag
            kept = has & _KEPT | (_RELATIME if has & _ST_RELATIME else 0)
            _call("mount", None, point, None, _REMOUNT | _BIND | _RDONLY | flags | kept, None)
    _call("umount2", "/old", _DETACH)
    os.rmdir("/old")
    _call("mount", None, "/", None, _REMOUNT | _BIND | _RDONLY | flags, None)


def drop_rights(uid: int | None) -> None:
    """No capability and no way to another; with `uid`, another user than root."""
    _call("prctl", _NO_NEW_PRIVS, 1, 0, 0, 0)
    for capability in range(64):
        try:
            _call("prctl", _CAPBSET_DROP, capability, 0, 0, 0)
        except OSError:
            if capability == 0:
                raise
            break  # after the last that the kernel knows
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


def call_filter() -> tuple[Any, Any]:
    """libseccomp, and its filter that leaves the calls of `_ALLOWED` and `_ONLY`; see
    seccomp_rule_add(3). Raises OSError where there is no libseccomp, or it refuses.
    """
    import ctypes

    library: Any = ctypes.CDLL(_SECCOMP)
    library.seccomp_init.restype = ctypes.c_void_p
    found = ctypes.c_void_p(library.seccomp_init(_DENY))
    failed = library.seccomp_attr_set(found, _BAD_ARCHITECTURE, _DENY)
    rules = [(name, b"") for name in _ALLOWED.split()]
    rules += [
        (name, struct.pack("IIQQ", place, _EQUAL, value, 0))
        for name, (place, values) in _ONLY.items()
        for value in values
    ]
    for name, test in rules:
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number >= 0:  # some machines lack the older calls
            failed |= library.seccomp_rule_add_array(found, _ALLOW, number, len(test) > 0, test)
    if failed:
        raise OSError("libseccomp makes no filter for this machine")
    return library, found


def forbid_calls() -> None:
    """Leaves this process and its children only the calls of the filter."""
    library, found = call_filter()
    if code := library.seccomp_load(found):
        raise OSError(-code, "the kernel takes no filter of system calls")


def _start(
    command: list[str], view: View | None, apart: bool, role: str, *handles: int
) -> subprocess.Popen[bytes]:
    """Starts a runner that inherits `handles` only; if it fails, ends this process and says why."""
    told = os.dup(2)  # not inherited

    def leave() -> None:
        try:
            if view is not None:
                drop_rights(view.uid)
            if apart:
                forbid_calls()
        except BaseException as error:
            os.write(told, f"{error}\n".encode(errors="replace"))
            raise

    *python, source = command
    try:
        child = subprocess.Popen(
            [*python, f"{source}\nmain({role!r}, {handles!r}, LIMITS)\n"],
            env={},
            stdin=0 if 0 in handles else subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=handles,
            # a signal to the process group reaches its members outside of the namespace too
            start_new_session=apart,
            preexec_fn=leave,
        )
    except subprocess.SubprocessError:
        os._exit(71)
    for handle in (told, *handles):
        os.close(handle)
    return child


def _status(child: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    """The exit status (negative: the signal); None for a process killed after the time."""
    try:
        return child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        return None


def _judge(tests: Any, program: Any, verdict: int, timeout_s: float) -> tuple[str, str, int]:
    """Ends both processes; the fields of an `Outcome` behind the first."""
    status = _status(tests, timeout_s)
    said = os.read(verdict, _VERDICT_BYTES)
    left = _status(program, _ENDED_S if said == b"ended" else 0.0)
    if status is None:
        return "timeout", f"still running after {timeout_s:g} s", 0
    if said == b"ended" and left is not None and left < 0:
        names = {int(number): number.name for number in signal.Signals}
        return "killed", f"killed by {names.get(-left, f'signal {-left}')}", 0
    if said == b"ended":
        return "failed", f"left with status {left} before its end", 0
    if status == 0 and (passed := re.fullmatch(rb"ok (\d+)", said)):
        return "ok", "", int(passed[1])
    return "failed", said.decode(errors="replace") or f"its tests left with status {status}", 0


def main(command: list[str], timeout_s: float, view: View | None, apart: bool) -> None:
    """Runs the program and its tests, which stdin holds, as two processes; writes `started`, and at
    the end their verdict, to stdout.
    """
    report = os.dup(1)  # not inherited
    if view is not None:
        make_root(view)
    with contextlib.suppress(ImportError, OSError):  # the filter refuses keys anyway
        import ctypes

        number = ctypes.CDLL(_SECCOMP).seccomp_syscall_resolve_name(b"keyctl")
        _call("syscall", number, _JOIN_SESSION_KEYRING, None)  # an empty session keyring
    (asked, ask), (answers, answer), (verdict, tell) = os.pipe(), os.pipe(), os.pipe()
    tests = _start(command, view, apart, "tests", 0, ask, answers, tell)
    os.write(report, b"started\n")
    program = _start(command, view, apart, "program", asked, answer)
    os.write(report, json.dumps(_judge(tests, program, verdict, timeout_s)).encode())
    os._exit(0)
