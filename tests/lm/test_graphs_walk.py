"""Random walks of calls on two models at once: `cuda_graphs` over its stand-ins, and an engine that
is right by construction. After every call results, states and cache rows must be equal.

Each call is drawn from a seed of its own and from the state at hand. A row of the cache is compared
from when both engines have written it until one may have padded a pass over it. Bits are compared
with `Anew`, which computes as the graphs do and remembers nothing; `fused`, which adds in another
order, tells what both would do wrong.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from random import Random
from typing import Any, NamedTuple

import pytest
import torch
from conftest import here, rest_slow, shallow
from fake_cuda import cpu_behind_cuda, moved, one_device
from torch import Tensor

from skipbench.decode.trial_passes import parallel_branches
from skipbench.draft_plan import DraftPlan
from skipbench.lm.cuda_graphs import buffers
from skipbench.lm.cuda_graphs.attention import MAX_ROWS
from skipbench.lm.cuda_graphs.buffers import GraphBuffers, row_step
from skipbench.lm.cuda_graphs.capture import CudaGraphCapture, EagerCapture
from skipbench.lm.cuda_graphs.device import DeviceGraphs
from skipbench.lm.cuda_graphs.engine import CudaGraphsEngine
from skipbench.lm.engine import Engine, Sublayer
from skipbench.lm.metadata import AttentionMetadata
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows

VOCABULARY, CAPACITY, MOST = 61, 100, 220  # MOST: cache rows that a walk grows to
ROWS = (1, 1, 1, 2, 3, 3, 5, 9, 12, 16, 17, 20, 33, 40)
PLANS = here((
    "attn:1;mlp:0", "mlp:0,1", "attn:0,1;mlp:0,1", "int8", "int8;mlp:0", "int8;attn:0",
))  # fmt: skip


class Mismatch(AssertionError):
    """The two engines differ."""


class Walk:
    """The state of a walk.

    Args:
        lms: `cuda_graphs`, and the other.
        tolerance: of a difference, against 1 + the largest number; 0 where bits have to be equal.
        faults: lines on what else was seen to be wrong, such as the journal's of `fake_cuda`.
    """

    def __init__(
        self, lms: tuple[LM, LM], tolerance: float, faults: Callable[[], list[str]] = list
    ) -> None:
        assert lms[0].engine.name == "cuda_graphs"
        self.lms, self.tolerance, self.faults = lms, tolerance, faults
        self.layers, self.sublayers = lms[0].layers, lms[0].sublayers
        texts = [DraftPlan.parse(text, self.layers) for text in PLANS]
        everything = DraftPlan.of(self.layers, range(self.sublayers))
        self.plans = [None, DraftPlan.of(self.layers), *texts, everything]
        self.capacity = 0
        self.grow(Random(0))

    def __call__(self, name: str, seed: int) -> None:
        getattr(self, name)(Random(seed))
        for layer, valid in enumerate(self.valid):
            at = valid.nonzero().flatten()
            rows = [lm.cache.rows[layer].to("cpu")[at] for lm in self.lms]
            self.equal(rows, f"{name}: cache rows of layer {layer}")
        if lines := self.faults():
            raise Mismatch(lines[0])

    # What is compared, and what may be read.

    def equal(self, pair: Any, what: str) -> None:
        found, wanted = (t.to("cpu").float() for t in pair)
        if found.shape != wanted.shape:
            raise Mismatch(f"{what}: shapes {tuple(found.shape)} and {tuple(wanted.shape)}")
        finite = wanted[wanted.isfinite()].abs()
        within = self.tolerance * (1 + float(finite.max() if len(finite) else 0))
        if not bool((found.eq(wanted) | ((found - wanted).abs() <= within)).all()):
            raise Mismatch(f"{what}: differs by {float((found - wanted).abs().max()):.3g}")

    def states(self, pair: Any, what: str) -> None:
        for number, both in enumerate(zip(*pair, strict=True)):
            self.equal(both, f"{what}, state {number}")

    def both(self, call: Callable[[LM], Any]) -> list[Any]:
        return [call(lm) for lm in self.lms]

    @property
    def length(self) -> int:
        return self.lms[1].cache.length

    def attends(self, plan: DraftPlan | None, first: int, last: int) -> list[int]:
        """Layers whose attention runs."""
        skipped = plan.skipped if plan else ()
        return [i for i in range(self.layers) if first <= 2 * i < last and 2 * i not in skipped]

    def can(self, rows: TokenRows, layers: Iterable[int]) -> bool:
        """Whether the rows fit, and these layers have what they read."""
        fits = 0 <= rows.context_len <= rows.start and rows.end <= self.capacity
        return fits and all(bool(self.valid[i, : rows.context_len].all()) for i in layers)

    def wrote(self, rows: TokenRows, layers: Iterable[int]) -> None:
        padded = row_step(rows.rows) if rows.rows <= MAX_ROWS else rows.rows
        for i in layers:
            self.valid[i, rows.start : rows.start + padded] = False
            self.valid[i, rows.start : rows.end] = True

    def tokens(self, r: Random, count: int) -> list[int]:
        return [r.randrange(VOCABULARY) for _ in range(count)]

    def drawn(self, r: Random) -> TokenRows:
        """Rows of any form somewhere behind or before the end of the text."""
        n, length = r.choice(ROWS), self.length
        match r.choice(["chain", "chain", "tree", "branches", "late", "scratch"]):
            case "chain":
                return TokenRows.chain(max(0, length - r.choice([0, 0, 0, 1, 4])), n)
            case "tree":
                parent = (-1, *(r.randrange(-1, i) for i in range(1, n)))
                return TokenRows.tree(length, parent)
            case "late":
                return TokenRows.chain(length, n, context_len=max(0, length - r.randrange(1, 30)))
            case "branches":
                each, at = r.choice([1, 1, 2, 3]), length + r.choice([0, 0, 5])
                seen = max(0, length - r.randrange(20))
                return TokenRows.branches(at, seen, max(1, n // each), each)
        return TokenRows.chain(length + r.randrange(1, 9), n, context_len=length)

    # The calls.

    def prefill(self, r: Random) -> None:
        text = self.tokens(r, r.choice([2, 5, 12, 30, 60, 90]))
        self.equal(self.both(lambda lm: lm.prefill(text)), "prefill")
        self.valid[:] = False
        self.valid[:, : len(text)] = True

    def logits(self, r: Random) -> None:
        """A pass, of which some rows may be accepted."""
        rows, plan = self.drawn(r), r.choice([None, None, *self.plans])
        layers = self.attends(plan, 0, self.sublayers)
        if not self.can(rows, layers):
            return
        tokens, what = self.tokens(r, rows.rows), f"logits of {rows} by {plan}"
        kept: Any = ([], []) if r.random() < 0.25 else (None, None)
        found = [lm.logits(tokens, rows, plan, k) for lm, k in zip(self.lms, kept, strict=True)]
        self.equal(found, what)
        if kept[0] is not None:
            self.states(kept, what)
        self.wrote(rows, layers)
        path = r.choice(rows.paths())
        full = plan is None and rows.start == rows.context_len == self.length
        if full and self.length + len(path) < self.capacity - 3 and r.random() < 0.5:
            self.both(lambda lm: lm.cache.keep([rows.start + node for node in path]))
            if path != list(range(len(path))):
                self.valid[:, rows.start + len(path) :] = False

    def rollback(self, r: Random) -> None:
        length = max(2, self.length - r.randrange(1, 40))
        for lm in self.lms:
            lm.cache.length = length

    def draft(self, r: Random) -> None:
        """A chain step by step, the first sub-layers ahead of the others; often not taken."""
        plan, ahead, count = r.choice(self.plans), r.choice([0, 0, 1, 2]), r.choice([2, 5, 12])
        layers = self.attends(plan, 0, self.sublayers)
        for step in range(count):
            rows = TokenRows.chain(self.length + step, 1)
            if not self.can(rows, layers):
                return
            (token,), what = self.tokens(r, 1), f"draft step {step} by {plan}, {ahead} ahead"
            metadata = self.both(lambda lm, rows=rows: lm.metadata(rows))
            hidden = self.both(lambda lm, token=token: lm.embed([token]))
            runs = list(zip(self.lms, metadata, strict=True))
            if ahead:
                hidden = [
                    lm.run(h, m, plan, last=ahead) for (lm, m), h in zip(runs, hidden, strict=True)
                ]
                self.wrote(rows, self.attends(plan, 0, ahead))
                if r.random() < 0.15:
                    return
                if r.random() < 0.1:  # captures between two parts of a pass
                    self.both(lambda lm: lm.engine.capture_ahead(self.length, self.length + 20))
            hidden = [lm.run(h, m, plan, ahead) for (lm, m), h in zip(runs, hidden, strict=True)]
            pair = [lm.head(h, plan) for lm, h in zip(self.lms, hidden, strict=True)]
            self.equal(pair, what)
            self.wrote(rows, layers)

    def parts(self, r: Random) -> None:
        """A pass in parts by one metadata, other passes in between; an MLP over another number of
        rows; states of a borrowed input.
        """
        rows, plan = self.drawn(r), r.choice(self.plans)
        if not rows.start or not self.can(rows, range(self.layers)):
            return
        metadata = self.both(lambda lm: lm.metadata(rows))
        tokens, first = self.tokens(r, rows.rows), 0
        hidden = self.both(lambda lm: lm.embed(tokens))
        while first < self.sublayers:
            last = min(self.sublayers, first + r.choice([1, 1, 2, 3, self.sublayers]))
            what = f"sub-layers {first}..{last} of {rows} by {plan}"
            kept: Any = ([], []) if r.random() < 0.3 else (None, None)
            hidden = self._part(hidden, metadata, plan, first, last, kept)
            self.equal(hidden, what)
            self.wrote(rows, self.attends(plan, first, last))
            if kept[0] is not None:
                self.states(kept, what)
            if r.random() < 0.2:  # something else comes in between
                hidden = [state.clone() for state in hidden]
                self._between(r, metadata, rows)
            first = last

    def _part(
        self,
        hidden: list[Tensor],
        metadata: list[AttentionMetadata],
        plan: DraftPlan | None,
        first: int,
        last: int,
        kept: Any,
    ) -> list[Tensor]:
        given = zip(self.lms, hidden, metadata, kept, strict=True)
        return [lm.run(h, m, plan, first, last, k) for lm, h, m, k in given]

    def _between(self, r: Random, metadata: list[AttentionMetadata], rows: TokenRows) -> None:
        if r.random() < 0.5:
            other = TokenRows.chain(rows.end, r.choice([1, 2, rows.rows]), rows.context_len)
            if other.end > self.capacity:
                return
            token_ids, kept = self.tokens(r, other.rows), (None, None)
            new = self.both(lambda lm: lm.metadata(other))
            hidden = self.both(lambda lm: lm.embed(token_ids))
            self.equal(self._part(hidden, new, None, 0, 2, kept), f"a pass between: {other}")
            self.wrote(other, [0])
        else:
            token_ids, mlp = self.tokens(r, r.randrange(1, 20)), 2 * r.randrange(self.layers) + 1
            hidden = self.both(lambda lm: lm.embed(token_ids))
            found = self._part(hidden, metadata, None, mlp, mlp + 1, (None, None))
            self.equal(found, f"an MLP over {len(token_ids)} rows, by metadata of {rows.rows}")

    def branches(self, r: Random) -> None:
        """As the searches of CLaSp and KnapSpec do."""
        tokens, size, count = r.choice([1, 1, 2, 3, 8]), r.choice([1, 1, 2]), r.randrange(1, 12)
        length, plan = self.length, r.choice([None, None, self.plans[-3]])
        room = length > tokens and self.capacity - length >= tokens
        if not room or not bool(self.valid[:, :length].all()):
            return
        runs = self.both(lambda lm: parallel_branches(lm, tokens, count, size, plan))
        hidden = len(self.lms[1].embed([0])[0])
        for _ in range(r.randrange(1, 5)):
            unit, n = r.randrange(self.sublayers // size), r.randrange(1, 14)
            generator = torch.Generator().manual_seed(r.randrange(9999))
            states = torch.randn(n, tokens, hidden, generator=generator)
            placed = [states.to(lm.input_device) for lm in self.lms]
            pair = [run(unit, x) for run, x in zip(runs, placed, strict=True)]
            self.equal(pair, f"{n} alternatives, {count} at once, unit {unit} of {size}")
        self.valid[:, length:] = False

    def early(self, r: Random) -> None:
        """A verification whose first rows have passed the early sub-layers."""
        at, n = self.length, r.randrange(1, 20)
        done, first = r.randrange(1, n + 1), r.randrange(1, self.sublayers)
        rows = TokenRows.chain(at, n).verified()
        if not self.can(rows, range(self.layers)):
            return
        tokens, states = self.tokens(r, n), ([], [])
        for node in range(done):
            one = TokenRows.chain(at + node, 1)
            for lm, kept in zip(self.lms, states, strict=True):
                kept.append([])
                lm.run(lm.embed([tokens[node]]), one, last=first, hidden_states=kept[-1])
        pair = [lm.score(tokens, rows, kept) for lm, kept in zip(self.lms, states, strict=True)]
        self.equal(pair, f"score of {n}, {done} of them early to {first}")
        if done < n:
            self.wrote(TokenRows.chain(at + done, n - done), range(self.layers))
        self.wrote(rows, range(self.layers))

    def ahead(self, r: Random) -> None:
        at = r.randrange(1, self.capacity)
        self.both(lambda lm: lm.engine.capture_ahead(at, min(at + 30, self.capacity)))

    def grow(self, r: Random) -> None:
        """A larger cache, which loses its rows."""
        self.capacity = min(MOST, self.capacity + r.randrange(8, 40)) if self.capacity else CAPACITY
        self.both(lambda lm: lm.allocate(self.capacity))
        if self.lms[0].engine.name != "cuda_graphs":
            raise Mismatch(self.lms[0].notes()[-1])
        self.valid = torch.zeros(self.layers, self.capacity + MAX_ROWS, dtype=torch.bool)
        if self.length == 0:
            self.prefill(r)


WEIGHTS = {
    "logits": 12, "draft": 6, "parts": 10, "branches": 5, "rollback": 4, "prefill": 2, "early": 2,
    "ahead": 1, "grow": 0.3,
}  # fmt: skip


@torch.inference_mode()
def walk(walker: Walk, steps: int, seed: int) -> None:
    """Raises `Mismatch` with the number and seed of the call after which the engines differ."""
    r = Random(seed)
    for step in range(steps):
        (name,), own = r.choices(list(WEIGHTS), list(WEIGHTS.values())), r.randrange(1 << 30)
        name = "grow" if step == steps * 2 // 3 else name  # in every walk once
        try:
            walker(name, own)
        except Mismatch as error:
            raise Mismatch(f"call {step} of seed {seed}, {name}({own}): {error}") from None


NEAR = 1e-3
"""Of `fused`, whose sums are in another order, so that an activation in 8 bits may round the other
way: 1e-4 is met by most walks and not by all."""


class Anew(CudaGraphsEngine):
    """Computes each sub-layer over buffers made for it alone: nothing is left of an earlier pass,
    and no graph is captured or replayed.
    """

    result_is_borrowed = False

    def made_of(self, layers: Any, eager: list[Sublayer], variant: str = "") -> list[Sublayer]:
        super().made_of(layers, eager, variant)
        (part,) = self.graphs.values()
        return [alone(part, variant, s, run) for s, run in enumerate(eager)]

    def run(self, *given: Any) -> Tensor:
        return Engine.run(self, *given)

    def capture_ahead(self, start: int, end: int) -> None:
        pass


def alone(part: DeviceGraphs, variant: str, s: int, eager: Sublayer) -> Sublayer:
    def run(hidden: Tensor, metadata: AttentionMetadata) -> Tensor:
        key = part.key_of(metadata, variant)
        if key is None or len(hidden) != metadata.rows:
            return eager(hidden, metadata)
        sizes = key.rows, part.hidden, part.cache.head_dim
        made = GraphBuffers(*sizes, part.cache.dtype, part.capture.device)
        made.load(metadata.token_rows)
        made.input_preparation(*part.rope)()
        out = made.view(metadata.rows)
        out.copy_(hidden)
        part.blocks[variant][s].work(made, key.size, key.own)()
        return out

    return run


class Full(EagerCapture):
    """Memory for graphs ends again and again, for a while."""

    count = 0

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self.count += 1
        if self.count % 150 > 140:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().capture(work)


class Tier(NamedTuple):
    """A kind of walk.

    Args:
        steps: calls per day.
        exact: bits are those of `Anew`; else numbers are near those of `fused`.
        tape: `fake_cuda`: what Python looked up at capture is frozen.
        full: memory for graphs ends again and again.
    """

    family: str
    steps: int
    exact: bool = False
    tape: bool = False
    full: bool = False


TIERS = [
    Tier("llama", 75, exact=True),
    Tier("llama", 140),
    Tier("mistral", 90, exact=True),
    Tier("qwen3", 90),
    Tier("qwen2", 70, full=True),
    Tier("llama", 40, tape=True),
]
CASES = [(number, seeds) for number in range(len(TIERS)) for seeds in (range(3, 4), range(4, 203))]
DAILY = [(0, range(3, 4)), (4, range(3, 4)), (5, range(3, 4))]


@contextlib.contextmanager
def walker(tier: Tier) -> Iterator[Walk]:
    """Two models on their engines, as a tier says."""
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch().context())
        patch.setattr(buffers, "FIRST", 32)
        with contextlib.suppress(ImportError):  # its own test takes minutes: test_int8_triton.py
            patch.setattr("skipbench.contrib.lowbit.copy.int8_fault", lambda like: None)
        model, capture = shallow(tier.family), Full if tier.full else EagerCapture
        faults: Callable[[], list[str]] = list
        if tier.tape:
            journal = stack.enter_context(cpu_behind_cuda())
            model, capture = moved(model, one_device), CudaGraphCapture
            faults = partial(journal.lines, "order", "graph", "capture")
        graphs = LM(model, partial(CudaGraphsEngine, capture=capture))
        anew = partial(Anew, capture=EagerCapture)
        other = LM(shallow(tier.family), anew if tier.exact else "fused")
        made = Walk((graphs, other), 0.0 if tier.exact else NEAR, faults)
        if tier.tape:  # Triton's interpreter would multiply in 8 bits
            made.plans = [plan for plan in made.plans if plan is None or not plan.variant]
        yield made


@pytest.mark.parametrize(("tier", "seeds"), rest_slow(CASES, DAILY.__contains__), ids=str)
def test_graphs_compute_what_an_engine_without_memory_computes(tier: int, seeds: range) -> None:
    """In the slow tier 96,000 calls, about a quarter of an hour."""
    for seed in seeds:
        with walker(TIERS[tier]) as made:
            walk(made, TIERS[tier].steps, seed)
