"""Tensor parallelism, as Megatron-LM splits a layer (Shoeybi et al. 2019, arXiv:1909.08053): each
rank, a process with a device of its own, holds its part of the heads, of the MLP and of the
vocabulary, and two sums over the ranks per layer make the hidden states whole.

Only rank 0 decodes. Before a pass it tells the other ranks what to run, and they make their part of
it. Whatever depends on a clock, a draw or a file is thus decided once, for all ranks.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from skipbench.config.architecture import check_ranks
from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.lm.cache import KVCache
from skipbench.lm.engine import MakeEngine
from skipbench.lm.families import HEAD, describe, kv_shape, parts_of, unlike_llama
from skipbench.lm.layer import text_config
from skipbench.lm.metadata import AttentionMetadata
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows

Tell = Callable[..., None]
"""`method of TensorParallelLM, its arguments`: makes the other ranks call it."""
SPLIT = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size")
"""Sizes of a configuration that the number of ranks must divide."""


class RowParallelLinear(nn.Module):
    """A linear module of which each rank has some inputs: the ranks' products are added up."""

    def __init__(self, weight: Tensor, bias: Tensor | None, group: Any) -> None:
        """`weight`, `bias`: the rank's parts; `group`: of torch.distributed."""
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.group = group

    def join(self, product: Tensor) -> Tensor:
        """The ranks' products [..., out] -> the whole product, on every rank."""
        whole = product.contiguous()
        dist.all_reduce(whole, group=self.group)
        return whole

    def forward(self, x: Tensor) -> Tensor:
        return self.join(F.linear(x, self.weight, self.bias))


class GatheredLinear(RowParallelLinear):
    """A linear module of which each rank has some outputs, and gets those of the others."""

    def join(self, product: Tensor) -> Tensor:
        parts = [torch.empty_like(product) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(parts, product.contiguous(), group=self.group)
        return torch.cat(parts, -1)


@torch.no_grad()
def shard(model: Any, rank: int, ranks: int, device: torch.device, group: Any) -> Any:
    """Leaves of a Hugging Face model, wherever its weights are, the part of one rank, on `device`;
    its configuration then has the rank's heads. The embedding stays whole.

    Raises SkipbenchError for a family that is not split, or sizes that `ranks` does not divide.
    """
    config, family, parts = text_config(model.config), describe(model), parts_of(model)
    name = f"a model of type {model.config.model_type}"
    differs = unlike_llama(model)
    if differs is None and min(len(family.qkv), len(family.gate_up)) == 1:
        differs = "several projections in one weight"
    if differs is not None:
        raise SkipbenchError(
            f"model.tensor_parallel_size splits Llama's layer only, and {name} has {differs}; use "
            "model.device=auto, which lays whole layers on several GPUs"
        )
    kv, width = kv_shape(model)
    sizes = {key: int(getattr(config, key, None) or kv) for key in SPLIT}
    check_ranks(sizes, ranks, name)

    def part(of: Tensor, dim: int = 0) -> Tensor:
        return of.data.chunk(ranks, dim)[rank].to(device, copy=True).contiguous()

    def gets_outputs(linear: nn.Linear) -> None:
        linear.weight.data = part(linear.weight)
        if linear.bias is not None:
            linear.bias.data = part(linear.bias)

    def of_inputs(linear: nn.Linear) -> RowParallelLinear:
        own = linear.bias is not None and rank == 0  # it is added once
        bias = linear.bias.data.to(device) if own else None
        return RowParallelLinear(part(linear.weight, 1), bias, group)

    for attention, mlp in parts.layers:
        for linear in (*attention.qkv, *mlp.gate_up):
            gets_outputs(linear)
        setattr(attention.module, family.output, of_inputs(attention.output))
        setattr(mlp.module, family.down, of_inputs(mlp.down))
    bias = None if parts.head.bias is None else part(parts.head.bias)
    setattr(model, HEAD[0], GatheredLinear(part(parts.head.weight), bias, group))
    config.head_dim = width
    for key in SPLIT[:2]:
        setattr(config, key, sizes[key] // ranks)
    return model.to(device)


class ToldCache(KVCache):
    """The rank's heads of the cache. One request at a time: rows of others are not kept aside."""

    together: Callable[..., Any]

    def keep(self, rows: list[int]) -> None:
        start = self.length
        if rows == list(range(start, start + len(rows))):
            super().keep(rows)
            return
        with self.together("keep", start, rows):
            super().keep(rows)

    def clear(self, start: int, end: int | None = None) -> None:
        with self.together("clear", start, end):
            super().clear(start, end)

    def copied(self) -> list[Tensor]:
        raise SkipbenchError(
            "model.tensor_parallel_size above 1 decodes one request at a time; read a stream to "
            "its end, or close it, before the next one"
        )


class TensorParallelLM(LM):
    """An `LM` over one rank's part of a model. Hidden states and logits are whole on every rank,
    and those of rank 0 are what a pass begins with.
    """

    cache_type = ToldCache
    cache: ToldCache

    def __init__(
        self, model: Any, engine: str | MakeEngine, spare_mib: int, tell: Tell | None
    ) -> None:
        """
        Args:
            model: what `shard` left.
            tell: of rank 0; `None` on the others.
        """
        self._tell = tell
        super().__init__(model, engine, False, spare_mib)
        self.cache.together = self.together
        self._group = self._parts.head.group
        self._followed: AttentionMetadata | None = None

    @contextmanager
    def together(self, call: str, *arguments: object) -> Iterator[None]:
        """All ranks do what is within it: the others are told to `call`, which does the same."""
        tell, self._tell = self._tell, None
        try:
            if tell is not None:
                tell(call, *arguments)
            yield
        finally:
            self._tell = tell

    def _same(self, hidden: Tensor) -> Tensor:
        """Rank 0's hidden states, on every rank."""
        hidden = hidden.contiguous()
        dist.broadcast(hidden, 0, group=self._group)
        return hidden

    def allocate(self, capacity: int) -> None:
        with self.cache.lock:
            if capacity > self.cache.capacity:
                # refused before the other ranks are told
                with self.cache.turn(), self.together("allocate", capacity):
                    super().allocate(capacity)
                    self._followed = None

    def run(
        self,
        hidden: Tensor,
        token_rows: TokenRows | AttentionMetadata,
        plan: DraftPlan | None = None,
        first: int = 0,
        last: int | None = None,
        hidden_states: list[Tensor] | None = None,
    ) -> Tensor:
        rows = token_rows if isinstance(token_rows, TokenRows) else token_rows.token_rows
        what = rows, plan, first, last, hidden_states is not None
        with self.together("follow", len(hidden), *what):
            hidden = self._same(hidden)
            return super().run(hidden, token_rows, plan, first, last, hidden_states)

    def follow(
        self,
        count: int,
        rows: TokenRows,
        plan: DraftPlan | None,
        first: int,
        last: int | None,
        keeps_states: bool,
    ) -> None:
        """`run` on the other ranks, with `count` hidden states of rank 0."""
        if self._followed is None or self._followed.token_rows != rows:
            self._followed = self.metadata(rows)  # else its masks are there
        states = list[Tensor]() if keeps_states else None
        self.run(self._empty(count), self._followed, plan, first, last, states)

    def _empty(self, count: int) -> Tensor:
        shape = count, self.config.hidden_size
        return torch.empty(shape, dtype=self.dtype, device=self.input_device)

    def head(self, hidden: Tensor, plan: DraftPlan | None = None) -> Tensor:
        with self.together("follow_head", len(hidden), plan):
            return super().head(self._same(hidden), plan)

    def follow_head(self, count: int, plan: DraftPlan | None) -> None:
        """`head` on the other ranks."""
        self.head(self._empty(count), plan)

    def keep(self, start: int, rows: list[int]) -> None:
        """`KVCache.keep` on the other ranks, after `start` committed rows."""
        self.cache.length = start
        self.cache.keep(rows)

    def clear(self, start: int, end: int | None) -> None:
        """`KVCache.clear` on the other ranks."""
        self.cache.clear(start, end)

    def score_alone(
        self, tokens: list[int], token_rows: TokenRows, hidden_states: list[Tensor] | None = None
    ) -> Tensor:
        with self.together("score_alone", tokens, token_rows):
            return super().score_alone(tokens, token_rows, hidden_states)

    def float32_logits(self, tokens: list[int], rows: int = 1) -> Tensor | None:
        with self.together("float32_logits", tokens, rows):
            return super().float32_logits(tokens, rows)
