"""Tiles of Triton's products, as measured: the part of a weight that one program multiplies."""

from typing import NamedTuple

import torch

from skipbench.lm.cuda_graphs.ops import multiprocessors

INT8_ROWS = 16  # of one block of `int8_linear`


class Tile(NamedTuple):
    """Outputs of a program, inputs of a step, and one more than the steps that are loaded ahead."""

    outputs: int
    inputs: int
    stages: int

    @property
    def shared_bytes(self) -> int:
        """Of a program with a weight in 8 bits and half-precision rows."""
        return (self.outputs + 2 * INT8_ROWS) * self.inputs * (self.stages - 1)


# us of 1 and 9 rows in bfloat16 by a weight in 8 bits on an H100 80GB HBM3 (Triton 3.6, 4 warps,
# weights taken in turns larger than its L2, medians of 4; -: not measured), by inputs -> outputs:
#                     4096 -> 4096     -> 6144      -> 28672      -> 128256  14336 -> 4096
#   16 x 256, 4 stages   13.7 13.3   17.9 17.3   70.7 67.3   298.7 277.1   39.5 39.1
#   32 x 256, 4 stages      - 10.6      - 13.7      - 48.7   180.5 185.6      - 30.2
#   32 x 512, 4 stages   10.6 11.8   14.4 14.6   49.1 52.1   186.4 194.2   26.7 31.8
#   64 x 256, 3 stages   14.4 14.5   14.9 15.1   45.8 47.4   181.5 185.1   40.5 43.8
# Parts of the inputs side by side and a kernel that adds them take 25.9 and 26.8 of the last, and
# gain at most .3 elsewhere: with one row, as most draft passes have, a hundredth of a pass.
FEW = Tile(16, 256, 4)  # below SOME_OUTPUTS, whose programs do not fill a device; not measured
SOME = Tile(32, 256, 4)
LONG = Tile(32, 512, 4)  # of more than LONG_INPUTS
MANY = Tile(64, 256, 3)  # from MANY_OUTPUTS
SOME_OUTPUTS, MANY_OUTPUTS, LONG_INPUTS = 2048, 16384, 8192
HALF = FEW, SOME, LONG, MANY
FLOAT32 = Tile(16, 64, 4), Tile(32, 64, 4)  # the second from MANY_OUTPUTS; not measured


def int8_tile(outputs: int, inputs: int, dtype: torch.dtype, device: torch.device) -> Tile:
    """Of a weight [outputs, inputs] and rows of `dtype`, however many: a row has the same bits in
    every pass.
    """
    if dtype.itemsize == 4:
        return FLOAT32[outputs >= MANY_OUTPUTS]
    if outputs >= MANY_OUTPUTS:
        return MANY
    if outputs < SOME_OUTPUTS:
        return FEW
    programs = -(-outputs // LONG.outputs)
    long = inputs > LONG_INPUTS and programs <= side_by_side(LONG.shared_bytes, device)
    return LONG if long else SOME


def side_by_side(shared_bytes: int, device: torch.device) -> int:
    """Programs that a device runs at a time, by the shared memory that each takes: the others wait
    for those to end.
    """
    if device.type != "cuda":
        return multiprocessors(device)
    of_all = torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor
    each = of_all // (shared_bytes + 1024)  # the driver takes a KiB
    return int(each) * multiprocessors(device)
