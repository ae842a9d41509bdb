"""The likelihood of captions under a captioner with attention.

For soft attention it is log p(y | x). For hard attention, the sum over all sequences of locations is intractable. Two
estimates take K sequences s_k ~ p(s | a):

    bound       (1/K) Σ_k log p(y | s_k, a), which estimates L_s = Σ_s p(s | a) log p(y | s, a)   (Xu et al. 2015, (10))
    estimate    log (1/K) Σ_k p(y | s_k, a)                                                     (Burda et al. 2016, (8))

L_s is a lower bound of log p(y | a). On average, `estimate` lies between L_s and log p(y | a), and rises with K.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from seqtool.data.batches import make_target
from seqtool.errors import counted
from seqtool.metrics.bootstrap import bootstrap
from seqtool.models.hard_attention import Rows
from seqtool.models.inputs import Annotations

CAPTIONS_PER_BATCH = 32
ROWS_PER_BATCH = 512  # captions times sequences of locations


@dataclass(frozen=True)
class Likelihood:
    """The likelihoods of captions."""

    values: dict[str, NDArray[np.float64]]  # of each caption in nats: `log_p`; for hard attention `bound`, `estimate`
    tokens: NDArray[np.int64]  # each caption's length in tokens, EOS included
    images: NDArray[np.int64]  # the index of the image that each caption describes
    samples: int | None  # K for hard attention, None for soft

    def record(self) -> dict[str, Any]:
        """The counts, and the mean of each value over the captions, for JSON."""
        means = {name: float(nats.mean()) for name, nats in self.values.items()}
        counts = {"captions": len(self.tokens), "tokens": int(self.tokens.sum())}
        return {**counts, **({} if self.samples is None else {"samples": self.samples}), **means}

    def lines(self, resamples: int) -> list[str]:
        """A table of nats per caption, with an interval from so many resamples of images, and nats per token."""
        draws = "" if self.samples is None else f", {self.samples} draws each"
        lines = [f"{'nats per caption':<22}  {counted(len(self.tokens), 'caption')}{draws}"]
        counts = np.bincount(self.images)
        for name, nats in self.values.items():
            sums = np.bincount(self.images, nats).astype(np.float64)

            def mean(images: NDArray[np.int64], sums: NDArray[np.float64] = sums) -> float:
                return float(sums[images].sum() / counts[images].sum())

            estimate = bootstrap(mean, [np.flatnonzero(counts)], resamples)
            lines.append(f"{LABELS[name]:<22}  {estimate.text(3)}, {nats.sum() / self.tokens.sum():.4f} per token")
        return lines

    def image_values(self, image: int) -> dict[str, list[float]]:
        """The nats of each caption of an image, by the name of the value."""
        return {name: nats[self.images == image].tolist() for name, nats in self.values.items()}


LABELS = {"bound": "lower bound L_s", "estimate": "estimate of log p", "log_p": "log p"}


@torch.inference_mode()
def caption_likelihoods(
    model: Any,
    a: Float[Tensor, "B S D"],
    rows: Sequence[int],
    captions: Sequence[Sequence[int]],
    uniform_noise: Callable[[int], Tensor] | None,
) -> Iterator[dict[str, float]]:
    """Yield the likelihood of each caption in nats: `log_p` for soft attention, `bound` and `estimate` for hard.

    a: the annotation vectors of the images
    rows: the row in `a` of each caption's image
    captions: the ids of each caption, without BOS and EOS
    uniform_noise: returns the random numbers in [0, 1) of the i-th caption, K × its length in tokens with EOS; None for
        soft attention
    """
    for start in range(0, len(captions), CAPTIONS_PER_BATCH):
        batch = range(start, min(start + CAPTIONS_PER_BATCH, len(captions)))
        images, target = a[[rows[i] for i in batch]], make_target([captions[i] for i in batch]).to(a.device)
        noise_pieces: Sequence[Tensor | None] = [None]
        if uniform_noise is not None:
            steps = target.shape[1] - 1
            padded = [nn.functional.pad(noise, (0, steps - noise.shape[1])) for noise in map(uniform_noise, batch)]
            noise_pieces = torch.split(torch.stack(padded).to(a.device), max(1, ROWS_PER_BATCH // len(images)), 1)
        log_p_pieces = []
        for noise in noise_pieces:
            if noise is None:  # soft attention
                output = model(Annotations(images), target[:, :-1])
            else:
                noise_rows = Rows.with_noise(len(images), noise.flatten(0, 1))
                output = model.forward_rows(Annotations(images), target[:, :-1], noise_rows)
            labels = target[:, 1:].repeat_interleave(len(output.features) // len(images), 0)
            nll = model.loss(output.features, labels, 0.0).nll.cpu().double().sum(1)
            log_p_pieces.append(-nll.view(len(images), -1))
        log_p = torch.cat(log_p_pieces, 1)  # log p(y | s_k, a), B×K
        if uniform_noise is None:
            yield from ({"log_p": value} for value in log_p[:, 0].tolist())
            continue
        estimates = log_p.logsumexp(1) - math.log(log_p.shape[1])
        for bound, estimate in zip(log_p.mean(1), estimates, strict=True):
            yield {"bound": float(bound), "estimate": float(estimate)}
