"""Proofs at load: a traced layer has the logits of the model's own forward pass, tokens one by one
have the bits of its own, and verified rows have the bits that each has alone.
"""

import statistics
import time
from contextlib import ExitStack

import torch
from torch import Tensor

from skipbench.errors import NotStrictError, SkipbenchError
from skipbench.lm.bit_exact import MOST
from skipbench.lm.bit_probe import Proven, compare_rows
from skipbench.lm.layer import Family
from skipbench.lm.rows import TokenRows
from skipbench.lm.traced import TOKENS, Call, probe_tokens, recorded

COMMITTED = 8  # tokens before the chain and the tree of `prove`
PROMPT = 24  # likewise of `self_test`
PROBED = 100  # rows that are drawn where passes are padded
TIMED_ROWS = 9  # rows of the verification whose cost is reported
TREE = (-1, 0, 0, 1, 1, 1, 3, 3, 2, 8)  # parents; branches that go on, and leaves between them
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}
LOW_PRECISION = 0.05
"""Largest difference of two logits, as a share of the largest logit, by precision."""


@torch.inference_mode()
def prove(lm: Proven, family: Family) -> str:
    """Runs a short random prompt, a chain and a tree after a part of it, and compares every logit
    with the model's own forward pass. Returns a line for the notes; raises SkipbenchError with the
    first place where they differ.
    """
    tokens = probe_tokens(lm.model)[0].tolist()
    wanted, (committed, rest) = _own(lm, tokens), (tokens[:COMMITTED], tokens[COMMITTED:])
    lm.allocate(2 * TOKENS)
    share = TOLERANCE.get(lm.dtype, LOW_PRECISION)
    allowed = share * float(wanted.abs().max())
    name = lm.model.config.model_type
    fault = f"model family {name!r} has no row in skipbench/lm/families.py, and its traced layer"
    try:
        whole = lm.logits(tokens, TokenRows.chain(0, TOKENS))
    except (TypeError, ValueError, RuntimeError, AttributeError, KeyError, IndexError) as error:
        raise SkipbenchError(f"{fault} cannot be run: {error}") from error

    def check(gap: float, where: str) -> float:
        if gap > allowed:
            raise SkipbenchError(
                f"{fault} does not give the model's own forward pass: {where} differs; the logits "
                f"by up to {gap:.3g}, allowed {allowed:.3g}"
            )
        return gap

    gap = _gap(whole, wanted)
    gaps = [check(gap, _where(lm, family, tokens, share) if gap > allowed else "")]
    lm.prefill(committed)
    chain = lm.logits(rest, TokenRows.chain(COMMITTED, len(rest)))
    branches = lm.logits(rest, TokenRows.branches(COMMITTED, COMMITTED, len(rest)))
    own = torch.stack([_own(lm, [*committed, token])[-1] for token in rest])
    where = f"after {COMMITTED} committed tokens, where the prompt alone agrees"
    gaps.append(check(_gap(chain, wanted[COMMITTED:]), f"a chain {where}"))
    gaps.append(check(_gap(branches, own), f"the branches of a tree {where}"))
    return (
        f"model family {name} has no row: its layer was traced by hooks and proven against the "
        f"model's own forward pass over {TOKENS} tokens, a chain and a tree (logits differ by "
        f"{max(gaps):.1g} at most, of {float(wanted.abs().max()):.3g})"
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
    """Runs random tokens one by one and together, as chains of 2 to 16 rows and as a tree, and
    raises NotStrictError where a bit of a logit or a cached key or value differs. Where passes are
    padded, in float32 and on `cuda_graphs`, `compare_rows` draws others after longer contexts.

    Returns the time of verifying 9 rows so, over that without; the median of a few turns.
    """
    lm.allocate(PROMPT + MOST)
    generator, size = torch.Generator().manual_seed(0), (PROMPT + MOST,)
    tokens = torch.randint(int(lm.config.vocab_size), size, generator=generator).tolist()
    prompt, rest, padded = tokens[:PROMPT], tokens[PROMPT:], lm.engine.padded_rows
    lm.prefill(prompt)
    alone = _one_by_one(lm, rest)
    cached = [rows[PROMPT : PROMPT + MOST].clone() for rows in lm.cache.rows]
    for count in range(2, MOST + 1):
        logits = lm.logits(rest[:count], TokenRows.chain(PROMPT, count).verified())
        _compare(f"{count} rows", logits, alone[:count], padded)
        for rows, wanted in zip(lm.cache.rows, cached, strict=True):
            written = rows[PROMPT : PROMPT + count]
            _compare(f"keys and values of {count} rows", written, wanted[:count], padded)
    tree = TokenRows.tree(PROMPT, TREE).verified()
    together = lm.logits(rest[: len(TREE)], tree)
    for row, path in zip(together, tree.paths(), strict=True):
        wanted = _one_by_one(lm, [rest[node] for node in path])[-1]
        _compare(f"a tree of {len(TREE)} rows", row, wanted, padded)
    # elsewhere kernels of ours never depend, whatever the context
    longer = padded or lm.dtype == torch.float32 or lm.engine.name == "cuda_graphs"
    if longer and (found := compare_rows(lm, PROBED)).differing:
        many = f"{found.differing} of {found.compared} rows, the first {found.first},"
        raise _not_strict(lm.dtype, lm.cache.rows[0].device, f"{many} verified", found.gap, padded)
    chain, times = TokenRows.chain(PROMPT, TIMED_ROWS), []
    for _ in range(5):
        began, lm.engine.padded_rows = time.perf_counter(), 0
        lm.logits(rest[:TIMED_ROWS], chain).argmax(-1).tolist()
        lm.engine.padded_rows = padded
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


def _where(lm: Proven, family: Family, tokens: list[int], share: float) -> str:
    """The first state of the engine that is not the model's."""
    calls, states = list[Call](), list[Tensor]()
    with ExitStack() as hooks:
        for layer in lm.model.get_submodule(family.layers_path):
            hooks.enter_context(recorded(calls, "", layer))
        _own(lm, tokens)
    own = [calls[0].input[0], *(call.result[0] for call in calls)]
    lm.run(lm.embed(tokens), TokenRows.chain(0, len(tokens)), hidden_states=states)
    for index, (found, wanted) in enumerate(zip(states[::2], own, strict=True)):
        if _gap(found, wanted) > share * float(wanted.abs().max()):
            if index:
                return f"the output of layer {index - 1}"
            return "the input of the first layer (positions or a factor beside the embedding?)"
    return "the head alone, after states that all agree,"


def _one_by_one(lm: Proven, tokens: list[int]) -> Tensor:
    """Logits [n, V] of a chain after the prompt, decoded as vanilla would."""
    rows = enumerate(tokens, PROMPT)
    return torch.cat([lm.logits([token], TokenRows.chain(at, 1)) for at, token in rows])


def _compare(what: str, found: Tensor, alone: Tensor, padded: int) -> None:
    if torch.equal(found, alone):
        return
    gap = float((found.float() - alone.float()).abs().max())
    raise _not_strict(found.dtype, found.device, what, gap, padded)


def _not_strict(
    dtype: torch.dtype, device: torch.device, what: str, gap: float, padded: int
) -> NotStrictError:
    instead = "use engine.strict=false, which classifies every divergence by its logit gap"
    if padded:
        reason = f"although every pass ran at {padded} rows, the kernels of this device add in"
        instead = f"{reason} another order: {instead}"
    elif dtype == torch.float32:
        instead = (
            "the products of float32 add in another order for one row and for several, and its "
            "tokens have to be vanilla's without strict: use engine.strict=false, or "
            "model.dtype=bfloat16"
        )
    else:
        instead = (
            f"the kernels of this machine add in another order when rows share a call: {instead}"
        )
    return NotStrictError(
        f"engine.strict=true cannot be kept on {device} in {str(dtype).removeprefix('torch.')}: "
        f"{what} at once differ from the same rows one by one by up to {gap:.3g}; {instead}"
    )
