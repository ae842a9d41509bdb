"""The captions of the built-in images: the small grammar that generates them.

A caption is one to three noun phrases ("two small red hearts") in a frame (PLAIN, PLACED), with at most one place ("in
the top left") or relation ("to the left of"). What is true of a scene follows from the boxes of its objects:
    - a place holds for every object of its kind, by its centre, and "at the top" is not "in the top left";
    - a relation holds if a clear gap lies between two kinds; of three, one is between the two others.
scripts/scene_captions.py reads such captions, and checks whether they are true.
"""

from collections.abc import Sequence

from seqtool.data.corpora.draw import Draw
from seqtool.data.corpora.scene_drawing import CLEAR, SHAPES, ZONES, Item, Scene

CAPTIONS = 5  # per scene, all different

DETERMINERS = {"a": 1, "an": 1, "two": 2, "three": 3, "four": 4}
SIZES = {"small": "small", "little": "small", "large": "large", "big": "large"}
PLURALS = {shape: "crosses" if shape == "cross" else f"{shape}s" for shape in SHAPES}

CORNERS = {"top left": (0, 0), "top right": (2, 0), "bottom left": (0, 2), "bottom right": (2, 2)}
PLACES = {  # column and row of the nine
    **{f"in the {name}{end}": place for name, place in CORNERS.items() for end in ("", " corner")},
    "at the top": (1, 0),
    "on the left": (0, 1),
    "in the centre": (1, 1),
    "in the middle": (1, 1),
    "on the right": (2, 1),
    "at the bottom": (1, 2),
}
RELATIONS = {
    "to the left of": "left",
    "to the right of": "right",
    "above": "above",
    "over": "above",
    "below": "below",
    "under": "below",
}
INVERSE = {"left": "right", "right": "left", "above": "below", "below": "above"}
BETWEEN = "between"

PLAIN = ("{0}", "there {be} {0}", "the picture shows {0}", "you can see {0}", "{0} can be seen")
PLACED = (
    "{0} {where}",
    "{0} {be} {where}",
    "there {be} {0} {where}",
    "the picture shows {0} {where}",
    "you can see {0} {where}",
    "{0} can be seen {where}",
    "{where} there {be} {0}",
    "{where} you can see {0}",
)


def captions(scene: Scene, draw: Draw) -> list[str]:
    """Captions that name every kind of the scene, their numbers, and their relative positions."""
    different: list[str] = []
    while len(different) < CAPTIONS:
        caption = _caption(scene, draw)
        if caption not in different:
            different.append(caption)
    return different


def _caption(scene: Scene, draw: Draw) -> str:
    """Names kinds in reading order, but one between two others first, so earlier words say which kind comes next.

    Attention chooses where to look for a word before it reads the previous word. With the kinds in a random order
    it could not know whether that word was "red", or the other object's "blue".
    """
    groups: dict[tuple[str, str], list[Item]] = {}
    for item in scene.items:
        groups.setdefault((item.shape, item.colour), []).append(item)
    kinds = list(groups.values())  # from left to right or from top to bottom
    frame = draw.pick(PLACED)
    fronted = frame.startswith("{where}")
    where = ""
    if len(kinds) == 3:
        kinds = [kinds[1], kinds[0], kinds[2]]
        where = f"{BETWEEN} {_noun_phrase(kinds[1], draw)} and {_noun_phrase(kinds[2], draw)}"
    elif len(kinds) == 2:
        kinds = kinds[::-1] if fronted else kinds
        relation = draw.pick([text for text, name in RELATIONS.items() if related(name, kinds)])
        where = f"{relation} {_noun_phrase(kinds[1], draw)}"
    elif len(scene.items) == 1 and draw.chance(0.75):
        where = draw.pick([text for text, place in PLACES.items() if is_at(place, kinds[0])])
    else:
        frame = draw.pick(PLAIN)
    return frame.format(_noun_phrase(kinds[0], draw), be=is_or_are(len(kinds[0]) > 1), where=where)


def _noun_phrase(kind: Sequence[Item], draw: Draw) -> str:
    item, count = kind[0], len(kind)
    size = draw.pick([f"{word} " for word, size in SIZES.items() if size == item.size]) if draw.chance(0.5) else ""
    rest = f"{size}{item.colour} {PLURALS[item.shape] if count > 1 else item.shape}"
    return f"{determiner(count, rest)} {rest}"


def determiner(count: int, following: str) -> str:
    if count == 1:
        return "an" if following[0] in "aeiou" else "a"
    return next(word for word, number in DETERMINERS.items() if number == count)


def is_or_are(plural: bool) -> str:
    return "are" if plural else "is"


def is_at(place: tuple[int, int], items: Sequence[Item]) -> bool:
    return all(
        ZONES[zone][0] <= middle <= ZONES[zone][1]
        for item in items
        for zone, middle in zip(place, item.centre, strict=True)
    )


def related(relation: str, kinds: Sequence[Sequence[Item]]) -> bool:
    if relation == BETWEEN:
        first, second, third = kinds
        return any(related(way, (second, first)) and related(way, (first, third)) for way in INVERSE)
    if relation in ("right", "below"):
        return related(INVERSE[relation], kinds[::-1])
    axis = 0 if relation == "left" else 1
    first, second = kinds
    return max(item.box[axis + 2] for item in first) + CLEAR <= min(item.box[axis] for item in second)
