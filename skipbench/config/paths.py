"""Where the package and its configuration files are."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
CONF = PACKAGE / "conf" if (PACKAGE / "conf").is_dir() else PACKAGE.parent / "conf"
"""Inside an installed wheel, `conf` is part of the package."""
