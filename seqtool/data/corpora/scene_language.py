"""What captions of the built-in images say: they are written from one small grammar, read by it, and checked.

A caption is one to three noun phrases ("two small red hearts") in a frame (PLAIN, PLACED), with at most one place ("in
the top left") or relation ("to the left of"). The boxes of the scene's objects decide whether it is true:
    - a kind (shape, colour, and size where it is named) is there exactly as often as the number says;
    - a place holds for every object of its kind, by its centre, and "at the top" is not "in the top left";
    - a relation holds where a clear gap lies between two kinds; of three, one is between the two others.
What the grammar does not have is not true: "a orange circle", "two star", the same kind twice.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from seqtool.data.corpora.scene_drawing import CLEAR, COLOURS, SHAPES, ZONES, Box, Item, Scene
from seqtool.data.corpora.toy_phrases import Draw
from seqtool.data.text.alignment import words

CAPTIONS = 5  # of a scene, no two alike

DETERMINERS = {"a": 1, "an": 1, "two": 2, "three": 3, "four": 4}
SIZES = {"small": "small", "little": "small", "large": "large", "big": "large"}
PLURALS = {shape: "crosses" if shape == "cross" else f"{shape}s" for shape in SHAPES}
NOUNS = {shape: (shape, False) for shape in SHAPES} | {plural: (shape, True) for shape, plural in PLURALS.items()}

PLACES = {  # column and row of the nine
    "in the top left": (0, 0),
    "in the top left corner": (0, 0),
    "at the top": (1, 0),
    "in the top right": (2, 0),
    "in the top right corner": (2, 0),
    "on the left": (0, 1),
    "in the centre": (1, 1),
    "in the middle": (1, 1),
    "on the right": (2, 1),
    "in the bottom left": (0, 2),
    "in the bottom left corner": (0, 2),
    "at the bottom": (1, 2),
    "in the bottom right": (2, 2),
    "in the bottom right corner": (2, 2),
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
PHRASE = "<>"  # stands for a noun phrase

Place = tuple[int, int]
Fact = tuple[object, ...]


@dataclass(frozen=True)
class Kind:
    """A noun phrase: size None where it is not named; word: the index of its noun in the caption's words."""

    shape: str
    colour: str
    size: str | None
    count: int
    word: int

    @property
    def named(self) -> Fact:
        return self.shape, self.colour, self.count

    def items(self, scene: Scene) -> list[Item]:
        """The objects that it speaks of, whatever their number and size."""
        return [item for item in scene.items if (item.shape, item.colour) == (self.shape, self.colour)]


@dataclass(frozen=True)
class Description:
    """What a caption says: its kinds, the subject first; where the subject is, or how it lies to the others."""

    kinds: tuple[Kind, ...]
    place: Place | None
    relation: str | None  # left, right, above, below: of the second kind; between the second and third


# Writing


def captions(scene: Scene, draw: Draw) -> list[str]:
    """Captions that name every kind of the scene, how many there are, and how they lie to each other."""
    found: list[str] = []
    while len(found) < CAPTIONS:
        caption = _caption(scene, draw)
        if caption not in found:
            found.append(caption)
    return found


def _caption(scene: Scene, draw: Draw) -> str:
    """Kinds in reading order, but for one between two others: so the words before a noun phrase tell which it is.

    (Attention looks for the object of a word before it has read the word in front: were the order a matter of
    chance, it could not know whether "red" was written, or the other object's "blue".)
    """
    groups: dict[tuple[str, str], list[Item]] = {}
    for item in scene.items:
        groups.setdefault((item.shape, item.colour), []).append(item)
    kinds = list(groups.values())  # which stand from left to right or from top to bottom
    frame = draw.pick(PLACED)
    fronted = frame.startswith("{where}")
    where = ""
    if len(kinds) == 3:
        kinds = [kinds[1], kinds[0], kinds[2]]
        where = f"{BETWEEN} {_noun_phrase(kinds[1], draw)} and {_noun_phrase(kinds[2], draw)}"
    elif len(kinds) == 2:
        kinds = kinds[::-1] if fronted else kinds
        relation = draw.pick([text for text, name in RELATIONS.items() if _related(name, kinds)])
        where = f"{relation} {_noun_phrase(kinds[1], draw)}"
    elif len(scene.items) == 1 and draw.chance(0.75):
        where = draw.pick([text for text, place in PLACES.items() if _is_at(place, kinds[0])])
    else:
        frame = draw.pick(PLAIN)
    return frame.format(_noun_phrase(kinds[0], draw), be=_be(len(kinds[0]) > 1), where=where)


def _noun_phrase(kind: Sequence[Item], draw: Draw) -> str:
    item, count = kind[0], len(kind)
    size = draw.pick([f"{word} " for word, size in SIZES.items() if size == item.size]) if draw.chance(0.5) else ""
    rest = f"{size}{item.colour} {PLURALS[item.shape] if count > 1 else item.shape}"
    return f"{_determiner(count, rest)} {rest}"


def _determiner(count: int, following: str) -> str:
    if count == 1:
        return "an" if following[0] in "aeiou" else "a"
    return next(word for word, number in DETERMINERS.items() if number == count)


def _be(plural: bool) -> str:
    return "are" if plural else "is"


# Reading


def parse(caption: str) -> Description | None:
    """What the caption says; None where the grammar does not have it."""
    tokens = words(caption)
    kinds: list[Kind] = []
    rest: list[str] = []
    i = 0
    while i < len(tokens):
        kind = _read_kind(tokens, i)
        if kind is None:
            rest.append(tokens[i])
            i += 1
        else:
            kinds.append(kind)
            rest.append(PHRASE)
            i = kind.word + 1
    found = _patterns().get(" ".join(rest))
    if found is None or len({(kind.shape, kind.colour) for kind in kinds}) < len(kinds):
        return None
    if found.subject_last:
        kinds = [kinds[-1], *kinds[:-1]]
    if found.be not in (None, _be(kinds[0].count > 1)):
        return None
    return Description(tuple(kinds), found.place, found.relation)


def _read_kind(tokens: Sequence[str], start: int) -> Kind | None:
    """The noun phrase that begins at `start`, if it is one and agrees in number."""
    count = DETERMINERS.get(tokens[start])
    i = start + 1
    size = SIZES.get(tokens[i]) if i < len(tokens) else None
    i += size is not None
    if count is None or i + 1 >= len(tokens) or tokens[i] not in COLOURS or tokens[i + 1] not in NOUNS:
        return None
    shape, plural = NOUNS[tokens[i + 1]]
    if plural != (count > 1) or tokens[start] != _determiner(count, tokens[start + 1]):
        return None
    return Kind(shape, tokens[i], size, count, word=i + 1)


@dataclass(frozen=True)
class _Pattern:
    """A frame with its noun phrases left open; the subject may be the last of them."""

    place: Place | None
    relation: str | None
    be: str | None
    subject_last: bool


@cache
def _patterns() -> dict[str, _Pattern]:
    """Every frame with every place and relation, by its text."""
    wheres: dict[str, tuple[Place | None, str | None]] = {text: (place, None) for text, place in PLACES.items()}
    wheres |= {f"{text} {PHRASE}": (None, name) for text, name in RELATIONS.items()}
    wheres[f"{BETWEEN} {PHRASE} and {PHRASE}"] = (None, BETWEEN)
    patterns = {}
    for frame in (*PLAIN, *PLACED):
        for where, (place, relation) in wheres.items() if frame in PLACED else [("", (None, None))]:
            for be in ("is", "are"):
                text = frame.format(PHRASE, be=be, where=where)
                last = frame.startswith("{where}")
                patterns[text] = _Pattern(place, relation, be if "{be}" in frame else None, last)
    return patterns


# Checking


def is_true(caption: str, scene: Scene) -> bool:
    """Whether the caption can be read and all that it says holds of the scene; it need not name every object."""
    said = parse(caption)
    if said is None:
        return False
    items = [kind.items(scene) for kind in said.kinds]
    for kind, found in zip(said.kinds, items, strict=True):
        if len(found) != kind.count or any(kind.size not in (None, item.size) for item in found):
            return False
    if said.place is not None and not _is_at(said.place, items[0]):
        return False
    return said.relation is None or _related(said.relation, items)


def named(caption: str) -> set[Fact]:
    """What a caption names: kinds as (shape, colour, number), and how they lie, whichever is the subject.

    Sizes and places are left out, which references may leave out too. Empty where the caption cannot be read.
    """
    said = parse(caption)
    if said is None:
        return set()
    first, *others = (kind.named for kind in said.kinds)
    facts: set[Fact] = {first, *others}
    if said.relation == BETWEEN:
        facts.add((BETWEEN, first, frozenset(others)))
    elif said.relation in ("right", "below"):
        facts.add((INVERSE[said.relation], others[0], first))
    elif said.relation is not None:
        facts.add((said.relation, first, others[0]))
    return facts


def recall(caption: str, references: Iterable[str]) -> float:
    """The share of all that the references name that the caption names."""
    expected = set().union(*map(named, references))
    return len(expected & named(caption)) / len(expected)


def object_words(caption: str, scene: Scene) -> list[tuple[int, list[Box]]]:
    """For each noun of a noun phrase its index in `alignment.words(caption)` and the boxes of its objects.

    Nouns of kinds that the scene does not have are left out; the rest of the caption need not be readable.
    """
    tokens = words(caption)
    kinds = [kind for i in range(len(tokens)) if (kind := _read_kind(tokens, i)) is not None]
    found = [(kind.word, [item.box for item in kind.items(scene)]) for kind in kinds]
    return [(word, boxes) for word, boxes in found if boxes]


def _is_at(place: Place, items: Sequence[Item]) -> bool:
    return all(
        ZONES[zone][0] <= middle <= ZONES[zone][1]
        for item in items
        for zone, middle in zip(place, item.centre, strict=True)
    )


def _related(relation: str, kinds: Sequence[Sequence[Item]]) -> bool:
    if relation == BETWEEN:
        first, second, third = kinds
        return any(_related(way, (second, first)) and _related(way, (first, third)) for way in INVERSE)
    if relation in ("right", "below"):
        return _related(INVERSE[relation], kinds[::-1])
    axis = 0 if relation == "left" else 1
    first, second = kinds
    return max(item.box[axis + 2] for item in first) + CLEAR <= min(item.box[axis] for item in second)
