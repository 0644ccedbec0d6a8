"""What passes with weights in 8 bits take: measured where asked for, read from older files too."""

from pathlib import Path

import msgspec
from conftest import random_lm

from skipbench.draft_plan import DraftPlan
from skipbench.metrics.prices import Parts, Prices
from skipbench.profile.latency import measured


def test_8_bits_are_priced_where_they_are_asked_for(tmp_path: Path) -> None:
    lm = random_lm("llama", "fused")
    path = tmp_path / "latency.json"
    assert measured(lm, path, {"likely"}).priced == {"likely"}
    low = measured(lm, path, {"int8"})
    assert low.model and low.priced == {"likely", "int8"}
    older = msgspec.to_builtins(low.model)
    older["int8"] = older.pop("variants")["int8"]
    before = Prices(model=msgspec.convert(older, Parts))
    plan = DraftPlan.parse("int8:all;head:likely;attn:0", lm.layers)
    assert before.pass_s(1, 9, plan) == low.pass_s(1, 9, plan), "a file of before"
