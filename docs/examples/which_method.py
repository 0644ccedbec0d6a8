"""Which method is fastest on a model, on prompts of one's own, as a pandas frame."""

import tempfile

import skipbench

prompts = [
    "Once upon a time there was a dog.",
    [{"role": "user", "content": "A cat sat on the mat."}],
]
with tempfile.TemporaryDirectory() as folder:  # a folder that stays keeps the records
    frame = skipbench.compare(
        "tiny",
        prompts,
        methods=["uniform", "prompt-lookup"],
        minutes=5,
        results=folder,
        overrides=["dataset.max_new_tokens=24"],
    )
columns = ["method", "speedup", "speedup_low", "speedup_high", "lossless", "note"]
print(frame[columns].to_string(index=False))
