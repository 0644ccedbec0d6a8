"""Programs that want out of the sandbox, to take more than is theirs, or to pass without being
right; for tests/scoring/test_hostile.py.
"""

import re

# Each program asserts that what it tries is refused: one that gets out does not end well.
HEAD = """
import ctypes, errno, os, signal, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
X86 = os.uname().machine == "x86_64"
def refused(call, *arguments):
    try:
        got = call(*arguments)
    except (OSError, RuntimeError, ImportError):
        return
    raise AssertionError(f"{arguments} gave {got!r}")
def call(name, *arguments):
    number = NUMBERS[name][0 if X86 else 1]
    words = [a if isinstance(a, bytes) or a is None else ctypes.c_long(a) for a in arguments]
    got = libc.syscall(ctypes.c_long(number), *words)
    if got < 0:
        raise OSError(ctypes.get_errno(), name)
    return got
def absent(name):
    try:
        got = call(name, 0, 0, 0, 0, 0, 0)
    except OSError as error:
        got = error.errno
    assert got == errno.ENOSYS, f"{name} gave {got}"
def of_libc(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)
NUMBERS = dict(
    add_key=(248, 217), request_key=(249, 218), keyctl=(250, 219), io_uring_setup=(425, 425),
    userfaultfd=(323, 282), ptrace=(101, 117), pidfd_open=(434, 434), pidfd_getfd=(438, 438),
    pidfd_send_signal=(424, 424), process_vm_readv=(310, 270), process_vm_writev=(311, 271),
    process_madvise=(440, 440), shmget=(29, 194), semget=(64, 190), msgget=(68, 186),
    mq_open=(240, 180), memfd_create=(319, 279), memfd_secret=(447, 447), clone3=(435, 435),
    unshare=(272, 97), setns=(308, 268), mount=(165, 40), umount2=(166, 39), pivot_root=(155, 41),
    open_tree=(428, 428), move_mount=(429, 429), fsopen=(430, 430), bpf=(321, 280),
    perf_event_open=(298, 241), kexec_load=(246, 104), init_module=(175, 105), reboot=(169, 142),
    settimeofday=(164, 170), sethostname=(170, 161), open_by_handle_at=(304, 265), kcmp=(312, 272),
    name_to_handle_at=(303, 264), fanotify_init=(300, 262), inotify_init1=(294, 26),
    eventfd2=(290, 19), signalfd4=(289, 74), timerfd_create=(283, 85), socketpair=(53, 199),
    splice=(275, 76), vmsplice=(316, 75), personality=(135, 92), seccomp=(317, 277),
    landlock_create_ruleset=(444, 444), rt_sigqueueinfo=(129, 138), tgkill=(234, 131),
    swapon=(167, 224), acct=(163, 89), syslog=(103, 116), quotactl=(179, 60), chroot=(161, 51),
    mknodat=(259, 33), set_mempolicy=(238, 237), migrate_pages=(256, 238), ioprio_set=(251, 30),
    sched_setaffinity=(203, 122), pkey_alloc=(330, 289), mlockall=(151, 230),
)
"""

REFUSED = {
    "fork": "refused(os.fork)",
    "vfork and exec": "refused(os.posix_spawn, sys.executable, [sys.executable], {})",
    "subprocess": "import subprocess\nrefused(subprocess.run, [sys.executable, '-c', ''])",
    "a thread": "import threading\nrefused(threading.Thread(target=print).start)",
    "a pool": "import multiprocessing as m\nrefused(m.Pool, 2)",
    "kill process 1": "refused(os.kill, 1, 9)",
    "kill the parent": "refused(os.kill, os.getppid(), 9)",
    "kill all": "refused(os.kill, -1, 9)",
    "kill the group": "refused(os.killpg, 0, 9)",
    "stop the tests": "[refused(os.kill, pid, signal.SIGSTOP) for pid in range(2, 40)]",
    "limits of the tests": "import resource\n"
    "[refused(resource.prlimit, pid, resource.RLIMIT_CPU, (0, 0)) for pid in range(1, 6)\n"
    " if pid != os.getpid()]",
    "raise own limits": "import resource\nfor kind in ('AS', 'NOFILE', 'NPROC', 'FSIZE'):\n"
    "    which = getattr(resource, f'RLIMIT_{kind}')\n    try:\n"
    "        resource.setrlimit(which, (-1, -1))\n    except (OSError, ValueError): continue\n"
    "    assert False, kind",
    "TCP": "refused(socket.create_connection, ('127.0.0.1', 22), 1)",
    "UDP": "refused(socket.socket, socket.AF_INET, socket.SOCK_DGRAM)",
    "IPv6": "refused(socket.socket, socket.AF_INET6)",
    "unix": "refused(socket.socket, socket.AF_UNIX)",
    "netlink": "refused(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW)",
    "vsock": "refused(socket.socket, 40, socket.SOCK_STREAM)",
    "packet": "refused(socket.socket, 17, socket.SOCK_RAW)",
    "kernel's ciphers": "refused(socket.socket, 38, socket.SOCK_SEQPACKET)",
    "a name server": "refused(socket.getaddrinfo, 'example.org', 80)",
    "users": "refused(open, '/etc/passwd')\nrefused(open, '/etc/shadow')",
    "home": "refused(os.listdir, '/home')\nrefused(os.listdir, '/root/.ssh')",
    "proc": "refused(open, '/proc/self/environ')\nrefused(open, '/proc/1/root/etc/passwd')",
    "sys": "refused(os.listdir, '/sys')",
    "the old root": "refused(os.listdir, '/old')\nrefused(os.chdir, '/old')",
    "above the root": "assert os.listdir('/') == os.listdir('/../../..')\n"
    "assert not {'home', 'proc', 'sys', 'var', 'mnt', 'tmp'} & set(os.listdir('/'))",
    "memory of the machine": "refused(open, '/dev/mem')\nrefused(open, '/dev/kmsg')",
    "a terminal": "refused(open, '/dev/tty')\nrefused(open, '/dev/ptmx')",
    "shared memory": "refused(open, '/dev/shm/x', 'w')\n"
    "from multiprocessing import shared_memory as m\nrefused(m.SharedMemory, None, True, 4096)",
    "a disk": "refused(os.mknod, 'disk', 0o60600, os.makedev(254, 0))",
    "a file": "refused(open, 'mine', 'w')\nrefused(open, '/mine', 'w')\nrefused(os.mkdir, 'x')",
    "a file elsewhere": "import tempfile\nrefused(tempfile.TemporaryFile)\n"
    "refused(open, '/usr/lib/mine', 'w')\nrefused(open, '/dev/mine', 'w')",
    "the library": "refused(open, os.__file__, 'a')\nrefused(os.unlink, os.__file__)\n"
    "refused(os.rename, os.__file__, os.__file__ + '.old')\nrefused(os.chmod, os.__file__, 0)",
    "a link": "refused(os.symlink, '/etc/passwd', 'x')\nrefused(os.link, os.__file__, 'x')",
    "setuid": "refused(os.setuid, 0) if os.getuid() else None\nrefused(os.setgroups, [0])",
    "remount": "refused(of_libc, 'mount', None, b'/', None, 32 | 4096, None)",
    "a namespace by clone": "refused(of_libc, 'unshare', 0x10000000 | 0x00020000)",
    "priority": "refused(os.nice, -5)",
    "prctl": "refused(of_libc, 'prctl', 4, 1, 0, 0, 0)\nrefused(of_libc, 'prctl', 35, 1, 0, 0, 0)",
    "typing for the user": "[refused(of_libc, 'ioctl', fd, 0x5412, b'x') for fd in range(16)]",
    "signals by a pipe": "import fcntl\nfor fd in range(16):\n"
    "    for command in (fcntl.F_SETOWN, 10, 15, fcntl.F_SETFL, 1024, 1026, 1031, 5, 6):\n"
    "        refused(fcntl.fcntl, fd, command, 2)",
    "x32": "refused(call, 'x32') if X86 else None",
    "descriptors of others": "import stat\nheld = []\nfor fd in range(64):\n"
    "    try: held.append(stat.S_IFMT(os.fstat(fd).st_mode))\n    except OSError: pass\n"
    "assert held.count(stat.S_IFIFO) == 2 and stat.S_IFSOCK not in held\n"
    "assert stat.S_IFREG not in held, held",
    "environment": "assert set(os.environ) <= {'LC_CTYPE'}, os.environ",
    "what it was asked": "assert len(sys.orig_argv) < 8 and not any('secret' in a\n"
    "    for a in sys.orig_argv)",
    "frames": "frame = sys._getframe()\nwhile frame:\n"
    "    assert 'check' not in frame.f_locals and 'tests' not in frame.f_locals\n"
    "    frame = frame.f_back",
}
REFUSED["x32"] = "NUMBERS['x32'] = (0x40000000 | 39, 172)\n" + REFUSED["x32"]
CALLS = re.findall(r"(\w+)=\(", HEAD)
REFUSED |= {f"call {name}": f"absent({name!r})" for name in CALLS}

# What is no attempt to get out but to use up: how it ends.
GREEDY = {
    "loop": ("while True: pass", "timeout"),
    "sleep": (
        "import time\nwhile True:\n  try: time.sleep(9)\n  except BaseException: 0",
        "timeout",
    ),
    "memory": ("keep = []\nwhile True: keep.append(bytearray(1 << 24))", "failed"),
    "mapped": (
        "import mmap\nkeep = []\nwhile True:\n  keep.append(mmap.mmap(-1, 1 << 24))\n"
        "  keep[-1].write(b'x' * (1 << 24))",
        "failed",
    ),
    "at once": ("x = [0] * (1 << 40)", "failed"),
    "text": ("x = 'a'\nwhile True: x += x", "failed"),
    "number": ("x = 9 ** 9 ** 9", "timeout"),
    "pattern": ("import re\nre.match('(a+)+$', 'a' * 60 + 'b')", "timeout"),
    "output": ("while True: print('x' * 100_000, flush=True)", "timeout"),
    "recursion": ("def f(): f()\nf()", "failed"),
    "nesting": ("eval('(' * 10_000)", "failed"),
    "crash": ("import ctypes\nctypes.string_at(0)", "killed"),
    "open files": ("keep = [open('/dev/zero') for _ in range(1000)]", "failed"),
    "leave": ("import os\nos._exit(0)", "failed"),
    "leave kindly": ("raise SystemExit(0)", "failed"),
    "no text": ("x = '\ud800'", "failed"),
    "NUL": ("x = '\0'", "failed"),
    "junk in every descriptor": (
        "import os\nfor fd in range(64):\n  try: os.write(fd, b'[\"value\", nan}\\n')\n"
        "  except OSError: 0",
        "failed",
    ),
    "the report of the watcher": (
        'import os\nfor fd in range(64):\n  try: os.write(fd, b\'["ok", ""]\')\n'
        "  except OSError: 0\nos._exit(0)",
        "failed",
    ),
    "half of every descriptor closed": ("import os\nos.closerange(3, 64)", "failed"),
    "far too long an answer": (
        "import os\nfor fd in range(3, 64):\n  try:\n    while True: os.write(fd, b'9' * 65536)\n"
        "  except OSError: 0",
        "failed",
    ),
}

# Bodies of `def f(x):` that are wrong: f(x) must be [x, x + 1] for two x. None of them may pass.
FAKES = {
    "wrong": "return [x, x]",
    "exit": "raise SystemExit(0)",
    "exit at once": "import os; os._exit(0)",
    "exit handler": "import atexit, os; atexit.register(os._exit, 0)",
    "excepthook": "import sys; sys.excepthook = lambda *a: None; raise ValueError",
    "always equal": "return type('A', (), {'__eq__': lambda s, o: True})()",
    "always equal list": "return type('A', (list,), {'__eq__': lambda s, o: True})([1])",
    "always equal number": "return [x, type('A', (int,), {'__eq__': lambda s, o: True})(7)]",
    "always true": "return type('A', (list,), {'__bool__': lambda s: True})()",
    "truth by class": "return type('A', (), {'__class__': list, '__eq__': lambda s, o: 1})()",
    "frames": "import sys\n    frame = sys._getframe()\n    while frame.f_back:\n"
    "        frame = frame.f_back\n        frame.f_locals.update(said=b'ok', ok=True)",
    "guess of the report": "import os\n    for fd in range(64):\n        try: os.write(fd, b'ok')\n"
    "        except OSError: pass\n    os._exit(0)",
    "an answer of its own": "import os\n    for fd in range(3, 64):\n"
    '        try: os.write(fd, b\'["value", true]\\n["value", true]\\n\')\n'
    "        except OSError: pass",
    "builtins": "import builtins\n    builtins.AssertionError = ValueError\n"
    "    builtins.isinstance = lambda *a: True",
    "the codec": "import json\n    json.dumps = lambda *a, **k: '[\"value\", NaN]'",
    "all modules": "import sys\n    for m in list(sys.modules.values()):\n"
    "        for n in ('plain', 'send', 'judge'):\n"
    "            if hasattr(m, n): setattr(m, n, lambda *a: True)",
    "an error that ends": "raise type('SystemExit', (Exception,), {})('0')",
    "an error of no class": "raise type('print', (Exception,), {})('0')",
    "the collector": "import gc\n    for o in gc.get_objects():\n"
    "        if isinstance(o, dict) and 'said' in o: o['said'] = b'ok'",
    "ctypes": "import ctypes\n    ctypes.pythonapi.Py_Exit(0)",
    "an endless answer": "return iter(int, 1)",
    "an answer to itself": "a = []\n    a.append(a)\n    return a",
    "a deep answer": "a = []\n    for _ in range(100_000): a = [a]\n    return a",
    "a mock": "from unittest.mock import MagicMock, ANY\n    return ANY",
    "changed argument": "return x",
}
