"""What a request is answered with: for each kind of request a function of its fields, which are taken and checked at
once, that gives what the engine is asked for. The answers are those of `format=jsonl`.
"""

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import UnidentifiedImageError
from PIL.Image import DecompressionBombError, Image, fromarray
from PIL.Image import open as pillow_open

from seqtool.data.images.image_decoding import DAMAGE, FORMATS, QUIET, ImageError, fit, open_image
from seqtool.data.text.vocabulary import Vocabulary
from seqtool.decoding.batching import encoded_sentences, most_tokens
from seqtool.decoding.pointers import Lattice
from seqtool.decoding.ranking import length_penalty
from seqtool.demo import search_tree
from seqtool.demo.deadline import timed
from seqtool.demo.engine import Asked
from seqtool.demo.requests import MOST, SEARCHED, SECONDS, TOKENS, Request
from seqtool.errors import InputError
from seqtool.models.tokens import EOS
from seqtool.predict.caption_details import address
from seqtool.predict.captioner import Captioner
from seqtool.predict.generator import Generator
from seqtool.predict.predictor import Prediction, Predictor
from seqtool.predict.translator import Translation, Translator

Answer = dict[str, Any]
TOGETHER = 400  # sentences of several requests: 724 a second, where 50 at a time are 532 and all at once 766
FEW = 100  # sentences of a request that is answered together with others
LIKELIEST = int(MOST["likeliest"])
MOST_SHOWN = 100_000  # likeliest tokens of an answer
WEIGHTS, WEIGHTS_SHOWN = 40_000_000, 4_000_000  # of the attention of a request
PIXELS = 25_000_000  # of a picture


class Task(NamedTuple):
    """Sentences that are to be translated; `kept`: how many weights of attention they may have."""

    translator: Translator
    sentences: list[str]
    prefixes: list[str | list[str]] | None
    kept: int
    asked: dict[str, Any]


def translate(request: Request) -> Asked:
    """sentences; prefixes, likeliest, weights, tree (for one sentence), model, settings. Small requests for
    translations and nothing else are done together, if they have the same model and settings.
    """
    sentences = request.texts("sentences")
    prefixes = request.beginnings("prefixes", len(sentences))
    likeliest, weights = request.number("likeliest", 0, LIKELIEST), request.flag("weights")
    drawn = request.flag("tree")
    if drawn and len(sentences) != 1:
        raise InputError("'tree' is for one sentence.")

    def begin(models: Sequence[Any]) -> Task:
        translator = _one(request, models, Translator)
        request.check_work(translator, len(sentences), likeliest)
        _check_weights(kept := _weights(translator, sentences, prefixes), shown=weights)
        asked = {"attention": True, "likeliest": likeliest, "trace": _lattice(translator) if drawn else None}
        return Task(translator, sentences, prefixes, kept, asked)

    def end(done: tuple[Task, list[list[Translation]]]) -> Answer:
        (translator, _, _, _, asked), found = done
        lines: Answer = {
            "translations": [
                {
                    "source": source,
                    **n_best[0].source_record(),
                    "translations": [_record(one, weights=weights) for one in n_best],
                }
                for source, n_best in zip(sentences, found, strict=True)
            ]
        }
        if drawn:
            known = len(translator.target_vocabulary.encode_beginning((prefixes or [""])[0]))
            lines["tree"] = _tree(translator, asked["trace"], [one.pieces[known:] for one in found[0]])
        return lines

    plain = not (drawn or weights or likeliest) and prefixes is None and len(sentences) <= FEW
    kind = ("translate", request.written("model", "settings")) if plain else None
    return Asked(begin, _translated, end, kind, len(sentences), _room)


def _room(task: Task) -> int:
    """How many sentences may be translated together. None that draw: a draw is by the sentence's place in a request."""
    settings = task.translator.settings
    return 0 if settings.sample else min(TOGETHER, SEARCHED // settings.beam)


def _translated(tasks: list[Task]) -> list[tuple[Task, list[list[Translation]]]]:
    """All together, as far as their attention can be kept."""
    groups: list[list[Task]] = [[]]
    for one in tasks:
        if groups[-1] and sum(each.kept for each in groups[-1]) + one.kept > WEIGHTS:
            groups.append([])
        groups[-1].append(one)
    return [done for group in groups for done in _searched(group)]


def _searched(tasks: list[Task]) -> Iterator[tuple[Task, list[list[Translation]]]]:
    translator, _, prefixes, _, asked = tasks[0]
    sentences = [sentence for one in tasks for sentence in one.sentences]
    found = iter(timed(translator, SECONDS).hypotheses(sentences, prefixes=prefixes, **asked))
    for one in tasks:
        yield one, list(islice(found, len(one.sentences)))


def score(request: Request) -> Asked:
    """references; sources of a translation model's; likeliest, weights, model."""
    references = request.texts("references")
    sources = request.optional_texts("sources", len(references))
    likeliest, weights = request.number("likeliest", 0, LIKELIEST), request.flag("weights")

    def answer(models: Sequence[Any]) -> Answer:
        predictor = timed(_one(request, models, Translator, Generator), SECONDS)
        targets = _check_tokens(predictor.target_vocabulary, references, likeliest)
        if (sources is None) == isinstance(predictor, Translator):
            raise InputError("'sources': a translation model needs one for each reference, a language model has none.")
        if sources is not None:
            lengths = _check_tokens(predictor.source_vocabulary, sources, 0)
            if predictor.attends:
                _check_weights(sum((s + 1) * (t + 1) for s, t in zip(lengths, targets, strict=True)), shown=weights)
        scored = predictor.forced(sources, references, likeliest=likeliest)
        return {"scores": [{**one.inputs(), **_given(one, weights=weights)} for one in scored]}

    return Asked(answer)


def why(request: Request) -> Asked:
    """Why not mine? source, translation, model, settings: how likely the translation is beside the best one, and where
    it left the beam.
    """
    source, own = request.text("source"), request.text("translation")
    if not source.strip():
        raise InputError("'source' is empty: there is nothing to translate.")

    def answer(models: Sequence[Any]) -> Answer:
        translator = timed(_one(request, models, Translator), SECONDS)
        _check_tokens(translator.source_vocabulary, [source], 0)
        _check_tokens(translator.target_vocabulary, [own], 0)
        trace = _lattice(translator)
        (best, *_), (mine,) = translator.hypotheses([source], trace=trace)[0], translator.forced([source], [own])
        if cut := best.source_record()["source_cut"]:
            raise InputError(f"The last {cut:,} tokens of the source are not translated: shorten it to compare.")
        known = translator.target_vocabulary
        penalty = length_penalty(translator.settings.length_penalty, translator.settings.length_alpha)
        ids = [*known.encode(own), EOS]
        return {
            "translation": {
                **_given(mine),
                "text": known.decode(ids),
                "score": mine.log_probability / penalty(len(ids)),
            },
            "best": _record(best),
            "left": search_tree.left(trace, ids, known),
        }

    return Asked(answer)


def caption(request: Request, images: Sequence[tuple[str, bytes | Image]]) -> Asked:
    """prefix, likeliest, weights, picture, model, settings; images are opened one by one, where the model is."""
    prefix = request.beginning("prefix")
    likeliest, weights = request.number("likeliest", 0, LIKELIEST), request.flag("weights")
    picture = request.flag("picture")

    def answer(models: Sequence[Any]) -> Answer:
        captioner = timed(_one(request, models, Captioner), SECONDS)
        request.check_work(captioner, len(images), likeliest)
        if captioner.attends:
            settings, locations = captioner.settings, math.prod(captioner.grid)
            _check_weights(len(images) * settings.n_best * settings.max_length * locations, shown=weights)
        seen = [_seen(captioner, name, content) for name, content in images]
        found = captioner.describe(list(map(fromarray, seen)), prefix=prefix, likeliest=likeliest)
        lines: Answer = {
            "captions": [
                {"image": name, "captions": [_record(one, weights=weights) for one in n_best]}
                for (name, _), n_best in zip(images, found, strict=True)
            ]
        }
        return {**lines, "pictures": list(map(address, seen))} if picture else lines

    return Asked(answer)


def generate(request: Request) -> Asked:
    """prompts, model, settings."""
    prompts = request.texts("prompts")

    def answer(models: Sequence[Any]) -> Answer:
        generator = timed(_one(request, models, Generator), SECONDS)
        request.check_work(generator, len(prompts), 0)
        found = generator.samples(prompts)
        return {"texts": [generator.line(prompt, some) for prompt, some in zip(prompts, found, strict=True)]}

    return Asked(answer)


def following(request: Request) -> Asked:
    """text, likeliest, model: the symbols that may come next, and what was expected within the text."""
    text, likeliest = request.text("text"), request.number("likeliest", 10, LIKELIEST)

    def answer(models: Sequence[Any]) -> Answer:
        generator = timed(_one(request, models, Generator), SECONDS)
        _check_tokens(generator.target_vocabulary, [text], likeliest)
        found: Answer = generator.following(text, max(1, likeliest))
        return found

    return Asked(answer)


def _one(request: Request, models: Sequence[Any], *kinds: type[Predictor]) -> Any:
    """The model asked for; all fields of the request have been taken by then."""
    predictor = request.predictor(models)
    request.done()
    if not isinstance(predictor, kinds):
        raise InputError(f"{predictor.name} is asked at /api/{predictor.command}: this is not for it.")
    return predictor


def _check_tokens(known: Vocabulary, texts: Sequence[str], likeliest: int) -> list[int]:
    """The lengths of texts. InputError for those that are too long to be scored beside others' requests."""
    lengths = [len(ids) for ids in known.encode_batch(texts)]
    if max(lengths) > TOKENS:
        raise InputError(f"A text has {max(lengths):,} tokens, and at most {TOKENS:,} are scored here: shorten it.")
    if sum(lengths) * likeliest > MOST_SHOWN:
        raise InputError(f"At most {MOST_SHOWN:,} likeliest tokens are shown: ask for fewer, or for shorter texts.")
    return lengths


def _check_weights(weights: int, *, shown: bool) -> None:
    """InputError if attention may have more weights than can be kept, or than are shown."""
    if weights > (limit := WEIGHTS_SHOWN if shown else WEIGHTS):
        raise InputError(
            f"This is too much for one request: attention may have {weights:,} weights, and at most {limit:,} are "
            f"{'shown' if shown else 'kept'}."
        )


def _weights(translator: Translator, sentences: Sequence[str], prefixes: Sequence[str | Sequence[str]] | None) -> int:
    """How many weights the attention of the n best may have."""
    if not translator.attends:
        return 0
    settings, known = translator.settings, translator.target_vocabulary
    begun = [0] * len(sentences) if prefixes is None else [len(known.encode_beginning(prefix)) for prefix in prefixes]
    ids = [one[: translator.source_length] for one in translator.source_vocabulary.encode_batch(sentences)]
    sources = encoded_sentences(ids)
    rows = enumerate(zip(ids, begun, strict=True))
    total = sum((len(one) + 1) * most_tokens(sources, row, settings, more) for row, (one, more) in rows)
    return total * int(settings.n_best)


def _seen(captioner: Captioner, name: str, content: bytes | Image) -> NDArray[np.uint8]:
    """The pixels that the model sees of a picture: the opened one is not kept."""
    image = content if isinstance(content, Image) else _opened(name, content)
    return fit(image, size=captioner.encoder.size, mode=captioner.encoder.fit)


def _opened(name: str, content: bytes) -> Image:
    width = height = 0
    with suppress(*DAMAGE, UnidentifiedImageError, DecompressionBombError), QUIET:
        width, height = pillow_open(io.BytesIO(content), formats=FORMATS).size
    if width * height > PIXELS:
        raise ImageError(name, f"has more than {PIXELS // 1_000_000} million pixels: make it smaller.")
    return open_image(io.BytesIO(content), name=name)


def _record(one: Prediction, *, weights: bool = False) -> Answer:
    return one.record(weights=weights)


def _given(one: Prediction, *, weights: bool = False) -> Answer:
    """As `score format=jsonl` has it."""
    return one.scored_record(weights=weights)


def _lattice(translator: Any) -> Lattice:
    if translator.settings.sample or translator.settings.coverage_penalty:
        raise InputError("The tree is of a search by probability: leave sample and coverage_penalty out.")
    return Lattice()


def _tree(translator: Any, lattice: Lattice, found: Sequence[Sequence[str]]) -> Answer:
    settings, known = translator.settings, translator.target_vocabulary
    return search_tree.tree(lattice, found, length_penalty(settings.length_penalty, settings.length_alpha), known)
