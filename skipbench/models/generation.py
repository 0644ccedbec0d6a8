"""Arguments and result of a `custom_generate` function of Hugging Face's `generate`."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from skipbench.errors import SkipbenchError

# Processors whose result depends on more than the tokens and the logits.
STATEFUL = {
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": "runs the model with its own cache",
    "ClassifierFreeGuidanceLogitsProcessor": "wants two rows per prompt",
    "SynthIDTextWatermarkLogitsProcessor": "counts its calls, and drafts are verified in one",
}
# Sampling as `Sampler` does it, in this order; by class the attribute and the argument.
WARPERS = {
    "TemperatureLogitsWarper": "temperature",
    "TopKLogitsWarper": "top_k",
    "TopPLogitsWarper": "top_p",
}
LIMITS = ("MaxLengthCriteria", "EosTokenCriteria")  # criteria that the loop keeps itself


def check_generation(
    config: Any, model_kwargs: Mapping[str, Any], others: Mapping[str, Any]
) -> None:
    """Raises SkipbenchError for what cannot be honoured, by its name.

    Args:
        config: the generation config of the call.
        model_kwargs: what `generate` prepared for the model.
        others: further arguments of the call by name; a value that is set is refused.
    """
    wanted = {"num_beams": 1, "num_return_sequences": 1}
    unset = ("penalty_alpha", "dola_layers", "prompt_lookup_num_tokens", "force_words_ids")
    wrong = [k for k, only in wanted.items() if (getattr(config, k, None) or only) != only]
    wrong += [k for k in unset if getattr(config, k, None)]
    if config.return_dict_in_generate:
        names = ("scores", "logits", "attentions", "hidden_states")
        wrong += [f"output_{k}" for k in names if getattr(config, f"output_{k}", None)]
    wrong += [k for k, value in others.items() if value]
    wrong += [k for k in ("inputs_embeds", "encoder_outputs") if model_kwargs.get(k) is not None]
    cache = model_kwargs.get("past_key_values")
    if cache is not None and cache.get_seq_length() > 0:
        wrong.append("past_key_values")
    if model_kwargs.get("attention_mask") is not None:
        wrong.append("attention_mask (the prompt is padded)")
    if wrong:
        raise SkipbenchError(
            f"custom_generate cannot honour {', '.join(wrong)}; leave it out, or leave out "
            "custom_generate"
        )


def split_processors(processors: Iterable[Any], sample: bool) -> tuple[list[Any], dict[str, Any]]:
    """Processors that change logits, and arguments of `Sampler` for those that sample: temperature,
    top-k and top-p where they come last and in this order; else they stay among the processors.
    Raises SkipbenchError for a processor that keeps a state of its own.
    """
    found = list(processors)
    names = [type(processor).__name__ for processor in found]
    for name in names:
        if name in STATEFUL:
            raise SkipbenchError(f"custom_generate cannot honour {name}: it {STATEFUL[name]}")
    if not sample:
        return found, {}
    split = len(names) - sum(name in WARPERS for name in names)
    arguments: dict[str, Any] = {"temperature": 1.0}
    if names[split:] != [name for name in WARPERS if name in names]:
        return found, arguments
    for name, processor in zip(names[split:], found[split:], strict=True):
        arguments[WARPERS[name]] = getattr(processor, WARPERS[name])
    return found[:split], arguments


def own_criteria(criteria: Iterable[Any]) -> list[Any]:
    """Stopping criteria beside the length and EOS. Raises SkipbenchError for the one that reads
    scores, which are not kept.
    """
    found = [c for c in criteria if type(c).__name__ not in LIMITS]
    if any(type(c).__name__ == "ConfidenceCriteria" for c in found):
        raise SkipbenchError("custom_generate cannot honour ConfidenceCriteria: it reads scores")
    return found


def output(sequences: Tensor, as_dict: bool) -> Any:
    """The result of `generate`: the ids [1, T], or these in Hugging Face's class."""
    if not as_dict:
        return sequences
    from transformers.generation.utils import GenerateDecoderOnlyOutput

    return GenerateDecoderOnlyOutput(sequences=sequences)  # type: ignore[arg-type]  # a LongTensor
