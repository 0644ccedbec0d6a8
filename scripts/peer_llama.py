"""llama.cpp as an arm of compare_peers.py and verify_peers.py, through `llama-cpp-python`.

pip builds that from source in about 8 minutes; it is no dependency of skipbench.
`dequantized` writes the weights of a GGUF file in the precision that is measured, so that both
programs multiply the same numbers.
"""

import contextlib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import gguf
from gguf.constants import GGMLQuantizationType as Kind

Decode = Callable[[list[int]], list[int]]
KINDS = {"float32": Kind.F32, "bfloat16": Kind.BF16, "float16": Kind.F16, "Q8_0": Kind.Q8_0}


def dequantized(source: Path, out: Path, dtype: str) -> Path:
    """Writes `source` again with its matrices in `dtype`; norms and metadata are kept.

    Args:
        dtype: a key of `KINDS`.
    """
    reader = gguf.GGUFReader(source)
    fields = dict(reader.fields)
    writer = gguf.GGUFWriter(out, fields["general.architecture"].contents())
    own = ("GGUF.", "general.architecture", "general.file_type", "general.quantization_version")
    for name, field in fields.items():
        if not name.startswith(own):
            writer.add_key_value(name, field.contents(), field.types[0], field.types[-1])
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        kind = KINDS[dtype] if values.ndim > 1 else Kind.F32
        writer.add_tensor(tensor.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


@contextlib.contextmanager
def _plain_buffers() -> Iterator[None]:
    """Loads models with `use_extra_bufts=False`, for which `Llama` has no argument: the buffers of
    llama.cpp for AMX crash on some processors.
    """
    from llama_cpp import llama_cpp

    def plain() -> Any:
        params = default()
        params.use_extra_bufts = False
        return params

    default = llama_cpp.llama_model_default_params
    with mock.patch.object(llama_cpp, "llama_model_default_params", plain):
        yield


def arm(
    path: Path, tokens: int, eos: frozenset[int], context: int, **options: Any
) -> Callable[[], Decode]:
    """Greedy decoding of a GGUF file on one thread.

    Args:
        tokens: tokens to decode per prompt.
        eos: ids that end an output; the end is part of it.
        context: K/V rows to allocate.
        options: of `llama_cpp.Llama`, such as `draft_model`.
    """
    drafts = options.get("draft_model") is not None
    llm = opened(path, context, logits_all=drafts, **options)

    def decode(prompt: list[int]) -> list[int]:
        llm.reset()  # no prefix of the prompt before is taken over
        out: list[int] = []
        for token in islice(llm.generate(prompt, temp=0.0, repeat_penalty=1.0), tokens):
            out.append(token)
            if token in eos:
                break
        return out

    return lambda: decode


def opened(path: Path, context: int, **options: Any) -> Any:
    """A GGUF file on one thread, with so many K/V rows."""
    import llama_cpp

    threads = {"n_threads": 1, "n_threads_batch": 1}
    with _plain_buffers():
        return llama_cpp.Llama(str(path), n_ctx=context, verbose=False, **threads, **options)


def lookup_draft(tokens: int) -> Any:
    """llama-cpp-python's own prompt lookup, of so many tokens."""
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    return LlamaPromptLookupDecoding(num_pred_tokens=tokens)


def model_draft(path: Path, context: int, tokens: int) -> Any:
    """A draft model in llama-cpp-python's interface, which drafts `tokens` tokens of `path`."""
    import numpy as np
    from llama_cpp.llama_speculative import LlamaDraftModel

    llm = opened(path, context)

    class Draft(LlamaDraftModel):  # type: ignore[misc]  # llama_cpp has no types
        def __call__(self, input_ids: Any, /, **_: Any) -> Any:
            steps = llm.generate(input_ids.tolist(), temp=0.0, repeat_penalty=1.0)
            return np.array([*islice(steps, tokens)], dtype=np.intc)

    return Draft()


def arms(source: Path, place: Path, dtype: str, lookup: int, *how: Any) -> dict[str, Any]:
    """The weights that are measured, alone and with llama.cpp's own prompt lookup; the same in
    Q8_0; and the file as it is.

    Args:
        source: the model's GGUF file, with matrices in Q4_1.
        place: an empty folder for the files that are written.
        dtype: precision that is measured, a key of `KINDS`.
        lookup: tokens that a prompt lookup copies.
        how: `tokens`, `eos` and `context` of `arm`.
    """
    same = dequantized(source, place / "same.gguf", dtype)
    return {
        "llama.cpp": arm(same, *how),
        f"llama.cpp prompt lookup of {lookup}": arm(same, *how, draft_model=lookup_draft(lookup)),
        "llama.cpp Q8_0": arm(dequantized(source, place / "q8_0.gguf", "Q8_0"), *how),
        "llama.cpp Q4_1": arm(source, *how),
    }
