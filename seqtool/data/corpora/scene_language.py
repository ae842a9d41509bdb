"""The captions of the built-in images: the small grammar that generates them, with the words of scene_language.yaml.

A caption is one to three noun phrases ("two small red hearts") in a frame (PLAIN, PLACED), with at most one place ("in
the top left") or relation ("to the left of"). What is true of a scene follows from the boxes of its objects:
    - a place holds for every object of its kind, by its centre, and "at the top" is not "in the top left";
    - a relation holds if a clear gap lies between two kinds; of three, one is between the two others.
scripts/scene_captions.py reads such captions, and checks whether they are true.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from seqtool.data.corpora.draw import Draw
from seqtool.data.corpora.scene_drawing import CLEAR, SHAPES, ZONES, Item, Scene

CAPTIONS = 5  # per scene, all different

TABLES: dict[str, Any] = yaml.load(Path(__file__).with_suffix(".yaml").read_bytes(), yaml.CSafeLoader)  # type: ignore[no-untyped-call]
DETERMINERS: dict[str, int] = TABLES["determiners"]
SIZES: dict[str, str] = TABLES["sizes"]
PLACES = {text: (column, row) for text, (column, row) in TABLES["places"].items()}
PLURALS = {shape: "crosses" if shape == "cross" else f"{shape}s" for shape in SHAPES}
RELATIONS: dict[str, str] = TABLES["relations"]
INVERSE = {"left": "right", "right": "left", "above": "below", "below": "above"}
BETWEEN = "between"
PLAIN: list[str] = TABLES["plain"]
PLACED: list[str] = TABLES["placed"]


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
