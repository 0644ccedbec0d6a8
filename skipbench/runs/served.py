"""`Served`: what a server alone tells of an answer."""

from typing import Any

from msgspec import Struct


class DraftCounts(Struct, frozen=True, omit_defaults=True):
    """What became of drafts: verifications, proposed tokens, accepted ones; None: not told."""

    steps: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    histogram: list[int] = []  # verifications that accepted 0, 1, 2, ... tokens


class Served(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An answer, in the place of an arm's tokens and rounds.

    Attributes:
        at: when its last try began, in seconds since 1970.
        count: of its tokens, by the server's `usage`; without one its events with text.
        text_sha256: of all that it says; answers with the same one are equal.
        apart: parts of a chat's message beside its content, such as its reasoning.
        reason: its `finish_reason`.
        told: as the answer tells it.
        counted: by the server's counters, of all answers from the one before that has them.
        faults: what went wrong, tries before the last among them.
    """

    at: float = 0.0
    count: int = 0
    text_sha256: str = ""
    apart: list[str] = []
    reason: str = ""
    usage: dict[str, Any] = {}
    told: DraftCounts | None = None
    counted: DraftCounts | None = None
    faults: list[str] = []
