"""Where the package, its configuration files and its cache are."""

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
CONF = PACKAGE / "conf" if (PACKAGE / "conf").is_dir() else PACKAGE.parent / "conf"
"""Inside an installed wheel, `conf` is part of the package."""


def hub_offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids the hub, by the words that its library takes for yes."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def cache_folder() -> Path:
    """Where fetched and converted files are kept: `skipbench` in XDG_CACHE_HOME, else in
    `~/.cache`.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "skipbench"
