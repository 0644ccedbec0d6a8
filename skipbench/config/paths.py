"""Where the package, its configuration files and its cache are."""

import os
import socket
from pathlib import Path
from urllib.parse import urlparse

PACKAGE = Path(__file__).resolve().parent.parent
CONF = PACKAGE / "conf" if (PACKAGE / "conf").is_dir() else PACKAGE.parent / "conf"
"""Inside an installed wheel, `conf` is part of the package."""


def hub_offline() -> bool:
    """True if HF_HUB_OFFLINE forbids the hub, by the words that its library takes for yes."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def hub_unreachable() -> bool:
    """True if this machine cannot resolve the hub's name, so that every request would be retried
    for half a minute; never where a proxy stands between.
    """
    proxies = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
    if any(os.environ.get(name) for name in proxies):
        return False
    host = urlparse(os.environ.get("HF_ENDPOINT") or "https://huggingface.co").hostname
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return True
    return False


def cache_folder() -> Path:
    """Where fetched and converted files are kept: `skipbench` in XDG_CACHE_HOME, else in
    `~/.cache`.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "skipbench"
