"""The pretended GPU: what it must notice, or tests that lean on it would pass for nothing."""

import pytest
import torch

from fake_cuda import fake_cuda

NOT_PINNED = "copy of memory that is not pinned"


def test_mixed_devices_are_noticed():
    with fake_cuda() as waits:
        x = torch.ones(2, 3).pin_memory().to("cuda", non_blocking=True)
        assert (x @ x.T).device == torch.device("cuda", 0)
        with pytest.raises(RuntimeError, match="cpu.*cuda|cuda.*cpu"):
            x + torch.ones(2, 3)
    assert waits == []


@pytest.mark.parametrize(
    ("wait", "named"),
    [
        (lambda x: x.sum().item(), "item"),
        (lambda x: bool((x > 0).any()), "item"),
        (lambda x: x.tolist(), "copy to the host"),
        (lambda x: x.cpu(), "copy to the host"),
        (lambda x: torch.empty(2, 3).copy_(x), "copy to the host"),
        (lambda x: torch.cuda.synchronize(), "synchronize"),
        (lambda x: torch.ones(4).to("cuda", non_blocking=True), NOT_PINNED),
        (lambda x: torch.tensor([1, 2], device="cuda"), NOT_PINNED),
    ],
)
@pytest.mark.parametrize("inference", [False, True])
def test_each_wait_is_named_once(wait, named, inference):
    with fake_cuda() as waits, torch.inference_mode(inference):
        x = torch.empty(2, 3, device="cuda")
        wait(x + 1)
    assert waits == [named]


@pytest.mark.parametrize("wait", [lambda x: x.nonzero(), lambda x: x[x > 0]])
def test_sizes_that_depend_on_values_are_refused(wait):
    with fake_cuda() as waits, pytest.raises(Exception, match="nonzero"):
        wait(torch.empty(2, 3, device="cuda"))
    assert waits == ["nonzero"]


def test_values_are_zero_or_as_told():
    with fake_cuda():
        assert torch.ones(2, device="cuda").tolist() == [0.0, 0.0]
        assert torch.ones(2, dtype=torch.bool, device="cuda")[0].item() is False
    with fake_cuda(answer=lambda tensor: 7) as waits:
        assert torch.ones((), dtype=torch.long, device="cuda").item() == 7
    assert waits == ["item"]


def test_a_module_moves_with_its_buffers():
    with fake_cuda():
        module = torch.nn.BatchNorm1d(3).to("cuda")
        assert {t.device.type for t in module.state_dict().values()} == {"cuda"}
        assert all(isinstance(p, torch.nn.Parameter) for p in module.parameters())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_is_that_of_a_gpu(dtype):
    with fake_cuda(), torch.autocast("cuda", dtype=dtype):
        x = torch.ones(2, 3, device="cuda")
        assert (x @ x.T).dtype == dtype
        assert (x @ x.T).softmax(-1).dtype == torch.float32  # on a CPU it stays in 16 bits


def test_afterwards_there_is_no_gpu():
    with fake_cuda():
        assert torch.cuda.is_available() and torch.cuda.get_device_capability("cuda") == (8, 0)
    assert torch.ones(2).tolist() == [1.0, 1.0]
    assert torch.cuda.is_available() == (torch.cuda.device_count() > 0)
