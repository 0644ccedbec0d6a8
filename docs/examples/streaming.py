"""Text while it is decoded, with a stop string; accepted draft tokens stand in brackets."""

import skipbench

lm = skipbench.load("tiny", method="self-sd")
stream = lm.generate(
    [{"role": "user", "content": "Once upon a time there was a dog."}],  # or a plain text
    max_new_tokens=64,
    temperature=0.7,
    seed=1,
    stop=["\n\n"],
    stream=True,
)
for piece in stream:
    print(f"[{piece}]" if piece.source else piece, end="", flush=True)
print()
print(stream.answer.finish, f"{stream.answer.tokens_per_round:.2f} tokens per pass")
