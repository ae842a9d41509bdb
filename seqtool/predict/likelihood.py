"""How likely given captions are to a captioner with attention: log p(y | x) for soft attention, and for hard attention,
whose sum over all sequences of locations is out of reach, two estimates from K draws.

    the bound       L_s = Σ_s p(s | a) log p(y | s, a) ≤ log p(y | a)        (Xu et al. 2015, (10)): the mean of K terms
    many samples    log (1/K) Σ_k p(y | s_k, a), s_k ~ p(s | a)               (Burda et al. 2016, (8))

The second is, on average, between the two and rises with K.
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
from seqtool.metrics.bootstrap import bootstrap
from seqtool.models.hard_attention import Rows
from seqtool.models.inputs import Annotations

AT_ONCE = 32  # captions
ROWS = 512  # captions times draws


@dataclass(frozen=True)
class Likelihood:
    """Of given captions, in nats: one number for each, under the name of what it is, and each one's tokens, EOS
    included, and the image that it describes. samples: K, or None without draws.
    """

    values: dict[str, NDArray[np.float64]]
    tokens: NDArray[np.int64]
    images: NDArray[np.int64]
    samples: int | None

    def record(self) -> dict[str, Any]:
        means = {name: float(each.mean()) for name, each in self.values.items()}
        counted = {"captions": len(self.tokens), "tokens": int(self.tokens.sum())}
        return {**counted, **({} if self.samples is None else {"samples": self.samples}), **means}

    def lines(self) -> list[str]:
        """Nats per caption with an interval from resampling images, and per token."""
        draws = "" if self.samples is None else f", {self.samples} draws each"
        lines = [f"{'nats per caption':<22}  {len(self.tokens):,} captions{draws}"]
        counts = np.bincount(self.images)
        for name, each in self.values.items():
            sums = np.bincount(self.images, each).astype(np.float64)

            def mean(images: NDArray[np.int64], sums: NDArray[np.float64] = sums) -> float:
                return float(sums[images].sum() / counts[images].sum())

            estimate = bootstrap(mean, [np.flatnonzero(counts)])
            lines.append(f"{LABELS[name]:<22}  {estimate.text(3)}, {each.sum() / self.tokens.sum():.4f} per token")
        return lines

    def of_image(self, number: int) -> dict[str, list[float]]:
        """Of each of its captions."""
        return {name: each[self.images == number].tolist() for name, each in self.values.items()}


LABELS = {"bound": "lower bound L_s", "estimate": "estimate of log p", "log_p": "log p"}


@torch.inference_mode()
def of_captions(
    model: Any,
    a: Float[Tensor, "B S D"],
    rows: Sequence[int],
    captions: Sequence[Sequence[int]],
    uniforms: Callable[[int], Tensor] | None,
) -> Iterator[dict[str, float]]:
    """The likelihood of each caption.

    a: the annotation vectors of the images
    rows: which of these images each caption describes
    captions: their ids
    uniforms: for the i-th caption random numbers in [0, 1), K×(its tokens and EOS); None for soft attention
    """
    for start in range(0, len(captions), AT_ONCE):
        batch = range(start, min(start + AT_ONCE, len(captions)))
        images, target = a[[rows[i] for i in batch]], make_target([captions[i] for i in batch]).to(a.device)
        draws: Sequence[Tensor | None] = [None]
        if uniforms is not None:
            steps = target.shape[1] - 1
            padded = [nn.functional.pad(drawn, (0, steps - drawn.shape[1])) for drawn in map(uniforms, batch)]
            draws = torch.split(torch.stack(padded).to(a.device), max(1, ROWS // len(images)), 1)
        of_draws = []
        for noise in draws:
            if noise is None:  # the expected context
                output = model(Annotations(images), target[:, :-1])
            else:
                drawn_rows = Rows.with_noise(len(images), noise.flatten(0, 1))
                output = model.forward_rows(model.annotations(Annotations(images)), target[:, :-1], drawn_rows)
            labels = target[:, 1:].repeat_interleave(len(output.features) // len(images), 0)
            nll = model.loss(output.features, labels, 0.0).nll.cpu().double().sum(1)
            of_draws.append(-nll.view(len(images), -1))
        log_p = torch.cat(of_draws, 1)  # log p(y | s_k, a), B×K
        if uniforms is None:
            yield from ({"log_p": float(each)} for each in log_p[:, 0])
            continue
        estimates = log_p.logsumexp(1) - math.log(log_p.shape[1])
        for bound, estimate in zip(log_p.mean(1), estimates, strict=True):
            yield {"bound": float(bound), "estimate": float(estimate)}
