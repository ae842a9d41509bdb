"""Other libraries' backbones, cut off behind the layer whose map is read, and weights from files.

torchvision and timm are imported only here, when one of their backbones is made.
"""

import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from pickle import UnpicklingError
from types import ModuleType
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from seqtool.config import sentence, unknown
from seqtool.errors import InputError

DAMAGE = (
    OSError,
    RuntimeError,
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    AssertionError,
)  # in torch
LAST_MAPS = ("layer4", "permute", "features", "trunk_output", "Mixed_7c")  # in torchvision's models, by their names


class Cut(NamedTuple):
    """A network up to the map that is read: how to read it, and the statistics its input (0–1) is normalised by."""

    network: nn.Module
    read: Callable[[nn.Module, Tensor], Tensor]
    mean: tuple[float, ...]
    std: tuple[float, ...]


def torchvision_backbone(name: str, layer: str | None, *, download: bool) -> Cut:
    models = _library("torchvision.models")
    known = models.list_models(module=models)
    if name not in known:
        raise InputError(sentence([unknown(name, known, kind="torchvision backbone")]))
    try:
        model = models.get_model(name, weights="DEFAULT" if download else None)
    except (OSError, RuntimeError) as error:
        raise _not_downloaded(f"torchvision/{name}", error) from error
    modules = dict(model.named_modules())
    layer = layer or next((last for last in LAST_MAPS if last in modules), None)
    if layer is None:
        raise InputError(f"Set model.encoder.layer: which layer of torchvision/{name} is its last map is not known.")
    if layer not in modules:
        raise InputError(sentence([unknown(layer, [one for one in modules if one], kind=f"layer of {name}")]))
    extraction = _library("torchvision.models.feature_extraction")
    network = extraction.create_feature_extractor(model, {layer: "map"}, suppress_diff_warning=True)
    like = models.get_model_weights(name).DEFAULT.transforms()
    return Cut(network, _named_map, tuple(like.mean), tuple(like.std))


def timm_backbone(name: str, layer: str | None, *, download: bool) -> Cut:
    timm = _library("timm")
    if not timm.is_model(name):
        raise InputError(sentence([unknown(name, timm.list_models(), kind="timm backbone")]))
    part: dict[str, Any] = {"num_classes": 0, "global_pool": ""}
    if layer is not None:
        part = {"features_only": True, "out_indices": (int(layer),)}
    try:
        network = timm.create_model(name, pretrained=download, **part)
    except (OSError, RuntimeError) as error:
        raise _not_downloaded(f"timm/{name}", error) from error
    except (AssertionError, IndexError, ValueError, AttributeError) as error:
        raise InputError(f"timm/{name} has no layer {layer}: {str(error).splitlines()[0].rstrip('.')}.") from error
    channels = network.num_features if layer is None else network.feature_info.channels()[-1]
    settings = timm.data.resolve_model_data_config(network)

    def read(network: Any, x: Tensor) -> Tensor:
        map_: Tensor = network.forward_features(x) if layer is None else network(x)[-1]
        channels_last = map_.dim() == 4 and map_.shape[1] != channels == map_.shape[3]
        return map_.permute(0, 3, 1, 2) if channels_last else map_

    return Cut(network, read, settings["mean"], settings["std"])


def _named_map(network: nn.Module, x: Tensor) -> Tensor:
    map_: Tensor = network(x)["map"]
    return map_


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


def cut_off(network: nn.Module, read: Callable[[nn.Module, Tensor], Tensor], x: Tensor) -> Tensor:
    """Put nothing in place of the network's children, and theirs, that work on the image only after the map is made,
    or not at all. Returns the map.
    """
    ended: list[nn.Module] = []
    outputs: list[Any] = []

    def hook(module: nn.Module, _: Any, output: Any) -> None:
        ended.append(module)
        outputs.append(output)

    handles = [module.register_forward_hook(hook) for module in network.modules() if module is not network]
    map_ = read(network, x)
    for handle in handles:
        handle.remove()
    made = max((i for i, output in enumerate(outputs) if output is map_), default=len(ended) - 1)
    needed = set(ended[: made + 1])
    for child in network.children():
        for name, grandchild in child.named_children():
            if isinstance(child, nn.Sequential) and not needed & set(grandchild.modules()):
                setattr(child, name, nn.Identity())
    for name, child in network.named_children():
        if not needed & set(child.modules()):
            setattr(network, name, nn.Identity())
    return map_


def _library(module: str) -> ModuleType:
    name = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        extra = "'seqtool[timm]'" if name == "timm" else name
        raise InputError(f"This backbone needs {name}: pip install {extra}.") from error
    except (ImportError, RuntimeError) as error:  # torchvision's operators are built for one release of torch
        reason = str(error).splitlines()[0].rstrip(".")
        raise InputError(
            f"{name} does not import beside torch {torch.__version__} ({reason}): install the torchvision that belongs "
            "to this torch, or the newest of both with pip install -U torch torchvision."
        ) from error


def _not_downloaded(name: str, error: Exception) -> InputError:
    reason = (str(error).splitlines() or [type(error).__name__])[0].split(". ")[0].rstrip(".")
    return InputError(
        f"The default weights of {name} cannot be downloaded ({reason}): set model.encoder.weights to a file, "
        "or to null."
    )


def _read(file: Path) -> dict[str, Tensor]:
    if not file.is_file():
        raise InputError(f"There is no file {file}: model.encoder.weights is default, a file of weights, or null.")
    try:
        if file.suffix == ".safetensors":
            tensors: Any = load_file(file)
        else:
            with warnings.catch_warnings(action="ignore"):  # about pickles that are then refused
                tensors = torch.load(file, map_location="cpu", weights_only=True)
    except (SafetensorError, UnpicklingError, *DAMAGE) as error:
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
