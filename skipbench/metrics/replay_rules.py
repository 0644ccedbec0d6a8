"""Replays a run with other stop rules and trees, by what its records hold of each drafted token:
its confidence, and whether the target agreed.

Greedy decoding gives the target's text whatever was drafted, so that a token drafted after right
ones is a draft of its position in the text. Another rule can ask for tokens that the run did not
draft: after the end of a draft, and, where a draft was accepted as a whole, at the place of the
target's bonus token. A round that asks for one ends there and counts as unknown. A token is taken
to be the same wherever its draft began, which nearly holds: only the draft's own K/V differs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from skipbench.errors import SkipbenchError
from skipbench.metrics.acceptance import rounds_with_sets
from skipbench.metrics.costs import PLAIN, Costs
from skipbench.metrics.replay import computed, measured
from skipbench.runs.record import Sample, Verified
from skipbench.skipset import SkipSet

CLASSES = (0.5, 0.8, 0.95)
"""Bounds of the classes of confidence by which a tree is as wide as `widths` say."""


class Rule(Protocol):
    """A stop rule, as `decode.stopping` has them."""

    max_steps: int
    threshold: float

    def begin(self) -> None: ...
    def update(self, accepted: int, drafted: int) -> None: ...


@dataclass(frozen=True)
class Drafted:
    """The run's draft of one position of the text.

    Attributes:
        confidence: None where it was not read.
        right: whether the target has the same token.
        behind: confidences of the rest of the draft, after a wrong token.
        rank: place of the right leaf among the siblings of a wrong token, 0 for none.
    """

    confidence: float | None
    right: bool
    behind: tuple[float | None, ...] = ()
    rank: int = 0


@dataclass(frozen=True)
class Text:
    """One prompt of a run as the replay needs it.

    Attributes:
        cut: whether the limit of tokens ended it, which shortens the last drafts.
        drafted: drafts by position.
        skips: the set that drafted, by position of the pending token.
    """

    prompt: int
    tokens: int
    cut: bool
    drafted: Mapping[int, Drafted]
    skips: Sequence[SkipSet]
    how: Verified


@dataclass
class Outcome:
    """Counts and seconds of the passes that a rule would have taken; `unknown` are rounds that
    asked for a token that the run did not draft.
    """

    rounds: int = 0
    steps: int = 0
    accepted: int = 0
    emitted: int = 0
    unknown: int = 0
    passes_s: float = 0.0


def texts_of(samples: Sequence[Sample], layers: int) -> list[Text]:
    """The drafted tokens of a run by position.

    Raises:
        SkipbenchError: the run drafted without a skip set, or its records hold no confidences.
    """
    texts = []
    for sample in samples:
        if sample.lossless in ("failed", "sampled"):
            raise SkipbenchError("stop rules are replayed from greedy runs without failed samples")
        trace = sample.trace
        if "confidence" not in trace or not trace.get("skip"):
            raise SkipbenchError(
                "the records hold no confidence per drafted token: the method drafts with no stop "
                "rule, or an earlier version made them"
            )
        drafted, skips, at, how = dict[int, Drafted](), list[SkipSet](), 0, PLAIN
        for number, (counts, skip, verified) in enumerate(rounds_with_sets(sample, layers)):
            assert skip is not None
            how = verified
            read = trace["confidence"][number]
            confidence = [*read, *[None] * (counts.steps - len(read))]
            for step in range(min(counts.chain + 1, counts.steps)):
                right = step < counts.chain
                behind = () if right else tuple(confidence[step + 1 :])
                rank = 0 if right or "rank" not in trace else int(trace["rank"][number])
                drafted[at + 1 + step] = Drafted(confidence[step], right, behind, rank)
            skips += [skip] * counts.emitted
            at += counts.emitted
        cut = sample.method.finish == "length"
        tokens = len(sample.method.tokens)
        texts.append(Text(sample.prompt_tokens, tokens, cut, drafted, skips, how))
    return texts


def play(text: Text, rule: Rule, widths: Sequence[int], costs: Costs, total: Outcome) -> None:
    """Adds one prompt with a rule and a tree to `total`; `widths` as in `Drafter`, empty for a
    chain.
    """
    rule.begin()
    how, at = text.how._replace(tree=bool(widths)), 0
    while at < text.tokens - 1:
        most = min(rule.max_steps, text.tokens - 2 - at) if text.cut else rule.max_steps
        steps, nodes, right, leaf, known = _draft(text, at, rule, most, widths)
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


def _draft(
    text: Text, at: int, rule: Rule, most: int, widths: Sequence[int]
) -> tuple[int, int, int, int, bool]:
    """Steps, nodes, accepted first choices, whether a leaf beside them was accepted, and whether
    all tokens that the rule asked for are known.
    """
    steps = nodes = right = 0
    while steps < most:
        token = text.drafted.get(at + 1 + steps)
        if token is None:
            return steps, nodes, right, 0, False
        for number, confidence in enumerate((token.confidence, *token.behind)):
            steps += 1
            width = _width(confidence, widths)
            nodes += width
            if not number:
                right += token.right
                leaf = int(not token.right and 0 < token.rank < width)
            if steps == most:
                return steps, nodes, right, leaf, True
            if confidence is None and rule.threshold > 0:
                return steps, nodes, right, leaf, False
            if confidence is not None and confidence < rule.threshold:
                return steps, nodes, right, leaf, True
        if not token.right:  # the run's draft ended here, and this one would go on
            return steps, nodes, right, leaf, False
    return steps, nodes, right, 0, True


def _width(confidence: float | None, widths: Sequence[int]) -> int:
    if not widths:
        return 1
    return widths[-1 if confidence is None else sum(confidence > bound for bound in CLASSES)]


@dataclass(frozen=True)
class Baseline:
    """The rest that a speedup needs, at the same costs: seconds of vanilla, of adaptation, and of
    the host per round. Adaptation and the host keep their time in passes of vanilla.
    """

    vanilla_s: float
    adapt_s: float
    round_s: float

    @classmethod
    def of(cls, samples: Sequence[Sample], costs: Costs) -> "Baseline":
        own = measured(samples)
        if not own.vanilla_pass_s:
            raise SkipbenchError("the run has no times of vanilla; nothing can be replayed")
        passes = computed(samples, costs).vanilla_pass_s
        scale = passes / own.vanilla_pass_s
        rounds = sum(len(s.method.rounds) for s in samples)
        vanilla_s = passes + own.vanilla_other_s * scale
        return cls(vanilla_s, own.adapt_s * scale, own.other_s * scale / max(1, rounds))


def sum_of(
    texts: Sequence[Text],
    make: Callable[[], Rule],
    widths: Sequence[int],
    costs: Costs,
    base: Baseline,
) -> tuple[Outcome, float]:
    """Counts and speedup of a rule over the prompts; its state goes from prompt to prompt."""
    rule, total = make(), Outcome()
    for text in texts:
        play(text, rule, widths, costs, total)
    return total, base.vanilla_s / (total.passes_s + base.adapt_s + base.round_s * total.rounds)


class Kept:
    """Costs that are looked up once per number of rows or steps and 32 tokens of context."""

    def __init__(self, costs: Costs) -> None:
        self.costs, self.layers = costs, costs.layers
        self._seconds: dict[tuple[object, ...], float] = {}

    def draft_s(self, context: float, steps: int, skip: SkipSet, how: Verified = PLAIN) -> float:
        key = (int(context) // 32, steps, len(skip.attention), len(skip.mlp), how)
        if key not in self._seconds:
            self._seconds[key] = self.costs.draft_s(context, steps, skip, how)
        return self._seconds[key]

    def verify_s(self, context: float, rows: int, how: Verified = PLAIN, before: int = 1) -> float:
        key = (int(context) // 32, rows, how, before)
        if key not in self._seconds:
            self._seconds[key] = self.costs.verify_s(context, rows, how, before)
        return self._seconds[key]
