"""Other libraries' backbones, cut off behind the layer whose map is read, and their default weights.

torchvision and timm are imported only here, when one of their backbones is made.
"""

import queue
import threading
from collections.abc import Callable
from http.client import HTTPException
from importlib import import_module
from pathlib import Path, PurePosixPath
from ssl import SSLError
from types import ModuleType
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import torch
from torch import Tensor, nn

from seqtool.errors import InputError
from seqtool.settings import sentence, unknown

LAST_MAPS = ("layer4", "permute", "features", "trunk_output", "Mixed_7c")  # in torchvision's models, by their names
HUB_FILES = ("model.safetensors", "pytorch_model.bin")  # in a repository of the Hugging Face hub
SECONDS = 4.0  # in which a server of weights must answer at all


class Cut(NamedTuple):
    """A network up to the map that is read: how to read it, and the statistics its input (0–1) is normalised by."""

    network: nn.Module
    read: Callable[[nn.Module, Tensor], Tensor]
    mean: tuple[float, ...]
    std: tuple[float, ...]


def check_default(backbone: str) -> None:
    """Raise InputError where the default weights of torchvision/NAME or timm/NAME cannot be had."""
    library, _, name = backbone.partition("/")
    wanted = _kept_by_timm(name) if library == "timm" else _kept_by_torchvision(name)
    if wanted is not None:
        wanted.check()


def torchvision_backbone(name: str, layer: str | None, *, download: bool) -> Cut:
    models = _library("torchvision.models")
    _check_torchvision_name(name)
    wanted = _kept_by_torchvision(name) if download else None
    if wanted is not None:
        wanted.check()
    try:
        model = models.get_model(name, weights="DEFAULT" if download else None)
    except (OSError, RuntimeError) as error:
        raise _not_made(f"torchvision/{name}", error, wanted) from error
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
    _check_timm_name(name)
    part: dict[str, Any] = {"num_classes": 0, "global_pool": ""}
    if layer is not None:
        part = {"features_only": True, "out_indices": (int(layer),)}
    wanted = _kept_by_timm(name) if download else None
    if wanted is not None:
        wanted.check()
    try:
        network = timm.create_model(name, pretrained=download, **part)
    except (OSError, RuntimeError) as error:
        raise _not_made(f"timm/{name}", error, wanted) from error
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


class _Default(NamedTuple):
    """A library's own weights: the file's name, where the library keeps it (`copied` is what of that place goes to
    another machine), whether it is there, its address, and whether that may be asked.
    """

    backbone: str
    name: str
    copied: Path
    is_there: bool
    address: str
    online: bool = True

    def check(self) -> None:
        """Raise InputError where the file is not there and its address does not answer within a few seconds: the
        libraries themselves try again and again.
        """
        if not self.is_there and (reason := self._unreachable()) is not None:
            raise self.missing(reason)

    def _unreachable(self) -> str | None:
        if not self.online:
            return "HF_HUB_OFFLINE is set"
        answer: queue.SimpleQueue[str | None] = queue.SimpleQueue()

        def ask() -> None:
            try:
                with urlopen(Request(self.address, method="HEAD"), timeout=SECONDS):
                    answer.put(None)
            except (OSError, HTTPException) as error:
                answered = isinstance(error, HTTPError) or isinstance(getattr(error, "reason", None), SSLError)
                answer.put(None if answered else _reason(error))

        threading.Thread(target=ask, daemon=True).start()  # looking up a name cannot be interrupted
        try:
            return answer.get(timeout=SECONDS)
        except queue.Empty:
            return f"no answer within {SECONDS:g} seconds"

    def missing(self, why: Exception | str) -> InputError:
        reason = why if isinstance(why, str) else _reason(why)
        return InputError(
            f"The default weights of {self.backbone}, {self.name}, are not in {self.copied.parent} and cannot be "
            f"downloaded from {self.address} ({reason}): set model.encoder.weights=FILE to a file of weights, or copy "
            f"{self.copied} from a machine with internet access."
        )


def _check_torchvision_name(name: str) -> None:
    models = _library("torchvision.models")
    known = models.list_models(module=models)
    if name not in known:
        raise InputError(sentence([unknown(name, known, kind="torchvision backbone")]))


def _check_timm_name(name: str) -> None:
    timm = _library("timm")
    if not timm.is_model(name):
        raise InputError(sentence([unknown(name, timm.list_models(), kind="timm backbone")]))


def _kept_by_torchvision(name: str) -> _Default:
    _check_torchvision_name(name)
    default = _library("torchvision.models").get_model_weights(name).DEFAULT
    return _kept_by_torch(f"torchvision/{name}", default.url)


def _kept_by_torch(backbone: str, address: str) -> _Default:
    file = Path(torch.hub.get_dir()) / "checkpoints" / PurePosixPath(urlsplit(address).path).name
    return _Default(backbone, file.name, file, file.is_file(), address)


def _kept_by_timm(name: str) -> _Default | None:
    """None where timm has no weights: it says so itself."""
    _check_timm_name(name)
    known, backbone = _library("timm").get_pretrained_cfg(name), f"timm/{name}"
    if known is None or not (known.hf_hub_id or known.url):
        return None
    if not known.hf_hub_id:
        return _kept_by_torch(backbone, known.url)
    hub = _library("huggingface_hub")
    repository, _, revision = known.hf_hub_id.partition("@")
    names = [known.hf_hub_filename] if known.hf_hub_filename else HUB_FILES
    found = (hub.try_to_load_from_cache(repository, one, revision=revision or None) for one in names)
    return _Default(
        backbone,
        name=names[0],
        copied=Path(hub.constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}",
        is_there=any(isinstance(one, str) for one in found),
        address=hub.hf_hub_url(repository, names[0], revision=revision or None),
        online=not hub.constants.HF_HUB_OFFLINE,
    )


def _not_made(backbone: str, error: Exception, wanted: _Default | None) -> InputError:
    if wanted is not None and isinstance(error, OSError):
        return wanted.missing(error)
    return InputError(
        f"{backbone} cannot be made ({_reason(error)}): choose another model.encoder.backbone or layer, or set "
        "model.encoder.weights to a file, or to null."
    )


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    text = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
    return str(text).splitlines()[0].split(". ")[0].rstrip(".")
