"""A model's tensors: read by name, replaced, and stored in safetensors files."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from seqtool.errors import InputError


def weights(model: nn.Module) -> dict[str, Tensor]:
    """A model's parameters and buffers by name; a tied matrix appears only under its first name."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def fill(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors into the model's parameters and buffers of the same names."""
    with torch.no_grad():
        for name, tensor in weights(model).items():
            tensor.copy_(tensors[name])


def replace(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put tensors in place of the model's parameters and buffers of the same names; tied ones stay tied."""
    new = {
        id(old): tensors[name].to(old.dtype, copy=True)  # tensors read from a file are memory-mapped
        for name, old in weights(model).items()
    }
    for parameter in model.parameters():
        new[id(parameter)] = nn.Parameter(new[id(parameter)], parameter.requires_grad)
    for module in model.modules():
        for named in (module._parameters, module._buffers):
            own: dict[str, Any] = named
            for key, old in own.items():
                if old is not None:
                    own[key] = new[id(old)]


class Unfilled(TorchFunctionMode):
    """Skips initialisation: on the meta device torch's first random draw imports its compiler, taking a second."""

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        if function in (nn.init.normal_, nn.init.uniform_, Tensor.normal_, Tensor.uniform_):
            return arguments[0] if arguments else named["tensor"]
        return function(*arguments, **(named or {}))


def write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a file of tensors. OSError if the disk is full."""
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:  # has the system's error only as text
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A file of tensors, each read when it is asked for."""
    if not path.exists():
        raise InputError(f"Checkpoint {path.parent} has no {path.name}.")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise InputError(
            f"Checkpoint {path.parent} is damaged: {path.name} cannot be read; use another one."
        ) from error
