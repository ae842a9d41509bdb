"""Encoders of images, which turn pixels into one annotation vector for each cell of a grid.

The backbone `small` is ours, for the built-in images; `torchvision/NAME` and `timm/NAME` are models of those libraries,
convolutional networks or Vision Transformers, truncated after the layer whose feature map is used. `ImageCaptioner` is
the base class of captioners.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from seqtool.errors import InputError, is_out_of_memory
from seqtool.models.contract import EncoderDecoder
from seqtool.models.hard_attention import Choice
from seqtool.models.inputs import Annotations, Augmented, Images, Pixels
from seqtool.models.parts import PLAIN, Parts
from seqtool.models.pretrained import OPTIONS, Cut, cut_backbone, cut_off, default_weights, load_weights
from seqtool.runtime.precision import without_tf32
from seqtool.settings import declarations, names, sentence, unknown

StateT = TypeVar("StateT")
SMALL_REVISION = 2  # part of the fingerprint of cached annotation vectors: raise it when the output of `Small` changes
MAX_SHIFT = 1 / 16  # augmentation moves a picture by at most this fraction of its side
MAX_JITTER = 0.15  # augmentation changes brightness and contrast by at most this fraction


@dataclass
class EncoderSettings(declarations.Encoder):
    """The `model.encoder` settings; configs/encoder.yaml describes them and holds their defaults."""

    def check(self) -> None:
        """Raise one InputError that names every invalid setting."""
        library, _, name = self.backbone.partition("/")
        problems = []
        if self.backbone != "small" and not (library in ("torchvision", "timm") and name):
            problems.append(
                f"Unknown model.encoder.backbone '{self.backbone}'; choose from small, torchvision/NAME, timm/NAME."
            )
        if self.backbone == "small" and self.layer is not None:
            problems.append(f"model.encoder.layer must be null for the backbone small, not '{self.layer}'.")
        if self.backbone == "small" and self.weights == "default":
            problems.append("model.encoder.weights=default is for torchvision and timm; small takes a file or null.")
        if library == "timm" and self.layer is not None and not self.layer.isdigit():
            problems.append(f"model.encoder.layer must be an out index such as 3 for timm, not '{self.layer}'.")
        problems += [f"{problem}." for problem in declarations.out_of_range(type(self), vars(self), "model.encoder.")]
        if self.lr == math.inf:
            problems.append(f"model.encoder.lr must be finite, not {self.lr}.")
        if self.augment and self.fine_tune_from is None:
            problems.append(
                "model.encoder.augment=true needs an encoder that is fine-tuned: set model.encoder.fine_tune_from to "
                "a step, or augment to false."
            )
        if self.freeze is not None and self.fine_tune_from is None:
            problems.append("model.encoder.freeze means nothing with fine_tune_from=null, which freezes all of it.")
        if not self.augment and (self.crop < 1 or self.mirror_unless is not None):
            problems.append("model.encoder.crop and mirror_unless mean nothing without model.encoder.augment=true.")
        if self.crop_size is not None and self.crop == 1:
            problems.append("model.encoder.crop_size means nothing with crop=1, which does not crop: set crop=0.8.")
        if problems:
            raise InputError(" ".join(problems))


def warning(settings: EncoderSettings) -> str | None:
    """Return a warning if a backbone with random weights would stay frozen."""
    if settings.weights is not None or settings.fine_tune_from is not None:
        return None
    advice = "a file" if settings.backbone == "small" else "default or a file"
    return (
        f"The CNN {settings.backbone} has random weights and stays frozen, so captions can say little about the "
        f"images: set model.encoder.weights to {advice}, or model.encoder.fine_tune_from=0 to train it too."
    )


class Backbone(nn.Module):
    """A CNN that maps pixels B×3×H×W (0–255) to annotation vectors B×S×D (float32).

    S is rows·columns of `locations`, D is `dimension`. Batch normalisation always uses its stored statistics. The
    weights of a frozen backbone (`fine_tune_from` null) never change, nor do those of the modules that `freeze` names.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, cut: Cut, settings: EncoderSettings) -> None:
        super().__init__()
        self.network = cut.network
        self.read = cut.read
        self.frozen = settings.fine_tune_from is None
        self.register_buffer("mean", 255 * torch.tensor(cut.mean).view(3, 1, 1))
        self.register_buffer("std", 255 * torch.tensor(cut.std).view(3, 1, 1))
        self.requires_grad_(not self.frozen)
        for name in names(settings.freeze):
            _module(self.network, name).requires_grad_(False)
        self.network.eval()
        # one black image is passed through to find the feature map's shape and the layers that the map needs
        with torch.no_grad():
            size, setting = settings.size, "size"
            try:
                shape = as_map(cut_off(self.network, self.read, torch.zeros(1, 3, size, size))).shape
                if settings.crop_size is not None:
                    size, setting = settings.crop_size, "crop_size"
                    self.read(self.network, torch.zeros(1, 3, size, size))
            except (RuntimeError, ValueError, AssertionError) as error:
                if is_out_of_memory(error):
                    raise
                name, reason = settings.backbone, (str(error).splitlines() or ["no reason given"])[0].rstrip(".")
                raise InputError(
                    f"{name} cannot read images of {size}×{size} pixels (model.encoder.{setting}): {reason}."
                ) from error
        if len(shape) != 4:
            raise InputError(
                f"model.encoder.layer={settings.layer or 'null'} of {settings.backbone} has an output of shape "
                f"{'×'.join(map(str, shape))}, which is neither a map of channels, rows and columns nor a vector: "
                "choose another layer."
            )
        self.locations, self.dimension = (shape[2], shape[3]), shape[1]
        self.train()

    def forward(self, pixels: Tensor) -> Tensor:
        x = pixels.to(self.mean.dtype)
        x = ((x - self.mean) / self.std).contiguous(memory_format=torch.channels_last)  # a fifth less time on CPUs
        if self.frozen:  # in full precision, so that the results equal cached annotation vectors
            with torch.no_grad(), torch.autocast(x.device.type, enabled=False), without_tf32():
                map_ = self.read(self.network, x)
        else:
            map_ = self.read(self.network, x)
        return as_map(map_).flatten(2).transpose(1, 2).to(self.mean.dtype).contiguous()

    def train(self, mode: bool = True) -> "Backbone":
        super().train(mode)
        for module in self.network.modules():
            if self.frozen or isinstance(module, _BatchNorm):
                module.training = False
        return self


def as_map(x: Tensor) -> Tensor:
    """Return a feature map B×D×H×W unchanged; a vector B×D, such as a classifier's output, as a map of one location."""
    return x[:, :, None, None] if x.dim() == 2 else x


class CellNorm(nn.LayerNorm):
    """Layer normalisation over the channels of each cell separately, so that cells do not affect each other."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Small(nn.Module):
    """The CNN for the built-in images: 64×64 pixels to an 8×8 grid.

    A cell sees only 25×25 pixels, so attention to an object must lie near it; most normalisation layers would break
    that, since they use statistics of the whole image. Two channels hold the cell's coordinates, from −1 to 1.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(3, 16, 5, stride=2, padding=2), CellNorm(16), nn.ReLU()),
            *(nn.Conv2d(16, 48, 3, stride=2, padding=1), CellNorm(48), nn.ReLU()),
            *(nn.Conv2d(48, 64, 3, padding=1), CellNorm(64), nn.ReLU()),
            *(nn.Conv2d(64, 128, 3, stride=2, padding=1), CellNorm(128), nn.ReLU()),
        )
        self.place = nn.Conv2d(128 + 2, 96, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                assert module.bias is not None
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(x)
        rows, columns = (torch.linspace(-1, 1, size, dtype=x.dtype, device=x.device) for size in x.shape[2:])
        grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij")).expand(len(x), -1, -1, -1)
        return torch.relu(self.place(torch.cat([x, grid], 1)))


def check_default_weights(settings: EncoderSettings) -> None:
    """Raise InputError if a library's default weights are asked for but unavailable, before any image is read."""
    if settings.weights == "default" and (default := default_weights(settings.backbone)) is not None:
        default.check()


def make_backbone(settings: EncoderSettings, *, pretrained: bool) -> Backbone:
    """Make a backbone, with `settings.weights` if `pretrained`; otherwise a checkpoint will supply the weights.

    A frozen backbone with `weights` null has random weights that are the same every time, so annotation vectors cached
    from it stay valid. Raises InputError if a library, a model, a layer or the weights are missing.
    """
    settings.check()
    with torch.random.fork_rng(devices=[], enabled=settings.fine_tune_from is None):
        if settings.fine_tune_from is None:
            torch.default_generator.manual_seed(0)  # torch.manual_seed would also seed GPUs, which are not forked here
        if settings.backbone == "small":
            cut = Cut(Small(), lambda network, x: network(x), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
        else:
            is_default = settings.weights == "default"
            options = OPTIONS.get(settings.backbone, {}) if is_default else {}
            cut = cut_backbone(settings.backbone, settings.layer, download=pretrained and is_default, **options)
    if pretrained and settings.weights not in (None, "default"):
        load_weights(cut.network, Path(str(settings.weights)), settings.backbone)
    return Backbone(cut, settings)


class ImageCaptioner(EncoderDecoder[StateT]):
    """A model that captions an image from its annotation vectors, cached or computed from pixels by its `backbone`.

    A `backbone` of one's own takes pixels B×3×H×W, 0–255 in the model's precision, augmented already, and
    `model.encoder.freeze` does not reach it.

    location_rules: the rules, by name, by which attention may weight the locations in decoding
    hard: whether attention is trained by drawing locations
    soft_share: with hard attention, the share of images that take the expected context instead
    """

    task = "captioning"
    location_rules: Mapping[str, Choice] = {}
    hard = False
    soft_share = 0.0

    def __init__(
        self, vocabulary: int, embedding: int, encoder: EncoderSettings, *, pretrained: bool, parts: Parts = PLAIN
    ) -> None:
        super().__init__(parts)
        self.backbone = make_backbone(encoder, pretrained=pretrained)
        self.augment = encoder.augment and encoder.fine_tune_from is not None
        self.crop, self.crop_size = encoder.crop, encoder.crop_size or encoder.size
        self.target_embedding = nn.Embedding(vocabulary, embedding)

    def augmented(self, source: Images) -> Images:
        """Return pictures as training shows them, mirrored, cropped or moved at random; anything else as it is."""
        if not (self.training and isinstance(source, Pixels)) or isinstance(source, Augmented):
            return source
        x = source.values if source.may_mirror is None else mirror(source.values, source.may_mirror)
        x = x.to(self.target_embedding.weight.dtype)
        x = augment(x, crop=self.crop, size=self.crop_size) if self.augment else x
        return Augmented(x, source.rows, source.captions_each)

    @property
    def rests(self) -> bool:
        return not any(parameter.requires_grad for parameter in self.backbone.parameters())

    def annotated(self, source: Images) -> Annotations:
        return Annotations(self.image_annotations(source), source.rows, source.captions_each)

    def annotations(self, source: Images) -> Tensor:
        """Return the `image_annotations`, N×S×D, of each caption's image."""
        return source.each(self.image_annotations(source))

    def image_annotations(self, source: Images) -> Tensor:
        """Return the annotation vectors a_i, B×S×D, of each image, in the model's precision."""
        source, dtype = self.augmented(source), self.target_embedding.weight.dtype
        return (self.backbone(source.values.to(dtype)) if isinstance(source, Pixels) else source.values).to(dtype)


def backbone_fingerprint(settings: EncoderSettings, digest: Callable[[Path], str]) -> dict[str, Any]:
    """Return everything besides the images that annotation vectors depend on; `digest` computes a file's hash."""
    library = settings.backbone.partition("/")[0]
    options = OPTIONS.get(settings.backbone, "") if settings.weights == "default" else ""
    weights = settings.weights if settings.weights in (None, "default") else digest(Path(str(settings.weights)))
    return {
        "backbone": settings.backbone,
        "layer": settings.layer,
        "weights": weights,
        "size": settings.size,
        "fit": settings.fit,
        "code": SMALL_REVISION if library == "small" else f"{_version(library)}{options}",
        "random": _version("torch") if weights is None else None,
    }


def mirror(x: Tensor, may_mirror: Tensor) -> Tensor:
    """Mirror each of the pictures, B×3×H×W, that `may_mirror`, B booleans, allows, with a probability of 1/2."""
    is_mirrored = may_mirror & (torch.rand(len(x), device=x.device) < 0.5)
    return torch.where(is_mirrored[:, None, None, None], x.flip(3), x)


def augment(x: Tensor, *, crop: float = 1, size: int | None = None) -> Tensor:
    """Move pictures, B×3×H×W with values 0–255, repeating their borders, and change their brightness and contrast, all
    at random.

    crop: if it is below 1, pictures are cropped instead of moved: to a random share of their sides, from `crop` to 1,
        at a random place, and resized
    size: the pixels per side of crops, by default H: the result is B×3×size×size. Training on fewer pixels than are
        used later saves time (Touvron et al. 2019, "Fixing the train-test resolution discrepancy")
    """
    B, _, H, W = x.shape  # noqa: N806
    size = size or H
    if crop < 1:
        share = crop + (1 - crop) * torch.rand(B, 1, device=x.device, dtype=x.dtype)
        place = (1 - share) * (2 * torch.rand(B, 2, device=x.device, dtype=x.dtype) - 1)  # of the middle, in [-1, 1]
        transform = torch.cat([torch.diag_embed(share.expand(B, 2)), place[:, :, None]], 2)
        with torch.autocast(x.device.type, enabled=False):  # in bf16, pixels would be up to half a pixel out of place
            grid = nn.functional.affine_grid(transform, [B, 3, size, size], align_corners=False)
            x = nn.functional.grid_sample(x, grid, padding_mode="border", align_corners=False)
    else:
        indices = []
        for side in (H, W):
            max_shift = int(side * MAX_SHIFT)
            shift = torch.randint(-max_shift, max_shift + 1, (B, 1), device=x.device)
            indices.append((torch.arange(side, device=x.device) + shift).clamp(0, side - 1))
        rows, columns = indices
        pictures = torch.arange(B, device=x.device)[:, None, None]
        x = x.permute(0, 2, 3, 1)[pictures, rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2)
    brightness, contrast = 1 + MAX_JITTER * (2 * torch.rand(2, B, 1, 1, 1, device=x.device, dtype=x.dtype) - 1)
    mean = x.mean((1, 2, 3), keepdim=True)
    x = ((x - mean) * contrast + mean) * brightness
    return x.clamp(0, 255)


def _module(network: nn.Module, name: str) -> nn.Module:
    """Return a module of the network that has parameters, by its dotted name. Raises InputError if there is none."""
    modules = {key: module for key, module in network.named_modules() if key and list(module.parameters())}
    if name not in modules:
        top = ", ".join(child for child in modules if "." not in child)
        problem = sentence([unknown(name, modules, kind="module")])
        raise InputError(f"{problem} model.encoder.freeze takes modules of the encoder, such as {top}.")
    return modules[name]


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "none"
