"""Schemas of `conf/method` and `conf/stop`."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING


@dataclass
class Stop:
    _target_: str = "skipbench.decode.stopping.Fixed"
    max_steps: int = 8
    threshold: float = 0.0


@dataclass
class AdaptiveStop(Stop):
    _target_: str = "skipbench.decode.stopping.Adaptive"
    max_steps: int = 12
    threshold: float = 0.6
    target: float = 0.9
    step: float = 0.01
    beta1: float = 0.5
    beta2: float = 0.9
    every: int = 1
    first_beta1: str = "paper"
    full_length_guard: bool = False


@dataclass
class Method:
    _target_: str = MISSING
    name: str = MISSING


@dataclass
class SkipMethod(Method):
    stop: Any = field(default_factory=Stop)
    tree: list[int] = field(default_factory=list)


@dataclass
class FixedMethod(SkipMethod):
    _target_: str = "skipbench.methods.fixed.strategy"
    ratio: float = 0.5
    seed: int = 0


@dataclass
class ExplicitMethod(SkipMethod):
    _target_: str = "skipbench.methods.fixed.explicit"
    skip: str = MISSING


@dataclass
class SelfSD(SkipMethod):
    _target_: str = "skipbench.methods.self_sd.self_sd"
    skip: str = "stored"


@dataclass
class Swift(SkipMethod):
    _target_: str = "skipbench.methods.swift.SWIFT"
    ratio: float = 0.45
    steps: int = 1000
    beta: int = 25
    window: int = 32
    max_score: float = 0.95
    patience: int = 300
    protect_ends: bool = True
    initial: str = "ratio"
    context: str = "first"
    register: str = "rounded"
    bayes_draws: int = 200
    bayes_starts: int = 0
    bayes_restarts: int = 0
    adjust_below: float = 0.0
    seed: int = 0


@dataclass
class Clasp(SkipMethod):
    _target_: str = "skipbench.methods.clasp.CLaSp"
    ratio: float = 0.5
    interval: int = 64
    interval_unit: str = "rounds"
    start: str = "prompt"
    unit: str = "layer"


@dataclass
class KnapSpec(SkipMethod):
    _target_: str = "skipbench.methods.knapspec.KnapSpec"
    tau: float = 0.5
    interval: int = 64
    history: int = 5
    lengths: list[int] = field(default_factory=lambda: [1, 10])
    use_gamma: bool = False
    weight_cap: int | None = None
    budget: float = 0.5
    protect_ends: bool = False
    drop_first: bool = False
    start: str = "carry"
    latency: list[float] | None = None


@dataclass
class LayerSkip(SkipMethod):
    _target_: str = "skipbench.methods.layerskip.layerskip"
    exit_layer: int | None = None
    share: bool = True


@dataclass
class Del(Method):
    _target_: str = "skipbench.methods.del_.DEL"
    stop: Any = field(default_factory=Stop)
    max_length: int = 18
    omega: float = 0.95
    use_gamma: bool = True
    dynamic_threshold: bool = True
    count_rejected: bool = False


@dataclass
class Asd(SkipMethod):
    _target_: str = "skipbench.methods.asd.ASD"
    threshold: float = 0.9
    keep_first: int = 1
    keep_last: int = 1
    context_tokens: int = 32
    most: float = 1.0
    every: int = 0


@dataclass
class Parallel(Method):
    _target_: str = "skipbench.methods.parallel.Parallel"
    block_size: int = 8
    init: str = "last"
    window: str = "block"
    seed: int = 0


@dataclass
class Lookahead(Method):
    _target_: str = "skipbench.methods.lookahead.Lookahead"
    window: int = 7
    level: int = 5
    guesses: int = 7
    pool_from_prompt: bool = False
    repeat_hit: bool = False
    whole: bool = True
    seed: int = 0
    first_window: list[int] = field(default_factory=list)


@dataclass
class PromptLookup(Method):
    _target_: str = "skipbench.methods.prompt_lookup.PromptLookup"
    ngram: int = 3
    length: int = 10
    occurrence: str = "last"
    output: bool = True
