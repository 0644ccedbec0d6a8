"""The most likely tokens of bfloat16 logits on a CPU in one call (`top_k.c`)."""

import ctypes
import functools
from collections.abc import Callable

from torch import Tensor

from skipbench.lm.fused.elementwise import is_native
from skipbench.lm.fused.native import library


def native_top_k(logits: Tensor, k: int) -> list[list[int]] | None:
    """Per row of [T, V] the indices of the `k` largest, the largest first, of equal ones the first,
    and before them that of the largest, or -1 where it is not finite or the row has a NaN. `None`
    where there is no function of our own.
    """
    if not is_native(logits):
        return None
    logits = logits.contiguous()
    rows, vocabulary = logits.shape
    index = (ctypes.c_int32 * (rows * (k + 1)))()
    _function()(index, logits.data_ptr(), rows, vocabulary, k)
    width = k + 1
    return [index[at : at + width] for at in range(0, rows * width, width)]


@functools.cache
def _function() -> Callable[..., None]:
    function = library().top_k
    function.argtypes, function.restype = [*[ctypes.c_void_p] * 2, *[ctypes.c_long] * 3], None
    return function
