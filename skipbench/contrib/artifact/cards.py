"""Acceptance cards: which drafts of a run were accepted, in the names of AIPerf and vLLM, without
the run's machine. `AcceptanceCard.samples` is what `project` replays with other prices.

Definitions, of trees too: docs/metrics.md.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from skipbench.errors import SkipbenchError
from skipbench.metrics.acceptance import conditional_acceptance, over, speculative_decoding
from skipbench.metrics.interval import Interval, paired_ratio_interval
from skipbench.runs.reading import Text, read_bytes, readable, strict_json
from skipbench.runs.record import Arm, Count, Round, Sample, Seconds
from skipbench.runs.run import Origin, Run


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request; the lists have an entry per verification."""

    request_id: str
    question: str  # shared by the turns of a conversation
    groups: dict[str, str] = {}
    prompt_tokens: Count
    completion_tokens: Count  # the prefill's among them
    completion_tokens_vanilla: Count
    per_step_drafted: list[Count]  # most tokens that could be accepted; of a tree its depth
    per_step_accepted: list[Count]
    per_step_nodes: list[Count] | None = None  # proposed tokens, if not the draft length: trees
    per_step_chain: list[Count] | None = None  # accepted first choices, if fewer
    skip_changes: list[tuple[Count, str]] = []  # sets, each with its first verification
    verified: list[list[Any]] = []  # properties of the verifications; as in a sample's trace

    @property
    def rounds(self) -> list[Round]:
        """All but the last emit what was accepted and the bonus; that one is cut."""
        drafted, accepted = self.per_step_drafted, self.per_step_accepted
        nodes, chain = self.per_step_nodes or drafted, self.per_step_chain or accepted
        emitted = [count + 1 for count in accepted[:-1]]
        emitted += [self.completion_tokens - 1 - sum(emitted)] if accepted else []
        return [*map(Round._make, zip(drafted, nodes, accepted, chain, emitted, strict=True))]


class Acceptance(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of a group, counted together."""

    category: str  # `all`, or GROUP=LABEL
    requests: int
    num_spec_tokens: int
    num_spec_steps: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    mean_acceptance_length: float  # 1 + accepted tokens per verification
    draft_acceptance_rate: float | None
    acceptance_histogram: list[int]  # verifications that accepted 0, 1, 2, ... tokens
    acceptance_histogram_by_draft_length: dict[int, list[int]]  # for length k its k + 1 counts
    conditional_acceptance: list[float]  # share of those that came to position i
    M: float  # emitted tokens per verification, outputs cut at their end
    M_ci95: Interval | None  # over other questions of this kind
    simulate: dict[str, dict[str, Any]]  # flags with which an engine accepts as many tokens


class Passes(msgspec.Struct, frozen=True, kw_only=True):
    """Time per verification, and of vanilla's host per token, in passes of vanilla there."""

    draft: float
    verify: float
    adapt: float
    other: float
    vanilla_other: float


class AcceptanceCard(msgspec.Struct, frozen=True, kw_only=True):
    """One method on one model and dataset; `acceptance` follows from `requests`."""

    method: Text
    model: Text
    dataset: Text
    layers: Count
    settings: dict[str, Any]  # dtype, architecture, tree: for prices by a datasheet
    origin: Origin
    acceptance: list[Acceptance]
    passes: Passes | None
    requests: list[Request]

    @property
    def samples(self) -> list[Sample]:
        """Rounds and sets of the run; a second is a pass of vanilla, and no token has an id."""
        return [_sample(i, request, self.passes) for i, request in enumerate(self.requests)]

    @property
    def run(self) -> Run:
        """What `project` needs of the run."""
        return Run(
            model=self.model,
            method=self.method,
            dataset=self.dataset,
            settings=self.settings,
            origin=self.origin,
            kept_samples=self.samples,
        )


def card_of(run: Run, layers: int, settings: dict[str, Any]) -> AcceptanceCard:
    """The card of a run's samples that did not fail.

    Args:
        layers: of the model, as it ran.
        settings: see `AcceptanceCard.settings`.

    Raises SkipbenchError for a run that drafted nothing, such as vanilla's.
    """
    requests = [_request(sample) for sample in run.sound]
    if not any(sum(request.per_step_drafted) for request in requests):
        raise SkipbenchError(f"{run.id} drafted nothing, so that it has no acceptance")
    return AcceptanceCard(
        method=run.method,
        model=run.model,
        dataset=run.dataset,
        layers=layers,
        settings=settings,
        origin=run.origin,
        acceptance=acceptances(requests),
        passes=_passes(run.sound),
        requests=requests,
    )


def read_cards(path: Path) -> list[AcceptanceCard]:
    """The cards of a file, one a line. Raises SkipbenchError for other content, or wrong sums."""
    with readable(path, "card RUN --json FILE writes acceptance cards"):
        lines = (read_bytes(path) or b"").splitlines()
        cards = [
            msgspec.convert(strict_json(line), AcceptanceCard, str_keys=True) for line in lines
        ]
        sums = [acceptances(card.requests) for card in cards]
    if not cards:
        raise SkipbenchError(f"{path} holds no acceptance cards; card RUN --json FILE writes them")
    for card, acceptance in zip(cards, sums, strict=True):
        if card.acceptance != acceptance:
            raise SkipbenchError(f"{path}: acceptance of {card.method} is not that of its requests")
    return cards


def acceptances(requests: Sequence[Request]) -> list[Acceptance]:
    """Of all requests, then of each label of each group."""
    labels = sorted({pair for request in requests for pair in request.groups.items()})
    parts = [(f"{k}={v}", [r for r in requests if r.groups.get(k) == v]) for k, v in labels]
    found = [("all", requests), *parts]
    return [_acceptance(name, part) for name, part in found if any(r.rounds for r in part)]


def _acceptance(category: str, requests: Sequence[Request]) -> Acceptance:
    rounds = [r for request in requests for r in request.rounds]
    counts = [(r.steps, r.accepted) for r in rounds]
    metrics = speculative_decoding(counts)
    M, ends = tokens_per_round(requests)
    return Acceptance(
        category=category,
        requests=len(requests),
        **metrics,
        conditional_acceptance=[there / came for came, there in conditional_acceptance(counts)],
        M=M,
        M_ci95=ends,
        simulate=simulation(
            metrics["mean_acceptance_length"],
            max(1, math.ceil(metrics["num_draft_tokens"] / len(rounds))),
        ),
    )


def tokens_per_round(requests: Sequence[Request]) -> tuple[float, Interval | None]:
    """M and its interval, by each question's influence on log M (the delta method)."""
    counts: dict[str, list[int]] = {}
    for request in requests:
        both = counts.setdefault(request.question, [0, 0])
        both[0] += request.completion_tokens - 1
        both[1] += len(request.per_step_accepted)
    tokens, rounds = map(sum, zip(*counts.values(), strict=True))
    M, n = tokens / rounds, len(counts)
    ratios = [M * math.exp(n * (t / tokens - r / rounds)) for t, r in counts.values()]
    return M, paired_ratio_interval(ratios)[1]


def simulation(mean_acceptance_length: float, draft_length: int) -> dict[str, dict[str, Any]]:
    """By engine: vLLM's `--speculative-config`, and the variables of SGLang and TensorRT-LLM.

    Args:
        mean_acceptance_length: tokens per verification, bonus included; TensorRT-LLM's variable
            leaves the bonus out.
        draft_length: tokens that the engine drafts every time.
    """
    length = round(mean_acceptance_length, 4)
    return {
        "vllm": {
            "num_speculative_tokens": draft_length,
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_length": length,
        },
        "sglang": {
            "SGLANG_SIMULATE_ACC_LEN": length,
            "SGLANG_SIMULATE_ACC_METHOD": "match-expected",
            "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token",
        },
        "tensorrt_llm": {"TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS": round(length - 1, 4)},
    }


def _request(s: Sample) -> Request:
    rounds = s.method.rounds
    drafted, accepted = [r.steps for r in rounds], [r.accepted for r in rounds]
    nodes, chain = [r.nodes for r in rounds], [r.chain for r in rounds]
    return Request(
        request_id=s.id,
        question=s.question or s.id,
        groups=s.groups,
        prompt_tokens=s.prompt_tokens,
        completion_tokens=len(s.method.tokens),
        completion_tokens_vanilla=len(s.vanilla.tokens),
        per_step_drafted=drafted,
        per_step_accepted=accepted,
        per_step_nodes=None if nodes == drafted else nodes,
        per_step_chain=None if chain == accepted else chain,
        skip_changes=[(at, skip) for at, skip in s.skip_changes],
        verified=s.trace.get("verified", []),
    )


def _passes(sound: Sequence[Sample]) -> Passes | None:
    """None without times of vanilla, or without a round."""
    vanilla, method = [s.vanilla.seconds for s in sound], [s.method.seconds for s in sound]
    steps = sum(s.vanilla.emitted for s in sound)
    pass_s = over(math.fsum(x.verify for x in vanilla), steps)
    rounds = sum(len(s.method.rounds) for s in sound)
    if not pass_s or not rounds:
        return None
    phases = ("draft", "verify", "adapt", "other")
    each = {p: math.fsum(getattr(x, p) for x in method) / rounds / pass_s for p in phases}
    other = math.fsum(x.decode - x.verify for x in vanilla) / steps / pass_s
    return Passes(**each, vanilla_other=other)


def _sample(index: int, request: Request, passes: Passes | None) -> Sample:
    rounds, plain = request.rounds, request.completion_tokens_vanilla
    p, n, steps = passes, len(rounds), max(0, plain - 1)
    ours = theirs = Seconds(0.0, 0.0, 0.0, 0.0, 0.0)
    if p is not None:
        ours = Seconds(0.0, p.draft * n, p.verify * n, p.adapt * n, p.other * n)
        theirs = Seconds(0.0, 0.0, float(steps), 0.0, p.vanilla_other * steps)
    ones = [Round(0, 0, 0, 0, 1)] * steps
    return Sample(
        index=index,
        id=request.request_id,
        prompt_hash="",
        prompt_tokens=request.prompt_tokens,
        order=[],
        vanilla=Arm([0] * plain, ones, theirs, "length"),
        method=Arm([0] * request.completion_tokens, rounds, ours, "length"),
        lossless="unchecked",
        groups=request.groups,
        trace={"skip": request.skip_changes, "verified": request.verified},
        question=request.question,
    )
