"""Runs cells over whole sequences in one call: with hand-written backward passes on a CPU, torch's functions on a GPU.

At every step autograd computes the gradient of each gate as a separate matrix and then joins them. The hand-written
passes write the gradients of all gates and steps into one tensor, so that the gradient of the recurrent matrix is one
product. The equations, the order of gates and the biases are those of `cells.LSTM` and `cells.GRU`. Gates and states
have the parameters' type; only products have autocast's type. This saves 12 % of an update of Sutskever's model, and
about 5 % of one of RNNsearch with the cell of Cho et al. (AMD EPYC with AVX2, fp32, one thread).

On a CPU torch's functions are used for LSTMs in fp32 whose rows all have the same length, as in a language model:
64 rows of 100 steps of 512 units take 361 ms forward and backward (two threads), instead of 478 with the hand-written
pass. They were slower in bf16 (95 ms against 68 for 24 steps on one thread) and for GRUs (33 against 29, 256 units).
They are not used if some rows end earlier than others, since they return only the cell state after the padding.

Two changes were measured on an Intel Xeon with one thread and left out on a CPU: hand-written backward passes of single
steps saved −4 to 1 % of an update of Luong's model and of Show, Attend and Tell, and −2 to 2 % of a decoding step; tanh
as 2σ(2x) − 1 saved −5 to 2 %. A GPU has `LSTMOfOneFunction`, since it starts fewer kernels.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.weak import WeakTensorKeyDictionary

from seqtool.models.cells import GRU, LSTM, RNN, Cell, GRUCho, Recurrence, State, States
from seqtool.models.fast.private import gru, lstm, rnn_tanh, tanh_backward, through_sigmoid, through_tanh
from seqtool.models.fast.products import add_product
from seqtool.models.parts import at_least_single, product_dtype, single


def run_on_cpu(recurrence: Recurrence, x: Tensor, first_state: State, lengths: Tensor | None) -> States | None:
    """Run all steps of an LSTM or a GRU, with torch's backward pass or a hand-written one; return None for other cells,
    and if no gradients are needed and torch has no faster function.
    """
    cell = recurrence.cell
    if lengths is None and type(cell) is LSTM and product_dtype(x) == torch.float32:
        weights = _weights(recurrence)
        if all(weight.dtype == torch.float32 for weight in weights):
            return run_by_torch(lstm, weights, x, first_state, None)
    run = HAND_WRITTEN_FUNCTIONS.get(type(cell))
    return None if run is None else _run_hand_written(run, recurrence, x, first_state, lengths)


def _run_hand_written(
    run: Callable[..., State], recurrence: Recurrence, x: Tensor, first_state: State, lengths: Tensor | None
) -> States | None:
    if not torch.is_grad_enabled():
        return None
    weights, dtype = recurrent_weights(recurrence.cell), recurrence.input.weight.dtype
    weights = [weight.to(product_dtype(x)) if weight.dim() == 2 else weight for weight in weights]
    x = recurrence.input(x.transpose(0, 1)).to(dtype)
    return States.of(run(x, *weights, *(tensor.to(dtype) for tensor in first_state)), lengths)


def recurrent_weights(cell: Any) -> list[Tensor]:
    """Return U and its bias, or the two matrices of the cell of Cho et al., which have none."""
    return [cell.recurrent.weight, cell.candidate.weight if type(cell) is GRUCho else cell.recurrent.bias]


def run_on_gpu(recurrence: Recurrence, x: Tensor, first_state: State, lengths: Tensor | None) -> States | None:
    """Run all steps by cuDNN or, for the cell of Cho et al., which it lacks, by a hand-written pass, unless no
    gradients are needed; return None for other cells. cuDNN's steps are computed in the parameters' type, as states
    must be, even under autocast. In fp32 it may round operands to TF32, as torch does.
    """
    cell = type(recurrence.cell)
    if cell is GRUCho:
        return _run_hand_written(_GRUSequence.apply, recurrence, x, first_state, lengths)
    function = TORCH_FUNCTIONS.get(cell)
    return None if function is None else run_by_torch(function, _weights(recurrence), x, first_state, lengths)


def run_by_torch(
    function: Callable[..., Any], weights: Sequence[Tensor], x: Tensor, first_state: State, lengths: Tensor | None
) -> States:
    """Run all steps of a layer by `private.lstm`, `gru` or `rnn_tanh`; `weights` are W, U, and the biases of both.

    If rows have different lengths, padding is read like words where a row's last state is among the outputs. An LSTM's
    is not, since it has c, too: its rows are packed, for which the host must wait for their lengths.
    """
    dtype = single(weights[-1].dtype)
    first_state = tuple(tensor.to(dtype).contiguous()[None] for tensor in first_state)  # cuDNN needs contiguous states
    # The weights, whether they include biases, the number of layers, dropout, whether to train, whether bidirectional.
    options = [weight.to(dtype) for weight in weights], True, 1, 0.0, torch.is_grad_enabled(), False
    with torch.autocast(x.device.type, enabled=False), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="RNN module weights")  # weights that are not contiguous are copied
        if lengths is None or len(first_state) == 1:
            h, *last = function(x.to(dtype), _state_argument(first_state), *options, True)  # True: batch first
            if lengths is not None:
                last = [h.take_along_dim((lengths - 1)[:, None, None], 1).transpose(0, 1)]
            return States(h, tuple(tensor.squeeze(0) for tensor in last))
        if lengths not in _lengths_on_host:  # all layers of an encoder use the same copy: the host waits only once
            _lengths_on_host[lengths] = lengths.cpu()
        packed = pack_padded_sequence(x.to(dtype), _lengths_on_host[lengths], batch_first=True, enforce_sorted=False)
        sorted_order: Any = packed.sorted_indices
        first_state = tuple(tensor.index_select(1, sorted_order) for tensor in first_state)
        data, *last = function(packed.data, packed.batch_sizes, _state_argument(first_state), *options)
        # rows are put in order below: torch would wait for their lengths, which are not needed
        packed_h = packed._replace(data=data, sorted_indices=None, unsorted_indices=None)
        h, _ = pad_packed_sequence(packed_h, batch_first=True, total_length=x.shape[1])
        order: Any = packed.unsorted_indices
        return States(h.index_select(0, order), tuple(tensor.squeeze(0).index_select(0, order) for tensor in last))


def _weights(recurrence: Recurrence) -> tuple[Tensor, ...]:
    """Return W, U, and the biases of both."""
    maps = recurrence.input, recurrence.cell.recurrent
    return *(linear.weight for linear in maps), *(linear.bias for linear in maps)


def _state_argument(first_state: tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    """Return the first state as torch's functions expect it: the tensor alone if the cell has only one."""
    return first_state if len(first_state) > 1 else first_state[0]


class _LSTMSequence(torch.autograd.Function):
    """From input projections, T×N×4H, recurrent weight, 4H×H in the products' type, bias, 4H, and first state, N×H,
    to h and c after every step, T×N×H.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, h_0: Tensor, c_0: Tensor) -> tuple[Tensor, Tensor]:
        h, c = room_after(h_0, len(x)), room_after(c_0, len(x))
        gates, tanh, a = torch.empty_like(x), torch.empty_like(c[1:]), torch.empty_like(x[0])
        for t in range(len(x)):
            add_product(bias, h[t], weight.t(), out=a).add_(x[t])
            i, f, g, o = torch.sigmoid(a, out=gates[t]).chunk(4, -1)
            torch.tanh(a.chunk(4, -1)[2], out=g)
            torch.mul(f, c[t], out=c[t + 1]).addcmul_(i, g)
            torch.mul(o, torch.tanh(c[t + 1], out=tanh[t]), out=h[t + 1])
        ctx.save_for_backward(weight, h, c, gates, tanh)
        return h[1:], c[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh_outputs: Tensor, dc_outputs: Tensor) -> tuple[Tensor, ...]:
        weight, h, c, gates, tanh = ctx.saved_tensors
        da, zeros = torch.empty_like(gates), torch.zeros_like(h[0])
        dh, dc = dh_outputs[-1], zeros
        for t in reversed(range(len(gates))):
            (i, f, g, o), (di, df, dg, do) = gates[t].chunk(4, -1), da[t].chunk(4, -1)
            dc = tanh_backward(dh * o, tanh[t]).add_(dc + dc_outputs[t])
            through_sigmoid(dc * g, i, grad_input=di)
            through_sigmoid(dc * c[t], f, grad_input=df)
            through_tanh(dc * i, g, grad_input=dg)
            through_sigmoid(dh * tanh[t], o, grad_input=do)
            dc.mul_(f)
            dh = add_product(dh_outputs[t - 1] if t else zeros, da[t], weight)
        return da, *weight_and_bias_gradients(da, h[:-1], weight.dtype), dh, dc


class LSTMOfOneFunction(LSTM):
    """An LSTM whose step is one function with a hand-written backward pass: seven kernels of a GPU instead of ten, and
    nine backward instead of thirteen.
    """

    def forward(self, x: Tensor, state: State) -> State:
        h, c = _LSTMStep.apply(at_least_single(x), self.recurrent(state[0]), state[1])
        return h, c


class _LSTMStep(torch.autograd.Function):
    """From the input projection and the product with U, N×4H, and c, N×H, to the new h and c."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, u: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        a = x + u
        gates = torch.sigmoid(a)
        i, f, g, o = gates.chunk(4, -1)
        torch.tanh(a.chunk(4, -1)[2], out=g)
        c_new = torch.mul(f, c).addcmul_(i, g)
        tanh = torch.tanh(c_new)
        ctx.save_for_backward(gates, c, tanh)
        ctx.dtype = u.dtype
        return o * tanh, c_new

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh: Tensor, dc: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gates, c, tanh = ctx.saved_tensors
        i, f, g, o = gates.chunk(4, -1)
        dc = tanh_backward(dh * o, tanh) + dc
        d_gates = torch.cat([g, c, i, tanh], -1).view(len(c), 4, -1)
        d_gates[:, :3].mul_(dc[:, None])
        d_gates[:, 3].mul_(dh)
        da = torch.empty_like(gates)
        through_sigmoid(d_gates.flatten(1), gates, grad_input=da)
        through_tanh(d_gates[:, 2], g, grad_input=da.chunk(4, -1)[2])
        return da, da.to(ctx.dtype), dc * f


class _GRUSequence(torch.autograd.Function):
    """From input projections, T×N×3H, and first state, N×H, to h after every step, T×N×H.

    weight, second: U, 3H×H, and its bias, 3H; or the matrices of the cell of Cho et al., 2H×H and H×H. Matrices have
        the products' type.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, second: Tensor, h_0: Tensor) -> tuple[Tensor]:
        h, gates, u = room_after(h_0, len(x)), torch.empty_like(x), x.new_empty(*x.shape[:2], len(weight))
        bias, candidate = bias_and_candidate(second, weight)
        for t in range(len(x)):
            add_product(bias, h[t], weight.t(), out=u[t])
            gru_step(x[t], u[t], h[t], candidate, gates=gates[t], h_new=h[t + 1])
        ctx.save_for_backward(weight, second, h, u, gates)
        return (h[1:],)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh_outputs: Tensor) -> tuple[Tensor, ...]:
        weight, second, h, u, gates = ctx.saved_tensors
        back_class = gru_back(second)
        back = back_class(h, u, gates, second, h.new_empty(*h[1:].shape[:2], back_class.columns * h.shape[2]))
        weight, dh = back.ordered(weight), torch.zeros_like(h[0])
        for t in reversed(range(len(gates))):
            back.step(t, dh.add_(dh_outputs[t]))
            dh = add_product(back.dh[t], back.du[t], weight)
        return back.dx, *back.weight_gradients(weight.dtype), dh


def bias_and_candidate(second: Tensor, weight: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return a bias of U, and the matrix of Cho's candidate or None, from `weight` and `second` of `_GRUSequence`."""
    if second.dim() == 1:
        return second, None
    return second.new_zeros(len(weight), dtype=single(second.dtype)), second


def gru_step(x: Tensor, u: Tensor, h: Tensor, candidate: Tensor | None, *, gates: Tensor, h_new: Tensor) -> None:
    """Write the gates, N×3H, and the new state, from the input projection x, the product u = U h + b and h.

    candidate: U of the candidate in the cell of Cho et al.; None for torch's GRU
    """
    size = h.shape[-1]
    r, z, n = gates.chunk(3, -1)
    torch.add(x[:, : 2 * size], u[:, : 2 * size], out=gates[:, : 2 * size]).sigmoid_()
    if candidate is None:
        torch.addcmul(x[:, 2 * size :], r, u[:, 2 * size :], out=n).tanh_()
        torch.lerp(n, h, z, out=h_new)
    else:
        add_product(x[:, 2 * size :], r * h, candidate.t(), out=n).tanh_()
        torch.lerp(h, n, z, out=h_new)


class GRUBack:
    """The backward pass of a GRU's steps. Every derivative that does not depend on the gradient of h is computed for
    all steps at once, so that a step has two multiplications, which a GPU starts as two kernels.

    h: all states, (T+1)×N×H
    u: the products U h + b, T×N×3H
    gates: r, z and n, T×N×3H
    room: T×N×(columns·H), into which the gradients are written

    dx, du: the gradients of the input projections, in the order r, z, n, and of the products, in the order n, r, z
    dh: the gradients of the old states, without the part through u
    """

    columns = 5

    def __init__(self, h: Tensor, u: Tensor, gates: Tensor, second: Tensor, room: Tensor) -> None:
        size, self._h = h.shape[-1], h[:-1]
        self.dx, self.du, self.dh = room[..., size : 4 * size], room[..., : 3 * size], room[..., 4 * size :]
        room = room.view(*room.shape[:2], 5, size)  # of u_n, r, z, n and h
        self._by_dh, self._dn, self._by_dn = room[:, :, 2:], room[:, :, 3:4], room[:, :, :2]
        r, z, n = gates.chunk(3, -1)
        self._of_h, self._of_n = gates.new_empty(*h[1:].shape[:2], 5, size).split_with_sizes([3, 2], 2)
        through_sigmoid(self._h - n, z, grad_input=self._of_h[:, :, 0])
        through_tanh(1 - z, n, grad_input=self._of_h[:, :, 1])
        self._of_h[:, :, 2] = z
        self._of_n[:, :, 0] = r
        through_sigmoid(u.chunk(3, -1)[2], r, grad_input=self._of_n[:, :, 1])

    def step(self, t: int, dh: Tensor) -> None:
        """Write the gradients of step t, given that of its new state."""
        torch.mul(dh[:, None], self._of_h[t], out=self._by_dh[t])
        torch.mul(self._dn[t], self._of_n[t], out=self._by_dn[t])

    def ordered(self, weight: Tensor) -> Tensor:
        """Return U with its rows in the order of `du`."""
        return weight.roll(len(weight) // 3, 0)

    def weight_gradients(self, dtype: torch.dtype) -> Iterator[Tensor]:
        """Yield the gradients of U and of its bias; products are in `dtype`."""
        for gradient in weight_and_bias_gradients(self.du, self._h, dtype):
            yield gradient.roll(-(len(gradient) // 3), 0)


class GRUChoBack:
    """`GRUBack` for the cell of Cho et al.: u and du are those of r and z, T×N×2H; `second` is U of the candidate."""

    columns = 4

    def __init__(self, h: Tensor, u: Tensor, gates: Tensor, second: Tensor, room: Tensor) -> None:
        size, self._h, self._candidate = h.shape[-1], h[:-1], second
        self.dx, self.du, self.dh = room[..., : 3 * size], room[..., : 2 * size], room[..., 3 * size :]
        self._dr, self._dn = room[..., :size], room[..., 2 * size : 3 * size]
        self._by_dh = room.view(*room.shape[:2], 4, size)[:, :, 1:]  # of z, n and h
        self._r, z, n = gates.chunk(3, -1)
        self._of_h, self._of_r = gates.new_empty(*h[1:].shape[:2], 4, size).split_with_sizes([3, 1], 2)
        through_sigmoid(n - self._h, z, grad_input=self._of_h[:, :, 0])
        through_tanh(z, n, grad_input=self._of_h[:, :, 1])
        torch.sub(1, z, out=self._of_h[:, :, 2])
        through_sigmoid(self._h, self._r, grad_input=self._of_r[:, :, 0])

    def step(self, t: int, dh: Tensor) -> None:
        torch.mul(dh[:, None], self._of_h[t], out=self._by_dh[t])
        d_reset = self._dn[t].to(self._candidate.dtype) @ self._candidate  # the gradient of r∘h
        torch.mul(d_reset, self._of_r[t, :, 0], out=self._dr[t])
        self.dh[t].addcmul_(d_reset, self._r[t])

    def ordered(self, weight: Tensor) -> Tensor:
        return weight

    def weight_gradients(self, dtype: torch.dtype) -> Iterator[Tensor]:
        """Yield the gradients of the two matrices; products are in `dtype`."""
        for gradient, x in ((self.du, self._h), (self._dn, self._r * self._h)):
            yield gradient.flatten(0, 1).to(dtype).t() @ x.flatten(0, 1).to(dtype)


def gru_back(second: Tensor) -> type[GRUBack] | type[GRUChoBack]:
    """Return the class of the backward pass, by `second` of `_GRUSequence`."""
    return GRUBack if second.dim() == 1 else GRUChoBack


def room_after(first_state: Tensor, steps: int) -> Tensor:
    """Return a tensor that begins with the first state and has room for the state after each step."""
    states = first_state.new_empty(steps + 1, *first_state.shape)
    states[0] = first_state
    return states


def weight_and_bias_gradients(gradient: Tensor, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the gradients of a linear map that was applied to x, T×N×K, at every step; the product is in `dtype`."""
    flat = gradient.flatten(0, 1)
    return flat.to(dtype).t() @ x.flatten(0, 1).to(dtype), flat.sum(0)


_lengths_on_host = WeakTensorKeyDictionary()
HAND_WRITTEN_FUNCTIONS: dict[type[Cell], Callable[..., State]] = {
    LSTM: _LSTMSequence.apply,
    GRU: _GRUSequence.apply,
    GRUCho: _GRUSequence.apply,
}
TORCH_FUNCTIONS: dict[type[Cell], Callable[..., Any]] = {RNN: rnn_tanh, LSTM: lstm, LSTMOfOneFunction: lstm, GRU: gru}
