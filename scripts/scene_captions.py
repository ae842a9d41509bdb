"""Parse captions of the built-in images with the grammar that generates them, and check whether they are true.

A caption is true of a scene if

- each kind (shape, colour, and size if named) occurs exactly as often as the caption states, and
- places and relations hold for the boxes of the objects, as defined in seqtool/data/corpora/scenes.py.

Captions outside the grammar are not true: "a orange circle", "two star", or two mentions of one kind.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from seqtool.data.corpora.scene_drawing import COLOURS, SHAPES, Box, Item, Scene
from seqtool.data.corpora.scenes import (
    BETWEEN,
    DETERMINERS,
    FRAMES,
    FRAMES_WITH_POSITION,
    INVERSE,
    PLACES,
    PLURALS,
    RELATIONS,
    SCENES,
    SIZES,
    determiner,
    is_at,
    is_related,
    read_records,
)
from seqtool.data.text.words import words_and_punctuation

NOUNS = {shape: (shape, False) for shape in SHAPES} | {plural: (shape, True) for shape, plural in PLURALS.items()}
PHRASE = "<>"  # the placeholder of a noun phrase

Place = tuple[int, int]  # column and row of one of the nine parts of an image
Fact = tuple[object, ...]


@dataclass(frozen=True)
class Kind:
    """A noun phrase. `size` is None if it is not named; `word` is the index of its noun in the caption's words."""

    shape: str
    colour: str
    size: str | None
    count: int
    word: int

    @property
    def fact(self) -> Fact:
        """Its shape, colour and number, which all references name."""
        return self.shape, self.colour, self.count

    def items(self, scene: Scene) -> list[Item]:
        """The objects of its shape and colour in a scene, whatever their size."""
        return [item for item in scene.items if (item.shape, item.colour) == (self.shape, self.colour)]


@dataclass(frozen=True)
class Description:
    """The content of a caption.

    kinds: its noun phrases, the subject first
    place: the place of the subject, if it is named
    relation: left, right, above or below the second kind, or between the second and the third, if it is named
    """

    kinds: tuple[Kind, ...]
    place: Place | None
    relation: str | None


# Parsing


def read_scenes(directory: Path, split: str) -> dict[str, Scene]:
    """The scene of each picture of a split, by its file's name. Raises InputError if there are none."""
    scenes = {}
    for record in read_records(directory / SCENES, split):
        items = tuple(Item(**{**item, "box": tuple(item["box"])}) for item in record["items"])
        scenes[Path(record["file"]).name] = Scene(items, record["clutter"])
    return scenes


def parse(caption: str) -> Description | None:
    """The content of the caption; None if the grammar cannot generate it."""
    tokens = words_and_punctuation(caption)
    kinds: list[Kind] = []
    frame: list[str] = []  # the words between the noun phrases, with PHRASE in place of each phrase
    i = 0
    while i < len(tokens):
        kind = _read_kind(tokens, i)
        if kind is None:
            frame.append(tokens[i])
            i += 1
        else:
            kinds.append(kind)
            frame.append(PHRASE)
            i = kind.word + 1
    pattern = _patterns().get(" ".join(frame))
    if pattern is None or len({(kind.shape, kind.colour) for kind in kinds}) < len(kinds):
        return None
    if pattern.subject_last:
        kinds = [kinds[-1], *kinds[:-1]]
    if pattern.be not in (None, "are" if kinds[0].count > 1 else "is"):
        return None
    return Description(tuple(kinds), pattern.place, pattern.relation)


def _read_kind(tokens: Sequence[str], start: int) -> Kind | None:
    """The noun phrase that begins at `start`; None if there is none, or if its number does not agree."""
    count = DETERMINERS.get(tokens[start])
    i = start + 1
    size = SIZES.get(tokens[i]) if i < len(tokens) else None
    i += size is not None
    if count is None or i + 1 >= len(tokens) or tokens[i] not in COLOURS or tokens[i + 1] not in NOUNS:
        return None
    shape, plural = NOUNS[tokens[i + 1]]
    if plural != (count > 1) or tokens[start] != determiner(count, tokens[start + 1]):
        return None
    return Kind(shape, tokens[i], size, count, word=i + 1)


@dataclass(frozen=True)
class _Pattern:
    """The meaning of a frame. `be` is its verb, None if it has none; `subject_last`: whether the subject comes last."""

    place: Place | None
    relation: str | None
    be: str | None
    subject_last: bool


@cache
def _patterns() -> dict[str, _Pattern]:
    """The patterns of all frames with all places and relations, by their texts."""
    positions: dict[str, tuple[Place | None, str | None]] = {text: (place, None) for text, place in PLACES.items()}
    positions |= {f"{text} {PHRASE}": (None, name) for text, name in RELATIONS.items()}
    positions[f"{BETWEEN} {PHRASE} and {PHRASE}"] = (None, BETWEEN)
    patterns = {}
    for frame in (*FRAMES, *FRAMES_WITH_POSITION):
        for position, (place, relation) in positions.items() if frame in FRAMES_WITH_POSITION else [("", (None, None))]:
            for be in ("is", "are"):
                text = frame.format(PHRASE, be=be, where=position)
                subject_last = frame.startswith("{where}")
                patterns[text] = _Pattern(place, relation, be if "{be}" in frame else None, subject_last)
    return patterns


# Checking


def is_true(caption: str, scene: Scene) -> bool:
    """Whether the caption can be parsed and all its claims are true of the scene. It need not name every object."""
    description = parse(caption)
    if description is None:
        return False
    items = [kind.items(scene) for kind in description.kinds]
    for kind, objects in zip(description.kinds, items, strict=True):
        if len(objects) != kind.count or any(kind.size not in (None, item.size) for item in objects):
            return False
    if description.place is not None and not is_at(description.place, items[0]):
        return False
    return description.relation is None or is_related(description.relation, items)


def find_facts(caption: str) -> set[Fact]:
    """Return the facts in a caption: its kinds as (shape, colour, number), and their relation in one direction.

    Sizes and places are left out, since references may omit them. The set is empty if the caption cannot be parsed.
    """
    description = parse(caption)
    if description is None:
        return set()
    subject, *objects = (kind.fact for kind in description.kinds)
    facts: set[Fact] = {subject, *objects}
    if description.relation == BETWEEN:
        facts.add((BETWEEN, subject, frozenset(objects)))
    elif description.relation in ("right", "below"):
        facts.add((INVERSE[description.relation], objects[0], subject))
    elif description.relation is not None:
        facts.add((description.relation, subject, objects[0]))
    return facts


def recall(caption: str, references: Iterable[str]) -> float:
    """The share of the facts in the references that are also in the caption."""
    reference_facts = set().union(*map(find_facts, references))
    return len(reference_facts & find_facts(caption)) / len(reference_facts)


def object_words(caption: str, scene: Scene) -> list[tuple[int, list[Box]]]:
    """The index in `words_and_punctuation(caption)` of the noun of each noun phrase, and the boxes of its objects.

    Nouns of kinds that the scene does not have are left out. The caption as a whole need not be parsable.
    """
    tokens = words_and_punctuation(caption)
    kinds = [kind for i in range(len(tokens)) if (kind := _read_kind(tokens, i)) is not None]
    nouns = [(kind.word, [item.box for item in kind.items(scene)]) for kind in kinds]
    return [(word, boxes) for word, boxes in nouns if boxes]
