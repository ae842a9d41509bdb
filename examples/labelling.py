"""Labelling of texts (many to one): a task of one's own, which seqtool trains, resumes and evaluates.

Who acts? In "the dog chases the cat", the dog; in "the dog is chased by the cat" and "the dog that the cat chases
sleeps", the cat. The texts contain the same words for either answer, so a bag of words can only guess one of the two,
but a recurrent network can tell: a GRU reads the words x_1 … x_T, and

    P(y | x) = softmax(W h_T + b)

is the probability of each label. To the toolkit, a label is a target of one word: after it, the probability of </s> is
1. So beam search lists the likeliest labels, and `translate`, `eval` and `score` work as for translations.

    python examples/labelling.py

trains into runs/labelling, where the run is resumed after half of the epochs, and prints the accuracy on held-out
sentences. Commands use the parts by their dotted names, in the folder examples/ or wherever Python finds this file:

    seqtool train data=labelling.Actors data.vocabulary.kind=word model=labelling.Labeller run=labelling
    seqtool translate checkpoint=runs/labelling trust=labelling
"""

import contextlib
import io
import json
import random
import shlex
import sys
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from seqtool.cli import main as seqtool
from seqtool.data.corpora.corpus import Digest, TextCorpus
from seqtool.metrics.scores import Metric, Statistics
from seqtool.models.cells import Cell, Encoder, Encoding
from seqtool.models.contract import DropoutRate, EncoderDecoder, Memory, Output, Size, Step
from seqtool.models.inputs import Source
from seqtool.models.parts import PLAIN, Parts
from seqtool.models.tokens import EOS
from seqtool.runtime.files import config_directory
from seqtool.tasks.translation import Translation

TRAINING = "train.minutes=null train.validate_every=200 device=cpu threads=1 data.processes=1"

ACTORS = ("dog", "cat", "horse", "bird", "fox", "bear")
VERBS = (("chases", "chased"), ("sees", "seen"), ("hears", "heard"), ("follows", "followed"), ("helps", "helped"))
SENTENCES = (  # A acts on B
    "the A V the B",
    "the B is W by the A",
    "it is the A that V the B",
    "it is the B that the A V",
    "the A that V the B sleeps",
    "the B that the A V sleeps",
    "the B that is W by the A sleeps",
    "the A sleeps and V the B",
)
SPECIAL = 4  # the first entries of a vocabulary, which are not words
NEVER = -1e4  # the logit of what never comes


class Actors(TextCorpus):
    """Sentences about two animals, each with the one that acts. A sentence is in the same split as the one in which the
    animals change places, so that in each split no function of a sentence's words without their order is right more
    often than in half of the cases.
    """

    task = "labelling.Labelling"
    contents, example = "texts with labels", "data=labelling.Actors"
    name, source_language, target_language = "actors", "text", "label"

    def splits(self) -> tuple[str, ...]:
        return ("train", "valid", "test")

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        choices = list(product(SENTENCES, combinations(ACTORS, 2), VERBS))
        random.Random(0).shuffle(choices)
        bounds = {"train": (0, 400), "valid": (400, 450), "test": (450, None)}
        for sentence, animals, verb in choices[slice(*bounds[split])]:
            for actor, other in (animals, animals[::-1]):
                words = {"A": actor, "B": other, "V": verb[0], "W": verb[1]}
                yield " ".join(words.get(word, word) for word in sentence.split()), actor

    def fingerprint(self, digest: Digest) -> dict[str, Any]:
        return {"words": str((SENTENCES, ACTORS, VERBS)), "version": 1}


class Accuracy(Metric):
    """The percentage of words that equal the reference's word at the same position."""

    def statistics(self, hypotheses: Sequence[str]) -> Statistics:
        pairs = [(h.split(), texts[0].split()) for h, texts in zip(hypotheses, self.references, strict=True)]
        return np.array([[sum(a == b for a, b in zip(h, r, strict=False)), len(r)] for h, r in pairs])

    def score(self, statistics: Statistics) -> float:
        right, words = statistics.sum(0)
        return 100 * right / words


class Labelling(Translation):
    """The task: as in translation there are pairs of texts, but a validation scores the labels by accuracy."""

    name = "labelling.Labelling"
    corpus, does, example = Actors, "labels texts", "model=labelling.Labeller"
    scores, unit, outputs = ("labelling.Accuracy",), "texts", "labels"

    def tokenizer(self, cache: Any) -> tuple[str, str]:
        return "none", ""  # that of BLEU, which means little here

    def validator(self, *arguments: Any) -> Any:
        validator = super().validator(*arguments)
        validator.degenerate_shares = dict  # outputs of one word are alike and repeat themselves
        return validator


class Labeller(EncoderDecoder[tuple[Tensor]]):
    """Labels that depend only on the text: P(y | x) = Π_t softmax(W v_t + b)[y_t], and then </s> for certain.

    Here there is one vector v_1 = h_T, the state after the last word. The decoder's state is the number of labels so
    far, t, and its features are [v_t, 0] while labels are left, and then [0, 1].
    """

    task = "labelling.Labelling"
    attends = False

    def __init__(
        self,
        *,
        source_vocabulary: int,
        target_vocabulary: int,
        embedding: Size = 32,
        hidden: Size = 48,
        cell: str | type[Cell] = "gru",
        bidirectional: bool = False,
        dropout: DropoutRate = 0.1,
        parts: Parts = PLAIN,
    ) -> None:
        super().__init__(parts)
        self.source_embedding = nn.Embedding(source_vocabulary, embedding)
        self.dropout = parts.dropout(dropout)
        settings: dict[str, Any] = {"bidirectional": bidirectional, "dropout": dropout, "parts": parts}
        self.encoder = Encoder(cell, embedding, hidden, 1, **settings)
        self.output = parts.linear(self.encoder.size, target_vocabulary)

    def vectors(self, encoding: Encoding, lengths: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B T D"], Int[Tensor, "B"]]:
        """The vectors v_t of a text, and how many there are. `lengths` count </s>."""
        last_states = [layers[-1][0] for layers in (encoding.forward, encoding.backward) if layers is not None]
        return torch.cat(last_states, -1)[:, None], torch.ones_like(lengths)

    def encode(self, source: Source) -> tuple[Memory, tuple[Tensor]]:
        encoding = self.encoder(self.dropout(self.source_embedding(source.tokens)), source.lengths)
        v, counts = self.vectors(encoding, source.lengths)
        v = torch.cat([self.dropout(v), v[:, :1]], 1)  # a further position, at which every row has ended
        has_ended = (torch.arange(v.shape[1], device=v.device) >= counts[:, None])[:, :, None]
        values = torch.cat([v.masked_fill(has_ended, 0), has_ended.to(v.dtype)], -1)
        return Memory(values, values[:, :, :0], ~has_ended[:, :, 0]), (torch.zeros_like(counts),)

    def features(self, memory: Memory, t: Int[Tensor, "N T"]) -> Float[Tensor, "N T R"]:
        values = memory.values.repeat_interleave(len(t) // len(memory.values), 0)
        return values.take_along_dim(t.clamp(max=values.shape[1] - 1)[:, :, None], 1)

    def step(self, memory: Memory, state: tuple[Tensor], token: Tensor) -> Step[tuple[Tensor]]:
        (t,) = state
        return Step(self.project(self.features(memory, t[:, None]))[:, 0], (t + 1,), None)

    def forward(self, source: Source, target: Tensor, state: tuple[Tensor] | None = None) -> Output:
        memory, (t,) = self.encode(source)
        steps = torch.arange(target.shape[1], device=t.device)
        return Output(self.features(memory, t[:, None] + steps), None, (t + len(steps),))

    def project(self, features: Float[Tensor, "*batch R"]) -> Float[Tensor, "*batch V"]:
        logits = self.output(features[..., :-1])
        entry = torch.arange(logits.shape[-1], device=logits.device)
        end = NEVER * (entry != EOS).to(logits.dtype)
        return torch.where(features[..., -1:] > 0, end, logits.masked_fill(entry < SPECIAL, NEVER))


def run(line: str) -> str:
    """Run a command of seqtool, and return what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        if status := seqtool.run(shlex.split(line), config_directory()):
            sys.exit(status)
    return output.getvalue()


def evaluate(name: str, metric: str = "labelling.Accuracy", trust: str = "") -> float:
    """The score of a run's best checkpoint on held-out texts, in per cent."""
    line = f"eval checkpoint=runs/{name} scores={metric} bootstrap=0 ter=false device=cpu threads=1 format=json"
    scores = json.loads(run(f"{line} trust={trust}" if trust else line))["system"]["scores"]
    return next(score["value"] for score in scores if score["name"] == metric.rpartition(".")[2])


def bag_of_words_accuracy(corpus: TextCorpus) -> float:
    """The accuracy on held-out texts of logistic regression from the counts of words, in per cent."""
    train, test = (list(corpus.pairs(split)) for split in ("train", "test"))
    words = sorted({word for text, _ in train for word in text.split()})
    labels = sorted({label for _, label in train})

    def counts(pairs: list[tuple[str, str]]) -> tuple[Tensor, Tensor]:
        rows = [[text.split().count(word) for word in words] for text, _ in pairs]
        return torch.tensor(rows).float(), torch.tensor([labels.index(label) for _, label in pairs])

    torch.manual_seed(0)
    regression, (x, y) = nn.Linear(len(words), len(labels)), counts(train)
    optimiser = torch.optim.LBFGS(regression.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        penalty = sum(parameter.square().sum() for parameter in regression.parameters())
        loss = nn.functional.cross_entropy(regression(x), y) + 1e-4 * penalty
        loss.backward()
        return loss

    optimiser.step(closure)
    x, y = counts(test)
    return 100 * float((regression(x).argmax(1) == y).float().mean())


def print_table(rows: Sequence[tuple[str, float, str]]) -> None:
    """Print rows of what was measured, the figure in per cent, and what it is to be compared with."""
    widths = [max(map(len, column)) for column in zip(*((a, "accuracy", c) for a, _, c in rows), strict=True)]
    print(f"{'':{widths[0]}}  accuracy  baseline")
    for what, figure, baseline in rows:
        print(f"{what:{widths[0]}}  {figure:6.1f} %  {baseline}")


def main() -> None:
    settings = "data=labelling.Actors data.vocabulary.kind=word model=labelling.Labeller run=labelling optim.lr=0.005"
    run(f"train {settings} {TRAINING} train.epochs=5")
    run("train run=labelling train.resume=true trust=labelling train.epochs=10")
    bag = bag_of_words_accuracy(Actors())
    print_table([("who acts, by a GRU", evaluate("labelling", trust="labelling"), f"{bag:.1f} % by a bag of words")])


if __name__ == "__main__":
    main()
