"""A model that reads a picture of the built-in scenes and a question about it, and answers.

    what shape is green? star        what colour is the star? green        what is left of the star? heart

Six combinations of a shape and a colour, such as a red circle, are in no picture of the training set. From it, a model
that sees everything at once learns that red things are never circles. Here shapes and colours go separate ways: from
silhouettes, which are what differs from the background, a CNN makes a vector s_i of each cell i of a grid, and c_i is
made of the silhouette's mean colour in the cell. Words are embedded in the same space, so that what names a thing also
finds it. A question is read as the sum of its words w_t, and as the word a that is asked about; γ is its kind, and 0.3
lets it settle after things can be found:

    h = tanh(Σ_t m(w_t)),   γ = softmax(0.3 W h),   a = Σ_t β_t E[w_t],   β = softmax(b(w_t))
    α = softmax(γ_shape aᵀc_i + (1 − γ_shape) aᵀs_i)    finds by colour what shape is asked for, and else by shape
    δ = softmax(f(h, Σ_i α_i p_i))                      looks beside the place, of the places p_i, that was found
    p(answer) = softmax(E (γ_shape Σ_i α_i s_i + γ_colour Σ_i α_i c_i + γ_place Σ_i δ_i s_i))

A question and its answer are a caption, whose beginning is given: the model is a captioner that is trained only on
answers, and `describe(images, prefix=question)` asks it.

Sources: Antol et al. (2015), "VQA: visual question answering"; Johnson et al. (2017), "CLEVR", for held-out
combinations; Andreas et al. (2016), "Neural module networks", for separate steps that find, look beside and describe.

    python examples/questions.py
"""

import argparse
import contextlib
import functools
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import seqtool
from seqtool.data.corpora.corpus import Captioned, Digest, ImageCorpus
from seqtool.data.corpora.draw import StableRandom
from seqtool.data.corpora.scene_drawing import CELL, COLOURS, SHAPES, Item, Scene, invent_scene, render
from seqtool.data.corpora.scenes import is_related
from seqtool.models.backbone import EncoderSettings, ImageCaptioner, Images
from seqtool.models.contract import Memory, Output, Size, Step, tie_matrices
from seqtool.models.tokens import EOS, PAD

KINDS = ("shape", "colour", "place")
PLACES = {"left": "left of", "right": "right of", "above": "above", "below": "below"}
HELD_OUT = set(zip(SHAPES, COLOURS, strict=False))  # red circles, orange squares, …: a pair for each shape
Answers = Callable[[str, Sequence[Path]], Sequence[str]]  # the answers to a question about pictures
State = tuple[Tensor, ...]  # Σ exp(b(w_t)) E[w_t], Σ exp(b(w_t)) and Σ m(w_t)


class Question(NamedTuple):
    kind: str
    text: str
    answer: str
    about: frozenset[tuple[str, str]]  # the shapes and colours that it is about


def ask(scene: Scene) -> Iterator[Question]:
    """Yield all questions about a scene that have exactly one answer."""
    groups: dict[tuple[str, str], list[Item]] = {}  # no two of them have the same colour
    for item in scene.items:
        groups.setdefault((item.shape, item.colour), []).append(item)
    alike = Counter(shape for shape, _ in groups)
    for (shape, colour), items in groups.items():
        about = frozenset([(shape, colour)])
        yield Question("shape", f"what shape is {colour}?", shape, about)
        if alike[shape] == 1:
            yield Question("colour", f"what colour is the {shape}?", colour, about)
            for relation, words in PLACES.items():
                there = [pair for pair in groups if pair[0] != shape and is_related(relation, (groups[pair], items))]
                if len(there) == 1:
                    yield Question("place", f"what is {words} the {shape}?", there[0][0], about | {*there})


@functools.cache
def asked(seed: int, size: int, is_new: bool) -> list[tuple[Scene, list[Question]]]:
    """Scenes and questions about them, all without the combinations that are held out, or all about these."""
    random, scenes = StableRandom(seed), list[tuple[Scene, list[Question]]]()
    while len(scenes) < size:
        scene = invent_scene(random)
        if is_new == any((item.shape, item.colour) in HELD_OUT for item in scene.items):
            questions = [question for question in ask(scene) if not is_new or question.about & HELD_OUT]
            scenes += [(scene, questions)] if questions else []
    return scenes


class Questions(ImageCorpus):
    """Pictures and questions. Those of the split `new` are about combinations that no other split shows."""

    name = "questions"

    def __init__(self, *, directory: str = "questions", seed: int = 1, train: int = 1500, test: int = 200) -> None:
        self.directory, self._seed = Path(directory), seed
        self._sizes = {"train": train, "valid": 100, "test": test, "new": test}

    def splits(self) -> tuple[str, ...]:
        return tuple(self._sizes)

    def questions(self, split: str) -> list[tuple[Scene, list[Question]]]:
        """The scenes of a split, each with its questions."""
        return asked(self._seed + 1000 * self.splits().index(split), self._sizes[split], split == "new")

    def fetch(self) -> None:
        for split in self.splits():
            (self.directory / split).mkdir(parents=True, exist_ok=True)
            for image, (scene, _) in zip(self.images(split), self.questions(split), strict=True):
                if not image.file.exists():
                    render(scene).save(image.file)

    def images(self, split: str) -> list[Captioned]:
        return [
            Captioned(self.directory / split / f"{n}.png", f"{n}", tuple(f"{q.text} {q.answer}" for q in questions))
            for n, (_, questions) in enumerate(self.questions(split))
        ]

    def fingerprint(self, digest: Digest) -> dict[str, Any]:
        return {"seed": self._seed, "sizes": self._sizes, "version": 1}


class TwoStreams(nn.Module):
    """Pixels to [s_i, c_i, the share of cell i that a silhouette covers], in a grid of cells of 8 × 8 pixels."""

    def __init__(self, size: int, side: int) -> None:
        super().__init__()
        self.locations, self.dimension = (side // CELL, side // CELL), 2 * size + 1
        self.edges = nn.Sequential(nn.Conv2d(1, 8, 5, 2, 2), nn.ReLU(), nn.Conv2d(8, 24, 3, 2, 1), nn.ReLU())
        self.shapes = nn.Sequential(nn.Conv2d(24, 48, 5, 2, 2), nn.ReLU(), nn.Conv2d(48, size, 1))
        self.colours = nn.Sequential(nn.Conv2d(3, 32, 1), nn.ReLU(), nn.Conv2d(32, size, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        x = pixels.to(next(self.parameters()).dtype) / 255
        # it fills more than half of a picture; a sixteenth of the pixels are enough for their median
        background = x[..., ::4, ::4].flatten(2).median(-1).values[:, :, None, None]
        silhouette = (8 * ((x - background).abs().amax(1, keepdim=True) - 0.15)).clamp(0, 1)  # clutter: at most 0.11
        share = F.avg_pool2d(silhouette, CELL)
        colour = F.avg_pool2d(x * silhouette, CELL) / (share + 1e-3)
        shapes = self.shapes(self.edges(silhouette))  # each depends on 25 × 25 pixels
        return torch.cat([shapes, self.colours(2 * colour - 1), share], 1).flatten(2).transpose(1, 2)


class Answerer(ImageCaptioner[State]):
    """The model above, which ends after the answer: that is a fourth kind of question, whose answer is </s>."""

    attends = True

    def __init__(self, *, target_vocabulary: int, pretrained: bool, encoder: EncoderSettings, size: Size = 64) -> None:
        super().__init__(target_vocabulary, size, encoder, pretrained=pretrained)
        self.backbone: Any = TwoStreams(size, encoder.size)
        self.meaning_embedding, self.weight = nn.Embedding(target_vocabulary, 32), nn.Embedding(target_vocabulary, 1)
        places = self.backbone.locations[0] * self.backbone.locations[1]
        self.place_embedding, self.kind = nn.Embedding(places, 16), nn.Linear(32, len(KINDS) + 1)
        self.beside = nn.Sequential(nn.Linear(32 + 16, size), nn.ReLU(), nn.Linear(size, places))
        self.output = nn.Linear(size, target_vocabulary)
        tie_matrices(self, "output")

    def encode(self, source: Images) -> tuple[Memory, State]:
        a = self.annotations(source)
        mask = a[..., -1] > 0.1
        state = tuple(a.new_zeros(len(a), size) for size in (self.backbone.dimension // 2, 1, 32))
        return Memory(a[..., :-1], a[..., :0], mask | ~mask.any(1, keepdim=True)), state

    def forward(self, source: Images, target: Tensor, state: State | None = None) -> Output:
        memory, first_state = self.encode(source)
        return self._read(memory, first_state if state is None else state, target)

    def step(self, memory: Memory, state: State, token: Tensor) -> Step[State]:
        output = self._read(memory, state, token[:, None])
        assert output.attention is not None
        return Step(self.project(output.features[:, 0]), output.state, output.attention[:, 0])

    def _read(self, memory: Memory, state: State, tokens: Tensor) -> Output:
        """Read t words after those of the state, each of N = B·K states for one of B pictures."""
        b = self.weight(tokens).exp()
        added = (b * self.target_embedding(tokens), b, self.meaning_embedding(tokens))
        sums = [first[:, None] + terms.cumsum(1) for first, terms in zip(state, added, strict=True)]
        a, h = sums[0] / sums[1], torch.tanh(sums[2])
        values, mask = (x.repeat_interleave(len(a) // len(x), 0) for x in (memory.values, memory.mask))
        s, c = values.chunk(2, -1)
        shape, colour, place, end = (0.3 * self.kind(h)).softmax(-1).split(1, -1)
        nowhere, sharpness = ~mask[:, None], self.target_embedding.embedding_dim**0.5
        e = sharpness * (shape * (a @ c.transpose(1, 2)) + (1 - shape) * (a @ s.transpose(1, 2)))
        alpha = e.masked_fill(nowhere, -1e9).softmax(-1)
        beside = self.beside(torch.cat([h, alpha @ self.place_embedding.weight], -1))
        delta = beside.masked_fill(nowhere, -1e9).softmax(-1)
        found = shape * (alpha @ s) + colour * (alpha @ c) + place * (delta @ s)
        features = sharpness * (found + end * self.target_embedding.weight[EOS])
        return Output(features, alpha, tuple(total[:, -1] for total in sums))

    def loss(self, features: Tensor, labels: Tensor, smoothing: float) -> Any:
        """−log p of the last word, the answer, and of the end; the question is given."""
        is_answer = F.pad(labels[:, 1:] == EOS, (0, 1)) | (labels == EOS)
        return super().loss(features, labels.masked_fill(~is_answer, PAD), smoothing)


def train(seed: int) -> Any:
    """Train a model, and return its predictor."""
    data = "data=questions.Questions data.vocabulary.minimum_count=1 data.processes=1 device=cpu threads=1"
    model = "model=questions.Answerer model.encoder.lr=0.007 model.encoder.augment=false optim.lr=0.01"
    training = "train.epochs=4 train.minutes=null train.pool=1 train.best_by=loss schedule=cosine schedule.warmup=30"
    settings = f"{data} {model} {training} train.by_image=true validation.sentences=1 seed={seed}".split()
    return seqtool.train(*settings, run=f"questions{seed}").load(trust="questions", device="cpu", beam=1)


def answerer(predictor: Any) -> Answers:
    return lambda text, files: [best.text[len(text) + 1 :] for best, *_ in predictor.describe(files, prefix=text)]


def guesser(corpus: Questions) -> Answers:
    """The best answers without the picture: each question's commonest answer in the training set."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for question in (question for _, questions in corpus.questions("train") for question in questions):
        counts[question.text][question.answer] += 1
    return lambda text, files: [counts[text].most_common(1)[0][0]] * len(files)


def accuracies(answers: Answers, corpus: Questions, split: str) -> dict[str, float]:
    """The share of questions of each kind that are answered correctly."""
    pictures, results = defaultdict(list), defaultdict(list)
    for image, (_, questions) in zip(corpus.images(split), corpus.questions(split), strict=True):
        for question in questions:
            pictures[question.text].append((image.file, question))
    for text, pairs in pictures.items():
        for (_, question), answer in zip(pairs, answers(text, [file for file, _ in pairs]), strict=True):
            results[question.kind].append(answer == question.answer)
    return {kind: sum(results[kind]) / len(results[kind]) for kind in KINDS}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train a model that answers questions about pictures.")
    parser.add_argument("--seed", type=int, default=1, help="seed of the weights (default: %(default)s)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        predictor, corpus = train(options.seed), Questions()
        columns = [accuracies(answerer(predictor), corpus, split) for split in ("test", "new")]
    columns += [accuracies(guesser(corpus), corpus, split) for split in ("test", "new")]
    print("\n         questions  commonest     with the picture         without it")
    print("                       answer   seen pairs  new pairs  seen pairs  new pairs")
    for kind in KINDS:
        answers = Counter(q.answer for _, questions in corpus.questions("test") for q in questions if q.kind == kind)
        cells = "  ".join(f"{column[kind]:9.1%}" for column in columns)
        print(f"{kind:8} {answers.total():9}  {max(answers.values()) / answers.total():9.1%}    {cells}")


if __name__ == "__main__":
    main()
