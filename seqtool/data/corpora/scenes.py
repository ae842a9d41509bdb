"""The built-in captioning corpus: pictures of small scenes, which are drawn when needed, and their captions.

A caption puts one to three noun phrases ("two small red hearts") into a template without a position
(FRAMES) or with one (FRAMES_WITH_POSITION): a place ("in the top left") or a relation ("to the left of"). scenes.yaml
has the words. The boxes of a scene's objects decide which captions are true:

- A place is true of a kind if the centres of all its objects are there. "At the top" excludes "in the top left".
- A relation is true of two kinds if there is a clear gap between them.
- "Between" is true if the first of three kinds lies between the second and the third, with clear gaps.

scripts/scene_captions.py parses such captions and checks whether they are true.
"""

import contextlib
import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

from seqtool.data.corpora.corpus import SPLITS, Captioned, Digest, ImageCorpus, check_sizes
from seqtool.data.corpora.draw import StableRandom
from seqtool.data.corpora.scene_drawing import CLEARANCE, SHAPES, TABLES, ZONES, Item, Scene, invent_scene, render
from seqtool.data.directories import SUMMARY, make_once
from seqtool.errors import InputError, place
from seqtool.runtime.files import check_directory, read_record, write_lines
from seqtool.runtime.progress import progress_bar

VERSION = 2  # the version of the pictures and captions: raise it when either changes

MAX_SCENES = 1_000_000  # the largest size of a split
CAPTIONS, SCENES = "captions.jsonl", "scenes.jsonl"  # file names
COMMAND = "seqtool prepare experiment=scenes_soft"  # named in error messages

CAPTIONS_PER_SCENE = 5  # different captions of each scene
DETERMINERS: dict[str, int] = TABLES["determiners"]  # the number that each determiner means
SIZES: dict[str, str] = TABLES["sizes"]
# the column and row of each place in the 3 × 3 grid
PLACES = {text: (column, row) for text, (column, row) in TABLES["places"].items()}
PLURALS = {shape: "crosses" if shape == "cross" else f"{shape}s" for shape in SHAPES}
RELATIONS: dict[str, str] = TABLES["relations"]
INVERSE = {"left": "right", "right": "left", "above": "below", "below": "above"}
BETWEEN = "between"
FRAMES: list[str] = TABLES["frames"]  # caption templates without a position
FRAMES_WITH_POSITION: list[str] = TABLES["frames_with_position"]


def generate(*, seed: int, train: int, valid: int, test: int) -> dict[str, list[tuple[Scene, list[str]]]]:
    """Return the scenes of the three splits, each with its captions. train, valid, test: the numbers of scenes

    No two scenes, of one split or of two, have equal objects in equal cells. Equal seeds give equal scenes in every
    version of Python. The scenes of test and valid do not depend on the size of train.
    """
    rng = StableRandom(seed)
    contents = set()
    splits: dict[str, list[tuple[Scene, list[str]]]] = {split: [] for split in SPLITS}
    for split, size in (("test", test), ("valid", valid), ("train", train)):
        while len(splits[split]) < size:
            scene = invent_scene(rng)
            if scene.content not in contents:
                contents.add(scene.content)
                splits[split].append((scene, captions(scene, rng)))
    return splits


def read_captions(directory: Path, split: str) -> list[Captioned]:
    """Read the pictures of a split and their captions. Raises InputError if there are none."""
    return [
        Captioned(directory / record["file"], Path(record["file"]).name, tuple(record["captions"]))
        for record in read_records(directory / CAPTIONS, split)
    ]


@final
class Scenes(ImageCorpus):
    """The pictures in `directory`: a folder of PNG files per split, captions.jsonl, and scenes.jsonl with the boxes.

    Existing files are never changed, so other settings need another directory.
    """

    name = "scenes"

    def __init__(self, *, directory: str, seed: int, train: int, valid: int, test: int) -> None:
        self._directory = Path(directory)
        self._sizes = {"train": train, "valid": valid, "test": test}
        check_sizes(self._sizes, "scene", maximum=dict.fromkeys(SPLITS, MAX_SCENES))
        self._settings = {"seed": seed, **self._sizes}
        self._record: dict[str, Any] = {"corpus": self.name, "version": VERSION, **self._settings}

    def splits(self) -> tuple[str, ...]:
        return SPLITS

    def fetch(self) -> None:
        """Draw the pictures, unless they exist."""
        directory = self._directory.resolve()  # if it is a symbolic link, its target is made and the link is kept
        with contextlib.suppress(OSError):
            directory.rmdir()  # removes only an empty directory, since make_once only fills new directories
        if not directory.exists():
            check_directory(directory, "data.directory")
            make_once(directory, self._draw)
        self.check()  # another process may have drawn pictures with other settings

    def check(self) -> None:
        """Raise InputError unless the pictures exist and were drawn with these settings."""
        if not self._directory.exists():
            settings = {"directory": self._directory, **self._settings}
            arguments = " ".join(shlex.quote(f"data.{name}={value}") for name, value in settings.items())
            raise InputError(f"{self._directory} does not exist: {COMMAND} {arguments} draws the built-in images.")
        if not self._directory.is_dir():
            raise InputError(f"{self._directory} is a file: set data.directory to a directory for the built-in images.")
        summary: dict[str, Any] = {}  # stays empty if the directory has no summary because it holds other files
        with contextlib.suppress(OSError, ValueError):
            summary = read_record(self._directory / SUMMARY)
        different_settings = [name for name, value in self._record.items() if summary.get(name) != value]
        if not different_settings:
            return
        if "corpus" in different_settings:
            problem = "is not a directory of the built-in images and is not overwritten:"
        elif "version" in different_settings:
            problem = "has the built-in images of another version of seqtool: remove it, or"
        else:
            existing_settings = " ".join(f"data.{name}={summary.get(name)}" for name in different_settings)
            requested_settings = " ".join(f"data.{name}={self._record[name]}" for name in different_settings)
            problem = f"has the built-in images of {existing_settings}, not {requested_settings}:"
        raise InputError(f"{place(self._directory)} {problem} set data.directory to a new one.")

    def images(self, split: str) -> list[Captioned]:
        return read_captions(self._directory, split)

    def fingerprint(self, digest: Digest) -> dict[str, Any]:
        return {**self._record, "captions": digest(self._directory / CAPTIONS)}

    def _draw(self, directory: Path) -> dict[str, Any]:
        """Write all files except the summary, which is returned."""
        caption_lines, scene_lines = [], []
        with progress_bar(total=sum(self._sizes.values()), unit=" images", description="Drawing scenes") as bar:
            for split, scenes in generate(**self._settings).items():
                (directory / split).mkdir()
                for number, (scene, texts) in enumerate(scenes):
                    file = f"{split}/{number:05}.png"
                    render(scene).save(directory / file)
                    caption_lines.append(json.dumps({"file": file, "captions": texts}))
                    scene_lines.append(json.dumps({"file": file, **asdict(scene)}))
                    bar.update()
        write_lines(directory / CAPTIONS, caption_lines)
        write_lines(directory / SCENES, scene_lines)
        return self._record


def read_records(path: Path, split: str) -> list[dict[str, Any]]:
    """Read the records of a split's pictures in CAPTIONS or SCENES. Raises InputError if there are none."""
    try:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{path} does not exist: {COMMAND} draws the built-in images.") from error
    except ValueError as error:
        raise InputError(f"{path} is damaged: remove {path.parent} and prepare again.") from error
    split_records = [record for record in records if record["file"].startswith(f"{split}/")]
    if not split_records:
        raise InputError(f"{path.parent} has no split '{split}'; choose from {', '.join(SPLITS)}.")
    return split_records


# The grammar of captions


def captions(scene: Scene, rng: StableRandom) -> list[str]:
    """Make different captions of the scene. Each names all of its kinds, their numbers and their relative positions."""
    texts: list[str] = []
    while len(texts) < CAPTIONS_PER_SCENE:
        caption = _caption(scene, rng)
        if caption not in texts:
            texts.append(caption)
    return texts


def _caption(scene: Scene, rng: StableRandom) -> str:
    """Make a caption that names the kinds in reading order, except that the middle one of three kinds comes first.

    A fixed order is needed because attention chooses where to look for a word before it reads the previous word. With
    the kinds in a random order, it could not know whether that word was "red" or the other object's "blue".
    """
    groups: dict[tuple[str, str], list[Item]] = {}
    for item in scene.items:
        groups.setdefault((item.shape, item.colour), []).append(item)
    kinds = list(groups.values())  # from left to right or from top to bottom
    frame = rng.pick(FRAMES_WITH_POSITION)
    relation_first = frame.startswith("{where}")
    where = ""
    if len(kinds) == 3:
        kinds = [kinds[1], kinds[0], kinds[2]]
        where = f"{BETWEEN} {_noun_phrase(kinds[1], rng)} and {_noun_phrase(kinds[2], rng)}"
    elif len(kinds) == 2:
        kinds = kinds[::-1] if relation_first else kinds
        relation = rng.pick([text for text, name in RELATIONS.items() if is_related(name, kinds)])
        where = f"{relation} {_noun_phrase(kinds[1], rng)}"
    elif len(scene.items) == 1 and rng.chance(0.75):
        where = rng.pick([text for text, place in PLACES.items() if is_at(place, kinds[0])])
    else:
        frame = rng.pick(FRAMES)
    return frame.format(_noun_phrase(kinds[0], rng), be="are" if len(kinds[0]) > 1 else "is", where=where)


def _noun_phrase(kind: Sequence[Item], rng: StableRandom) -> str:
    """Make a noun phrase such as "two small red hearts". Half of the phrases name the size."""
    item, count = kind[0], len(kind)
    size = rng.pick([f"{word} " for word, size in SIZES.items() if size == item.size]) if rng.chance(0.5) else ""
    noun = f"{size}{item.colour} {PLURALS[item.shape] if count > 1 else item.shape}"
    return f"{determiner(count, noun)} {noun}"


def determiner(count: int, next_text: str) -> str:
    """The article or number of a noun phrase. next_text: the words that follow it"""
    if count == 1:
        return "an" if next_text[0] in "aeiou" else "a"
    return next(word for word, number in DETERMINERS.items() if number == count)


def is_at(place: tuple[int, int], items: Sequence[Item]) -> bool:
    """Whether the centres of all objects are in this column and row of the picture, each from 0 to 2."""
    return all(
        ZONES[zone][0] <= coordinate <= ZONES[zone][1]
        for item in items
        for zone, coordinate in zip(place, item.centre, strict=True)
    )


def is_related(relation: str, kinds: Sequence[Sequence[Item]]) -> bool:
    """Whether the first kind is left of (right of, above, below) the second, or between the second and the third."""
    if relation == BETWEEN:
        first, second, third = kinds
        return any(is_related(side, (second, first)) and is_related(side, (first, third)) for side in INVERSE)
    if relation in ("right", "below"):
        return is_related(INVERSE[relation], kinds[::-1])
    axis = 0 if relation == "left" else 1
    first, second = kinds
    return max(item.box[axis + 2] for item in first) + CLEARANCE <= min(item.box[axis] for item in second)
