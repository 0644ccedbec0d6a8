"""Fast Inference from Transformers via Speculative Decoding, arXiv:2211.17192: a second, smaller
checkpoint of the same tokenizer drafts.

| paper | here | |
|---|---|---|
| M_p, M_q | `state.lm`, `self.lm` | the target, and the model that drafts |
| gamma | `stop.max_steps` | most draft tokens of a round |

The draft model has a K/V cache of its own. Per round it first reads the tokens that it has not
seen: the pending one, and the last accepted one where all were accepted; then it goes on alone. Its
prefill is done in `begin` and counts as decoding.

Deviations from the paper, with their switches: docs/methods/draft-model.md.
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from skipbench.decode.drafting import Drafter
from skipbench.decode.method import Draft, Verification
from skipbench.decode.state import State
from skipbench.decode.stopping import StopRule
from skipbench.errors import SkipbenchError
from skipbench.lm.rows import TokenRows
from skipbench.models.draft import check_vocabulary, draft_model
from skipbench.skipset import SkipSet

DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


class DraftModel:
    """Speculative decoding with a checkpoint that is loaded beside the target.

    Args:
        layers: L, decoder layers of the target.
        name: name of the method in records and tables.
        model: the draft model: a Hugging Face folder, a GGUF file, or an id on the hub.
        stop: when a chain of draft steps ends; chosen by `stop@method.stop`.
        revision: of an id on the hub.
        dtype: float32, bfloat16 or float16; `target` for that of the target.
        tree: children per node for a confidence up to 0.5, up to 0.8, up to 0.95 and above, the
            first choice included, such as [10, 5, 3, 1]; empty drafts a chain.

    Raises:
        SkipbenchError: no model, a dtype that is not known; before the first prompt, a checkpoint
            that cannot be loaded, or one of another vocabulary.
    """

    def __init__(
        self,
        layers: int,
        name: str,
        model: str,
        stop: StopRule,
        revision: str | None = None,
        dtype: str = "target",
        tree: Sequence[int] = (),
    ) -> None:
        if not model:
            raise SkipbenchError(
                "method.model is empty; give the checkpoint that drafts, a folder or an id on the "
                "hub with the target's tokenizer, as in method.model=HuggingFaceTB/SmolLM2-135M"
            )
        if dtype not in ("target", *DTYPES.values()):
            raise SkipbenchError(
                f"method.dtype={dtype!r}; wanted target, {', '.join(DTYPES.values())}"
            )
        self.name, self.model, self.revision, self.dtype = name, model, revision, dtype
        self.drafter = Drafter(stop, tree)

    def begin(self, state: State) -> None:
        target = state.lm
        dtype = DTYPES[target.dtype] if self.dtype == "target" else self.dtype
        device = str(target.output_device)
        self.lm, tokenizer = draft_model(self.model, self.revision, dtype, device)
        check_vocabulary(self.model, self.lm, tokenizer, target)
        tokens = state.prompt_length + state.max_new_tokens
        if tokens > self.lm.max_positions:
            raise SkipbenchError(
                f"method.model={self.model} has {self.lm.max_positions} positions, this prompt and "
                f"its output {tokens} tokens; shorten them, or draft with another model"
            )
        if self.lm.cache.capacity < target.cache.capacity:
            self.lm.allocate(target.cache.capacity)
        with self.lm.turn(self):  # requests in flight draft with the same model
            self.lm.prefill(state.tokens[:-1])
        self._none_skipped = SkipSet.of(self.lm.layers)
        self.drafter.begin()
        self.log: dict[str, list[str]] = {"draft_model": [self.model]}

    def propose(self, state: State, budget: int) -> Draft:
        if budget < 1:
            return Draft()
        own = copy.copy(state)  # the same text, read by the draft model
        own.lm = self.lm
        with self.lm.turn(self):
            return self.drafter.propose(own, self._none_skipped, budget, first=self._read(state))

    def _read(self, state: State) -> Tensor:
        """Runs what the draft model has not seen; logits behind the pending token."""
        cache, end = self.lm.cache, len(state.tokens)
        unseen = state.tokens[cache.length :]
        logits = self.lm.logits(unseen, TokenRows.chain(cache.length, len(unseen)))[-1:]
        cache.length = end - 1
        return logits

    def adapt(self, state: State, verification: Verification) -> None:
        """Keeps the rows of the chain as far as it was accepted; its last token has none yet."""
        self.drafter.update(verification)
        draft = verification.draft
        if draft.tokens:
            chain = draft.first_choices()
            accepted = sum(node in chain for node in verification.accepted)
            with self.lm.turn(self):
                self.lm.cache.length += 1 + min(accepted, draft.steps - 1)
