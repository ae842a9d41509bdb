"""Weights of a backbone from a file."""

import warnings
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from seqtool.errors import InputError

DAMAGE = (  # what torch raises on damaged files
    *(OSError, RuntimeError, EOFError, ValueError, TypeError, LookupError, AttributeError, AssertionError),
    *(SafetensorError, UnpicklingError),
)


def load_weights(network: nn.Module, file: Path, name: str) -> None:
    """Fill a backbone from a file: a state dict by its library's names, or a seqtool checkpoint's model.safetensors.

    Everything that the network needs must be there in the right shape; what the file holds for the part that was cut
    off is left alone.
    """
    found = {_plain(key.removeprefix("backbone.network.")): tensor for key, tensor in _read(file).items()}
    missing, state = [], network.state_dict()
    for key, tensor in state.items():
        other = found.get(_plain(key.removeprefix("model.")))  # timm's wrapper puts that before the names
        if other is None:
            missing += [] if key.endswith("num_batches_tracked") else [key]
        elif other.shape != tensor.shape:
            ours, theirs = ("×".join(map(str, one.shape)) or "one number" for one in (tensor, other))
            raise InputError(f"{file} does not fit {name}: {key} is {theirs}, not {ours}.")
        else:
            state[key] = other
    if missing:
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise InputError(f"{file} does not fit {name}: {missing[0]}{more} of {len(state):,} tensors are missing.")
    network.load_state_dict(state)


def _read(file: Path) -> dict[str, Tensor]:
    if not file.is_file():
        raise InputError(f"There is no file {file}: model.encoder.weights is default, a file of weights, or null.")
    try:
        if file.suffix == ".safetensors":
            tensors: Any = load_file(file)
        else:
            with warnings.catch_warnings(action="ignore"):  # about pickles that are then refused
                tensors = torch.load(file, map_location="cpu", weights_only=True)
    except DAMAGE as error:
        raise InputError(
            f"{file} cannot be read as weights: model.encoder.weights takes a .safetensors file or a torch state dict."
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(tensors, dict) and isinstance(tensors.get(key), dict):
            tensors = tensors[key]
    if not isinstance(tensors, dict):
        raise InputError(f"{file} holds no state dict: model.encoder.weights takes names and tensors.")
    return {str(key): tensor for key, tensor in tensors.items() if isinstance(tensor, Tensor)}


def _plain(key: str) -> str:
    """A tensor's name as timm has it in a whole model and in a cut one, which joins some of its parts by _."""
    return key.replace("_", ".")
