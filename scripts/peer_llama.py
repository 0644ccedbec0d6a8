"""llama.cpp as an arm of compare_peers.py, through `llama-cpp-python`.

pip builds that from source in about 8 minutes; it is no dependency of skipbench.
`dequantised` writes the weights of a GGUF file in the precision that is measured, so that both
programs multiply the same numbers.
"""

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import gguf
from gguf.constants import GGMLQuantizationType as Kind

KINDS = {"float32": Kind.F32, "bfloat16": Kind.BF16, "float16": Kind.F16, "Q8_0": Kind.Q8_0}


def dequantised(source: Path, out: Path, dtype: str) -> Path:
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


def arms(
    source: Path,
    place: Path,
    dtype: str,
    tokens: int,
    eos: frozenset[int],
    lookup: int,
    context: int,
) -> dict[str, Callable[[], Callable[[list[int]], list[int]]]]:
    """Greedy decoding by llama.cpp on one thread: the weights that are measured, alone and with its
    own prompt lookup; the same in Q8_0; and the file as it is.

    Args:
        source: the model's GGUF file, with matrices in Q4_1.
        place: an empty folder for the files that are written.
        dtype: precision that is measured, a key of `KINDS`.
        tokens: tokens to decode per prompt.
        eos: ids that end an output; the end is part of it.
        lookup: tokens that a prompt lookup copies.
        context: K/V rows to allocate.
    """
    import llama_cpp
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    def arm(path: Path, **options: Any) -> Callable[[], Callable[[list[int]], list[int]]]:
        llm = llama_cpp.Llama(
            str(path), n_ctx=context, n_threads=1, n_threads_batch=1, verbose=False, **options
        )

        def decode(prompt: list[int]) -> list[int]:
            llm.reset()  # no prefix of the prompt before is taken over
            out: list[int] = []
            for token in islice(llm.generate(prompt, temp=0.0, repeat_penalty=1.0), tokens):
                out.append(token)
                if token in eos:
                    break
            return out

        return lambda: decode

    same = dequantised(source, place / "same.gguf", dtype)
    draft = LlamaPromptLookupDecoding(num_pred_tokens=lookup)
    return {
        "llama.cpp": arm(same),
        f"llama.cpp prompt lookup of {lookup}": arm(same, draft_model=draft, logits_all=True),
        "llama.cpp Q8_0": arm(dequantised(source, place / "q8_0.gguf", "Q8_0")),
        "llama.cpp Q4_1": arm(source),
    }
