"""Families without a row: the decoder layer is found by hooks on its modules in one forward pass.

Tensors are followed by identity: the norm whose output is the input of attention comes before it,
the norm whose input is the output of attention comes after it, and so on. Differences that this
cannot see, as a factor of the residual sum, are caught by `prove` (`lm/proof.py`), which compares
the engine's logits with the model's own.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from skipbench.errors import SkipbenchError
from skipbench.lm.layer import (
    Arguments,
    Block,
    Family,
    no_window,
    one_window,
    text_config,
    window_by_layer,
)

TOKENS = 12  # of the probe's text
KNOWN_WINDOWS = (
    "sliding_window",
    "sliding_window_pattern",
    "use_sliding_window",
    "max_window_layers",
)
"""Fields whose meaning is in `layer_types`, which every configuration derives from them."""


@dataclass(frozen=True)
class Call:
    """One call of a module: its arguments by the names of its `forward`, and its result."""

    name: str
    module: nn.Module
    given: dict[str, Any]
    output: Any

    @property
    def input(self) -> Any:
        """The first argument that is a tensor."""
        return next((v for v in self.given.values() if isinstance(v, Tensor)), None)

    @property
    def result(self) -> Any:
        """The output, the first of several."""
        return self.output[0] if isinstance(self.output, tuple) else self.output


def probe_tokens(model: Any) -> Tensor:
    """Random token ids [1, TOKENS], the same for every call."""
    vocabulary = model.get_input_embeddings().weight.shape[0]
    device = model.get_input_embeddings().weight.device
    made = torch.randint(vocabulary, (1, TOKENS), generator=torch.Generator().manual_seed(0))
    return made.to(device)


@torch.inference_mode()
def trace(model: Any) -> Family:
    """Describes a model of Hugging Face by one forward pass over a short random prompt.

    Raises:
        SkipbenchError: no description of `Family` fits, with what differs.
    """
    layers_path, layers = _layers(model)
    outer, inner = list[Call](), [list[Call]() for _ in layers]
    body = model.get_submodule(layers_path.rpartition(".")[0]) if "." in layers_path else model
    watched = [
        (outer, name, module) for name, module in body.named_children() if module is not layers
    ]
    watched += [(outer, str(i), layer) for i, layer in enumerate(layers)]
    watched += [
        (calls, name, module)
        for calls, layer in zip(inner, layers, strict=True)
        for name, module in layer.named_children()
    ]
    from transformers import DynamicCache

    cache = DynamicCache()  # without windows, so that every layer keeps all tokens
    with _recorded(watched):
        try:
            model(probe_tokens(model), past_key_values=cache, use_cache=True)
        except (TypeError, ValueError, RuntimeError, AttributeError) as error:
            _refuse(model, f"its forward pass with a cache fails ({error})")
    kv_shape = _kv_shape(model, cache, len(layers))
    entries = {call.name: call for call in outer}
    found = [_layer(model, entries[str(i)], calls) for i, calls in enumerate(inner)]
    if len({(y.attention, y.mlp, y.parallel, y.arguments) for y in found}) > 1:
        _refuse(model, "its layers are not all of one form")
    last = entries[str(len(layers) - 1)].result
    norm = next((call for call in outer if call.input is last), None)
    if norm is None:
        _refuse(model, "no module reads the output of its last layer")
    rotary, kinds = _rotary(outer, found)
    names = {id(module): name for name, module in model.named_modules()}
    return Family(
        attention=found[0].attention,
        mlp=found[0].mlp,
        parallel=found[0].parallel,
        qkv=(),
        gate_up=(),
        window=_window(model),
        rotary_kind=lambda config, layer: kinds[layer],
        embedding_path=names[id(model.get_input_embeddings())],
        layers_path=layers_path,
        norm_path=names[id(norm.module)],
        rotary_path=None if rotary is None else names[id(rotary.module)],
        head_path=names[id(model.get_output_embeddings())],
        arguments=found[0].arguments,
        kv_shape=kv_shape,
        traced=True,
    )


@dataclass(frozen=True)
class _Layer:
    attention: Block
    mlp: Block
    parallel: bool
    arguments: Arguments
    rotary: Any
    """The tables that attention was given."""


def _rotary(outer: list[Call], layers: list[_Layer]) -> tuple[Call | None, list[str | None]]:
    """The module that makes rotary tables, and which kind of them each layer takes."""
    made = [call for call in outer if _is_pair(call.output)]
    kinds: list[str | None] = []
    for layer in layers:
        call = next((c for c in made if layer.rotary is c.output), None)
        kinds.append(None if call is None else str(call.given.get("layer_type", "")))
    return next(iter(made), None), kinds


def _layer(model: Any, whole: Call, calls: list[Call]) -> _Layer:
    """Connects the modules of one layer by their tensors."""
    calls = [call for call in calls if not isinstance(call.module, nn.Dropout | nn.Identity)]
    attentions = [call for call in calls if any(_is_cache(v) for v in call.given.values())]
    norms = [call for call in calls if "norm" in type(call.module).__name__.lower()]
    rest = [call for call in calls if call not in attentions and call not in norms]
    if len(attentions) != 1 or len(rest) != 1:
        names = ", ".join(f"{call.name} ({type(call.module).__name__})" for call in calls)
        _refuse(model, f"layer {whole.name} is not one attention and one MLP, but {names}")
    (attention,), (mlp,), entry = attentions, rest, whole.input

    def before(call: Call) -> Call | None:
        found = next((norm for norm in norms if norm.result is call.input), None)
        if found is None and call is attention and call.input is not entry:
            _refuse(model, f"the input of {call.name} in layer {whole.name} is made by no module")
        return found

    def behind(call: Call) -> str | None:
        return next((norm.name for norm in norms if norm.input is call.result), None)

    first, second = before(attention), before(mlp)
    read = mlp.input if second is None else second.input
    return _Layer(
        Block(attention.name, None if first is None else first.name, behind(attention)),
        Block(mlp.name, None if second is None else second.name, behind(mlp)),
        read is entry,
        _arguments(model, attention),
        next((v for v in attention.given.values() if _is_pair(v)), None),
    )


def _arguments(model: Any, attention: Call) -> Arguments:
    """The roles of the arguments that the attention module is given by name; its defaults fill the
    rest.
    """
    roles: list[tuple[str, str]] = []
    named = inspect.signature(attention.module.forward).parameters
    for name, value in attention.given.items():
        if name not in named:  # one of **kwargs, which attention kernels may read
            continue
        if value is attention.input:
            roles.append((name, "hidden"))
        elif _is_cache(value):
            roles.append((name, "cache"))
        elif _is_pair(value):
            roles.append((name, "rotary"))
        elif "mask" in name:
            roles.append((name, "mask"))
        elif name == "position_ids":
            roles.append((name, "positions"))
        elif isinstance(value, Tensor):
            _refuse(model, f"its attention takes {name!r} in a form that is unknown here")
    return tuple(roles)


def _window(model: Any) -> Any:
    """The windows by Hugging Face's convention; a short text cannot show them."""
    config = text_config(model.config)
    unknown = [
        key
        for key, value in config.to_dict().items()
        if ("window" in key or "chunk" in key) and key.lstrip("_") not in KNOWN_WINDOWS and value
    ]
    if unknown:
        _refuse(model, f"its configuration has {', '.join(unknown)}, which is unknown here")
    if getattr(config, "sliding_window", None) is None:
        return no_window
    if getattr(config, "layer_types", None) is not None:
        return window_by_layer
    return one_window if getattr(config, "use_sliding_window", True) else no_window


def _kv_shape(model: Any, cache: Any, layers: int) -> tuple[int, int]:
    """Key heads and size of a head; every layer must keep keys and values of the same."""
    shapes = {
        tuple(tensor.shape) if isinstance(tensor, Tensor) else ()
        for layer in cache.layers
        for tensor in (getattr(layer, "keys", None), getattr(layer, "values", None))
    }
    shape = next(iter(shapes)) if len(shapes) == 1 and len(cache.layers) == layers else ()
    if len(shape) != 4 or shape[2] != TOKENS:
        _refuse(
            model,
            f"its cache holds {len(cache.layers)} layers of shapes {sorted(shapes)}, not "
            f"{layers} of one shape for {TOKENS} tokens",
        )
    return int(shape[1]), int(shape[3])


def _layers(model: Any) -> tuple[str, nn.ModuleList]:
    """Name and list of the decoder layers."""
    count = getattr(text_config(model.config), "num_hidden_layers", None)
    inside = {id(module) for module in model.get_decoder().modules()}
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count and id(module) in inside:
            return name, module
    _refuse(model, f"its decoder has no list of {count} layers")


def _is_cache(value: Any) -> bool:
    from transformers import Cache

    return isinstance(value, Cache)


def _is_pair(value: Any) -> bool:
    """True for rotary tables: cosine and sine."""
    return (
        isinstance(value, tuple) and len(value) == 2 and all(isinstance(v, Tensor) for v in value)
    )


@contextmanager
def _recorded(watched: list[tuple[list[Call], str, nn.Module]]) -> Iterator[None]:
    """Records the calls of modules meanwhile."""
    handles = []
    for calls, name, module in watched:
        signature = inspect.signature(module.forward)

        def note(
            module: nn.Module,
            args: Any,
            kwargs: Any,
            output: Any,
            calls: list[Call] = calls,
            name: str = name,
            signature: inspect.Signature = signature,
        ) -> None:
            given: dict[str, Any] = {}
            for key, value in signature.bind(*args, **kwargs).arguments.items():
                given |= (
                    value
                    if signature.parameters[key].kind == inspect.Parameter.VAR_KEYWORD
                    else {key: value}
                )
            calls.append(Call(name, module, given, output))

        handles.append(module.register_forward_hook(note, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _refuse(model: Any, reason: str) -> NoReturn:
    raise SkipbenchError(
        f"model family {model.config.model_type!r} has no row in skipbench/lm/families.py, and its "
        f"layer cannot be traced: {reason}"
    )
