"""Skip sets that never change: by a rule (Self-SD Table 8, SWIFT Figure 2), or given by hand."""

from collections.abc import Sequence

from skipbench.console import say
from skipbench.decode.draft import State
from skipbench.decode.drafting import SkipMethod
from skipbench.decode.stopping import StopRule
from skipbench.draft_plan import DraftPlan
from skipbench.skipset import fixed_set


class FixedSet(SkipMethod):
    """Drafts with one skip set, for code that has one.

    >>> from skipbench.decode.stopping import Fixed
    >>> method = FixedSet("mine", DraftPlan.parse("attn:1", 4), Fixed(max_steps=5))
    >>> str(method.skip), method.stop.max_steps
    ('attn:1', 5)
    """

    def __init__(
        self, name: str, skip: DraftPlan, stop: StopRule, tree: Sequence[int] = ()
    ) -> None:
        super().__init__(name=name, layers=skip.layers, stop=stop, tree=tree)
        self.skip = skip


class Strategy(SkipMethod):
    """A set by rule; `name` is the rule: uniform, first, middle, last or random.

    >>> from skipbench.decode.stopping import Fixed
    >>> str(Strategy(name="middle", layers=8, ratio=0.25, stop=Fixed()).skip)
    'attn:3,4;mlp:3,4'
    """

    ratio: float
    """Share of the layers to skip, above 0 to below 1; of the rule `random`, of the sub-layers."""
    attention: float | None = None
    """Share of the attention blocks to skip, in place of `ratio`; with `mlp`."""
    mlp: float | None = None
    """Share of the MLP blocks to skip. Self-SD Table 8 (24 and 12 of 40) is 0.6 and 0.3."""
    seed: int = 0
    """Of the rule `random`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = self.ratio, self.seed, self.attention, self.mlp
        self.skip = self.cheaper(fixed_set(self.name, self.layers, *sizes))


class Explicit(SkipMethod):
    """A set given by hand.

    >>> from skipbench.decode.stopping import Fixed
    >>> Explicit(name="fixed", layers=4, skip="attn:1,2;mlp:2", stop=Fixed()).skip.skipped
    frozenset({2, 4, 5})
    """

    skip: DraftPlan
    """The set in text form, such as `attn:1,3-5;mlp:2`, counted from 0."""

    def __post_init__(self) -> None:
        skip = str(self.skip)
        super().__post_init__()
        self.skip = self.cheaper(DraftPlan.parse(skip, self.layers))
        self._told = not self.skip.whole

    def begin(self, state: State) -> None:
        """Says once if the set is empty: the draft is then the whole model, and always right."""
        super().begin(state)
        if not self._told:
            say(f"{self.name} skips nothing: every draft step is a whole pass, and alpha is 1")
        self._told = True
