"""Verdicts as text."""

from collections import Counter

from skipbench.contrib.oracle.judge import Verification
from skipbench.decode.lossless import Verdict

SAME = ("identical", "sampled")


def described(verdict: Verdict) -> str:
    """A verdict that is not identical in one line, without its cause."""
    if verdict.kind == "unchecked":
        return f"not checked: {verdict.error}"
    sides = []
    for name, token, logit in (
        ("wanted", verdict.wanted, verdict.wanted_logit),
        ("given", verdict.given, verdict.given_logit),
    ):
        value = "" if logit is None else f" (logit {logit:.4f})"
        sides.append(f"{name} {'the end' if token is None else f'token {token}'}{value}")
    gap, bound = verdict.gap, verdict.bound
    closer = f", gap {gap:.2g}" if gap is not None else ""
    closer += f", rounding decides up to {bound:.2g}" if closer and bound is not None else ""
    return f"token {verdict.position}: {', '.join(sides)}{closer}"


def summary(result: Verification) -> list[str]:
    """The counts, the causes, and the test of sampled outputs, a line each."""
    counted = ", ".join(f"{count} {kind}" for kind, count in result.counts.items())
    of = f" of {result.outputs}" if len(result.verdicts) < result.outputs else ""
    lines = [f"{len(result.verdicts)}{of} outputs ({result.format}) of {result.model}: {counted}"]
    causes = Counter(v.cause.name for v in result.verdicts if v.cause is not None)
    lines += [f"  {count} {name}" for name, count in causes.most_common()]
    if (test := result.sampling) is not None:
        if test.p_value is None:
            lines.append(f"sampling: {test.tokens} tokens are too few for a test")
        else:
            lines.append(f"sampling: p = {test.p_value:.3g} over {test.tokens} tokens")
        if test.cause is not None:
            lines.append(f"  {test.cause.name}: {test.cause.evidence}")
    return lines


def report(result: Verification, most: int = 20) -> list[str]:
    """`summary`, then each of the first `most` outputs that are not identical with its cause."""
    lines, rest = summary(result), [v for v in result.verdicts if v.kind not in SAME]
    for verdict in rest[:most]:
        lines.append(f"output {verdict.id}: {verdict.kind}, {described(verdict)}")
        if verdict.cause is not None:
            lines.append(f"    {verdict.cause.name}; {verdict.cause.evidence}")
    return lines + ([f"and {len(rest) - most} more"] if len(rest) > most else [])
