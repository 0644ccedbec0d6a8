"""What an answer of `auto` says of its sources and of the plans that it tried."""

from conftest import NEEDED

import skipbench as package
from skipbench.cli.answers import speed_text

STORY = "Once upon a time there was a dog. Once upon a time"


def test_auto_says_what_it_did() -> None:
    auto = package.load("tiny", "auto", overrides=NEEDED["auto"])
    answer = auto.generate(STORY, 48)
    assert sum(answer.sources.values()) == answer.accepted > 0
    assert {*answer.sources} <= {"copied", "recycled", "copied and recycled", "layers", "other"}
    assert answer.tried and all(0 < one.agreement <= 1 and one.price < 1 for one in answer.tried)
    assert f"{next(iter(answer.sources))} " in speed_text(answer)
