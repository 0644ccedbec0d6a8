"""The one-row passes of a draft."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from skipbench.decode.draft import State
from skipbench.draft_plan import DraftPlan
from skipbench.lm.rows import TokenRows


def read_later(values: Tensor) -> Callable[[], list[Any]]:
    """Starts the copy of numbers [N] to the host, which may launch more work meanwhile; the result
    waits for the work launched before, and for none after it.
    """
    if values.device.type != "cuda":
        return lambda: [value.item() for value in values]
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    host.copy_(values, non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it so
    arrived.record(torch.cuda.current_stream(values.device))

    def read() -> list[Any]:
        arrived.synchronize()
        return list(host.tolist())

    return read


class DraftPass:
    """Logits after the pending token and each drafted one, by the draft's plan.

    Args:
        exit_sublayer: the sub-layer before which passes stop; `None` for none.
        first: logits [1, V] after the pending token, where they are known.

    Attributes:
        early: with `exit_sublayer`, the states of every pass.
    """

    def __init__(
        self,
        state: State,
        plan: DraftPlan,
        exit_sublayer: int | None = None,
        first: Tensor | None = None,
    ) -> None:
        self._state, self._lm, self._plan = state, state.lm, plan
        self._exit = exit_sublayer
        self.first, self.early = first, list[list[Tensor]]()
        self._step = 0  # passes made

    def logits(self, token: list[int] | Tensor) -> Tensor:
        """Logits [1, V] after a token, which follows those before."""
        if self.first is not None and self._step == 0:
            self._step = 1
            return self.first
        row = TokenRows.chain(self._lm.cache.length + self._step, 1)
        states = None if self._exit is None else list[Tensor]()
        if states is not None:
            self.early.append(states)
        hidden = self._lm.run(self._lm.embed(token), row, self._plan, 0, self._exit, states)
        self._step += 1
        return self._lm.head(hidden, self._plan)
