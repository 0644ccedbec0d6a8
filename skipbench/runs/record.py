"""Lines of a run: a `Sample` per prompt in `samples.jsonl`, and its texts, a `Completion`, in
`completions.jsonl`. Field order and names are the format.

Only counts, tokens and seconds are stored; every ratio is derived in `skipbench.metrics`.
"""

import hashlib
import json
import math
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec

from skipbench.errors import SkipbenchError
from skipbench.runs.reading import strict_json

FORMAT: Literal[1] = 1
Count = Annotated[int, msgspec.Meta(ge=0)]
Time = Annotated[float, msgspec.Meta(ge=0)]
Lossless = Literal["identical", "tie", "diverged", "unchecked", "sampled", "failed"]

SOURCES = {"s": "copied", "r": "recycled", "b": "copied and recycled", "d": "layers", "o": "other"}
"""Letters in `source` of the trace of `auto`: the source of each accepted token."""


class Round(NamedTuple):
    """One draft-verify cycle."""

    steps: Count  # forward passes of the drafting model; a lookup counts one per guessed token
    nodes: Count  # proposed tokens; more than `steps` for a tree
    accepted: Count  # proposed tokens that were accepted, before any cut at EOS or the token limit
    chain: Count  # those of them that lie on the chain of first choices
    emitted: Count  # tokens credited to the output by this round, bonus included, after the cut


class Verified(NamedTuple):
    """Properties of a verification that its time depends on, beside the round's `nodes`; in
    `verified` of a trace each follows the first round that it holds for.
    """

    extra_rows: int = 0  # beside the nodes and the pending token, such as Lookahead's window
    exit_sublayer: int = 0  # sub-layers drafted as the target runs them, on all rows but the last
    tree: bool = False
    hidden_states: bool = False  # the states after every sub-layer were kept
    top_tokens: int = 0  # most likely tokens that were read per row


class Seconds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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


class Arm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One prompt, decoded by vanilla or by the method."""

    tokens: list[Count]  # ids, the prefill's first, to the first EOS (included) or the token limit
    rounds: list[Round]
    seconds: Seconds
    finish: Literal["eos", "length", "failed"]
    error: str | None = None
    looped: bool = False  # the output ends in a repetition loop
    round_s: list[Time] = []  # per round, adaptation included
    strategy: str = ""  # how its rounds were advanced, `decode.rounds.STRATEGIES`

    @property
    def emitted(self) -> int:
        """Tokens of the rounds; the one that prefill emits is not among them."""
        return sum(r.emitted for r in self.rounds)

    @property
    def s_per_token(self) -> float | None:
        """Seconds of decoding per emitted token; None where nothing was decoded."""
        return self.seconds.decode / self.emitted if self.emitted else None

    @property
    def total_s_per_token(self) -> float | None:
        """Seconds of prefill and decoding per token; None where nothing was decoded."""
        return self.seconds.total / len(self.tokens) if self.emitted else None


MEASURED = ("seconds", "round_s")  # other each time; the rest follows from the settings


class Divergence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """First token in which the method differs from vanilla, and how close the two best were."""

    position: Count
    vanilla_token: int
    method_token: int
    logit_gap: float | None  # vanilla's over the method's token, float32; None: not computed
    error: str | None = None  # the reason why not; whether this is a tie is then unknown


class Sample(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One prompt, decoded by vanilla and by the method."""

    index: Count
    id: str
    prompt_hash: str
    prompt_tokens: Count
    order: list[str]
    vanilla: Arm
    method: Arm
    lossless: Lossless
    divergence: Divergence | None = None
    skip: str = ""  # skip set at the end of the sample
    score: dict[str, dict[str, float]] = {}  # `{"vanilla": {...}, "method": {...}}` by scorer
    groups: dict[str, str] = {}  # labels to split scores by, such as `{"task": "math"}`
    carry: dict[str, Any] = {}  # state of the method for the next prompt
    trace: dict[str, Any] = {}  # quantities of the method, one list each
    question: str = ""  # shared by turns of a conversation and samples of a task; empty: `id`
    config_hash: str = ""  # as in the folder's name
    format: Literal[1] = FORMAT

    @property
    def skip_changes(self) -> list[Any]:
        """`(round, set)` of every change of the skip set; that of the end where none is traced."""
        return self.trace.get("skip") or ([(0, self.skip)] if self.skip else [])

    @property
    def speedup(self) -> float | None:
        """Vanilla's decoding seconds per token over the method's; None if it failed or is empty."""
        return self._ratio(self.vanilla.s_per_token, self.method.s_per_token)

    @property
    def end_to_end(self) -> float | None:
        """`speedup` with the prefill: ratio of all seconds per token."""
        return self._ratio(self.vanilla.total_s_per_token, self.method.total_s_per_token)

    def _ratio(self, vanilla: float | None, method: float | None) -> float | None:
        return vanilla / method if vanilla and method and self.lossless != "failed" else None


def speedups(samples: Iterable[Sample], prefill: bool = True) -> dict[str, float]:
    """Speedup per question, a geometric mean over turns and samples; with `prefill`, or without."""
    logs: dict[str, list[float]] = {}
    for s in samples:
        if (ratio := s.end_to_end if prefill else s.speedup) is not None:
            logs.setdefault(s.question or s.id, []).append(math.log(ratio))
    return {question: math.exp(fmean(each)) for question, each in logs.items()}


def drafted(samples: Iterable[Sample]) -> str:
    """A digest of tokens, rounds and sets that drafted, on each prompt; empty without samples."""
    drafts = []
    for s in sorted(samples, key=lambda s: s.index):
        changes = s.skip_changes or [(0, "")]
        used = [change for change in changes if change[0] < len(s.method.rounds)]
        drafts.append([s.index, s.prompt_hash, s.method.tokens, s.method.rounds, used])
    return hashlib.sha256(json.dumps(drafts).encode()).hexdigest()[:16] if drafts else ""


class Completion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Texts of both arms after one prompt, and the reference that scorers compare them with."""

    index: Count
    id: str
    prompt: str
    reference: dict[str, Any]
    vanilla: str
    method: str


R = TypeVar("R", Sample, Completion)


def dump(record: Sample | Completion) -> str:
    """One line of JSON, without a line break; raises ValueError for a number that is not finite."""
    json.dumps(msgspec.to_builtins(record), allow_nan=False)  # msgspec writes NaN as null
    return msgspec.json.encode(record).decode()


def parse(line: str | bytes, kind: type[R]) -> R:
    """Reads a line. Raises SkipbenchError for another format, other fields, or a repeated name."""
    data = line.encode() if isinstance(line, str) else line
    try:
        record = msgspec.json.decode(data, type=kind)
        if msgspec.json.encode(record) != data:  # as no run writes it: perhaps a name twice
            strict_json(data)
        return record
    except (ValueError, RecursionError) as error:
        raise SkipbenchError(
            f"not a {kind.__name__.lower()} record: {data[:80]!r} ({error})"
        ) from error


def parse_lines(path: Path, lines: Iterable[tuple[int, bytes]], kind: type[R]) -> dict[int, R]:
    """Reads numbered lines of `path`; the records by index, in the order written.

    Raises SkipbenchError, with the file and the line, for what `parse` refuses, and for an index
    that occurs twice.
    """
    records: dict[int, R] = {}
    for number, line in lines:
        try:
            record = parse(line, kind)
        except SkipbenchError as error:
            raise SkipbenchError(f"{path}, line {number}: {error}") from error
        if records.setdefault(record.index, record) is not record:
            raise SkipbenchError(f"{path}, line {number}: sample {record.index} occurs twice")
    return records
