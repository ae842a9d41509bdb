"""The kinds of requests to the models: of each its fields, and how it is answered. Answers are those of the commands'
`format=jsonl`.
"""

import io
import json
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import UnidentifiedImageError
from PIL.Image import DecompressionBombError, Image, fromarray
from PIL.Image import open as pillow_open

from seqtool.data.images.image_decoding import DAMAGE, FORMATS, QUIET, ImageError, fit, open_image
from seqtool.data.text.vocabulary import Vocabulary
from seqtool.decoding.batching import encoded_sentences, most_tokens
from seqtool.decoding.beam_search import Candidate, Lattice, LengthPenalty, length_penalty
from seqtool.demo.requests import Beginning, Request, check_work, drawn_scene
from seqtool.errors import InputError
from seqtool.evaluation.captions import data_url
from seqtool.models.tokens import EOS
from seqtool.predict.captioner import Captioner
from seqtool.predict.generator import Generator
from seqtool.predict.predictor import displayed
from seqtool.predict.translator import Translation, Translator

Answer = dict[str, Any]
TOGETHER = 400  # sentences of several requests: 724 a second, where 50 at a time are 532 and all at once 766
FEW = 100  # sentences of a request that is answered together with others
TOKENS = 500  # of a side of a pair that is scored
MOST_SHOWN = 100_000  # likeliest tokens of an answer
WEIGHTS, WEIGHTS_SHOWN = 40_000_000, 4_000_000  # of the attention of a request
PIXELS = 25_000_000  # of a picture
DIGITS = 6  # of a log-probability


@dataclass(kw_only=True)
class Translate(Request):
    """Translations of sentences. prefixes: how each begins; tree: of the search, for one sentence.

    Small requests for translations and nothing else are answered together if their model and settings are the same.
    """

    sentences: list[str]
    prefixes: list[Beginning] | None = None
    likeliest: int = 0
    weights: bool = False
    tree: bool = False

    def __post_init__(self) -> None:
        if self.prefixes is not None and len(self.prefixes) != len(self.sentences):
            raise InputError(f"'prefixes' must be a list of {len(self.sentences):,} beginnings, one for each.")
        if self.tree and len(self.sentences) != 1:
            raise InputError("'tree' is for one sentence.")
        self.size = len(self.sentences)
        plain = self.prefixes is None and not (self.likeliest or self.weights or self.tree)
        sampled = (self.settings or {}).get("sample")  # with random numbers by a sentence's place in its request
        if plain and not sampled and self.size <= FEW:
            self.group, self.room = json.dumps([self.model, self.settings], sort_keys=True), TOGETHER

    def answer(self, models: Sequence[Any]) -> Answer:
        translator = self.predictor(models, Translator)
        lattice = new_lattice(translator) if self.tree else None
        n_best_lists = self._search(translator, self.sentences, lattice)
        answer = self._lines(n_best_lists)
        if lattice is not None:
            vocabulary = translator.target_vocabulary
            begun = 0 if self.prefixes is None else len(vocabulary.encode_beginning(self.prefixes[0]))
            n_best = [translation.pieces[begun:] for translation in n_best_lists[0]]
            answer["tree"] = search_tree(lattice, n_best, penalty_of(translator), vocabulary)
        return answer

    def answer_together(self, models: Sequence[Any], items: Sequence["Translate"]) -> list[Answer]:
        sentences = [sentence for item in items for sentence in item.sentences]
        n_best_lists = iter(self._search(self.predictor(models, Translator), sentences))
        return [item._lines(islice(n_best_lists, item.size)) for item in items]

    def _search(
        self, translator: Translator, sentences: list[str], lattice: Lattice | None = None
    ) -> list[list[Translation]]:
        check_work(translator, len(sentences), self.likeliest)
        check_weights(attention_weights(translator, sentences, self.prefixes), shown=self.weights)
        return translator.hypotheses(
            sentences, prefixes=self.prefixes, attention=True, likeliest=self.likeliest, trace=lattice
        )

    def _lines(self, n_best_lists: Iterable[Sequence[Translation]]) -> Answer:
        lines = []
        for source, n_best in zip(self.sentences, n_best_lists, strict=True):
            translations = [translation.record(weights=self.weights) for translation in n_best]
            lines.append({"source": source, **n_best[0].source_record(), "translations": translations})
        return {"translations": lines}


@dataclass(kw_only=True)
class Score(Request):
    """How likely given texts are. sources: what each translates, None for a language model."""

    references: list[str]
    sources: list[str] | None = None
    likeliest: int = 0
    weights: bool = False

    def __post_init__(self) -> None:
        if self.sources is not None and len(self.sources) != len(self.references):
            count = len(self.references)
            raise InputError(f"'sources' has {len(self.sources):,} texts, but {count:,} are needed, one for each.")

    def answer(self, models: Sequence[Any]) -> Answer:
        predictor = self.predictor(models, Translator, Generator)
        targets = check_tokens(predictor.target_vocabulary, self.references, self.likeliest)
        if (self.sources is None) == isinstance(predictor, Translator):
            raise InputError("'sources': a translation model needs one for each reference, a language model has none.")
        if self.sources is not None:
            lengths = check_tokens(predictor.source_vocabulary, self.sources)
            if predictor.attends:
                weights = sum((s + 1) * (t + 1) for s, t in zip(lengths, targets, strict=True))
                check_weights(weights, shown=self.weights)
        scored = predictor.forced(self.sources, self.references, likeliest=self.likeliest)
        return {"scores": [{**text.inputs(), **text.scored_record(weights=self.weights)} for text in scored]}


@dataclass(kw_only=True)
class Why(Request):
    """Why not mine? How likely a translation is beside the best one, and where it left the beam."""

    source: str
    translation: str

    def __post_init__(self) -> None:
        if not self.source.strip():
            raise InputError("'source' is empty: there is nothing to translate.")

    def answer(self, models: Sequence[Any]) -> Answer:
        translator = self.predictor(models, Translator)
        vocabulary, penalty = translator.target_vocabulary, penalty_of(translator)
        check_tokens(translator.source_vocabulary, [self.source])
        check_tokens(vocabulary, [self.translation])
        lattice = new_lattice(translator)
        ((best, *_),) = translator.hypotheses([self.source], trace=lattice)
        (own,) = translator.forced([self.source], [self.translation])
        if cut := best.source_record()["source_cut"]:
            raise InputError(f"The last {cut:,} tokens of the source are not translated: shorten it to compare.")
        ids = [*vocabulary.encode(self.translation), EOS]
        return {
            "translation": {
                **own.scored_record(),
                "text": vocabulary.decode(ids[:-1]),
                "score": own.log_probability / penalty(len(ids)),
            },
            "best": best.record(),
            "left": where_it_left(lattice, ids, vocabulary),
        }


@dataclass(kw_only=True)
class Caption(Request):
    """Captions of a built-in scene, or of uploaded pictures: `images` has their names and files' content. They are
    opened one by one in the engine's thread. picture: whether the answer has the pictures as the model saw them.
    """

    scene: dict[str, Any] | None = None
    prefix: Beginning = ""
    likeliest: int = 0
    weights: bool = False
    picture: bool = False
    images: list[tuple[str, bytes | Image]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        if self.scene is not None:
            self.images.append(("scene", drawn_scene(self.scene)))

    def answer(self, models: Sequence[Any]) -> Answer:
        if not self.images:
            raise InputError("Send pictures as a form with files named 'images', or a 'scene'.")
        captioner = self.predictor(models, Captioner)
        check_work(captioner, len(self.images), self.likeliest)
        if captioner.attends:
            settings, locations = captioner.settings, math.prod(captioner.grid)
            weights = len(self.images) * settings.n_best * settings.max_length * locations
            check_weights(weights, shown=self.weights)
        pixels = [pixels_seen(captioner, name, content) for name, content in self.images]
        n_best_lists = captioner.describe(list(map(fromarray, pixels)), prefix=self.prefix, likeliest=self.likeliest)
        lines = []
        for (name, _), n_best in zip(self.images, n_best_lists, strict=True):
            lines.append({"image": name, "captions": [caption.record(weights=self.weights) for caption in n_best]})
        return {"captions": lines, **({"pictures": list(map(data_url, pixels))} if self.picture else {})}


@dataclass(kw_only=True)
class Generate(Request):
    """Continuations of prompts."""

    prompts: list[str]

    def answer(self, models: Sequence[Any]) -> Answer:
        generator = self.predictor(models, Generator)
        check_work(generator, len(self.prompts), 0)
        sampled = zip(self.prompts, generator.samples(self.prompts), strict=True)
        return {"texts": [generator.line(prompt, continuations) for prompt, continuations in sampled]}


@dataclass(kw_only=True)
class Next(Request):
    """The symbols that may follow a text, and what was expected within it."""

    text: str
    likeliest: int = 10

    def answer(self, models: Sequence[Any]) -> Answer:
        generator = self.predictor(models, Generator)
        check_tokens(generator.target_vocabulary, [self.text], self.likeliest)
        return cast(Answer, generator.following(self.text, max(1, self.likeliest)))


def check_tokens(vocabulary: Vocabulary, texts: Sequence[str], likeliest: int = 0) -> list[int]:
    """The lengths of texts. InputError for those that are too long to be scored beside others' requests."""
    lengths = [len(ids) for ids in vocabulary.encode_batch(texts)]
    if max(lengths) > TOKENS:
        raise InputError(f"A text has {max(lengths):,} tokens, and at most {TOKENS:,} are scored here: shorten it.")
    if sum(lengths) * likeliest > MOST_SHOWN:
        raise InputError(f"At most {MOST_SHOWN:,} likeliest tokens are shown: ask for fewer, or for shorter texts.")
    return lengths


def check_weights(weights: int, *, shown: bool) -> None:
    """InputError if attention may have more weights than can be kept, or than are shown."""
    if weights > (limit := WEIGHTS_SHOWN if shown else WEIGHTS):
        raise InputError(
            f"This is too much for one request: attention may have {weights:,} weights, and at most {limit:,} are "
            f"{'shown' if shown else 'kept'}."
        )


def attention_weights(
    translator: Translator, sentences: Sequence[str], prefixes: Sequence[Beginning] | None = None
) -> int:
    """How many weights the attention of the n best may have."""
    if not translator.attends:
        return 0
    settings, vocabulary = translator.settings, translator.target_vocabulary
    ids = [sentence[: translator.source_length] for sentence in translator.source_vocabulary.encode_batch(sentences)]
    sources = encoded_sentences(ids)
    begun = [0] * len(ids) if prefixes is None else [len(vocabulary.encode_beginning(prefix)) for prefix in prefixes]
    tokens = [most_tokens(sources, row, settings, count) for row, count in enumerate(begun)]
    return int(settings.n_best) * sum((len(source) + 1) * most for source, most in zip(ids, tokens, strict=True))


def pixels_seen(captioner: Captioner, name: str, content: bytes | Image) -> NDArray[np.uint8]:
    """What the model sees of a picture, size × size × 3. ImageError for one that is too large or damaged."""
    if isinstance(content, bytes):
        width = height = 0
        with suppress(*DAMAGE, UnidentifiedImageError, DecompressionBombError), QUIET:
            width, height = pillow_open(io.BytesIO(content), formats=FORMATS).size
        if width * height > PIXELS:
            raise ImageError(name, f"has more than {PIXELS // 1_000_000} million pixels: make it smaller.")
        content = open_image(io.BytesIO(content), name=name)
    return fit(content, size=captioner.encoder.size, mode=captioner.encoder.fit)


def penalty_of(translator: Translator) -> LengthPenalty:
    return length_penalty(translator.settings.length_penalty, translator.settings.length_alpha)


def new_lattice(translator: Translator) -> Lattice:
    if translator.settings.sample or translator.settings.coverage_penalty:
        raise InputError("The tree is of a search by probability: leave sample and coverage_penalty out.")
    return Lattice()


def search_tree(
    lattice: Lattice, n_best: Sequence[Sequence[str]], penalty: LengthPenalty, vocabulary: Vocabulary
) -> dict[str, Any]:
    """The candidates of each step, best first: parent (a place in the step before, −1 at the first step), token,
    log_probability, score (by the length penalty), fate (`kept`, `ended`, `pruned`) and, for the last token of the n
    best, its rank from 0.

    n_best: the pieces of the n best, without those of a prefix.
    """
    steps, ranks = lattice.steps[0], {tuple(pieces): rank for rank, pieces in enumerate(n_best)}
    drawn = []
    for length, (step, paths) in enumerate(zip(steps, _paths(steps), strict=True), 1):
        candidates = []
        for candidate, path in zip(step, paths, strict=True):
            shown = {"parent": candidate.parent, **_described(candidate, vocabulary)}
            shown |= {"score": round(candidate.log_probability / penalty(length), DIGITS), "fate": candidate.fate}
            pieces = tuple(vocabulary.piece(token) for token in path if token != EOS)
            ends = candidate.fate == "ended" or (length == len(steps) and candidate.fate == "kept")
            if ends and pieces in ranks:
                shown["rank"] = ranks[pieces]
            candidates.append(shown)
        drawn.append(candidates)
    return {"steps": drawn}


def where_it_left(lattice: Lattice, ids: Sequence[int], vocabulary: Vocabulary) -> dict[str, Any] | None:
    """Where the text of these ids (EOS included) left the beam: the step (from 0) at which it was not kept, its token
    there, and what was kept instead, best first; None if it stayed to its end. `over`: it was kept, but is longer than
    what ended the search.
    """
    steps = lattice.steps[0]
    for t, (step, paths) in enumerate(zip(steps, _paths(steps), strict=True)):
        place = next((i for i, path in enumerate(paths) if path == list(ids[: t + 1])), None)
        if place is None or step[place].fate == "pruned":
            return {
                "step": t,
                "token": displayed(ids[t], vocabulary),
                "considered": place is not None,
                "beaten_by": [_described(candidate, vocabulary) for candidate in step if candidate.fate != "pruned"],
            }
        if t + 1 == len(ids):
            return None
    token = displayed(ids[len(steps)], vocabulary)
    return {"step": len(steps), "token": token, "considered": False, "beaten_by": [], "over": True}


def _paths(steps: Sequence[Sequence[Candidate]]) -> list[list[list[int]]]:
    """For each step and candidate the ids up to it."""
    paths: list[list[list[int]]] = []
    for step in steps:
        before = paths[-1] if paths else []
        paths.append([[*(before[node.parent] if node.parent >= 0 else []), node.token] for node in step])
    return paths


def _described(candidate: Candidate, vocabulary: Vocabulary) -> dict[str, Any]:
    token = displayed(candidate.token, vocabulary)
    return {"token": token, "log_probability": round(candidate.log_probability, DIGITS)}
