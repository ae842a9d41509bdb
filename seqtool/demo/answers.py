"""The kinds of requests to the demo's models: the fields of each, and its answer.

Answers have the records that the commands write with `format=jsonl`.
"""

import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image, fromarray
from torch.nn.modules.module import register_module_forward_pre_hook

from seqtool.data.images.image_decoding import fit, open_image
from seqtool.data.text.alignment import join_pieces
from seqtool.data.text.vocabulary import Vocabulary
from seqtool.decoding.batching import encoded_sentences, max_tokens
from seqtool.decoding.beam_search import Candidate, Lattice, LengthPenalty, length_penalty
from seqtool.demo.requests import Prefix, Request, check_work, draw_scene, timer
from seqtool.errors import InputError, counted
from seqtool.evaluation.captions import data_url
from seqtool.models.tokens import EOS
from seqtool.predict.captioner import Captioner
from seqtool.predict.generator import Generator
from seqtool.predict.predictor import display_token
from seqtool.predict.translator import Translation, Translator

Answer = dict[str, Any]
# The number of sentences of several requests that are translated together: 724 sentences a second with 400, 532 with
# 50, and 766 without a limit.
MAX_SENTENCES_TOGETHER = 400
MAX_SENTENCES_TO_SHARE = 100  # the number of sentences of a request that may be answered together with others
MAX_TOKENS = 500  # the number of tokens of a text to score
MAX_TOKENS_INSIDE = 60  # the number of tokens of a text to look inside
STEPS = 20  # the number of points of integrated gradients
MAX_TOP_TOKENS = 100_000  # the number of likeliest tokens in an answer
MAX_WEIGHTS_KEPT = 40_000_000  # the number of attention weights computed for a request
MAX_WEIGHTS_SENT = 4_000_000  # the number of attention weights in an answer
MAX_PIXELS = 25_000_000  # the number of pixels of a picture
LOG_P_DIGITS = 6  # the number of decimal places of a log-probability


@dataclass(kw_only=True)
class Translate(Request):
    """Translate sentences.

    Small requests that want only translations are answered together if their model and settings are the same.
    """

    sentences: list[str]
    prefixes: list[Prefix] | None = None  # the beginning of each translation
    likeliest: int = 0  # the number of likeliest tokens to send for each position
    weights: bool = False  # whether to send the attention
    tree: bool = False  # whether to send the tree of the search for one sentence

    def __post_init__(self) -> None:
        if self.prefixes is not None and len(self.prefixes) != len(self.sentences):
            raise InputError(f"'prefixes' must be a list of {len(self.sentences):,} prefixes, one for each sentence.")
        if self.tree and len(self.sentences) != 1:
            raise InputError("'tree' needs exactly one sentence.")
        self.size = len(self.sentences)
        is_plain = self.prefixes is None and not (self.likeliest or self.weights or self.tree)
        is_sampled = (self.settings or {}).get("sample")  # with random numbers that depend on the position in the batch
        if is_plain and not is_sampled and self.size <= MAX_SENTENCES_TO_SHARE:
            self.group = json.dumps([self.model, self.settings], sort_keys=True)
            self.max_group_size = MAX_SENTENCES_TOGETHER

    def answer(self, models: Sequence[Any]) -> Answer:
        translator = self.predictor(models, Translator)
        lattice = new_lattice(translator) if self.tree else None
        n_best_lists = self._search(translator, self.sentences, lattice)
        answer = self._records(n_best_lists)
        if lattice is not None:
            vocabulary = translator.target_vocabulary
            prefix_length = 0 if self.prefixes is None else len(vocabulary.encode_beginning(self.prefixes[0]))
            n_best = [translation.pieces[prefix_length:] for translation in n_best_lists[0]]
            answer["tree"] = search_tree(lattice, n_best, penalty_of(translator), vocabulary)
        return answer

    def answer_together(self, models: Sequence[Any], items: Sequence["Translate"]) -> list[Answer]:
        sentences = [sentence for item in items for sentence in item.sentences]
        n_best_lists = iter(self._search(self.predictor(models, Translator), sentences))
        return [item._records(islice(n_best_lists, item.size)) for item in items]

    def _search(
        self, translator: Translator, sentences: list[str], lattice: Lattice | None = None
    ) -> list[list[Translation]]:
        check_work(translator, len(sentences), self.likeliest)
        check_weights(count_attention_weights(translator, sentences, self.prefixes), shown=self.weights)
        return translator.hypotheses(
            sentences, prefixes=self.prefixes, attention=True, likeliest=self.likeliest, trace=lattice
        )

    def _records(self, n_best_lists: Iterable[Sequence[Translation]]) -> Answer:
        records = []
        for source, n_best in zip(self.sentences, n_best_lists, strict=True):
            translations = [translation.record(weights=self.weights) for translation in n_best]
            records.append({"source": source, **n_best[0].source_record(), "translations": translations})
        return {"translations": records}


@dataclass(kw_only=True)
class Score(Request):
    """Score the references, each given its source. For a language model, there are no sources."""

    references: list[str]
    sources: list[str] | None = None
    likeliest: int = 0
    weights: bool = False

    def __post_init__(self) -> None:
        if self.sources is not None and len(self.sources) != len(self.references):
            expected = counted(len(self.references), "string")
            raise InputError(f"'sources' must have {expected}, one for each reference, not {len(self.sources):,}.")

    def answer(self, models: Sequence[Any]) -> Answer:
        predictor = self.predictor(models, Translator, Generator)
        target_lengths = check_tokens(predictor.target_vocabulary, self.references, self.likeliest)
        if (self.sources is None) == isinstance(predictor, Translator):
            raise InputError("A translation model needs 'sources', one for each reference; a language model has none.")
        if self.sources is not None:
            source_lengths = check_tokens(predictor.source_vocabulary, self.sources)
            if predictor.attends:
                weights = sum((s + 1) * (t + 1) for s, t in zip(source_lengths, target_lengths, strict=True))
                check_weights(weights, shown=self.weights)
        predictions = predictor.forced(self.sources, self.references, likeliest=self.likeliest)
        return {"scores": [{**text.inputs(), **text.scored_record(weights=self.weights)} for text in predictions]}


@dataclass(kw_only=True)
class Why(Request):
    """Compare a translation of the user's with the best one: how likely it is, and at which step it left the beam."""

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
        (scored,) = translator.forced([self.source], [self.translation])
        if cut := best.source_record()["source_cut"]:
            raise InputError(f"The last {cut:,} tokens of the source are not translated: shorten it to compare.")
        ids = [*vocabulary.encode(self.translation), EOS]
        return {
            "translation": {
                **scored.scored_record(),
                "text": vocabulary.decode(ids[:-1]),
                "score": scored.log_probability / penalty(len(ids)),
            },
            "best": best.record(),
            "left": step_of_leaving(lattice, ids, vocabulary),
        }


@dataclass(kw_only=True)
class PictureRequest(Request):
    """A request about a built-in scene or uploaded pictures.

    scene: a scene in the form of `offered_scenes`
    images: names and contents of the uploaded files, which are opened one by one in the engine's thread
    """

    scene: dict[str, Any] | None = None
    images: list[tuple[str, bytes | Image]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        if self.scene is not None:
            self.images.append(("scene", draw_scene(self.scene)))


@dataclass(kw_only=True)
class Caption(PictureRequest):
    """Caption pictures."""

    prefix: Prefix = ""
    likeliest: int = 0
    weights: bool = False  # whether to send the attention
    picture: bool = False  # whether to send the pictures as the model saw them

    def answer(self, models: Sequence[Any]) -> Answer:
        if not self.images:
            raise InputError("The request has no pictures: send a form with files named 'images', or a 'scene'.")
        captioner = self.predictor(models, Captioner)
        check_work(captioner, len(self.images), self.likeliest)
        if captioner.attends:
            settings, locations = captioner.settings, math.prod(captioner.grid)
            weights = len(self.images) * settings.n_best * settings.max_length * locations
            check_weights(weights, shown=self.weights)
        pixels = [model_input(captioner, name, content) for name, content in self.images]
        n_best_lists = captioner.describe(list(map(fromarray, pixels)), prefix=self.prefix, likeliest=self.likeliest)
        records = []
        for (name, _), n_best in zip(self.images, n_best_lists, strict=True):
            records.append({"image": name, "captions": [caption.record(weights=self.weights) for caption in n_best]})
        return {"captions": records, **({"pictures": list(map(data_url, pixels))} if self.picture else {})}


@dataclass(kw_only=True)
class Generate(Request):
    """Continue prompts."""

    prompts: list[str]

    def answer(self, models: Sequence[Any]) -> Answer:
        generator = self.predictor(models, Generator)
        check_work(generator, len(self.prompts), 0)
        samples = generator.samples(self.prompts)
        return {"texts": [generator.line(*pair) for pair in zip(self.prompts, samples, strict=True)]}


@dataclass(kw_only=True)
class Next(Request):
    """Predict the symbol that follows a text, and each symbol within it."""

    text: str
    likeliest: int = 10

    def answer(self, models: Sequence[Any]) -> Answer:
        generator = self.predictor(models, Generator)
        check_tokens(generator.target_vocabulary, [self.text], self.likeliest)
        return cast(Answer, generator.predict_next(self.text, max(1, self.likeliest)))


@dataclass(kw_only=True)
class Inside(PictureRequest):
    """Show the states, gates and attention of a model while it reads an example, or the attributions of its tokens."""

    text: Prefix  # the text or its pieces; for a translator that of `source`, for a captioner that of the only picture
    source: str | None = None
    method: str = ""  # the method of attribution; if it is empty, states, gates and attention are sent
    position: int | None = None  # the position of the token that is explained, from 0
    other: str = ""  # the token that it is compared with

    def answer(self, models: Sequence[Any]) -> Answer:
        predictor = self.model_of(models, Translator, Captioner, Generator)
        sources = [] if self.source is None else [self.source]
        if (len(sources), len(self.images)) != (isinstance(predictor, Translator), isinstance(predictor, Captioner)):
            raise InputError("A translation model needs 'source', a captioner a picture, and a language model neither.")
        if not isinstance(self.text, str):
            if (count := len(self.text)) > (most := MAX_TOKENS_INSIDE):
                here = "can be looked into here: choose a shorter one"
                raise InputError(f"The text has {count:,} tokens; at most {most} {here}.")
            if "" in self.text:
                raise InputError("'text' has an empty token: leave it out.")
        written = self.text if isinstance(self.text, str) else join_pieces(self.text)
        check_tokens(predictor.target_vocabulary, [written], most=MAX_TOKENS_INSIDE)
        if sources:
            check_tokens(predictor.source_vocabulary, sources, most=MAX_TOKENS_INSIDE)
        pictures = [fromarray(model_input(predictor, *image)) for image in self.images]
        example = *sources, *pictures, self.text
        contrast = {} if self.position is None else {self.position: self.other}
        with register_module_forward_pre_hook(timer()):  # at each call of a part of the model
            if not self.method:
                return cast(Answer, predictor.trace(*example).record())
            explained = predictor.attribute(*example, method=self.method, contrast=contrast, steps=STEPS)
        return cast(Answer, explained.record())


def check_tokens(vocabulary: Vocabulary, texts: list[str], likeliest: int = 0, *, most: int = MAX_TOKENS) -> list[int]:
    """The number of tokens of each text. Raises InputError if a text, or an answer with `likeliest`, is too long."""
    lengths = [len(ids) for ids in vocabulary.encode_batch(texts)]
    if max(lengths) > most:
        raise InputError(f"A text has {max(lengths):,} tokens, and at most {most:,} are read here: shorten it.")
    if sum(lengths) * likeliest > MAX_TOP_TOKENS:
        raise InputError(f"At most {MAX_TOP_TOKENS:,} likeliest tokens are shown: ask for fewer, or for shorter texts.")
    return lengths


def check_weights(count: int, *, shown: bool) -> None:
    """Raise InputError if attention may have more weights than are computed here, or sent if they are to be `shown`."""
    limit, use = (MAX_WEIGHTS_SENT, "shown") if shown else (MAX_WEIGHTS_KEPT, "kept")
    if count > limit:
        problem = f"attention may have {count:,} weights, and at most {limit:,} are {use}"
        raise InputError(f"This is too much for one request: {problem}.")


def count_attention_weights(
    translator: Translator, sentences: Sequence[str], prefixes: Sequence[Prefix] | None = None
) -> int:
    """Return the maximum number of attention weights of the n best translations."""
    if not translator.attends:
        return 0
    settings, vocabulary = translator.settings, translator.target_vocabulary
    ids = [sentence[: translator.source_length] for sentence in translator.source_vocabulary.encode_batch(sentences)]
    sources = encoded_sentences(ids)
    prefix_lengths = [len(vocabulary.encode_beginning(prefix)) for prefix in prefixes or [""] * len(ids)]
    lengths = [max_tokens(sources, row, settings, length) for row, length in enumerate(prefix_lengths)]
    weights = sum((len(source) + 1) * length for source, length in zip(ids, lengths, strict=True))
    return int(settings.n_best) * weights


def model_input(captioner: Captioner, name: str, content: bytes | Image) -> NDArray[np.uint8]:
    """The pixels of a picture that the model sees, size × size × 3. Raises ImageError if it is too large or damaged."""
    if isinstance(content, bytes):
        content = open_image(io.BytesIO(content), name=name, max_pixels=MAX_PIXELS)
    return fit(content, size=captioner.encoder.size, mode=captioner.encoder.fit)


def penalty_of(translator: Translator) -> LengthPenalty:
    """The length penalty of a translator's settings."""
    return length_penalty(translator.settings.length_penalty, translator.settings.length_alpha)


def new_lattice(translator: Translator) -> Lattice:
    """An empty record of a search. Raises InputError if the translator samples, or ranks by more than probability."""
    if translator.settings.sample or translator.settings.coverage_penalty:
        raise InputError("The tree shows a search by probability alone: leave sample and coverage_penalty out.")
    return Lattice()


def search_tree(
    lattice: Lattice, n_best: Sequence[Sequence[str]], penalty: LengthPenalty, vocabulary: Vocabulary
) -> dict[str, Any]:
    """The record of a search, for JSON: the candidates of each step, best first.

    Each has parent (the index of the candidate that it continues, in the previous step; −1 at the first step), token,
    log_probability, score (with the length penalty), fate (`kept`, `ended`, `pruned`) and, at the last token of one of
    the n best, rank (from 0).

    n_best: the pieces of the n best, without a prefix
    """
    ranks, records = {tuple(pieces): rank for rank, pieces in enumerate(n_best)}, []
    for length, (step, paths) in enumerate(_steps_and_paths(lattice), 1):
        candidates = []
        for candidate, path in zip(step, paths, strict=True):
            score = round(candidate.log_probability / penalty(length), LOG_P_DIGITS)
            record = {"parent": candidate.parent, **_token_record(candidate, vocabulary)}
            record |= {"score": score, "fate": candidate.fate}
            pieces = tuple(vocabulary.piece(token) for token in path if token != EOS)
            ends = candidate.fate == "ended" or (length == len(lattice.steps[0]) and candidate.fate == "kept")
            if ends and pieces in ranks:
                record["rank"] = ranks[pieces]
            candidates.append(record)
        records.append(candidates)
    return {"steps": records}


def step_of_leaving(lattice: Lattice, ids: Sequence[int], vocabulary: Vocabulary) -> dict[str, Any] | None:
    """The step at which a text (its ids, EOS included) left the beam, for JSON; None if it was kept to its end.

    step: the first step, from 0, at which the text was not kept
    token: its token at this step
    considered: whether the text was among the candidates of this step
    beaten_by: the candidates that were kept instead, best first
    over: true if the text was kept until the search ended, but is longer
    """
    for t, (step, paths) in enumerate(_steps_and_paths(lattice)):
        index = next((i for i, path in enumerate(paths) if path == list(ids[: t + 1])), None)
        if index is None or step[index].fate == "pruned":
            return {
                "step": t,
                "token": display_token(ids[t], vocabulary),
                "considered": index is not None,
                "beaten_by": [_token_record(candidate, vocabulary) for candidate in step if candidate.fate != "pruned"],
            }
        if t + 1 == len(ids):
            return None
    end = len(lattice.steps[0])
    token = display_token(ids[end], vocabulary)
    return {"step": end, "token": token, "considered": False, "beaten_by": [], "over": True}


def _steps_and_paths(lattice: Lattice) -> Iterator[tuple[Sequence[Candidate], list[list[int]]]]:
    """Yield the candidates of each step of the only search, and the ids from the first step up to each candidate."""
    paths: list[list[int]] = [[]]  # the parent of the first candidates is −1, the empty path
    for step in lattice.steps[0]:
        paths = [[*paths[candidate.parent], candidate.token] for candidate in step]
        yield step, paths


def _token_record(candidate: Candidate, vocabulary: Vocabulary) -> dict[str, Any]:
    token = display_token(candidate.token, vocabulary)
    return {"token": token, "log_probability": round(candidate.log_probability, LOG_P_DIGITS)}
