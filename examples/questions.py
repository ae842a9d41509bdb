"""A model that reads a picture of the built-in scenes and a question about it, and answers.

    what colour is the star? green        what shape is green? star
    how many hearts? two                  what is left of the star? heart

A question and its answer are a caption, whose beginning is given: the model is a captioner that is trained only on
answers, and `describe(images, prefix=question)` asks it. Six combinations of a shape and a colour, such as a red
circle, are in no picture of the training set: whoever has understood shapes and colours needs no example of each.

The question is read by a GRU. At each word, attention from its state h finds the location c that is asked about, as in
Show, Attend and Tell, and all locations a_i are then compared with it and added up, which can count them:

    α_i = softmax(k(a_i)ᵀ q(h)),   c = Σ_i α_i a_i,   z = Σ_i relu(R a_i + Q [h, c]),   answer = softmax(U [z, c])

Sources: Antol et al. (2015), "VQA: visual question answering"; Johnson et al. (2017), "CLEVR", for questions that a
program asks, and combinations held out; Yang et al. (2016), "Stacked attention networks for image question answering";
Santoro et al. (2017), "A simple neural network module for relational reasoning", for the sum over locations.

    python examples/questions.py
"""

import argparse
import contextlib
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

import seqtool
from seqtool.data.batches import make_target
from seqtool.data.corpora.corpus import Captioned, Digest, ImageCorpus
from seqtool.data.corpora.draw import StableRandom
from seqtool.data.corpora.scene_drawing import COLOURS, SHAPES, Item, Scene, invent_scene, render
from seqtool.data.corpora.scenes import DETERMINERS, PLURALS, is_related
from seqtool.models.backbone import EncoderSettings, ImageCaptioner, Images
from seqtool.models.cells import Layers, Recurrence
from seqtool.models.contract import Memory, Output, Prefilled, Size, Step
from seqtool.models.inputs import Pixels
from seqtool.models.parts import PLAIN, CrossEntropy, Parts
from seqtool.models.tokens import EOS, PAD
from seqtool.training.checkpoint import find

KINDS = ("colour", "shape", "number", "place")
PLACES = {"left": "left of", "right": "right of", "above": "above", "below": "below"}
HELD_OUT = set(zip(SHAPES, COLOURS, strict=False))  # red circles, orange squares, …: a pair for each shape
NUMBERS = {number: word for word, number in DETERMINERS.items()} | {1: "one"}
COMMONEST = 0.4  # the largest share of one answer among the questions of a kind


class Question(NamedTuple):
    kind: str
    text: str
    answer: str
    about: frozenset[tuple[str, str]]  # the shapes and colours that it is about


def ask(scene: Scene) -> Iterator[Question]:
    """Yield all questions about a scene that have one answer."""
    groups: dict[tuple[str, str], list[Item]] = {}  # no two of them have the same colour
    for item in scene.items:
        groups.setdefault((item.shape, item.colour), []).append(item)
    alike = Counter(shape for shape, _ in groups)
    for (shape, colour), items in groups.items():
        about = frozenset([(shape, colour)])
        yield Question("shape", f"what shape is {colour}?", shape, about)
        if alike[shape] > 1:
            continue
        yield Question("colour", f"what colour is the {shape}?", colour, about)
        yield Question("number", f"how many {PLURALS[shape]}?", NUMBERS[len(items)], about)
        for relation, words in PLACES.items():
            there = [other for other in groups if other[0] != shape and is_related(relation, (groups[other], items))]
            if len(there) == 1:
                yield Question("place", f"what is {words} the {shape}?", there[0][0], about | {*there})


class Questions(ImageCorpus):
    """Pictures and questions. Those of the split `new` are about combinations that no other split shows."""

    name = "questions"

    def __init__(self, *, directory: str = "questions", seed: int = 1, train: int = 2500, test: int = 250) -> None:
        self.directory, self._seed = Path(directory), seed
        self._sizes = {"train": train, "valid": 20, "test": test, "new": test}

    def splits(self) -> tuple[str, ...]:
        return tuple(self._sizes)

    def questions(self, split: str) -> Iterator[tuple[Scene, list[Question]]]:
        """Yield the scenes of a split, each with its questions, of which none has an answer that is too common."""
        random, number = StableRandom(self._seed + 1000 * self.splits().index(split)), 0
        answers = {kind: Counter[str]() for kind in KINDS}
        while number < self._sizes[split]:
            scene, kept = invent_scene(random), []
            looks = {(item.shape, item.colour) for item in scene.items}
            if (split == "new") != bool(looks & HELD_OUT):
                continue
            for question in ask(scene):
                counts = answers[question.kind]
                is_rare = counts[question.answer] <= COMMONEST * counts.total()
                if is_rare and (split != "new" or question.about & HELD_OUT):
                    counts[question.answer] += 1
                    kept.append(question)
            if kept:
                number += 1
                yield scene, kept

    def fetch(self) -> None:
        """Draw the pictures, unless they exist."""
        for split in self.splits():
            (self.directory / split).mkdir(parents=True, exist_ok=True)
            for number, (scene, _) in enumerate(self.questions(split)):
                if not (file := self._file(split, number)).exists():
                    render(scene).save(file)

    def images(self, split: str) -> list[Captioned]:
        return [
            Captioned(self._file(split, number), f"{number}", tuple(f"{q.text} {q.answer}" for q in questions))
            for number, (_, questions) in enumerate(self.questions(split))
        ]

    def _file(self, split: str, number: int) -> Path:
        return self.directory / split / f"{number}.png"

    def fingerprint(self, digest: Digest) -> dict[str, Any]:
        return {"seed": self._seed, "sizes": self._sizes, "version": 1}


class Answerer(ImageCaptioner[Layers]):
    """The model above. picture: whether it sees the picture, or only the question"""

    attends = True

    def __init__(
        self,
        *,
        target_vocabulary: int,
        pretrained: bool,
        encoder: EncoderSettings,
        size: Size = 64,
        picture: bool = True,
        parts: Parts = PLAIN,
    ) -> None:
        super().__init__(target_vocabulary, size, encoder, pretrained=pretrained, parts=parts)
        self.picture = picture
        self.cell = parts.linear(self.backbone.dimension, size)
        self.place_embedding = nn.Embedding(self.backbone.locations[0] * self.backbone.locations[1], size)
        self.reader = Recurrence("gru", size, size, parts)
        self.first_key, self.first_query = parts.linear(size, size), parts.linear(size, size)
        self.second_key, self.second_query = parts.linear(size, size), parts.linear(size, size)
        self.hint = parts.linear(2 * size, size)
        self.part, self.count = parts.linear(size, size), parts.linear(size, size)
        self.gate = parts.linear(size, 3 * size)
        self.output = parts.linear(3 * size, target_vocabulary)

    def encode(self, source: Images) -> tuple[Memory, Layers]:
        a = F.relu(self.cell(self.annotations(source)) * self.picture + self.place_embedding.weight)
        mask = torch.ones(a.shape[:2], dtype=torch.bool, device=a.device)
        return Memory(a, a[..., :0], mask), Layers((self.reader.cell.start(a),))

    def forward(self, source: Images, target: Tensor, state: Layers | None = None) -> Output:
        memory, first_state = self.encode(source)
        return self._read(memory, first_state if state is None else state, target)

    def prefill(self, memory: Memory, state: Layers, tokens: Tensor) -> Prefilled[Layers]:
        output = self._read(memory, state, tokens)
        return Prefilled(output.state, output.attention)

    def step(self, memory: Memory, state: Layers, token: Tensor) -> Step[Layers]:
        output = self._read(memory, state, token[:, None])
        assert output.attention is not None
        return Step(self.project(output.features[:, 0]), output.state, output.attention[:, 0])

    def _read(self, memory: Memory, state: Layers, tokens: Tensor) -> Output:
        """Read t words after those of the state, each of N = B·K states for one of B pictures."""
        h, last = self.reader(self.target_embedding(tokens), state.layers[0])
        a = memory.values.repeat_interleave(len(h) // len(memory.values), 0)
        alpha, c = self._attend(self.first_query(h), self.first_key(a), a)
        hint = F.relu(self.hint(torch.cat([h, c], -1)))
        _, d = self._attend(self.second_query(hint), self.second_key(a), a)
        z = (
            F.relu(self.part(a)[:, None] + self.count(h)[:, :, None]).sum(2) / a.shape[1] ** 0.5
        )  # N×t×S×H summed over S
        return Output(torch.cat([c, d, z], -1) * torch.sigmoid(self.gate(h)), alpha, Layers((last,)))

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        alpha = (query @ keys.transpose(1, 2) / query.shape[-1] ** 0.5).softmax(-1)
        return alpha, alpha @ values

    def loss(self, features: Tensor, labels: Tensor, smoothing: float) -> CrossEntropy:
        """−log p of the last word, the answer, and of the end; the question is given."""
        is_answer = F.pad(labels[:, 1:] == EOS, (0, 1)) | (labels == EOS)
        return super().loss(features, labels.where(is_answer, torch.full_like(labels, PAD)), smoothing)


def train(name: str, steps: int, *, picture: bool) -> Any:
    """Train a model, and return its predictor."""
    weights = find("builtin/soft").path / "model.safetensors"
    data = "data=questions.Questions data.vocabulary.minimum_count=1 data.processes=1 device=cpu threads=1"
    model = f"model=questions.Answerer model.picture={str(picture).lower()}"
    encoder = f"model.encoder.weights={weights} model.encoder.fine_tune_from=null model.encoder.augment=false"
    rates = "optim.lr=0.003 schedule.warmup=50"
    limits = f"train.steps={steps} train.minutes=null train.validate_every={steps} train.best_by=loss"
    validation = "validation.sentences=1 validation.max_length=1"
    settings = " ".join((data, model, encoder, rates, limits, validation)).split()
    return seqtool.train(*settings, run=name).load(trust="questions", device="cpu")


def answers(predictor: Any, corpus: Questions, split: str) -> Iterator[tuple[Question, bool]]:
    """Yield the questions of a split, and whether each is answered correctly."""
    model = predictor.plain_model
    for image, (_, questions) in zip(corpus.images(split), corpus.questions(split), strict=True):
        pixels = torch.from_numpy(np.array(Image.open(image.file))).permute(2, 0, 1).expand(len(questions), -1, -1, -1)
        target = make_target([predictor.target_vocabulary.encode(text) for text in image.captions])
        with torch.inference_mode():
            best = model.project(model(Pixels(pixels), target[:, :-1]).features).argmax(-1)
        before_end = (target == EOS).int().argmax(1) - 1
        rows = torch.arange(len(target))
        yield from zip(questions, (best[rows, before_end - 1] == target[rows, before_end]).tolist(), strict=True)


def accuracies(predictor: Any, corpus: Questions, split: str) -> dict[str, float]:
    """The share of questions of each kind that are answered correctly."""
    results = list(answers(predictor, corpus, split))
    return {kind: float(np.mean([is_right for q, is_right in results if q.kind == kind])) for kind in KINDS}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train a model that answers questions about pictures.")
    parser.add_argument("--steps", type=int, default=900, help="updates with the picture (default: %(default)s)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        sighted = train("sighted", options.steps, picture=True)
        blind = train("blind", 200, picture=False)
        corpus = Questions()
        columns = [accuracies(model, corpus, split) for model in (sighted, blind) for split in ("test", "new")]
        counts = {kind: Counter[str]() for kind in KINDS}
        for _, questions in corpus.questions("test"):
            for question in questions:
                counts[question.kind][question.answer] += 1
    print("\n           questions  commonest        with the picture      without it")
    print("                       answer     seen pairs  new pairs   seen pairs  new pairs")
    for kind, count in counts.items():
        cells = "   ".join(f"{column[kind]:9.1%}" for column in columns)
        print(f"{kind:8}   {count.total():9}  {max(count.values()) / count.total():9.1%}   {cells}")


if __name__ == "__main__":
    main()
