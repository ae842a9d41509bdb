"""A trained captioner with its vocabulary: images in, sentences out. For `caption`, `eval` and notebooks."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from io import BytesIO, TextIOBase
from os import PathLike
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

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
from seqtool.predict.likelihood import Likelihood, of_captions
from seqtool.predict.predictor import EncodedText, EnsembleMember, Prediction, Predictor, check_list, class_name
from seqtool.runtime import distributed
from seqtool.runtime.progress import progress_bar
from seqtool.settings import declarations, typed
from seqtool.training.checkpoint import Checkpoint


@runtime_checkable
class Readable(Protocol):
    """A file that is open."""

    def read(self) -> Any: ...


Picture = str | PathLike[str] | Image.Image | NDArray[np.uint8] | bytes | bytearray | memoryview | Readable
"""A path, an http(s) address, a Pillow image, an array of height × width × 3, the bytes of a file, or an open file."""

LONGEST_NAME = 4096  # characters of a path or an address
KINDS = "a path, a Pillow image, an array of uint8 (height × width × 3), bytes or a file opened with mode 'rb'"

Pictures = Callable[[Sequence[int]], Annotations | Pixels]  # rows → images, such as `cache.Split.pictures`

IMAGE_READERS = 8  # threads
NO_PIXELS = np.empty((0, 0, 3), np.uint8)  # of an image that cannot be read


@dataclass(frozen=True)
class Caption(Prediction):
    """One hypothesis for one image.

    attention: words × locations
    grid: rows and columns of the locations, in reading order
    chosen: for each word, the location that hard attention chose, if it chose one
    """

    grid: tuple[int, int]
    chosen: list[int] | None

    @property
    def words(self) -> list[str]:
        """The pieces without the mark for a space."""
        return [piece.replace(SPACE, "") for piece in self.pieces]

    def summary(self) -> dict[str, Any]:
        """Includes row and column of the location that each word chose, if attention was hard, or else attended to
        most.
        """
        record = {**super().summary(), "words": self.words, "ended": self.ended}
        if self.attention is not None:
            attended = self.attention.argmax(-1) if self.chosen is None else np.array(self.chosen, int)
            rows, columns = np.unravel_index(attended, self.grid)
            record["attended"] = [[int(row), int(column)] for row, column in zip(rows, columns, strict=True)]
            record["hard"] = self.chosen is not None
        return record

    def columns(self) -> dict[str, Any]:
        """The locations in reading order, of a grid of so many rows and columns."""
        return {"grid": list(self.grid)}


class CaptionedImage(NamedTuple):
    """An image's name, the pixels that the model saw (size×size×3), and its n best captions, best first, or why it
    cannot be read.
    """

    name: str
    pixels: NDArray[np.uint8]
    captions: list[Caption] | InputError


@dataclass
class CaptionDecodeSettings(declarations.DecodeCaptions, DecodeSettings):
    """configs/caption.yaml says what each is and holds the defaults."""


class Captioner(Predictor):
    """One model or an ensemble, ready to describe images."""

    task = "captioning"
    writes = "a caption"
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
        if name != "expected" and (len(self.models) > 1 or name not in self.models[0].choices):
            raise InputError(f"hard_attention={name} is for one model whose attention can choose locations.")

    @classmethod
    def read(cls, checkpoint: Checkpoint, parts: Parts = PLAIN) -> EnsembleMember:
        member, encoder = super().read(checkpoint, parts), typed(EncoderSettings, checkpoint.config["model"]["encoder"])
        member.common["read images of different sizes: an ensemble needs one size"] = (encoder.size, encoder.fit)
        member.common["see different grids: an ensemble needs one grid"] = member.model.backbone.locations
        return member

    def caption(self, images: Sequence[Picture]) -> list[str]:
        """The best caption of each image: a path, an http(s) address, a Pillow image, an array of uint8 (height × width
        × 3), an image file's bytes, or a file opened to read bytes.
        """
        return [captions[0].text for captions in self.describe(images)]

    def describe(
        self, images: Sequence[Picture], *, prefix: str | Sequence[str] = "", likeliest: int = 0
    ) -> list[list[Caption]]:
        """The n best captions of each image, best first. Raises InputError on an image that cannot be read."""
        result = []
        for image in self.caption_each(images, prefix=prefix, likeliest=likeliest):
            if isinstance(image.captions, InputError):
                raise image.captions
            result.append(image.captions)
        return result

    def caption_each(
        self, images: Sequence[Picture], *, prefix: str | Sequence[str] = "", likeliest: int = 0
    ) -> Iterator[CaptionedImage]:
        """Each image in order, with its captions or with the reason why it cannot be read.

        prefix: how every caption begins, as text or as pieces
        likeliest: the number of tokens that were expected at each place, to be kept too

        Random draws for an image depend on its place in the list.
        """
        if isinstance(images, np.ndarray) and images.ndim == 4:
            images = list(images)
        images = check_list(images, "caption takes", "image", _is_picture, KINDS)
        begun = self.encode_prefix(prefix)

        def captioned(numbers: Sequence[int]) -> list[CaptionedImage]:
            results: dict[int, Any] = dict(self._load(images, numbers))
            seen = {n: pixels for n, pixels in results.items() if not isinstance(pixels, InputError)}
            if seen:
                loaded = torch.from_numpy(np.stack(list(seen.values()))).permute(0, 3, 1, 2)
                captions = self.caption_prepared(
                    lambda rows: Pixels(loaded[rows].contiguous()), list(seen), prefix=begun, likeliest=likeliest
                )
                results |= zip(seen, captions, strict=True)
            return [CaptionedImage(named(images[n], n + 1), seen.get(n, NO_PIXELS), results[n]) for n in numbers]

        windows = list(chunks(range(len(images)), 4 * self.settings.at_once))
        for some in chunks(windows, distributed.size()):
            for window in distributed.parallel_map(captioned, some):
                yield from window

    def caption_prepared(
        self, pictures: Pictures, numbers: Sequence[int], *, prefix: EncodedText | None = None, likeliest: int = 0
    ) -> list[list[Caption]]:
        """The n best captions of prepared images, pixels or annotation vectors. `numbers` seed the draws for each
        row; the others as in `caption_each`.
        """

        settings = self.settings

        def choosing(memory: Any, rows: Sequence[int]) -> Any:
            """A memory whose attention chooses a location for each word and the end, whatever the batch of an image."""
            generators = (np.random.default_rng([settings.seed, numbers[row], 1]) for row in rows)
            uniforms = np.stack([generator.random(settings.max_length + 1) for generator in generators])
            noise = torch.from_numpy(uniforms).float().to(self.device)
            return replace(memory, uniform_noise=noise, choose=self.models[0].choices[settings.hard_attention])

        remember = None if settings.hard_attention == "expected" else choosing
        bests = self.search(
            lambda rows: Sources(rows, pictures, remember=remember),
            numbers,
            [prefix or self.encode_prefix("")] * len(numbers),
            likeliest=likeliest,
            keep_attention=self.attends,
        )
        return [list(map(self._caption, n_best)) for n_best in bests]

    def _caption(self, hypothesis: Hypothesis) -> Caption:
        chosen = None if hypothesis.locations is None else hypothesis.locations[: len(hypothesis.tokens)]
        return Caption.of(hypothesis, self.target_vocabulary, grid=self.grid, chosen=chosen)

    def _load(self, images: Sequence[Picture], numbers: Sequence[int]) -> dict[int, NDArray[np.uint8] | InputError]:
        """The pixels that the model sees of the images with these numbers, or why one cannot be read."""

        def load(n: int) -> NDArray[np.uint8] | InputError:
            try:
                return fit(opened(images[n], named(images[n], n + 1)), size=self.encoder.size, mode=self.encoder.fit)
            except InputError as error:
                return error

        first = {id(images[n]): n for n in reversed(numbers)}  # two threads may not read the same open file
        with ThreadPoolExecutor(IMAGE_READERS) as pool:
            loaded = dict(zip(first, pool.map(load, first.values()), strict=True))
        return {n: loaded[id(images[n])] for n in numbers}

    def check_likelihood(self) -> None:
        """InputError unless this is one model with attention that may draw."""
        if len(self.models) > 1:
            raise InputError("bound= is for one model, not for an ensemble.")
        if not self.models[0].choices:
            name = class_name(self.checkpoints[0])
            raise InputError(f"bound= is for show_attend_tell, with soft or hard attention, and this is a {name}.")

    def likelihood(self, images: Sequence[Picture], captions: Sequence[Sequence[str]], samples: int) -> Likelihood:
        """How likely each image's captions are. Several processes share out the images.

        samples: draws for each caption, with hard attention
        """
        model, processes = self.models[0], distributed.size()
        first = np.cumsum([0, *map(len, captions)])  # the number of each image's first caption: it seeds the draws

        def of_images(numbers: Sequence[int]) -> list[tuple[int, dict[str, float]]]:
            """Of every caption its tokens, EOS included, and how likely it is."""
            pictures = []
            for loaded in self._load(images, numbers).values():
                if isinstance(loaded, InputError):
                    raise loaded
                pictures.append(loaded)
            rows = [row for row, n in enumerate(numbers) for _ in captions[n]]
            targets = [self.target_vocabulary.encode(text) for n in numbers for text in captions[n]]

            def uniforms(i: int) -> Tensor:
                """The random numbers for the i-th caption."""
                generator = np.random.default_rng([self.settings.seed, first[numbers[0]] + i, 2])
                return torch.from_numpy(generator.random((samples, len(targets[i]) + 1))).float()

            with self.own_machine(), computing(self.device, self.settings.precision, lower="batch_size or samples"):
                pixels = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()
                a = model.annotations(Pixels(pixels).to(self.device))
                likely = list(of_captions(model, a, rows, targets, uniforms if model.hard else None))
            bar.update(min(len(numbers) * processes, len(images) - bar.n))
            return list(zip((len(target) + 1 for target in targets), likely, strict=True))

        batches = list(chunks(range(len(images)), self.settings.at_once))
        with progress_bar(total=len(images), unit="image", description="bound") as bar:
            of_each = [caption for batch in distributed.parallel_map(of_images, batches) for caption in batch]
        tokens, likely = zip(*of_each, strict=True)
        values = {name: np.array([caption[name] for caption in likely]) for name in likely[0]}
        owners = np.repeat(np.arange(len(captions)), [len(texts) for texts in captions])
        return Likelihood(values, np.array(tokens), owners, samples if model.hard else None)


def named(picture: Picture, number: int) -> str:
    """What an image is called: its path or address, or its number in the list, from 1."""
    if isinstance(picture, Image.Image):
        return str(getattr(picture, "filename", "")) or f"image {number}"
    return str(picture) if isinstance(picture, str | PathLike) else f"image {number}"


def opened(picture: Picture, name: str) -> Image.Image:
    """The image as RGB, upright. Raises ImageError, which says `name`."""
    if isinstance(picture, Image.Image):
        return upright_rgb(picture, name=name)
    if isinstance(picture, np.ndarray):
        return upright_rgb(Image.fromarray(np.ascontiguousarray(picture)), name=name)
    if isinstance(picture, bytes | bytearray | memoryview):
        return open_image(BytesIO(picture), name=name)
    if isinstance(picture, str | PathLike):
        if len(name) > LONGEST_NAME:  # the image itself as text, as in base64
            raise ImageError(f"'{name[:40]}…'", "is too long for the name of a file or an address.")
        return read_image(name)
    file: Any = picture  # is read from its beginning, if it can go back to it
    try:
        if getattr(file, "seekable", bool)():  # without such a method it cannot
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
    if isinstance(picture, Readable):
        return not isinstance(picture, TextIOBase)
    return isinstance(picture, str | PathLike | Image.Image | bytes | bytearray | memoryview)
