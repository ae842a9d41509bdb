"""The contract of every model: what training, decoding and the tasks may rely on, whatever is inside.

    encode(source) → memory, state              the source is read once
    prefill(memory, state, tokens) → state, α   several known tokens at once: a prompt, a forced prefix
    step(memory, state, token) → logits, state, α
    forward(source, target, state=None) → features, the last state, α          teacher forcing
    project(features) → logits; loss(features, labels) → −log p, the model's own

The rules:

- `forward` equals stepping equals prefilling: position t of `forward`'s features, projected, has the logits of `step`
  after the tokens up to t, and the states that the three leave are the same, to rounding.
- Padding and the batch's other rows change nothing: a row's result depends only on its own source and tokens.
- A state is a tree of dataclasses and tuples of tensors, batch first; floating-point ones have the parameters' type,
  even under autocast. Its rows can be repeated, dropped and reordered (`decoding.tree.select`). A state may grow: a
  node that selects rows in its own way has a method `select(rows)`, and may hold more than is in use. It may be
  carried over: `forward` starts from a given state instead of `encode`'s, and returns the last one.
- A memory is such a tree too, and may hold other things that all rows share. It is constant while a sequence is decoded
  and shared by its beams: K consecutive states belong to each of its rows. Rows are only ever removed from it.
  A model that reads nothing has an empty one.
- Nothing is stored on a module between calls.
- `attends` says whether α is attention over the source, N×S, which sums to 1 over real positions; otherwise it is None.
- `task`, a name in `runtime.task_table`, says what `encode` takes: for translation text (`inputs.Source`), for
  captioning images (`Annotations` or `Pixels`), for language modelling nothing (None; the state is then that of one
  row, to be repeated).
- The constructor's arguments are the settings of `model`, the sizes of the vocabularies and, if the model can be built
  of faster ones, `parts` (`parts.Parts`), which it passes on to `EncoderDecoder` and to its layers. Their annotations
  say what they may be (`settings.declarations`), as `Size` does, and `EncoderDecoder` refuses other values.

Axes in signatures, throughout the package: B batch, K beam, N = B·K rows, S source positions or image locations, T
target positions, V vocabulary, E embedding, H hidden, A alignment, D annotation size, R size of features. They are
checked while the tests run (tests/conftest.py), and never otherwise.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from seqtool.errors import InputError
from seqtool.models.hard_attention import Penalties, Sampled
from seqtool.models.parts import PLAIN, CrossEntropy, Parts
from seqtool.settings import declarations
from seqtool.settings.declarations import Setting, between

S = TypeVar("S")

Size = Annotated[int, between(1, 1_000_000)]
LayerCount = Annotated[int, between(1, 100)]
DropoutRate = Annotated[float, Setting(at_least=0, below=1)]
TIES = {  # the choices where they are not all three, by task, and the model's name in the error message
    "captioning": (("none", "output"), " of a captioner"),
    "language_modelling": (("none", "output"), " of a language model"),
}


@dataclass(frozen=True)
class Memory:
    """Annotation vectors, their keys (empty, ×0, where the context is fixed), and a mask: true at real positions."""

    values: Float[Tensor, "B S D"]
    keys: Float[Tensor, "B S A"]
    mask: Bool[Tensor, "B S"]


class Step(NamedTuple, Generic[S]):
    """One decoding step.

    logits: of the next token
    state: after the step
    attention: over the source, None without attention
    location: the source position from which hard attention took the context, None where it took the expectation
    """

    logits: Float[Tensor, "N V"]
    state: S
    attention: Float[Tensor, "N S"] | None
    location: Int[Tensor, "N"] | None = None


class Prefilled(NamedTuple, Generic[S]):
    """Several known tokens that were read: the state after them; attention and locations of each as in `Step`."""

    state: S
    attention: Float[Tensor, "N t S"] | None
    location: Int[Tensor, "N t"] | None = None


@dataclass(frozen=True)
class Output:
    """Teacher forcing over a whole target. N is B, or the number of `sampled`'s rows if hard attention drew locations.

    features: to be projected to logits
    attention: over the source, None without attention
    state: after the last step
    sampled: what hard attention drew, None if it took the expectation
    """

    features: Float[Tensor, "N T R"]
    attention: Float[Tensor, "N T S"] | None
    state: Any
    sampled: Sampled | None = None


class EncoderDecoder(nn.Module, ABC, Generic[S]):
    """A model p(y_t | y_<t, source). `S` is its decoder's state.

    penalties: what the loss adds to −log p
    max_positions: the greatest length of a source or target, in tokens with BOS or EOS, None for any
    embedding_scale: the factor by which embedded words are multiplied
    source_embedding: only of models that read text
    parts: what it is built from
    built_with: the named arguments of its constructor
    """

    task: ClassVar[str]
    attends: bool
    penalties = Penalties()
    max_positions: int | None = None
    embedding_scale: float = 1.0
    source_embedding: nn.Embedding
    target_embedding: nn.Embedding
    output: nn.Linear
    parts: Parts
    built_with: dict[str, Any]

    def __new__(cls, *_: Any, **settings: Any) -> Self:
        model = super().__new__(cls)
        model.__dict__["built_with"] = settings
        return model

    def __init__(self, parts: Parts = PLAIN) -> None:
        super().__init__()
        self.parts = parts
        if problems := declarations.out_of_range(type(self), self.built_with, "model."):
            raise InputError(" ".join(f"{problem}." for problem in problems))

    @abstractmethod
    def encode(self, source: Any) -> tuple[Any, S]:
        """Read the source once: the memory and the decoder's first state."""

    @abstractmethod
    def step(self, memory: Any, state: S, token: Int[Tensor, "N"]) -> Step[S]:
        """Feed `token` (ids) to N = B·K states, K for each row of the memory."""

    def prefill(self, memory: Any, state: S, tokens: Int[Tensor, "N t"]) -> Prefilled[S]:
        """Feed known tokens (ids) to N states."""
        steps: list[Step[S]] = []
        for token in tokens.unbind(1):
            steps.append(self.step(memory, state, token))
            state = steps[-1].state
        attention, location = stacked([step.attention for step in steps]), stacked([step.location for step in steps])
        return Prefilled(state, attention, location)

    @abstractmethod
    def forward(self, source: Any, target: Int[Tensor, "B T"], state: S | None = None) -> Output:
        """Teacher forcing: `target` are ids from BOS on; features of position t predict token t + 1."""

    def project(self, features: Float[Tensor, "*batch R"]) -> Float[Tensor, "*batch V"]:
        """Features → logits."""
        return self.output(features)

    def loss(self, features: Float[Tensor, "N T R"], labels: Int[Tensor, "N T"], smoothing: float) -> CrossEntropy:
        """−log p of the labels in nats, with label smoothing."""
        projects_in_its_own_way = type(self).project is not EncoderDecoder.project
        output = self.project if projects_in_its_own_way else self.output
        return self.parts.cross_entropy(features, output, labels, smoothing)

    def __call__(self, *arguments: Any, **named: Any) -> Output:
        return super().__call__(*arguments, **named)


def stacked(steps: Sequence[Tensor | None]) -> Tensor | None:
    """What each step has, N×…, as N×t×…; None if there are no steps or they have nothing."""
    tensors = [tensor for tensor in steps if tensor is not None]
    return torch.stack(tensors, 1) if tensors else None


def tie_matrices(model: EncoderDecoder[Any], tied: str) -> None:
    """Share matrices: `output` (the softmax is the target embedding, transposed) or `all` (the source's too)."""
    choices, owner = TIES.get(model.task, (("none", "output", "all"), ""))
    if tied not in choices:
        raise InputError(f"Unknown model.tie '{tied}'{owner}; choose from {', '.join(choices)}.")
    if tied == "none":
        return
    target, features = model.target_embedding, model.output.in_features
    if model.output.weight.shape != target.weight.shape:
        raise InputError(
            f"model.tie={tied} needs features as long as embeddings, but they are {features} and "
            f"{target.embedding_dim}: make the two sizes equal or use model.tie=none."
        )
    model.output.weight = target.weight
    if tied == "all":
        source = model.source_embedding
        if source.weight.shape != target.weight.shape:
            raise InputError(
                f"model.tie=all needs one vocabulary for both sides, but source and target have "
                f"{source.num_embeddings:,} and {target.num_embeddings:,} entries: "
                "use data.vocabulary.joint=true or model.tie=output."
            )
        source.weight = target.weight
