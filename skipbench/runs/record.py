"""What a run writes down: one `Sample` a prompt, as one line of `samples.jsonl`. Field order and
names are the format.

Only counts, tokens and seconds are stored; every ratio is derived in `skipbench.metrics`.
"""

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from skipbench.errors import SkipbenchError
from skipbench.runs.reading import LARGEST, printable, strict_json

FORMAT = 1
Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST - 1)]
Time = Annotated[float, msgspec.Meta(ge=0)]
Lossless = Literal["identical", "tie", "diverged", "unchecked", "sampled", "failed"]

SOURCES = {"s": "copied", "r": "recycled", "b": "copied and recycled", "d": "layers", "o": "other"}
"""What a letter in `source` of the trace of `auto` means: where an accepted token came from."""


class Round(NamedTuple):
    """One draft-verify cycle."""

    steps: Count
    """Draft steps: forward passes of the drafting model (a lookup that needs none counts one a
    guessed token).
    """
    nodes: Count
    """Proposed tokens; more than `steps` for a tree."""
    accepted: Count
    """Proposed tokens that verification accepted, before any cut at EOS or at the token limit."""
    chain: Count
    """Those of them that lie on the chain of first choices."""
    emitted: Count
    """Tokens credited to the output by this round, bonus included, after the cut."""


@dataclass(frozen=True)
class Seconds:
    """Wall-clock of one arm on one sample, by phase; `other` is the rest of the decode time."""

    prefill: Time
    draft: Time
    verify: Time
    adapt: Time
    other: Time

    @property
    def decode(self) -> float:
        return self.draft + self.verify + self.adapt + self.other

    @property
    def total(self) -> float:
        return self.prefill + self.decode


@dataclass(frozen=True)
class Arm:
    """What vanilla, or the method, did on one prompt."""

    tokens: list[Count]
    """Emitted ids: cut at the first EOS (counted) or at the token limit; the first comes from the
    prefill.
    """
    rounds: list[Round]
    seconds: Seconds
    finish: Literal["eos", "length", "failed"]
    error: str | None = None
    looped: bool = False
    """Whether the output ends in a repetition loop."""


@dataclass(frozen=True)
class Divergence:
    """Where the method's tokens leave vanilla's, and how close the target's two best tokens were
    there.
    """

    position: Count
    vanilla_token: int
    method_token: int
    logit_gap: float | None
    """Vanilla's token above the method's, in float32 logits of the target; None where these could
    not be had.
    """
    error: str | None = None
    """Why not: then nobody knows whether this is a tie."""


@dataclass(frozen=True)
class Sample:
    """One prompt, decoded by vanilla and by the method in turns."""

    index: Count
    id: str
    prompt_hash: str
    prompt_tokens: Count
    order: list[str]
    vanilla: Arm
    method: Arm
    lossless: Lossless
    divergence: Divergence | None = None
    skip: str = ""
    """Skip set at the end of the sample."""
    score: dict[str, dict[str, float]] = field(default_factory=dict)
    """`{"vanilla": {...}, "method": {...}}` by scorer."""
    groups: dict[str, str] = field(default_factory=dict)
    """Labels to split scores by, such as `{"body": "unseen"}`."""
    carry: dict[str, Any] = field(default_factory=dict)
    """State that the method takes into the next prompt."""
    trace: dict[str, Any] = field(default_factory=dict)
    """Course of the method's own quantities, one list per quantity."""
    format: int = FORMAT


_DECODER = msgspec.json.Decoder(Sample)
_FIELDS = {f.name for f in dataclasses.fields(Sample)}
_ARM_FIELDS = {f.name for f in dataclasses.fields(Arm)}
_SECONDS = {f.name for f in dataclasses.fields(Seconds)}


def dump(sample: Sample) -> str:
    """One line of JSON, without a line break; raises ValueError for a number that is not finite."""
    # The encoder writes NaN as null: json refuses it. Afterwards `parse` knows the line by its
    # encoding.
    text = json.dumps(dataclasses.asdict(sample), allow_nan=False)
    return msgspec.json.encode(msgspec.json.decode(text)).decode()


def parse(line: str | bytes) -> Sample:
    """Reads one line.

    Raises SkipbenchError for a record of another format version, or with other fields or types.
    """
    try:
        data = line.encode() if isinstance(line, str) else line
        try:
            found = _DECODER.decode(data)
        except (msgspec.MsgspecError, ValueError):
            _check(data)  # may know better what is wrong
            raise
        # A line that is what would be written of it holds no name twice and none that is unknown.
        # Any other is looked through.
        if found.format != FORMAT or msgspec.json.encode(found) != data:
            _check(data)
    except (ValueError, RecursionError) as error:
        raise SkipbenchError(
            f"not a sample record: {data[:80]!r} ({printable(str(error))})"
        ) from error
    return found


def _check(data: bytes) -> None:
    """Raises SkipbenchError for another format or other fields, ValueError for what is not strict
    JSON.
    """
    raw = strict_json(data)
    if not isinstance(raw, dict) or "format" not in raw:
        raise ValueError("it names no format")
    if raw["format"] != FORMAT:
        raise SkipbenchError(
            f"record of format {raw['format']!r}, but this version reads format {FORMAT}; "
            "rerun into another results folder, or read it with the version named in its "
            "provenance.json"
        )
    arms = [arm for arm in (raw.get("vanilla"), raw.get("method")) if isinstance(arm, dict)]
    times = [arm["seconds"] for arm in arms if isinstance(arm.get("seconds"), dict)]
    known = [
        (raw, _FIELDS),
        *((arm, _ARM_FIELDS) for arm in arms),
        *((of, _SECONDS) for of in times),
    ]
    if unknown := sorted({name for found, names in known for name in found.keys() - names}):
        raise ValueError(f"unknown fields {unknown}")
