"""The contract of every model: what training, decoding and the tasks may rely on, whatever is inside.

    encode(source) → memory, state              the source is read once
    prefill(memory, state, tokens) → state, α   several known tokens at once, such as a prompt or a forced prefix
    step(memory, state, token) → logits, state, α; step_without_attention, the same for callers that need no α
    forward(source, target, state=None) → features, the last state, α          teacher forcing
    project(features) → logits
    loss(features, labels) → −log p of the labels

A new model is a class in this directory, derived from `EncoderDecoder` or, if its decoder is recurrent, from
`RecurrentDecoder`, and `configs/model/NAME.yaml`, whose `_target_` names it; docs/extending.md has an example.

The rules:

- `forward`, stepping and prefilling agree, up to rounding: position t of `forward`'s features, projected, gives the
  logits that `step` returns after the tokens up to t, and all three leave the same state.
- Padding and the batch's other rows change nothing: a row's result depends only on its own source and tokens.
- A state is a tree of dataclasses and tuples of tensors, batch first; floating-point tensors have the parameters' type,
  even under autocast. Its rows can be repeated, dropped and reordered (`models.tree.select`), and their number for
  each source may change between steps. A state may grow: a node that selects rows in its own way has a method
  `select(rows)`, or `select_on_cpu(rows)` for rows on the CPU, and its tensors may have room to spare and another
  type. A state may be carried over: `forward` starts from the state it is given instead of `encode`'s, and returns the
  last one.
- A memory is such a tree too, and may also hold objects that all rows share. It is constant while a sequence is decoded
  and shared by its beams, or in training by captions of an image (`inputs.Images`): K consecutive states belong to each
  of its rows. Rows are only ever removed from it.
  A model without a source has an empty memory.
- Nothing is stored on a module between calls.
- `attends`: whether α is attention over the source, N×S, which sums to 1 over real positions; otherwise α is None.
- `task`, a name in `runtime.task_table` or the dotted name of a user's `Task`, determines what `encode` takes: a text
  (`inputs.Source`) for translation, images (`Annotations` or `Pixels`) for captioning, and None for language modelling,
  where the first state has one row, which the caller repeats.
- The constructor's arguments are the settings of `model`, the sizes of the vocabularies and, if the model can be built
  of faster parts, `parts` (`parts.Parts`), which it passes on to `EncoderDecoder` and to its layers. Annotations such
  as `Size` declare the range of each setting (`settings.declarations`); `EncoderDecoder` refuses values outside it.

Axes in signatures, throughout the package: B batch, K beam, N = B·K rows, S source positions or image locations, T
target positions, V vocabulary, E embedding, H hidden, A alignment, D annotation size, R size of features. They are
checked while the tests run (tests/conftest.py), and never otherwise.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from seqtool.errors import InputError
from seqtool.models.hard_attention import DrawnLocations, Penalties
from seqtool.models.parts import PLAIN, CrossEntropy, Parts
from seqtool.settings import declarations
from seqtool.settings.declarations import Setting, between

StateT = TypeVar("StateT")

Size = Annotated[int, between(1, 1_000_000)]  # the upper bounds are generous, to catch typing errors
LayerCount = Annotated[int, between(1, 100)]
DropoutRate = Annotated[float, Setting(at_least=0, below=1)]
MODEL_WITHOUT_SOURCE = {"captioning": "a captioner", "language_modelling": "a language model"}  # no source vocabulary


@dataclass(frozen=True)
class Memory:
    """Annotation vectors, their keys (empty, ×0, where the context is fixed), and a mask: true at real positions."""

    values: Float[Tensor, "B S D"]
    keys: Float[Tensor, "B S A"]
    mask: Bool[Tensor, "B S"]

    @property
    def mask_bias(self) -> Float[Tensor, "B 1 S"]:
        """What is added to scores before their softmax: 0 at real positions, −∞ elsewhere; made once for all steps."""
        made: dict[str, Tensor] = vars(self)  # not functools.cached_property, whose lock torch.compile cannot trace
        if "_mask_bias" not in made:
            bias = torch.zeros_like(self.mask, dtype=torch.float32).masked_fill_(~self.mask, -math.inf)
            made["_mask_bias"] = bias[:, None]
        return made["_mask_bias"]


class Step(NamedTuple, Generic[StateT]):
    """The result of one decoding step.

    logits: the logits of the next token
    state: the state after the step
    attention: α over the source; None without attention
    location: the source position from which hard attention took the context; None if the context is the expected one
    """

    logits: Float[Tensor, "N V"]
    state: StateT
    attention: Float[Tensor, "N S"] | None
    location: Int[Tensor, "N"] | None = None


class Prefilled(NamedTuple, Generic[StateT]):
    """The result of reading t known tokens: the last state, and each token's attention and location, as in `Step`."""

    state: StateT
    attention: Float[Tensor, "N t S"] | None
    location: Int[Tensor, "N t"] | None = None


@dataclass(frozen=True)
class Output:
    """The result of teacher forcing over a whole target. N is B, or `sampled`'s rows if hard attention drew locations.

    features: the vectors that `project` maps to logits
    attention: α over the source; None without attention
    state: the state after the last step
    sampled: the locations that hard attention drew in training; otherwise None
    """

    features: Float[Tensor, "N T R"]
    attention: Float[Tensor, "N T S"] | None
    state: Any
    sampled: DrawnLocations | None = None


class EncoderDecoder(nn.Module, ABC, Generic[StateT]):
    """A model p(y_t | y_<t, source). `StateT` is the type of its decoder's state.

    penalties: the terms that the loss adds to −log p
    max_positions: the greatest length of a source or target, in tokens, BOS or EOS included; None: unlimited
    reads_at_once: whether reading a whole target costs hardly more time than reading a token
    embedding_scale: the factor by which embedded words are multiplied
    source_embedding: the embedding of source words; only models that read text have it
    parts: the parts that the model is built of
    built_with: the keyword arguments that the constructor was called with
    """

    task: ClassVar[str]
    attends: bool
    penalties = Penalties()
    max_positions: int | None = None
    reads_at_once = False
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

    def augmented(self, source: Any) -> Any:
        """Augment a source at random for training; `encode` and `forward` augment only what has not been augmented."""
        return source

    @property
    def rests(self) -> bool:
        """Whether the model has an image encoder, none of whose parameters is trained now."""
        return False

    def annotated(self, source: Any) -> Any:
        """Replace pictures by the annotation vectors that the image encoder computes of them: `encode` and `forward`
        read both, so that what is needed several times is computed once.
        """
        return source

    @abstractmethod
    def encode(self, source: Any) -> tuple[Any, StateT]:
        """Read the source once; return the memory and the decoder's first state."""

    @abstractmethod
    def step(self, memory: Any, state: StateT, token: Int[Tensor, "N"]) -> Step[StateT]:
        """Feed one token (ids) to each of N = B·K states, K for each row of the memory."""

    def step_without_attention(self, memory: Any, state: StateT, token: Int[Tensor, "N"]) -> Step[StateT]:
        """Like `step`, for callers that do not use α, which a model may leave out here."""
        return self.step(memory, state, token)

    def prefill(self, memory: Any, state: StateT, tokens: Int[Tensor, "N t"]) -> Prefilled[StateT]:
        """Feed t known tokens (ids) to each of N states."""
        steps: list[Step[StateT]] = []
        for token in tokens.unbind(1):
            steps.append(self.step(memory, state, token))
            state = steps[-1].state
        attention, location = stack([step.attention for step in steps]), stack([step.location for step in steps])
        return Prefilled(state, attention, location)

    @abstractmethod
    def forward(self, source: Any, target: Int[Tensor, "B T"], state: StateT | None = None) -> Output:
        """Run teacher forcing: `target` holds ids from BOS on; the features at position t predict token t + 1."""

    def reading_order(self, length: int) -> Int[Tensor, "S"]:
        """Return the positions of a source of this length in the order in which recurrent encoders read them."""
        return torch.arange(length)

    def project(self, features: Float[Tensor, "*batch R"]) -> Float[Tensor, "*batch V"]:
        """Map features to logits."""
        return self.output(features)

    def loss(
        self,
        features: Float[Tensor, "N T R"],
        labels: Int[Tensor, "N T"],
        smoothing: float,
        weights: Float[Tensor, "N"] | None = None,
    ) -> CrossEntropy:
        """Return −log p of the labels in nats, with label smoothing. Each row's loss is multiplied by its weight."""
        overrides_project = type(self).project is not EncoderDecoder.project
        output = self.project if overrides_project else self.output  # a faster cross-entropy needs the linear map
        return self.parts.cross_entropy(features, output, labels, smoothing, weights)


def stack(steps: Sequence[Tensor | None]) -> Tensor | None:
    """Stack the tensors of t steps, each N×…, to N×t×…; return None if there are none."""
    tensors = [tensor for tensor in steps if tensor is not None]
    return torch.stack(tensors, 1) if tensors else None


def tie_matrices(model: EncoderDecoder[Any], tie: str) -> None:
    """Share the target embedding with the output matrix (`output`), and with the source embedding as well (`all`)."""
    choices, suffix = ["none", "output", "all"], ""
    if model.task in MODEL_WITHOUT_SOURCE:
        choices, suffix = ["none", "output"], f" of {MODEL_WITHOUT_SOURCE[model.task]}"
    if tie not in choices:
        raise InputError(f"Unknown model.tie '{tie}'{suffix}; choose from {', '.join(choices)}.")
    if tie == "none":
        return
    target, size = model.target_embedding, model.output.in_features
    if model.output.weight.shape != target.weight.shape:
        raise InputError(
            f"model.tie={tie} needs the output features to be the size of the embeddings, but they are {size} and "
            f"{target.embedding_dim}: make the two sizes equal or use model.tie=none."
        )
    model.output.weight = target.weight
    if tie == "all":
        # tasks/translation.py refuses any two vocabularies, even of one size, but models are also built without a task.
        source = model.source_embedding
        if source.weight.shape != target.weight.shape:
            raise InputError(
                f"model.tie=all needs one vocabulary for both sides, but source and target have "
                f"{source.num_embeddings:,} and {target.num_embeddings:,} entries: "
                "use data.vocabulary.joint=true or model.tie=output."
            )
        source.weight = target.weight
