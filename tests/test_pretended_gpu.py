"""Tests of the simulated GPU: it refuses what a GPU refuses, and otherwise computes what a CPU does."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pretended_gpu
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

pytestmark = pytest.mark.skipif(
    pretended_gpu.reason_unavailable() is not None or torch.cuda.is_available(),
    reason="there is a real GPU, or none can be simulated",
)


@pytest.fixture(autouse=True)
def simulated_gpu() -> Iterator[pretended_gpu.Gpu]:
    with pretended_gpu.simulate_gpu() as gpu:
        yield gpu


def on_cpu(*shape: int) -> torch.Tensor:
    return torch.ones(*shape)


def on_gpu(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, device="cuda")


def run_lstm(state: torch.Tensor, *, make_input: Callable[..., torch.Tensor] = on_gpu) -> Any:
    lstm = nn.LSTM(2, 3, batch_first=True).to("cuda")
    return lstm(make_input(4, 5, 2), (state, on_gpu(1, 4, 3)))


REFUSED_CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "sum": (lambda: on_cpu(2) + on_gpu(2), "same device"),
    "product": (lambda: on_gpu(2, 2) @ on_cpu(2, 2), "same device"),
    "linear": (lambda: nn.Linear(2, 2)(on_gpu(1, 2)), "same device"),
    "cat": (lambda: torch.cat([on_gpu(2), on_cpu(2)]), "same device"),
    "embedding": (lambda: nn.Embedding(3, 2).to("cuda")(torch.zeros(2, dtype=torch.int64)), "same device"),
    "gather": (lambda: on_gpu(2, 2).gather(1, torch.zeros(2, 1, dtype=torch.int64)), "same device"),
    "mask": (lambda: on_gpu(2).masked_fill(on_cpu(2).bool(), 0), "same device"),
    "in place": (lambda: on_gpu(2).add_(on_cpu(2)), "same device"),
    "index": (lambda: on_cpu(2)[torch.zeros(1, dtype=torch.int64, device="cuda")], "same device"),
    "numpy": (lambda: on_gpu(2).numpy(), "numpy"),
    "array": (lambda: np.asarray(on_gpu(2)), "numpy"),
    "lengths": (lambda: pack_padded_sequence(on_gpu(2, 3, 1), on_gpu(2).long(), batch_first=True), "CPU"),
    "state": (lambda: run_lstm(on_gpu(1, 4, 6)[..., :3]), "hx is not contiguous"),
    "input": (lambda: run_lstm(on_gpu(1, 4, 3), make_input=on_cpu), "same device"),
}


@pytest.mark.parametrize("name", REFUSED_CALLS)
def test_calls_that_a_gpu_refuses_are_refused(name: str) -> None:
    call, reason = REFUSED_CALLS[name]
    with pytest.raises((RuntimeError, TypeError), match=reason):
        call()


COUNTED_CALLS: dict[str, tuple[Callable[[torch.Tensor], Any], int, int]] = {  # kernels and waits
    "views": (lambda x: x.view(-1)[:2].unsqueeze(0).t(), 0, 0),
    "memory": (lambda x: torch.empty_like(x), 0, 0),
    "product and activation": (lambda x: (x @ x).relu(), 2, 0),
    "in place": (lambda x: x.mul_(2).add_(1), 2, 0),
    "highest": (lambda x: x.topk(1), 2, 0),
    "number": (lambda x: float(x[0, 0]), 0, 1),
    "copy back": (lambda x: (x + 1).cpu(), 1, 1),
    "copy there": (lambda x: torch.ones(2).to("cuda"), 0, 0),
    "nonzero": (lambda x: x.nonzero(), 1, 1),
    "mask": (lambda x: x[x > 0], 2, 1),
    "attention": (lambda x: nn.functional.scaled_dot_product_attention(*[x[None, None]] * 3), 1, 0),
    "two hundred tensors": (lambda x: torch._foreach_add([x] * 200, 1), 2, 0),
}


@pytest.mark.parametrize("name", COUNTED_CALLS)
def test_kernels_and_waits_are_counted(simulated_gpu: pretended_gpu.Gpu, name: str) -> None:
    call, launches, waits = COUNTED_CALLS[name]
    x = on_gpu(2, 2)
    before = simulated_gpu.counts()
    call(x)
    after = simulated_gpu.counts()
    assert (after["launches"] - before["launches"], after["waits"] - before["waits"]) == (launches, waits)


def test_memory_ends_where_it_is_told_to(simulated_gpu: pretended_gpu.Gpu) -> None:
    simulated_gpu.memory_ends_at = ("add", 2)
    x = on_gpu(2) + 1
    with pytest.raises(torch.OutOfMemoryError):
        x + 1
    assert (x + 1).tolist() == [3.0, 3.0] and simulated_gpu.memory_ends_at is None


def test_float64_is_refused_on_request() -> None:
    assert on_gpu(2).double().dtype == torch.float64
    with pretended_gpu.simulate_gpu(has_float64=False), pytest.raises(TypeError, match="no float64"):
        on_gpu(2).double()


def test_numbers_and_indices_may_be_on_the_cpu() -> None:
    assert (on_gpu(2) * torch.tensor(2.0))[torch.tensor([1, 0])].tolist() == [2.0, 2.0]


def test_gradients_and_random_numbers_are_made_on_the_gpu() -> None:
    layer = nn.Linear(3, 3)
    copy = nn.Linear(3, 3).to("cuda")
    copy.load_state_dict(layer.state_dict())
    layer(on_cpu(2, 3)).sum().backward()
    copy(on_gpu(2, 3)).sum().backward()
    assert copy.weight.grad.device.type == "cuda" and torch.equal(copy.weight.grad.cpu(), layer.weight.grad)
    torch.cuda.manual_seed(3)
    before = torch.get_rng_state()
    numbers = torch.rand(4, device="cuda").cpu()
    assert torch.equal(torch.get_rng_state(), before), "the CPU's generator is separate"
    torch.cuda.manual_seed(3)
    assert torch.equal(torch.rand(4, device="cuda").cpu(), numbers)


def test_newer_versions_are_skipped_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "9.1.0+cpu")
    assert "torch 9.1.0" in str(pretended_gpu.reason_unavailable())
