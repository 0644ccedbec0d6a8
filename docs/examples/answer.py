"""One answer: the text, the tokens, and what the method did for it."""

import skipbench

lm = skipbench.load("tiny", method="self-sd")  # or a folder, a GGUF file, an id on the hub
answer = lm.generate("Once upon a time there was a dog.", max_new_tokens=48)
print(answer.text)
print(f"{len(answer.tokens)} tokens in {answer.rounds} full passes")
print(f"{answer.accepted} of {answer.drafted} drafted tokens accepted")
print(f"{answer.tokens_per_s:.0f} tokens/s, the first after {answer.first_token_s:.3f} s")

vanilla = lm.with_method("vanilla").generate("Once upon a time there was a dog.", 48)
assert answer.tokens == vanilla.tokens  # float32: the same tokens, always
