"""What servers tell of their drafts, in an answer and by their counters."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from skipbench.contrib.oracle.readers import mapping
from skipbench.runs.served import DraftCounts

FIELDS = ("steps", "drafted", "accepted")
NAMES = (
    ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens"),  # vLLM
    ("num_spec_steps", "total_draft_tokens", "total_accepted_draft_tokens"),  # TensorRT-LLM
    ("spec_verify_ct", "spec_num_proposed_drafts", "spec_num_correct_drafts"),  # SGLang
    ("spec_verify_ct", "spec_draft_token_num", "spec_accept_token_num"),  # SGLang before 0.5.15
    ("", "draft_n", "draft_n_accepted"),  # llama.cpp, whose counters have the verifications
)
HISTOGRAMS = ("acceptance_histogram", "spec_correct_drafts_histogram")
ENGINES = "vllm", "llamacpp"  # whose counters have the same names
COUNTERS = {
    **{f"{engine}:spec_decode_num_drafts": {"steps": 1} for engine in ENGINES},
    **{f"{engine}:spec_decode_num_draft_tokens": {"drafted": 1} for engine in ENGINES},
    **{f"{engine}:spec_decode_num_accepted_tokens": {"accepted": 1} for engine in ENGINES},
    # SGLang does not count accepted tokens: a request has one of its prefill, a verification one
    "sglang:spec_verify_calls": {"steps": 1, "accepted": -1},
    "sglang:generation_tokens": {"accepted": 1},
    "sglang:num_requests": {"accepted": -1},
}
SAMPLE = re.compile(r"(?m)^([\w:]+?)(?:_total)?(?:\{.*\})? (\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)")


def acceptance(event: Mapping[str, Any]) -> DraftCounts | None:
    """That of the request, where an event of its answer tells it; None for no or odd numbers."""
    for block in _blocks(event):
        for names in NAMES:
            counts: list[Any] = [block.get(name) for name in names]
            whole = all(type(n) is int and n >= 0 for n in counts[not names[0] :])
            if whole and counts[2] <= counts[1]:
                told: Any = next((block[name] for name in HISTOGRAMS if block.get(name)), [])
                own = isinstance(told, list) and all(type(n) is int for n in told)
                steps, drafted, accepted = counts
                return DraftCounts(steps, drafted, accepted, told if own else [])
    return None


def predicted(usage: Mapping[str, Any]) -> DraftCounts | None:
    """By OpenAI's own fields of an answer's usage, which gateways keep where they drop others."""
    details = mapping(usage.get("completion_tokens_details"))
    names = "accepted_prediction_tokens", "rejected_prediction_tokens"
    counts: list[Any] = [details.get(name) for name in names]
    told = all(type(n) is int and n >= 0 for n in counts) and sum(counts)  # zeros: no drafts
    return DraftCounts(None, sum(counts), counts[0]) if told else None


def _blocks(event: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Where engines put such numbers."""
    yield mapping(mapping(event.get("metrics")).get("speculative_decoding"))  # vLLM, `serve`
    yield mapping(event.get("timings"))  # llama.cpp
    choices = event.get("choices")
    for place in (event, mapping(choices[0]) if choices else {}):
        yield mapping(place.get("speculative_decoding"))  # TensorRT-LLM
        yield mapping(mapping(place.get("sglext")).get("spec_tokens_details"))  # SGLang
        yield mapping(place.get("meta_info"))


def counters(text: str) -> DraftCounts | None:
    """Sums of Prometheus counters since the server began; None where none count verifications."""
    sums = dict[str, Any]()
    for name, value in SAMPLE.findall(text):
        for field, sign in COUNTERS.get(name, {}).items():
            sums[field] = sums.get(field, 0) + sign * round(float(value))
    return DraftCounts(**sums) if "steps" in sums else None


def since(before: DraftCounts, after: DraftCounts | None) -> DraftCounts | None:
    """What happened between two readings; None where the server began anew or is gone."""
    pairs = [(getattr(before, name), getattr(after, name, None)) for name in FIELDS]
    counts: list[Any] = [None if None in pair else pair[1] - pair[0] for pair in pairs]
    sound = counts[0] is not None and all(n is None or n >= 0 for n in counts)
    return DraftCounts(*counts) if sound else None
