"""Bounds of the settings of decoding; without torch, so that they are checked before a load."""

import math

from skipbench.errors import SkipbenchError


def check_decoding(temperature: float, top_p: float, top_k: int) -> None:
    """Raises SkipbenchError for a value out of range; NaN is in none."""
    if not 0 <= temperature < math.inf or not 0 < top_p <= 1 or top_k < 0:
        raise SkipbenchError(
            f"decoding: {temperature=}, {top_p=}, {top_k=}; wanted a finite temperature >= 0, 0 < "
            "top_p <= 1, top_k >= 0 (0: off)"
        )
