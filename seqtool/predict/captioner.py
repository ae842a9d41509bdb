"""A trained captioner with its vocabulary: images in, sentences out. For `caption`, `eval` and notebooks."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqtool.data.images.image_decoding import fit
from seqtool.data.text.alignment import SPACE, joined
from seqtool.decoding.batching import Sources, chunks, computing, decode, explained, with_prefixes
from seqtool.decoding.ranking import Hypothesis
from seqtool.decoding.settings import DecodeSettings
from seqtool.errors import InputError
from seqtool.models.backbone import EncoderSettings
from seqtool.models.hard_attention import Choice
from seqtool.models.image_captioner import ImageCaptioner
from seqtool.models.inputs import Annotations, Pixels
from seqtool.predict.likelihood import Likelihood, of_captions
from seqtool.predict.lists import Picture, check_pictures, named, opened
from seqtool.predict.predictor import Member, Prediction, Predictor, with_own_threads
from seqtool.runtime import distributed
from seqtool.settings import declarations, typed
from seqtool.training.checkpoint import Checkpoint

Pictures = Callable[[Sequence[int]], Annotations | Pixels]  # rows → images, such as `cache.Split.pictures`

READERS = 8  # threads that open images
NOTHING = np.empty((0, 0, 3), np.uint8)  # stands for an image that cannot be read


@dataclass(frozen=True)
class Caption(Prediction):
    """One hypothesis for one image. attention: words × locations.

    grid: rows and columns of the locations, in reading order; chosen: for each word, the location that hard attention
    chose, if it chose one.
    """

    grid: tuple[int, int]
    chosen: list[int] | None

    @property
    def words(self) -> list[str]:
        """The pieces without the mark for a space."""
        return [piece.replace(SPACE, "") for piece in self.pieces]

    def record(self) -> dict[str, Any]:
        """Includes row and column of the location that each word chose, if attention was hard, or else attended to
        most.
        """
        record = {**super().record(), "words": self.words, "ended": self.ended}
        if self.attention is not None:
            looked = self.attention.argmax(-1) if self.chosen is None else np.array(self.chosen, int)
            rows, columns = np.unravel_index(looked, self.grid)
            record["attended"] = [[int(row), int(column)] for row, column in zip(rows, columns, strict=True)]
            record["hard"] = self.chosen is not None
        return record

    def weights(self) -> dict[str, Any]:
        """Each row has the locations in reading order, of a grid of so many rows and columns."""
        found = super().weights()
        return {"grid": list(self.grid), **found} if found else {}


# An image's name, the pixels the model saw (size×size×3), and its captions, or why it cannot be read.
Described = tuple[str, NDArray[np.uint8], list[Caption] | InputError]


@dataclass
class CaptionDecodeSettings(declarations.DecodeCaptions, DecodeSettings):
    """configs/caption.yaml says what each is and holds the defaults."""

    def uniforms_of_attention(self, number: int) -> Tensor:
        """The random numbers in [0, 1) for hard attention's draws on one image, one per word, whatever its batch."""
        return torch.from_numpy(np.random.default_rng([self.seed, number, 1]).random(self.max_length)).float()


@dataclass(frozen=True)
class WithUniforms:
    """A batch of images with a random number in [0, 1) for each word that may be written, B×T."""

    images: Annotations | Pixels
    uniforms: Tensor

    def to(self, device: torch.device) -> "WithUniforms":
        return WithUniforms(self.images.to(device), self.uniforms.to(device))


class Choosing:
    """A model whose attention chooses one location for each word. It reads images `WithUniforms`."""

    def __init__(self, model: Any, choice: Choice) -> None:
        self.model, self.choice = model, choice
        self.step, self.prefill = model.step, model.prefill

    def encode(self, source: WithUniforms) -> tuple[Any, Any]:
        memory, state = self.model.encode(source.images)
        return replace(memory, chances=source.uniforms, choose=self.choice), state


class Captioner(Predictor):
    """One model or an ensemble, ready to describe images."""

    reads = "images"
    command = "caption"
    schema = CaptionDecodeSettings
    base = ImageCaptioner
    parts: ClassVar[dict[str, Any]] = {"pretrained": False}
    settings: CaptionDecodeSettings

    def __post_init__(self) -> None:
        super().__post_init__()
        self.encoder = typed(EncoderSettings, self.config["model"]["encoder"])
        self.grid: tuple[int, int] = self.models[0].backbone.locations
        self.choosing: Choosing | None = None
        name = self.settings.hard_attention
        if name != "expected":
            if len(self.models) > 1 or name not in self.models[0].choices:
                raise InputError(f"hard_attention={name} is for one model whose attention can choose locations.")
            self.model = self.choosing = Choosing(self.models[0], self.models[0].choices[name])

    @classmethod
    def read(cls, found: Checkpoint) -> Member:
        member, encoder = super().read(found), typed(EncoderSettings, found.config["model"]["encoder"])
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
        for _, _, found in self.described(images, prefix=prefix, likeliest=likeliest):
            if isinstance(found, InputError):
                raise found
            result.append(found)
        return result

    def described(
        self, images: Sequence[Picture], *, prefix: str | Sequence[str] = "", likeliest: int = 0
    ) -> Iterator[Described]:
        """Each image in order: its name, the pixels the model saw (size×size×3), and its n best captions, or why it
        cannot be read. Every caption begins with `prefix`, a text or pieces; `likeliest`: also so many tokens that were
        expected at each place. Random draws for an image depend on its place in the list.
        """
        images = check_pictures(images, what="caption takes")
        known = self.target_vocabulary.encode_beginning(prefix)
        if len(known) >= self.settings.max_length:
            raise InputError(
                f"The prefix '{joined(prefix)[:40]}' has {len(known):,} tokens, but a caption has at most "
                f"max_length={self.settings.max_length}: shorten it, or allow more."
            )
        windows = list(chunks(range(len(images)), 4 * self.settings.at_once))
        for some in chunks(windows, distributed.size()):
            for window in distributed.together(lambda numbers: self._describe(images, numbers, known, likeliest), some):
                yield from window

    def _describe(
        self, images: Sequence[Picture], numbers: Sequence[int], prefix: Sequence[int], likeliest: int
    ) -> list[Described]:
        found = self._loaded(images, numbers)
        seen = {n: one for n, one in found.items() if not isinstance(one, InputError)}
        written: dict[int, Any] = {**found}
        if seen:
            loaded = torch.from_numpy(np.stack(list(seen.values()))).permute(0, 3, 1, 2)
            described = self.describe_pictures(
                lambda rows: Pixels(loaded[rows].contiguous()), list(seen), prefix=prefix, likeliest=likeliest
            )
            written |= zip(seen, described, strict=True)
        return [(named(images[n], n + 1), seen.get(n, NOTHING), written[n]) for n in numbers]

    def _loaded(self, images: Sequence[Picture], numbers: Sequence[int]) -> dict[int, NDArray[np.uint8] | InputError]:
        first = {id(images[n]): n for n in reversed(numbers)}  # two threads may not read the same open file
        with ThreadPoolExecutor(READERS) as pool:
            loaded = dict(zip(first, pool.map(lambda n: self._load(images[n], n), first.values()), strict=True))
        return {n: loaded[id(images[n])] for n in numbers}

    def _load(self, image: Picture, n: int) -> NDArray[np.uint8] | InputError:
        try:
            return fit(opened(image, named(image, n + 1)), size=self.encoder.size, mode=self.encoder.fit)
        except InputError as error:
            return error

    @with_own_threads
    def describe_pictures(
        self, pictures: Pictures, numbers: Sequence[int], *, prefix: Sequence[int] = (), likeliest: int = 0
    ) -> list[list[Caption]]:
        """The same for prepared images, pixels or annotation vectors, and the ids of a prefix; `numbers[i]` seeds the
        draws for row i.
        """

        def with_uniforms(rows: Sequence[int]) -> WithUniforms:
            drawn = [self.settings.uniforms_of_attention(numbers[i]) for i in rows]
            return WithUniforms(pictures(rows), torch.stack(drawn))

        sources = Sources(range(len(numbers)), pictures if self.choosing is None else with_uniforms)
        decoded = decode(
            self.model,
            sources,
            self.settings,
            device=self.device,
            numbers=numbers,
            prefixes=[prefix] * len(numbers) if prefix else None,
            keep_attention=self.attends,
        )
        if likeliest:
            decoded = explained(self.model, sources, decoded, self.settings, device=self.device, likeliest=likeliest)
        if prefix:
            prefixes = [prefix] * len(numbers)
            decoded = with_prefixes(self.model, sources, prefixes, decoded, self.settings, device=self.device)
        return [[self._caption(one, n) for one in n_best] for n_best, n in zip(decoded, numbers, strict=True)]

    @with_own_threads
    def likelihood(
        self,
        images: Sequence[Picture],
        captions: Sequence[Sequence[str]],
        samples: int,
        progress: Callable[[int], object],
    ) -> Likelihood:
        """How likely each image's captions are; with hard attention, from so many draws for each caption. Several
        processes share out the images, and `progress` is called with the number that this one has just finished.
        """
        model = self.models[0]
        first = np.cumsum([0, *map(len, captions)])  # the number of each image's first caption: it seeds the draws

        def of_images(some: Sequence[int]) -> list[tuple[int, dict[str, float]]]:
            """Of every caption its tokens, EOS included, and how likely it is."""
            pictures = []
            for one in self._loaded(images, some).values():
                if isinstance(one, InputError):
                    raise one
                pictures.append(one)
            rows = [row for row, n in enumerate(some) for _ in captions[n]]
            targets = [self.target_vocabulary.encode(text) for n in some for text in captions[n]]

            def drawn(i: int) -> Tensor:
                """The random numbers for the i-th caption."""
                generator = np.random.default_rng([self.settings.seed, first[some[0]] + i, 2])
                return torch.from_numpy(generator.random((samples, len(targets[i]) + 1))).float()

            with computing(self.device, self.settings.precision, lower="batch_size or samples"):
                pixels = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()
                a = model.annotations(Pixels(pixels).to(self.device))
                likely = list(of_captions(model, a, rows, targets, drawn if model.hard else None))
            progress(len(some))
            return list(zip((len(target) + 1 for target in targets), likely, strict=True))

        shared = distributed.together(of_images, list(chunks(range(len(images)), self.settings.at_once)))
        tokens, found = zip(*(one for some in shared for one in some), strict=True)
        values = {name: np.array([one[name] for one in found]) for name in found[0]}
        owners = np.repeat(np.arange(len(captions)), [len(some) for some in captions])
        return Likelihood(values, np.array(tokens), owners, samples if model.hard else None)

    def check_likelihood(self) -> None:
        """InputError unless this is one model with attention that may draw."""
        if len(self.models) > 1:
            raise InputError("bound= is for one model, not for an ensemble.")
        if not self.models[0].choices:
            name = type(self.models[0]).__name__.removeprefix("Quick")
            raise InputError(f"bound= is for show_attend_tell, with soft or hard attention, and this is a {name}.")

    def _caption(self, hypothesis: Hypothesis, number: int) -> Caption:
        chosen = None
        if self.choosing is not None and hypothesis.attention is not None:
            alpha = hypothesis.attention[: len(hypothesis.tokens)].float().cpu()
            uniforms = self.settings.uniforms_of_attention(number)[: len(alpha)]
            chosen = self.choosing.choice(alpha, uniforms).argmax(-1).tolist()
        return Caption.of(hypothesis, self.target_vocabulary, grid=self.grid, chosen=chosen)
