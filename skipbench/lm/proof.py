"""Proofs at load: a traced layer has the logits of the model's own forward pass, and verified rows
have the bits that each has alone.
"""

import itertools
import random
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skipbench.errors import NotStrictError, SkipbenchError
from skipbench.lm.layer import Family
from skipbench.lm.rows import TokenRows
from skipbench.lm.traced import TOKENS, Call, probe_tokens, recorded

COMMITTED = 8  # tokens before the chain and the tree of `prove`
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}
LOW_PRECISION = 0.05
"""Largest difference of two logits, as a share of the largest logit, by precision."""
CONTEXTS = (24, 57, 250)
"""Committed tokens before the rows; rows after the last lie in two of the blocks of a kernel."""
MOST_NODES = 16
PROBED = sum(range(2, MOST_NODES + 1))  # rows: every number of them once


@torch.inference_mode()
def prove(lm: Any, family: Family) -> str:
    """Runs a short random prompt, and a tree after a part of it (the rest of the prompt as a chain,
    and a branch), and compares every logit with the model's own forward pass. Returns a line for
    the notes; raises SkipbenchError with the first place where they differ.
    """
    tokens = probe_tokens(lm.model)[0].tolist()
    committed, rest = tokens[:COMMITTED], tokens[COMMITTED:]
    texts = [tokens, [*committed, *reversed(rest)]]
    wanted, branch = _own(lm, texts)  # the branch is one token, what follows it is not compared
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
    parent = (*range(-1, len(rest) - 1), -1)
    tree = lm.logits([*rest, rest[-1]], TokenRows.tree(COMMITTED, parent))
    own = torch.stack([*wanted[COMMITTED:], branch[COMMITTED]])
    where = f"after {COMMITTED} committed tokens, where the prompt alone agrees"
    gaps.append(check(_gap(tree, own), f"a tree {where}"))
    return (
        f"model family {name} has no row: its layer was traced by hooks and proven against the "
        f"model's own forward pass over {TOKENS} tokens and a tree (logits differ by "
        f"{max(gaps):.1g} at most, of {float(wanted.abs().max()):.3g})"
    )


class RowBits(NamedTuple):
    """Rows that were verified together, compared with the same rows alone.

    Attributes:
        compared, differing: rows, and those of which a bit of the logits differs.
        first: the first row that differs, in words; empty without one.
        gap: the largest difference of a logit.
    """

    compared: int
    differing: int
    first: str
    gap: float


@torch.inference_mode()
def compare_rows(lm: Any, rows: int = 400, contexts: Sequence[int] = CONTEXTS) -> RowBits:
    """Verifies chains and trees of 2 to 16 random tokens after contexts of random tokens, at least
    `rows` rows in all, and each of them in a pass of its own, as vanilla would.

    The model may be strict or not. Its cache is overwritten, and grows to the longest context.
    """
    draw, words = random.Random(0), int(lm.config.vocab_size)
    compared, differing, first, gap, counts = 0, 0, "", 0.0, list[int]()
    contexts = [n for n in contexts if n + MOST_NODES <= lm.max_positions]
    lm.allocate(max(contexts) + MOST_NODES)
    for context in itertools.cycle(contexts):
        if compared >= rows:
            break
        lm.prefill([draw.randrange(words) for _ in range(context)])
        for _ in range(5):
            counts = counts or draw.sample(range(2, MOST_NODES + 1), MOST_NODES - 1)
            count = counts.pop()
            tokens = [draw.randrange(words) for _ in range(count)]
            tree = draw.random() < 0.5
            parent = tuple(draw.randrange(-1, n) if n else -1 for n in range(count))
            together = TokenRows.tree(context, parent) if tree else TokenRows.chain(context, count)
            found = lm.logits(tokens, together.verified()).clone()
            for path in sorted(together.paths()):  # each behind those that the cache holds by then
                row, at = path[-1], context + len(path) - 1
                alone = lm.logits([tokens[row]], TokenRows.chain(at, 1).verified())[0]
                compared += 1
                if not torch.equal(found[row], alone):
                    differing += 1
                    gap = max(gap, float((found[row].float() - alone.float()).abs().max()))
                    kind = "a tree of " if tree else ""
                    first = first or f"row {row} of {kind}{count} rows after {context} tokens"
    return RowBits(compared, differing, first, gap)


def self_test(lm: Any) -> None:
    """Raises NotStrictError where a verified row has other bits than alone, by `compare_rows`."""
    if (found := compare_rows(lm, PROBED)).differing:
        dtype = str(lm.dtype).removeprefix("torch.")
        raise NotStrictError(
            f"engine.strict=true cannot be kept on {lm.cache.devices[0]} in {dtype}: "
            f"{found.differing} of {found.compared} rows that were verified together, the first "
            f"{found.first}, differ from the same rows one by one by up to {found.gap:.3g}; use "
            "engine.strict=false, which classifies every divergence by its logit gap"
        )


def _own(lm: Any, texts: list[list[int]]) -> Tensor:
    """Logits [texts, T, V] of the model's own forward pass."""
    device = lm.model.get_input_embeddings().weight.device
    logits: Tensor = lm.model(torch.tensor(texts, device=device), use_cache=False).logits
    return logits


def _gap(found: Tensor, wanted: Tensor) -> float:
    gap = float((found.to(wanted.device) - wanted).abs().max())
    return gap if gap == gap else float("inf")


def _where(lm: Any, family: Family, tokens: list[int], share: float) -> str:
    """The first state of the engine that is not the model's."""
    calls, states = list[Call](), list[Tensor]()
    with ExitStack() as hooks:
        for layer in lm.model.get_submodule(family.layers_path):
            hooks.enter_context(recorded(calls, "", layer))
        _own(lm, [tokens])
    own = [calls[0].input[0], *(call.result[0] for call in calls)]
    lm.run(lm.embed(tokens), TokenRows.chain(0, len(tokens)), hidden_states=states)
    for index, (found, wanted) in enumerate(zip(states[::2], own, strict=True)):
        if _gap(found, wanted) > share * float(wanted.abs().max()):
            if index:
                return f"the output of layer {index - 1}"
            return "the input of the first layer (positions or a factor beside the embedding?)"
    return "the head alone, after states that all agree,"
