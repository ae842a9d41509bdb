"""A trained captioner with its vocabulary: images in, sentences out. What `caption`, `eval` and notebooks use."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf
from PIL.Image import Image
from torch import Tensor

from seqtool import checkpoint, distributed
from seqtool.cli import config_directory
from seqtool.config import build, names, typed
from seqtool.data import vocabulary
from seqtool.data.alignment import SPACE
from seqtool.data.batches import Annotations, Pixels
from seqtool.data.images import fit, read_image, upright_rgb
from seqtool.data.vocabulary import Vocabulary
from seqtool.decoding import Ensemble, Hypothesis
from seqtool.devices import MachineSettings, check_precision, choose_device, keep_memory, set_threads
from seqtool.errors import InputError
from seqtool.generation import DECODING, DecodeSettings, Images, Pictures, chunks, decode, laid_out
from seqtool.models.backbone import EncoderSettings
from seqtool.models.captioner import Captioner as ImageModel
from seqtool.models.encoder_decoder import Step
from seqtool.models.show_attend_tell import CHOICES, Choice, ShowAttendTell

READERS = 8  # threads that open images
AT_ONCE = 64  # images, where nothing else is said
NOTHING = np.empty((0, 0, 3), np.uint8)  # what is seen of an image that cannot be read


@dataclass(frozen=True)
class Caption:
    """One hypothesis for one image. log_probability in nats, EOS included; score: what it was ranked by.

    attention: words × locations, None for a model without attention; grid: rows and columns of the locations, in
    reading order; chosen: the location that hard attention chose for each word, where it chose one.
    """

    text: str
    score: float
    log_probability: float
    words: list[str]
    attention: NDArray[np.float32] | None
    grid: tuple[int, int]
    chosen: list[int] | None


# An image's name, what the model saw of it (size×size×3), and its captions, or why it cannot be read.
Described = tuple[str, NDArray[np.uint8], list[Caption] | InputError]


@dataclass(frozen=True)
class Chosen:
    """A model whose hard attention chooses one location for each word; chance comes with the source."""

    model: ShowAttendTell
    choice: Choice

    def encode(self, source: "WithChances") -> tuple[Any, Any]:
        memory, state = self.model.encode(source.pictures)
        return replace(memory, chances=source.chances), state

    def step(self, memory: Any, state: Any, token: Tensor) -> Step[Any]:
        return self.model.step(memory, state, token, self.choice)


@dataclass(frozen=True)
class WithChances:
    """Images, and for each a uniform number a time step (B×T)."""

    pictures: Annotations | Pixels
    chances: Tensor

    def to(self, device: torch.device) -> "WithChances":
        return WithChances(self.pictures.to(device), self.chances.to(device))


@dataclass(frozen=True)
class Loaded:
    """Images in memory: N×size×size×3, uint8."""

    values: NDArray[np.uint8]

    def pictures(self, rows: Sequence[int]) -> Pixels:
        return Pixels(torch.from_numpy(self.values[list(rows)]).permute(0, 3, 1, 2).contiguous())


@dataclass(frozen=True)
class ByChance:
    """Images with the chance of their own, whatever is decoded beside them."""

    images: Pictures
    chances: Sequence[NDArray[np.float64]]

    def pictures(self, rows: Sequence[int]) -> WithChances:
        chances = torch.from_numpy(np.stack([self.chances[i] for i in rows])).float()
        return WithChances(self.images.pictures(rows), chances)


class Captioner:
    """One model or an ensemble, ready to describe images."""

    def __init__(
        self,
        models: Sequence[Any],
        *,
        vocabulary: Vocabulary,
        encoder: EncoderSettings,
        device: torch.device,
        settings: DecodeSettings,
        hard_attention: str,
        config: dict[str, Any],
    ) -> None:
        self.model: Any = models[0] if len(models) == 1 else Ensemble(models)
        self.attends = isinstance(models[0], ShowAttendTell)
        self.grid: tuple[int, int] = models[0].backbone.locations
        self.vocabulary = vocabulary
        self.encoder = encoder
        self.device = device
        self.settings = settings
        self.config = config
        self.choice: Choice | None = None
        if hard_attention not in CHOICES:
            raise InputError(f"Unknown hard_attention '{hard_attention}'; choose from {', '.join(CHOICES)}.")
        if hard_attention != "expected":
            if len(models) > 1 or not self.attends:
                raise InputError(f"hard_attention={hard_attention} is for one model with attention.")
            self.choice = CHOICES[hard_attention]
            self.model = Chosen(models[0], self.choice)
        if settings.coverage_penalty and not self.attends:
            raise InputError("coverage_penalty=… needs a model with attention; this one has a fixed context.")

    @classmethod
    def load(cls, checkpoints: str | Sequence[str], **settings: Any) -> "Captioner":
        """From a run or checkpoint directory; several make an ensemble. Settings: those of configs/caption.yaml
        about decoding.
        """
        merged = {**caption_defaults(), **settings}
        machine = typed(MachineSettings, {name: merged.pop(name) for name in ("device", "threads")})
        hard_attention = str(merged.pop("hard_attention"))
        decoding = typed(DecodeSettings, merged)
        if decoding.batch_size is None:
            decoding.batch_size = AT_ONCE
        set_threads(machine.threads)
        keep_memory()
        where = choose_device(machine.device)
        check_precision(where, decoding.precision)
        paths = [checkpoints] if isinstance(checkpoints, str) else list(checkpoints)
        if not paths:
            raise InputError("checkpoint=… names no run or checkpoint.")
        found = [checkpoint.find(path) for path in paths]
        for one in found:
            if not one.describes_images:
                raise InputError(f"{one.path} holds a translation model: use seqtool translate.")
        encoders = [typed(EncoderSettings, one.config["model"]["encoder"]) for one in found]
        words = [vocabulary.load(one.path / vocabulary.TARGET) for one in found]
        for one, encoder, known in zip(found, encoders, words, strict=True):
            if known.fingerprint != words[0].fingerprint:
                raise InputError(
                    f"{one.path} and {found[0].path} have different vocabularies: an ensemble needs one vocabulary."
                )
            if (encoder.size, encoder.fit) != (encoders[0].size, encoders[0].fit):
                raise InputError(
                    f"{one.path} and {found[0].path} read images of different sizes: an ensemble needs one size."
                )
        models = [
            laid_out(load_model(one, known), decoding.precision, where).to(where).eval()
            for one, known in zip(found, words, strict=True)
        ]
        for one, model in zip(found, models, strict=True):
            if model.backbone.locations != models[0].backbone.locations:
                raise InputError(f"{one.path} and {found[0].path} see different grids: an ensemble needs one grid.")
        return cls(
            models,
            vocabulary=words[0],
            encoder=encoders[0],
            device=where,
            settings=decoding,
            hard_attention=hard_attention,
            config=found[0].config,
        )

    def caption(self, images: Sequence[str | Path | Image]) -> list[str]:
        """The best caption of each image: a path, an http(s) URL or a Pillow image."""
        return [captions[0].text for captions in self.describe(images)]

    def describe(self, images: Sequence[str | Path | Image]) -> list[list[Caption]]:
        """The n best captions of each image, best first. Raises InputError on an image that cannot be read."""
        if isinstance(images, str | Path):
            raise InputError("caption takes a list of images: write [image] for a single one.")
        result = []
        for _, _, found in self.described(images):
            if isinstance(found, InputError):
                raise found
            result.append(found)
        return result

    def described(self, images: Sequence[str | Path | Image]) -> Iterator[Described]:
        """Each image in order: its name, what the model saw of it (size×size×3), and its n best captions, or why it
        cannot be read. An image's chance depends on its place in the list.
        """
        windows = list(chunks(range(len(images)), 4 * self.settings.at_once))
        for some in chunks(windows, distributed.size()):
            for window in distributed.together(lambda numbers: self._describe(images, numbers), some):
                yield from window

    def _describe(self, images: Sequence[str | Path | Image], numbers: Sequence[int]) -> list[Described]:
        with ThreadPoolExecutor(READERS) as pool:
            found = list(pool.map(lambda n: self._load(images[n]), numbers))
        seen = {n: one for n, one in zip(numbers, found, strict=True) if not isinstance(one, InputError)}
        captions: dict[int, list[Caption]] = {}
        if seen:
            pictures = Loaded(np.stack(list(seen.values())))
            captions = dict(zip(seen, self.describe_pictures(pictures, list(seen)), strict=True))
        return [
            (str(images[n]), NOTHING, one) if isinstance(one, InputError) else (str(images[n]), one, captions[n])
            for n, one in zip(numbers, found, strict=True)
        ]

    def _load(self, image: str | Path | Image) -> NDArray[np.uint8] | InputError:
        try:
            if isinstance(image, Image):
                opened = upright_rgb(image, name=str(getattr(image, "filename", "") or "the image"))
            else:
                opened = read_image(str(image))
        except InputError as error:
            return error
        return fit(opened, size=self.encoder.size, mode=self.encoder.fit)

    def describe_pictures(self, pictures: Pictures, numbers: Sequence[int]) -> list[list[Caption]]:
        """The same for images that are prepared, pixels or cached annotation vectors: row i takes its chance from
        `numbers[i]`.
        """
        settings = self.settings
        chances: list[NDArray[np.float64]] = []
        if self.choice is not None:
            chances = [np.random.default_rng([settings.seed, n, 1]).random(settings.max_length) for n in numbers]
            pictures = ByChance(pictures, chances)
        decoded = decode(
            self.model,
            Images(pictures, range(len(numbers))),
            settings,
            device=self.device,
            draws=[settings.draws(n) for n in numbers] if settings.sample else None,
            keep_attention=self.attends,
        )
        return [
            [self._caption(one, chances[i] if chances else None) for one in n_best] for i, n_best in enumerate(decoded)
        ]

    def _caption(self, hypothesis: Hypothesis, chances: NDArray[np.float64] | None) -> Caption:
        pieces = [self.vocabulary.piece(token) for token in hypothesis.tokens]
        attention, chosen = None, None
        if hypothesis.attention is not None:
            alpha = hypothesis.attention[: len(pieces)].float().cpu()
            if self.choice is not None and chances is not None:
                drawn = self.choice(alpha, torch.from_numpy(chances[: len(pieces)]).float())
                chosen = drawn.argmax(-1).tolist()
            attention = alpha.numpy()
        return Caption(
            text=self.vocabulary.decode(hypothesis.tokens),
            score=hypothesis.score,
            log_probability=hypothesis.log_probability,
            words=[piece.replace(SPACE, "") for piece in pieces],
            attention=attention,
            grid=self.grid,
            chosen=chosen,
        )


def caption_defaults() -> dict[str, Any]:
    """How a captioner writes by default: configs/decoding.yaml, and what configs/caption.yaml says otherwise."""
    own: Any = OmegaConf.to_container(OmegaConf.load(config_directory() / "caption.yaml"))
    shared: Any = OmegaConf.to_container(OmegaConf.load(config_directory() / "decoding.yaml"))
    return {**shared, **{name: own[name] for name in ("hard_attention", "max_length")}}


def load_captioner(config: DictConfig) -> Captioner:
    """What `checkpoint=` names, with the decoding settings of the command line."""
    given = {name: config[name] for name in (*DECODING, "hard_attention") if name in config}
    return Captioner.load(names(config.checkpoint), **given)


def load_model(found: checkpoint.Checkpoint, known: Vocabulary) -> Any:
    """The captioner of a checkpoint with its weights; only classes of this package are built."""
    parts = {"target_vocabulary": len(known), "pretrained": False}
    return found.load_model(partial(build, found.config["model"], trusted=False, base=ImageModel, **parts))
