"""Which faster part replaces which, by device; for decoding, `packed.laid_out` replaces more. No other file decides
this. Models are replaced by those below, which have faster teacher forcing and a faster loss. Parameters and results
are the same.
"""

import copy
import math
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from seqtool.models.attention import Additive, WeightedSum
from seqtool.models.bahdanau import Bahdanau
from seqtool.models.cells import GRU, LSTM, Layers, Recurrence
from seqtool.models.contract import EncoderDecoder, Memory
from seqtool.models.cross_entropy import CrossEntropy
from seqtool.models.fast.additive import ExponentialAdditive
from seqtool.models.fast.attentive_gru import attentive_gru
from seqtool.models.fast.cross_entropy_in_pieces import cross_entropy_in_pieces
from seqtool.models.fast.gates import QuickGRU, QuickLSTM
from seqtool.models.fast.gathering import GatheredLinear, GatheredSum, one_pass
from seqtool.models.fast.recurrences import GatheredRecurrence, HandWrittenRecurrence, TorchRecurrence
from seqtool.models.language_model import LanguageModel
from seqtool.models.luong import Fed, Luong
from seqtool.models.recurrent_decoder import Advanced, RecurrentDecoder, StackDecoder
from seqtool.models.show_attend_tell import Gaze, ShowAttendTell
from seqtool.models.show_tell import ShowTell
from seqtool.models.sutskever import Sutskever
from seqtool.models.transformer import Past, Transformer, TransformerCaptioner, TransformerLanguageModel, Window
from seqtool.models.transformer_layers import ScaledDotProducts
from seqtool.runtime.precision import without_onednn

DROPOUT_STEPS = 1 << 16

M = TypeVar("M", bound=nn.Module)
S = TypeVar("S")


class InPieces(EncoderDecoder[S]):
    """The loss without the logits of a whole batch."""

    def loss(self, features: Tensor, labels: Tensor, smoothing: float) -> CrossEntropy:
        return cross_entropy_in_pieces(features, self.output, labels, smoothing)


class QuickDecoder(InPieces[S], RecurrentDecoder[S]):
    """Each matrix of the recurrence gets one gradient."""

    def unroll(self, memory: Any, state: S, shares: Tensor) -> Advanced[S]:
        with one_pass():
            return super().unroll(memory, state, shares)


class LayerByLayer(QuickDecoder[Layers], StackDecoder):
    """A stack whose steps depend only on its own states: each layer runs over the whole target at once."""

    def unroll(self, memory: Any, state: Layers, shares: Tensor) -> Advanced[Layers]:
        if not len(shares):
            return super().unroll(memory, state, shares)
        x, layers = shares.transpose(0, 1), []
        for recurrence, first in zip(self.decoder, state.layers, strict=True):
            h, last = recurrence(x, first)
            layers.append(last)
            x = self.dropout(h)
        return Advanced(Layers(tuple(layers)), (x,))


class QuickBahdanau(QuickDecoder[Layers], Bahdanau):
    """One layer of GRUs with additive attention has a backward pass of its own."""

    def unroll(self, memory: Memory, state: Layers, shares: Tensor) -> Advanced[Layers]:
        cell, score = self.cell, self.attention.score
        alone = torch.is_grad_enabled() and not self.upper and len(state.top) == len(memory.mask)
        if not (alone and isinstance(cell, QuickGRU) and isinstance(score, ExponentialAdditive)):
            return super().unroll(memory, state, shares)
        steps = attentive_gru(shares, state.top, memory, score, self.cell_context, cell.recurrent)
        s, context, alpha = (one.transpose(0, 1) for one in steps)
        return Advanced(Layers(((s[:, -1],),)), (s, context), alpha)


class QuickLuong(QuickDecoder[Fed], Luong):
    pass


class QuickSutskever(LayerByLayer, Sutskever):
    pass


class QuickLanguageModel(LayerByLayer, LanguageModel):
    pass


class QuickShowTell(LayerByLayer, ShowTell):
    pass


class QuickShowAttendTell(QuickDecoder[Gaze], ShowAttendTell):
    pass


class QuickTransformer(InPieces[Past], Transformer):
    pass


class QuickTransformerCaptioner(InPieces[Past], TransformerCaptioner):
    pass


class QuickTransformerLanguageModel(InPieces[Window], TransformerLanguageModel):
    pass


class QuickDropout(nn.Dropout):
    """Dropout from sixteen random bits a number: a CPU draws them four times as fast as torch's Bernoulli variables,
    which are a tenth of an update of a language model of 2×512 LSTMs. The probability is rounded to a multiple of
    1/65,536, and the numbers kept are scaled by the rounded one.
    """

    def forward(self, x: Tensor) -> Tensor:
        dropped = round(self.p * DROPOUT_STEPS)
        if not self.training or not 0 < dropped < DROPOUT_STEPS:
            return super().forward(x)
        bits = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None).view(torch.int16)
        kept = bits[: x.numel()].view(x.shape) >= dropped - DROPOUT_STEPS // 2
        return x * kept.to(x.dtype).mul_(DROPOUT_STEPS / (DROPOUT_STEPS - dropped))


class WholeProducts(ScaledDotProducts):
    """For a CPU: two products for all heads of all sentences at once. torch's own function multiplies head by head,
    and oneDNN takes 70 µs for the smallest product: with 64 sentences of 18 words, sixteen times as long in all.
    For a single query per row, as in decoding, torch's function is faster if MKL does the products: 0.9 ms instead of
    2.4 for 320 rows of 25 tokens, 11 µs instead of 180 for one row of 128.
    """

    def forward(self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, *, causal: bool = False) -> Tensor:
        if q.shape[-2] == 1:
            with without_onednn():
                return super().forward(q, k, v, allowed, causal=causal)
        e = q * q.shape[-1] ** -0.5 @ k.transpose(-1, -2)
        if causal:
            e = e + e.new_full(e.shape[-2:], -math.inf).triu(1)
        elif allowed is not None:
            e = e + torch.zeros_like(allowed, dtype=e.dtype).masked_fill_(~allowed, -math.inf)
        y: Tensor = e.softmax(-1).to(v.dtype) @ v
        return y


PARTS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: GatheredLinear,
    WeightedSum: GatheredSum,
    Additive: ExponentialAdditive,
    LSTM: QuickLSTM,
    GRU: QuickGRU,
    Bahdanau: QuickBahdanau,
    Luong: QuickLuong,
    Sutskever: QuickSutskever,
    LanguageModel: QuickLanguageModel,
    ShowTell: QuickShowTell,
    ShowAttendTell: QuickShowAttendTell,
    Transformer: QuickTransformer,
    TransformerCaptioner: QuickTransformerCaptioner,
    TransformerLanguageModel: QuickTransformerLanguageModel,
}
FOR_DEVICE: dict[str, dict[type[nn.Module], type[nn.Module]]] = {
    "cpu": {Recurrence: HandWrittenRecurrence, nn.Dropout: QuickDropout, ScaledDotProducts: WholeProducts},
    "cuda": {Recurrence: TorchRecurrence},
}


def quicken(model: M, device: torch.device) -> M:
    """Replace parts by faster ones, in place: same parameters, same results to rounding. A part of another class, such
    as a subclass, stays as it is; so does a captioner's backbone.
    """
    table = PARTS | FOR_DEVICE.get(device.type, {Recurrence: GatheredRecurrence})
    for module in own_modules(model):
        module.__class__ = table.get(type(module), type(module))
    return model


def plain_copy(model: M) -> M:
    """A copy with the parts as they were before `quicken`: recurrences call their cell at every step."""
    copied = copy.deepcopy(model)
    plain: dict[type[nn.Module], type[nn.Module]] = {GatheredRecurrence: Recurrence}
    for table in (PARTS, *FOR_DEVICE.values()):
        plain |= {quick: part for part, quick in table.items()}
    for module in own_modules(copied):
        module.__class__ = plain.get(type(module), type(module))
    return copied


def own_modules(model: nn.Module) -> list[nn.Module]:
    """All modules except those of a captioner's backbone."""
    others = set(getattr(model, "backbone", nn.Identity()).modules())
    return [module for module in model.modules() if module not in others]
