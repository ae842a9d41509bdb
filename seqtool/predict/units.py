"""Units of recurrent decoders that tell a property of the text, such as being inside quotation marks (Karpathy, Johnson
and Li 2016).

    generator = seqtool.load("runs/code")
    print(generator.find_unit(Path("long.py").read_text(), "string"))

A unit is a number in a tensor of a cell's state: decoder.1.c[37] is element 37 of c in the second layer. The unit whose
AUC is furthest from 1/2 on the first half of the text is tested on the second half. The AUC (area under the ROC curve)
is the probability that the unit is higher at a random token with the property than at one without it. Numbers, such as
the column, are turned into the property of being above their median in the first half.

A text is read as parallel streams, because steps of long sequences are slow. Each stream starts like a text of its own,
so its first `WARM_UP` tokens, which know too little of the text before them, are left out of all figures.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from seqtool.data.batches import make_target
from seqtool.data.text.properties import Rule, values_of
from seqtool.errors import InputError
from seqtool.models.cells import Cell, State, cells_of
from seqtool.models.tree import select
from seqtool.predict.predictor import EncodedText

STREAMS, STREAM_TOKENS = 128, 1000  # the greatest number of streams, and the least length of each if there are several
WARM_UP = 100  # tokens at the beginning of each stream that do not count
LEAST_TOKENS = 1000  # of a text
SHIFTS = 199  # so the least p-value is 1/200
UNITS_AT_ONCE = 64  # units that are ranked together; this bounds the memory for their ranks
ROWS_AT_ONCE = 512  # rows that are read together, each with a unit that is held
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
            lines += [
                f"Held at its mean, it raises the loss by {held.rise:.3f} nats at the {held.tokens:,} tokens that the "
                f"property decides and by {held.elsewhere:.3f} elsewhere, a greater difference than of "
                f"{held.hurt_less:.0%} of {held.units:,} random units."
            ]
        return "\n".join(lines)


class Reading(NamedTuple):
    """A model and what it is about to read: N streams of a text, or N sentences."""

    model: Any  # a model of plain parts, in evaluation mode
    source: Any  # the sentences that are translated, N×S; None for a language model
    tokens: Tensor  # N×(T+1) ids, each of which is predicted from those before it in its row
    numbers: Tensor  # N×(T+1), each token's number in the text; -1 (left out) for BOS, EOS, padding, warm-up
    pieces: Sequence[Sequence[str]]  # the pieces of the text, or of each sentence

    @classmethod
    def of(cls, model: Any, source: Any, texts: Sequence[EncodedText]) -> "Reading":
        """Put each sentence, the translation of a row of `source`, into a row of its own. For a language model, whose
        source is None, cut the only text into streams of equal length; the few tokens that remain are left out.
        """
        rows, warm_up, device = [text.ids for text in texts], 0, model.target_embedding.weight.device
        if source is None:
            (ids,), warm_up = rows, WARM_UP
            length = len(ids) // min(STREAMS, len(ids) // STREAM_TOKENS or 1) or 1
            rows = [ids[start : start + length] for start in range(0, len(ids) - length + 1, length)]
        tokens, lengths = make_target(rows), torch.tensor([len(row) for row in rows])
        steps = torch.arange(tokens.shape[1]) - 1  # BOS is the first token
        is_counted = (steps >= warm_up) & (steps < lengths[:, None])
        numbers = torch.where(is_counted, (lengths.cumsum(0) - lengths)[:, None] + steps, -1)
        source = None if source is None else source.to(device)
        return cls(model, source, tokens.to(device), numbers.to(device), [text.pieces for text in texts])

    def batches(self) -> Iterator[tuple["Reading", Any, Any]]:
        """Yield at most `ROWS_AT_ONCE` rows at a time, the model's memory of their sources and its first state."""
        for rows in torch.split(torch.arange(len(self.tokens), device=self.tokens.device), ROWS_AT_ONCE):
            batch = Reading(*select(self, rows))
            memory, state = self.model.encode(batch.source)
            yield batch, memory, select(state, torch.zeros_like(rows)) if self.source is None else state

    def read(self, memory: Any, state: Any, tokens: Tensor) -> Iterator[Any]:
        """Run the model on rows of tokens, and yield what it returns for each token but the last."""
        for token in tokens.T[:-1]:
            step = self.model.step(memory, state, token)
            state = step.state
            yield step

    def states(self) -> dict[str, Tensor]:
        """The state of each cell of the decoder after every token that counts, tokens × units, by names such as
        decoder.1.c.
        """
        latest: dict[str, Tensor] = {}
        parts: list[dict[str, Tensor]] = []

        def keep(name: str, cell: Cell, _: Any, state: State) -> None:
            latest.update((f"{name}.{letter}", tensor) for letter, tensor in zip(cell.letters, state, strict=False))

        for batch, memory, state in self.batches():
            with ExitStack() as hooks:
                for name, cell in cells_of(self.model).items():
                    hooks.enter_context(cell.register_forward_hook(partial(keep, name)))
                steps = [dict(latest) for _ in self.read(memory, state, batch.tokens)]
            tensors = {name: torch.stack([step.pop(name) for step in steps], 1) for name in latest}
            counts = batch.numbers[:, :-1] >= 0
            parts.append({name: tensor[counts].float().cpu() for name, tensor in tensors.items()})
        return {name: torch.cat([part.pop(name) for part in parts]) for name in latest}

    def nats(self, held: Sequence[tuple[str, int, float]] = ()) -> Tensor:
        """−log p of every token but the first of each row, K×N×T, while one of K units, (cell, number of an element of
        its h, mean), is held at its mean; 1×N×T if none is held. A batch is read once for each unit, all together.
        """
        results = []

        def hold(places: tuple[Tensor, Tensor], means: Tensor, _: Cell, __: Any, state: State) -> State:
            return (state[0].index_put(places, means.to(state[0])), *state[1:])

        for batch, *encoded in self.batches():
            rows = torch.arange(len(batch.tokens), device=self.tokens.device)
            copies = select((*encoded, batch.tokens), rows.repeat(len(held) or 1))
            with ExitStack() as hooks:
                for cell in {cell for cell, _, _ in held}:
                    own = [(k, unit, mean) for k, (name, unit, mean) in enumerate(held) if name == cell]
                    copy, unit, mean = (torch.tensor(x, device=rows.device)[:, None] for x in zip(*own, strict=True))
                    hook = partial(hold, (copy * len(rows) + rows, unit), mean.expand(-1, len(rows)))
                    hooks.enter_context(cells_of(self.model)[cell].register_forward_hook(hook))
                steps = zip(self.read(*copies), copies[-1].T[1:], strict=True)
                nats = [F.cross_entropy(step.logits.float(), token, reduction="none") for step, token in steps]
            results.append(torch.stack(nats, 1).double().cpu().view(-1, len(rows), len(nats)))
        return torch.cat(results, 1)


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
    is_counted = reading.numbers >= 0
    numbers = reading.numbers[is_counted].cpu()
    truths, threshold = to_truths(values_of(rule, reading.pieces), numbers.chunk(2)[0].numpy())
    for half, part in zip(("first", "second"), truths[numbers].chunk(2), strict=True):
        if part.all() or not part.any():
            value = str(bool(part.all())).lower()
            raise InputError(f"The property '{name}' is {value} throughout the {half} half: give another text.")
    if not (states := reading.states()):
        raise InputError("The decoder has no recurrent cells, so there is no unit to find.")
    number, best = search(list(states.values()), truths[numbers])
    units = [(tensor, i) for tensor, columns in states.items() for i in range(columns.shape[1])]
    tensor, i = units[number]
    decided = truths != truths.roll(1) if decides is None else torch.tensor(values_of(decides, reading.pieces)).bool()
    cell = tensor.rpartition(".")[0]
    ablation = ablate(reading, states, (cell, i), decided, random_units) if random_units else None
    return Unit(
        property=name,
        name=f"{tensor}[{i}]",
        tokens=len(numbers),
        share=float(truths[numbers].double().mean()),
        threshold=threshold,
        units=len(units),
        symbol_auc=symbol_auc(reading.tokens[is_counted].cpu(), truths[numbers]),
        ablation=ablation,
        **best,
    )


def to_truths(values: NDArray[Any], first: NDArray[Any]) -> tuple[Tensor, float | None]:
    """Truth values of a property, and the number that its values must exceed: the median of those with the indices
    `first`, or the second greatest of these if their median is the greatest. It is None for truth values.
    """
    if values.dtype == np.bool_:
        return torch.from_numpy(values), None
    threshold = float(min(np.median(values[first]), np.unique(values[first])[-2:][0]))
    return torch.from_numpy(values > threshold), threshold


def midranks(signals: Tensor) -> Tensor:
    """The rank of each of T numbers, from 1 on, in each of U rows; equal numbers share the mean of their ranks."""
    ordered, order = signals.sort(-1)
    first, after = (torch.searchsorted(ordered, ordered, right=right) for right in (False, True))
    return torch.empty(signals.shape, dtype=torch.float64).scatter_(-1, order, (first + after + 1).double() / 2)


def auc(ranks: Tensor, truths: Tensor) -> Tensor:
    """The AUC of each of U signals, from its `midranks`, U×T, for each of S properties, S×T truth values: U×S."""
    true = truths.sum(-1)
    return (ranks @ truths.T.double() - true * (true + 1) / 2) / (true * (truths.shape[-1] - true))


def search(signals: Sequence[Tensor], truths: Tensor) -> tuple[int, dict[str, Any]]:
    """Find the signal that tells a property best on the first half of T tokens, and test it on the second. Return its
    number, and figures by their names in `Unit`.

    signals: tensors T×U, whose columns are numbered one after another
    """
    first, second = truths.chunk(2)
    shifted = torch.stack([second.roll(len(second) * k // (SHIFTS + 1)) for k in range(SHIFTS + 1)])
    on_first, on_second = [], []
    for rows in (rows for columns in signals for rows in torch.split(columns.T, UNITS_AT_ONCE)):
        ranks_of_first, ranks_of_second = map(midranks, rows.contiguous().chunk(2, -1))
        on_first.append(auc(ranks_of_first, first[None])[:, 0])
        on_second.append(auc(ranks_of_second, shifted))
    first_aucs, aucs = torch.cat(on_first) - 0.5, torch.cat(on_second) - 0.5  # U, and U×(1 + SHIFTS)
    number = int(first_aucs.abs().argmax())
    sign = first_aucs[number].sign()
    deviations = aucs / aucs[:, 1:].std(1, keepdim=True).clamp(min=1e-9)
    reached = deviations[:, 1:].abs().amax(0) >= sign * deviations[number, 0]
    p = (1 + int(reached.sum())) / (1 + SHIFTS)
    turned = {"first_auc": first_aucs[number], "auc": aucs[number, 0]}
    return number, {"high": bool(sign > 0), "p": p} | {name: 0.5 + float(sign * x) for name, x in turned.items()}


def symbol_auc(symbols: Tensor, truths: Tensor) -> float:
    """The AUC on the second half of the share of tokens with the property in the first half, by symbol. Symbols that do
    not occur there have the mean share.
    """
    (first, second), (first_truths, second_truths) = symbols.chunk(2), truths.double().chunk(2)
    counts, true = (first.bincount(weights, int(symbols.max()) + 1) for weights in (None, first_truths))
    shares = torch.where(counts > 0, true / counts, first_truths.mean())
    return float(auc(midranks(shares[second][None]), second_truths[None]))


def ablate(
    reading: Reading, states: Mapping[str, Tensor], unit: tuple[str, int], decided: Tensor, random_units: int
) -> Ablation:
    """Hold a unit at its mean, and then random ones, while the second half of the rows is read again, and compare the
    losses.

    unit: a cell and the number of a unit
    decided: whether the property decides each token of the text
    """
    h = {cell: states.get(f"{cell}.{module.letters[0]}") for cell, module in cells_of(reading.model).items()}
    means = {(cell, i): mean for cell, x in h.items() if x is not None for i, mean in enumerate(x.mean(0).tolist())}
    rows = torch.arange(len(reading.tokens) // 2, len(reading.tokens), device=reading.tokens.device)
    last = WARM_UP + ABLATION_TOKENS // len(rows) + 1
    cut = reading._replace(tokens=reading.tokens[:, :last], numbers=reading.numbers[:, :last])
    part = Reading(*select(cut, rows))
    counts, numbers = part.numbers[:, :-1].cpu() >= 0, part.numbers[:, 1:].cpu()
    at, elsewhere = (counts & (numbers >= 0) & (decided[numbers] == truth) for truth in (True, False))
    if not at.any() or not elsewhere.any():
        share = "every" if at.any() else "no"
        raise InputError(f"The property decides {share} token in the second half: give another text or random_units=0.")
    nats, others = part.nats()[0], [other for other in means if other != unit]
    order = torch.randperm(len(others), generator=torch.Generator().manual_seed(0))[:random_units].tolist()
    held = [(*other, means[other]) for other in (unit, *(others[k] for k in order))]
    at_once = max(1, ROWS_AT_ONCE // len(rows))
    rises = [rise - nats for k in range(0, len(held), at_once) for rise in part.nats(held[k : k + at_once])]
    (rise, rise_elsewhere), *random = [(float(rise[at].mean()), float(rise[elsewhere].mean())) for rise in rises]
    hurt_less = sum(a - b < rise - rise_elsewhere for a, b in random) / max(1, len(order))
    return Ablation(int(at.sum()), rise, rise_elsewhere, len(order), hurt_less)
