"""Linear maps for decoding on a CPU, in oneDNN's own layout; an LSTM's two maps are joined into one."""

from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from seqtool.models.cells import LSTM, Recurrence, State, States
from seqtool.models.fast import private
from seqtool.models.fast.quantised import QuantisedLinear
from seqtool.models.fast.recurrences import run_by_torch
from seqtool.models.parts import at_least_single


class PackedLinear(nn.Module):
    """x Wᵀ + b, …×K → …×J, with W in oneDNN's own blocked layout, stored in the order in which the kernel reads it: a
    product with few rows takes half the time. No gradients. Products are in the type of W, single precision or bf16.
    With `single_rows`, W is also kept in its ordinary layout, for MKL's product with a single row.
    """

    supports = staticmethod(private.supports_packed)

    def __init__(self, linear: nn.Linear, *, single_rows: bool = False) -> None:
        super().__init__()
        self.dtype = linear.weight.dtype
        self.matrix = private.pack(linear.weight.detach())
        self.bias = None if linear.bias is None else linear.bias.detach().to(self.dtype)
        self.unpacked = linear.weight.detach() if single_rows else None

    @property
    def weight(self) -> Tensor:
        """A copy of W in its ordinary layout, for code that uses the weight itself."""
        return self.matrix.to_dense()

    def forward(self, x: Tensor, then: str = "none", total: Tensor | None = None) -> Tensor:
        """Return x Wᵀ + b, added to `total` if that is given, or `then` of it, which is `relu` or `none`."""
        x = x if x.dtype == self.dtype else x.to(self.dtype)
        if total is not None:
            return private.packed_linear_add(x, self.matrix, self.bias, total)
        if self.unpacked is not None and x.numel() == x.shape[-1] and then == "none":
            return F.linear(x, self.unpacked, self.bias)
        return private.packed_linear(x, self.matrix, self.bias, then)


def linear_relu(linear: nn.Module, x: Float[Tensor, "N K"]) -> Float[Tensor, "N J"]:
    """Return max(0, x Wᵀ + b) for a linear map with a bias or a `PackedLinear`, by one operation."""
    if isinstance(linear, nn.Linear):
        return private.addmm_relu(linear.bias, x.to(linear.weight.dtype), linear.weight.t())
    return cast(Tensor, linear(x, "relu"))


def linear_add(linear: nn.Module, total: Float[Tensor, "N J"], x: Float[Tensor, "N K"]) -> Float[Tensor, "N J"]:
    """Return `total` + x Wᵀ + b, by one operation for a `PackedLinear` of the same type."""
    if isinstance(linear, PackedLinear) and linear.dtype == total.dtype:
        return cast(Tensor, linear(x, total=total))
    return cast(Tensor, total + linear(x))


class JoinedLSTM(Recurrence):
    """An LSTM layer with W and U side by side, so that a step has one product, [W U] [x; h], instead of two.

    With few rows a product has an overhead of 20 µs, and a tanh takes as long as four additions. The rows of
    gate g are therefore doubled, so that one sigmoid serves all gates: tanh x = 2σ(2x) − 1. With `single_rows`, a step
    of one row is torch's own, for which W and U are also kept separately.
    """

    @staticmethod
    def supports(recurrence: Recurrence, dtype: torch.dtype | None) -> bool:
        """Whether the recurrence is one of our LSTMs, not a subclass, and oneDNN multiplies in this type."""
        is_plain_lstm = type(recurrence) is Recurrence and type(recurrence.cell) is LSTM
        return is_plain_lstm and PackedLinear.supports(dtype or recurrence.input.weight.dtype)

    def __init__(
        self, recurrence: Recurrence, dtype: torch.dtype | None, *, single_rows: bool = False, quantise: bool = False
    ) -> None:
        """Join the maps of `recurrence`; products are computed in `dtype` (None: the weights' type), or in int8."""
        nn.Module.__init__(self)
        self.parts, self.cell, self.inputs = recurrence.parts, recurrence.cell, recurrence.input.in_features
        maps = recurrence.input, self.cell.recurrent
        (w, u), biases = [linear.weight.detach() for linear in maps], [linear.bias.detach() for linear in maps]
        self.row_scale = torch.tensor([1.0, 1, 2, 1]).repeat_interleave(self.cell.hidden)  # gates i, f, g, o
        joined = nn.utils.skip_init(nn.Linear, self.inputs + self.cell.hidden, 4 * self.cell.hidden)  # type: ignore[no-untyped-call]
        joined.weight = nn.Parameter((torch.cat([w, u], 1) * self.row_scale[:, None]).to(dtype or w.dtype))
        joined.bias = nn.Parameter((biases[0] + biases[1]) * self.row_scale)
        self.joined = QuantisedLinear(joined) if quantise and QuantisedLinear.supports(joined) else PackedLinear(joined)
        self.separate = (w, u, *biases) if single_rows else None
        del self.cell.recurrent  # `joined` contains U

    def forward(self, x: Tensor, state: State | None = None, *, lengths: Tensor | None = None) -> States:
        first_state = self.cell.start(x) if state is None else state
        if self.separate is not None:
            return run_by_torch(private.lstm, self.separate, x, first_state, lengths)
        # undo the doubling of gate g
        matrix, bias = self.joined.weight.float() / self.row_scale[:, None], self.joined.bias.float() / self.row_scale
        w, u = matrix.split_with_sizes([self.inputs, self.cell.hidden], 1)
        # `bias` is the sum of both biases, so the second is zero
        return run_by_torch(private.lstm, (w, u, bias, torch.zeros_like(bias)), x, first_state, lengths)

    def step(self, x: Tensor, state: State) -> State:
        if self.separate is not None and x.shape[0] == 1:
            return private.lstm_cell(x, state, *self.separate)
        h, c = state
        i, f, g, o = at_least_single(self.joined(torch.cat([x, h], -1))).sigmoid_().chunk(4, -1)
        c = torch.mul(f, c).addcmul_(i, g, value=2).sub_(i)  # f∘c + i∘(2g − 1)
        return o * torch.tanh(c), c
