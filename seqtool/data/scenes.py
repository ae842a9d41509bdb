"""The built-in captioning corpus: pictures of small scenes, drawn when they are first asked for."""

import contextlib
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

from tqdm import tqdm

from seqtool.data.captioning import Captioned, Digest, ImageCorpus
from seqtool.data.directories import SUMMARY, make_once
from seqtool.data.scene_drawing import Item, Scene, invent, render
from seqtool.data.scene_language import captions
from seqtool.data.toy_phrases import Draw
from seqtool.errors import InputError

VERSION = 2  # of the pictures and captions: raise it when either changes

CAPTIONS, SCENES = "captions.jsonl", "scenes.jsonl"
SPLITS = ("train", "valid", "test")


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
    """The pictures of a split and their captions. Raises InputError where there are none."""
    return [
        Captioned(directory / record["file"], Path(record["file"]).name, tuple(record["captions"]))
        for record in _read(directory / CAPTIONS, split)
    ]


def read_scenes(directory: Path, split: str) -> dict[str, Scene]:
    """What is on the pictures of a split, by file name. Raises InputError where there are none."""
    scenes = {}
    for record in _read(directory / SCENES, split):
        items = tuple(Item(**{**item, "box": tuple(item["box"])}) for item in record["items"])
        scenes[Path(record["file"]).name] = Scene(items, record["clutter"])
    return scenes


@final
class Scenes(ImageCorpus):
    """The pictures in `directory`: a folder of PNG files a split, captions.jsonl, and scenes.jsonl with the boxes.

    They are drawn again when the settings differ from those that they were drawn with; a directory that holds
    anything else is left alone.
    """

    name = "scenes"

    def __init__(self, *, directory: str, seed: int, train: int, valid: int, test: int) -> None:
        self._directory = Path(directory)
        self._sizes = {"train": train, "valid": valid, "test": test}
        for split, size in self._sizes.items():
            if size < 1:
                raise InputError(f"data.{split} is {size}: a split needs at least 1 scene.")
        self._record: dict[str, Any] = {"corpus": self.name, "version": VERSION, "seed": seed, **self._sizes}
        self._seed = seed

    def splits(self) -> tuple[str, ...]:
        return SPLITS

    def fetch(self) -> None:
        """Draw the pictures, unless they are there."""
        if self._is_made():
            return
        self._check_ours()
        self._directory.parent.mkdir(parents=True, exist_ok=True)
        place = self._directory.resolve()  # a link stays a link
        stale = place.with_name(f".{place.name}.{os.getpid()}.old")
        with contextlib.suppress(FileNotFoundError):
            place.rename(stale)
        shutil.rmtree(stale, ignore_errors=True)
        make_once(place, self._draw)

    def images(self, split: str) -> list[Captioned]:
        return read_captions(self._directory, split)

    def fingerprint(self, digest: Digest) -> dict[str, Any]:
        return {**self._record, "captions": digest(self._directory / CAPTIONS)}

    def _is_made(self) -> bool:
        found = _summary(self._directory)
        return all(found.get(name) == value for name, value in self._record.items())

    def _check_ours(self) -> None:
        """Raise InputError if the directory has anything but what was drawn into it."""
        if not self._directory.exists():
            return
        if not self._directory.is_dir():
            raise InputError(f"{self._directory} is a file: set data.directory to a directory for the built-in images.")
        content = {path.name for path in self._directory.iterdir()}
        foreign = sorted(content - {SUMMARY, CAPTIONS, SCENES, *SPLITS})
        if foreign or (content and _summary(self._directory).get("corpus") != self.name):
            what = foreign[0] if foreign else "no record of the built-in images"
            raise InputError(
                f"{self._directory} is not a directory of the built-in images (it has {what}) and is not "
                "overwritten: set data.directory to a new one."
            )

    def _draw(self, directory: Path) -> dict[str, Any]:
        splits = generate(seed=self._seed, **self._sizes)
        for split in splits:
            (directory / split).mkdir(parents=True)
        with (
            (directory / CAPTIONS).open("w", encoding="utf-8") as written,
            (directory / SCENES).open("w", encoding="utf-8") as boxes,
            tqdm(total=sum(self._sizes.values()), unit=" images", desc="Drawing scenes", disable=None) as bar,
        ):
            for split in SPLITS:
                for number, (scene, lines) in enumerate(splits[split]):
                    file = f"{split}/{number:05}.png"
                    render(scene).save(directory / file)
                    written.write(json.dumps({"file": file, "captions": lines}) + "\n")
                    boxes.write(json.dumps({"file": file, **asdict(scene)}) + "\n")
                    bar.update()
        return self._record


def _read(path: Path, split: str) -> list[dict[str, Any]]:
    try:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{path} does not exist: seqtool prepare data=scenes draws the built-in images.") from error
    except ValueError as error:
        raise InputError(f"{path} is damaged: remove {path.parent} and prepare again.") from error
    found = [record for record in records if record["file"].startswith(f"{split}/")]
    if not found:
        raise InputError(f"{path.parent} has no split '{split}'; choose from {', '.join(SPLITS)}.")
    return found


def _summary(directory: Path) -> dict[str, Any]:
    """What the directory was made with; empty where nothing says so."""
    try:
        found = json.loads((directory / SUMMARY).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
