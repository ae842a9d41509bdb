"""Decoding models: built from trained ones, with fewer and faster operations in a step."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqtool.models.cells import Layers, Stack, State
from seqtool.models.contract import Step
from seqtool.models.fast import private
from seqtool.models.fast.packed import JoinedLSTM, Packed
from seqtool.models.fast.transformer_text import DecodingTransformerLanguageModel
from seqtool.models.language_model import LanguageModel
from seqtool.runtime.precision import PRECISIONS, mkl_is_fast

SYMBOLS = 1000  # of a vocabulary, for each of which the first layer's W x + b is kept: 8 MB with 512 cells


def optimise_for_decoding(model: Any, precision: str, device: torch.device) -> Any:
    """A model for decoding only, built from a trained one, which stays as it is; what they can share, they share.

    Each matrix of a linear map is rounded once to the precision's type, as autocast would at every step, and stored in
    the layout that a CPU multiplies fastest, both of an LSTM in one. A matrix tied to an embedding becomes a copy. A
    map to a single number, such as a score's v, is also used without autocast, so it stays as it is. Texts are mostly
    written one at a time: a language model's matrices are kept twice where MKL is faster for one row, and its step for
    one row is another.

    model: an `EncoderDecoder` of parts for the device (`parts_for`)
    precision: a name of `runtime.precision.PRECISIONS`
    """
    shared: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    decoding, dtype, on_cpu = copy.deepcopy(model, shared), PRECISIONS[precision], device.type == "cpu"
    single_rows = on_cpu and dtype is None and model.task == "language_modelling" and mkl_is_fast()
    if type(model).__module__.startswith("seqtool."):  # a user's model may use its parts in its own way
        for parent, name, child in _children(decoding):
            if isinstance(child, nn.Dropout):
                setattr(parent, name, nn.Identity())
            elif on_cpu and isinstance(parent, Stack) and JoinedLSTM.takes(child, dtype):
                parent[int(name)] = JoinedLSTM(child, dtype, single_rows=single_rows)
    for parent, name, child in _children(decoding):
        if isinstance(child, nn.Linear) and child.out_features > 1:
            child.weight = nn.Parameter(child.weight.detach().to(dtype or child.weight.dtype))
            if on_cpu and Packed.takes(child.weight.dtype):
                setattr(parent, name, Packed(child, single_rows=single_rows))
    for faster in (DecodingLanguageModel, DecodingTransformerLanguageModel):
        if faster.takes(decoding, single_rows=single_rows):
            return faster(decoding)
    return decoding


def _children(model: nn.Module) -> list[tuple[nn.Module, str, Any]]:
    """Each module of a model with its parent and its name there, without those of a captioner's backbone."""
    others = set(getattr(model, "backbone", nn.Identity()).modules())
    parents = [module for module in model.modules() if module not in others]
    return [(parent, name, child) for parent in parents for name, child in parent.named_children()]


class DecodingLanguageModel(LanguageModel):
    """A language model of LSTMs whose step has no calls between its parts, which take a twentieth of its time. For a
    single row the first layer's W x + b is not computed but looked up, by the symbol.
    """

    def __init__(self, model: LanguageModel) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(model.__dict__)
        lowest: Any = model.decoder[0]
        embedding, apart = model.target_embedding.weight.detach(), lowest.apart
        self.projections: Tensor | None = None  # W x + b of every symbol, V×4H
        if apart is not None and len(embedding) <= SYMBOLS:
            w, u, bias, recurrent_bias = apart
            self.projections = F.linear(embedding, w, bias)
            self.looked_up = embedding[:1, :0], w[:, :0], u, recurrent_bias  # an empty x and W to go with the others

    @staticmethod
    def takes(model: Any, *, single_rows: bool) -> bool:
        """Whether it is a language model all of whose layers are joined LSTMs."""
        return type(model) is LanguageModel and all(isinstance(layer, JoinedLSTM) for layer in model.decoder)

    def step(self, memory: Any, state: Layers, token: Tensor) -> Step[Layers]:
        layers: list[State] = []
        stack: Any = self.decoder
        if self.projections is not None and len(token) == 1:
            x, w, u, bias = self.looked_up
            gates = F.embedding(token, self.projections)[0]
            layers.append(private.lstm_cell(x, state.layers[0], w, u, gates, bias))
            x = layers[0][0]
        else:
            x = F.embedding(token, self.target_embedding.weight)
        for i in range(len(layers), len(stack)):
            layers.append(stack[i].step(x, state.layers[i]))
            x = layers[-1][0]
        return Step(self.output(x), Layers(tuple(layers)), None)
