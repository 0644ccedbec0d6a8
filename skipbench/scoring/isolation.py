"""The ways to isolate a program on this machine: namespaces made by bubblewrap, or by `unshare` for
`jail.py` to furnish.
"""

import itertools
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from typing import Any

NOBODY = 65534


@dataclass(frozen=True)
class Isolation:
    """A way to isolate: words before the interpreter's own, and what `jail.main` has to do."""

    name: str
    prefix: list[str] = field(default_factory=list)
    view: dict[str, Any] | None = None
    uid: int | None = None


NONE = Isolation("none")


def routes() -> list[Isolation]:
    """The ways that this machine has the tools for, best first."""
    view, found = _view(), []
    if bwrap := shutil.which("bwrap"):
        found.append(Isolation("bwrap", bwrap_arguments(bwrap, view)))
    if unshare := shutil.which("unshare"):
        words = [unshare, "--mount", "--pid", "--fork", "--kill-child", "--net", "--ipc", "--uts"]
        if os.geteuid() == 0:
            found.append(Isolation("unshare by root", words, view, uid=NOBODY))
        with_user = [unshare, "--user", "--map-root-user", *words[1:]]
        found.append(Isolation("unshare", with_user, view))
    return found


def bwrap_arguments(bwrap: str, view: dict[str, Any]) -> list[str]:
    """bubblewrap's command line for what `jail.make_root` shows, up to the interpreter's words."""
    words = [bwrap, "--unshare-all", "--die-with-parent", "--as-pid-1", "--clearenv"]
    options = [("--cap-drop", "ALL"), *(("--ro-bind", path, path) for path in view["binds"])]
    options += [("--dev-bind", path, path) for path in view["devices"]]
    options += [("--symlink", target, path) for path, target in view["links"]]
    options += [("--remount-ro", "/"), ("--chdir", "/")]
    return [*words, *itertools.chain(*options), "--"]


def interpreter() -> str:
    """The interpreter that programs run in."""
    # Behind a virtual environment stands the interpreter that it was made from; without
    # site-packages they are the same.
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def _view() -> dict[str, Any]:
    """What `jail.make_root` shows: the interpreter, its and the system's libraries, and links."""
    prefixes = {os.path.realpath(p) for p in (sys.base_prefix, sys.base_exec_prefix)}
    wanted = [
        interpreter(),
        *(f"{p}/{name}" for p in sorted(prefixes) for name in ("lib", "lib64")),
    ]
    wanted += ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache"]
    wanted += [store for store in ("/nix/store", "/gnu/store") if interpreter().startswith(store)]
    links = [(path, os.readlink(path)) for path in dict.fromkeys(wanted) if os.path.islink(path)]
    there = sorted({path for path in wanted if os.path.exists(path) and not os.path.islink(path)})
    binds: list[str] = []
    for path in there:  # sorted: a folder comes before what lies in it
        if not any(path.startswith(f"{above}/") for above in binds):
            binds.append(path)
    devices = ["/dev/null", "/dev/zero", "/dev/urandom"]
    mount_point = tempfile.gettempdir()
    return {"mount_point": mount_point, "binds": binds, "links": links, "devices": devices}
