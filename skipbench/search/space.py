"""The skip sets that a strategy may choose from."""

from collections.abc import Sequence
from dataclasses import dataclass

from skipbench.errors import SkipbenchError
from skipbench.skipset import SkipSet


@dataclass(frozen=True)
class Space:
    """The skip sets of a model of `layers` layers that keep the sub-layers in `protect`.

    With a `ratio`, strategies that read `size` skip that share of the model's sub-layers, or all
    free ones where these are fewer.

    Raises:
        SkipbenchError: a ratio outside 0 to 1, a protected sub-layer that the model lacks.
    """

    layers: int
    ratio: float | None = None
    protect: Sequence[int] = ()

    def __post_init__(self) -> None:
        if self.ratio is not None and not 0 <= self.ratio <= 1:
            raise SkipbenchError(
                f"search.ratio={self.ratio}; wanted 0 to 1, or null for any number of sub-layers"
            )
        SkipSet.of(self.layers, self.protect)  # refuses sub-layers that the model lacks

    @property
    def free(self) -> list[int]:
        """Sub-layers that may be skipped."""
        return [s for s in range(2 * self.layers) if s not in set(self.protect)]

    @property
    def size(self) -> int | None:
        """How many sub-layers to skip, `None` for any number."""
        if self.ratio is None:
            return None
        return min(len(self.free), round(2 * self.layers * self.ratio))

    def set_of(self, sublayers: Sequence[int]) -> SkipSet:
        return SkipSet.of(self.layers, sublayers)
