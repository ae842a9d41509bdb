"""Other libraries' backbones, up to the layer whose feature map is used, with default weights or weights from a file.

torchvision and timm are imported only here, and only when one of their backbones is made.
"""

import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path, PurePosixPath
from pickle import UnpicklingError
from types import ModuleType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from seqtool.errors import InputError, is_out_of_memory
from seqtool.runtime.network import LibraryDownload, reason_of
from seqtool.settings import sentence, unknown

# torchvision's last layers that output a map, or the tokens of a Vision Transformer
LAST_MAPS = ("layer4", "permute", "features", "trunk_output", "Mixed_7c", "encoder.ln")
# What torchvision changes when it loads the default weights: a checkpoint's weights need the same network
OPTIONS: dict[str, dict[str, Any]] = {
    "torchvision/googlenet": {"transform_input": True},
    "torchvision/inception_v3": {"transform_input": True},
    "torchvision/vit_h_14": {"image_size": 518},
}
HUB_FILES = ("model.safetensors", "pytorch_model.bin")  # names of weights in repositories of the Hugging Face Hub
DAMAGE = (  # the errors that loading a damaged file may raise
    *(OSError, RuntimeError, EOFError, ValueError, TypeError, LookupError, AttributeError, AssertionError),
    *(SafetensorError, UnpicklingError),
)


class Cut(NamedTuple):
    """A truncated network, and `read`, which computes its feature map from images normalised by `mean` and `std`."""

    network: nn.Module
    read: Callable[[nn.Module, Tensor], Tensor]
    mean: tuple[float, ...]
    std: tuple[float, ...]


def cut_backbone(backbone: str, layer: str | None, *, download: bool, **options: Any) -> Cut:
    """Make torchvision/NAME or timm/NAME up to a layer; raise InputError if any of these or the weights are missing.

    layer: the name of the layer; None: the last layer that outputs a feature map
    download: whether to load the default weights, downloading them if needed
    options: arguments of the library's model
    """
    library, _, name = backbone.partition("/")
    weights = default_weights(backbone)
    make = partial(_cut_timm if library == "timm" else _cut_torchvision, name, layer, download, **options)
    try:
        return make() if weights is None or not download else weights.run(make)
    except (OSError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        raise InputError(
            f"{backbone} cannot be made ({reason_of(error)}): choose another model.encoder.backbone or layer, or set "
            "model.encoder.weights to a file, or to null."
        ) from error


def _cut_torchvision(name: str, layer: str | None, download: bool, **options: Any) -> Cut:
    models = _import_library("torchvision.models")
    model = models.get_model(name, weights="DEFAULT" if download else None, **options)
    modules = dict(model.named_modules())
    is_transformer = isinstance(model, models.VisionTransformer)
    is_vector = is_transformer and layer == "class_token"
    layer = "encoder.ln" if is_vector else layer or next((last for last in LAST_MAPS if last in modules), None)
    if layer is None:
        raise InputError(f"Set model.encoder.layer: seqtool does not know which layer of {name} makes the last map.")
    if layer not in modules:
        raise InputError(sentence([unknown(layer, [module for module in modules if module], kind=f"layer of {name}")]))
    extraction = _import_library("torchvision.models.feature_extraction")
    network = extraction.create_feature_extractor(model, {layer: "map"}, suppress_diff_warning=True)
    preprocessing = models.get_model_weights(name).DEFAULT.transforms()

    def read(network: nn.Module, x: Tensor) -> Tensor:
        if is_transformer and x.shape[-1] != model.image_size:
            raise ValueError(f"it reads only {model.image_size}×{model.image_size} pixels")
        output = network(x)["map"]
        map_: Tensor = output[0] if isinstance(output, tuple) else output  # multi-head attention returns a tuple
        if is_vector:
            return map_[:, 0]
        if is_transformer and map_.dim() == 3:  # B×(1+S)×D, of which the first is the class token
            return map_[:, 1:].transpose(1, 2).reshape(len(x), map_.shape[2], model.image_size // model.patch_size, -1)
        return map_

    return Cut(network, read, tuple(preprocessing.mean), tuple(preprocessing.std))


def _cut_timm(name: str, layer: str | None, download: bool) -> Cut:
    timm = _import_library("timm")
    options: dict[str, Any] = {"num_classes": 0, "global_pool": ""}
    if layer is not None:
        options = {"features_only": True, "out_indices": (int(layer),)}
    try:
        network = timm.create_model(name, pretrained=download, **options)
    except (AssertionError, IndexError, ValueError, AttributeError) as error:
        raise InputError(f"timm/{name} has no layer {layer}: {str(error).splitlines()[0].rstrip('.')}.") from error
    channels = network.num_features if layer is None else network.feature_info.channels()[-1]
    settings = timm.data.resolve_model_data_config(network)

    def read(network: Any, x: Tensor) -> Tensor:
        map_: Tensor = network.forward_features(x) if layer is None else network(x)[-1]
        channels_last = map_.dim() == 4 and map_.shape[1] != channels == map_.shape[3]
        return map_.permute(0, 3, 1, 2) if channels_last else map_

    return Cut(network, read, settings["mean"], settings["std"])


def cut_off(network: nn.Module, read: Callable[[nn.Module, Tensor], Tensor], x: Tensor) -> Tensor:
    """Replace layers that are not needed for the feature map of the image `x` by identities; return the feature map."""
    calls: list[tuple[nn.Module, Any]] = []  # modules and their outputs, in the order in which calls return
    with register_module_forward_hook(lambda module, _, output: calls.append((module, output))):
        map_ = read(network, x)
    last_needed = max((i for i, (_, output) in enumerate(calls) if output is map_), default=len(calls) - 1)
    needed = {module for module, _ in calls[: last_needed + 1]}
    sequences = [child for child in network.children() if isinstance(child, nn.Sequential)]
    for parent in (*sequences, network):
        for name, child in parent.named_children():
            if not needed & set(child.modules()):
                setattr(parent, name, nn.Identity())
    return map_


def _import_library(module: str) -> ModuleType:
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
            f"{name} cannot be imported with torch {torch.__version__} ({reason}): install the torchvision that "
            "belongs to this torch, or the newest of both with pip install -U torch torchvision."
        ) from error


def default_weights(backbone: str) -> LibraryDownload | None:
    """Return the download of the default weights of torchvision/NAME or timm/NAME; None if timm has none, which making
    the model then reports. Raises InputError for a name that the library does not know.
    """
    library, _, name = backbone.partition("/")
    timm_config, refusal = None, None
    if library == "torchvision":
        models = _import_library("torchvision.models")
        names = models.list_models(module=models)
        if name not in names:
            raise InputError(sentence([unknown(name, names, kind="torchvision backbone")]))
        address = models.get_model_weights(name).DEFAULT.url
    else:
        timm = _import_library("timm")
        if not timm.is_model(name):
            raise InputError(sentence([unknown(name, timm.list_models(), kind="timm backbone")]))
        timm_config = timm.get_pretrained_cfg(name)
        address = timm_config and timm_config.url
    if timm_config is not None and timm_config.hf_hub_id:
        hub = _import_library("huggingface_hub")
        repository, _, revision = timm_config.hf_hub_id.partition("@")
        files = [timm_config.hf_hub_filename] if timm_config.hf_hub_filename else HUB_FILES
        cached = (hub.try_to_load_from_cache(repository, file, revision=revision or None) for file in files)
        is_cached = any(isinstance(path, str) for path in cached)
        file, address = files[0], hub.hf_hub_url(repository, files[0], revision=revision or None)
        cache_path = Path(hub.constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}"
        refusal = "HF_HUB_OFFLINE is set" if hub.constants.HF_HUB_OFFLINE and not is_cached else None
    elif not address:
        return None
    else:
        file = PurePosixPath(urlsplit(address).path).name
        cache_path = Path(torch.hub.get_dir()) / "checkpoints" / file
        is_cached = cache_path.is_file()
    return LibraryDownload(
        subject=f"The default weights of {backbone}, {file}, are not in {cache_path.parent} and",
        advice=f"set model.encoder.weights=FILE to a file of weights, or copy {cache_path} from a machine with "
        "internet access",
        addresses=[address],
        is_probed=not is_cached,
        refusal=refusal,
    )


def load_weights(network: nn.Module, file: Path, name: str) -> None:
    """Fill a backbone from a file: a state dict by its library's names, or a seqtool checkpoint's model.safetensors.

    The file must have every tensor of the network in its shape; tensors of layers that were cut off are ignored.
    Messages call the backbone `name`.
    """
    loaded = {_normalise_key(key.removeprefix("backbone.network.")): tensor for key, tensor in _read(file).items()}
    missing, state = [], network.state_dict()
    for key, tensor in state.items():
        replacement = loaded.get(_normalise_key(key.removeprefix("model.")))  # timm's wrapper adds this prefix to names
        if replacement is None:
            missing += [] if key.endswith("num_batches_tracked") else [key]
        elif replacement.shape != tensor.shape:
            expected, actual = ("×".join(map(str, each.shape)) or "()" for each in (tensor, replacement))
            raise InputError(f"{file} does not fit {name}: {key} has shape {actual}, not {expected}.")
        else:
            state[key] = replacement
    if missing:
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise InputError(f"{file} does not fit {name}: {missing[0]}{more} of {len(state):,} tensors are missing.")
    network.load_state_dict(state)


def _read(file: Path) -> dict[str, Tensor]:
    """Read the tensors of a state dict, which is either the file's dict itself or its item `state_dict` or `model`."""
    if not file.is_file():
        problem = "is a directory" if file.is_dir() else "does not exist"
        raise InputError(f"{file} {problem}: set model.encoder.weights to a file of weights, 'default' or null.")
    try:
        if file.suffix == ".safetensors":
            tensors: Any = load_file(file)
        else:
            with warnings.catch_warnings(action="ignore"):  # torch warns of pickles that weights_only then refuses
                tensors = torch.load(file, map_location="cpu", weights_only=True)
    except DAMAGE as error:
        raise InputError(
            f"{file} cannot be read as weights: model.encoder.weights takes a .safetensors file or a torch state dict."
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(tensors, dict) and isinstance(tensors.get(key), dict):
            tensors = tensors[key]
    if not isinstance(tensors, dict):
        raise InputError(f"{file} holds no state dict: model.encoder.weights takes a file that maps names to tensors.")
    return {str(key): tensor for key, tensor in tensors.items() if isinstance(tensor, Tensor)}


def _normalise_key(key: str) -> str:
    """Return a name with dots for underscores: timm's models that end at a layer have underscores for some dots."""
    return key.replace("_", ".")
