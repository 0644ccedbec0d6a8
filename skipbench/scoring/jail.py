"""The first process of a sandbox: makes a root folder of its own, starts the runner without any
right, waits, and reports.

A fresh interpreter is handed the source of this file: standard library only. As process 1 of its
PID namespace it takes every other process of the namespace with it when it ends. What is done here
with mounts follows mount(2), pivot_root(2) and user_namespaces(7).
"""

import contextlib
import errno
import json
import os
import re
import signal
import struct
import time
from typing import Any

WORK = "/sandbox"  # the working folder; not /tmp, because the interpreter itself may lie below that
_NOSUID, _NODEV, _RDONLY, _REMOUNT, _BIND, _REC, _RELATIME = 2, 4, 1, 32, 4096, 16384, 1 << 21
# nosuid, nodev, noexec, noatime, nodiratime: the same bits in statvfs and in mount
_KEPT = 2 | 4 | 8 | 1024 | 2048
_ST_RELATIME = 4096
_DETACH = 2
_SET_DUMPABLE, _SET_SECCOMP, _CAPBSET_DROP, _NO_NEW_PRIVS = 4, 22, 24, 38
_JOIN_SESSION_KEYRING = 1
# System calls that a program is refused, by their numbers in Linux's unistd.h: the user's keys;
# SysV objects, whose memory no limit on a process counts; other processes' memory and descriptors;
# namespaces, where it would have rights and memory again; io_uring, which no filter sees into.
_FORBIDDEN = (
    "keyctl", "add_key", "request_key", "shmget", "semget", "msgget", "ptrace", "process_vm_readv",
    "process_vm_writev", "pidfd_getfd", "unshare", "setns", "io_uring_setup",
)  # fmt: skip
_X86_64 = (250, 248, 249, 29, 64, 68, 101, 310, 311, 438, 272, 308, 425)
_GENERIC = (219, 217, 218, 194, 190, 186, 117, 270, 271, 438, 97, 268, 425)
_MACHINES = {  # name in uname(2): AUDIT_ARCH of Linux's audit.h, and the numbers
    "x86_64": (0xC000003E, _X86_64),
    "aarch64": (0xC00000B7, _GENERIC),
    "riscv64": (0xC00000F3, _GENERIC),
    "loongarch64": (0xC0000102, _GENERIC),
}
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # instructions of classic BPF
_ALLOW, _DENY, _KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
_X32 = 0x40000000  # the first number of a second table of x86_64


def _call(name: str, *arguments: Any) -> None:
    import ctypes  # only where it is needed: some interpreters are built without it

    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    if function(*(ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments)) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}{arguments}: {os.strerror(code)}")


def _mount(
    source: str | None, target: str, kind: str | None, flags: int, options: str | None = None
) -> None:
    encoded = [
        None if text is None else os.fsencode(text) for text in (source, target, kind, options)
    ]
    _call("mount", *encoded[:3], flags, encoded[3])


def _mount_points() -> list[str]:
    with open("/old/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        paths = [line.split(" ")[4] for line in lines]
    return [re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), path) for path in paths]


def make_root(view: dict[str, Any]) -> None:
    """Replaces the root folder by an empty one that shows `binds` read-only, `devices`, and the
    symbolic `links`.

    The working folder is the only place to write, `bytes` and `files` at most, in memory.
    """
    flags = _NOSUID | _NODEV
    _mount("tmpfs", view["mount_point"], "tmpfs", flags, "size=1m,mode=755")
    os.chdir(view["mount_point"])
    os.mkdir("old")
    _call("pivot_root", b".", b"old")
    os.chdir("/")
    for path in view["binds"] + view["devices"]:
        if os.path.isdir(f"/old{path}"):
            os.makedirs(path, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
        _mount(f"/old{path}", path, None, _BIND | _REC)
    for path, target in view["links"]:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(target, path)
    for point in _mount_points():
        if any(point == path or point.startswith(f"{path}/") for path in view["binds"]):
            # A remount may not take away what a mount from outside the user namespace already
            # forbids.
            has = os.statvfs(point).f_flag
            kept = has & _KEPT | (_RELATIME if has & _ST_RELATIME else 0)
            _mount(None, point, None, _REMOUNT | _BIND | _RDONLY | flags | kept)
    _call("umount2", b"/old", _DETACH)
    os.rmdir("/old")
    os.mkdir(WORK)
    _mount(
        "tmpfs", WORK, "tmpfs", flags, f"size={view['bytes']},nr_inodes={view['files']},mode=1777"
    )
    _mount(None, "/", None, _REMOUNT | _BIND | _RDONLY | flags)
    os.chdir(WORK)


def drop_rights(uid: int | None) -> None:
    """No capability and no way to another; with `uid`, another user, for whom limits hold that root
    is exempt from.
    """
    _call("prctl", _NO_NEW_PRIVS, 1, 0, 0, 0)
    for capability in range(64):
        try:
            _call("prctl", _CAPBSET_DROP, capability, 0, 0, 0)
        except OSError:
            if capability == 0:
                raise
            break  # behind the last that the kernel knows
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


def forbid_calls() -> None:
    """Refuses the calls of `_FORBIDDEN` to this process and all that come of it, with EPERM; see
    seccomp(2).
    """
    machine = os.uname().machine
    if machine not in _MACHINES:
        raise OSError(
            f"no filter of system calls is known for {machine}; it is for {', '.join(_MACHINES)}"
        )
    arch, numbers = _MACHINES[machine]
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    tests = [(_AT_LEAST, _X32), *((_EQUAL, number) for number in numbers)]
    steps += [(code, len(tests) - at, 0, value) for at, (code, value) in enumerate(tests)]
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _DENY)]
    import ctypes

    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    _call("prctl", _NO_NEW_PRIVS, 1, 0, 0, 0)
    _call("prctl", _SET_SECCOMP, 2, struct.pack("HP", len(steps), ctypes.addressof(program)), 0, 0)


def _leave_keyring() -> None:
    """Goes to an empty session keyring; where that cannot be had, the filter refuses every key
    still.
    """
    machine = os.uname().machine
    with contextlib.suppress(ImportError, OSError):
        if machine in _MACHINES:
            _call("syscall", _MACHINES[machine][1][0], _JOIN_SESSION_KEYRING, None)


def _hide() -> None:
    """Keeps other processes of the same user from the memory and the descriptors of this one, until
    it calls exec.
    """
    _call("prctl", _SET_DUMPABLE, 0, 0, 0, 0)


def _wait(pid: int, timeout_s: float) -> int | None:
    """Exit code of the child (negative: the signal), or None if it still runs at the end of the
    time.
    """
    end, pause = time.monotonic() + timeout_s, 0.001
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            return None
        time.sleep(pause)
        pause = min(2 * pause, 0.02)


def _others() -> bool:
    """Whether processes are left that the program started; such orphans are children of process
    1.
    """
    with contextlib.suppress(ChildProcessError):
        while True:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return True
    return False


def main(job: dict[str, Any]) -> None:
    """Runs `job["command"]`; says `started` and at its end what became of it through the descriptor
    `job["report"]`.
    """
    report: int = job["report"]
    os.set_inheritable(report, False)
    if job["own_users"]:
        # No further user namespace, where the program would have rights again. Some containers do
        # not let this be set.
        with contextlib.suppress(OSError), open("/proc/sys/user/max_user_namespaces", "w") as file:
            file.write("0")
    if job["view"] is not None:
        make_root(job["view"])
    _leave_keyring()
    with (
        contextlib.nullcontext()
        if job["apart"]
        else contextlib.suppress(ImportError, AttributeError, OSError)
    ):
        _hide()
    pid = os.fork()
    if pid == 0:
        try:
            if job["apart"]:
                # a signal to the process group reaches its members outside of the namespace too
                os.setsid()
            if job["view"] is not None:
                drop_rights(job["uid"])
            if job["apart"]:
                forbid_calls()
            os.write(report, b"started\n")
            os.execve(job["command"][0], job["command"], {})
        except BaseException as error:  # nothing may go on as a second watcher
            os.write(2, f"{error}\n".encode(errors="replace"))
        finally:
            os._exit(71)
    os.close(0)
    status = _wait(pid, job["timeout_s"])
    if status is None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    os.write(report, json.dumps({"status": status, "others": _others()}).encode())
    os._exit(0)
