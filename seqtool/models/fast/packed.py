"""Linear maps for decoding on a CPU: in oneDNN's own layout, and both of an LSTM in one."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqtool.models.cells import LSTM, Recurrence, State, States
from seqtool.models.fast import private
from seqtool.models.fast.recurrences import by_torch
from seqtool.models.parts import at_least_single

ROWS = 64  # the number of rows for which the layout is chosen


class Packed(nn.Module):
    """x Wᵀ + b, …×K → …×J, with W in oneDNN's own blocked layout, which follows the order in which it is read: a
    product with few rows takes half the time. No gradients. Products are in the type of W, single precision or bf16.

    With `single_rows`, W is also kept in its ordinary layout, by which MKL multiplies a single row. `takes` says
    whether oneDNN multiplies in a type on this machine.
    """

    takes = staticmethod(private.packs)

    def __init__(self, linear: nn.Linear, *, single_rows: bool = False) -> None:
        super().__init__()
        self.dtype = linear.weight.dtype
        self.matrix = private.packed(linear.weight.detach(), ROWS)
        self.bias = None if linear.bias is None else linear.bias.detach().to(self.dtype)
        self.ordinary = linear.weight.detach() if single_rows else None

    @property
    def weight(self) -> Tensor:
        """W in its ordinary layout, for what multiplies by it in another way: a copy."""
        return self.matrix.to_dense()

    def forward(self, x: Tensor) -> Tensor:
        x = x if x.dtype == self.dtype else x.to(self.dtype)
        if self.ordinary is not None and x.numel() == x.shape[-1]:
            return F.linear(x, self.ordinary, self.bias)
        return private.packed_linear(x, self.matrix, self.bias)


class JoinedLSTM(Recurrence):
    """A recurrence of LSTMs with W and U side by side: a step multiplies once, [W U] [x; h], and not twice. With few
    rows a product takes 20 µs more than its arithmetic, and tanh as long as four additions: g's rows are doubled, so
    that one sigmoid serves all gates, tanh x = 2σ(2x) − 1. With `single_rows`, a step of one row is torch's own, for
    which W and U are also kept apart.
    """

    @staticmethod
    def takes(recurrence: Recurrence, dtype: torch.dtype | None) -> bool:
        """Whether it is one of our LSTMs, and no subclass, and oneDNN multiplies in this type."""
        ours = type(recurrence) is Recurrence and type(recurrence.cell) is LSTM
        return ours and Packed.takes(dtype or recurrence.input.weight.dtype)

    def __init__(self, recurrence: Recurrence, dtype: torch.dtype | None, *, single_rows: bool = False) -> None:
        """dtype: in which products are computed; None for that of the weights."""
        nn.Module.__init__(self)
        self.parts, self.cell, self.inputs = recurrence.parts, recurrence.cell, recurrence.input.in_features
        maps = recurrence.input, self.cell.recurrent
        (w, u), biases = [linear.weight.detach() for linear in maps], [linear.bias.detach() for linear in maps]
        self.doubled = torch.tensor([1.0, 1, 2, 1]).repeat_interleave(self.cell.hidden)
        joined = nn.utils.skip_init(nn.Linear, self.inputs + self.cell.hidden, 4 * self.cell.hidden)  # type: ignore[no-untyped-call]
        joined.weight = nn.Parameter((torch.cat([w, u], 1) * self.doubled[:, None]).to(dtype or w.dtype))
        joined.bias = nn.Parameter((biases[0] + biases[1]) * self.doubled)
        self.joined = Packed(joined)
        self.apart = (w, u, *biases) if single_rows else None
        del self.cell.recurrent  # nobody uses U but in `joined`

    def forward(self, x: Tensor, state: State | None = None, *, lengths: Tensor | None = None) -> States:
        first = self.cell.start(x) if state is None else state
        if self.apart is not None:
            return by_torch(private.lstm, self.apart, x, first, lengths)
        both, bias = self.joined.weight.float() / self.doubled[:, None], self.joined.bias.float() / self.doubled
        w, u = both.split_with_sizes([self.inputs, self.cell.hidden], 1)
        return by_torch(private.lstm, (w, u, bias, torch.zeros_like(bias)), x, first, lengths)

    def step(self, x: Tensor, state: State) -> State:
        if self.apart is not None and x.shape[0] == 1:
            return private.lstm_cell(x, state, *self.apart)
        h, c = state
        i, f, g, o = at_least_single(self.joined(torch.cat([x, h], -1))).sigmoid_().chunk(4, -1)
        c = torch.mul(f, c).addcmul_(i, g, value=2).sub_(i)
        return o * torch.tanh(c), c
