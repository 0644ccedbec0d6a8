"""Arguments and result of a `custom_generate` function of Hugging Face's `generate`."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, StopStringCriteria
from transformers.generation.utils import GenerateDecoderOnlyOutput

from skipbench.config.explain import did_you_mean
from skipbench.errors import SkipbenchError
from skipbench.models.outline import read_tokenizer

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
UNSET = ("penalty_alpha", "dola_layers", "prompt_lookup_num_tokens", "force_words_ids")
OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
LIMITS = ("MaxLengthCriteria", "EosTokenCriteria")  # criteria that the loop keeps itself


def check_generation(
    config: Any, model_kwargs: Mapping[str, Any], others: Mapping[str, Any]
) -> None:
    """Raises SkipbenchError for what cannot be honoured, by its name: in the generation config of a
    call, in what `generate` prepared for the model, and whatever is set among `others`.
    """
    single = ("num_beams", "num_return_sequences")
    wrong = [k for k in single if (getattr(config, k, None) or 1) != 1]
    unset = UNSET + OUTPUTS if config.return_dict_in_generate else UNSET
    wrong += [k for k in unset if getattr(config, k, None)]
    wrong += [k for k, value in others.items() if value]
    wrong += [k for k in ("inputs_embeds", "encoder_outputs") if model_kwargs.get(k) is not None]
    cache = model_kwargs.get("past_key_values")
    if cache is not None and cache.get_seq_length() > 0:
        wrong.append("past_key_values")
    if model_kwargs.get("attention_mask") is not None:
        wrong.append("attention_mask (the prompt is padded)")
    if wrong:
        raise SkipbenchError(
            f"skipbench cannot honour {', '.join(wrong)}; leave it out, or decode with Hugging "
            "Face's own generate"
        )


def split_processors(processors: Iterable[Any], sample: bool) -> tuple[list[Any], dict[str, Any]]:
    """Processors that change logits, and arguments of `Sampler` for those that sample: temperature,
    top-k and top-p where they come last and in this order; else they stay among the processors.
    Raises SkipbenchError for a processor that keeps a state of its own.
    """
    found = list(processors)
    names = [type(processor).__name__ for processor in found]
    if (name := next((name for name in names if name in STATEFUL), None)) is not None:
        raise SkipbenchError(f"skipbench cannot honour {name}: it {STATEFUL[name]}")
    if not sample:
        return found, {}
    warpers = [name for name in WARPERS if name in names]
    split = len(names) - sum(name in WARPERS for name in names)
    if names[split:] != warpers:
        return found, {"temperature": 1.0}
    named = zip((WARPERS[name] for name in warpers), found[split:], strict=True)
    return found[:split], {"temperature": 1.0} | {k: getattr(p, k) for k, p in named}


class Call(NamedTuple):
    """A call of `generate`, as it has prepared it."""

    processors: list[Any]  # those that change the logits before tokens are chosen from them
    sampling: dict[str, Any]  # arguments of `Sampler`; empty where it is greedy
    criteria: list[Any]  # stopping criteria beside length and EOS
    eos: frozenset[int]  # ids that end the output


def read_call(
    processors: Iterable[Any],
    criteria: Iterable[Any],
    config: Any,
    model_kwargs: Mapping[str, Any],
    others: Mapping[str, Any],
) -> Call:
    """What `generate` hands to a callable; arguments and errors as of `check_generation`."""
    check_generation(config, model_kwargs, others)
    own = [c for c in criteria if type(c).__name__ not in LIMITS]
    if any(type(c).__name__ == "ConfidenceCriteria" for c in own):
        raise SkipbenchError("skipbench cannot honour ConfidenceCriteria: it reads scores")
    eos = getattr(config, "_eos_token_tensor", None)
    ends = frozenset[int]() if eos is None else frozenset(eos.flatten().tolist())
    return Call(*split_processors(processors, config.do_sample), own, ends)


def prepare_call(
    model: Any, tokens: list[int], config: Any, processors: Iterable[Any], options: dict[str, Any]
) -> Call:
    """What `generate` of the model would do with a prompt: it prepares the call for a callable that
    decodes nothing. Raises SkipbenchError for an option that it does not know, or cannot honour.

    `config`, whose unset values are the model's, has the fields of `options` replaced; None takes
    these alone, so that what a checkpoint recommends changes no output unasked.
    """
    blank: Any = GenerationConfig  # untyped
    known = vars(blank())
    if unknown := [name for name in options if name not in known or name.startswith("_")]:
        hint = did_you_mean(unknown[0], [*known])
        raise SkipbenchError(f"generate does not know {', '.join(unknown)}.{hint}")
    if config is None:
        model = copy.copy(model)  # shares the weights
        config = model.generation_config = blank()
    config, found = copy.deepcopy(config), list[Call]()
    config.update(**options)

    def read(model: Any, input_ids: Tensor, **given: Any) -> Tensor:
        names = ("logits_processor", "stopping_criteria", "generation_config")
        own = [given.pop(name) for name in names]
        found.append(read_call(own[0], own[1], own[2], given, {}))
        return input_ids

    ids = torch.tensor([tokens], device=model.device)
    given = {"attention_mask": torch.ones_like(ids), "generation_config": config}
    given["logits_processor"] = LogitsProcessorList(processors)
    try:
        model.generate(ids, custom_generate=read, **given)
    except (ValueError, TypeError) as error:
        raise SkipbenchError(f"generate: {error}") from error
    return found[0]


def stop_criterion(stop: str | Sequence[str], tokenizer: Any, model: Any) -> Any:
    """Hugging Face's criterion for stop strings, with the model's own tokenizer where none is
    given; raises SkipbenchError where there is none.
    """
    if tokenizer is None:
        try:
            tokenizer = read_tokenizer(model.config._name_or_path or "no path")
        except SkipbenchError as error:
            raise SkipbenchError("stop_strings need tokenizer=, beside them in generate") from error
    return StopStringCriteria(tokenizer, [stop] if isinstance(stop, str) else list(stop))


def output(sequences: Tensor, as_dict: bool) -> Any:
    """The result of `generate`: the ids [1, T], or these in Hugging Face's class."""
    made: Any = GenerateDecoderOnlyOutput  # wants a LongTensor
    return made(sequences=sequences) if as_dict else sequences
