"""Units of recurrent decoders that tell a property of the text, such as being inside quotation marks (Karpathy, Johnson
and Li 2016).

    generator = seqtool.load("runs/code")
    print(generator.find_unit(Path("long.py").read_text(), "string"))

A unit is a number in a tensor of a cell's state: decoder.1.c[37] is element 37 of c in the second layer. The unit whose
AUC is furthest from 1/2 on the first half of the text is tested on the second half. The AUC (area under the ROC curve)
is the probability that the unit is higher at a random token with the property than at one without it. Numbers, such as
the column, are turned into the property of being above their median in the first half.

A text is read as parallel streams, because steps of long sequences are slow. Each stream starts from the first state of
the model, which knows nothing of the text before it, so its first `WARM_UP` tokens are left out of all figures.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from seqtool.data.batches import make_target
from seqtool.data.text.properties import Rule, values_of
from seqtool.decoding.tree import select
from seqtool.errors import InputError
from seqtool.models.cells import Cell, State, cells_of
from seqtool.models.tokens import BOS
from seqtool.predict.predictor import EncodedText

STREAMS, STREAM_TOKENS = 128, 1000  # the greatest number of streams, and the least length of each if there are several
WARM_UP = 100  # tokens at the beginning of each stream that do not count
LEAST_TOKENS = 1000  # of a text
SHIFTS = 199  # so the least p-value is 1/200
UNITS_AT_ONCE = 64  # units that are ranked together; this bounds the memory for their ranks
ABLATION_TOKENS = 25_000  # about as many tokens of the second half are read again for each unit that is held


@dataclass(frozen=True)
class Ablation:
    """What happens to the loss, in nats per token, when the h of a unit is held at its mean at every step.

    tokens: the number of tokens that the property decides: those at which it changes or as requested
    rise: how much the loss rises at these tokens
    elsewhere: how much it rises at all others
    units: the number of random units that were held as well, one at a time
    hurt_less: the share of these for which rise − elsewhere is smaller
    """

    tokens: int
    rise: float
    elsewhere: float
    units: int
    hurt_less: float


@dataclass(frozen=True)
class Unit:
    """The unit that tells a property best.

    name: such as decoder.1.c[37]
    tokens: the number of tokens that were compared, in both halves of the text
    share: the share of these that have the property
    threshold: the number above which the property was taken to be true (`to_truths`); None if it has truth values
    high: whether the unit is higher where the property is true; otherwise it is lower
    units: the number of units among which it was chosen
    first_auc: its AUC on the first half, on which it was chosen, turned so that it is over 1/2
    auc: its AUC on the second half, turned in the same way
    p: the share of shifts of the property around the second half under which one of the units, whichever it is, stands
        out as far from 1/2 there as this one. Each unit's distance is divided by its standard deviation over the shifts
        (maxT of Westfall and Young 1993). Shifts leave alone how slowly units and property change, and the maximum
        corrects for the number of units, which is more than is needed for a unit chosen on other tokens
    symbol_auc: the AUC on the second half of the best rule that knows only the last token: the share of tokens with the
        property in the first half, by token
    ablation: None if it was not requested
    """

    property: str
    name: str
    tokens: int
    share: float
    threshold: float | None
    high: bool
    units: int
    first_auc: float
    auc: float
    p: float
    symbol_auc: float
    ablation: Ablation | None = None

    def __str__(self) -> str:
        holds = self.property if self.threshold is None else f"{self.property} (over {self.threshold:g})"
        lines = [
            f"{self.name} is {'high' if self.high else 'low'} where {holds} is true: at {self.share:.1%} of tokens.",
            f"AUC {self.auc:.3f} on the second half of the text (p = {self.p:.3f}, corrected for the number of units); "
            f"{self.first_auc:.3f} on the first, where it was the best of {self.units:,} units.",
            f"The last token alone gives {self.symbol_auc:.3f}.",
        ]
        if (held := self.ablation) is not None:
            lines.append(
                f"Held at its mean, it raises the loss by {held.rise:.3f} nats at the {held.tokens:,} tokens that the "
                f"property decides and by {held.elsewhere:.3f} elsewhere, a greater difference than of "
                f"{held.hurt_less:.0%} of {held.units:,} random units."
            )
        return "\n".join(lines)

    def record(self) -> dict[str, Any]:
        """The record for JSON."""
        return asdict(self)


class Reading(NamedTuple):
    """A model and what it is about to read: N streams of a text, or N sentences.

    model: a model of plain parts, in evaluation mode
    memory, state: its memory of the sources and its first state
    tokens: N×(T+1) ids, each of which is predicted from those before it in its row
    numbers: N×(T+1), the number of each token in the text; -1 for BOS, EOS, padding and warm-up, which are left out
    pieces: the pieces of the text, or of each sentence
    """

    model: Any
    memory: Any
    state: Any
    tokens: Tensor
    numbers: Tensor
    pieces: Sequence[Sequence[str]]

    @classmethod
    def of_text(cls, model: Any, text: EncodedText) -> "Reading":
        """Cut a text into streams of equal length, for a language model. The few tokens that remain are left out."""
        count = min(STREAMS, max(1, len(text.ids) // STREAM_TOKENS))
        steps = torch.arange(len(text.ids) // count + 1)
        positions = torch.arange(count)[:, None] * steps[-1] + steps
        tokens = torch.tensor([BOS, *text.ids])[positions].to(model.target_embedding.weight.device)
        numbers = torch.where(steps < WARM_UP, -1, positions - 1)  # BOS precedes token 0
        memory, state = model.encode(None)
        return cls(model, memory, select(state, tokens.new_zeros(count)), tokens, numbers, [text.pieces])

    @classmethod
    def of_sentences(cls, model: Any, source: Any, sentences: Sequence[EncodedText]) -> "Reading":
        """Put each sentence, the translation of a row of `source`, into a row of its own."""
        device = model.target_embedding.weight.device
        tokens, lengths = make_target([text.ids for text in sentences]), torch.tensor([len(t.ids) for t in sentences])
        steps = torch.arange(tokens.shape[1]) - 1  # BOS is the first token
        is_piece = (steps >= 0) & (steps < lengths[:, None])
        numbers = torch.where(is_piece, (lengths.cumsum(0) - lengths)[:, None] + steps, -1)
        pieces = [text.pieces for text in sentences]
        memory, state = model.encode(source.to(device))
        return cls(model, memory, state, tokens.to(device), numbers, pieces)

    def second_half(self, steps: int) -> "Reading":
        """The first steps of the second half of the rows, or of the only row."""
        rows = torch.arange(len(self.tokens) // 2, len(self.tokens))
        memory, state, tokens = select((self.memory, self.state, self.tokens), rows.to(self.tokens.device))
        numbers = self.numbers[rows, : steps + 1]
        return Reading(self.model, memory, state, tokens[:, : steps + 1], numbers, self.pieces)

    @property
    def counts(self) -> Tensor:
        """Whether each token that is read counts, N×T; the last token of a row is not read."""
        return self.numbers[:, :-1] >= 0

    def states(self) -> dict[str, Tensor]:
        """The state of each cell of the decoder after every token that counts, tokens × units, by names such as
        decoder.1.c.
        """
        latest: dict[str, Tensor] = {}

        def keep(name: str, cell: Cell, _: Any, state: State) -> None:
            latest.update((f"{name}.{letter}", tensor) for letter, tensor in zip(cell.letters, state, strict=False))

        steps, state = defaultdict(list), self.state
        with ExitStack() as hooks:
            for name, cell in cells_of(self.model).items():
                hooks.enter_context(cell.register_forward_hook(partial(keep, name)))
            for token in self.tokens.T[:-1]:
                state = self.model.step(self.memory, state, token).state
                for name, tensor in latest.items():
                    steps[name].append(tensor)
        counts = self.counts.to(self.tokens.device)
        return {name: torch.stack(steps.pop(name), 1)[counts].float().cpu() for name in list(steps)}

    def nats(self) -> Tensor:
        """−log p of every token but the first of each row, N×T."""
        nats, state = [], self.state
        for token, next_token in pairwise(self.tokens.T):
            step = self.model.step(self.memory, state, token)
            nats.append(F.cross_entropy(step.logits.float(), next_token, reduction="none"))
            state = step.state
        return torch.stack(nats, 1).double().cpu()

    def nats_without(self, cell: str, unit: int, mean: float) -> Tensor:
        """The same while a unit of a cell's h is held at its mean."""

        def hold(_: Cell, __: Any, state: State) -> State:
            h = state[0].clone()
            h[:, unit] = mean
            return (h, *state[1:])

        with cells_of(self.model)[cell].register_forward_hook(hold):
            return self.nats()


def find_unit(reading: Reading, rule: str | Rule, *, decides: Rule | None = None, random_units: int = 100) -> Unit:
    """Find the unit of a decoder that tells a property best. To be called without gradients. All states are kept in
    memory: 4 bytes for each token and unit, so 1.6 GB for 200,000 tokens and 2,048 units.

    rule: a property's name, or a rule as `data.text.properties` describes it
    decides: a rule that is true at the tokens that the property decides; None: those at which the property changes
    random_units: the number of random units for the ablation; 0 leaves the ablation out

    Raises InputError if the text is too short, if the property is the same throughout one half of it or decides no
    token, and for a model without recurrent cells.
    """
    if (length := sum(map(len, reading.pieces))) < LEAST_TOKENS:
        raise InputError(f"The text has {length:,} tokens, too few to find a unit: give at least {LEAST_TOKENS:,}.")
    name = rule if isinstance(rule, str) else getattr(rule, "__name__", "property")
    numbers = reading.numbers[:, :-1][reading.counts]
    truths, threshold = to_truths(values_of(rule, reading.pieces), halves(numbers)[0].numpy())
    for half, part in zip(("first", "second"), halves(truths[numbers]), strict=True):
        if part.all() or not part.any():
            raise InputError(
                f"The property '{name}' is {str(bool(part.all())).lower()} throughout the {half} half of the text, so "
                "no unit can tell it: give a text in which it changes."
            )
    states, cells = reading.states(), cells_of(reading.model)
    if not states:
        raise InputError("The decoder has no recurrent cells, so there is no unit to find.")
    best = search(list(states.values()), truths[numbers])
    units = [(tensor, i) for tensor, columns in states.items() for i in range(columns.shape[1])]
    tensor, i = units[best.number]
    ablation = None
    if random_units:
        if decides is None:
            decided = truths != truths.roll(1)
        else:
            decided = torch.from_numpy(values_of(decides, reading.pieces)).bool()
        h = {cell: states.get(f"{cell}.{module.letters[0]}") for cell, module in cells.items()}
        means = {cell: columns.mean(0).tolist() for cell, columns in h.items() if columns is not None}
        ablation = ablate(reading, means, (tensor.rpartition(".")[0], i), decided, random_units)
    return Unit(
        property=name,
        name=f"{tensor}[{i}]",
        tokens=len(numbers),
        share=float(truths[numbers].double().mean()),
        threshold=threshold,
        high=best.high,
        units=len(units),
        first_auc=best.first_auc,
        auc=best.auc,
        p=best.p,
        symbol_auc=symbol_auc(reading.tokens.cpu()[:, :-1][reading.counts], truths[numbers]),
        ablation=ablation,
    )


def to_truths(values: NDArray[Any], first: NDArray[Any]) -> tuple[Tensor, float | None]:
    """Truth values of a property, and the number that its values must exceed: the median of those with the indices
    `first`, or the second greatest of these if their median is the greatest. It is None for truth values.
    """
    if values.dtype == np.bool_:
        return torch.from_numpy(values), None
    threshold = float(min(np.median(values[first]), np.unique(values[first])[-2:][0]))
    return torch.from_numpy(values > threshold), threshold


def halves(values: Tensor) -> tuple[Tensor, Tensor]:
    """The two halves of a tensor along its last axis."""
    middle = values.shape[-1] // 2
    return values[..., :middle], values[..., middle:]


def midranks(signals: Tensor) -> Tensor:
    """The rank of each of T numbers, from 1 on, in each of U rows; equal numbers share the mean of their ranks."""
    ordered, order = signals.sort(-1)
    first, after = (torch.searchsorted(ordered, ordered, right=right) for right in (False, True))
    return torch.empty(signals.shape, dtype=torch.float64).scatter_(-1, order, (first + after + 1).double() / 2)


def auc(ranks: Tensor, truths: Tensor) -> Tensor:
    """The AUC of each of U signals, from its `midranks`, U×T, for each of S properties, S×T truth values: U×S."""
    true = truths.sum(-1)
    return (ranks @ truths.T.double() - true * (true + 1) / 2) / (true * (truths.shape[-1] - true))


class Best(NamedTuple):
    """The number of a signal, and figures as in `Unit`."""

    number: int
    high: bool
    first_auc: float
    auc: float
    p: float


def search(signals: Sequence[Tensor], truths: Tensor) -> Best:
    """Find the signal that tells a property best on the first half of T tokens, and test it on the second.

    signals: tensors T×U, whose columns are numbered one after another
    """
    first, second = halves(truths)
    shifted = torch.stack([second.roll(len(second) * k // (SHIFTS + 1)) for k in range(SHIFTS + 1)])
    on_first, on_second = [], []
    for columns in signals:
        for some in torch.split(columns, UNITS_AT_ONCE, 1):
            ranks_of_first, ranks_of_second = map(midranks, halves(some.T.contiguous()))
            on_first.append(auc(ranks_of_first, first[None])[:, 0])
            on_second.append(auc(ranks_of_second, shifted))
    first_aucs, aucs = torch.cat(on_first) - 0.5, torch.cat(on_second) - 0.5  # U, and U×(1 + SHIFTS)
    number = int(first_aucs.abs().argmax())
    sign = first_aucs[number].sign()
    deviations = aucs / aucs[:, 1:].std(1, keepdim=True).clamp(min=1e-9)
    reached = deviations[:, 1:].abs().amax(0) >= sign * deviations[number, 0]
    p = (1 + int(reached.sum())) / (1 + SHIFTS)
    return Best(number, bool(sign > 0), 0.5 + float(first_aucs[number].abs()), 0.5 + float(sign * aucs[number, 0]), p)


def symbol_auc(symbols: Tensor, truths: Tensor) -> float:
    """The AUC on the second half of the share of tokens with the property in the first half, by symbol. Symbols that do
    not occur there have the mean share.
    """
    (first, second), (first_truths, second_truths) = halves(symbols), halves(truths.double())
    counts, true = (first.bincount(weights, int(symbols.max()) + 1) for weights in (None, first_truths))
    shares = torch.where(counts > 0, true / counts, first_truths.mean())
    return float(auc(midranks(shares[second][None]), second_truths[None]))


def ablate(
    reading: Reading, means: Mapping[str, Sequence[float]], unit: tuple[str, int], decided: Tensor, random_units: int
) -> Ablation:
    """Hold a unit at its mean, and then random ones, while the second half of the rows is read again, and compare the
    losses.

    means: the mean of each unit of a cell's h, by cell
    unit: a cell and the number of a unit
    decided: whether the property decides each token of the text
    """
    rows = (len(reading.tokens) + 1) // 2
    part = reading.second_half(min(reading.counts.shape[1], WARM_UP + ABLATION_TOKENS // rows))
    at = part.counts & (part.numbers[:, 1:] >= 0) & decided[part.numbers[:, 1:]]
    elsewhere = part.counts & ~at
    if not at.any() or not elsewhere.any():
        raise InputError(
            f"The property decides {'every' if at.any() else 'no'} token of those that are read again without the "
            "unit, so losses cannot be compared: give a longer text, or leave the ablation out with random_units=0."
        )
    nats = part.nats()

    def rises(cell: str, i: int) -> tuple[float, float]:
        rise = part.nats_without(cell, i, means[cell][i]) - nats
        return float(rise[at].mean()), float(rise[elsewhere].mean())

    others = [(cell, i) for cell, values in means.items() for i in range(len(values)) if (cell, i) != unit]
    order = torch.randperm(len(others), generator=torch.Generator().manual_seed(0))[:random_units].tolist()
    rise, rise_elsewhere = rises(*unit)
    differences = [rise_at - other for rise_at, other in (rises(*others[i]) for i in order)]
    hurt_less = sum(difference < rise - rise_elsewhere for difference in differences) / max(1, len(order))
    return Ablation(int(at.sum()), rise, rise_elsewhere, len(order), hurt_less)
