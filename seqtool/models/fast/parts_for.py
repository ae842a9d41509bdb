"""The choice of faster parts for a device. `decoding.py` turns models of these parts into models for decoding only."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqtool.models.attention import Additive, General
from seqtool.models.cells import LSTM
from seqtool.models.fast import deferred_gradients, recurrences
from seqtool.models.fast.additive import ExponentialAdditive, attentive_gru
from seqtool.models.fast.cross_entropy_in_pieces import cross_entropy_in_pieces
from seqtool.models.fast.rounded_once import RoundedOnceLinear
from seqtool.models.parts import Parts
from seqtool.models.transformer import hide_later
from seqtool.runtime.precision import without_onednn

DROPOUT_STEPS = 1 << 16  # the number of values that sixteen random bits can have


def parts_for(device: torch.device) -> Parts:
    """Return the fastest parts for models on this device."""
    return PARTS_BY_DEVICE.get(device.type, DEFAULT_PARTS)


class CoarseDropout(nn.Dropout):
    """Dropout that draws sixteen random bits for each number: a CPU draws these four times as fast as torch's Bernoulli
    variables, which take a tenth of an update of a language model of 2×512 LSTMs. The probability is rounded to a
    multiple of 1/65,536, which also determines the scale.
    """

    def forward(self, x: Tensor) -> Tensor:
        dropped_values = round(self.p * DROPOUT_STEPS)
        if not self.training or not 0 < dropped_values < DROPOUT_STEPS:
            return super().forward(x)
        bits = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None).view(torch.int16)
        keep_mask = bits[: x.numel()].view(x.shape) >= dropped_values - DROPOUT_STEPS // 2
        return x * keep_mask.to(x.dtype).mul_(DROPOUT_STEPS / (DROPOUT_STEPS - dropped_values))


def attend_on_cpu(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, *, is_causal: bool = False) -> Tensor:
    """Compute `Parts.attend` by two products for all heads of all sentences at once.

    torch's own function multiplies head by head, and oneDNN takes 70 µs for the smallest product: sixteen times as long
    in all for 64 sentences of 18 words. For a single query per row, as in decoding, torch's function is faster if MKL
    computes the products: 0.9 ms instead of 2.4 for 320 rows of 25 tokens, 11 µs instead of 180 for one row of 128.
    """
    if q.shape[-2] == 1:
        with without_onednn():
            return F.scaled_dot_product_attention(q, k, v, bias, is_causal=is_causal)
    e = q * q.shape[-1] ** -0.5 @ k.transpose(-1, -2)
    if is_causal:
        bias = hide_later(q, k.shape[-2])
    if bias is not None:
        e = e + bias
    return e.softmax(-1).to(v.dtype) @ v


DEFAULT_PARTS = Parts(
    linear=deferred_gradients.DeferredGradientLinear,
    versions={Additive: ExponentialAdditive, General: deferred_gradients.DeferredGradientGeneral},
    weighted_sum=deferred_gradients.weighted_sum_with_deferred_gradient,
    cross_entropy=cross_entropy_in_pieces,
    whole_target=attentive_gru,
    around_steps=deferred_gradients.one_pass,
)
PARTS_BY_DEVICE = {
    "cpu": replace(DEFAULT_PARTS, dropout=CoarseDropout, attend=attend_on_cpu, whole_sequence=recurrences.run_on_cpu),
    "cuda": replace(
        DEFAULT_PARTS,
        linear=RoundedOnceLinear,
        versions={**DEFAULT_PARTS.versions, LSTM: recurrences.LSTMOfOneFunction},
        whole_sequence=recurrences.run_on_gpu,
    ),
}
