"""What all requests to the models have in common: JSON objects whose fields a dataclass declares, checked before
anything is computed, and limits on their work and time; and the built-in pictures as a page edits them, scenes as JSON.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from types import NoneType, UnionType
from typing import Any, Self, Union, get_args, get_origin, get_type_hints

from PIL.Image import Image

from seqtool.data.corpora.draw import StableRandom
from seqtool.data.corpora.scene_drawing import COLOURS, SHAPES, SIDE, SIDES, Item, Scene, invent, render
from seqtool.demo.engine import WorkItem
from seqtool.errors import InputError
from seqtool.runtime.files import check_plain, parse_json
from seqtool.settings import typed

SENTENCES = 1000  # of a request
CHARACTERS = 200_000  # of all its texts together
TEXT = 20_000  # characters of one text
STOPS, STOP = 10, 100  # texts before which a continuation ends, and characters of one
SEARCHED = 10_000  # sentences times beam, of a request
WRITTEN = 20_000  # texts that are written, times the tokens that are shown at each place
SAMPLED = 50_000  # tokens of continuations
SECONDS = 60.0  # of work on a request
LIKELIEST = 50  # tokens that are shown at each place
LARGEST = {"beam": 50, "n_best": 50, "n": 20, "max_length": 500, "min_length": 500, "max_source_length": 500}
OFFERED = 12  # invented scenes
OBJECTS = 12  # of a scene, at most
CLUTTER = 2**31
FIELDS = ("shape", "colour", "turned", "box")  # of an object
FIXED = ("precision", "batch_size")  # settings that a request cannot change

Beginning = str | list[str]  # a text, or the tokens that make it up
TYPE_NAMES = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict[str, Any]: "an object",
    NoneType: "null",
    list[str]: "a list of one or more texts",
    list[Beginning]: "a list of beginnings, each a text or a list of tokens",
}


@dataclass(kw_only=True)
class Request(WorkItem):
    """The fields that every kind of request has; a subclass declares its own. Fields without a default are required.

    model: the place of the model among those that are shown.
    settings: for decoding, in place of the server's.
    """

    model: int = 0
    settings: dict[str, Any] | None = None

    @classmethod
    def parse(cls, content: bytes) -> Self:
        """The request in a JSON object. Raises InputError for any other content, and for fields and values that this
        kind of request cannot have.
        """
        try:
            sent = parse_json(content)
            check_plain(sent)
        except ValueError as error:
            raise InputError(f"The request is not JSON that can be read ({error}): send an object.") from error
        if not isinstance(sent, dict):
            raise InputError("The request must be a JSON object.")
        hints = get_type_hints(cls)
        own = {field.name: hints[field.name] for field in fields(cls) if field.init}
        required = [field.name for field in fields(cls) if field.init and field.default is MISSING]
        check_types({**dict.fromkeys(required), **sent}, own, "field")
        check_lengths(sent)
        if not 0 <= sent.get("likeliest", 0) <= LIKELIEST:
            raise InputError(f"'likeliest' must be a whole number from 0 to {LIKELIEST:,}.")
        beginnings = [sent.get("prefix"), *(sent.get("prefixes") or [])]
        if any("" in beginning for beginning in beginnings if isinstance(beginning, list)):
            raise InputError("A beginning is a text or a list of tokens, none of which is empty.")
        return cls(**sent)

    def predictor(self, models: Sequence[Any], *kinds: type[Any]) -> Any:
        """The model that is asked, with the request's settings, which stops when the request has used up its time.
        Raises InputError unless it is of one of the kinds, and for settings that it cannot have here.
        """
        if not 0 <= self.model < len(models):
            raise InputError(f"'model' must be a whole number from 0 to {len(models) - 1:,}.")
        predictor = models[self.model]
        if not isinstance(predictor, kinds):
            raise InputError(f"{predictor.name} is asked at /api/{predictor.command}: this is not for it.")
        schema, defaults, chosen = type(predictor.settings), asdict(predictor.settings), self.settings or {}
        hints = get_type_hints(schema)
        check_types(chosen, {name: hints[name] for name in defaults if name not in FIXED}, "setting")
        stops = chosen.get("stop") or []
        if len(stops) > STOPS or any(len(text) > STOP for text in stops):
            raise InputError(f"'stop' may have at most {STOPS} texts of {STOP} characters.")
        settings = typed(schema, {**defaults, **chosen})
        for name, most in LARGEST.items():
            if (getattr(settings, name, 0) or 0) > most:
                raise InputError(f"{name} must be at most {most:,} here, not {getattr(settings, name):,}.")
        end = time.monotonic() + SECONDS
        return replace(predictor, settings=settings, models=[Timed(model, end) for model in predictor.models])


class Timed:
    """A model that takes no further step after a time, in seconds of the monotonic clock: InputError."""

    def __init__(self, model: Any, end: float) -> None:
        self._model, self._end = model, end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, *arguments: Any) -> Any:
        self._check()
        return self._model(*arguments)

    def step(self, *arguments: Any) -> Any:
        self._check()
        return self._model.step(*arguments)

    def _check(self) -> None:
        if time.monotonic() > self._end:
            raise InputError(
                f"The request took longer than {SECONDS:g} seconds: send less at once, or with a smaller beam or "
                "max_length."
            )


def check_types(sent: Mapping[str, Any], hints: Mapping[str, Any], kind: str) -> None:
    """Raise InputError for a name that is not among the hints, and a value that is not of its type."""
    for name, value in sent.items():
        if name not in hints:
            raise InputError(f"Unknown {kind} '{name[:40]}'; choose from {', '.join(hints)}.")
        if not is_of(value, hints[name]) or (value == [] and hints[name] == list[str]):
            raise InputError(
                f"'{name}' must be {' or '.join(TYPE_NAMES[option] for option in alternatives(hints[name]))}."
            )


def is_of(value: Any, hint: Any) -> bool:
    """Whether a value from JSON is itself of a type: a number is no text, and 1 is not true."""
    if isinstance(value, list):
        items = [get_args(option)[0] for option in alternatives(hint) if get_origin(option) is list]
        return any(all(is_of(inner, item) for inner in value) for item in items)
    types = [get_origin(option) or option for option in alternatives(hint)]
    return type(value) in types or (type(value) is int and float in types)


def alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def check_lengths(sent: dict[str, Any]) -> None:
    """Raise InputError for too many texts, or texts that are too long, in the fields of a request."""
    characters = 0
    for name, value in sent.items():
        if isinstance(value, list) and len(value) > SENTENCES:
            raise InputError(f"'{name}' has {len(value):,} texts: at most {SENTENCES:,} can be sent at once.")
        lengths = [len(text) for text in texts_in(value)]
        characters += sum(lengths)
        if max(lengths, default=0) > TEXT or characters > CHARACTERS:
            raise InputError(
                f"'{name}' is too long: at most {TEXT:,} characters a text and {CHARACTERS:,} a request can be sent."
            )


def texts_in(value: Any) -> Iterator[str]:
    """All texts in a value from JSON, however deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for inner in value if isinstance(value, list) else value.values():
            yield from texts_in(inner)


def check_work(predictor: Any, texts: int, likeliest: int) -> None:
    """Raise InputError for a request that would hold the others up."""
    settings = predictor.settings
    written = texts * getattr(settings, "n_best", 1) * max(1, likeliest)
    work = {
        "sentences times beam": (texts * getattr(settings, "beam", 1), SEARCHED),
        "texts to write times the tokens shown at each place": (written, WRITTEN),
        "texts times n times max_length": (texts * getattr(settings, "n", 0) * settings.max_length, SAMPLED),
    }
    for name, (asked, most) in work.items():
        if asked > most:
            raise InputError(f"This is too much for one request: {name} is {asked:,}, and at most {most:,} is done.")


def offered_scenes() -> dict[str, Any]:
    """Some scenes, the same ones each time, and what objects there can be; outlines have points from −1 to 1."""
    rng = StableRandom(7)
    invented = [invent(rng) for _ in range(OFFERED)]
    return {
        "scenes": [{"items": list(map(_plain, scene.items)), "clutter": scene.clutter} for scene in invented],
        "side": SIDE,
        "sizes": {name: sum(sides) // 2 for name, sides in SIDES.items()},
        "colours": {name: "#{:02x}{:02x}{:02x}".format(*colour) for name, colour in COLOURS.items()},
        "shapes": {name: [[round(x, 4), round(y, 4)] for x, y in points] for name, points in SHAPES.items()},
    }


def _plain(item: Item) -> dict[str, Any]:
    return {"shape": item.shape, "colour": item.colour, "turned": item.turned, "box": list(item.box)}


def drawn_scene(described: Mapping[str, Any]) -> Image:
    """The picture of a scene in the form of `offered_scenes`. Raises InputError for anything else."""
    items, clutter = described.get("items"), described.get("clutter", 0)
    if set(described) - {"items", "clutter"} or not isinstance(items, list) or len(items) > OBJECTS:
        raise InputError(f"'scene' must have 'items', at most {OBJECTS} objects, and may have 'clutter'.")
    if not is_of(clutter, int) or not 0 <= clutter < CLUTTER:
        raise InputError(f"'clutter' must be a whole number from 0 to {CLUTTER - 1:,}.")
    return render(Scene(tuple(map(_scene_item, items)), clutter))


def _scene_item(described: Any) -> Item:
    if not isinstance(described, dict) or set(described) != set(FIELDS):
        raise InputError("Each of a scene's items must have 'shape', 'colour', 'turned' and 'box', and nothing else.")
    shape, colour, turned, box = (described[name] for name in FIELDS)
    for name, value, choices in (("shape", shape, SHAPES), ("colour", colour, COLOURS)):
        if not isinstance(value, str) or value not in choices:
            raise InputError(f"Unknown {name}; choose from {', '.join(choices)}.")
    if not is_of(turned, int) or abs(turned) > 360:
        raise InputError("'turned' must be a whole number of degrees from -360 to 360.")
    if not is_of(box, list[int]) or len(box) != 4:
        raise InputError("'box' must be four whole numbers: left, top, right, bottom.")
    left, top, right, bottom = box
    if not (0 <= left < right <= SIDE and 0 <= top < bottom <= SIDE):
        raise InputError(f"'box' must lie within the picture, {SIDE} by {SIDE} pixels.")
    longest = max(right - left, bottom - top)
    size = min(SIDES, key=lambda name: abs(sum(SIDES[name]) / 2 - longest))
    return Item(shape, colour, size, turned, (left, top, right, bottom))
