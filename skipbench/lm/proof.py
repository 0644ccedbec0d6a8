"""Proofs at load: a traced layer has the logits of the model's own forward pass, tokens one by one
have the bits of its own, and verified rows have the bits that each has alone.
"""

import statistics
import time
from typing import Any, Protocol

import torch
from torch import Tensor

from skipbench.errors import SkipbenchError
from skipbench.lm.cache import KVCache
from skipbench.lm.fused.bit_exact import MOST, NotStrictError
from skipbench.lm.layer import Family
from skipbench.lm.rows import TokenRows
from skipbench.lm.traced import TOKENS, probe_tokens

COMMITTED = 8  # tokens before the chain and the tree of `prove`
PROMPT = 24  # likewise of `self_test`
TIMED_ROWS = 9  # rows of the verification whose cost is reported
TREE = (-1, 0, 0, 1, 1, 1, 3, 3, 2, 8)  # parents; branches that go on, and leaves between them
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}
LOW_PRECISION = 0.05
"""Largest difference of two logits, as a share of the largest logit, by precision."""


class Proven(Protocol):
    """An `LM`, as far as the proofs use it."""

    model: Any
    config: Any
    dtype: torch.dtype
    cache: KVCache

    def allocate(self, capacity: int) -> None: ...
    def embed(self, tokens: list[int] | Tensor) -> Tensor: ...
    def run(
        self, hidden: Tensor, token_rows: TokenRows, *, hidden_states: list[Tensor] | None = None
    ) -> Tensor: ...
    def prefill(self, tokens: list[int]) -> Tensor: ...
    def logits(self, tokens: list[int], token_rows: TokenRows) -> Tensor: ...


@torch.inference_mode()
def prove(lm: Proven, family: Family) -> str:
    """Runs a short random prompt, a chain and a tree after a part of it, and compares every logit
    with the model's own forward pass.

    Returns:
        A line for the notes.

    Raises:
        SkipbenchError: they differ, with the first place where they do.
    """
    tokens = probe_tokens(lm.model)[0].tolist()
    wanted = _own(lm, tokens)
    lm.allocate(2 * TOKENS)
    allowed = TOLERANCE.get(lm.dtype, LOW_PRECISION) * float(wanted.abs().max())
    try:
        whole = lm.logits(tokens, TokenRows.chain(0, TOKENS))
    except (TypeError, ValueError, RuntimeError, AttributeError, KeyError, IndexError) as error:
        raise SkipbenchError(
            f"model family {lm.model.config.model_type!r} has no row in "
            f"skipbench/lm/families.py, and its traced layer cannot be run: {error}"
        ) from error
    gaps = [_gap(whole, wanted)]
    if gaps[0] > allowed:
        raise SkipbenchError(_message(lm, _where(lm, family, tokens), gaps[0], allowed))
    lm.prefill(tokens[:COMMITTED])
    rest = tokens[COMMITTED:]
    gaps.append(_gap(lm.logits(rest, TokenRows.chain(COMMITTED, len(rest))), wanted[COMMITTED:]))
    branches = lm.logits(rest, TokenRows.branches(COMMITTED, COMMITTED, len(rest)))
    own = [_own(lm, [*tokens[:COMMITTED], token])[-1] for token in rest]
    gaps.append(_gap(branches, torch.stack(own)))
    if max(gaps) > allowed:
        what = "a chain" if gaps[1] > allowed else "the branches of a tree"
        where = f"{what} behind {COMMITTED} committed tokens, where the prompt alone agrees"
        raise SkipbenchError(_message(lm, where, max(gaps), allowed))
    return (
        f"model family {lm.model.config.model_type} has no row: its layer was traced by hooks and "
        f"proven against the model's own forward pass over {TOKENS} tokens, a chain and a tree "
        f"(logits differ by {max(gaps):.1g} at most, of {float(wanted.abs().max()):.3g})"
    )


@torch.inference_mode()
def has_own_bits(lm: Proven) -> bool:
    """Compares tokens one by one after a short random prompt, bit for bit, with the logits of the
    model's own passes with its own cache: as `generate` decodes.
    """
    lm.allocate(TOKENS)
    tokens = probe_tokens(lm.model)
    lm.prefill(tokens[0, :COMMITTED].tolist())
    own, equal = lm.model(tokens[:, :COMMITTED], use_cache=True), True
    for at in range(COMMITTED, TOKENS):
        token, cache = tokens[:, at : at + 1], own.past_key_values
        own = lm.model(token, past_key_values=cache, use_cache=True)
        ours = lm.logits(token[0].tolist(), TokenRows.chain(at, 1))
        equal &= torch.equal(ours.cpu(), own.logits[0].cpu())
    return equal


@torch.inference_mode()
def self_test(lm: Proven) -> float:
    """Runs random tokens one by one and together, as chains of 2 to 16 rows and as a tree; every
    bit must be the same.

    Returns:
        Time of verifying 9 rows so, over that without; the median of a few turns.

    Raises:
        NotStrictError: a logit or a cached key or value differs, with the rows and the size of it.
    """
    lm.allocate(PROMPT + MOST)
    vocabulary = int(lm.config.vocab_size)
    tokens = torch.randint(
        vocabulary, (PROMPT + MOST,), generator=torch.Generator().manual_seed(0)
    ).tolist()
    prompt, rest = tokens[:PROMPT], tokens[PROMPT:]
    lm.prefill(prompt)
    alone, cached = _one_by_one(lm, rest)
    for count in range(2, MOST + 1):
        logits = lm.logits(rest[:count], TokenRows.chain(PROMPT, count).verified())
        _compare(f"{count} rows", logits, alone[:count])
        for layer, rows in enumerate(lm.cache.rows):
            _compare(
                f"keys and values of {count} rows",
                rows[PROMPT : PROMPT + count],
                cached[layer][:count],
            )
    together = lm.logits(rest[: len(TREE)], TokenRows.tree(PROMPT, TREE).verified())
    for row, path in enumerate(TokenRows.tree(PROMPT, TREE).paths()):
        _compare(
            f"a tree of {len(TREE)} rows",
            together[row : row + 1],
            _one_by_one(lm, [rest[n] for n in path])[0][-1:],
        )
    chain, times = TokenRows.chain(PROMPT, TIMED_ROWS), []
    for _ in range(5):
        began = time.perf_counter()
        lm.logits(rest[:TIMED_ROWS], chain).argmax(-1).tolist()
        between = time.perf_counter()
        lm.logits(rest[:TIMED_ROWS], chain.verified()).argmax(-1).tolist()
        times.append((time.perf_counter() - between) / (between - began))
    return statistics.median(times)


def _own(lm: Proven, tokens: list[int]) -> Tensor:
    """Logits [T, V] of the model's own forward pass."""
    device = lm.model.get_input_embeddings().weight.device
    logits: Tensor = lm.model(torch.tensor([tokens], device=device), use_cache=False).logits[0]
    return logits


def _gap(found: Tensor, wanted: Tensor) -> float:
    gap = float((found.to(wanted.device) - wanted).abs().max())
    return gap if gap == gap else float("inf")


def _where(lm: Proven, family: Family, tokens: list[int]) -> str:
    """The first state of the engine that is not the model's."""
    own: list[Tensor] = []
    layers = lm.model.get_submodule(family.layers_path)

    def note(module: Any, args: Any, kwargs: Any, output: Any) -> None:
        if not own:
            own.append((args[0] if args else kwargs["hidden_states"])[0])
        own.append((output[0] if isinstance(output, tuple) else output)[0])

    handles = [layer.register_forward_hook(note, with_kwargs=True) for layer in layers]
    try:
        _own(lm, tokens)
    finally:
        for handle in handles:
            handle.remove()
    states: list[Tensor] = []
    lm.run(lm.embed(tokens), TokenRows.chain(0, len(tokens)), hidden_states=states)
    share = TOLERANCE.get(lm.dtype, LOW_PRECISION)
    for index, (found, wanted) in enumerate(zip(states[::2], own, strict=True)):
        if _gap(found, wanted) > share * float(wanted.abs().max()):
            return (
                "the input of the first layer (positions or a factor beside the embedding?)"
                if index == 0
                else f"the output of layer {index - 1}"
            )
    return "the head alone, behind states that all agree,"


def _message(lm: Proven, where: str, gap: float, allowed: float) -> str:
    return (
        f"model family {lm.model.config.model_type!r} has no row in skipbench/lm/families.py, and "
        f"its traced layer does not give the model's own forward pass: {where} differs; the "
        f"logits by up to {gap:.3g}, allowed {allowed:.3g}"
    )


def _one_by_one(lm: Proven, tokens: list[int]) -> tuple[Tensor, list[Tensor]]:
    """Logits [n, V] and the cache rows of a chain behind the prompt, decoded as vanilla would."""
    logits = [lm.logits([token], TokenRows.chain(PROMPT + n, 1)) for n, token in enumerate(tokens)]
    return torch.cat(logits), [
        rows[PROMPT : PROMPT + len(tokens)].clone() for rows in lm.cache.rows
    ]


def _compare(what: str, found: Tensor, alone: Tensor) -> None:
    if torch.equal(found, alone):
        return
    gap = float((found.float() - alone.float()).abs().max())
    where = f"{found.device} in {str(found.dtype).removeprefix('torch.')}"
    instead = (
        "the products of float32 add in another order for one row and for several, and its tokens "
        "have to be vanilla's without strict: use engine.strict=false, or model.dtype=bfloat16"
        if found.dtype == torch.float32
        else "the kernels of this machine add in another order when rows share a call: use "
        "engine.strict=false, which classifies every divergence by its logit gap"
    )
    raise NotStrictError(
        f"engine.strict=true cannot be kept on {where}: {what} at once differ from the same "
        f"rows one by one by up to {gap:.3g}; {instead}"
    )
