"""From sources to hypotheses: batches in a good order, then beam search or sampling, for any model and any source."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from seqtool import decoding, distributed
from seqtool.data.batches import make_source
from seqtool.decoding import Hypothesis
from seqtool.devices import PRECISIONS, autocast, onednn
from seqtool.errors import InputError
from seqtool.models.packed import Packed

X = TypeVar("X")
M = TypeVar("M", bound=nn.Module)

HYPOTHESES = 320  # decoded at once where nothing else is said

LEAST = {"temperature": 1e-4, "top_k": 0, "length_alpha": 0, "coverage_penalty": 0, "seed": 0}
MOST = {  # far beyond what is of use
    **{"beam": 1000, "n_best": 1000, "max_length": 10_000, "batch_size": 1_000_000},
    **{"temperature": 1e4, "top_k": 10**9, "length_alpha": 100, "coverage_penalty": 1e6},
}


@dataclass
class DecodeSettings:
    """configs/decoding.yaml, where the defaults are."""

    beam: int
    n_best: int
    length_penalty: str
    length_alpha: float
    coverage_penalty: float
    sample: bool
    temperature: float
    top_k: int
    top_p: float
    seed: int
    max_length: int
    min_length: int
    batch_size: int | None
    precision: str

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be at least 1, not {getattr(self, name)}"
            for name in ("beam", "n_best", "max_length", "min_length", "batch_size")
            if getattr(self, name) is not None and getattr(self, name) < 1
        ]
        if not self.sample and self.n_best > self.beam:
            problems.append(f"n_best ({self.n_best}) cannot be more than beam ({self.beam})")
        problems += [
            f"{name} must be at least {least}, not {getattr(self, name)}"
            for name, least in LEAST.items()
            if not getattr(self, name) >= least  # nor NaN
        ]
        problems += [
            f"{name} must be at most {most:,}, not {getattr(self, name):,}"
            for name, most in MOST.items()
            if getattr(self, name) is not None and getattr(self, name) > most
        ]
        if self.min_length > self.max_length:
            problems.append(f"min_length ({self.min_length}) cannot be more than max_length ({self.max_length})")
        if not 0 < self.top_p <= 1:
            problems.append(f"top_p must be above 0 and at most 1, not {self.top_p}")
        if problems:
            raise InputError("; ".join(problems) + ".")

    @property
    def at_once(self) -> int:
        """How many sources make a batch."""
        return self.batch_size or max(1, HYPOTHESES // (self.n_best if self.sample else self.beam))

    def draws(self, number: int) -> NDArray[np.float64]:
        """Where the output with this number takes its chance from, whatever is decoded beside it: samples × length."""
        return np.random.default_rng([self.seed, number]).random((self.n_best, self.max_length))


DECODING = (*(field.name for field in fields(DecodeSettings)), "device", "threads")  # configs/decoding.yaml


def laid_out(model: M, precision: str, device: torch.device) -> M:
    """The model for decoding alone: each matrix of a linear map rounded once, as autocast would round it at every step,
    and in the layout in which a CPU multiplies by it. What was tied to an embedding is a copy then; a map to a single
    number, such as a score's v, is also read without autocast, and stays as it is; so does a captioner's backbone.
    """
    others = set(getattr(model, "backbone", nn.Identity()).modules())
    for parent in [module for module in model.modules() if module not in others]:
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and child.out_features > 1:
                child.weight = nn.Parameter(child.weight.detach().to(PRECISIONS[precision] or child.weight.dtype))
                if device.type == "cpu" and Packed.takes(child.weight.dtype):
                    setattr(parent, name, Packed(child))
    return model


class Sources(Protocol):
    """What is decoded, by row."""

    def __len__(self) -> int: ...

    def order(self) -> list[int]:
        """The rows as they are batched: like lengths together, the longest first."""
        ...

    def batch(self, rows: Sequence[int]) -> Any:
        """What the model's `encode` takes."""
        ...

    def maximum(self, row: int, limit: int) -> int:
        """The most tokens the output may have, EOS included; at most `limit`."""
        ...


class Sentences:
    """Encoded sentences: an output may be three times as long as its source and ten tokens more."""

    def __init__(self, ids: Sequence[Sequence[int]]) -> None:
        self._ids = ids

    def __len__(self) -> int:
        return len(self._ids)

    def order(self) -> list[int]:
        return sorted(range(len(self)), key=lambda i: -len(self._ids[i]))

    def batch(self, rows: Sequence[int]) -> Any:
        return make_source([self._ids[i] for i in rows])

    def maximum(self, row: int, limit: int) -> int:
        return min(limit, 3 * len(self._ids[row]) + 10)


class Pictures(Protocol):
    """Images by row, as a captioner's `encode` takes them (`caption_cache.CaptionSplit`)."""

    def pictures(self, rows: Sequence[int]) -> Any: ...


class Images:
    """The given rows of some images: all captions may be equally long."""

    def __init__(self, pictures: Pictures, rows: Sequence[int]) -> None:
        self._pictures = pictures
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def order(self) -> list[int]:
        return list(range(len(self._rows)))

    def batch(self, rows: Sequence[int]) -> Any:
        return self._pictures.pictures([self._rows[i] for i in rows])

    def maximum(self, row: int, limit: int) -> int:
        return limit


def decode(
    model: Any,
    sources: Sources,
    settings: DecodeSettings,
    *,
    device: torch.device,
    draws: Sequence[NDArray[np.float64]] | None,
    keep_attention: bool,
) -> list[list[Hypothesis]]:
    """The n best hypotheses for each source, in the order given; several processes share out the batches.

    `draws` is what sampling takes its chance from: for each source an array samples × length.
    """
    penalty = decoding.length_penalty(settings.length_penalty, settings.length_alpha)

    def decoded(rows: Sequence[int]) -> list[list[Hypothesis]]:
        maximum = [sources.maximum(i, settings.max_length) for i in rows]
        with torch.inference_mode(), autocast(device, settings.precision), onednn():
            memory, state = model.encode(sources.batch(rows).to(device))
            if draws is not None:
                return decoding.sample(
                    model.step,
                    memory,
                    state,
                    uniforms=torch.from_numpy(np.stack([draws[i] for i in rows])).float(),
                    maximum=maximum,
                    minimum=settings.min_length,
                    temperature=settings.temperature,
                    top_k=settings.top_k,
                    top_p=settings.top_p,
                    keep_attention=keep_attention,
                )
            return decoding.beam_search(
                model.step,
                memory,
                state,
                beam=settings.beam,
                maximum=maximum,
                minimum=settings.min_length,
                n_best=settings.n_best,
                penalty=penalty,
                coverage=settings.coverage_penalty,
                keep_attention=keep_attention,
            )

    batches = list(chunks(sources.order(), settings.at_once))
    result: list[list[Hypothesis]] = [[] for _ in range(len(sources))]
    for rows, hypotheses in zip(batches, distributed.together(decoded, batches), strict=True):
        for i, n_best in zip(rows, hypotheses, strict=True):
            result[i] = n_best
    return result


def chunks(items: Sequence[X], size: int) -> Iterator[Sequence[X]]:
    return (items[i : i + size] for i in range(0, len(items), size))
