"""Lines of a row: a `Turn` per prompt in `turns.jsonl`, with all arms that took it, and its texts,
`Texts`, in `texts.jsonl`. Field order and names are the format.

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
from msgspec.structs import replace

from skipbench.errors import SkipbenchError
from skipbench.runs.served import Served

FORMAT: Literal[2] = 2
VANILLA = "vanilla"  # the arm of every turn of methods; others have the names of their folders
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


class Divergence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """First token in which the method differs from vanilla, and how close the two best were."""

    position: Count
    vanilla_token: int
    method_token: int
    logit_gap: float | None  # vanilla's over the method's token, float32; None: not computed
    error: str | None = None  # the reason why not; whether this is a tie is then unknown


class Arm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A prompt decoded by one arm; vanilla has no `lossless` and what follows from drafts."""

    tokens: list[Count]  # ids, the prefill's first, to the first EOS (included) or the token limit
    rounds: list[Round]
    seconds: Seconds
    finish: Literal["eos", "length", "failed"]
    error: str | None = None
    looped: bool = False  # the output ends in a repetition loop
    round_s: list[Time] = []  # per round, adaptation included
    strategy: str = ""  # `in_turn`, or `late`: a round is launched before the last is read
    lossless: Lossless | None = None  # how its tokens compare with vanilla's
    divergence: Divergence | None = None
    skip: str = ""  # skip set at the end of the output
    score: dict[str, float] = {}  # by scorer
    carry: dict[str, Any] = {}  # state of the method for the next prompt
    trace: dict[str, Any] = {}  # quantities of the method, one list each
    served: Served | None = None  # of a server, which has no rounds, and ids only if it tells them

    @property
    def count(self) -> int:
        """Its tokens."""
        return self.served.count if self.served else len(self.tokens)

    @property
    def emitted(self) -> int:
        """Tokens of the rounds; the one that prefill emits is not among them."""
        return self.count - 1 if self.served else sum(r.emitted for r in self.rounds)

    @property
    def s_per_token(self) -> float | None:
        """Seconds of decoding per emitted token; None where nothing was decoded."""
        return self.seconds.decode / self.emitted if self.emitted else None

    @property
    def total_s_per_token(self) -> float | None:
        """Seconds of prefill and decoding per token; None where nothing was decoded."""
        decoded = self.count if self.served else self.emitted
        return self.seconds.total / self.count if decoded else None

    def same(self, other: "Arm") -> bool:
        """Whether both have the same tokens; of servers, the same text."""
        if self.served and other.served:
            return self.served.text_sha256 == other.served.text_sha256
        return self.tokens == other.tokens

    @property
    def skip_changes(self) -> list[Any]:
        """`(round, set)` of every change of the skip set; that of the end where none is traced."""
        return self.trace.get("skip") or ([(0, self.skip)] if self.skip else [])


MEASURED = ("seconds", "round_s")  # other each time; the rest follows from the settings


class Turn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A prompt, decoded once by each arm, one after another."""

    index: Count
    id: str
    prompt_hash: str
    prompt_tokens: Count
    order: list[str]  # of the arms
    arms: dict[str, Arm]
    groups: dict[str, str] = {}  # labels to split scores by, such as `{"task": "math"}`
    question: str = ""  # shared by turns of a conversation and samples of a task; empty: `id`
    format: Literal[2] = FORMAT

    def __post_init__(self) -> None:
        if {*self.order} != self.arms.keys():  # msgspec refuses the record then
            raise ValueError("order has other arms than arms")

    def only(self, names: Iterable[str]) -> "Turn":
        """The turn with these of its arms."""
        kept = {*names}
        order = [name for name in self.order if name in kept]
        return replace(self, order=order, arms={name: self.arms[name] for name in order})

    @property
    def unit(self) -> str:
        """The question."""
        return self.question or self.id

    def ratio(self, base: str, arm: str, prefill: bool = True) -> float | None:
        """How many times as fast as `base` an arm is, per token; None where one failed, or decoded
        nothing. `prefill`: with its seconds.
        """
        both = [self.arms[name] for name in (base, arm)]
        if any(one.lossless == "failed" for one in both):
            return None
        theirs, own = (one.total_s_per_token if prefill else one.s_per_token for one in both)
        if prefill and both[0].served and both[0].same(both[1]):  # a server's count may be wrong
            theirs, own = (one.seconds.total for one in both)
        return theirs / own if theirs and own else None


def paired(turns: Iterable[Turn], base: str, arm: str, prefill: bool = True) -> dict[str, float]:
    """How many times as fast as `base` an arm is, by question: a geometric mean over its turns and
    samples, without those that failed.
    """
    logs: dict[str, list[float]] = {}
    for turn in turns:
        if (ratio := turn.ratio(base, arm, prefill)) is not None:
            logs.setdefault(turn.unit, []).append(math.log(ratio))
    return {question: math.exp(fmean(each)) for question, each in logs.items()}


def first(turns: Iterable[Turn], limit: int | None) -> list[Turn]:
    """The turns of the first `limit` questions, by index; all where it is None."""
    found, questions = list[Turn](), set[str]()
    for turn in sorted(turns, key=lambda turn: turn.index):
        questions.add(turn.unit)
        if limit is not None and len(questions) > limit:
            break
        found.append(turn)
    return found


def drafted(turns: Iterable[Turn], arm: str) -> str:
    """A digest of tokens, rounds and sets that drafted, on each prompt; empty without turns."""
    drafts = []
    for turn in sorted(turns, key=lambda turn: turn.index):
        own = turn.arms[arm]
        changes = own.skip_changes or [(0, "")]
        used = [change for change in changes if change[0] < len(own.rounds)]
        drafts.append([turn.index, turn.prompt_hash, own.tokens, own.rounds, used])
    return hashlib.sha256(json.dumps(drafts).encode()).hexdigest()[:16] if drafts else ""


class Texts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What each arm of a turn wrote, and the reference that scorers compare it with."""

    index: Count
    id: str
    prompt: str
    reference: dict[str, Any]
    arms: dict[str, str]
    messages: list[dict[str, Any]] = []  # the whole chat, as servers are sent it

    def only(self, names: Iterable[str]) -> "Texts":
        """The texts of these arms."""
        kept = {*names}
        return replace(self, arms={name: of for name, of in self.arms.items() if name in kept})


R = TypeVar("R", Turn, Texts)


def dump(record: Turn | Texts) -> str:
    """One line of JSON, without a line break; raises ValueError for a number that is not finite."""
    json.dumps(msgspec.to_builtins(record), allow_nan=False)  # msgspec writes NaN as null
    return msgspec.json.encode(record).decode()


def parse(line: str | bytes, kind: type[R]) -> R:
    """Reads a line. Raises SkipbenchError for another format, or other fields."""
    try:
        return msgspec.json.decode(line, type=kind)
    except (ValueError, RecursionError) as error:
        raise SkipbenchError(
            f"not a record of {kind.__name__.lower()}: {line[:80]!r} ({error})"
        ) from error


def parse_lines(path: Path, lines: Iterable[tuple[int, bytes]], kind: type[R]) -> list[R]:
    """Reads numbered lines of `path`, in the order written.

    Raises SkipbenchError, with the file and the line, for what `parse` refuses, and for a second
    turn of an arm on one prompt; vanilla has one of each time that other arms took it.
    """
    records, seen = list[R](), set[tuple[int, str]]()
    for number, line in lines:
        try:
            record = parse(line, kind)
        except SkipbenchError as error:
            raise SkipbenchError(f"{path}, line {number}: {error}") from error
        arms = record.arms.keys() - {VANILLA} if isinstance(record, Turn) else set[str]()
        own = {(record.index, arm) for arm in arms}
        if twice := sorted(own & seen):
            raise SkipbenchError(f"{path}, line {number}: turn {twice[0][0]} occurs twice")
        seen |= own
        records.append(record)
    return records
