"""The parts that models are built of: plain ones, which follow the equations, or faster ones for a device.

Constructors of models and of their layers take a record of `Parts`, by default `PLAIN`, and build from it. The
results of all records are equal up to rounding, and parameters have the same names and shapes, so checkpoints do not
depend on the record. `fast/parts_for.py` chooses the record for a device.

States and attention are in single precision at least, and products in the type that autocast chooses.
"""

import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from seqtool.models.tokens import PAD
from seqtool.settings import Config
from seqtool.settings.classes import build, locate_target
from seqtool.settings.declarations import parameters

T = TypeVar("T")
M = TypeVar("M", bound=Any)


def single(dtype: torch.dtype) -> torch.dtype:
    """Return the more precise of `dtype` and single precision."""
    return torch.promote_types(dtype, torch.float32)


def at_least_single(x: Tensor) -> Tensor:
    """Return `x` in single precision, or in its own type if that is more precise."""
    return x.to(single(x.dtype))


def product_dtype(operand: Tensor) -> torch.dtype:
    """Return the type in which products with `operand` are computed: autocast's where it is on."""
    device = operand.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else operand.dtype


def for_products(x: Tensor) -> Tensor:
    """Return `x` in the type in which it will be multiplied, so that it is rounded once and not at every step."""
    return x.to(product_dtype(x))


def weighted_sum(weights: Float[Tensor, "N S"], values: Float[Tensor, "B S D"]) -> Float[Tensor, "N D"]:
    """Return Σ_j α_j h_j for N = B·K rows of weights, K for each row of annotation vectors, in the vectors' type."""
    return (weights.to(values.dtype).view(len(values), -1, values.shape[1]) @ values).flatten(0, 1)


class CrossEntropy(NamedTuple):
    """The loss of a batch, in nats."""

    total: Float[Tensor, ""]  # the smoothed and weighted cross-entropy, summed over the real tokens, to be minimised
    nll: Float[Tensor, "N T"]  # −log p of each token, without gradient; 0 at padding


def cross_entropy(
    features: Float[Tensor, "N T R"],
    output: Callable[[Tensor], Tensor],
    labels: Int[Tensor, "N T"],
    smoothing: float,
    weights: Float[Tensor, "N"] | None = None,
) -> CrossEntropy:
    """Return −log softmax(output(features))[label]; the softmax is in single precision at least.

    With label smoothing ε the target distribution is (1 − ε) on the label and ε spread over the whole vocabulary
    (Szegedy et al. 2016). The loss of each row is multiplied by its weight.
    """
    logits: Float[Tensor, "N T V"] = output(features)
    log_p = F.log_softmax(logits, -1, dtype=single(logits.dtype))
    nll = F.nll_loss(log_p.flatten(0, -2), labels.flatten(), ignore_index=PAD, reduction="none").view_as(labels)
    uniform_loss = -log_p.mean(-1) * (labels != PAD)
    loss = (1 - smoothing) * nll.sum(-1) + smoothing * uniform_loss.sum(-1)
    return CrossEntropy((loss if weights is None else weights * loss).sum(), nll.detach())


def _no_faster_way(*_: Any) -> None:
    """Return None, so that the caller runs the steps one by one."""


@dataclass(frozen=True)
class Parts:
    """Constructors and functions from which models are built.

    linear, dropout: classes with the arguments of torch's
    versions: our classes of cells and attention scores, mapped to faster ones; users' own classes are built as they are
    weighted_sum, cross_entropy: functions with the arguments and results of their defaults
    attend: softmax(QKᵀ/√d_k + bias) V for every head (Vaswani et al. 2017, (1)), a function of Q, K, V, the bias, which
        is −∞ where a query does not see a key, and `is_causal`, as torch's
    whole_sequence: (`Recurrence`, x, first state, lengths) → the `States` of all steps, or None if it has no faster way
    whole_target: (`RecurrentDecoder`, memory, state, input projections) → the `StepOutput` of all steps, or None
    around_steps: a context manager that encloses the steps of one recurrence
    """

    linear: type[nn.Linear] = nn.Linear
    dropout: type[nn.Dropout] = nn.Dropout
    versions: Mapping[type[Any], type[Any]] = field(default_factory=dict)
    weighted_sum: Callable[[Tensor, Tensor], Tensor] = weighted_sum
    attend: Callable[..., Tensor] = F.scaled_dot_product_attention
    cross_entropy: Callable[..., CrossEntropy] = cross_entropy
    whole_sequence: Callable[..., Any] = _no_faster_way
    whole_target: Callable[..., Any] = _no_faster_way
    around_steps: Callable[[], AbstractContextManager[None]] = nullcontext

    def build(self, kind: type[T], *arguments: Any) -> T:
        """Build a cell or a score of this class or its faster version, of these parts if its constructor takes them."""
        kind = self.versions.get(kind, kind)
        settings: dict[str, Any] = {"parts": self} if takes_parts(kind) else {}
        return kind(*arguments, **settings)

    def __deepcopy__(self, memo: Any) -> "Parts":
        return self


PLAIN = Parts()


def takes_parts(kind: Callable[..., Any]) -> bool:
    """Whether a constructor has an argument `parts`."""
    return "parts" in parameters(kind)


def build_model(settings: Config, *, base: type, trusted: Any = True, parts: Parts = PLAIN, **arguments: Any) -> Any:
    """Build the model that `settings` describe, of these parts if its constructor takes them.

    base, trusted: as in `settings.classes.build`
    arguments: the constructor's arguments besides the settings, such as the sizes of the vocabularies
    """
    if takes_parts(locate_target(settings, trusted=trusted, base=base)):
        arguments["parts"] = parts
    return build(settings, trusted=trusted, base=base, **arguments)


def plain_copy(model: M) -> M:
    """Return a copy of a model with the same weights, built of plain parts, which call the cells at every step."""
    if getattr(model, "parts", PLAIN) is PLAIN:
        return copy.deepcopy(model)
    settings: dict[str, Any] = {**model.built_with, "parts": PLAIN}
    if "pretrained" in settings:
        settings["pretrained"] = False  # the weights are copied below
    with torch.random.fork_rng(devices=[]):
        plain: M = type(model)(**settings)
    plain.to(next(model.parameters()))
    plain.load_state_dict(model.state_dict())
    plain.train(model.training)
    return plain
