"""Finds runs that drafted the same tokens: their speedups differ by the noise of timing only."""

import hashlib
import json
from collections.abc import Iterable

from skipbench.runs.record import Sample


def drafted(samples: Iterable[Sample]) -> str:
    """A digest of tokens, rounds and sets that drafted, on each prompt; empty without samples."""
    drafts = []
    for s in sorted(samples, key=lambda s: s.index):
        changes = s.skip_changes or [(0, "")]
        used = [change for change in changes if change[0] < len(s.method.rounds)]
        drafts.append([s.index, s.prompt_hash, s.method.tokens, s.method.rounds, used])
    return hashlib.sha256(json.dumps(drafts).encode()).hexdigest()[:16] if drafts else ""
