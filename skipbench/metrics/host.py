"""`Host`: what a round takes beside its passes."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median

import msgspec

ENOUGH = 16  # rounds from which it is known


class Host(msgspec.Struct, frozen=True, omit_defaults=True):
    """Seconds of a round beside its passes, in which the host proposes, reads what was verified,
    commits and adapts.

    >>> host = Host(round_s=2e-4, row_s=1e-5)
    >>> {rows: round(1e3 * s, 2) for rows, s in host.added({1: 1e-3, 8: 1.1e-3}).items()}
    {1: 1.21, 8: 1.38}
    """

    round_s: float = 0.0  # of any round
    row_s: float = 0.0  # of every row that it verifies
    step_s: float = 0.0  # of every draft pass

    def beside_s(self, rows: float) -> float:
        """Of a round that verifies so many rows, without its draft passes."""
        return self.round_s + self.row_s * rows

    def added(self, passes: Mapping[int, float]) -> dict[int, float]:
        """Seconds of rounds by rows, given those of their verifications."""
        return {rows: seconds + self.beside_s(rows) for rows, seconds in passes.items()}

    def step_price(self, price: float, pass_s: float) -> float:
        """Price of a draft step in rounds of one row, given that of its pass in passes of one row
        and the seconds of one.
        """
        if self == NO_HOST:
            return price
        return (price * pass_s + self.step_s) / (pass_s + self.beside_s(1))


NO_HOST = Host()


def host_of(rows: Sequence[int], seconds: Sequence[float]) -> Host | None:
    """The line through rounds, each its rows and the seconds beside its passes: through the medians
    of the half with fewer rows and of that with more, never falling. `None` of fewer than `ENOUGH`.

    >>> host_of([1, 2, 3, 4] * 4, [1.0, 1.5, 2.0, 2.5] * 4)
    Host(round_s=0.5, row_s=0.5, step_s=0.0)
    """
    if len(rows) < ENOUGH:
        return None
    pairs = sorted(zip(rows, seconds, strict=True))
    halves = pairs[: len(pairs) // 2], pairs[len(pairs) // 2 :]
    few, many = ((fmean(n for n, _ in half), median(s for _, s in half)) for half in halves)
    slope = max(0.0, (many[1] - few[1]) / (many[0] - few[0])) if many[0] > few[0] else 0.0
    return Host(max(0.0, median(s - slope * n for n, s in pairs)), slope)
