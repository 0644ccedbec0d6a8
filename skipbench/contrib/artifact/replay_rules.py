"""Replays a run with other stop rules and trees, by what its records hold of each drafted token:
its confidence, and whether the target agreed.

Greedy decoding gives the target's text whatever was drafted, so that a token drafted after right
ones is a draft of its position in the text. Another rule can ask for tokens that the run did not
draft: after the end of a draft, and, where a draft was accepted as a whole, at the place of the
target's bonus token. A round that asks for one ends there and counts as unknown. A token is taken
to be the same wherever its draft began, which nearly holds: only the draft's own K/V differs.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from skipbench.contrib.artifact.costs import Costs
from skipbench.contrib.artifact.replay import Replayed
from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.metrics.acceptance import PLAIN, rounds_with_sets
from skipbench.runs.record import Sample, Verified

CLASSES = (0.5, 0.8, 0.95)  # bounds of the confidence classes of a tree's `widths`


class Rule(Protocol):
    """A stop rule, as `decode.stopping` has them."""

    max_steps: int
    threshold: float

    def begin(self) -> None: ...
    def update(self, accepted: int, drafted: int) -> None: ...


class Drafted(NamedTuple):
    """A token that the run drafted."""

    confidence: float | None  # None where it was not read
    right: bool  # the target has the same token there
    rank: int = 0  # place of the right leaf among the siblings of a wrong token, 0 for none


@dataclass(frozen=True)
class Text:
    """One prompt of a run as the replay needs it."""

    prompt: int
    tokens: int
    cut: bool  # the limit of tokens ended it, which shortens the last drafts
    drafted: Mapping[int, Sequence[Drafted]]  # by position; wrong: with the rest
    skips: Sequence[DraftPlan]  # the set that drafted, by position of the pending token
    how: Verified

    def after(self, at: int) -> Iterator[Drafted]:
        """The tokens after a position, as far as the run drafted them."""
        while tokens := self.drafted.get(at := at + 1, ()):
            yield from tokens
            if not tokens[0].right:
                return


@dataclass
class RuleTotals:
    """Counts and seconds of a rule; `unknown` rounds asked for tokens that were not drafted."""

    rounds: int = 0
    steps: int = 0
    accepted: int = 0
    emitted: int = 0
    unknown: int = 0
    passes_s: float = 0.0

    def speedup(self, run: Replayed) -> float:
        """`run` at the same costs has vanilla and adaptation, and the host's time per round."""
        host_s = run.other_s / max(1, run.rounds) * self.rounds
        return run.vanilla_s / (self.passes_s + run.adapt_s + host_s)


def texts_of(samples: Sequence[Sample], layers: int) -> list[Text]:
    """The drafted tokens of a run by position. Raises SkipbenchError without confidences."""
    texts = []
    for sample in samples:
        if sample.lossless in ("failed", "sampled"):
            raise SkipbenchError("stop rules are replayed from greedy runs without failed samples")
        trace, ours = sample.trace, sample.method
        if "confidence" not in trace or not trace.get("skip"):
            raise SkipbenchError(
                "the records hold no confidence per drafted token: the method drafts with no stop "
                "rule, or an earlier version made them"
            )
        drafted, skips, how = dict[int, list[Drafted]](), list[DraftPlan](), PLAIN
        for number, (counts, skip, verified) in enumerate(rounds_with_sets(sample, layers)):
            assert skip is not None
            how = verified
            read = trace["confidence"][number]
            first, confidence = len(skips) + 1, [*read, *[None] * (counts.steps - len(read))]
            tokens = [Drafted(c, n < counts.chain) for n, c in enumerate(confidence)]
            drafted |= {first + n: [token] for n, token in enumerate(tokens[: counts.chain])}
            if rest := tokens[counts.chain :]:
                rank = int(trace["rank"][number]) if "rank" in trace else 0
                drafted[first + counts.chain] = [rest[0]._replace(rank=rank), *rest[1:]]
            skips += [skip] * counts.emitted
        length, cut = len(ours.tokens), ours.finish == "length"
        texts.append(Text(sample.prompt_tokens, length, cut, drafted, skips, how))
    return texts


def replay(texts: Sequence[Text], rule: Rule, widths: Sequence[int], costs: Costs) -> RuleTotals:
    """Decodes prompts with a rule, which goes on from prompt to prompt, and a tree's `widths`."""
    total = RuleTotals()
    for text in texts:
        rule.begin()
        how, at = text.how._replace(tree=bool(widths)), 0
        while at < text.tokens - 1:
            limit = min(rule.max_steps, text.tokens - 2 - at) if text.cut else rule.max_steps
            steps, nodes, right, leaf, known = _draft(text, at, rule, limit, widths)
            emitted, context = min(right + leaf + 1, text.tokens - 1 - at), text.prompt + at
            total.rounds += 1
            total.steps += steps
            total.accepted += right + leaf
            total.emitted += emitted
            total.unknown += not known
            total.passes_s += costs.draft_s(context, steps, text.skips[at], how)
            total.passes_s += costs.verify_s(context, 1 + nodes, how, 0 if steps else 1)
            rule.update(right, steps)
            at += emitted
    return total


def _draft(
    text: Text, at: int, rule: Rule, limit: int, widths: Sequence[int]
) -> tuple[int, int, int, int, bool]:
    """Steps, nodes, accepted first choices, an accepted leaf beside them, and all known."""
    steps = nodes = right = leaf = 0
    for token in itertools.islice(text.after(at), limit):
        steps += 1
        above = -1 if token.confidence is None else sum(token.confidence > b for b in CLASSES)
        nodes += (width := widths[above] if widths else 1)
        right, leaf = right + token.right, leaf or int(0 < token.rank < width)
        ends = rule.threshold > (token.confidence or 0.0)
        if ends and steps < limit:
            return steps, nodes, right, leaf, token.confidence is not None
    return steps, nodes, right, leaf, steps == limit
