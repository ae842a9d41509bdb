"""Cells are torch's, or a plain transcription of the paper."""

import pytest
import torch
from torch import nn

from seqtool.errors import InputError
from seqtool.models import sharing
from seqtool.models.cells import CELLS, GRUCho, Recurrence, make_cell

TORCH = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


@pytest.mark.parametrize("cell", TORCH)
def test_equals_torch(cell: str) -> None:
    torch.manual_seed(1)
    theirs = TORCH[cell](5, 4, batch_first=True)
    ours = Recurrence(cell, 5, 4)
    weights = dict(theirs.named_parameters())
    with torch.no_grad():
        ours.input.weight.copy_(weights["weight_ih_l0"])
        ours.input.bias.copy_(weights["bias_ih_l0"])
        ours.cell.recurrent.weight.copy_(weights["weight_hh_l0"])
        ours.cell.recurrent.bias.copy_(weights["bias_hh_l0"])
    x = torch.randn(3, 7, 5)
    expected, last = theirs(x)
    states = ours(x)
    assert torch.allclose(states.h, expected, atol=1e-6)
    final = last if isinstance(last, tuple) else (last,)
    for tensor, other in zip(states.tensors, final, strict=True):
        assert torch.allclose(tensor[-1], other[0], atol=1e-6)


def test_gru_cho_equals_the_paper() -> None:
    """Bahdanau et al. 2015, A.1.1, a sentence and a unit at a time."""
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
    for t, state in enumerate(recurrence(x).outputs):
        e = x[0, t]
        z = torch.sigmoid(W_z @ e + b_z + U_z @ s)
        r = torch.sigmoid(W_r @ e + b_r + U_r @ s)
        candidate = torch.tanh(W @ e + b + U @ (r * s))
        s = (1 - z) * s + z * candidate
        assert torch.allclose(state[0], s, atol=1e-6)


@pytest.mark.parametrize("cell", CELLS)
def test_stepping_equals_running(cell: str) -> None:
    recurrence = Recurrence(cell, 3, 4)
    x = torch.randn(2, 5, 3)
    state = recurrence.cell.start(x[:, 0])
    states = recurrence(x)
    for t in range(5):
        state = recurrence.step(x[:, t], state)
        assert torch.allclose(states.outputs[t], state[0], atol=1e-6)
        assert all(torch.allclose(one, all_[t], atol=1e-6) for one, all_ in zip(state, states.tensors, strict=True))


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_gradients_over_a_sequence_are_the_plain_ones(cell: str) -> None:
    """With gradients from every step's state, and to the first."""
    torch.manual_seed(3)
    recurrence = Recurrence(cell, 3, 4).double()
    x = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    first = tuple(torch.randn(2, 4, dtype=torch.float64, requires_grad=True) for _ in range(recurrence.cell.tensors))
    wanted = [x, *first, *recurrence.parameters()]

    def gradients(chosen: slice) -> tuple[torch.Tensor, ...]:
        tensors = recurrence(x, first).tensors[chosen]
        return torch.autograd.grad(sum((one * torch.arange(4)).cos().sum() for one in tensors), wanted)

    for chosen in (slice(None), slice(0, 1), slice(-1, None)):  # all, and h or c alone
        with sharing.plain():
            expected = gradients(chosen)
        for one, other in zip(gradients(chosen), expected, strict=True):
            assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)


def test_unknown_cell() -> None:
    with pytest.raises(InputError, match=r"^Unknown cell 'gur'; choose from rnn, lstm, gru, gru_cho\.$"):
        make_cell("gur", 3)
