"""The built-in pictures as a page edits them: scenes as plain JSON."""

from collections.abc import Mapping
from typing import Any

from PIL.Image import Image

from seqtool.data.corpora.draw import Draw
from seqtool.data.corpora.scene_drawing import COLOURS, SHAPES, SIDE, SIDES, Item, Scene, invent, render
from seqtool.demo.requests import is_of
from seqtool.errors import InputError

OFFERED = 12  # invented scenes
OBJECTS = 12  # of a scene, at most
CLUTTER = 2**31
FIELDS = ("shape", "colour", "turned", "box")  # of an object


def offered() -> dict[str, Any]:
    """Some scenes, the same ones each time, and what objects there can be; outlines have points from −1 to 1."""
    draw = Draw(7)
    invented = [invent(draw) for _ in range(OFFERED)]
    return {
        "scenes": [{"items": list(map(_plain, scene.items)), "clutter": scene.clutter} for scene in invented],
        "side": SIDE,
        "sizes": {name: sum(sides) // 2 for name, sides in SIDES.items()},
        "colours": {name: "#{:02x}{:02x}{:02x}".format(*colour) for name, colour in COLOURS.items()},
        "shapes": {name: [[round(x, 4), round(y, 4)] for x, y in points] for name, points in SHAPES.items()},
    }


def _plain(item: Item) -> dict[str, Any]:
    return {"shape": item.shape, "colour": item.colour, "turned": item.turned, "box": list(item.box)}


def drawn(described: Mapping[str, Any]) -> Image:
    """The picture of a scene in the form of those that are `offered`. Raises InputError for anything else."""
    items, clutter = described.get("items"), described.get("clutter", 0)
    if set(described) - {"items", "clutter"} or not isinstance(items, list) or len(items) > OBJECTS:
        raise InputError(f"'scene' must have 'items', at most {OBJECTS} objects, and may have 'clutter'.")
    if not is_of(clutter, int) or not 0 <= clutter < CLUTTER:
        raise InputError(f"'clutter' must be a whole number from 0 to {CLUTTER - 1:,}.")
    return render(Scene(tuple(map(_item, items)), clutter))


def _item(described: Any) -> Item:
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
