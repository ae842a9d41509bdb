"""The models with quicker ways over a whole target, and with a quicker loss. Parameters and results are the same."""

from typing import Any, TypeVar

import torch
from torch import Tensor

from seqtool.models.bahdanau import Bahdanau
from seqtool.models.cells import Layers, Stack
from seqtool.models.contract import Memory
from seqtool.models.cross_entropy import CrossEntropy
from seqtool.models.fast.additive import ExponentialAdditive
from seqtool.models.fast.attentive_gru import attentive_gru
from seqtool.models.fast.cross_entropy_in_pieces import cross_entropy_in_pieces
from seqtool.models.fast.gathering import one_pass
from seqtool.models.fast.recurrences import QuickGRU
from seqtool.models.language_model import LanguageModel
from seqtool.models.luong import Fed, Luong
from seqtool.models.recurrent_decoder import Advanced, HasTop, RecurrentDecoder
from seqtool.models.show_attend_tell import Gaze, ShowAttendTell
from seqtool.models.show_tell import ShowTell
from seqtool.models.sutskever import Sutskever

S = TypeVar("S", bound=HasTop)


class QuickDecoder(RecurrentDecoder[S]):
    """Each matrix of the recurrence gets one gradient, and the loss is taken in pieces."""

    def unroll(self, memory: Any, state: S, shares: Tensor, *, stepwise: bool = False) -> Advanced[S]:
        with one_pass():
            return super().unroll(memory, state, shares, stepwise=stepwise)

    def loss(self, features: Tensor, labels: Tensor, smoothing: float) -> CrossEntropy:
        return cross_entropy_in_pieces(features, self.output, labels, smoothing)


class LayerByLayer(QuickDecoder[Layers]):
    """A stack that waits for nothing but its own states: each layer runs over the whole target at once."""

    decoder: Stack

    def unroll(self, memory: Any, state: Layers, shares: Tensor, *, stepwise: bool = False) -> Advanced[Layers]:
        if stepwise or not len(shares):
            return super().unroll(memory, state, shares, stepwise=stepwise)
        x, layers = shares.transpose(0, 1), []
        for recurrence, first in zip(self.decoder, state.layers, strict=True):
            h, last, _ = recurrence(x, first)
            layers.append(last)
            x = self.dropout(h)
        return Advanced(Layers(tuple(layers)), (x,))


class QuickBahdanau(QuickDecoder[Layers], Bahdanau):
    """One layer of GRUs with additive attention has a backward pass of its own."""

    def unroll(self, memory: Memory, state: Layers, shares: Tensor, *, stepwise: bool = False) -> Advanced[Layers]:
        cell, score = self.cell, self.attention.score
        alone = torch.is_grad_enabled() and not stepwise and not self.upper and len(state.top) == len(memory.mask)
        if not (alone and isinstance(cell, QuickGRU) and isinstance(score, ExponentialAdditive)):
            return super().unroll(memory, state, shares, stepwise=stepwise)
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
