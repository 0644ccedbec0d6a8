"""LEAP: Zone-Aware MCTS for LLM Self-Speculative Decoding (Zheng and Liu, ICML 2026).

One pass over the end of the prompt measures how much each layer changes the state (R) and how much
it adds to the accepted length (gain), which divides the layers into three zones: only middle ones
may be skipped. Layers of one zone make groups, and Monte Carlo tree search decides group by group.
Every round tries the set of one iteration; after the last one the best set drafts until the prompt
ends. The next prompt starts anew.

REIMPLEMENTATION of the published code (github.com/leiquanzheng/LEAP at fc7f8d2), which holds the
zones and the search and no decoding loop; the paper's text was not available, only its abstract.
Constants are the code's; how a set is tried and how the draft ends are OURS, CONSTANTS UNVERIFIED.

| published code | here | |
|---|---|---|
| R_l | `change[l]` | norm of a layer's change of the state over the norm of its input |
| Delta L | `gain[l]` | expected accepted length with an exit after l, less that before l |
| zones 1, 2, 3 | `zones_of` | executed; executed or skipped; executed (the code: or repeated) |
| layer ratio | `kept` | share of the layers that the draft runs |
| UCB | `Search._ucb` | |
| reward | `reward` | by speedup and ratio |

Deviations from the published code, with their switches: docs/methods/leap.md.
"""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Annotated

import numpy as np
import torch
from msgspec import Meta

from skipbench.config.configurable import Positive
from skipbench.decode.draft import Draft, State, Verification
from skipbench.decode.drafting import SkipMethod
from skipbench.decode.trial_passes import recent_states
from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError

BAND = 0.05  # of the ratio about its target, either way
MAX_REWARD, HEAVY = 5.0, 0.8  # rewards end there; the worst one for a ratio above this
PENALTY = 0.3  # weight of the ratio in a node's bound


def signals(state: State, positions: int) -> tuple[list[float], list[float]]:
    """R and the gain of every layer over the last `positions` tokens in the cache."""
    lm, states = state.lm, recent_states(state, positions)
    layers = [x.float() for x in states[::2]]  # before the first layer and after every one
    target = lm.head(states[-1]).float().softmax(-1)
    change, lengths = [], []
    for (before, after), draft in zip(pairwise(layers), states[2::2], strict=True):
        change.append((after - before).norm() / (before.norm() + 1e-8))
        q, token = lm.head(draft).float().softmax(-1).max(-1, keepdim=True)
        alpha = (target.gather(-1, token) / (q + 1e-10)).clamp(max=1.0)
        lengths.append(alpha.squeeze(-1).cumprod(0).sum())
    length = torch.stack(lengths).double()
    gain = length.diff(prepend=length.new_zeros(1))
    r, gains = torch.stack((torch.stack(change).double(), gain)).tolist()
    return r, gains


def zones_of(
    change: Sequence[float], gain: Sequence[float], ends: tuple[int, int], percentile: float
) -> list[int]:
    """Zone of every layer; the first and last `ends` layers are of zones 1 and 3."""
    layers, first, last = len(change), ends[0], len(change) - ends[1]
    much, more = np.percentile(change, percentile), np.percentile(gain, percentile)
    early = np.asarray(change) > much
    final = (np.asarray(gain) > more) & (np.arange(layers) >= int(0.25 * layers))
    # of both, the one that is exceeded by the larger factor
    final &= ~early | (np.divide(gain, more + 1e-10) > np.divide(change, much + 1e-10))
    zones = np.where(final, 3, np.where(early, 1, 2))
    zones[:first], zones[last:] = 1, 3
    zones[first:last] = _smooth(zones.tolist())[first:last]
    return list(map(int, zones))


def _smooth(zones: Sequence[int]) -> list[int]:
    """Single layers of zones 2 and 3 join a neighbour: one of zone 1, else the longer run."""
    runs = [(0, 0), *((zone, len(list(same))) for zone, same in groupby(zones)), (0, 0)]
    smooth: list[int] = []
    for before, (zone, length), after in zip(runs, runs[1:], runs[2:], strict=False):
        if length == 1 and zone != 1 and len(runs) > 3:
            joined = after if after[1] > 1 >= before[1] or not before[1] else before
            zone = 1 if 1 in (before[0], after[0]) else joined[0]
        smooth += [zone] * length
    for i in [*range(1, len(smooth) - 1)] * 2:
        if smooth[i - 1] == smooth[i + 1]:
            smooth[i] = smooth[i - 1]
    return smooth


def group(zones: Sequence[int], change: Sequence[float], gain: Sequence[float]) -> list[list[int]]:
    """Groups runs of one zone; zone 2 is cut before and after spikes, and at a maximum size."""
    middle = [g for g, zone in zip(gain, zones, strict=True) if zone == 2]
    size = max(3, len(middle) // 6)
    high = max(0.08, float(np.percentile(middle, 85))) if middle else 0.0
    spike = [g > high or (i and change[i] > 1.3 * change[i - 1]) for i, g in enumerate(gain)]
    groups = [[0]]
    for i in range(1, len(zones)):
        cut = spike[i] != spike[i - 1] or (not spike[i] and len(groups[-1]) >= size)
        if zones[i - 1] != zones[i] or (zones[i] == 2 and cut):
            groups.append([])
        groups[-1].append(i)
    return groups


def reward(speedup: float, kept: float, target: float) -> float:
    """Reward of a candidate whose round was `speedup` times as fast as vanilla."""
    if kept > HEAVY:
        return -MAX_REWARD
    value = (speedup - 1) * (1.2 if speedup > 1.4 else 1.0)
    if speedup < 1.05:
        value = -0.2 if speedup >= 1 else 4 * (speedup - 1)
    off = kept - target
    if abs(off) <= BAND + 1e-9:
        value += 0.6 * (1 - abs(off) / (2 * BAND))
    else:
        value -= 8 * (off - BAND) if off > 0 else 3 * (-off - BAND)
    return max(-MAX_REWARD, min(MAX_REWARD, value))


Path = tuple[bool, ...]
"""A node of the search: for the first groups, whether each is skipped."""


class Search:
    """MCTS over the groups; a node at depth d has decided on the first d of them."""

    def __init__(
        self, groups: list[list[int]], zones: Sequence[int], target: float, weight: float, seed: int
    ) -> None:
        """`target`: wanted share of layers to keep; `weight`: of exploration in the bound."""
        self.layers, self.target, self.weight = len(zones), target, weight
        self.groups = [(layers, zones[layers[0]] == 2) for layers in groups]
        self._draws, self._children = random.Random(seed), dict[Path, list[Path]]()
        self._visits, self._total = Counter[Path](), defaultdict[Path, float](float)
        self.tried: list[tuple[float, tuple[int, ...]]] = []  # reward and layers left out

    def left_out(self, path: Path) -> tuple[int, ...]:
        """Layers that a path skips; a group keeps its first layer unless it has no other."""
        pairs = zip(self.groups, path, strict=False)
        return tuple(i for (layers, _), skip in pairs if skip for i in layers[1:] or layers)

    def kept(self, skipped: Collection[int], of: int | None = None) -> float:
        """Share of the layers that run; `of`: the first so many groups."""
        return 1 - len(skipped) / max(1, sum(len(layers) for layers, _ in self.groups[:of]))

    def _ucb(self, path: Path) -> float:
        """Upper confidence bound, less a penalty where the ratio so far is off."""
        if not (visits := self._visits[path]):
            return math.inf
        off = abs(self.kept(self.left_out(path), len(path)) - self.target)
        penalty = 2 * (off - BAND) if off > BAND else 0.5 * off
        explored = self.weight * math.sqrt(math.log(self._visits[path[:-1]]) / visits)
        return self._total[path] / visits + explored - PENALTY * penalty

    def next(self) -> tuple[Path, tuple[int, ...]]:
        """Selection, expansion and rollout: the node to credit, and the candidate's layers."""
        path: Path = ()
        while path in self._children:
            bounds = [(self._ucb(child), child) for child in self._children[path]]
            high = max(bound for bound, _ in bounds) - 1e-6  # ties, up to rounding
            path = self._draws.choice([child for bound, child in bounds if bound >= high])
        if len(path) < len(self.groups):
            choices = (False, True) if self.groups[len(path)][1] else (False,)
            self._children[path] = [(*path, skip) for skip in choices]
            path = self._draws.choice(self._children[path])
        executes, rest = max(0.1, self.target - 0.05), self.groups[len(path) :]
        rollout = [self._draws.random() >= executes and may_skip for _, may_skip in rest]
        return path, self.left_out((*path, *rollout))

    def credit(self, path: Path, skipped: tuple[int, ...], value: float) -> None:
        """Backpropagation of the reward of a candidate."""
        self.tried.append((value, skipped))
        for depth in range(len(path) + 1):
            self._visits[path[:depth]] += 1
            self._total[path[:depth]] += value

    def best(self) -> tuple[int, ...]:
        """The best candidate in the band; else the best of all, brought into it from the centre."""
        near = [t for t in self.tried if abs(self.kept(t[1]) - self.target) <= BAND + 1e-9]
        skipped = set(max(near or self.tried, key=itemgetter(0))[1])
        free = [i for layers, may_skip in self.groups if may_skip for i in layers]
        free.sort(key=lambda i: abs(i - self.layers / 2))
        for i in free:
            if self.kept(skipped) > self.target + BAND + 1e-9:
                skipped.add(i)
        for i in reversed(free):
            if self.kept(skipped) < self.target - BAND - 1e-9:
                skipped.discard(i)
        return tuple(sorted(skipped))


class LEAP(SkipMethod):
    """Whole layers skipped, by tree search over groups of redundant ones.

    >>> group([1, 1, 2, 2, 3], change=[0.1] * 5, gain=[0.0] * 5)
    [[0, 1], [2, 3], [4]]
    >>> reward(speedup=1.2, kept=0.45, target=0.45) > reward(speedup=1.2, kept=0.6, target=0.45)
    True
    """

    ratio: Annotated[float, Meta(ge=0.05, le=0.75)] = 0.45
    """Target share of the layers that the draft keeps, 0.05 to 0.75; +-0.05 is as good."""
    iterations: Positive = 5
    """Rounds per prompt in which a candidate is tried; the published code has 40."""
    exploration: Annotated[float, Meta(ge=0)] = 3.0
    """Weight of the exploration in the search's bound, 0 or more."""
    positions: Positive = 8
    """Tokens at the end of the prompt from which redundancy is measured."""
    percentile: Annotated[float, Meta(ge=0, le=100)] = 70.0
    """Of a signal over the layers, 0 to 100, above which it makes a layer early or final."""
    keep_first: Positive = 3
    """Layers at the start that are never skipped."""
    keep_last: Positive = 2
    """Layers at the end that are never skipped; together fewer than all."""
    bonus: bool = True
    """Counts the target's bonus token of a round in its speedup."""
    seed: int = 0
    """Seed of the search, the same for every prompt."""

    needs_latency, logged = True, ("reward",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep_first + self.keep_last >= self.layers:
            raise SkipbenchError(
                f"leap: keep_first + keep_last = {self.keep_first + self.keep_last} keeps all "
                f"{self.layers} layers; lower them"
            )

    def begin(self, state: State) -> None:
        """Divides the layers into zones and groups by their redundancy in the prompt."""
        super().begin(state)
        change, gain = signals(state, self.positions)
        zones = zones_of(change, gain, (self.keep_first, self.keep_last), self.percentile)
        groups = group(zones, change, gain)
        self.search = Search(groups, zones, self.ratio, self.exploration, self.seed)
        self._length = state.lm.cache.length
        self.log |= {"zones": ["".join(map(str, zones))], "groups": [groups]}
        self._choose()

    def _choose(self) -> None:
        """The set of the next round: the next candidate, or, once the search is over, the best."""
        if len(self.search.tried) < self.iterations:
            self._path, self._candidate = self.search.next()
        else:
            self._candidate = self.search.best()
        self.skip = self.cheaper(DraftPlan.of_layers(self.layers, self._candidate))

    def propose(self, state: State, budget: int) -> Draft:
        # a full-model draft would only repeat the verification
        return Draft() if self.skip.whole else super().propose(state, budget)

    def adapt(self, state: State, verification: Verification) -> None:
        super().adapt(state, verification)
        if len(self.search.tried) < self.iterations:
            tokens = len(verification.accepted) + self.bonus
            passes = 1 + verification.draft.steps * state.lm.prices.step_price(
                self._length, self.skip
            )
            value = reward(tokens / passes, self.search.kept(self._candidate), self.ratio)
            self.search.credit(self._path, self._candidate, value)
            self.note(reward=round(value, 5))
            self._choose()
