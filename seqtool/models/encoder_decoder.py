"""The contract of every model. Training sees `forward` and `output`, decoding `encode` and `step`.

Only `encode` knows what a source is: words (`Source`), or an image (`Annotations` or `Pixels`) for a captioner.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, Self, TypeVar

from torch import Tensor, nn

from seqtool.errors import InputError
from seqtool.models.cells import State
from seqtool.models.sharing import share

S = TypeVar("S")
MOST_LAYERS, MOST_UNITS = 100, 1_000_000


@dataclass(frozen=True)
class Memory:
    """What stays constant while a sentence is decoded; its beams share it.

    values B×S×D annotation vectors, keys B×S×A (empty, ×0, where the context is fixed), mask B×S, true at real
    positions.
    """

    values: Tensor
    keys: Tensor
    mask: Tensor

    def shared(self) -> Self:
        """For the steps of teacher forcing (`sharing.share`)."""
        return replace(self, values=share(self.values), keys=share(self.keys))


class Step(NamedTuple, Generic[S]):
    """One decoding step: logits N×V, the new state, attention N×S over the source (None without attention)."""

    logits: Tensor
    state: S
    attention: Tensor | None


@dataclass(frozen=True)
class Sampled:
    """What hard attention drew, of the N rows of an output: `image` N, the row of the batch that each is of.

    The first `expected` rows took the expected context. The others, n of them, drew theirs, `samples` rows an image
    side by side: log_probability n×T, log α of each drawn location; entropy n×T of α, in nats.
    """

    image: Tensor
    expected: int
    samples: int
    log_probability: Tensor
    entropy: Tensor


@dataclass(frozen=True)
class Output:
    """Teacher forcing over a whole target.

    features B×T×R, to be projected to logits; attention B×T×S, or None; the hidden states, one B×H tensor for each
    time step, under `sharing.plain` as it stands in the graph (so that gradients by time step can be asked for): the
    encoder's in the order in which it read, then the decoder's. Where hard attention drew, B stands for `sampled`'s N
    rows.
    """

    features: Tensor
    attention: Tensor | None
    encoder_states: tuple[Tensor, ...]
    decoder_states: tuple[Tensor, ...]
    sampled: Sampled | None = None


@dataclass(frozen=True)
class Penalties:
    """What a model's loss has besides −log p, all per caption and summed over its steps (`losses.TrainingLoss`).

    doubly_stochastic λ on Σ_i (1 − Σ_t α_ti)²; of hard attention: reward λ_r on the advantage (R − b) · Σ_t log p(s_t),
    R = Σ_t log p(y_t), entropy λ_e on Σ_t H[s_t], baseline b moving_average (with `decay`) or leave_one_out, credit
    caption (R for every draw) or future (of each draw its own word and those after it).
    """

    doubly_stochastic: float = 0.0
    reward: float = 0.0
    entropy: float = 0.0
    baseline: str = "moving_average"
    decay: float = 0.9
    credit: str = "caption"


class EncoderDecoder(nn.Module, ABC, Generic[S]):
    """A model p(y_t | y_<t, source). `S` is its decoder state, a frozen dataclass of tensors, batch first.

    Captioners have no `source_embedding`; `penalties` is what the loss reads.
    """

    penalties = Penalties()
    source_embedding: nn.Embedding
    target_embedding: nn.Embedding
    output: nn.Linear

    @abstractmethod
    def encode(self, source: Any) -> tuple[Memory, S]:
        """Read the source once: the memory and the decoder's first state."""

    @abstractmethod
    def step(self, memory: Any, state: S, token: Tensor) -> Step[S]:
        """Feed `token` (N, ids) to N = B·K states, K for each row of the memory."""

    @abstractmethod
    def forward(self, source: Any, target: Tensor) -> Output:
        """Teacher forcing: `target` B×T ids from BOS on; features of position t predict token t + 1."""

    def project(self, features: Tensor) -> Tensor:
        """Features …×R → logits …×V."""
        logits: Tensor = self.output(features)
        return logits

    def __call__(self, *arguments: Any) -> Output:
        output: Output = super().__call__(*arguments)
        return output


@dataclass(frozen=True)
class Layers:
    """The state of a stack of cells: for each layer its tensors, N×H."""

    layers: tuple[State, ...]

    @property
    def top(self) -> Tensor:
        return self.layers[-1][0]


def check_sizes(*, dropout: float, **sizes: int) -> None:
    """Raise InputError unless every size is from 1 to what no model has, and dropout a probability below 1."""
    problems = [f"model.{name} must be at least 1, not {size}." for name, size in sizes.items() if size < 1]
    for name, size in sizes.items():
        most = MOST_LAYERS if name.endswith("layers") else MOST_UNITS
        if size > most:
            problems.append(f"model.{name} must be at most {most:,}, not {size:,}.")
    if not 0 <= dropout < 1:
        problems.append(f"model.dropout must be at least 0 and below 1, not {dropout}.")
    if problems:
        raise InputError(" ".join(problems))


def check_weights(**weights: float) -> None:
    """Raise InputError unless every weight of a term of the loss is at least 0."""
    if problems := [
        f"model.{name} must be at least 0, not {weight}." for name, weight in weights.items() if weight < 0
    ]:
        raise InputError(" ".join(problems))


def tie_embeddings(model: EncoderDecoder[S], tied: str) -> None:
    """Share matrices: `output` (the softmax is the target embedding, transposed) or `all` (the source's as well)."""
    if tied not in ("none", "output", "all"):
        raise InputError(f"Unknown model.tie '{tied}'; choose from none, output, all.")
    if tied == "none":
        return
    embedding = model.target_embedding.weight
    if model.output.weight.shape != embedding.shape:
        raise InputError(
            f"model.tie={tied} needs features as long as embeddings, but they are {model.output.weight.shape[1]} and "
            f"{embedding.shape[1]}: make the two sizes equal or use model.tie=none."
        )
    model.output.weight = model.target_embedding.weight
    if tied == "all":
        if model.source_embedding.weight.shape != embedding.shape:
            raise InputError(
                f"model.tie=all needs one vocabulary for both sides, but source and target have "
                f"{model.source_embedding.num_embeddings:,} and {model.target_embedding.num_embeddings:,} entries: "
                "use data.vocabulary.joint=true or model.tie=output."
            )
        model.source_embedding.weight = model.target_embedding.weight
