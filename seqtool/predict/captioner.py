"""`Captioner`: a trained model, or an ensemble, that describes images. Used by `caption`, `eval` and notebooks."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from io import BytesIO, TextIOBase
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from seqtool.data.images.image_decoding import ImageError, fit, open_image, read_image, upright_rgb
from seqtool.data.text.alignment import SPACE
from seqtool.decoding.batching import DecodeSettings, Sources, chunks, computing
from seqtool.decoding.common import Hypothesis
from seqtool.errors import InputError
from seqtool.models.backbone import EncoderSettings, ImageCaptioner
from seqtool.models.inputs import Annotations, Pixels
from seqtool.models.parts import PLAIN, Parts
from seqtool.models.tokens import END
from seqtool.predict.likelihood import Likelihood, caption_likelihoods
from seqtool.predict.predictor import EncodedText, EnsembleMember, Prediction, Predictor, Text, check_list, class_name
from seqtool.predict.trace import Example
from seqtool.runtime import distributed
from seqtool.runtime.progress import progress_bar
from seqtool.settings import declarations, typed
from seqtool.training.checkpoint import Checkpoint
from seqtool.view import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Readable(Protocol):
    """An open file."""

    def read(self) -> Any: ...


Picture = str | PathLike[str] | Image.Image | NDArray[np.uint8] | bytes | bytearray | memoryview | Readable
"""A path, an http(s) URL, a Pillow image, an array (height × width × 3), the bytes of a file, or an open file."""

MAX_NAME_LENGTH = 4096  # characters of a path (the limit on Linux) or a URL
PICTURE_TYPES = "a path, a Pillow image, an array of uint8 (height × width × 3), bytes or a file opened with mode 'rb'"

Pictures = Callable[[Sequence[int]], Annotations | Pixels]
"""A function that returns the images of the rows with these indices, such as `cache.Split.pictures`."""

IMAGE_READER_THREADS = 8
NO_PIXELS = np.empty((0, 0, 3), np.uint8)  # stands for the pixels of an image that cannot be read


@dataclass(frozen=True)
class Caption(Prediction):
    """One hypothesis for one image. Its attention is words × locations.

    grid: the numbers of rows and columns of locations, which are in reading order
    chosen: the location that hard attention chose for each word; None if it chose none
    pixels: the pixels that the model saw, size × size × 3, which all captions of an image share; None if it was given
        annotation vectors
    """

    grid: tuple[int, int]
    chosen: list[int] | None
    pixels: NDArray[np.uint8] | None = field(default=None, kw_only=True, repr=False, compare=False)

    @property
    def words(self) -> list[str]:
        """The pieces without the symbol that stands for a space."""
        return [piece.replace(SPACE, "") for piece in self.pieces]

    def plot(self, path: str | Path | None = None, *, end: bool = False) -> "Figure":
        """Draw the image, then once more for each word, bright where attention is high.

        path: the PNG, SVG or PDF file to write, if any
        end: whether to show the attention at the end of the caption, as <end>

        Returns the figure. Raises NothingToDrawError if the model has no attention.
        """
        attention, words = (
            (self.whole_attention, [*self.words, END]) if end and self.ended else (self.attention, self.words)
        )
        if attention is None or self.pixels is None or not words:
            raise plots.NothingToDrawError("The caption cannot be plotted: its model has no attention over images.")
        maps = attention.reshape(-1, *self.grid)
        return plots.attention_over_image(self.pixels, words, maps, path, chosen=self.chosen)

    def summary(self) -> dict[str, Any]:
        """The fields of every record. `attended` has the row and column of each word's location: the location that
        hard attention chose, or the location with the most attention.
        """
        record = {**super().summary(), "words": self.words, "ended": self.ended}
        if self.attention is not None:
            attended = self.attention.argmax(-1) if self.chosen is None else np.array(self.chosen, int)
            rows, columns = np.unravel_index(attended, self.grid)
            record["attended"] = [[int(row), int(column)] for row, column in zip(rows, columns, strict=True)]
            record["hard"] = self.chosen is not None
        return record

    def columns(self) -> dict[str, Any]:
        """The grid: the columns of the attention are its locations in reading order."""
        return {"grid": list(self.grid)}


class CaptionedImage(NamedTuple):
    """An image that was captioned, or that cannot be read."""

    name: str  # its path or URL, or its number in the list
    pixels: NDArray[np.uint8]  # the pixels that the model saw, size × size × 3
    captions: list[Caption] | InputError  # its n best captions, best first, or the error if it cannot be read


@dataclass
class CaptionDecodeSettings(declarations.DecodeCaptions, DecodeSettings):
    """The settings of captioning; configs/caption.yaml describes each and holds the defaults."""


class Captioner(Predictor):
    """A trained captioner or an ensemble, with its vocabulary and settings."""

    task = "captioning"
    output_name = "a caption"
    command = "caption"
    schema = CaptionDecodeSettings
    base = ImageCaptioner
    parts: ClassVar[dict[str, Any]] = {"pretrained": False}
    settings: CaptionDecodeSettings

    def __post_init__(self) -> None:
        super().__post_init__()
        self.encoder = typed(EncoderSettings, self.config["model"]["encoder"])
        self.grid: tuple[int, int] = self.models[0].backbone.locations
        name = self.settings.hard_attention
        if name != "expected" and (len(self.models) > 1 or name not in self.models[0].location_rules):
            raise InputError(f"hard_attention={name} needs one model, with attention that can choose locations.")
        if name == "sample" and self.settings.mbr is not None:
            raise InputError(
                "mbr= compares independent samples, but with hard_attention=sample all samples of an image look at the "
                "same places: leave out hard_attention=."
            )

    @classmethod
    def read(cls, checkpoint: Checkpoint, parts: Parts = PLAIN) -> EnsembleMember:
        member = super().read(checkpoint, parts)
        encoder = typed(EncoderSettings, checkpoint.config["model"]["encoder"])
        member.shared["read images of different sizes: an ensemble needs one size"] = (encoder.size, encoder.fit)
        member.shared["see different grids: an ensemble needs one grid"] = member.model.backbone.locations
        return member

    def caption(self, images: Sequence[Picture]) -> list[str]:
        """Return the best caption of each image.

        An image may be a path, an http(s) URL, a Pillow image, an array of uint8 (height × width × 3), the bytes of an
        image file, or a file opened with mode 'rb'. Raises InputError if one cannot be read.
        """
        return [captions[0].text for captions in self.describe(images)]

    def describe(
        self, images: Sequence[Picture], *, prefix: str | Sequence[str] = "", likeliest: int = 0
    ) -> list[list[Caption]]:
        """Return the n best captions of each image, best first. Raises InputError if an image cannot be read."""
        n_best_lists = []
        for _, _, captions in self.caption_each(images, prefix=prefix, likeliest=likeliest):
            if isinstance(captions, InputError):
                raise captions
            n_best_lists.append(captions)
        return n_best_lists

    def caption_each(
        self, images: Sequence[Picture], *, prefix: str | Sequence[str] = "", likeliest: int = 0
    ) -> Iterator[CaptionedImage]:
        """Yield each image in order, with its captions or the error if it cannot be read.

        prefix: the beginning of every caption, a text or a list of pieces
        likeliest: the number of likeliest tokens to keep at each position; 0 keeps none

        Random numbers for an image depend on the seed and on its index in the list.
        """
        if isinstance(images, np.ndarray) and images.ndim == 4:
            images = list(images)
        images = check_list(images, caller="caption takes", item="image", is_valid=_is_picture, expected=PICTURE_TYPES)
        encoded_prefix = self.encode_prefix(prefix)

        def caption_chunk(numbers: Sequence[int]) -> list[CaptionedImage]:
            results: dict[int, Any] = dict(self._load(images, numbers))
            readable = {n: pixels for n, pixels in results.items() if not isinstance(pixels, InputError)}
            if readable:
                batch = torch.from_numpy(np.stack(list(readable.values()))).permute(0, 3, 1, 2)
                options: dict[str, Any] = {"prefix": encoded_prefix, "likeliest": likeliest}
                captions = self.caption_prepared(lambda rows: Pixels(batch[rows].contiguous()), [*readable], **options)
                for (n, pixels), n_best in zip(readable.items(), captions, strict=True):
                    results[n] = [replace(caption, pixels=pixels) for caption in n_best]
            names = {n: picture_name(images[n], n + 1) for n in numbers}
            return [CaptionedImage(names[n], readable.get(n, NO_PIXELS), results[n]) for n in numbers]

        windows = list(chunks(range(len(images)), 4 * self.settings.sources_per_batch))
        for process_windows in chunks(windows, distributed.size()):  # one window for each process
            for window in distributed.parallel_map(caption_chunk, process_windows):
                yield from window

    def caption_prepared(
        self, pictures: Pictures, numbers: Sequence[int], *, prefix: EncodedText | None = None, likeliest: int = 0
    ) -> list[list[Caption]]:
        """Return the n best captions of prepared images, pixels or annotation vectors.

        pictures: returns the images of the rows with these indices
        numbers: the position of each row's image in the input, which seeds its random numbers
        prefix, likeliest: as in `caption_each`
        """
        settings = self.settings

        def add_choices(memory: Any, rows: Sequence[int]) -> Any:
            """Make the attention choose one location for each word and EOS, with each image's own random numbers."""
            generators = (np.random.default_rng([settings.seed, numbers[row], 1]) for row in rows)
            uniform = np.stack([generator.random(settings.max_length + 1) for generator in generators])
            noise = torch.from_numpy(uniform).float().to(self.device)
            return replace(memory, uniform_noise=noise, choose=self.models[0].location_rules[settings.hard_attention])

        change_memory = None if settings.hard_attention == "expected" else add_choices
        n_best_lists = self.search(
            lambda rows: Sources(rows, pictures, change_memory=change_memory),
            numbers,
            [prefix or self.encode_prefix("")] * len(numbers),
            likeliest=likeliest,
            keep_attention=self.attends,
        )
        return [[self._caption(hypothesis, prefix) for hypothesis in n_best] for n_best in n_best_lists]

    def _caption(self, hypothesis: Hypothesis, prefix: EncodedText | None) -> Caption:
        chosen = None if hypothesis.locations is None else hypothesis.locations[: len(hypothesis.tokens)]
        return Caption.of(hypothesis, self.target_vocabulary, grid=self.grid, chosen=chosen, prefix=prefix)

    def _load(self, images: Sequence[Picture], numbers: Sequence[int]) -> dict[int, NDArray[np.uint8] | InputError]:
        """Return, by number, the pixels that the model sees of these images, or the error for an unreadable image."""

        def load(n: int) -> NDArray[np.uint8] | InputError:
            try:
                image = open_picture(images[n], picture_name(images[n], n + 1))
                return fit(image, size=self.encoder.size, mode=self.encoder.fit)
            except InputError as error:
                return error

        number_by_id = {id(images[n]): n for n in reversed(numbers)}  # two threads must not read the same open file
        with ThreadPoolExecutor(IMAGE_READER_THREADS) as pool:
            result_by_id = dict(zip(number_by_id, pool.map(load, number_by_id.values()), strict=True))
        return {n: result_by_id[id(images[n])] for n in numbers}

    def example(self, image: Picture | Caption, caption: Text | Caption = None) -> Example:
        """Load an image, and encode a caption that the model is to read; without a caption, the best one."""
        if isinstance(image, Caption):
            caption, image = image if caption is None else caption, np.asarray(image.pixels)
        if not _is_picture(image):
            raise InputError(f"trace and attribute take an image: give {PICTURE_TYPES}.")
        (pixels,) = self._read([image], [0])
        text = self.encode_text(self.describe([pixels])[0][0] if caption is None else caption)
        with torch.no_grad():
            a = self.plain_model.annotations(self._input(pixels[None]))[0]
        return Example(text, a, grid=self.grid, pixels=pixels)

    def _read(self, images: Sequence[Picture], numbers: Sequence[int]) -> NDArray[np.uint8]:
        """The pixels that the model sees of these images, N×size×size×3. Raises InputError if one cannot be read."""
        results = [*self._load(images, numbers).values()]
        for error in (result for result in results if isinstance(result, InputError)):
            raise error
        return np.array(results)

    def _input(self, pixels: NDArray[np.uint8]) -> Pixels:
        """The pixels of images as a model's input."""
        return Pixels(torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()).to(self.device)

    def check_likelihood(self) -> None:
        """Raise InputError unless this is one model whose attention can choose locations."""
        if len(self.models) > 1:
            raise InputError("bound= needs one model, not an ensemble.")
        if not self.models[0].location_rules:
            name = class_name(self.checkpoints[0])
            raise InputError(f"bound= needs a show_attend_tell with soft or hard attention, and this is a {name}.")

    def likelihood(self, images: Sequence[Picture], captions: Sequence[Sequence[str]], samples: int) -> Likelihood:
        """Return how likely the captions of each image are. Several processes share the images.

        captions: the texts that describe each image
        samples: for hard attention, the number of sequences of locations drawn for each caption
        """
        model, processes = self.models[0], distributed.size()
        caption_numbers = np.cumsum([0, *map(len, captions)])  # of each image's first caption; they seed the draws

        def batch_likelihoods(numbers: Sequence[int]) -> list[tuple[int, dict[str, float]]]:
            """Return the length in tokens, EOS included, and the likelihood of every caption of these images."""
            pixels = self._read(images, numbers)
            rows = [row for row, n in enumerate(numbers) for _ in captions[n]]
            targets = [self.target_vocabulary.encode(text) for n in numbers for text in captions[n]]

            def uniform_noise(i: int) -> Tensor:
                """The random numbers for the i-th caption of the batch."""
                generator = np.random.default_rng([self.settings.seed, caption_numbers[numbers[0]] + i, 2])
                return torch.from_numpy(generator.random((samples, len(targets[i]) + 1))).float()

            with self.on_device(), computing(self.device, self.settings.precision, lower="batch_size or samples"):
                a = model.annotations(self._input(pixels))
                likelihoods = list(caption_likelihoods(model, a, rows, targets, uniform_noise if model.hard else None))
            bar.update(min(len(numbers) * processes, len(images) - bar.n))
            return list(zip((len(target) + 1 for target in targets), likelihoods, strict=True))

        batches = list(chunks(range(len(images)), self.settings.sources_per_batch))
        with progress_bar(total=len(images), unit="image", description="bound") as bar:
            results = [caption for batch in distributed.parallel_map(batch_likelihoods, batches) for caption in batch]
        tokens, likelihoods = zip(*results, strict=True)
        values = {name: np.array([caption[name] for caption in likelihoods]) for name in likelihoods[0]}
        owners = np.repeat(np.arange(len(captions)), [len(texts) for texts in captions])
        return Likelihood(values, np.array(tokens), owners, samples if model.hard else None)


def picture_name(picture: Picture, number: int) -> str:
    """The name of an image: its path or URL, or its number in the list, from 1."""
    if isinstance(picture, Image.Image):
        return str(getattr(picture, "filename", "")) or f"image {number}"
    return str(picture) if isinstance(picture, str | PathLike) else f"image {number}"


def open_picture(picture: Picture, name: str) -> Image.Image:
    """Open an image as RGB, upright. Raises ImageError with this name if it cannot be read."""
    if isinstance(picture, Image.Image):
        return upright_rgb(picture, name=name)
    if isinstance(picture, np.ndarray):
        return upright_rgb(Image.fromarray(np.ascontiguousarray(picture)), name=name)
    if isinstance(picture, bytes | bytearray | memoryview):
        return open_image(BytesIO(picture), name=name)
    if isinstance(picture, str | PathLike):
        if len(name) > MAX_NAME_LENGTH:  # probably the image itself as text, such as base64
            raise ImageError(f"'{name[:40]}…'", "is too long for a path or a URL.")
        return read_image(name)
    file: Any = picture  # read from its start, if it can seek
    try:
        if getattr(file, "seekable", bool)():  # without this method: `bool()`, which is False
            file.seek(0)
        content = file.read()
    except (OSError, ValueError) as error:
        raise ImageError(name, f"cannot be read ({error}).") from error
    if not isinstance(content, bytes):
        raise ImageError(name, "gives no bytes: open the file with mode 'rb'.")
    return open_image(BytesIO(content), name=name)


def _is_picture(picture: Any) -> bool:
    if isinstance(picture, np.ndarray):
        return picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3 and picture.size > 0
    if callable(getattr(picture, "read", None)):  # an open file, perhaps in a wrapper that passes its methods on
        return not isinstance(picture, TextIOBase)
    return isinstance(picture, str | PathLike | Image.Image | bytes | bytearray | memoryview)
