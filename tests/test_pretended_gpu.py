"""The pretended GPU refuses what a GPU refuses, and otherwise computes what a CPU does."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pretended_gpu
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

pytestmark = pytest.mark.skipif(
    pretended_gpu.unknown() is not None or torch.cuda.is_available(), reason="a real GPU, or none can be pretended"
)


@pytest.fixture(autouse=True)
def pretended() -> Iterator[None]:
    with pretended_gpu.pretended():
        yield


def here(*shape: int) -> torch.Tensor:
    return torch.ones(*shape)


def there(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, device="cuda")


def by_cudnn(state: torch.Tensor, *, on: Callable[..., torch.Tensor] = there) -> Any:
    lstm = nn.LSTM(2, 3, batch_first=True).to("cuda")
    return lstm(on(4, 5, 2), (state, there(1, 4, 3)))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "sum": (lambda: here(2) + there(2), "same device"),
    "product": (lambda: there(2, 2) @ here(2, 2), "same device"),
    "linear": (lambda: nn.Linear(2, 2)(there(1, 2)), "same device"),
    "cat": (lambda: torch.cat([there(2), here(2)]), "same device"),
    "embedding": (lambda: nn.Embedding(3, 2).to("cuda")(torch.zeros(2, dtype=torch.int64)), "same device"),
    "gather": (lambda: there(2, 2).gather(1, torch.zeros(2, 1, dtype=torch.int64)), "same device"),
    "mask": (lambda: there(2).masked_fill(here(2).bool(), 0), "same device"),
    "in place": (lambda: there(2).add_(here(2)), "same device"),
    "index": (lambda: here(2)[torch.zeros(1, dtype=torch.int64, device="cuda")], "same device"),
    "numpy": (lambda: there(2).numpy(), "numpy"),
    "array": (lambda: np.asarray(there(2)), "numpy"),
    "lengths": (lambda: pack_padded_sequence(there(2, 3, 1), there(2).long(), batch_first=True), "CPU"),
    "state": (lambda: by_cudnn(there(1, 4, 6)[..., :3]), "hx is not contiguous"),
    "input": (lambda: by_cudnn(there(1, 4, 3), on=here), "same device"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_refuses_what_a_gpu_refuses(name: str) -> None:
    call, reason = REFUSED[name]
    with pytest.raises((RuntimeError, TypeError), match=reason):
        call()


def test_float64_is_refused_on_request() -> None:
    assert there(2).double().dtype == torch.float64
    with pretended_gpu.pretended(has_float64=False), pytest.raises(TypeError, match="no float64"):
        there(2).double()


def test_numbers_and_indices_may_be_on_the_cpu() -> None:
    assert (there(2) * torch.tensor(2.0))[torch.tensor([1, 0])].tolist() == [2.0, 2.0]


def test_gradients_and_random_numbers_are_a_gpus() -> None:
    layer = nn.Linear(3, 3)
    copy = nn.Linear(3, 3).to("cuda")
    copy.load_state_dict(layer.state_dict())
    layer(here(2, 3)).sum().backward()
    copy(there(2, 3)).sum().backward()
    assert copy.weight.grad.device.type == "cuda" and torch.equal(copy.weight.grad.cpu(), layer.weight.grad)
    torch.cuda.manual_seed(3)
    before = torch.get_rng_state()
    drawn = torch.rand(4, device="cuda").cpu()
    assert torch.equal(torch.get_rng_state(), before), "the CPU's generator is another"
    torch.cuda.manual_seed(3)
    assert torch.equal(torch.rand(4, device="cuda").cpu(), drawn)


def test_newer_versions_are_skipped_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "9.1.0+cpu")
    assert "torch 9.1.0" in str(pretended_gpu.unknown())
