"""The built-in captioning corpus: pictures of small scenes, drawn when they are first needed, and their captions.

A caption is one to three noun phrases ("two small red hearts") in a frame (PLAIN, PLACED), with at most one place ("in
the top left") or relation ("to the left of"), of the words in scenes.yaml. What is true of a scene follows from the
boxes of its objects:
    - a place holds for every object of its kind, by its centre, and "at the top" is not "in the top left";
    - a relation holds if a clear gap lies between two kinds; of three, one is between the two others.
scripts/scene_captions.py reads such captions, and checks whether they are true.
"""

import contextlib
import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

import yaml

from seqtool.data.corpora.corpus import SPLITS, Captioned, Digest, ImageCorpus
from seqtool.data.corpora.draw import Draw
from seqtool.data.corpora.scene_drawing import CLEAR, SHAPES, ZONES, Item, Scene, invent, render
from seqtool.data.directories import SUMMARY, make_once
from seqtool.errors import InputError
from seqtool.runtime.files import read_record, write_lines
from seqtool.runtime.progress import progress_bar

VERSION = 2  # of the pictures and captions: raise it when either changes

MOST = 1_000_000  # scenes of a split
CAPTIONS, SCENES = "captions.jsonl", "scenes.jsonl"
COMMAND = "seqtool prepare experiment=scenes_soft"

PER_SCENE = 5  # captions, all different
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


def generate(*, seed: int, train: int, valid: int, test: int) -> dict[str, list[tuple[Scene, list[str]]]]:
    """The scenes and captions of the three splits, of the sizes asked for.

    No two scenes have the same objects in the same cells, in one split or in two. The same seed gives the same
    scenes on every Python; test and valid do not depend on the size of train.
    """
    draw = Draw(seed)
    seen = set()
    splits: dict[str, list[tuple[Scene, list[str]]]] = {split: [] for split in SPLITS}
    for split, size in (("test", test), ("valid", valid), ("train", train)):
        while len(splits[split]) < size:
            scene = invent(draw)
            if scene.content not in seen:
                seen.add(scene.content)
                splits[split].append((scene, captions(scene, draw)))
    return splits


def read_captions(directory: Path, split: str) -> list[Captioned]:
    """The pictures of a split and their captions. Raises InputError if there are none."""
    return [
        Captioned(directory / record["file"], Path(record["file"]).name, tuple(record["captions"]))
        for record in read_records(directory / CAPTIONS, split)
    ]


@final
class Scenes(ImageCorpus):
    """The pictures in `directory`: a folder of PNG files per split, captions.jsonl, and scenes.jsonl with the boxes.

    Existing files are never changed: other settings need another directory.
    """

    name = "scenes"

    def __init__(self, *, directory: str, seed: int, train: int, valid: int, test: int) -> None:
        self._directory = Path(directory)
        self._sizes = {"train": train, "valid": valid, "test": test}
        for split, size in self._sizes.items():
            if size < 1:
                raise InputError(f"data.{split} is {size}: a split needs at least 1 scene.")
            if size > MOST:
                raise InputError(f"data.{split} is {size:,}: a split of the built-in images has at most {MOST:,}.")
        self._settings = {"seed": seed, **self._sizes}
        self._record: dict[str, Any] = {"corpus": self.name, "version": VERSION, **self._settings}

    def splits(self) -> tuple[str, ...]:
        return SPLITS

    def fetch(self) -> None:
        """Draw the pictures, unless they exist."""
        place = self._directory.resolve()  # a link stays a link
        with contextlib.suppress(OSError):
            place.rmdir()  # an empty one may be used; any other stays
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            make_once(place, self._draw)
        self.check()  # another process may have drawn others

    def check(self) -> None:
        """Raise InputError unless the pictures exist and were drawn with these settings."""
        if not self._directory.exists():
            settings = {"directory": self._directory, **self._settings}
            arguments = " ".join(shlex.quote(f"data.{name}={value}") for name, value in settings.items())
            raise InputError(f"{self._directory} does not exist: {COMMAND} {arguments} draws the built-in images.")
        if not self._directory.is_dir():
            raise InputError(f"{self._directory} is a file: set data.directory to a directory for the built-in images.")
        summary: dict[str, Any] = {}  # unknown content
        with contextlib.suppress(OSError, ValueError):
            summary = read_record(self._directory / SUMMARY)
        others = [name for name, value in self._record.items() if summary.get(name) != value]
        if not others:
            return
        if "corpus" in others:
            problem = "is not a directory of the built-in images and is not overwritten:"
        elif "version" in others:
            problem = "has the built-in images of another version of seqtool: remove it, or"
        else:
            drawn, wanted = (
                " ".join(f"data.{name}={record.get(name)}" for name in others) for record in (summary, self._record)
            )
            problem = f"has the built-in images of {drawn}, not {wanted}:"
        raise InputError(f"{self._directory} {problem} set data.directory to a new one.")

    def images(self, split: str) -> list[Captioned]:
        return read_captions(self._directory, split)

    def fingerprint(self, digest: Digest) -> dict[str, Any]:
        return {**self._record, "captions": digest(self._directory / CAPTIONS)}

    def _draw(self, directory: Path) -> dict[str, Any]:
        written, boxes = [], []
        with progress_bar(total=sum(self._sizes.values()), unit=" images", description="Drawing scenes") as bar:
            for split, described in generate(**self._settings).items():
                (directory / split).mkdir()
                for number, (scene, lines) in enumerate(described):
                    file = f"{split}/{number:05}.png"
                    render(scene).save(directory / file)
                    written.append(json.dumps({"file": file, "captions": lines}))
                    boxes.append(json.dumps({"file": file, **asdict(scene)}))
                    bar.update()
        write_lines(directory / CAPTIONS, written)
        write_lines(directory / SCENES, boxes)
        return self._record


def read_records(path: Path, split: str) -> list[dict[str, Any]]:
    """A file's record of each picture of a split. Raises InputError if it has none."""
    try:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{path} does not exist: {COMMAND} draws the built-in images.") from error
    except ValueError as error:
        raise InputError(f"{path} is damaged: remove {path.parent} and prepare again.") from error
    of_split = [record for record in records if record["file"].startswith(f"{split}/")]
    if not of_split:
        raise InputError(f"{path.parent} has no split '{split}'; choose from {', '.join(SPLITS)}.")
    return of_split


# The grammar of captions


def captions(scene: Scene, draw: Draw) -> list[str]:
    """Captions that name every kind of the scene, their numbers, and their relative positions."""
    different: list[str] = []
    while len(different) < PER_SCENE:
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
    return frame.format(_noun_phrase(kinds[0], draw), be="are" if len(kinds[0]) > 1 else "is", where=where)


def _noun_phrase(kind: Sequence[Item], draw: Draw) -> str:
    item, count = kind[0], len(kind)
    size = draw.pick([f"{word} " for word, size in SIZES.items() if size == item.size]) if draw.chance(0.5) else ""
    rest = f"{size}{item.colour} {PLURALS[item.shape] if count > 1 else item.shape}"
    return f"{determiner(count, rest)} {rest}"


def determiner(count: int, following: str) -> str:
    if count == 1:
        return "an" if following[0] in "aeiou" else "a"
    return next(word for word, number in DETERMINERS.items() if number == count)


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
