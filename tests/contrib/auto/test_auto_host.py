"""`auto` where the host takes as long as a pass, and where it takes next to nothing: rounds of the
embedded model, and their seconds by drawn prices.
"""

import functools
from collections.abc import Mapping
from statistics import geometric_mean
from typing import Any

import pytest
from conftest import make_method, random_lm

import skipbench
from skipbench.decode import draft
from skipbench.decode.loop import Step, generate, stream
from skipbench.decode.method import MethodCopies
from skipbench.methods.vanilla import Vanilla
from skipbench.metrics.host import Host
from skipbench.metrics.lines import curve
from skipbench.metrics.prices import ROWS, VANILLA, Prices

RISE = (1, 1.008, 1.03, 1.07, 1.11, 1.2)
"""Passes of `ROWS` rows over one of a row, as those of a small model on an H100."""
FAST_S, SLOW_S = 0.95e-3, 20e-3
HOSTS = {
    "vanilla": Host(0.06e-3),
    "prompt-lookup": Host(0.25e-3, 0.018e-3),
    "auto copies": Host(0.26e-3, 0.02e-3),
    "auto": Host(0.36e-3, 0.04e-3),
}
"""There: of `auto` and prompt-lookup from tables of an H100, the others between them."""
PROMPTS = (
    "Once there was a dog and",
    "One day a girl named Lily found a big red ball in the park. She",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):",
    "Q: 3+4? A: 7. Q: 5+6? A: 11. Q: 2+2? A:",
)
MEASURED = ("method.row_prices=[]", "method.explore=0")


@functools.cache
def tiny() -> Any:
    return skipbench.load("tiny", "vanilla", overrides=["model.dtype=float32"])


def rounds(name: str, pass_s: float, hosts: Mapping[str, Host]) -> list[list[Step]]:
    """The rounds of every prompt, where these prices were measured."""
    lm, tokenizer = tiny().lm, tiny().tokenizer
    lm.allocate(200)
    copies = MethodCopies(make_method(name, *(MEASURED if name == "auto" else ())))
    passes, found = dict(zip(ROWS, (pass_s * x for x in RISE), strict=True)), list[list[Step]]()
    for prompt in PROMPTS:  # each anew: a stream moves prices by what its rounds took here
        lm.prices = Prices(passes={"0+": passes}, host=dict(hosts))
        found.append([*stream(lm, copies, tokenizer(prompt)["input_ids"], 64)][1:])
    return found


def speedup(steps: list[Step], pass_s: float) -> float:
    """Over vanilla, by the seconds that the rounds would take."""
    rise = curve(dict(zip(ROWS, RISE, strict=True)), 40)
    seconds = (pass_s * rise[step.rows] + HOSTS[step.kind].beside_s(step.rows) for step in steps)
    vanilla_s = pass_s + HOSTS[VANILLA].beside_s(1)
    return sum(len(step.tokens) for step in steps) * vanilla_s / sum(seconds)


def kinds(of: list[list[Step]]) -> set[str]:
    return {step.kind for steps in of for step in steps}


def test_where_the_host_takes_as_long_as_a_pass_auto_copies_or_rests() -> None:
    arms = {name: rounds(name, FAST_S, HOSTS) for name in ("prompt-lookup", "auto")}
    ours, copied = (
        [speedup(steps, FAST_S) for steps in arm] for arm in (arms["auto"], arms["prompt-lookup"])
    )
    assert min(ours) > 0.94, "finding out that nothing pays takes half a token or two"
    assert geometric_mean(ours) > max(1.0, geometric_mean(copied))
    assert kinds(arms["auto"]) == {"auto", "auto copies", VANILLA}
    blind = [speedup(steps, FAST_S) for steps in rounds("auto", FAST_S, {})]
    assert geometric_mean(blind) < geometric_mean(copied), "prices of passes alone would do, too"


def test_where_a_pass_takes_long_the_host_decides_next_to_nothing() -> None:
    small = {name: Host(of.round_s / 4, of.row_s / 4) for name, of in HOSTS.items()}
    seen, blind = (rounds("auto", SLOW_S, hosts) for hosts in (small, {}))
    assert kinds(seen) == {"auto"}
    assert sum(map(len, seen)) == pytest.approx(sum(map(len, blind)), rel=0.1)


@pytest.mark.parametrize("device", ["cpu", "one that works ahead"])
def test_rests_change_no_token(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read late where that is possible, and end where copies begin."""
    monkeypatch.setattr(draft, "LATE", {} if device == "cpu" else {"cpu"})
    lm, texts = random_lm("llama", "fused"), [[n, *range(3, 40, 5)] for n in range(4)]
    for text in texts:
        wanted = generate(lm, Vanilla(), text, 64).tokens
        lm.prices = Prices(
            passes={"0+": dict(zip(ROWS, RISE, strict=True))},
            host={"auto": Host(1.0, 0.1), "auto copies": Host(0.1), VANILLA: Host(0.01)},
        )
        method = make_method("auto", *MEASURED)
        steps = [*stream(lm, MethodCopies(method), text, 64)]
        assert [token for step in steps for token in step.tokens] == wanted
        assert {step.kind for step in steps[1:]} == {"auto", "auto copies", VANILLA}
