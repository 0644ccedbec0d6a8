"""What the small files of a run may hold, so that a report can read them without asking; other
names are let through.
"""

from typing import Annotated, Any, NotRequired, TypedDict

import msgspec

Text = Annotated[str, msgspec.Meta(pattern=r"^[^\x00-\x1f\x7f-\x9f\ud800-\udfff]*$")]
"""Without control characters: it is printed."""
Number = float | None


class Named(TypedDict):
    name: Text


class Model(Named, total=False):
    dtype: Text
    device: Text


class Dataset(Named, total=False):
    scorer: Text


class Config(TypedDict, total=False):
    """The groups of `config.yaml` that reports name a run by."""

    model: Model
    method: Named
    dataset: Dataset
    engine: Named


class Process(TypedDict, total=False):
    """One that worked on a run."""

    commit: Text | None
    dirty: bool | None
    started: Text
    host: Text
    device: Text
    cpu: Text
    native_kernels: Text
    threads: int
    versions: dict[Text, Text]


class Resumed(Process):
    """One that went on with a run: what is not as in the first one."""

    after_samples: Annotated[int, msgspec.Meta(ge=0)]


class Origin(Process, total=False):
    """`provenance.json`: of the first process."""

    resumed: list[Resumed]
    mixed: Text
    label: Text
    weights_sha256: Text | None
    tokenizer_sha256: Text | None
    generation_sha256: Text | None
    draft_sha256: Text | None
    method_sha256: Text | None
    imports_sha256: Text | None
    package_sha256: Text | None
    latency: Text
    latency_sha256: Text | None


class Status(TypedDict):
    """`status.json`: `state` is there always; `sha256` has the files of a done run."""

    state: Text
    sha256: NotRequired[dict[Text, Text]]


class _Expected(TypedDict, total=False):
    paper: Number
    measured_cost: Number


class _Speedup(TypedDict, total=False):
    micro: Number
    macro: Number
    s_per_token: Number
    paired: Number
    ci95: tuple[float, float] | None
    end_to_end: Number


class Metrics(TypedDict, total=False):
    """`metrics.json`, by the names of `metrics.summary`."""

    samples: int
    M: Number
    alpha: Number
    alpha_macro: Number
    alpha_chain: Number
    alpha_cond: Number
    tau: Number
    tau_draft: Number
    accepted_by_position: list[float]
    tpt: Number
    tpt_vanilla: Number
    tokens_per_s: Number
    tokens_per_s_vanilla: Number
    expected_speedup: _Expected
    speedup: _Speedup
    seconds: dict[str, Number]
    lossless: dict[str, int]
    looped: int
    ttft_s: dict[str, Number] | None
    ttft_s_vanilla: dict[str, Number] | None
    s_per_output_token: dict[str, Number] | None
    s_per_output_token_vanilla: dict[str, Number] | None
    joules_per_token: Number
    joules_per_token_vanilla: Number
    skipped: dict[str, Number] | None
    score: dict[str, Any] | None
    score_equal: bool | None
    peak_memory_bytes: Number
    roofline_fraction_vanilla: Number
