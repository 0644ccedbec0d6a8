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
    """An answer, in the place of an arm's tokens and rounds."""

    at: float = 0.0  # when its last try began, in seconds since 1970
    count: int = 0  # of its tokens, by the server's `usage`; without one its events with text
    text_sha256: str = ""  # of all that it says; answers with the same one are equal
    apart: list[str] = []  # parts of a chat's message beside its content, such as its reasoning
    reason: str = ""  # its `finish_reason`
    usage: dict[str, Any] = {}
    told: DraftCounts | None = None  # as the answer tells it
    counted: DraftCounts | None = None  # by the server's counters, since the answer before
    faults: list[str] = []  # what went wrong, tries before the last among them
