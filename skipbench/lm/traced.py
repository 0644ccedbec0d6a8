"""Families without a row: hooks on the modules describe the decoder layer in one forward pass.

Tensors are followed by identity: the norm whose output is the input of attention comes before it.
Differences that this cannot see, as a factor of the residual sum, are caught by `prove`
(`lm/proof.py`), which compares the engine's logits with the model's own.
"""

import inspect
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from skipbench.errors import SkipbenchError
from skipbench.lm.layer import Arguments, Block, Family, text_config

TOKENS = 12  # of the probe's text
WINDOWS = ["sliding_window", "sliding_window_pattern", "use_sliding_window", "max_window_layers"]
"""Fields whose meaning is in `layer_types`, which every configuration derives from them."""


class Call(NamedTuple):
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
    table = model.get_input_embeddings().weight
    generator = torch.Generator().manual_seed(0)
    return torch.randint(len(table), (1, TOKENS), generator=generator).to(table.device)


@torch.inference_mode()
def trace(model: Any) -> Family:
    """Describes a model of Hugging Face by one forward pass over a short random prompt. Raises
    SkipbenchError, with what differs, where no description of `Family` fits.
    """
    from transformers import DynamicCache

    layers_path, layers = _layers(model)
    outer, inner = list[Call](), [list[Call]() for _ in layers]
    body = model.get_submodule(layers_path.rpartition(".")[0])
    cache = DynamicCache()  # without windows, so that every layer keeps all tokens
    with ExitStack() as stack:
        for name, module in body.named_children():
            if module is not layers:
                stack.enter_context(recorded(outer, name, module))
        for index, (calls, layer) in enumerate(zip(inner, layers, strict=True)):
            stack.enter_context(recorded(outer, str(index), layer))
            for name, module in layer.named_children():
                stack.enter_context(recorded(calls, name, module))
        try:
            model(probe_tokens(model), past_key_values=cache, use_cache=True)
        except (TypeError, ValueError, RuntimeError, AttributeError, LookupError) as error:
            _refuse(model, f"its forward pass with a cache fails ({error})")
    kv_shape, entries = _kv_shape(model, cache, len(layers)), {call.name: call for call in outer}
    found = [_layer(model, entries[str(i)], calls) for i, calls in enumerate(inner)]
    if len({family for family, _ in found}) > 1:
        _refuse(model, "its layers are not all of one form")
    last = entries[str(len(layers) - 1)].result
    norm = next((call for call in outer if call.input is last), None)
    if norm is None:
        _refuse(model, "no module reads the output of its last layer")
    tables = [call for call in outer if _is_pair(call.output)]
    made = [next((c for c in tables if rotary is c.output), None) for _, rotary in found]
    names = {id(module): name for name, module in model.named_modules()}
    return replace(
        found[0][0],
        qkv=(),
        gate_up=(),
        windows=_windows(model),
        rotary=tuple(c and str(c.given.get("layer_type", "")) for c in made),
        embedding_path=names[id(model.get_input_embeddings())],
        layers_path=layers_path,
        norm_path=names[id(norm.module)],
        rotary_path=names[id(tables[0].module)] if tables else None,
        head_path=names[id(model.get_output_embeddings())],
        kv_shape=kv_shape,
        traced=True,
    )


def _layer(model: Any, whole: Call, calls: list[Call]) -> tuple[Family, Any]:
    """Connects the modules of one layer by their tensors; also the rotary tables it was given."""
    calls = [call for call in calls if not isinstance(call.module, nn.Dropout | nn.Identity)]
    attentions = [call for call in calls if any(map(_is_cache, call.given.values()))]
    norms = [call for call in calls if "norm" in type(call.module).__name__.lower()]
    rest = [call for call in calls if call not in attentions and call not in norms]
    if len(attentions) != 1 or len(rest) != 1:
        names = ", ".join(f"{call.name} ({type(call.module).__name__})" for call in calls)
        _refuse(model, f"layer {whole.name} is not one attention and one MLP, but {names}")
    (attention,), (mlp,), entry = attentions, rest, whole.input

    def block(call: Call) -> tuple[Block, Any]:
        """A module with its norms, and the state that it reads through the first."""
        before = next((norm for norm in norms if norm.result is call.input), None)
        after = next((norm.name for norm in norms if norm.input is call.result), None)
        return Block(call.name, before and before.name, after), (before or call).input

    (first, read), (second, mlp_read) = block(attention), block(mlp)
    if first.before is None and read is not entry:
        _refuse(model, f"the input of {attention.name} in layer {whole.name} is made by no module")
    rotary = next(filter(_is_pair, attention.given.values()), None)
    arguments = _arguments(model, attention)
    return Family(first, second, parallel=mlp_read is entry, arguments=arguments), rotary


def _arguments(model: Any, attention: Call) -> Arguments:
    """The roles of the arguments that the attention module is given by name."""
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


def _windows(model: Any) -> str:
    """The windows by Hugging Face's convention; a short text cannot show them."""
    config = text_config(model.config)
    unknown = [
        key
        for key, value in config.to_dict().items()
        if ("window" in key or "chunk" in key) and key.lstrip("_") not in WINDOWS and value
    ]
    if unknown:
        _refuse(model, f"its configuration has {', '.join(unknown)}, which is unknown here")
    if getattr(config, "sliding_window", None) is None:
        return ""
    if getattr(config, "layer_types", None) is not None:
        return "type"
    return "all" if getattr(config, "use_sliding_window", True) else ""


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


def recorded(calls: list[Call], name: str, module: nn.Module) -> RemovableHandle:
    """Appends the calls of a module to `calls` while the handle is open."""
    signature = inspect.signature(module.forward)

    def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        given: dict[str, Any] = {}
        for key, value in signature.bind(*args, **kwargs).arguments.items():
            more = signature.parameters[key].kind == inspect.Parameter.VAR_KEYWORD
            given |= value if more else {key: value}
        calls.append(Call(name, module, given, output))

    return module.register_forward_hook(note, with_kwargs=True)


def _refuse(model: Any, reason: str) -> NoReturn:
    raise SkipbenchError(
        f"model family {model.config.model_type!r} has no row in skipbench/lm/families.py, and its "
        f"layer cannot be traced: {reason}"
    )
