"""Triton's interpreter, which runs kernels on a CPU; skips the importing tests where Triton is not
installed. On a machine with a GPU the kernels run there instead.
"""

import os
from typing import Any

import pytest
import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read where a kernel is defined

interpreter = pytest.importorskip("triton.runtime.interpreter", exc_type=ImportError)
_patch_tensor = interpreter._patch_lang_tensor


def _with_index(tensor: Any) -> None:
    """Triton 3.5 makes an `int` of an array of one element, which NumPy 2.4 refuses."""
    _patch_tensor(tensor)
    tensor.__index__ = lambda self: int(self.handle.data.item())


interpreter._patch_lang_tensor = _with_index
