"""The built-in images: small scenes of coloured shapes, how they are invented and drawn.

A scene is one object, several of a kind, two kinds side by side or one above the other, or three objects in a
row or column. The places of its objects are known to the pixel; captions never mention the clutter behind them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from PIL import Image, ImageDraw

from seqtool.data.corpora.draw import Draw

SIDE = 64  # pixels, of a picture
CELL = 8  # pixels: two scenes are different if the cells of their objects differ
SIDES = {"small": (12, 14), "large": (18, 20)}  # pixels, of an object: 20 × 20 is 9.8 % of the picture
GAP = 3  # pixels, at least, between two objects
CLEAR = 5  # pixels, at least, between two kinds that are left and right, or above and below, of each other
ZONES = ((0, 19), (25, 39), (45, 64))  # pixels: the range for the centre of an object at the left, middle or right
MOST_TURNED = 12  # degrees
FINER = 4  # the picture is drawn this many times larger, then reduced
PAIRS = ((1, 1), (1, 1), (1, 2), (2, 1), (2, 2), (1, 3), (3, 1))  # how many of two kinds, (1, 1) twice as often
EDGE = 1.2  # pixels, of the darker edge of an object

COLOURS = {
    "red": (216, 44, 46),
    "orange": (244, 142, 40),
    "yellow": (250, 214, 52),
    "green": (52, 160, 80),
    "blue": (48, 108, 214),
    "purple": (142, 72, 178),
    "black": (44, 44, 50),
}
BACKGROUNDS = ((236, 239, 243), (243, 239, 230), (231, 240, 233), (241, 233, 238), (226, 232, 240), (238, 238, 234))

Point = tuple[float, float]
Look = tuple[str, str, str]  # shape, colour, size
Box = tuple[int, int, int, int]  # left, top, right, bottom in pixels; right and bottom are the first outside
EVERYWHERE = (0, 0, SIDE, SIDE)


def _angles(count: int) -> list[float]:
    """The angles of so many points on a circle, starting at the top."""
    return [2 * math.pi * i / count for i in range(count)]


ARM = 0.34  # half the width of a cross's arms
SHAPES: dict[str, list[Point]] = {
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


@dataclass(frozen=True)
class Item:
    """An object; its box is the smallest that holds all of its pixels."""

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
    items: tuple[Item, ...]
    clutter: int  # the seed of everything behind the objects

    @property
    def content(self) -> tuple[tuple[str, str, str, tuple[int, ...]], ...]:
        """Shapes, colours, sizes and cells: no two scenes of a corpus share all of these."""
        cells = [tuple(int(place) // CELL for place in item.centre) for item in self.items]
        looks = [(item.shape, item.colour, item.size) for item in self.items]
        return tuple(sorted((*look, cell) for look, cell in zip(looks, cells, strict=True)))


# Inventing


def invent(draw: Draw) -> Scene:
    """A scene about which every claim of a caption is clearly true or clearly false."""
    chance = draw.random()
    items = None
    while items is None:
        if chance < 0.15:
            item = _item(draw, _look(draw), EVERYWHERE)
            if item and all(any(low <= place <= high for low, high in ZONES) for place in item.centre):
                items = [item]
        elif chance < 0.35:
            items = _apart(draw, _look(draw), draw.pick((2, 3, 4)), EVERYWHERE)
        else:
            items = _sides(draw, draw.pick(PAIRS) if chance < 0.8 else (1, 1, 1))
    return Scene(tuple(items), clutter=int(draw.random() * 2**31))


def _sides(draw: Draw, counts: Sequence[int]) -> list[Item] | None:
    """Kinds of different colours, clearly one after the other along one axis and level along the other."""
    looks: list[Look] = []
    while len(looks) < len(counts):
        look = _look(draw)
        if all(look[1] != other[1] for other in looks):
            looks.append(look)
    axis = draw.pick((0, 1))
    groups: list[list[Item]] = []
    start = 0
    for i, (look, count) in enumerate(zip(looks, counts, strict=True)):
        least = sum(SIDES[other[2]][0] + CLEAR for other in looks[i + 1 :])  # for the kinds still to be placed
        stop = SIDE - least
        if least:
            most = start + SIDES[look[2]][1] * (1 if count == 1 else 2) + 8
            stop = min(stop, start + SIDES[look[2]][0] + int(draw.random() * (most - start)))
        group = _apart(draw, look, count, (0, start, SIDE, stop) if axis else (start, 0, stop, SIDE))
        if group is None:
            return None
        groups.append(group)
        start = max(item.box[axis + 2] for item in group) + CLEAR
    if not all(_beside(first, second, axis) for first, second in combinations(groups, 2)):
        return None
    return [item for group in groups for item in group]


def _beside(first: Sequence[Item], second: Sequence[Item], axis: int) -> bool:
    """Whether two groups that are apart along an axis are level across it: they overlap, with centres close."""
    starts, stops = (
        [[edge(item.box[way + end] for item in group) for way in (axis, 1 - axis)] for group in (first, second)]
        for edge, end in ((min, 0), (max, 2))
    )
    apart, aside = (abs(starts[0][i] + stops[0][i] - starts[1][i] - stops[1][i]) / 2 for i in (0, 1))
    return aside <= apart / 2 and min(stops[0][1], stops[1][1]) - max(starts[0][1], starts[1][1]) >= GAP


def _look(draw: Draw) -> Look:
    return draw.pick(tuple(SHAPES)), draw.pick(tuple(COLOURS)), draw.pick(tuple(SIDES))


def _apart(draw: Draw, look: Look, count: int, room: Box) -> list[Item] | None:
    """`count` alike objects that do not touch; None if no room is found in some attempts."""
    items: list[Item] = []
    for _ in range(8 * count):
        item = _item(draw, look, room)
        if item is not None and all(_gap(item.box, other.box) >= GAP for other in items):
            items.append(item)
            if len(items) == count:
                return items
    return None


def _item(draw: Draw, look: Look, room: Box) -> Item | None:
    shape, colour, size = look
    turned = 0 if shape == "circle" else int((2 * draw.random() - 1) * (MOST_TURNED + 1))
    shortest, longest = SIDES[size]
    longer = shortest + int(draw.random() * (longest - shortest + 1))
    extent = [max(place) - min(place) for place in zip(*_turn(SHAPES[shape], turned), strict=True)]
    width, height = (round(longer * length / max(extent)) for length in extent)
    across, down = room[2] - room[0] - width - 2, room[3] - room[1] - height - 2  # at least a pixel from the border
    if min(across, down) < 0:
        return None
    left, top = (start + 1 + int(draw.random() * (most + 1)) for start, most in ((room[0], across), (room[1], down)))
    return Item(shape, colour, size, turned, (left, top, left + width, top + height))


def _gap(a: Box, b: Box) -> int:
    """Pixels between two boxes, along the axis on which they are further apart."""
    return max(a[0] - b[2], b[0] - a[2], a[1] - b[3], b[1] - a[3])


def _turn(points: Sequence[Point], degrees: int) -> list[Point]:
    sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    return [(cosine * x - sine * y, sine * x + cosine * y) for x, y in points]


# Drawing


def render(scene: Scene) -> Image.Image:
    """The picture: its objects on faint lines, rings, dots and a patch of noise. The same scene gives equal pixels."""
    draw = Draw(scene.clutter)
    tint = [value + int(9 * draw.random()) - 4 for value in draw.pick(BACKGROUNDS)]
    image = Image.new("RGB", (SIDE * FINER, SIDE * FINER), tuple(tint))
    pen = ImageDraw.Draw(image)

    def place() -> float:
        return draw.random() * SIDE * FINER

    def faint() -> tuple[int, int, int]:
        return _colour(tint, 1 - 0.11 * draw.random())

    for _ in range(int(draw.random() * 4)):
        pen.line([(place(), place()), (place(), place())], fill=faint(), width=FINER)
    for _ in range(int(draw.random() * 3)):
        x, y, radius = place(), place(), (3 + 9 * draw.random()) * FINER
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), outline=faint(), width=FINER)
    for _ in range(int(draw.random() * 16)):
        x, y = place(), place()
        pen.ellipse((x, y, x + 1.5 * FINER, y + 1.5 * FINER), fill=faint())
    x, y, width, height = place(), place(), 40 + place() / 4, 40 + place() / 4
    for _ in range(int(draw.random() * 80)):
        left, top = x + width * draw.random(), y + height * draw.random()
        pen.rectangle((left, top, left + FINER, top + FINER), fill=faint())
    for item in scene.items:
        shade = [value + int(17 * draw.random()) - 8 for value in COLOURS[item.colour]]
        pen.polygon(_outline(item, 0), fill=_colour(shade, 0.72))
        pen.polygon(_outline(item, EDGE), fill=_colour(shade, 1))
    return image.reduce(FINER)


def _outline(item: Item, inset: float) -> list[Point]:
    """The object's edge on the finer picture, moved inwards by `inset` pixels, measured at its box."""
    xs, ys = zip(*_turn(SHAPES[item.shape], item.turned), strict=True)
    left, top, right, bottom = item.box
    spread = []
    for places, start, stop in ((xs, left, right), (ys, top, bottom)):
        low, high = min(places), max(places)
        first, last = start * FINER, stop * FINER - 1
        middle = first - low / (high - low) * (last - first)
        share = 1 - 2 * inset / (stop - start)
        spread.append([round(middle + share * place / (high - low) * (last - first)) for place in places])
    return list(zip(*spread, strict=True))


def _colour(tint: Sequence[int], share: float) -> tuple[int, int, int]:
    red, green, blue = (max(0, min(255, round(share * value))) for value in tint)
    return red, green, blue
