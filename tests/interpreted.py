"""Triton's interpreter, which runs kernels on a CPU; skips the importing tests where Triton is not
installed. On a machine with a GPU the kernels run there instead.
"""

import os
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from skipbench.lm.cuda_graphs.on_cpu import OPERATORS

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read where a kernel is defined

interpreter = pytest.importorskip("triton.runtime.interpreter", exc_type=ImportError)
_patch_tensor = interpreter._patch_lang_tensor


def _with_index(tensor: Any, *scope: Any) -> None:
    """Triton 3.5 and 3.6 make an `int` of an array of one element, which NumPy 2.4 refuses."""
    _patch_tensor(tensor, *scope)
    tensor.__index__ = lambda self: int(self.handle.data.item())


interpreter._patch_lang_tensor = _with_index


def _wide(data: Any, dtype: Any) -> Any:
    """bfloat16, which NumPy lacks and the interpreter keeps as integers, as float32."""
    if dtype.scalar.name != "bf16":
        return data
    return (data.astype("uint32") << 16).view("float32")


def _dot(builder: Any, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> Any:
    """The interpreter of Triton 3.5 to 3.7 multiplies the integers. In float64, as the order of a
    sum in float32 depends on the place of a row, with the BLAS of some processors.
    """
    left, right = _wide(a.data, a.dtype), _wide(b.data, b.dtype)
    found = np.matmul(left, right, dtype="float64").astype(d.data.dtype) + d.data
    return interpreter.TensorHandle(found, d.dtype.scalar)


def _cast(builder: Any, source: Any, to: Any) -> Any:
    """The interpreter of Triton 3.5 to 3.7 rounds bfloat16 towards zero, a GPU to the nearest."""
    if source.dtype.scalar.name == "fp32" and to.scalar.name == "bf16":
        rounded = torch.from_numpy(np.ascontiguousarray(source.data)).bfloat16()
        return interpreter.TensorHandle(rounded.view(torch.int16).numpy().view("uint16"), to.scalar)
    return _plain_cast(builder, source, to)


def _to_tensor(semantic: Any, x: Any, *rest: Any, **named: Any) -> Any:
    """The interpreter makes a constant of a sum of a constant and a tensor; Triton 3.7 refuses it
    as an operand.
    """
    return _plain_to_tensor(semantic, getattr(x, "value", x), *rest, **named)


_plain_cast = interpreter.InterpreterBuilder.cast_impl
_plain_to_tensor = interpreter.TritonSemantic.to_tensor
interpreter.TritonSemantic.to_tensor = _to_tensor
interpreter.InterpreterBuilder.create_dot = _dot
interpreter.InterpreterBuilder.cast_impl = _cast


def kernel(room: ModuleType, name: str) -> Any:
    """What launches the kernel of an operator, whatever the device."""
    return getattr(room, name)._init_fn


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels in the place of the operators, which are plain torch on a CPU."""
    for room, names in OPERATORS.items():
        for name in names:
            monkeypatch.setattr(room, name, kernel(room, name))
