"""Initialisation schemes: a default, and two from papers; `initialisation=NAME` chooses one.

No scheme touches normalisation layers, whose gains are 1 and biases 0 from the start, or a captioner's backbone, which
has initial weights of its own.
"""

import math
from collections.abc import Iterator

import torch
from torch import nn

from seqtool.errors import InputError
from seqtool.models.attention import Additive
from seqtool.models.backbone import Backbone
from seqtool.models.cells import LSTM, Cell
from seqtool.settings.classes import chosen

UNIFORM_LIMIT = 0.08  # Sutskever et al. 2014, section 3.4
NORMAL_STD = 0.01  # Bahdanau et al. 2015, B.1: standard deviation of matrices except W_a, U_a and recurrent ones
ALIGNMENT_STD = 0.001  # Bahdanau et al. 2015, B.1: standard deviation of W_a and U_a
NORMALISATIONS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._BatchNorm)


def default(model: nn.Module) -> None:
    """Make recurrent matrices orthogonal, others Glorot uniform, embeddings N(0, 1/E), biases 0, forget biases 1."""
    for name, parameter in _named_parameters(model):
        if parameter.dim() < 2:
            nn.init.zeros_(parameter)
        elif "embedding" in name:
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
        else:
            nn.init.xavier_uniform_(parameter)
    for module in model.modules():
        if isinstance(module, Cell):
            _make_orthogonal(module)
        if isinstance(module, LSTM):
            nn.init.ones_(module.bias[module.hidden : 2 * module.hidden])


def sutskever2014(model: nn.Module) -> None:
    """Draw all parameters uniformly between −0.08 and 0.08 (section 3.4)."""
    for _, parameter in _named_parameters(model):
        nn.init.uniform_(parameter, -UNIFORM_LIMIT, UNIFORM_LIMIT)


def bahdanau2015(model: nn.Module) -> None:
    """Make recurrent matrices orthogonal, W_a and U_a N(0, 0.001²), v_a and biases 0, others N(0, 0.01²) (B.1).

    With v_a = 0, attention starts uniform and learns slowly at first, so this suits only runs as long as the paper's.
    """
    for _, parameter in _named_parameters(model):
        if parameter.dim() < 2:
            nn.init.zeros_(parameter)
        else:
            nn.init.normal_(parameter, std=NORMAL_STD)
    for module in model.modules():
        if isinstance(module, Cell):
            _make_orthogonal(module)
        elif isinstance(module, Additive):
            nn.init.normal_(module.W.weight, std=ALIGNMENT_STD)
            nn.init.normal_(module.U.weight, std=ALIGNMENT_STD)
            nn.init.zeros_(module.v.weight)


INITIALISATIONS = {scheme.__name__: scheme for scheme in (default, sutskever2014, bahdanau2015)}
ORTHOGONAL = ("default", "bahdanau2015")  # the schemes whose recurrent matrices are orthogonal


def initialise(model: nn.Module, name: str, *, gain: float = 1.0, forget_bias: float | None = None) -> None:
    """Fill all parameters by a scheme. Raises InputError if `gain` or `forget_bias` would apply to no weights.

    gain: scales the orthogonal recurrent matrices: all their singular values equal it
    forget_bias: replaces the scheme's initial forget-gate bias; None leaves it
    """
    for setting, value in {"initialisation_gain": gain, "forget_bias": forget_bias}.items():
        if value is not None and not math.isfinite(value):
            raise InputError(f"{setting} must be a finite number, not {value}.")
    cells = [module for module in model.modules() if isinstance(module, Cell)]
    lstms = [cell for cell in cells if isinstance(cell, LSTM)]
    if gain != 1 and (not cells or name not in ORTHOGONAL):
        raise InputError(
            f"initialisation_gain={gain:g} multiplies orthogonal recurrent matrices, which this model with "
            f"initialisation={name} does not have: leave it out."
        )
    if forget_bias is not None and not lstms:
        raise InputError(f"forget_bias={forget_bias:g} is for LSTMs, and this model has none: leave it out.")
    with torch.no_grad():
        chosen(name, INITIALISATIONS, kind="initialisation")(model)
        for cell in cells:
            for linear in _recurrent_maps(cell):
                linear.weight.mul_(gain)
        if forget_bias is not None:
            for cell in lstms:
                nn.init.constant_(cell.bias[cell.hidden : 2 * cell.hidden], forget_bias)


def _named_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    excluded_modules = (module for module in model.modules() if isinstance(module, (Backbone, *NORMALISATIONS)))
    excluded = {parameter for module in excluded_modules for parameter in module.parameters()}
    return ((name, parameter) for name, parameter in model.named_parameters() if parameter not in excluded)


def _make_orthogonal(cell: Cell) -> None:
    for linear in _recurrent_maps(cell):
        for gate in torch.split(linear.weight, cell.hidden):
            nn.init.orthogonal_(gate)


def _recurrent_maps(cell: Cell) -> list[nn.Linear]:
    return [linear for linear in cell.children() if isinstance(linear, nn.Linear)]
