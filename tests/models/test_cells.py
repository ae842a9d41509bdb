"""Tests that cells equal those of torch, or a plain transcription of the paper."""

import math

import pytest
import torch
from torch import nn

from seqtool.errors import InputError
from seqtool.models.attention import make_score
from seqtool.models.cells import CELLS, GRUCho, Recurrence, make_cell
from seqtool.models.fast.parts_for import parts_for
from seqtool.models.parts import PLAIN, Parts

TORCH_CELLS = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


@pytest.mark.parametrize("cell", TORCH_CELLS)
def test_cells_equal_those_of_torch(cell: str) -> None:
    torch.manual_seed(1)
    torch_cell = TORCH_CELLS[cell](5, 4, batch_first=True)
    recurrence = Recurrence(cell, 5, 4)
    weights = dict(torch_cell.named_parameters())
    with torch.no_grad():
        recurrence.input.weight.copy_(weights["weight_ih_l0"])
        recurrence.input.bias.copy_(weights["bias_ih_l0"])
        recurrence.cell.recurrent.weight.copy_(weights["weight_hh_l0"])
        recurrence.cell.recurrent.bias.copy_(weights["bias_hh_l0"])
    x = torch.randn(3, 7, 5)
    expected, last = torch_cell(x)
    states = recurrence(x)
    assert torch.allclose(states.h, expected, atol=1e-6)
    final = last if isinstance(last, tuple) else (last,)
    for tensor, expected_tensor in zip(states.last, final, strict=True):
        assert torch.allclose(tensor, expected_tensor[0], atol=1e-6)


def test_gru_cho_equals_the_paper() -> None:
    """The equations of Bahdanau et al. 2015, A.1.1, are computed step by step for one sentence."""
    torch.manual_seed(2)
    recurrence = Recurrence("gru_cho", 3, 4)
    cell = recurrence.cell
    assert isinstance(cell, GRUCho)
    W_r, W_z, W = recurrence.input.weight.split(4)  # noqa: N806
    b_r, b_z, b = recurrence.input.bias.split(4)
    U_r, U_z = cell.recurrent.weight.split(4)  # noqa: N806
    U = cell.candidate.weight  # noqa: N806
    x = torch.randn(1, 6, 3)
    s = torch.zeros(4)
    for t, state in enumerate(recurrence(x).h.unbind(1)):
        e = x[0, t]
        z = torch.sigmoid(W_z @ e + b_z + U_z @ s)
        r = torch.sigmoid(W_r @ e + b_r + U_r @ s)
        candidate = torch.tanh(W @ e + b + U @ (r * s))
        s = (1 - z) * s + z * candidate
        assert torch.allclose(state[0], s, atol=1e-6)


@pytest.mark.parametrize("device", [None, "cpu", "cuda"])
@pytest.mark.parametrize("cell", CELLS)
def test_stepping_equals_running(cell: str, device: str | None) -> None:
    """States are equal up to the end of each row, which padding does not change, with plain and with faster parts."""
    recurrence = make_recurrence(cell, device)
    x = torch.randn(3, 5, 3)
    lengths = torch.tensor([3, 5, 1])
    state = first = tuple(torch.randn(3, 4) for _ in range(recurrence.cell.tensors))
    full, with_lengths = recurrence(x, first), recurrence(x, first, lengths=lengths)
    for t in range(5):
        state = recurrence.step(x[:, t], state)
        assert torch.allclose(full.h[:, t], state[0], atol=1e-6)
        assert torch.allclose(with_lengths.h[lengths > t, t], state[0][lengths > t], atol=1e-6)
        for actual, expected in zip(with_lengths.last, state, strict=True):
            assert torch.allclose(actual[lengths == t + 1], expected[lengths == t + 1], atol=1e-6)
    for actual, expected in zip(full.last, state, strict=True):
        assert torch.allclose(actual, expected, atol=1e-6)


def choose_parts(device: str | None) -> Parts:
    return PLAIN if device is None else parts_for(torch.device(device))


def make_recurrence(cell: str, device: str | None) -> Recurrence:
    return Recurrence(cell, 3, 4, choose_parts(device))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("cell", CELLS)
def test_gradients_over_a_sequence_equal_the_plain_ones(cell: str, device: str) -> None:
    """Gradients flow from the h of every step and from the last state, back to the first state."""
    torch.manual_seed(3)
    recurrence = make_recurrence(cell, None).double()
    quick = make_recurrence(cell, device).double()
    quick.load_state_dict(recurrence.state_dict())
    x = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    first = tuple(torch.randn(2, 4, dtype=torch.float64, requires_grad=True) for _ in range(recurrence.cell.tensors))
    lengths = torch.tensor([2, 5])

    def gradients(module: Recurrence, outputs: slice) -> tuple[torch.Tensor, ...]:
        states = module(x, first, lengths=lengths)
        h = states.h * (torch.arange(5) < lengths[:, None])[:, :, None]
        tensors = (h, *states.last)[outputs]
        total = sum((tensor * torch.arange(4)).cos().sum() for tensor in tensors)
        return torch.autograd.grad(total, [x, *first, *module.parameters()])

    for outputs in (slice(None), slice(0, 1), slice(-1, None)):  # all; only h; only the end of the last state
        for actual, expected in zip(gradients(quick, outputs), gradients(recurrence, outputs), strict=True):
            assert torch.allclose(actual, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("device", "max_ratio"), [(None, 1.05), ("cpu", 1.25), ("cuda", 1.25)])
@pytest.mark.parametrize("cell", CELLS)
def test_the_state_is_not_rounded_at_every_step(cell: str, device: str | None, max_ratio: float) -> None:
    """In a hundred steps with bf16 products, the error without gradients is about that with gradients; faster parts
    multiply in another order. Rounding the state would make the error three times as large.
    """
    torch.manual_seed(4)
    recurrence = Recurrence(cell, 32, 32, choose_parts(device))
    with torch.no_grad():
        for parameter in recurrence.parameters():
            parameter.mul_(2)
    x = torch.randn(8, 100, 32)
    exact = recurrence(x).h[:, -1].detach()

    def error(*, grad: bool) -> float:
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.set_grad_enabled(grad):
            return ((recurrence(x).h[:, -1] - exact).norm() / exact.norm()).item()

    assert error(grad=False) <= max_ratio * error(grad=True) + 1e-6


@pytest.mark.parametrize(("q", "k"), [(40.0, -35.0), (-42.0, 41.0), (30.0, 30.0), (-43.0, -43.0), (500.0, -1.0)])
def test_additive_attention_is_a_tanh_even_of_large_numbers(q: float, k: float) -> None:
    score = make_score("additive", query=1, value=1, size=1, parts=choose_parts("cpu"))
    with torch.no_grad():
        for parameter in score.parameters():
            parameter.fill_(1.0 if parameter.dim() == 2 else 0.0)
        e = score(torch.tensor([[[q]]]), score.keys(torch.tensor([[[k]]])))
    assert e.item() == pytest.approx(math.tanh(q + k), abs=1e-6)


def test_an_unknown_cell_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"^Unknown cell 'gur'; choose from rnn, linear, lstm, lstm_norm, gru, gru_cho\.$"
    ):
        make_cell("gur", 3)


def test_a_normalised_lstm_equals_the_paper() -> None:
    """Equations (20) to (22) of Ba et al. 2016 for one step, by torch's layer normalisation of each product."""
    torch.manual_seed(5)
    recurrence = Recurrence("lstm_norm", 3, 4)
    with torch.no_grad():
        for parameter in recurrence.parameters():
            parameter.uniform_(-1, 1)
    cell, x, h, c = recurrence.cell, torch.randn(2, 3), torch.randn(2, 4), torch.randn(2, 4)
    norms = [cell.input_norm, cell.recurrent_norm, cell.cell_norm]
    products = [recurrence.input(x), h @ cell.recurrent.weight.T]
    normalised = [
        (product - product.mean(-1, keepdim=True))
        / (product.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
        * norm.weight
        + norm.bias
        for product, norm in zip(products, norms, strict=False)
    ]
    i, f, g, o = (normalised[0] + normalised[1] + cell.shift).chunk(4, -1)
    new_c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    new_h, actual_c = recurrence.step(x, (h, c))
    assert torch.allclose(actual_c, new_c, atol=1e-6)
    assert torch.allclose(
        new_h, o.sigmoid() * nn.functional.layer_norm(new_c, (4,), norms[2].weight, norms[2].bias).tanh(), atol=1e-6
    )


@pytest.mark.parametrize(("w", "expected"), [(1.1, 117.4), (0.9, 0.005)])
def test_the_gradient_of_a_linear_cell_of_one_unit_is_a_power(w: float, expected: float) -> None:
    """h_t = w h_{t−1}: after fifty steps the gradient is w⁵⁰, which explodes or vanishes."""
    cell = make_cell("linear", 1).double()
    with torch.no_grad():
        cell.recurrent.weight.fill_(w)
        cell.recurrent.bias.zero_()
    first = torch.ones(1, 1, dtype=torch.float64, requires_grad=True)
    state = (first,)
    for _ in range(50):
        state = cell(torch.zeros(1, 1, dtype=torch.float64), state)
    (gradient,) = torch.autograd.grad(state[0].sum(), first)
    assert gradient.item() == pytest.approx(w**50, rel=1e-12)
    assert round(gradient.item(), 1 if w > 1 else 3) == expected
