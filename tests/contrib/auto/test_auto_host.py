"""`auto` by drawn prices of passes and of the host beside them: rounds of the embedded model."""

from typing import Any

import pytest
from conftest import make_method

import skipbench
from skipbench.decode.loop import Step, stream
from skipbench.decode.method import MethodCopies
from skipbench.metrics.host import Host
from skipbench.metrics.prices import ROWS, Curve, Latencies, Prices

RISE = (1, 1.008, 1.03, 1.07, 1.11, 1.2)
"""Passes of `ROWS` rows over one of a row, as those of a small model on an H100."""
AUTO, VANILLA = Host(0.36e-3, 0.04e-3), Host(0.06e-3)
"""There, of rounds of each."""
PROMPTS = (
    "Once there was a dog and",
    "One day a girl named Lily found a big red ball in the park. She",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):",
    "Q: 3+4? A: 7. Q: 5+6? A: 11. Q: 2+2? A:",
)


def rounds(lm: Any, tokenizer: Any, pass_s: float, host: dict[str, Host]) -> list[Step]:
    """The rounds of all prompts, where these prices were measured."""
    copies = MethodCopies(make_method("auto", "method.row_prices=[]", "method.explore=0"))
    curve, found = Curve(0, dict(zip(ROWS, RISE, strict=True))), list[Step]()
    model = Latencies(0.0, 0.0, 0.0, pass_s, lm.layers)
    for prompt in PROMPTS:  # each anew: a stream moves prices by what its rounds took here
        lm.prices = Prices(model=model, curves=[curve], host=dict(host))
        found += [*stream(lm, copies, tokenizer(prompt)["input_ids"], 64)][1:]
    return found


@pytest.mark.parametrize(("pass_s", "fewer"), [(0.95e-3, True), (20e-3, False)])
def test_the_host_makes_trees_smaller_where_it_takes_as_long_as_a_pass(
    pass_s: float, fewer: bool
) -> None:
    """A row of the host's is a twentieth of a small model's pass, and nothing of a large one's."""
    loaded: Any = skipbench.load("tiny", "vanilla", overrides=["model.dtype=float32"])
    loaded.lm.allocate(200)
    seen, blind = (
        sum(step.rows for step in rounds(loaded.lm, loaded.tokenizer, pass_s, host))
        for host in ({"auto": AUTO, "vanilla": VANILLA}, {})
    )
    assert (seen < 0.5 * blind) == fewer
