"""`LM`: the one model primitive, `run`, over a shared K/V cache."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.lm.cache import KVCache, upload
from skipbench.lm.engine import Chosen, Engine, MakeEngine, Variant
from skipbench.lm.engines import make_engine
from skipbench.lm.families import angle_limit, describe, kv_shape, modules_of
from skipbench.lm.float32 import float32_logits
from skipbench.lm.fused.weights import pass_bytes
from skipbench.lm.layer import text_config
from skipbench.lm.metadata import AttentionMetadata, RotaryCache, rotary_cache
from skipbench.lm.rows import TokenRows
from skipbench.metrics.prices import Prices

KEPT_PLANS = 1024  # plans whose sub-layers are listed


class LM:
    """A loaded language model, batch 1.

    Letters of shapes: T rows, D hidden, V vocabulary, S = 2L sub-layers.
    """

    def __init__(
        self, model: Any, engine: str | MakeEngine = "fused", strict: bool = False
    ) -> None:
        """
        Args:
            model: a causal language model of Hugging Face, in evaluation mode.
            engine: one of `ENGINES`; what replaces one that cannot run here is in `notes`.
            strict: verified rows get the bits of decoding alone, proven here.

        Raises:
            SkipbenchError: a layer or rotary type that cannot be described; no `strict` here.
        """
        self.model, self.config = model, text_config(model.config)
        family, modules = describe(model), modules_of(model)
        self.layers, self._angle_limit = len(modules.layers), angle_limit(self.config)
        self.max_positions = int(self._angle_limit or self.config.max_position_embeddings)
        self.dtype = modules.embedding.weight.dtype
        self.devices = [next(a.module.parameters()).device for a, _ in modules.layers]
        self.input_device = modules.embedding.weight.device
        self.output_device = modules.head.weight.device
        if any(device.type == "cuda" for device in self.devices):
            # On Hopper torch takes cuDNN's attention first, which plans anew for every length.
            torch.backends.cuda.enable_cudnn_sdp(False)
        self.cache = KVCache(self.devices, *kv_shape(model), self.dtype)
        self.weight_bytes = pass_bytes(model)
        """Bytes of weights that one decoding step reads; of the embedding table, one row."""
        self._modules = modules
        make = partial(make_engine, engine) if isinstance(engine, str) else engine
        self.engine: Engine = make(model, family, self.cache, strict=strict)
        self.prices = Prices()
        self.price_file: Path | None = None  # keeps prices that rounds moved
        self.remarks: list[str] = []  # lines on how this model was made, for `notes`
        self.widened: dict[int, Tensor] | None = None  # `kept` of `float32_logits`
        self._tables: dict[torch.device, RotaryCache] = {}
        self._chosen: dict[tuple[DraftPlan | None, int, int], Chosen] = {}
        if strict or family.traced:
            from skipbench.lm.proof import prove, self_test

            if strict:
                self_test(self)
            if family.traced:
                self.remarks.append(prove(self, family))

    @property
    def strict(self) -> bool:
        """Verified rows have the bits of decoding alone."""
        return self.engine.strict

    @property
    def sublayers(self) -> int:
        """S = 2L."""
        return 2 * self.layers

    @property
    def vocabulary(self) -> int:
        """V, rows of the embedding."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    def notes(self) -> list[str]:
        """Lines on what this machine lacks, and what is used instead."""
        return [*self.engine.notes(), *self.remarks]

    def __deepcopy__(self, memo: object) -> "LM":
        """Itself: the copy of a method that drafts with a model takes turns on it."""
        return self

    def allocate(self, capacity: int) -> None:
        """Allocates `capacity` cache rows and tables; only a request in flight keeps its rows."""
        with self.cache.lock:
            if capacity <= self.cache.capacity:
                return
            with self.cache.turn():
                for device in dict.fromkeys(self.devices):
                    spare = self.cache.spare if self.engine.padded_rows else 0
                    sizes = capacity + spare, self.dtype, device, self._angle_limit
                    self._tables[device] = rotary_cache(self._modules, *sizes)
                self.engine.release()
                self.cache.allocate(capacity)
                self.engine = self.engine.allocated(self._tables)

    def embed(self, tokens: list[int] | Tensor) -> Tensor:
        """Token ids, on the host or already on the device, -> hidden states [T, D]."""
        return self.engine.embed(upload(torch.as_tensor(tokens), self.input_device))

    def head(self, hidden: Tensor, plan: DraftPlan | None = None, verified: bool = False) -> Tensor:
        """Hidden states [T, D] -> logits [T, V] through the final norm, by the plan's weights;
        `verified`: of rows that have to have the bits of rows alone.
        """
        weights, hidden = self._weights_of(plan), hidden.to(self.output_device)
        exact = verified and weights is self.engine
        return self.engine.verified_head(hidden) if exact else weights.head(hidden)

    def _weights_of(self, plan: DraftPlan | None) -> Engine | Variant:
        return self.engine.variant(plan.variant) if plan and plan.variant else self.engine

    def metadata(self, token_rows: TokenRows) -> AttentionMetadata:
        """Positions and masks of rows, for several calls of `run` over the same rows."""
        token_rows = token_rows.padded(self.engine.padded_rows)
        return AttentionMetadata(token_rows, self._tables[self.devices[0]], self._tables)

    def run(
        self,
        hidden: Tensor,
        token_rows: TokenRows | AttentionMetadata,
        plan: DraftPlan | None = None,
        first: int = 0,
        last: int | None = None,
        hidden_states: list[Tensor] | None = None,
    ) -> Tensor:
        """Runs the sub-layers `first .. last - 1` over the rows of `token_rows`, as a plan says.
        Raises SkipbenchError where the rows do not fit into the cache.

        Args:
            hidden: [T, D], the input of sub-layer `first`.
            token_rows: the rows; prepared by `metadata` where several passes share them.
            plan: what is left out, and the weights that the rest reads; `None` for the full model.
            first, last: the first sub-layer, and the one before which to stop (`None`: S = 2L).
            hidden_states: when given, receives the state [T, D] before the first and after every
                sub-layer that ran, all on the output's device.

        Returns:
            [T, D], the output of the last one; where `engine.result_is_borrowed`, a buffer that the
            next pass overwrites (and may take as its input). The K/V rows `token_rows.start ..` of
            every attention that ran are overwritten.
        """
        metadata = self.metadata(token_rows) if isinstance(token_rows, TokenRows) else token_rows
        if (end := metadata.token_rows.end - metadata.token_rows.padding) > self.cache.capacity:
            full = f"cache of {self.cache.capacity} rows is full: a pass needs {end}"
            raise SkipbenchError(f"{full}; allocate more rows")
        chosen = self._chosen_of(plan, first, self.sublayers if last is None else last)
        return self.engine.run(hidden, metadata, chosen, hidden_states)

    def _chosen_of(self, plan: DraftPlan | None, first: int, last: int) -> Chosen:
        """Which of the sub-layers `first .. last - 1` run, and the variant that each reads, which
        is made before its first pass.
        """
        if (key := (plan, first, last)) not in self._chosen:
            if len(self._chosen) == KEPT_PLANS:  # a search tries thousands
                self._chosen.clear()
            kept = tuple(s for s in range(first, last) if plan is None or s not in plan.skipped)
            _ = self._weights_of(plan).sublayers
            self._chosen[key] = kept, "" if plan is None else plan.variant
        return self._chosen[key]

    def prefill(self, tokens: list[int]) -> Tensor:
        """Fills the cache with a prompt from row 0 and commits it; returns the logits [1, V] after
        its last token. Raises SkipbenchError for no token, or one without an embedding.
        """
        vocabulary = self.vocabulary
        if not tokens or not 0 <= min(tokens) <= max(tokens) < vocabulary:
            wrong = sorted({t for t in tokens if not 0 <= t < vocabulary})[:5]
            raise SkipbenchError(
                f"the prompt has {len(tokens)} tokens, {wrong} of them out of range; wanted one or "
                f"more ids from 0 to {vocabulary - 1}. A tokenizer with more tokens than the model "
                "has embeddings makes such ids: use the model's own"
            )
        rows = self.engine.prefill_rows(len(tokens))
        for start in range(0, len(tokens), rows):
            piece = tokens[start : start + rows]
            hidden = self.run(self.embed(piece), TokenRows.chain(start, len(piece)))
        self.cache.length = len(tokens)
        return self.head(hidden[-1:])

    def logits(
        self,
        tokens: list[int] | Tensor,
        token_rows: TokenRows | AttentionMetadata,
        plan: DraftPlan | None = None,
        hidden_states: list[Tensor] | None = None,
    ) -> Tensor:
        """Logits [T, V] of the rows of `token_rows`, which hold `tokens`."""
        hidden = self.run(self.embed(tokens), token_rows, plan, hidden_states=hidden_states)
        rows = token_rows if isinstance(token_rows, TokenRows) else token_rows.token_rows
        return self.head(hidden, plan, rows.verifies)

    def score(
        self,
        tokens: list[int] | Tensor,
        token_rows: TokenRows,
        early: Sequence[Sequence[Tensor]] = (),
        hidden_states: list[Tensor] | None = None,
    ) -> Tensor:
        """Logits [n + 1, V] of one verification pass.

        Args:
            tokens: the pending token and the draft's, on the host or the device.
            early: for early exit, the states of the first rows whose early sub-layers have run: one
                list per row, [1, D] before the first and after every sub-layer. Only the other
                rows pass the early sub-layers, all pass the rest.
            hidden_states: when given, receives the S + 1 states [n + 1, D].
        """
        if not early:
            return self.logits(tokens, token_rows, hidden_states=hidden_states)
        done, first, states = len(early), len(early[0]) - 1, [list(row) for row in early]
        if done < len(tokens):
            states.append([])
            rest = TokenRows.chain(token_rows.start + done, len(tokens) - done).verified()
            self.run(self.embed(tokens[done:]), rest, last=first, hidden_states=states[-1])
        if hidden_states is not None:
            hidden_states += [torch.cat([row[s] for row in states]) for s in range(first)]
        hidden = torch.cat([row[first] for row in states])
        hidden = self.run(hidden, token_rows, first=first, hidden_states=hidden_states)
        return self.head(hidden, verified=token_rows.verifies)

    def float32_logits(self, tokens: list[int], rows: int = 1) -> Tensor | None:
        """`float32.float32_logits` of this model."""
        return float32_logits(self.model, tokens, rows, self.widened)
