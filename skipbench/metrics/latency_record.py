"""`LatencyRecord`: the contents of a latency file, and the costs that a run is replayed with."""

from collections.abc import Mapping

import msgspec

from skipbench.metrics.costs import Costs, LatencyModel, Point, Roofline
from skipbench.metrics.loop_costs import LoopCosts, TimedRound


class LatencyRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Latencies of one model in one engine on one machine; seconds and bytes. A run measures no
    more than `contexts`, `model` and `points`, `profile` the rest as well.
    """

    format: int = 0
    package_sha256: str | None = None
    """Of the version that measured them."""
    contexts: list[int] = []
    model: LatencyModel
    points: list[Point] = []
    residuals: dict[str, list[float]] = {}
    """Measured over fitted, less 1, of every point of one row."""
    overhead: dict[str, float] = {}
    """Seconds of a sub-layer of each kind and of the head beside their arithmetic."""
    roofline: Roofline | None = None
    floor: list[dict[str, float]] = []
    """Minimum seconds of the parts of every point."""
    bytes: Mapping[str, int] = {}
    rounds: list[TimedRound] = []

    def costs(self) -> Costs:
        """By timed rounds where there are some, else by the sub-layers."""
        if self.rounds:
            return LoopCosts(self.model.layers, self.rounds)
        return msgspec.structs.replace(self.model, points=tuple(self.points))
