"""`Method`: the base class of decoding methods."""

import copy
from dataclasses import field
from typing import Any, ClassVar

from skipbench.config.configurable import Configurable
from skipbench.decode.draft import Draft, State, Verification
from skipbench.draft_plan import DraftPlan
from skipbench.lm.engine import Engine


class Method(Configurable):
    """A decoding method: `propose`, and `begin` and `adapt` if it learns.

    >>> from skipbench.config.configurable import Positive
    >>> class Stutter(Method):
    ...     times: Positive = 2
    ...
    ...     def propose(self, state: State, budget: int) -> Draft:
    ...         tokens = [state.pending] * min(self.times, budget)
    ...         return Draft(tokens, steps=len(tokens))
    >>> Stutter(name="stutter", times=0)
    Traceback (most recent call last):
    skipbench.errors.SkipbenchError: stutter: times=0; wanted 1 or more
    """

    layers: int = 0
    """L, decoder layers of the model."""
    name: str
    """Name in records and tables."""

    drafts: ClassVar[bool] = True
    """False: every draft is empty and `adapt` learns nothing."""
    needs_hidden_states = False
    """`adapt` reads the target's hidden states."""
    needs_top_tokens = 0
    """How many of the target's most likely tokens per row `adapt` reads."""
    needs_latency = False
    """`lm.prices` have the latencies of sub-layers before the first prompt."""
    logged: ClassVar[tuple[str, ...]] = ()
    """Names of the quantities in `log`."""
    skip: DraftPlan | str = field(default="", init=False)
    """The skip set that drafts now; its text is recorded per sample."""
    log: dict[str, list[Any]] = field(default_factory=dict, init=False)
    """Quantities of the present prompt."""

    @property
    def label(self) -> str:
        return self.name

    @property
    def variant(self) -> str:
        """`DraftPlan.variant` of its drafts: a copy of the weights."""
        return ""

    def variant_on(self, engine: Engine) -> str:
        """The variant whose price a run measures on an engine."""
        return self.variant

    def import_libraries(self) -> None:
        """Imports what takes seconds and only decoding needs, before anything is timed."""

    def prepare(self, state: State) -> None:
        """Makes what it keeps of the weights, before the first prompt, over rows that nothing reads
        again.
        """

    def begin(self, state: State) -> None:
        """Starts a prompt, which has been prefilled."""
        self.log = {name: [] for name in self.logged}

    def propose(self, state: State, budget: int) -> Draft:
        """Proposes at most `budget` tokens after the pending one; may overwrite scratch rows."""
        raise NotImplementedError

    def adapt(self, state: State, verification: Verification) -> None:
        """Learns from a round; the accepted tokens are already committed."""

    def note(self, **values: Any) -> None:
        """Appends to quantities in `log`."""
        for name, value in values.items():
            self.log[name].append(value)

    def trace(self) -> dict[str, list[Any]]:
        """Everything logged for the prompt that just ended."""
        return self.log


class MethodCopies:
    """One method per concurrent request: the given one if it is idle, else a copy that is kept."""

    def __init__(self, method: Method) -> None:
        self.first, self._idle = method, [method]

    def take(self) -> Method:
        """Returns the method for one request; called between two rounds of the others."""
        return self._idle.pop() if self._idle else copy.deepcopy(self.first)

    def give_back(self, method: Method) -> None:
        self._idle.insert(len(self._idle) if method is self.first else 0, method)
