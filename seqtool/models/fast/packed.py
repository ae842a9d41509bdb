"""Models for decoding only, with the fastest parts and matrices; on a CPU, linear maps in oneDNN's own layout."""

from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqtool.models.cells import Layers, Recurrence, Stack, State, States
from seqtool.models.contract import Step
from seqtool.models.fast.gates import QuickLSTM, decoding_tanh
from seqtool.models.fast.quicken import PARTS, QuickDropout, QuickLanguageModel, own_modules, quicken
from seqtool.models.fast.recurrences import HandWrittenRecurrence, by_torch
from seqtool.models.fast.transformer_text import DecodingTransformerLanguageModel
from seqtool.models.number_types import at_least_single
from seqtool.runtime.precision import PRECISIONS, mkl_is_fast

ROWS = 64  # the number of rows for which the layout is chosen
SYMBOLS = 1000  # of a vocabulary, for each of which the first layer's W x + b is kept: 8 MB with 512 cells
M = TypeVar("M", bound=nn.Module)


def laid_out(model: M, precision: str, device: torch.device) -> M:
    """The model for decoding only: quickened, with each matrix of a linear map rounded once to the precision's type, as
    autocast would at every step, and stored in the layout that a CPU multiplies fastest, both of an LSTM in one. Texts
    are mostly written one at a time: a language model's matrices are kept twice where MKL is faster for one row, and a
    Transformer's step for one row is another. A matrix tied to an embedding becomes a copy. A map to a single number,
    such as a score's v, is also used without autocast, so it stays as it is.
    """
    dtype = PRECISIONS[precision]
    on_cpu = device.type == "cpu"
    single_rows = on_cpu and dtype is None and getattr(model, "task", None) == "language_modelling" and mkl_is_fast()
    ours = type(quicken(model, device)) in PARTS.values()  # a user's model may use its parts in its own way
    if on_cpu and ours:
        for stack in [module for module in own_modules(model) if isinstance(module, Stack)]:
            for i, recurrence in enumerate(stack):
                if JoinedLSTM.takes(recurrence) and Packed.takes(dtype or recurrence.input.weight.dtype):
                    stack[i] = JoinedLSTM(recurrence, dtype, single_rows=single_rows)
    for parent in own_modules(model):
        for name, child in list(parent.named_children()):
            if ours and type(child) is QuickDropout:
                setattr(parent, name, nn.Identity())
            if isinstance(child, nn.Linear) and child.out_features > 1:
                child.weight = nn.Parameter(child.weight.detach().to(dtype or child.weight.dtype))
                if on_cpu and Packed.takes(child.weight.dtype):
                    setattr(parent, name, Packed(child, single_rows=single_rows))
    if type(model) is QuickLanguageModel:
        DecodingLanguageModel.replace(model)
    quicker = DecodingTransformerLanguageModel
    if single_rows and {type(one) for one in own_modules(model)} <= {Packed, *quicker.parts}:
        quicker.replace(model)
    return model


class Packed(nn.Module):
    """x Wᵀ + b, …×K → …×J, with W in oneDNN's own blocked layout, which follows the order in which it is read: a
    product with few rows takes half the time. No gradients. Products are in the type of W, single precision or bf16.

    With `single_rows`, W is also kept in its ordinary layout, by which MKL multiplies a single row.
    """

    def __init__(self, linear: nn.Linear, *, single_rows: bool = False) -> None:
        super().__init__()
        self.dtype = linear.weight.dtype
        self.matrix = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS)
        self.bias = None if linear.bias is None else linear.bias.detach().to(self.dtype)
        self.ordinary = linear.weight.detach() if single_rows else None

    @property
    def weight(self) -> Tensor:
        """W in its ordinary layout, for what multiplies by it in another way: a copy."""
        weight: Tensor = self.matrix.to_dense()
        return weight

    @staticmethod
    def takes(dtype: torch.dtype) -> bool:
        """Whether torch has oneDNN on this machine and can multiply in this type: bf16 needs AVX-512 or newer."""
        available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        if not available or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
            return False
        return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())

    def forward(self, x: Tensor) -> Tensor:
        x = x if x.dtype == self.dtype else x.to(self.dtype)
        if self.ordinary is not None and x.numel() == x.shape[-1]:
            return F.linear(x, self.ordinary, self.bias)
        y: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self.matrix, self.bias, "none", [], "")
        return y


class JoinedLSTM(Recurrence):
    """A recurrence of LSTMs with W and U side by side: a step multiplies once, [W U] [x; h], and not twice. With few
    rows a product takes 20 µs more than its arithmetic, and tanh as long as four additions: g's rows are doubled, so
    that one sigmoid serves all gates, tanh x = 2σ(2x) − 1. It takes the parameters out of `recurrence`, which cannot be
    used afterwards. With `single_rows`, a step of one row is torch's own, for which W and U are also kept apart.
    """

    @staticmethod
    def takes(recurrence: Recurrence) -> bool:
        """Whether it is neither a subclass nor one of a cell of the user's own."""
        return type(recurrence) is HandWrittenRecurrence and type(recurrence.cell) is QuickLSTM

    def __init__(self, recurrence: Recurrence, dtype: torch.dtype | None, *, single_rows: bool = False) -> None:
        nn.Module.__init__(self)
        self.cell, self.inputs = recurrence.cell, recurrence.input.in_features
        parts = recurrence.input, self.cell.recurrent
        joined = nn.utils.skip_init(nn.Linear, self.inputs + self.cell.hidden, 4 * self.cell.hidden)  # type: ignore[no-untyped-call]
        self.doubled = torch.tensor([1.0, 1, 2, 1]).repeat_interleave(self.cell.hidden)
        weight, bias = torch.cat([one.weight.detach() for one in parts], 1), parts[0].bias + parts[1].bias
        joined.weight = nn.Parameter((weight * self.doubled[:, None]).to(dtype or weight.dtype))
        joined.bias = nn.Parameter(bias * self.doubled)
        self.joined = Packed(joined)
        apart = *(one.weight.detach() for one in parts), *(one.bias.detach() for one in parts)
        self.apart = apart if single_rows else None
        del self.cell.recurrent

    def forward(self, x: Tensor, state: State | None = None, *, lengths: Tensor | None = None) -> States:
        first = self.cell.start(x) if state is None else state
        return by_torch(torch.lstm, self.apart or self._taken_apart(), x, first, lengths)

    def _taken_apart(self) -> tuple[Tensor, ...]:
        """W, U and their biases."""
        both, bias = self.joined.weight.float() / self.doubled[:, None], self.joined.bias.float() / self.doubled
        return *both.split_with_sizes([self.inputs, self.cell.hidden], 1), bias, torch.zeros_like(bias)

    def step(self, x: Tensor, state: State) -> State:
        if self.apart is not None and x.shape[0] == 1:
            new: State = torch.lstm_cell(x, state, *self.apart)
            return new
        h, c = state
        i, f, g, o = at_least_single(self.joined(torch.cat([x, h], -1))).sigmoid_().chunk(4, -1)
        c = torch.mul(f, c).addcmul_(i, g, value=2).sub_(i)
        return o * decoding_tanh(c), c


class DecodingLanguageModel(QuickLanguageModel):
    """A step of a language model of LSTMs without the calls between its parts, which take a twentieth of its time. For
    a single row the first layer's W x + b is not computed but looked up, by the symbol.
    """

    known: Tensor | None = None  # W x + b of every symbol, V×4H
    others: tuple[Tensor, ...] = ()  # an empty x and W to go with it, and the first layer's U and its bias

    @classmethod
    def replace(cls, model: Any) -> None:
        """Have a language model step like this, if all its layers are `JoinedLSTM`s."""
        if not all(isinstance(one, JoinedLSTM) for one in model.decoder):
            return
        model.__class__ = cls
        embedding, apart = model.target_embedding.weight.detach(), model.decoder[0].apart
        if apart is not None and len(embedding) <= SYMBOLS:
            w, u, bias, other_bias = apart
            model.known = F.linear(embedding, w, bias)
            model.others = embedding[:1, :0], w[:, :0], u, other_bias

    def step(self, memory: Any, state: Layers, token: Tensor) -> Step[Layers]:
        layers: list[State] = []
        stack: Any = self.decoder
        if self.known is not None and len(token) == 1:
            x, w, u, bias = self.others
            gates = F.embedding(token, self.known)[0]
            layers.append(torch.lstm_cell(x, state.layers[0], w, u, gates, bias))
            x = layers[0][0]
        else:
            x = F.embedding(token, self.target_embedding.weight)
        for i in range(len(layers), len(stack)):
            layers.append(stack[i].step(x, state.layers[i]))
            x = layers[-1][0]
        return Step(self.output(x), Layers(tuple(layers)), None)
