"""A recurrent network with tied weights, the same at every time step, beside one with weights of its own at each step.

    tied      h_t = tanh(W x_t + U h_{t-1} + b)
    untied    h_t = tanh(W_t x_t + U_t h_{t-1} + b_t)

Somebody walks along a corridor of four rooms, from the second room, and a wall stops a step too far: the source is a
sequence of "left", "right" and "stay", and the target is the room at its end. Both networks can learn this for the
lengths that they see. The untied one has as many matrices as time steps, learns each of them from the sequences that
are long enough, and knows nothing about the steps that no training sequence reaches.

The classes are used by their dotted names, from the folder of this file or with the folder on PYTHONPATH:

    seqtool train run=untied data=untied.Corridor data.vocabulary.kind=word model=untied.Steps model.tied=false
    seqtool eval checkpoint=runs/untied trust=untied split=longer

Source: Goodfellow, Bengio and Courville (2016), "Deep learning", sections 10.1 and 10.2, on unfolding and on sharing
parameters across time steps.

    python examples/untied.py
"""

import argparse
import contextlib
import random
import tempfile
from collections.abc import Iterator, Sequence
from hashlib import md5
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import seqtool
from seqtool.data.corpora.corpus import Digest, TextCorpus
from seqtool.models.cells import Cell, Layers, Recurrence
from seqtool.models.contract import Memory, Size
from seqtool.models.inputs import Source
from seqtool.models.parts import PLAIN, Parts
from seqtool.models.recurrent_decoder import RecurrentDecoder, StepOutput

ROOMS = ("first", "second", "third", "fourth")
MOVES = {"left": -1, "stay": 0, "right": 1}
LENGTHS = {"train": (1, 8), "valid": (1, 8), "test": (1, 8), "longer": (9, 12)}  # moves, by split


def room(moves: Sequence[str]) -> str:
    """The room at the end of a walk."""
    place = 1
    for move in moves:
        place = min(max(place + MOVES[move], 0), len(ROOMS) - 1)
    return ROOMS[place]


class Corridor(TextCorpus):
    """Walks and the rooms where they end. No walk of another split is in `train`."""

    name = "corridor"
    source_language = "moves"
    target_language = "room"

    def __init__(self, *, train: int = 6000, test: int = 300) -> None:
        self._sizes = {"train": train, "valid": test, "test": test, "longer": test}

    def splits(self) -> tuple[str, ...]:
        return tuple(self._sizes)

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        draw, number = random.Random(split), 0
        while number < self._sizes[split]:
            moves = draw.choices(list(MOVES), k=draw.randint(*LENGTHS[split]))
            # one walk in eight is for validation and testing, whatever split draws it
            if (md5(" ".join(moves).encode()).digest()[0] < 32) != (split == "train"):
                number += 1
                yield " ".join(moves), room(moves)

    def fingerprint(self, digest: Digest) -> dict[str, Any]:
        return {"sizes": self._sizes, "version": 2}


class Steps(RecurrentDecoder[Layers]):
    """An encoder with one recurrence for all time steps, or with one for each; its last state is the decoder's first.

    longest: the number of time steps that the untied encoder has weights for, the end of the source included
    """

    task = "translation"
    attends = False

    def __init__(
        self,
        *,
        source_vocabulary: int,
        target_vocabulary: int,
        size: Size = 64,
        tied: bool = True,
        longest: Size = 13,
        cell: str | type[Cell] = "rnn",
        parts: Parts = PLAIN,
    ) -> None:
        super().__init__(parts)
        self.max_positions = None if tied else longest
        self.source_embedding = nn.Embedding(source_vocabulary, size)
        self.target_embedding = nn.Embedding(target_vocabulary, size)
        self.dropout = parts.dropout(0.0)
        self.encoder = nn.ModuleList(Recurrence(cell, size, size, parts) for _ in range(1 if tied else longest))
        self.decoder = Recurrence(cell, size, size, parts)
        self.output = parts.linear(size, target_vocabulary)

    def encode(self, source: Source) -> tuple[Memory, Layers]:
        x = self.source_embedding(source.tokens)
        state = self.decoder.cell.start(x)
        for t in range(x.shape[1]):
            step = self.encoder[t % len(self.encoder)]  # the only one if the weights are tied
            is_real = source.mask[:, t, None]
            state = tuple(map(torch.where, (is_real,) * len(state), step.step(x[:, t], state), state))
        nothing = x[:, :0]
        return Memory(nothing, nothing, source.mask[:, :0]), Layers((state,))

    def decoder_step(self, memory: Memory, state: Layers, projected: Tensor) -> StepOutput[Layers]:
        new = self.decoder.step(projected, state.layers[0])
        return StepOutput(Layers((new,)), (new[0],))


class Row(NamedTuple):
    """A model's number of encoder parameters, and its loss in nats per walk and accuracy by split."""

    name: str
    parameters: int
    losses: dict[str, float]
    accuracies: dict[str, float]


def train(name: str, *, tied: bool, steps: int) -> Row:
    """Train a model, and score it on lengths that it has seen and on longer walks."""
    data = "data=untied.Corridor data.vocabulary.kind=word data.processes=1 device=cpu threads=1"
    training = f"train.batch_size=64 train.minutes=null optim.lr=0.006 train.steps={steps} validation.max_length=2"
    settings = [*data.split(), *training.split(), "model=untied.Steps", f"model.tied={str(tied).lower()}"]
    run = seqtool.train(*settings, run=name)
    translator: Any = run.load(trust="untied", device="cpu", beam=1)
    losses, accuracies = {}, {}
    for split in ("test", "longer"):
        sources, targets = zip(*Corridor().pairs(split), strict=True)
        losses[split] = -sum(translator.score(sources, targets)) / len(sources)
        answers = translator.translate(sources)
        accuracies[split] = sum(map(str.__eq__, answers, targets)) / len(targets)
    parameters = sum(parameter.numel() for parameter in translator.plain_model.encoder.parameters())
    return Row(name, parameters, losses, accuracies)


def compare(steps: int) -> list[Row]:
    """Train both models."""
    return [train("tied", tied=True, steps=steps), train("untied", tied=False, steps=steps)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train a network with tied and one with untied weights.")
    parser.add_argument("--steps", type=int, default=200, help="updates of each model (default: %(default)s)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        rows = compare(options.steps)
    print("\n        encoder        walks of 1 to 8 moves     walks of 9 to 12 moves, never seen")
    print("        parameters     nats   accuracy           nats   accuracy")
    for row in rows:
        seen, longer = (f"{row.losses[split]:9.3f} {row.accuracies[split]:10.1%}" for split in ("test", "longer"))
        print(f"{row.name:7} {row.parameters:10,}{seen}      {longer}")


if __name__ == "__main__":
    main()
