"""What a request is answered with: for each kind of request a function of its fields, which are taken and checked at
once, that gives a function of the models, which the engine calls. The answers are those of `format=jsonl`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from PIL.Image import Image

from seqtool.decoding.pointers import Lattice
from seqtool.decoding.ranking import length_penalty
from seqtool.demo import search_tree
from seqtool.demo.requests import MOST, Request
from seqtool.errors import InputError
from seqtool.models.tokens import EOS
from seqtool.predict.captioner import Captioner
from seqtool.predict.generator import Generator
from seqtool.predict.predictor import Prediction, Predictor
from seqtool.predict.translator import Translator

Answer = dict[str, Any]
Asked = Callable[[Sequence[Any]], Answer]
LIKELIEST = int(MOST["likeliest"])


def translate(request: Request) -> Asked:
    """sentences; prefixes, likeliest, weights, tree (for one sentence), model, settings."""
    sentences = request.texts("sentences")
    prefixes = request.optional_texts("prefixes", len(sentences))
    likeliest, weights = request.number("likeliest", 0, LIKELIEST), request.flag("weights")
    drawn = request.flag("tree")
    if drawn and len(sentences) != 1:
        raise InputError("'tree' is for one sentence.")

    def answer(models: Sequence[Any]) -> Answer:
        translator = _one(request, models, Translator)
        trace = _lattice(translator) if drawn else None
        asked: dict[str, Any] = {"prefixes": prefixes, "attention": True, "likeliest": likeliest, "trace": trace}
        found = translator.hypotheses(sentences, **asked)
        lines: Answer = {
            "translations": [
                {"source": source, "translations": [_record(one, weights=weights) for one in n_best]}
                for source, n_best in zip(sentences, found, strict=True)
            ]
        }
        if trace is not None:
            known = translator.target_vocabulary.encode((prefixes or [""])[0])
            lines["tree"] = _tree(translator, trace, [one.pieces[len(known) :] for one in found[0]])
        return lines

    return answer


def score(request: Request) -> Asked:
    """references; sources of a translation model's; likeliest, weights, model."""
    references = request.texts("references")
    sources = request.optional_texts("sources", len(references))
    likeliest, weights = request.number("likeliest", 0, LIKELIEST), request.flag("weights")

    def answer(models: Sequence[Any]) -> Answer:
        predictor = _one(request, models, Translator, Generator)
        found = predictor.given(sources, references, likeliest=likeliest)
        shown = [_given(one, weights=weights) for one in found]
        if sources is not None:
            shown = [{"source": source, **one} for source, one in zip(sources, shown, strict=True)]
        return {"scores": shown}

    return answer


def why(request: Request) -> Asked:
    """Why not mine? source, translation, model, settings: how likely the translation is beside the best one, and where
    it left the beam.
    """
    source, own = request.text("source"), request.text("translation")
    if not source.strip():
        raise InputError("'source' is empty: there is nothing to translate.")

    def answer(models: Sequence[Any]) -> Answer:
        translator = _one(request, models, Translator)
        trace = _lattice(translator)
        (best, *_), (mine,) = translator.hypotheses([source], trace=trace)[0], translator.forced([source], [own])
        known = translator.target_vocabulary
        penalty = length_penalty(translator.settings.length_penalty, translator.settings.length_alpha)
        ids = [*known.encode(own), EOS]
        return {
            "translation": {**_given(mine), "score": mine.log_probability / penalty(len(ids))},
            "best": _record(best),
            "left": search_tree.left(trace, ids, known),
        }

    return answer


def caption(request: Request, images: Sequence[tuple[str, Image]]) -> Asked:
    """prefix, likeliest, weights, model, settings; the images are opened already."""
    prefix = request.text("prefix", "")
    likeliest, weights = request.number("likeliest", 0, LIKELIEST), request.flag("weights")

    def answer(models: Sequence[Any]) -> Answer:
        captioner = _one(request, models, Captioner)
        found = captioner.describe([image for _, image in images], prefix=prefix, likeliest=likeliest)
        return {
            "captions": [
                {"image": name, "captions": [_record(one, weights=weights) for one in n_best]}
                for (name, _), n_best in zip(images, found, strict=True)
            ]
        }

    return answer


def generate(request: Request) -> Asked:
    """prompts, model, settings."""
    prompts = request.texts("prompts")

    def answer(models: Sequence[Any]) -> Answer:
        found = _one(request, models, Generator).samples(prompts)
        lines = zip(prompts, found, strict=True)
        return {"texts": [{"prompt": prompt, "texts": [one.record() for one in some]} for prompt, some in lines]}

    return answer


def following(request: Request) -> Asked:
    """text, likeliest, model: the symbols that may come next, and what was expected within the text."""
    text, likeliest = request.text("text"), request.number("likeliest", 10, LIKELIEST)

    def answer(models: Sequence[Any]) -> Answer:
        found: Answer = _one(request, models, Generator).following(text, max(1, likeliest))
        return found

    return answer


def _one(request: Request, models: Sequence[Any], *kinds: type[Predictor]) -> Any:
    """The model asked for; all fields of the request have been taken by then."""
    predictor = request.predictor(models)
    request.done()
    if not isinstance(predictor, kinds):
        raise InputError(f"{predictor.name} is asked with seqtool {predictor.command}: this is not for it.")
    return predictor


def _record(one: Prediction, *, weights: bool = False) -> Answer:
    return {**one.record(), **one.likeliest(), **(one.weights() if weights else {})}


def _given(one: Prediction, *, weights: bool = False) -> Answer:
    """As `score format=jsonl` has it."""
    found = {name: value for name, value in _record(one, weights=weights).items() if name not in ("score", "ended")}
    return {**found, **one.given()}


def _lattice(translator: Any) -> Lattice:
    if translator.settings.sample:
        raise InputError("A search has a tree, sampling has none: leave sample out.")
    return Lattice()


def _tree(translator: Any, lattice: Lattice, found: Sequence[Sequence[str]]) -> Answer:
    settings, known = translator.settings, translator.target_vocabulary
    return search_tree.tree(lattice, found, length_penalty(settings.length_penalty, settings.length_alpha), known)


def settings_of(predictor: Predictor) -> Answer:
    """A model's settings for decoding, which a request can change."""
    return {name: value for name, value in vars(predictor.settings).items() if name not in ("precision", "batch_size")}
