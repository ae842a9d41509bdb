"""RNNsearch with a faster step for decoding."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from seqtool.models.bahdanau import Bahdanau
from seqtool.models.cells import GRU, GRUCho, Layers
from seqtool.models.contract import Memory, Step
from seqtool.models.fast.additive import ExponentialAdditive, additive, exponential
from seqtool.models.fast.products import add_product
from seqtool.models.parts import at_least_single


class DecodingBahdanau(Bahdanau):
    """RNNsearch (A.2.2) of one layer of GRUs, torch's or the paper's, with additive attention, for decoding only.

    The maps of a vector are joined, so that a step has five products instead of eight, and six for the paper's cell:
    of the word, of the old state, of the context, of the new state, and the logits. The rows of the maxout's maps are
    reordered, so that it compares two halves. `prefill` uses the separate maps, which are kept too.
    """

    v_sum: Tensor  # Σ_a v_a, a term of every score

    def __init__(self, model: Any) -> None:
        """Take over a model of fast parts."""
        nn.Module.__init__(self)
        self.__dict__.update(model.__dict__)
        self._modules = dict(model._modules)
        query, pairs = model.attention.score.W, torch.arange(model.deep_state.out_features).view(-1, 2).T.flatten()
        deep = [_reordered(linear, pairs) for linear in (model.deep_word, model.deep_context, model.deep_state)]
        self.of_word = _joined((model.cell_word, 1.0), (deep[0], 1.0))  # W E y and V_o E y, with the first's biases
        self.of_old_state = _joined((query, -2.0), (model.cell.recurrent, 1.0))  # −2 W_a s, for e^−2q, and U s
        self.of_context = _joined((model.cell_context, 1.0), (deep[1], 1.0))  # C c and C_o c
        self.of_new_state = deep[2]  # U_o s
        self.alignment: int = query.out_features
        self.register_buffer("v_sum", model.attention.score.v.weight.detach().sum(), persistent=False)

    @staticmethod
    def supports(model: Any) -> bool:
        return (
            type(model) is Bahdanau
            and type(model.cell) in (GRU, GRUCho)
            and type(model.attention.score) is ExponentialAdditive
            and not len(model.upper)
        )

    @torch.no_grad()
    def step(self, memory: Memory, state: Layers, token: Tensor) -> Step[Layers]:
        score: Any = self.attention.score
        cell, (s,) = self.cell, state.layers[0]
        of_word = self.of_word(F.embedding(token, self.target_embedding.weight))
        of_state = self.of_old_state(s)
        size, hidden = self.alignment, cell.hidden
        q = exponential(of_state[:, :size]).view(len(memory.mask), -1, size)
        e = additive(q, memory.keys, score.v.weight[0].to(memory.keys.dtype), self.v_sum.to(memory.keys.dtype))
        alpha = (e + memory.mask_bias).softmax(-1).flatten(0, 1)
        c = self.attention.weighted_sum(alpha, memory.values)
        sums = _add_map(of_word, self.of_context, c)
        x_rz, x_n = at_least_single(sums[:, : 3 * hidden]).split_with_sizes([2 * hidden, hidden], -1)
        u_rz, u_n = of_state[:, size : size + 2 * hidden], of_state[:, size + 2 * hidden :]
        r, z = torch.sigmoid(x_rz + u_rz).chunk(2, -1)
        if isinstance(cell, GRUCho):
            s = torch.lerp(s, torch.tanh(_add_map(x_n, cell.candidate, r * s)), z)
        else:
            s = torch.lerp(torch.tanh(torch.addcmul(x_n, r, u_n)), s, z)
        t = _add_map(sums[:, 3 * hidden :], self.of_new_state, s)
        return Step(self.project(torch.maximum(*t.chunk(2, -1))), Layers(((s,),)), alpha)


def _add_map(addend: Tensor, linear: Any, x: Tensor) -> Tensor:
    """Return addend + W x, by one kernel of a GPU if the map has neither a bias nor a CPU's layout."""
    if isinstance(linear, nn.Linear) and linear.bias is None:
        return add_product(addend, x, linear.weight.t())
    return addend + linear(x)


def _joined(*linears: tuple[nn.Linear, float]) -> nn.Linear:
    """Return a linear map whose outputs are those of others, one after the other, each times a factor."""
    weight = torch.cat([factor * linear.weight.detach() for linear, factor in linears])
    biases = [
        torch.zeros_like(linear.weight[:, 0]) if linear.bias is None else factor * linear.bias.detach()
        for linear, factor in linears
    ]
    has_bias = any(linear.bias is not None for linear, _ in linears)
    return _linear(weight, torch.cat(biases) if has_bias else None)


def _reordered(linear: nn.Linear, rows: Tensor) -> nn.Linear:
    """Return a linear map with the outputs of another in a different order."""
    bias = linear.bias
    return _linear(linear.weight.detach()[rows], None if bias is None else bias.detach()[rows])


def _linear(weight: Float[Tensor, "J K"], bias: Float[Tensor, "J"] | None) -> nn.Linear:
    outputs, inputs = weight.shape
    linear: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs, bias=bias is not None)  # type: ignore[no-untyped-call]
    linear.weight = nn.Parameter(weight)
    if bias is not None:
        linear.bias = nn.Parameter(bias)
    return linear
