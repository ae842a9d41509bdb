"""How likely given captions are to a captioner with attention: log p(y | x) for soft attention, and for hard attention,
whose sum over all sequences of locations is out of reach, two estimates from K draws.

    the bound       L_s = Σ_s p(s | a) log p(y | s, a) ≤ log p(y | a)        (Xu et al. 2015, (10)): the mean of K terms
    many samples    log (1/K) Σ_k p(y | s_k, a), s_k ~ p(s | a)               (Burda et al. 2016, (8))

The second is, on average, between the two and rises with K.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from seqtool.data.batches import make_target
from seqtool.models.inputs import Annotations

ROWS = 512  # captions times draws, at a time


@dataclass(frozen=True)
class Likelihood:
    """Of given captions, in nats: one number for each, under the name of what it is, and each one's tokens, EOS
    included. samples: K, or None without draws.
    """

    values: dict[str, NDArray[np.float64]]
    tokens: NDArray[np.int64]
    samples: int | None

    def record(self) -> dict[str, Any]:
        means = {name: float(each.mean()) for name, each in self.values.items()}
        counted = {"captions": len(self.tokens), "tokens": int(self.tokens.sum())}
        return {**counted, **({} if self.samples is None else {"samples": self.samples}), **means}

    def lines(self) -> list[str]:
        """Nats per caption with a 95 % interval of the mean, and per token."""
        draws = "" if self.samples is None else f", {self.samples} draws each"
        found = [f"{'nats per caption':<22}  {len(self.tokens):,} captions{draws}"]
        for name, each in self.values.items():
            half = 1.96 * each.std(ddof=1) / math.sqrt(len(each)) if len(each) > 1 else math.nan
            low, high = each.mean() - half, each.mean() + half
            per_token = each.sum() / self.tokens.sum()
            found.append(f"{LABELS[name]:<22}  {each.mean():.3f} [{low:.3f}, {high:.3f}], {per_token:.4f} per token")
        return found


LABELS = {"bound": "lower bound L_s", "estimate": "estimate of log p", "log_p": "log p"}


@torch.inference_mode()
def of_captions(
    model: Any, a: Float[Tensor, "B S D"], captions: Sequence[Sequence[int]], chances: Sequence[Tensor] | None
) -> Iterator[dict[str, float]]:
    """The likelihood of each of B captions (ids) of as many images. `chances`: for each caption, uniform random numbers
    in [0, 1), K×(its tokens and EOS), or None for attention that draws nothing.
    """
    for start in range(0, len(captions), at_once := 32):
        some = slice(start, start + at_once)
        target = make_target(captions[some]).to(a.device)
        if chances is None:
            nll = _nll(model, a[some], target, None)
            yield from ({"log_p": -float(each)} for each in nll[:, 0])
            continue
        drawn = [torch.nn.functional.pad(one, (0, target.shape[1] - 1 - one.shape[1])) for one in chances[some]]
        nll = _nll(model, a[some], target, torch.stack(drawn).to(a.device))
        estimates = (-nll).logsumexp(1) - math.log(nll.shape[1])
        for bound, estimate in zip(-nll.mean(1), estimates, strict=True):
            yield {"bound": float(bound), "estimate": float(estimate)}


def _nll(
    model: Any, a: Float[Tensor, "B S D"], target: Int[Tensor, "B T1"], chances: Float[Tensor, "B K T"] | None
) -> Tensor:
    """−log p(y | s_k, a), B×K, in double precision; without chances B×1, of the expected context."""
    found = []
    for some in [None] if chances is None else torch.split(chances, max(1, ROWS // len(a)), 1):
        if some is None:
            output = model(Annotations(a), target[:, :-1])
        else:
            output = model(Annotations(a), target[:, :-1], chances=some.flatten(0, 1))
        labels = target[:, 1:].repeat_interleave(len(output.features) // len(a), 0)
        found.append(model.loss(output.features, labels, 0.0).nll.cpu().double().sum(1).view(len(a), -1))
    return torch.cat(found, 1)
