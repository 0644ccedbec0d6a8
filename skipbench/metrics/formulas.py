"""The papers' formulas for the speed of self-speculative decoding.

| name | meaning | unit |
|---|---|---|
| `M` | tokens emitted per verification pass, bonus included | tokens |
| `alpha` | SWIFT: accepted tokens per draft step; KnapSpec: chance that a token is accepted | 1 |
| `gamma` | draft steps per round; a mean, so fractional | steps |
| `c` | cost of one draft step relative to one forward of the target on one token | 1 |
| `v` | cost of one verification pass relative to one forward of the target on one token | 1 |
"""


def expected_tokens(alpha: float, gamma: float) -> float:
    """Mean tokens of a round of `gamma` draft steps, bonus included: KnapSpec Eq. 1. Raises
    ValueError for `alpha` outside 0..1 or a negative `gamma`.
    """
    if not 0 <= alpha <= 1 or gamma < 0:
        raise ValueError(f"need 0 <= alpha <= 1 and gamma >= 0, got {alpha=}, {gamma=}")
    if alpha == 1:
        return gamma + 1.0
    return float((1 - alpha ** (gamma + 1)) / (1 - alpha))


def tpt(alpha: float, gamma: float, draft_s: float, target_s: float) -> float:
    """Tokens/s, KnapSpec Eq. 4, by the seconds of a drafting and a verifying forward on one token.
    Raises ValueError as `expected_tokens`, and for a round that takes no time.
    """
    round_s = gamma * draft_s + target_s
    if draft_s < 0 or round_s <= 0:
        raise ValueError(f"a round must take time, got {gamma=}, {draft_s=}, {target_s=}")
    return expected_tokens(alpha, gamma) / round_s


def expected_speedup(M: float, alpha: float, c: float, v: float = 1.0) -> float:
    """Speedup over vanilla, SWIFT Eq. 6, where a verification costs one forward:
    `M / ((M - 1) c / alpha + v)`, with `(M - 1) / alpha` draft steps per round.

    At `M = 1` it sees no draft and is `1 / v`, whatever rejected drafts cost; with `alpha = 0` and
    `M > 1` a round would need endlessly many steps and the value is 0. Raises ValueError for `M`
    below 1, a negative `alpha` or `c`, and `v` that is not positive.
    """
    if M < 1 or alpha < 0 or c < 0 or v <= 0:
        text = "need M >= 1, alpha >= 0, c >= 0 and v > 0, got"
        raise ValueError(f"{text} {M=}, {alpha=}, {c=}, {v=}")
    if M == 1:
        return 1 / v
    return M / ((M - 1) * c / alpha + v) if alpha else 0.0
