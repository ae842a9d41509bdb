"""Models for decoding only, built from trained ones, with fewer and faster operations per step."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqtool.models.cells import Layers, Stack, State
from seqtool.models.contract import Step
from seqtool.models.fast import private, transformer_search
from seqtool.models.fast.packed import JoinedLSTM, PackedLinear
from seqtool.models.fast.quantised import QuantisedLinear
from seqtool.models.fast.rnnsearch_search import DecodingBahdanau
from seqtool.models.fast.transformer_text import DecodingTransformerLanguageModel
from seqtool.models.language_model import LanguageModel
from seqtool.runtime.precision import PRECISIONS, mkl_is_fast

MAX_PROJECTED_SYMBOLS = 1000  # the largest vocabulary for which W x + b of every symbol is stored: 8 MB with 512 units


def optimise_for_decoding(model: Any, precision: str, device: torch.device) -> Any:
    """Build a model for decoding only from a trained one, which does not change. They share tensors where possible.

    model: an `EncoderDecoder` of parts for the device (`parts_for`)
    precision: a name of `runtime.precision.PRECISIONS`
    device: the device of the model

    Each matrix of a linear map is rounded once to the precision's type, as autocast would do at every step, and stored
    in the layout that a CPU multiplies fastest; an LSTM's two matrices are joined. In int8, large matrices are replaced
    by `QuantisedLinear`. A matrix tied to an embedding is copied. A map to a single number, such as a score's v, is
    also used without autocast, so it does not change. For a language model, which mostly writes one text at a time,
    matrices are also kept in the ordinary layout where MKL is faster for one row, with a separate step for one row.
    """
    shared_tensors: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    decoding_model, dtype, on_cpu = copy.deepcopy(model, shared_tensors), PRECISIONS[precision], device.type == "cpu"
    single_rows = on_cpu and precision == "fp32" and model.task == "language_modelling" and mkl_is_fast()
    if type(model).__module__.startswith("seqtool."):  # a user's model may use its dropouts and stacks in other ways
        for parent, name, child in _children(decoding_model):
            if isinstance(child, nn.Dropout):
                setattr(parent, name, nn.Identity())
            elif on_cpu and isinstance(parent, Stack) and JoinedLSTM.supports(child, dtype):
                parent[int(name)] = JoinedLSTM(child, dtype, single_rows=single_rows, quantise=precision == "int8")
    if DecodingBahdanau.supports(model):
        decoding_model = DecodingBahdanau(decoding_model)
    for parent, name, child in _children(decoding_model):
        if isinstance(child, nn.Linear) and child.out_features > 1:
            for name_of, tensor in list(child.named_parameters()):
                setattr(child, name_of, nn.Parameter(tensor.detach().to(dtype or tensor.dtype)))
            if precision == "int8" and QuantisedLinear.supports(child):
                setattr(parent, name, QuantisedLinear(child))
            elif on_cpu and PackedLinear.supports(child.weight.dtype):
                setattr(parent, name, PackedLinear(child, single_rows=single_rows))
    for model_class in (DecodingLanguageModel, DecodingTransformerLanguageModel):
        if model_class.supports(decoding_model, single_rows=single_rows):
            return model_class(decoding_model)
    if device.type in ("cpu", "cuda") and type(model) in transformer_search.VERSIONS:  # other devices lack operations
        return transformer_search.VERSIONS[type(model)](decoding_model, device)
    return decoding_model


def _children(model: nn.Module) -> list[tuple[nn.Module, str, Any]]:
    """Return (parent, name in the parent, module) for each module of a model, except in a captioner's backbone."""
    excluded = set(getattr(model, "backbone", nn.Identity()).modules())
    parents = [module for module in model.modules() if module not in excluded]
    return [(parent, name, child) for parent in parents for name, child in parent.named_children()]


class DecodingLanguageModel(LanguageModel):
    """A language model of LSTMs whose step skips the calls between modules, which take a twentieth of its time. For a
    single row the first layer's W x + b is looked up by the symbol instead of computed.
    """

    def __init__(self, model: LanguageModel) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(model.__dict__)
        first_layer: Any = model.decoder[0]
        embedding, separate = model.target_embedding.weight.detach(), first_layer.separate
        self.projections: Tensor | None = None  # W x + b of every symbol, V×4H
        if separate is not None and len(embedding) <= MAX_PROJECTED_SYMBOLS:
            w, u, bias, recurrent_bias = separate
            self.projections = F.linear(embedding, w, bias)
            self.lookup_arguments = embedding[:1, :0], w[:, :0], u, recurrent_bias  # x and W are empty: only b is added

    @staticmethod
    def supports(model: Any, *, single_rows: bool) -> bool:
        """Whether the model is a language model all of whose layers are joined LSTMs."""
        return type(model) is LanguageModel and all(isinstance(layer, JoinedLSTM) for layer in model.decoder)

    def step(self, memory: Any, state: Layers, token: Tensor) -> Step[Layers]:
        layers: list[State] = []
        stack: Any = self.decoder
        if self.projections is not None and len(token) == 1:
            x, w, u, bias = self.lookup_arguments
            projection = F.embedding(token, self.projections)[0]
            layers.append(private.lstm_cell(x, state.layers[0], w, u, projection, bias))
            x = layers[0][0]
        else:
            x = F.embedding(token, self.target_embedding.weight)
        for i in range(len(layers), len(stack)):
            layers.append(stack[i].step(x, state.layers[i]))
            x = layers[-1][0]
        return Step(self.output(x), Layers(tuple(layers)), None)
