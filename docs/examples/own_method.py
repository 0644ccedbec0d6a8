"""A method of one's own: it proposes that the last token comes once more."""

import skipbench
from skipbench.decode.draft import Draft, State, Verification
from skipbench.decode.method import Method


class Stutter(Method):
    """Only `propose` must be written; `begin` and `adapt` do nothing by default."""

    name: str = "stutter"

    def begin(self, state: State) -> None:
        super().begin(state)
        self.worked = 0

    def propose(self, state: State, budget: int) -> Draft:
        tokens = [state.pending][:budget]
        return Draft(tokens, steps=len(tokens), sources=["stutter"] * len(tokens))

    def adapt(self, state: State, verification: Verification) -> None:
        self.worked += len(verification.accepted)


lm = skipbench.load("tiny", method=Stutter())
answer = lm.generate("Once upon a time there was a dog.", max_new_tokens=48)
print(answer.text, f"\n{answer.accepted} of {answer.drafted} guesses were right")
assert (
    answer.tokens
    == lm.with_method("vanilla").generate("Once upon a time there was a dog.", 48).tokens
)
