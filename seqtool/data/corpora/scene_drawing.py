"""Invents and draws the built-in images, scenes of coloured shapes.

A scene shows one object, several objects of a kind, two kinds side by side or one above the other, or three objects
in a row or column. The exact position of each object is known. Captions never mention the clutter in the background.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from PIL import Image, ImageDraw

from seqtool.data.corpora.draw import StableRandom

SIDE = 64  # pixels: width and height of a picture
CELL = 8  # pixels: side of a cell; two scenes differ if their objects' centres are in different cells
# pixels: range of an object's longer side; 20 × 20 is 9.8 % of a picture
SIDES = {"small": (12, 14), "large": (18, 20)}
GAP = 3  # pixels: least distance between two objects
CLEARANCE = 5  # pixels: least distance between two kinds that are left and right, or above and below, of each other
SLACK = 8  # pixels: room along the axis that a kind may have beyond the longest sides of its objects
ZONES = ((0, 19), (25, 39), (45, 64))  # pixels: ranges of centres at the left, in the middle and at the right
MAX_ROTATION = 12  # degrees
SCALE = 4  # a picture is drawn this many times larger, then reduced
# The numbers of objects of two kinds; (1, 1) is twice as likely as each of the others.
PAIRS = ((1, 1), (1, 1), (1, 2), (2, 1), (2, 2), (1, 3), (3, 1))
EDGE = 1.2  # pixels: width of the darker edge of an object
ATTEMPTS = 8  # attempts to place one of several objects of a kind

TABLES: dict[str, Any] = yaml.load(Path(__file__).with_name("scenes.yaml").read_bytes(), yaml.CSafeLoader)  # type: ignore[no-untyped-call]
COLOURS, BACKGROUNDS = TABLES["colours"], TABLES["backgrounds"]

Point = tuple[float, float]
Box = tuple[int, int, int, int]  # left, top, right, bottom in pixels; right and bottom are the first pixels outside
EVERYWHERE = (0, 0, SIDE, SIDE)


def _angles(count: int) -> list[float]:
    """The angles of `count` evenly spaced points on a circle, in radians from the top."""
    return [2 * math.pi * i / count for i in range(count)]


ARM = 0.34  # half the width of the arms of a cross
SHAPES: dict[str, list[Point]] = {  # outlines, of any size, with y pointing down
    "circle": [(math.sin(a), -math.cos(a)) for a in _angles(48)],
    "square": [(-1, -1), (1, -1), (1, 1), (-1, 1)],
    "triangle": [(0, -0.9), (1, 0.9), (-1, 0.9)],
    "star": [(r * math.sin(a), -r * math.cos(a)) for r, a in zip((1, 0.45) * 5, _angles(10), strict=True)],
    "heart": [
        (16 * math.sin(a) ** 3, -(13 * math.cos(a) - 5 * math.cos(2 * a) - 2 * math.cos(3 * a) - math.cos(4 * a)))
        for a in _angles(48)
    ],
    "cross": [
        *((-ARM, -1), (ARM, -1), (ARM, -ARM), (1, -ARM), (1, ARM), (ARM, ARM)),
        *((ARM, 1), (-ARM, 1), (-ARM, ARM), (-1, ARM), (-1, -ARM), (-ARM, -ARM)),
    ],
}


class Look(NamedTuple):
    shape: str
    colour: str
    size: str


@dataclass(frozen=True)
class Item:
    """An object.

    shape: a name in SHAPES: circle, square, triangle, star, heart or cross
    colour: a name in COLOURS: red, orange, yellow, green, blue, purple or black
    size: "small" or "large", as captions call it; it is drawn as large as its box
    turned: degrees clockwise
    box: the smallest box that contains all of its pixels: left, top, right and bottom, in pixels of 64 × 64
    """

    shape: str
    colour: str
    size: str
    turned: int  # degrees
    box: Box

    @property
    def centre(self) -> Point:
        left, top, right, bottom = self.box
        return (left + right) / 2, (top + bottom) / 2


@dataclass(frozen=True)
class Scene:
    """A picture's objects, and the seed of the faint clutter behind them."""

    items: tuple[Item, ...]
    clutter: int

    @property
    def content(self) -> tuple[tuple[str, str, str, tuple[int, ...]], ...]:
        """The objects' shapes, colours, sizes and cells, which are different in all scenes of a corpus."""
        cells = [tuple(int(coordinate) // CELL for coordinate in item.centre) for item in self.items]
        looks = [(item.shape, item.colour, item.size) for item in self.items]
        return tuple(sorted((*look, cell) for look, cell in zip(looks, cells, strict=True)))


# Inventing


def invent_scene(rng: StableRandom) -> Scene:
    """Invent a scene about which every claim of a caption is clearly true or clearly false."""
    layout = rng.random()
    items = None
    while items is None:
        if layout < 0.15:  # 15 %: one object
            item = _item(rng, _look(rng), EVERYWHERE)
            if item and all(any(low <= coordinate <= high for low, high in ZONES) for coordinate in item.centre):
                items = [item]
        elif layout < 0.35:  # 20 %: several of a kind
            items = _same_kind(rng, _look(rng), rng.pick((2, 3, 4)), EVERYWHERE)
        else:  # 45 %: two kinds, 20 %: three objects
            items = _different_kinds(rng, rng.pick(PAIRS) if layout < 0.8 else (1, 1, 1))
    return Scene(tuple(items), clutter=int(rng.random() * 2**31))


def _different_kinds(rng: StableRandom, counts: Sequence[int]) -> list[Item] | None:
    """Place counts[i] objects of kind i, in a row or column of kinds. Returns None if they do not fit."""
    looks: list[Look] = []
    while len(looks) < len(counts):
        look = _look(rng)
        if all(look.colour != other.colour for other in looks):
            looks.append(look)
    axis = rng.pick((0, 1))  # 0: side by side, 1: one above the other
    groups: list[list[Item]] = []
    start = 0
    for i, (look, count) in enumerate(zip(looks, counts, strict=True)):
        shortest, longest = SIDES[look.size]
        reserved = sum(SIDES[other.size][0] + CLEARANCE for other in looks[i + 1 :])  # for later kinds
        stop = SIDE - reserved
        if reserved:
            extra = longest * min(count, 2) + SLACK
            stop = min(stop, start + shortest + int(rng.random() * extra))
        group = _same_kind(rng, look, count, (0, start, SIDE, stop) if axis else (start, 0, stop, SIDE))
        if group is None:
            return None
        groups.append(group)
        start = max(item.box[axis + 2] for item in group) + CLEARANCE
    if not all(_is_level(first, second, axis) for first, second in combinations(groups, 2)):
        return None
    return [item for group in groups for item in group]


def _is_level(first: Sequence[Item], second: Sequence[Item], axis: int) -> bool:
    """Whether two groups along an axis are level: across the axis, they overlap and their centres are close."""
    a, b = _bounds(first), _bounds(second)
    across = 1 - axis
    overlap = min(a[across + 2], b[across + 2]) - max(a[across], b[across])
    offsets = [abs(a[i] + a[i + 2] - b[i] - b[i + 2]) for i in (across, axis)]  # twice the distances of the centres
    return overlap >= GAP and 2 * offsets[0] <= offsets[1]


def _bounds(items: Sequence[Item]) -> Box:
    """The smallest box that contains all of the objects."""
    lefts, tops, rights, bottoms = zip(*(item.box for item in items), strict=True)
    return min(lefts), min(tops), max(rights), max(bottoms)


def _look(rng: StableRandom) -> Look:
    """Draw a random shape, colour and size."""
    return Look(rng.pick(tuple(SHAPES)), rng.pick(tuple(COLOURS)), rng.pick(tuple(SIDES)))


def _same_kind(rng: StableRandom, look: Look, count: int, room: Box) -> list[Item] | None:
    """Place `count` objects with this look that do not touch. Returns None after `ATTEMPTS` attempts per object."""
    items: list[Item] = []
    for _ in range(ATTEMPTS * count):
        item = _item(rng, look, room)
        if item is not None and all(_gap(item.box, other.box) >= GAP for other in items):
            items.append(item)
            if len(items) == count:
                return items
    return None


def _item(rng: StableRandom, look: Look, room: Box) -> Item | None:
    """Place an object anywhere in the room, at least a pixel from its border. Returns None if it is too large."""
    turned = 0
    if look.shape != "circle":  # int() truncates towards zero, so 0 degrees is twice as likely as any other angle
        turned = int((2 * rng.random() - 1) * (MAX_ROTATION + 1))
    shortest, longest = SIDES[look.size]
    longer_side = shortest + int(rng.random() * (longest - shortest + 1))
    xs, ys = zip(*_rotate(SHAPES[look.shape], turned), strict=True)
    extent = max(xs) - min(xs), max(ys) - min(ys)
    width, height = (round(longer_side * length / max(extent)) for length in extent)
    left, top, right, bottom = room
    free_x, free_y = right - left - width - 2, bottom - top - height - 2
    if min(free_x, free_y) < 0:
        return None
    x = left + 1 + int(rng.random() * (free_x + 1))
    y = top + 1 + int(rng.random() * (free_y + 1))
    return Item(*look, turned, (x, y, x + width, y + height))


def _gap(a: Box, b: Box) -> int:
    """The number of pixels between two boxes, along the axis on which they are further apart."""
    return max(a[0] - b[2], b[0] - a[2], a[1] - b[3], b[1] - a[3])


def _rotate(points: Sequence[Point], degrees: int) -> list[Point]:
    sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    return [(cosine * x - sine * y, sine * x + cosine * y) for x, y in points]


# Drawing


def render(scene: Scene) -> Image.Image:
    """Draw the objects over faint lines, rings, dots and a patch of noise. Equal scenes have equal pixels."""
    rng = StableRandom(scene.clutter)
    tint = [value + int(9 * rng.random()) - 4 for value in rng.pick(BACKGROUNDS)]
    image = Image.new("RGB", (SIDE * SCALE, SIDE * SCALE), tuple(tint))
    pen = ImageDraw.Draw(image)

    def coordinate() -> float:
        return rng.random() * SIDE * SCALE

    def faint_colour() -> tuple[int, int, int]:
        return _darken(tint, 1 - 0.11 * rng.random())  # the background, up to 11 % darker

    for _ in range(int(rng.random() * 4)):  # lines
        pen.line([(coordinate(), coordinate()), (coordinate(), coordinate())], fill=faint_colour(), width=SCALE)
    for _ in range(int(rng.random() * 3)):  # rings
        x, y, radius = coordinate(), coordinate(), (3 + 9 * rng.random()) * SCALE
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), outline=faint_colour(), width=SCALE)
    for _ in range(int(rng.random() * 16)):  # dots
        x, y = coordinate(), coordinate()
        pen.ellipse((x, y, x + 1.5 * SCALE, y + 1.5 * SCALE), fill=faint_colour())
    x, y, width, height = coordinate(), coordinate(), 40 + coordinate() / 4, 40 + coordinate() / 4
    for _ in range(int(rng.random() * 80)):  # noise
        left, top = x + width * rng.random(), y + height * rng.random()
        pen.rectangle((left, top, left + SCALE, top + SCALE), fill=faint_colour())
    for item in scene.items:
        shade = [value + int(17 * rng.random()) - 8 for value in COLOURS[item.colour]]
        pen.polygon(_outline(item, 0), fill=_darken(shade, 0.72))  # the edge
        pen.polygon(_outline(item, EDGE), fill=_darken(shade, 1))
    return image.reduce(SCALE)


def _outline(item: Item, inset: float) -> list[Point]:
    """The object's outline on the enlarged picture, moved inwards by `inset` pixels of the final picture."""
    xs, ys = zip(*_rotate(SHAPES[item.shape], item.turned), strict=True)
    left, top, right, bottom = item.box
    axes = []
    for coordinates, start, stop in ((xs, left, right), (ys, top, bottom)):
        low, high = min(coordinates), max(coordinates)
        first, last = start * SCALE, stop * SCALE - 1
        origin = first - low / (high - low) * (last - first)  # the position of the shape's origin
        scale = 1 - 2 * inset / (stop - start)
        axes.append([round(origin + scale * value / (high - low) * (last - first)) for value in coordinates])
    return list(zip(*axes, strict=True))


def _darken(colour: Sequence[int], factor: float) -> tuple[int, int, int]:
    """The colour's red, green and blue times a factor, between 0 and 255."""
    red, green, blue = (max(0, min(255, round(factor * value))) for value in colour)
    return red, green, blue
