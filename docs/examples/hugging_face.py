"""A method inside `generate` of a model that Hugging Face has loaded."""

from importlib.resources import files

from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer

import skipbench

path = str(files("skipbench") / "models/tiny")  # any checkpoint of a known family
tokenizer = AutoTokenizer.from_pretrained(path)
model = AutoModelForCausalLM.from_pretrained(path, dtype="float32")
inputs = tokenizer("Once upon a time there was a dog.", return_tensors="pt")
fast = skipbench.custom_generate("prompt-lookup")  # keep it: it keeps the cache

plain = model.generate(**inputs, max_new_tokens=48, do_sample=False)
ids = model.generate(
    **inputs,
    max_new_tokens=48,
    do_sample=False,
    streamer=TextStreamer(tokenizer),
    custom_generate=fast,
)
assert ids.tolist() == plain.tolist()
