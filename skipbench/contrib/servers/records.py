"""`requests.jsonl` of a bench of servers: a line per request."""

from typing import Any

from msgspec import Struct


class DraftCounts(Struct, frozen=True, omit_defaults=True):
    """What became of drafts: verifications, proposed tokens, accepted ones; None: not told."""

    steps: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    histogram: list[int] = []  # verifications that accepted 0, 1, 2, ... tokens


class Record(Struct, kw_only=True, omit_defaults=True):
    """One request, in a form that `verify` reads.

    Attributes:
        turn: the arm's turn in which it was asked: when its process began, and the block.
        at: when its last try began, in seconds since 1970.
        seconds: from there to the last text, `ttft_s` to the first, on an open connection.
        tokens: as the server's `usage` counts them; without one its events with text.
        acceptance: as the answer tells it.
        counted: by the server's counters, of the turn that this request ended.
        faults: what went wrong, tries before the last among them.
        error: the fault of the last try, where there is no answer.
    """

    arm: str
    concurrency: int
    turn: str
    id: str
    question: str
    groups: dict[str, str]
    request: dict[str, Any]
    response: dict[str, Any] | None = None
    at: float = 0.0
    seconds: float = 0.0
    ttft_s: float = 0.0
    tokens: int = 0
    acceptance: DraftCounts | None = None
    counted: DraftCounts | None = None
    faults: list[str] = []
    error: str = ""

    @property
    def texts(self) -> list[str]:
        """What was said: the answer, then any reasoning before it."""
        choice = self.response["choices"][0] if self.response else {}
        said = choice.get("message") or {"content": choice.get("text", "")}
        return [text for name, text in said.items() if name != "role"]

    @property
    def itl_s(self) -> float | None:
        """Seconds per token after the first."""
        return (self.seconds - self.ttft_s) / (self.tokens - 1) if self.tokens > 1 else None
