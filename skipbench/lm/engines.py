"""The choice of an engine, or of the one that replaces it on this machine or for this model."""

import os
from typing import Any

from skipbench.errors import NotStrictError, SkipbenchError
from skipbench.lm.cache import KVCache
from skipbench.lm.engine import ENGINES, Engine
from skipbench.lm.families import is_llama
from skipbench.lm.fused.engine import fused_engine
from skipbench.lm.layer import Family
from skipbench.lm.reference import ReferenceEngine

EAGER_GRAPHS = "SKIPBENCH_EAGER_GRAPHS"
"""In the environment: the engine of graphs runs anywhere, by calls instead of graphs, on a CPU by
the operators' form in torch. For rehearsals: no figure of it means a GPU."""


def make_engine(name: str, model: Any, family: Family, cache: KVCache, *, strict: bool) -> Engine:
    """The engine of a name, or where it cannot run here another one whose notes say why. Raises
    SkipbenchError for an unknown name, or an engine that cannot be strict.
    """
    if name not in ENGINES:
        raise SkipbenchError(f"engine={name}; wanted one of {', '.join(ENGINES)}")
    if name == "reference":
        return ReferenceEngine(model, family, cache, strict=strict)
    if not is_llama(model):
        note = (
            f"engine={name} computes Llama's layer only, not this {model.config.model_type}'s: "
            "engine=reference is used instead, which calls Hugging Face's modules one by one"
        )
        if strict:
            fault = f"engine.strict=true cannot be kept: {note}; use engine.strict=false"
            raise NotStrictError(fault)
        return ReferenceEngine(model, family, cache, note)
    if name == "fused":
        return fused_engine(model, family, cache, strict)
    from skipbench.lm.cuda_graphs.capture import EagerCapture
    from skipbench.lm.cuda_graphs.engine import CudaGraphsEngine, replaced, unsupported_reason

    if os.environ.get(EAGER_GRAPHS):
        return CudaGraphsEngine(model, family, cache, strict=strict, capture=EagerCapture)
    if reason := unsupported_reason(model):
        return replaced(fused_engine(model, family, cache, strict), reason)
    return CudaGraphsEngine(model, family, cache, strict=strict)
