"""Which quicker part replaces which, for the device at hand: the one place that knows."""

from typing import TypeVar

import torch
from torch import nn

from seqtool.models.attention import Additive, WeightedSum
from seqtool.models.bahdanau import Bahdanau
from seqtool.models.cells import GRU, LSTM, Recurrence
from seqtool.models.fast.additive import ExponentialAdditive
from seqtool.models.fast.dropout import QuickDropout
from seqtool.models.fast.gathering import GatheredLinear, GatheredSum
from seqtool.models.fast.models import (
    QuickBahdanau,
    QuickLanguageModel,
    QuickLuong,
    QuickShowAttendTell,
    QuickShowTell,
    QuickSutskever,
)
from seqtool.models.fast.packed import Packed
from seqtool.models.fast.recurrences import (
    GatheredRecurrence,
    HandWrittenRecurrence,
    QuickGRU,
    QuickLSTM,
    TorchRecurrence,
)
from seqtool.models.language_model import LanguageModel
from seqtool.models.luong import Luong
from seqtool.models.show_attend_tell import ShowAttendTell
from seqtool.models.show_tell import ShowTell
from seqtool.models.sutskever import Sutskever

M = TypeVar("M", bound=nn.Module)

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
}
FOR_DEVICE: dict[str, dict[type[nn.Module], type[nn.Module]]] = {
    "cpu": {Recurrence: HandWrittenRecurrence, nn.Dropout: QuickDropout},
    "cuda": {Recurrence: TorchRecurrence},
}


def quicken(model: M, device: torch.device) -> M:
    """Put in the quicker parts, in place: same parameters, same results to rounding. A part of another class, such as a
    subclass, stays as it is; so does a captioner's backbone.
    """
    table = PARTS | FOR_DEVICE.get(device.type, {Recurrence: GatheredRecurrence})
    for module in _own_modules(model):
        module.__class__ = table.get(type(module), type(module))
    return model


def lay_out(model: M, dtype: torch.dtype | None, device: torch.device) -> M:
    """The model for decoding alone: each matrix of a linear map rounded to `dtype` once, as autocast would round it at
    every step, and in the layout in which a CPU multiplies by it. What was tied to an embedding is a copy then. A map
    to a single number, such as a score's v, is also read without autocast, and stays as it is.
    """
    for parent in _own_modules(model):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and child.out_features > 1:
                child.weight = nn.Parameter(child.weight.detach().to(dtype or child.weight.dtype))
                if device.type == "cpu" and Packed.takes(child.weight.dtype):
                    setattr(parent, name, Packed(child))
    return model


def _own_modules(model: nn.Module) -> list[nn.Module]:
    """All but a captioner's backbone's."""
    others = set(getattr(model, "backbone", nn.Identity()).modules())
    return [module for module in model.modules() if module not in others]
