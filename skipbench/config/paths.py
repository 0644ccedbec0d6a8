"""Where the package, its configuration files and its cache are."""

import os
import socket
import stat
from pathlib import Path
from urllib.parse import urlparse

PACKAGE = Path(__file__).resolve().parent.parent
CONF = PACKAGE / "conf" if (PACKAGE / "conf").is_dir() else PACKAGE.parent / "conf"
"""Inside an installed wheel, `conf` is part of the package."""


def hub_offline() -> bool:
    """True if HF_HUB_OFFLINE forbids the hub, by the words that its library takes for yes."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def hub_unreachable() -> bool:
    """True if this machine, without a proxy, cannot resolve the hub's name: each request would be
    retried for half a minute.
    """
    if any(map(os.environ.get, ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"))):
        return False
    host = urlparse(os.environ.get("HF_ENDPOINT") or "https://huggingface.co").hostname
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return True
    return False


def cache_folder() -> Path:
    """Of fetched and converted files: `skipbench` in XDG_CACHE_HOME, else in `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "skipbench"


def private_folder(path: Path) -> Path:
    """A folder that this user alone may read and write, made where there is none.

    Raises OSError where it cannot be made, is no folder, or belongs to another user.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    info = path.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
        raise PermissionError(f"{path} is no folder of this user's own; remove it")
    if stat.S_IMODE(info.st_mode) != 0o700:  # of an earlier umask
        path.chmod(0o700)
    return path
