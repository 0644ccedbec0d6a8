"""The stand-ins of streams, events, graphs and kernels: each rule of a GPU that they stand for."""

import pytest
import torch
from fake_cuda import CheckedCapture, Journal, cpu_behind_cuda, fake_cuda
from fake_cuda.attention import sdpa_kernel

from skipbench.lm.cuda_graphs.capture import CudaGraphCapture

cuda = torch.cuda
CUDA = torch.device("cuda:0")


def on_cuda(*values: float) -> torch.Tensor:
    return torch.tensor(values).to(CUDA)


def found(journal: Journal, *kinds: str) -> list[str]:
    """Findings of these kinds, or of order and graphs; and none from now on."""
    lines = journal.lines(*(kinds or ("order", "graph", "capture")))
    journal.clear()
    return lines


def test_a_graph_replays_its_tape_and_not_the_function() -> None:
    with cpu_behind_cuda() as journal:
        state, host = on_cuda(1.0, 2.0), {"step": 10.0}
        graphs = CheckedCapture(CUDA)
        state.add_(0)
        replay = graphs.capture(lambda: [state.mul_(2), state.add_(host["step"])])
        assert state.tolist() == [12.0, 14.0]  # executed once, before the capture
        replay()
        assert state.tolist() == [34.0, 38.0] and not found(journal)
        host["step"] = 20.0
        replay()
        assert state.tolist() == [78.0, 86.0]
        (line,) = found(journal)
        assert "capture.py:" in line and "has 10.0" in line and "it is 20.0" in line


def test_memory_of_a_graph_lasts_until_an_earlier_one_of_its_pool_is_replayed() -> None:
    with cpu_behind_cuda() as journal:
        state, made, graphs = on_cuda(1.0), {}, CudaGraphCapture(CUDA)
        first = graphs.capture(lambda: [state.mul_(2)])
        second = graphs.capture(lambda: made.update(out=state + 1))
        made["out"].tolist()
        assert "not replayed yet" in found(journal)[0]
        second()
        kept = made["out"] * 1
        assert kept.tolist() == [3.0] and not found(journal)
        first()
        made["out"] * 1
        assert "the replay of another overwrote" in found(journal)[0]


def test_a_graph_needs_the_memory_that_it_was_captured_with() -> None:
    with cpu_behind_cuda() as journal:
        state, other = on_cuda(1.0), [on_cuda(5.0)]
        replay = CheckedCapture(CUDA).capture(lambda: [state.add_(other[0])])
        replay()
        assert not found(journal)
        other[0] = on_cuda(6.0)
        replay()
        assert any("freed" in line for line in found(journal)) and state.tolist() == [16.0]


def test_streams_and_events_order_what_they_should() -> None:
    with cpu_behind_cuda() as journal:
        main, side, values = cuda.current_stream(), cuda.Stream(CUDA), on_cuda(1.0)
        with cuda.stream(side):
            values.mul_(2)
        assert found(journal)  # uploaded on another stream
        side.wait_stream(main)
        with cuda.stream(side):
            early = side.record_event()
            made = values.mul_(2) + 1
        main.wait_event(early)
        made * 1
        assert "reads what another stream" in found(journal)[0]
        main.wait_stream(side)
        assert (made * 1).tolist() == [5.0] and not found(journal)
        main.wait_event(side.record_event())
        values * 1
        with cuda.stream(side):
            values.zero_()
        assert "overwrites what another stream" in found(journal)[0]
        cuda.synchronize()
        values.add_(1)
        assert not found(journal)


@pytest.mark.parametrize(
    "read", [float, lambda t: t.tolist(), lambda t: t.numpy(), lambda t: t + 1]
)
def test_the_host_waits_before_it_reads_what_is_on_its_way(read: object) -> None:
    with cpu_behind_cuda() as journal:
        for waits in (True, False):
            target, event = torch.empty(1, pin_memory=True), cuda.Event()
            target.copy_(on_cuda(1.0), non_blocking=True)
            event.record()
            if waits:
                event.synchronize()
            read(target)  # type: ignore[operator]  # each takes a tensor
            assert bool(found(journal)) is not waits


def test_the_host_waits_before_it_overwrites_what_is_read() -> None:
    with cpu_behind_cuda() as journal:
        staged, event = torch.zeros(4).pin_memory(), cuda.Event()
        for waits in (True, False):
            staged[:2].to(CUDA, non_blocking=True)
            event.record()
            if waits:
                event.synchronize()
            staged[1] = 5.0
            assert bool(found(journal)) is not waits


@pytest.mark.parametrize(
    ("capability", "cudnn", "kernel"),
    [(8, True, "efficient"), (9, True, "cudnn"), (9, False, "efficient")],
)
def test_kernels_are_tried_in_the_order_of_the_gpu(
    capability: int, cudnn: bool, kernel: str
) -> None:
    with fake_cuda():
        torch.backends.cuda.enable_cudnn_sdp(cudnn)
        query, key = (torch.empty(1, 2, n, 8, dtype=torch.bfloat16, device=CUDA) for n in (4, 16))
        mask = torch.empty(1, 1, 4, 16, dtype=torch.bfloat16, device=CUDA)
        assert sdpa_kernel(query, key, key, mask, False, capability) == kernel
        wanted = "cudnn" if kernel == "cudnn" else "flash"
        assert sdpa_kernel(query, key, key, None, False, capability) == wanted
        with pytest.raises(RuntimeError, match="invalid dtype for bias"):
            sdpa_kernel(query, key, key, mask.float(), False, capability)
        assert sdpa_kernel(query.float(), key.float(), key.float(), None, True) == "math"
