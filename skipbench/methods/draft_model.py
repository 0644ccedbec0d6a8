"""Fast Inference from Transformers via Speculative Decoding, arXiv:2211.17192: a second, smaller
checkpoint of the same tokenizer drafts.

| paper | here | |
|---|---|---|
| M_p, M_q | `state.lm`, `self.lm` | the target, and the model that drafts |
| gamma | `stop.max_steps` | maximum draft tokens per round |

The draft model has a K/V cache, too. Per round it first reads the tokens that it has not seen: the
pending one, and the last accepted one where all were accepted; then it goes on alone. Its prefill
is done in `begin` and counts as decoding.

Deviations from the paper, with their switches: docs/methods/draft-model.md.
"""

import copy
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from skipbench.config.configurable import File
from skipbench.decode.draft import Draft, State, Verification
from skipbench.decode.drafting import SkipMethod
from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.lm.rows import TokenRows
from skipbench.models.load import check_vocabulary, draft_model


class DraftModel(SkipMethod):
    """Speculative decoding with a checkpoint that is loaded beside the target.

    >>> from skipbench.decode.stopping import Fixed
    >>> DraftModel(name="draft-model", layers=4, model="", stop=Fixed())
    Traceback (most recent call last):
    skipbench.errors.SkipbenchError: method.model is empty; give the checkpoint that drafts, a ...
    """

    model: File
    """The draft model, of the target's vocabulary: a folder, a GGUF file, or an id on the hub."""
    revision: str | None = None
    """Of an id on the hub."""
    dtype: Literal["target", "float32", "bfloat16", "float16"] = "target"
    """float32, bfloat16 or float16; `target` for that of the target."""

    logged = ("draft_model",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.model:
            raise SkipbenchError(
                "method.model is empty; give the checkpoint that drafts, a folder or an id on the "
                "hub with the target's tokenizer, as in method.model=HuggingFaceTB/SmolLM2-135M"
            )

    def begin(self, state: State) -> None:
        super().begin(state)
        target = state.lm
        dtype = str(target.dtype).removeprefix("torch.") if self.dtype == "target" else self.dtype
        device = str(target.output_device)
        self.lm, tokenizer = draft_model(self.model, self.revision, dtype, device)
        check_vocabulary(self.model, self.lm, tokenizer, target)
        self.vocabulary = target.vocabulary
        tokens = state.prompt_length + state.max_new_tokens
        if tokens > self.lm.max_positions:
            raise SkipbenchError(
                f"method.model={self.model} has {self.lm.max_positions} positions, this prompt and "
                f"its output {tokens} tokens; shorten them, or draft with another model"
            )
        if self.lm.cache.capacity < target.cache.capacity:
            self.lm.allocate(target.cache.capacity)
        with self.lm.cache.turn(self):  # requests in flight draft with the same model
            self.lm.prefill(self._known(state.tokens[:-1]))
        self.skip = self.cheaper(DraftPlan.of(self.lm.layers))
        self.note(draft_model=self.model)

    def propose(self, state: State, budget: int) -> Draft:
        if budget < 1:
            return Draft()
        drafted = copy.copy(state)  # the same text, read by the draft model
        drafted.lm = lm = self.lm
        with lm.cache.turn(self):
            unseen = self._known(state.tokens[lm.cache.length :])
            first = lm.logits(unseen, TokenRows.chain(lm.cache.length, len(unseen)))[-1:]
            lm.cache.length = len(state.tokens) - 1
            return replace(self.draft(drafted, budget, first), plan=None)

    def fitted(self, logits: Tensor) -> Tensor:
        """Embeddings of one tokenizer may be padded to other sizes: what the target lacks is not
        drafted, and what the draft model lacks has no chance.
        """
        missing = self.vocabulary - logits.shape[-1]
        return torch.nn.functional.pad(logits, (0, missing), value=float("-inf"))

    def _known(self, tokens: list[int]) -> list[int]:
        """The tokens, in the place of the target's padding the draft model's last one."""
        return [min(token, self.lm.vocabulary - 1) for token in tokens]

    def adapt(self, state: State, verification: Verification) -> None:
        """Keeps the rows of the chain as far as it was accepted; its last token has none yet."""
        super().adapt(state, verification)
        if steps := verification.draft.steps:
            with self.lm.cache.turn(self):
                self.lm.cache.length += 1 + min(verification.chain, steps - 1)
