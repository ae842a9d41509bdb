"""`Request`: the base class of requests to the demo's models.

A request is a JSON object whose fields a dataclass declares. It is checked before anything is computed, and its work
and time are limited. The JSON form of the built-in scenes, which the page edits, is defined here too.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from types import NoneType
from typing import Any, Self, get_args, get_origin, get_type_hints

from PIL.Image import Image

from seqtool.data.corpora.draw import StableRandom
from seqtool.data.corpora.scene_drawing import COLOURS, SHAPES, SIDE, SIDES, Item, Scene, invent_scene, render
from seqtool.demo.engine import WorkItem
from seqtool.errors import InputError
from seqtool.runtime.files import check_plain, parse_json
from seqtool.settings import alternatives, typed

# The limits of a request, which bound its memory and its time.
MAX_TEXTS = 1000  # the number of texts in a list
MAX_CHARACTERS = 200_000  # the number of characters in all its texts
MAX_TEXT_CHARACTERS = 20_000  # the number of characters in one text
LIMITS = {"sentences": MAX_TEXTS, "characters": MAX_CHARACTERS, "text": MAX_TEXT_CHARACTERS}  # shown on the page
MAX_STOPS = 10  # the number of texts in `stop`
MAX_STOP_CHARACTERS = 100  # the number of characters in a text of `stop`
MAX_BEAMS = 10_000  # sentences times beam
MAX_LISTED_TOKENS = 20_000  # texts to write times the likeliest tokens at each position
MAX_SAMPLED_TOKENS = 50_000  # tokens of all continuations
MAX_SECONDS = 60.0  # the time that its computation may take
MAX_LIKELIEST = 50  # the number of likeliest tokens at each position
MAX_SETTINGS = {"beam": 50, "n_best": 50, "n": 20, "max_length": 500, "min_length": 500, "max_source_length": 500}
FIXED_SETTINGS = ("precision", "batch_size", "mbr", "mbr_samples", "mbr_frequencies")  # a request cannot change them

OFFERED_SCENE_COUNT = 12  # the number of scenes to choose from
MAX_OBJECTS = 12  # the number of objects in a scene
CLUTTER_SEEDS = 2**31  # the number of backgrounds
OBJECT_FIELDS = ("shape", "colour", "turned", "box")

Prefix = str | list[str]  # a text, or a list of tokens
TYPE_NAMES = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict[str, Any]: "an object",
    NoneType: "null",
    list[str]: "a list of one or more strings",
    list[Prefix]: "a list of prefixes, each a string or a list of tokens",
}


@dataclass(kw_only=True)
class Request(WorkItem):
    """The fields that all requests have. A subclass declares its own; fields without a default are required."""

    model: int | None = None  # its index in the server's list; None: the first that can answer the request
    settings: dict[str, Any] | None = None  # settings of decoding that replace the server's

    @classmethod
    def parse(cls, content: bytes) -> Self:
        """Parse a JSON object. Raises InputError for any other content, and for unknown or invalid fields."""
        try:
            values = parse_json(content)
            check_plain(values)
        except ValueError as error:
            raise InputError(f"The request is not valid JSON ({error}): send an object.") from error
        if not isinstance(values, dict):
            raise InputError("The request must be a JSON object.")
        hints = get_type_hints(cls)
        types = {field.name: hints[field.name] for field in fields(cls) if field.init}
        required = [field.name for field in fields(cls) if field.init and field.default is MISSING]
        check_types({**dict.fromkeys(required), **values}, types, "field")  # a missing field is None, which is refused
        check_lengths(values)
        # Fields that several subclasses declare, under the same names, are checked here once.
        if not 0 <= values.get("likeliest", 0) <= MAX_LIKELIEST:
            raise InputError(f"'likeliest' must be a whole number from 0 to {MAX_LIKELIEST:,}.")
        prefixes = [values.get("prefix"), *(values.get("prefixes") or [])]
        if any("" in prefix for prefix in prefixes if isinstance(prefix, list)):
            raise InputError("A prefix must be a string or a list of tokens, and no token may be empty.")
        return cls(**values)

    def model_of(self, models: Sequence[Any], *kinds: type[Any]) -> Any:
        """Return the predictor that the request names. Raises InputError unless it is of one of these `kinds`."""
        index = self.model
        if index is None:
            index = next((i for i, model in enumerate(models) if isinstance(model, kinds)), 0)
        if not 0 <= index < len(models):
            raise InputError(f"'model' must be a whole number from 0 to {len(models) - 1:,}.")
        predictor = models[index]
        if not isinstance(predictor, kinds):
            raise InputError(f"{predictor.name} takes requests at /api/{predictor.command}, not here.")
        return predictor

    def predictor(self, models: Sequence[Any], *kinds: type[Any]) -> Any:
        """Return the request's predictor, with the request's settings. Its models raise InputError after `MAX_SECONDS`.

        Raises InputError unless it is of one of these `kinds`, and for settings that are not allowed here.
        """
        predictor = self.model_of(models, *kinds)
        schema, defaults, changes = type(predictor.settings), asdict(predictor.settings), self.settings or {}
        hints = get_type_hints(schema)
        check_types(changes, {name: hints[name] for name in defaults if name not in FIXED_SETTINGS}, "setting")
        stops = changes.get("stop") or []
        if len(stops) > MAX_STOPS or any(len(text) > MAX_STOP_CHARACTERS for text in stops):
            raise InputError(f"'stop' may have at most {MAX_STOPS} strings of {MAX_STOP_CHARACTERS} characters.")
        settings = typed(schema, {**defaults, **changes})
        for name, maximum in MAX_SETTINGS.items():
            if (getattr(settings, name, 0) or 0) > maximum:
                raise InputError(f"{name} must be at most {maximum:,} here, not {getattr(settings, name):,}.")
        check = timer()
        return replace(predictor, settings=settings, models=[TimedModel(model, check) for model in predictor.models])


def timer() -> Callable[..., None]:
    """Make a function that takes any arguments, and raises InputError `MAX_SECONDS` after now."""
    end = time.monotonic() + MAX_SECONDS

    def check(*_: Any) -> None:
        if time.monotonic() > end:
            advice = "send less at once, or with a smaller beam or max_length"
            raise InputError(f"The request took longer than {MAX_SECONDS:g} seconds: {advice}.")

    return check


class TimedModel:
    """A model that calls `check` before each step."""

    def __init__(self, model: Any, check: Callable[[], None]) -> None:
        self._model, self._check = model, check

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, *arguments: Any) -> Any:
        self._check()
        return self._model(*arguments)

    def step(self, *arguments: Any) -> Any:
        self._check()
        return self._model.step(*arguments)

    def step_without_attention(self, *arguments: Any) -> Any:
        self._check()
        return self._model.step_without_attention(*arguments)


def check_types(values: Mapping[str, Any], hints: Mapping[str, Any], kind: str) -> None:
    """Raise InputError for a name that is not in `hints` or a value of another type. `kind` is the noun for a name."""
    for name, value in values.items():
        if name not in hints:
            raise InputError(f"Unknown {kind} '{name[:40]}'; choose from {', '.join(hints)}.")
        if not has_type(value, hints[name]) or (value == [] and hints[name] == list[str]):
            raise InputError(
                f"'{name}' must be {' or '.join(TYPE_NAMES[option] for option in alternatives(hints[name]))}."
            )


def has_type(value: Any, hint: Any) -> bool:
    """Whether a value from JSON has a type. Nothing is converted, except that whole numbers can be floats."""
    if isinstance(value, list):
        items = [get_args(option)[0] for option in alternatives(hint) if get_origin(option) is list]
        return any(all(has_type(inner, item) for inner in value) for item in items)
    types = [get_origin(option) or option for option in alternatives(hint)]
    return type(value) in types or (type(value) is int and float in types)


def check_lengths(values: dict[str, Any]) -> None:
    """Raise InputError if the fields of a request have too many texts, or texts that are too long."""
    characters = 0
    for name, value in values.items():
        if isinstance(value, list) and len(value) > MAX_TEXTS:
            raise InputError(f"'{name}' has {len(value):,} items: at most {MAX_TEXTS:,} can be sent at once.")
        lengths = [len(text) for text in nested_texts(value)]
        characters += sum(lengths)
        if max(lengths, default=0) > MAX_TEXT_CHARACTERS or characters > MAX_CHARACTERS:
            limits = f"at most {MAX_TEXT_CHARACTERS:,} characters a text and {MAX_CHARACTERS:,} a request can be sent"
            raise InputError(f"'{name}' is too long: {limits}.")


def nested_texts(value: Any) -> Iterator[str]:
    """Yield all texts in a value from JSON, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for inner in value if isinstance(value, list) else value.values():
            yield from nested_texts(inner)


def check_work(predictor: Any, texts: int, likeliest: int) -> None:
    """Raise InputError for a request that would make others wait for long. `texts` is the number of texts to write."""
    settings = predictor.settings
    listed_tokens = texts * getattr(settings, "n_best", 1) * max(1, likeliest)
    work = {
        "sentences times beam": (texts * getattr(settings, "beam", 1), MAX_BEAMS),
        "texts to write times the tokens shown at each position": (listed_tokens, MAX_LISTED_TOKENS),
        "texts times n times max_length": (texts * getattr(settings, "n", 0) * settings.max_length, MAX_SAMPLED_TOKENS),
    }
    for name, (amount, maximum) in work.items():
        if amount > maximum:
            raise InputError(f"This is too much for one request: {name} is {amount:,}, and may be at most {maximum:,}.")


def offered_scenes() -> dict[str, Any]:
    """The built-in scenes to choose from, always the same, and the sizes, colours and shapes of objects, for JSON. A
    shape is an outline of points with coordinates from −1 to 1.
    """
    rng = StableRandom(7)
    scenes = [invent_scene(rng) for _ in range(OFFERED_SCENE_COUNT)]
    return {
        "scenes": [{"items": list(map(_object_record, scene.items)), "clutter": scene.clutter} for scene in scenes],
        "side": SIDE,
        "sizes": {name: sum(sides) // 2 for name, sides in SIDES.items()},
        "colours": {name: "#{:02x}{:02x}{:02x}".format(*colour) for name, colour in COLOURS.items()},
        "shapes": {name: [[round(x, 4), round(y, 4)] for x, y in points] for name, points in SHAPES.items()},
    }


def _object_record(item: Item) -> dict[str, Any]:
    return {"shape": item.shape, "colour": item.colour, "turned": item.turned, "box": list(item.box)}


def draw_scene(record: Mapping[str, Any]) -> Image:
    """Draw a scene in the form of `offered_scenes`. Raises InputError for any other content."""
    items, clutter = record.get("items"), record.get("clutter", 0)
    if set(record) - {"items", "clutter"} or not isinstance(items, list) or len(items) > MAX_OBJECTS:
        raise InputError(f"'scene' must have 'items', at most {MAX_OBJECTS} objects, and may have 'clutter'.")
    if not has_type(clutter, int) or not 0 <= clutter < CLUTTER_SEEDS:
        raise InputError(f"'clutter' must be a whole number from 0 to {CLUTTER_SEEDS - 1:,}.")
    return render(Scene(tuple(map(_scene_item, items)), clutter))


def _scene_item(record: Any) -> Item:
    """The object that JSON describes. Raises InputError if it is invalid."""
    if not isinstance(record, dict) or set(record) != set(OBJECT_FIELDS):
        raise InputError("Each of a scene's items must have 'shape', 'colour', 'turned' and 'box', and nothing else.")
    shape, colour, turned, box = (record[name] for name in OBJECT_FIELDS)
    for name, value, choices in (("shape", shape, SHAPES), ("colour", colour, COLOURS)):
        if not isinstance(value, str) or value not in choices:
            raise InputError(f"Unknown {name}; choose from {', '.join(choices)}.")
    if not has_type(turned, int) or abs(turned) > 360:
        raise InputError("'turned' must be a whole number of degrees from -360 to 360.")
    if not has_type(box, list[int]) or len(box) != 4:
        raise InputError("'box' must be four whole numbers: left, top, right, bottom.")
    left, top, right, bottom = box
    if not (0 <= left < right <= SIDE and 0 <= top < bottom <= SIDE):
        raise InputError(f"'box' must lie within the picture, {SIDE} by {SIDE} pixels.")
    longest = max(right - left, bottom - top)
    size = min(SIDES, key=lambda name: abs(sum(SIDES[name]) / 2 - longest))
    return Item(shape, colour, size, turned, (left, top, right, bottom))
