"""The first process of a sandbox: makes a root folder of its own, starts the two runners without
any right, waits for the tests, and reports.

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

_NOSUID, _NODEV, _RDONLY, _REMOUNT, _BIND, _REC, _RELATIME = 2, 4, 1, 32, 4096, 16384, 1 << 21
# nosuid, nodev, noexec, noatime, nodiratime: the same bits in statvfs and in mount
_KEPT = 2 | 4 | 8 | 1024 | 2048
_ST_RELATIME = 4096
_DETACH = 2
_SET_SECCOMP, _CAPBSET_DROP, _NO_NEW_PRIVS = 22, 24, 38
_JOIN_SESSION_KEYRING = 1
_ENDED_S = 1.0  # for a program that has closed its descriptors to be gone
_VERDICT_BYTES = 4096
# The system calls of an interpreter that computes and reads files: name, number on x86_64, and on
# the machines of Linux's generic table where it has it. What is not here does not exist for a
# program: processes and threads, signals to others, sockets, pipes, memory that no limit counts,
# keys, namespaces, mounts, other processes' memory and descriptors, io_uring.
_ALLOWED = """
read:0:63 write:1:64 readv:19:65 writev:20:66 pread64:17:67 pwrite64:18:68 open:2: openat:257:56
close:3:57 close_range:436:436 stat:4: fstat:5:80 lstat:6: newfstatat:262:79 statx:332:291
statfs:137:43 fstatfs:138:44 lseek:8:62 access:21: faccessat:269:48 faccessat2:439:439
getdents64:217:61 getcwd:79:17 chdir:80:49 fchdir:81:50 readlink:89: readlinkat:267:78
fadvise64:221:223 fcntl:72:25 dup:32:23 dup2:33: dup3:292:24 select:23: pselect6:270:72 poll:7:
ppoll:271:73 mmap:9:222 mprotect:10:226 munmap:11:215 mremap:25:216 madvise:28:233 brk:12:214
rt_sigaction:13:134 rt_sigprocmask:14:135 rt_sigreturn:15:139 sigaltstack:131:132 pause:34:
alarm:37: setitimer:38:103 getitimer:36:102 nanosleep:35:101 clock_nanosleep:230:115
clock_gettime:228:113 clock_getres:229:114 gettimeofday:96:169 time:201: times:100:153
getrusage:98:165 getrlimit:97:163 setrlimit:160:164 sched_yield:24:124 sched_getaffinity:204:123
futex:202:98 set_tid_address:218:96 set_robust_list:273:99 rseq:334:293 getpid:39:172
getppid:110:173 gettid:186:178 getpgrp:111: getpgid:121:155 getsid:124:156 getuid:102:174
geteuid:107:175 getgid:104:176 getegid:108:177 getresuid:118:148 getresgid:120:150
getgroups:115:158 uname:63:160 sysinfo:99:179 getrandom:318:278 arch_prctl:158: execve:59:221
exit:60:93 exit_group:231:94 restart_syscall:219:128
"""
# Where a call does many things: its argument at that place must be one of these.
_ONLY = {
    "ioctl:16:29": (1, (0x5401, 0x5450, 0x5451, 0x541B)),  # TCGETS, FIONCLEX, FIOCLEX, FIONREAD
    "prctl:157:167": (0, (15,)),  # PR_SET_NAME
    "prlimit64:302:261": (0, (0,)),  # of the process itself
}
_MACHINES = {  # name in uname(2): AUDIT_ARCH of Linux's audit.h, column of the table, keyctl
    "x86_64": (0xC000003E, 1, 250),
    "aarch64": (0xC00000B7, 2, 219),
    "riscv64": (0xC00000F3, 2, 219),
    "loongarch64": (0xC0000102, 2, 219),
}
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # instructions of classic BPF
# ENOSYS: the C library then does without the call where it can
_ALLOW, _DENY, _KILL = 0x7FFF0000, 0x00050000 | errno.ENOSYS, 0x80000000


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
    symbolic `links`; nothing in it can be written.
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
    _mount(None, "/", None, _REMOUNT | _BIND | _RDONLY | flags)


def drop_rights(uid: int | None) -> None:
    """No capability and no way to another; with `uid`, another user than root."""
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


def filter_of(machine: str) -> list[tuple[int, int, int, int]]:
    """The filter of system calls as classic BPF: code, two jumps, value; see seccomp(2).

    Raises:
        OSError: the numbers of this machine's calls are not known.
    """
    if machine not in _MACHINES:
        raise OSError(
            f"no filter of system calls is known for {machine}; it is for {', '.join(_MACHINES)}"
        )
    arch, column, _ = _MACHINES[machine]
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    for call, (place, values) in _ONLY.items():
        # an argument has 64 bits, and the lower half comes first on all of these machines
        steps += [(_EQUAL, 0, len(values) + 3, int(call.split(":")[column]))]
        steps += [(_LOAD, 0, 0, 16 + 8 * place)]
        steps += [(_EQUAL, len(values) - at, 0, value) for at, value in enumerate(values)]
        steps += [(_RETURN, 0, 0, _DENY), (_RETURN, 0, 0, _ALLOW)]
    numbers = [int(n) for call in _ALLOWED.split() if (n := call.split(":")[column])]
    steps += [(_EQUAL, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    return [*steps, (_RETURN, 0, 0, _DENY), (_RETURN, 0, 0, _ALLOW)]


def forbid_calls() -> None:
    """Leaves this process, and all that come of it, only the calls of `_ALLOWED`."""
    import ctypes

    steps = filter_of(os.uname().machine)
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
            _call("syscall", _MACHINES[machine][2], _JOIN_SESSION_KEYRING, None)


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


def _start(job: dict[str, Any], role: str, *handles: int) -> int:
    """Starts a runner that inherits `handles` only; returns its process id.

    Raises:
        OSError: it did not start.
    """
    seen, told = os.pipe()  # closed by exec
    pid = os.fork()
    if pid == 0:
        try:
            for handle in handles:
                os.set_inheritable(handle, True)
            null = os.open(os.devnull, os.O_RDWR)
            for handle in (0, 1, 2):
                if handle not in handles:
                    os.dup2(null, handle)
            if job["apart"]:
                # a signal to the process group reaches its members outside of the namespace too
                os.setsid()
            if job["view"] is not None:
                drop_rights(job["uid"])
            if job["apart"]:
                forbid_calls()
            *python, source = job["command"]
            os.execve(python[0], [*python, f"{source}\nmain({role!r}, {handles!r}, LIMITS)\n"], {})
        except BaseException as error:  # nothing may go on as a second watcher
            os.write(told, str(error).encode(errors="replace")[:_VERDICT_BYTES])
        finally:
            os._exit(71)
    os.close(told)
    for handle in handles:
        os.close(handle)
    with open(seen, "rb") as file:
        reason = file.read()
    if reason:
        raise OSError(reason.decode(errors="replace"))
    return pid


def _judge(tests: int, program: int, verdict: int, timeout_s: float) -> list[str]:
    """The reason and the detail of an `Outcome`, and ends both processes."""
    status = _wait(tests, timeout_s)
    if status is None:
        os.kill(tests, signal.SIGKILL)
        os.waitpid(tests, 0)
    said = os.read(verdict, _VERDICT_BYTES)
    left = _wait(program, _ENDED_S if said == b"ended" else 0.0)
    if left is None:
        os.kill(program, signal.SIGKILL)
        os.waitpid(program, 0)
    if status is None:
        return ["timeout", ""]
    if said == b"ended" and left is not None and left < 0:
        return ["killed", str(-left)]
    if said == b"ended":
        return ["failed", f"left with status {left} before its end"]
    if status == 0 and said == b"ok":
        return ["ok", ""]
    return ["failed", said.decode(errors="replace") or f"its tests left with status {status}"]


def main(job: dict[str, Any]) -> None:
    """Runs the program and its tests, which stdin holds, as two processes; says `started` and at
    its end what became of them through stdout.
    """
    report = os.dup(1)  # not inherited
    if job["view"] is not None:
        make_root(job["view"])
    _leave_keyring()
    (asked, ask), (answers, answer), (verdict, tell) = os.pipe(), os.pipe(), os.pipe()
    tests = _start(job, "tests", 0, ask, answers, tell)
    os.write(report, b"started\n")
    program = _start(job, "program", asked, answer)
    os.write(report, json.dumps(_judge(tests, program, verdict, job["timeout_s"])).encode())
    os._exit(0)
