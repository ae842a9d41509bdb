"""The built-in images: what is drawn is what is said, and what is false is found out."""

import hashlib
import importlib.util
import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from evaluation_settings import evaluation_settings
from numpy.typing import NDArray
from omegaconf import OmegaConf
from PIL import Image, ImageChops
from scene_captions import Kind, is_true, named, object_words, parse, read_scenes, recall

from seqtool.data.cache import is_cache
from seqtool.data.corpora.scene_drawing import COLOURS, GAP, SHAPES, SIDE, SIDES, Box, Item, Scene, render
from seqtool.data.corpora.scenes import SPLITS, Scenes, generate
from seqtool.data.directories import Digests, make_once
from seqtool.data.text.words import words_and_punctuation
from seqtool.errors import InputError
from seqtool.evaluation import EvaluationData
from seqtool.evaluation.captions import CaptionEvaluator
from seqtool.settings.classes import build

ROOT = Path(__file__).parent.parent.parent
SETTINGS: dict[str, Any] = {"seed": 3, "train": 12, "valid": 5, "test": 6}

Described = tuple[Scene, list[str]]


@pytest.fixture(scope="module")
def corpus() -> dict[str, list[Described]]:
    return generate(seed=0, train=1500, valid=200, test=200)


@pytest.fixture(scope="module")
def described(corpus: dict[str, list[Described]]) -> list[Described]:
    return [one for split in corpus.values() for one in split]


@pytest.fixture(scope="module")
def evaluation() -> ModuleType:
    """scripts/evaluate_scenes.py."""
    specification = importlib.util.spec_from_file_location("evaluate_scenes", ROOT / "scripts" / "evaluate_scenes.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def scene(*items: str) -> Scene:
    """Objects written as "large red circle 10 20": left and top."""
    made = []
    for item in items:
        size, colour, shape, left, top = item.split()
        side = {"small": 12, "large": 20}[size]
        made.append(Item(shape, colour, size, 0, (int(left), int(top), int(left) + side, int(top) + side)))
    return Scene(tuple(made), clutter=1)


# The corpus


def test_same_seed_same_scenes_and_captions(corpus: dict[str, list[Described]]) -> None:
    text = json.dumps([[item.box for item in scene.items] + captions for scene, captions in corpus["test"]])
    # From the generator of version 2 (Python 3.11): it changes with seqtool.data.corpora.scenes.VERSION only.
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "6e81f8f479acafc8"
    assert generate(seed=1, train=1, valid=1, test=200)["test"] != corpus["test"]


def test_the_pictures_are_those_of_this_version(corpus: dict[str, list[Described]]) -> None:
    """They change with seqtool.data.corpora.scenes.VERSION only, but for what Pillow's versions round differently."""
    mean = np.mean([np.asarray(render(scene)) for scene, _ in corpus["test"][:50]], axis=(0, 1, 2))
    assert mean == pytest.approx([225.070, 222.945, 222.375], abs=0.02)


def test_valid_and_test_do_not_depend_on_the_size_of_train(corpus: dict[str, list[Described]]) -> None:
    smaller = generate(seed=0, train=10, valid=200, test=200)
    assert (smaller["valid"], smaller["test"]) == (corpus["valid"], corpus["test"])
    assert smaller["train"] == corpus["train"][:10]


def test_no_two_scenes_have_the_same_content(described: list[Described]) -> None:
    assert len({scene.content for scene, _ in described}) == len(described)


def test_every_reference_is_true_and_names_all_that_any_of_the_five_names(described: list[Described]) -> None:
    for scene, captions in described:
        assert len(set(captions)) == 5
        kinds = {(item.shape, item.colour) for item in scene.items}
        for caption in captions:
            assert is_true(caption, scene), caption
            assert recall(caption, captions) == 1
            said = parse(caption)
            assert said is not None and {(kind.shape, kind.colour) for kind in said.kinds} == kinds


def test_words_before_a_noun_phrase_tell_which_object_it_is(described: list[Described]) -> None:
    """Of two kinds the left or upper one is named first; so are the two that the third is between."""
    for scene, captions in described:
        for caption in captions:
            said = parse(caption)
            assert said is not None
            kinds = sorted(said.kinds, key=lambda kind: kind.word)
            if said.relation == "between":
                kinds.remove(said.kinds[0])
            boxes = [[item.box for item in kind.items(scene)] for kind in kinds]
            if len(boxes) == 2:
                first, second = boxes
                assert any(max(box[i + 2] for box in first) < min(box[i] for box in second) for i in (0, 1))


def test_vocabulary_and_variety(described: list[Described]) -> None:
    vocabulary = {word for _, captions in described for caption in captions for word in words_and_punctuation(caption)}
    assert len(vocabulary) == 57
    assert vocabulary >= {*COLOURS, *SHAPES, "two", "three", "four", "small", "large", "corner", "between", "under"}
    longest = max(len(words_and_punctuation(caption)) for _, captions in described for caption in captions)
    assert longest == 17


def test_captions_are_words_that_survive_normalisation(described: list[Described]) -> None:
    assert all(re.fullmatch(r"[a-z]+( [a-z]+)*", caption) for _, captions in described for caption in captions)


# The pictures


def test_objects_are_small_and_apart(described: list[Described]) -> None:
    for scene, _ in described:
        boxes = [item.box for item in scene.items]
        for i, (left, top, right, bottom) in enumerate(boxes):
            assert 0 < left < right < SIDE and 0 < top < bottom < SIDE
            assert (right - left) * (bottom - top) <= SIDE**2 / 10
            assert (
                max(right - left, bottom - top) in range(*SIDES[scene.items[i].size])
                or max(right - left, bottom - top) == SIDES[scene.items[i].size][1]
            )
            for other in boxes[:i]:
                assert max(left - other[2], other[0] - right, top - other[3], other[1] - bottom) >= GAP


def drawn(scene: Scene) -> Iterator[tuple[Item, Image.Image, Image.Image]]:
    """Each object with the picture before it was drawn and after."""
    pictures = [render(replace(scene, items=scene.items[:count])) for count in range(len(scene.items) + 1)]
    yield from zip(scene.items, pictures, pictures[1:], strict=False)


def test_a_box_holds_its_object_and_is_tight(described: list[Described]) -> None:
    for scene, _ in described[:150]:
        for item, before, after in drawn(scene):
            changed = ImageChops.difference(before, after).getbbox()
            assert changed == item.box


def test_what_is_in_a_box_has_the_colour_and_the_shape(described: list[Described]) -> None:
    """The nearest colour of most pixels, and how much of the box the shape fills."""
    palette = np.array(list(COLOURS.values()))
    filled = {"circle": 0.79, "square": 0.85, "triangle": 0.5, "star": 0.38, "heart": 0.66, "cross": 0.52}
    for scene, _ in described[:150]:
        for item, before, after in drawn(scene):
            old, new = (np.asarray(picture.crop(item.box)).astype(int) for picture in (before, after))
            covered = np.abs(new - old).max(-1) > 24
            nearest = np.linalg.norm(new[covered][:, None] - palette, axis=-1).argmin(-1)
            assert list(COLOURS)[np.bincount(nearest).argmax()] == item.colour
            assert covered.mean() == pytest.approx(filled[item.shape], abs=0.22), item


def test_relations_hold_of_the_pixels(described: list[Described]) -> None:
    """Of two kinds of different colours: which one's pixels lie further to the left, or higher."""
    checked = 0
    for scene, captions in described[:400]:
        said = parse(captions[0])
        assert said is not None
        if said.relation not in ("left", "right", "above", "below"):
            continue
        empty = np.asarray(render(replace(scene, items=()))).astype(int)
        first, second = (
            places(np.asarray(render(replace(scene, items=tuple(kind.items(scene))))).astype(int) - empty)
            for kind in said.kinds
        )
        axis = 0 if said.relation in ("above", "below") else 1
        before, after = (first, second) if said.relation in ("left", "above") else (second, first)
        assert before[axis].max() < after[axis].min()
        checked += 1
    assert checked > 100


def places(difference: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    rows, columns = np.abs(difference).max(-1).nonzero()
    return rows, columns


# The checker

TWO = scene("large green square 4 20", "small yellow triangle 40 24")
THREE = scene("small red circle 4 4", "small blue star 8 24", "small red heart 4 46")
HEARTS = scene("small red heart 20 4", "small red heart 36 8", "large blue circle 20 36")


@pytest.mark.parametrize(
    ("shown", "caption"),
    [
        (TWO, "a large green square to the left of a yellow triangle"),
        (TWO, "to the right of a big green square there is a little yellow triangle"),
        (TWO, "a green square"),  # not all of it, but true
        (TWO, "the picture shows a yellow triangle on the right"),
        (THREE, "a blue star can be seen between a red circle and a red heart"),
        (THREE, "between a red heart and a small red circle there is a blue star"),
        (THREE, "a red circle is above a red heart"),
        (HEARTS, "there are two small red hearts above a blue circle"),
        (HEARTS, "under two red hearts you can see a blue circle"),
    ],
)
def test_true(shown: Scene, caption: str) -> None:
    assert is_true(caption, shown)


@pytest.mark.parametrize(
    ("shown", "caption"),
    [
        (TWO, ""),
        (TWO, "there is"),
        (TWO, "a green square to the right of a yellow triangle"),
        (TWO, "a green square above a yellow triangle"),
        (TWO, "a small green square"),
        (TWO, "two green squares"),
        (TWO, "a yellow square"),
        (TWO, "a red circle"),
        (TWO, "an green square"),  # not grammatical
        (TWO, "a green squares"),
        (TWO, "there are a green square"),
        (TWO, "a green square a yellow triangle"),
        (TWO, "a green square to the left of a yellow triangle to the left of"),
        (TWO, "a green square to the left of a green square"),
        (TWO, "green square"),
        (TWO, "a green square in the top left"),
        (TWO, "a green square at the top"),
        (THREE, "a red circle between a blue star and a red heart"),
        (THREE, "a red circle in the middle"),
        (THREE, "a red circle to the left of a red heart"),
        (HEARTS, "a red heart above a blue circle"),  # there are two
        (HEARTS, "three red hearts above a blue circle"),
        (HEARTS, "two large red hearts above a blue circle"),
        (HEARTS, "there is two red hearts above a blue circle"),
    ],
)
def test_not_true(shown: Scene, caption: str) -> None:
    assert not is_true(caption, shown)


def test_a_relation_needs_a_clear_gap_and_a_place_its_zone() -> None:
    near, nearer = (scene("small red circle 10 10", f"small blue star {left} 10") for left in (27, 26))
    assert is_true("a red circle to the left of a blue star", near)  # 5 pixels apart
    assert not is_true("a red circle to the left of a blue star", nearer)
    assert is_true("a red circle in the top left corner", near)
    assert not is_true("a blue star in the top left", near)
    assert not is_true("a blue star at the top", scene("small blue star 16 10"))  # its centre is at 22: neither


SWAPS = {
    "colour": list(COLOURS),
    "shape": [*SHAPES],
    "shapes": [f"{shape}s" if shape != "cross" else "crosses" for shape in SHAPES],
    "count": ["two", "three", "four"],
    "small": ["small", "big"],
    "little": ["little", "large"],
    "relation": ["to the left of", "to the right of", "above", "below"],
    "other": ["over", "under"],
    "column": ["left", "right"],
    "row": ["top", "bottom"],
}


def mutations(caption: str) -> Iterator[tuple[str, str]]:
    """The caption with one word or phrase of a group exchanged for another of it, `a` for `an` as it must be."""
    for group, members in SWAPS.items():
        for member in members:
            if group == "column" and re.search(r"to the (left|right) of", caption):
                continue
            for found in re.finditer(rf"\b{member}\b", caption):
                for other in members:
                    if other != member:
                        text = caption[: found.start()] + other + caption[found.end() :]
                        yield group, re.sub(r"\ban?\b(?= (\w))", lambda one: "an" if one[1] in "aeiou" else "a", text)


def test_one_wrong_word_makes_a_caption_false(described: list[Described]) -> None:
    tried: dict[str, int] = {}
    for scene, captions in described[:400]:
        for caption in captions:
            for group, wrong in mutations(caption):
                assert not is_true(wrong, scene), (caption, wrong)
                tried[group] = tried.get(group, 0) + 1
    assert min(tried.get(group, 0) for group in SWAPS) > 50, tried


def test_swapped_kinds_make_a_caption_false(described: list[Described]) -> None:
    """a red circle above a blue star ↔ a blue star above a red circle; of three the middle one with another."""
    article = r"(?:an?|two|three|four)(?: \w+)?? (?:{})(?: \w+)".format("|".join(COLOURS))
    swapped = 0
    for scene, captions in described[:400]:
        for caption in captions:
            said, found = parse(caption), list(re.finditer(article, caption))
            assert said is not None and len(found) == len(said.kinds)
            if said.relation is None or len({kind.count > 1 for kind in said.kinds}) > 1:
                continue  # is or are would be wrong besides
            last = caption.startswith(("between", "to the", "above", "over", "below", "under"))
            one, two = (found[-2], found[-1]) if last else (found[0], found[1])
            wrong = caption[: one.start()] + two[0] + caption[one.end() : two.start()] + one[0] + caption[two.end() :]
            assert parse(wrong) is not None and not is_true(wrong, scene), (caption, wrong)
            swapped += 1
    assert swapped > 300


def test_a_caption_of_another_scene_is_true_only_if_it_holds_there(described: list[Described]) -> None:
    """Of scenes with other kinds it never is; in the mirror left is right, and all else stays."""
    for (one, _), (other, captions) in pairwise(described):
        if {(item.shape, item.colour) for item in one.items}.isdisjoint((i.shape, i.colour) for i in other.items):
            assert not any(is_true(caption, one) for caption in captions)
    for scene, captions in described[:400]:
        mirrored = replace(scene, items=tuple(replace(item, box=mirror(item.box)) for item in scene.items))
        for caption in captions:
            sideways = re.search(r"\bleft\b|\bright\b", caption) is not None
            assert is_true(caption, mirrored) != sideways, caption


def mirror(box: Box) -> Box:
    return SIDE - box[2], box[1], SIDE - box[0], box[3]


def test_random_words_are_refused_without_an_error(described: list[Described]) -> None:
    vocabulary = sorted(
        {word for _, captions in described for caption in captions for word in words_and_punctuation(caption)}
    )
    draw = random.Random(0)
    for scene, captions in described[:300]:
        shuffled = words_and_punctuation(captions[0])
        draw.shuffle(shuffled)
        for text in (" ".join(draw.choices(vocabulary, k=draw.randrange(12))), " ".join(shuffled)):
            if parse(text) is None:
                assert not is_true(text, scene) and named(text) == set()
            object_words(text, scene)
        for end in range(len(words_and_punctuation(captions[0]))):
            parse(" ".join(words_and_punctuation(captions[0])[:end]))


def test_named_and_recall() -> None:
    square, triangle = ("square", "green", 1), ("triangle", "yellow", 1)
    assert named("to the right of a big green square there is a yellow triangle") == {
        square,
        triangle,
        ("left", square, triangle),
    }
    references = ["a green square to the left of a yellow triangle"]
    assert recall("a small yellow triangle is to the right of a large green square", references) == 1
    assert recall("a green square is on the left", references) == pytest.approx(1 / 3)
    assert recall("a green square to the right of a yellow triangle", references) == pytest.approx(2 / 3)
    assert recall("a green", references) == 0


def test_object_words_are_the_nouns_and_their_boxes() -> None:
    caption = "under two little red hearts you can see a blue circle"
    hearts, circle = [item.box for item in HEARTS.items[:2]], [HEARTS.items[2].box]
    assert object_words(caption, HEARTS) == [(4, hearts), (10, circle)]
    assert object_words("a red star is a blue circle and a circle", HEARTS) == [(6, circle)]  # others are not there
    said = parse(caption)
    assert said is not None and said.kinds[0] == Kind("circle", "blue", None, 1, 10)


def test_every_kind_of_a_reference_has_its_object_word(described: list[Described]) -> None:
    for scene, captions in described:
        for caption in captions:
            found = object_words(caption, scene)
            assert sorted(box for _, boxes in found for box in boxes) == sorted(item.box for item in scene.items)
            nouns = {words_and_punctuation(caption)[word] for word, _ in found}
            assert nouns <= {*SWAPS["shape"], *SWAPS["shapes"]}


# The directory


def content(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_the_files_are_the_same_every_time(tmp_path: Path) -> None:
    first, second = (Scenes(directory=str(tmp_path / name), **SETTINGS) for name in ("one", "two"))
    first.fetch()
    second.fetch()
    files = content(tmp_path / "one")
    assert {name: data for name, data in files.items() if name != "summary.json"} == {
        name: data for name, data in content(tmp_path / "two").items() if name != "summary.json"
    }
    assert sum(name.endswith(".png") for name in files) == 23
    assert len(list(tmp_path.iterdir())) == 2  # nothing unfinished is left
    digest = Digests(tmp_path / "digests.json")
    assert first.fingerprint(digest) == second.fingerprint(digest)
    other = Scenes(directory=str(tmp_path / "three"), **{**SETTINGS, "seed": 4})
    other.fetch()
    assert other.fingerprint(digest) != first.fingerprint(digest)


def test_images_and_scenes_read_back(tmp_path: Path) -> None:
    made = Scenes(directory=str(tmp_path / "scenes"), **SETTINGS)
    made.fetch()
    assert made.splits() == SPLITS
    expected = generate(**SETTINGS)
    for split in SPLITS:
        images, scenes = made.images(split), read_scenes(tmp_path / "scenes", split)
        assert [(scenes[one.identifier], list(one.captions)) for one in images] == expected[split]
        for one in images:
            with Image.open(one.file) as picture:
                assert (picture.format, picture.mode, picture.size) == ("PNG", "RGB", (SIDE, SIDE))
                assert picture.tobytes() == render(scenes[one.identifier]).tobytes()


def test_pictures_are_drawn_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "data" / "scenes"
    place.mkdir(parents=True)  # an empty one may be used
    Scenes(directory=str(place), **SETTINGS).fetch()
    before = content(place)
    monkeypatch.setattr("seqtool.data.corpora.scenes.render", pytest.fail)
    Scenes(directory=str(place), **SETTINGS).fetch()
    assert content(place) == before


def test_every_picture_is_recorded_and_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures whose record is of before, when it had the sizes of folders, are not drawn again."""
    place, synced = tmp_path / "scenes", []
    monkeypatch.setattr("seqtool.data.directories.sync", lambda file: synced.append(Path(file.name).name))
    Scenes(directory=str(place), **SETTINGS).fetch()
    summary = json.loads((place / "summary.json").read_text())
    found = {str(path.relative_to(place)): path.stat().st_size for path in place.rglob("*") if path.is_file()}
    assert summary["files"] == {name: size for name, size in found.items() if name != "summary.json"}
    assert "train/00000.png" in found and len(synced) == len(found)
    assert not is_cache(place)
    summary["files"] = {"captions.jsonl": found["captions.jsonl"], "train": 4096, "valid": 4096, "test": 4096}
    (place / "summary.json").write_text(json.dumps(summary))
    monkeypatch.setattr("seqtool.data.corpora.scenes.render", pytest.fail)
    Scenes(directory=str(place), **SETTINGS).fetch()


def test_other_settings_leave_what_is_there(tmp_path: Path) -> None:
    place = tmp_path / "scenes"
    Scenes(directory=str(place), **SETTINGS).fetch()
    before = content(tmp_path)
    with pytest.raises(InputError) as error:
        Scenes(directory=str(place), **{**SETTINGS, "seed": 4, "train": 3}).fetch()
    assert str(error.value) == (
        f"{place} has the built-in images of data.seed=3 data.train=12, not data.seed=4 data.train=3: "
        "set data.directory to a new one."
    )
    assert content(tmp_path) == before


def test_another_version_leaves_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "scenes"
    with monkeypatch.context() as patch:
        patch.setattr("seqtool.data.corpora.scenes.VERSION", 1)
        Scenes(directory=str(place), **SETTINGS).fetch()
    before = content(tmp_path)
    with pytest.raises(InputError) as error:
        Scenes(directory=str(place), **SETTINGS).fetch()
    assert str(error.value) == (
        f"{place} has the built-in images of another version of seqtool: remove it, or set data.directory to a new one."
    )
    assert content(tmp_path) == before


def test_pictures_that_another_process_draws_meanwhile_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "scenes"

    def later(directory: Path, fill: Any) -> bool:
        make_once(directory, Scenes(directory=str(place), **{**SETTINGS, "train": 3})._draw)
        return make_once(directory, fill)

    monkeypatch.setattr("seqtool.data.corpora.scenes.make_once", later)
    with pytest.raises(InputError, match=r"has the built-in images of data\.train=3, not data\.train=12: set"):
        Scenes(directory=str(place), **SETTINGS).fetch()
    assert len(list((place / "train").iterdir())) == 3


def test_checking_writes_nothing(tmp_path: Path) -> None:
    place = tmp_path / "new" / "my scenes"
    made = Scenes(directory=str(place), **SETTINGS)
    with pytest.raises(InputError) as error:
        made.check()
    assert str(error.value) == (
        f"{place} does not exist: seqtool prepare experiment=scenes_soft 'data.directory={place}' data.seed=3 "
        "data.train=12 data.valid=5 data.test=6 draws the built-in images."
    )
    assert list(tmp_path.iterdir()) == []
    made.fetch()
    made.check()
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty is not a directory of the built-in images"):
        Scenes(directory=str(tmp_path / "empty"), **SETTINGS).check()


def test_a_checkpoint_does_not_say_where_eval_draws(tmp_path: Path) -> None:
    """Unless they are the user's own, settings of data may name pictures that are there, and have none drawn."""
    place = tmp_path / "anywhere"
    config = {"_target_": "seqtool.data.corpora.scenes.Scenes", "directory": str(place), **SETTINGS}
    stranger: Any = SimpleNamespace(config={"data": config}, trust=[])
    settings = evaluation_settings(split="valid")
    with pytest.raises(InputError, match="anywhere does not exist: seqtool prepare experiment=scenes_soft"):
        CaptionEvaluator(settings).evaluate_checkpoint(stranger, EvaluationData())
    assert list(tmp_path.iterdir()) == []
    own = EvaluationData(OmegaConf.create(config))
    with pytest.raises(InputError, match="Unknown split 'dev'"):
        CaptionEvaluator(replace(settings, split="dev")).evaluate_checkpoint(stranger, own)
    assert (place / "captions.jsonl").exists()


@pytest.mark.parametrize("name", ["holiday.jpg", "summary.json", "train", "captions.jsonl"])
def test_a_directory_of_someone_else_is_not_overwritten(tmp_path: Path, name: str) -> None:
    place = tmp_path / "photos"
    place.mkdir()
    (place / name).write_text("mine")
    with pytest.raises(InputError) as error:
        Scenes(directory=str(place), **SETTINGS).fetch()
    assert str(error.value) == (
        f"{place} is not a directory of the built-in images and is not overwritten: set data.directory to a new one."
    )
    assert content(place) == {name: b"mine"}


def test_a_file_put_among_the_pictures_is_not_lost(tmp_path: Path) -> None:
    place = tmp_path / "scenes"
    Scenes(directory=str(place), **SETTINGS).fetch()
    (place / "notes.txt").write_text("mine")
    Scenes(directory=str(place), **SETTINGS).fetch()  # as it was
    with pytest.raises(InputError, match=r"set data\.directory to a new one"):
        Scenes(directory=str(place), **{**SETTINGS, "train": 3}).fetch()
    assert (place / "notes.txt").exists()


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^data\.valid is 0: a split needs at least 1 scene\.$"):
        Scenes(directory="scenes", **{**SETTINGS, "valid": 0})
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file is a file: set data\.directory to a directory for the built-in images"):
        Scenes(directory=str(tmp_path / "file"), **SETTINGS).fetch()
    with pytest.raises(InputError, match=r"scenes\.jsonl does not exist: seqtool prepare experiment=scenes_soft draws"):
        read_scenes(tmp_path, "test")
    made = Scenes(directory=str(tmp_path / "scenes"), **SETTINGS)
    made.fetch()
    with pytest.raises(InputError, match=r"scenes has no split 'dev'; choose from train, valid, test\.$"):
        made.images("dev")
    (tmp_path / "scenes" / "captions.jsonl").write_text("{")
    with pytest.raises(InputError, match=r"captions\.jsonl is damaged: remove .*scenes and prepare again\.$"):
        made.images("test")


def test_the_configuration_makes_the_corpus() -> None:
    config: Any = OmegaConf.load(ROOT / "configs" / "data" / "scenes.yaml")
    own = {name: config[name] for name in ("_target_", "directory", "seed", "train", "valid", "test")}
    assert isinstance(build(own, trusted=False), Scenes)


# scripts/evaluate_scenes.py


class Said:
    """A caption as a captioner gives it, with all attention of each word on one cell of the grid."""

    def __init__(self, text: str, attended: list[tuple[int, int]] | None) -> None:
        self.text, self.words, self.grid = text, words_and_punctuation(text), (8, 8)
        self.attention = None
        if attended is not None:
            self.attention = np.zeros((len(self.words), 64), np.float32)
            for row, (i, j) in zip(self.attention, attended, strict=True):
                row[i * 8 + j] = 1


def test_measuring_truth_recall_and_attention(evaluation: ModuleType) -> None:
    reference = "two red hearts above a blue circle"
    attended = [(0, 0), (0, 0), (1, 3), (0, 0), (0, 0), (0, 0), (0, 0)]  # on a heart; beside the circle
    found = evaluation.measure([Said(reference, attended), Said("a red heart", None)], [HEARTS] * 2, [[reference]] * 2)
    assert (found["true"], found["recall"], found["object_words"]) == (0.5, 0.5, 2)
    hearts, circle = 2 * 2 + 2 * 2, 3 * 3  # cells of 20–32 × 4–16 and 36–48 × 8–20; of 20–40 × 36–56
    assert (found["attention"], found["chance"]) == (0.5, pytest.approx((hearts + circle) / 2 / 64))
    assert found["true_by_kind"] == {"two kinds": 0.5}
    assert "chance" in evaluation.table(found)


def test_cells_of_boxes(evaluation: ModuleType) -> None:
    assert evaluation.cells([(8, 16, 16, 24)], (8, 8)) == {(2, 1)}
    assert evaluation.cells([(7, 16, 17, 24)], (8, 8)) == {(2, 0), (2, 1), (2, 2)}
    assert evaluation.cells([(0, 0, 1, 1), (63, 63, 64, 64)], (7, 7)) == {(0, 0), (6, 6)}


def test_the_script_measures_a_split(
    evaluation: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Scenes(directory=str(tmp_path / "scenes"), **SETTINGS)
    made.fetch()
    said = {str(one.file): Said(one.captions[0], None) for one in made.images("test")}
    first = next(iter(said))
    said[first] = Said("a red", None)
    captioner = object.__new__(evaluation.Captioner)
    captioner.describe = lambda files: [[said[file]] for file in files]
    settings: dict[str, Any] = {}
    monkeypatch.setattr("seqtool.load", lambda path, **given: settings.update(given, path=path) or captioner)
    output = tmp_path / "found.json"
    evaluation.main([f"data={tmp_path / 'scenes'}", "checkpoint=run", f"output={output}", "beam=3"])
    assert settings == {"path": "run", "beam": 3}
    found = json.loads(output.read_text())
    assert (found["scenes"], found["attention"]) == (6, None)
    assert found["true"] == found["recall"] == pytest.approx(5 / 6)
    assert [(one["file"], one["caption"]) for one in found["untrue"]] == [("test/00000.png", "a red")]
    assert {"command", "hardware"} <= found.keys()
    assert "83.3%" in capsys.readouterr().out


def test_the_script_names_what_is_missing(evaluation: ModuleType) -> None:
    with pytest.raises(InputError, match="checkpoint=… is missing"):
        evaluation.main([])
    with pytest.raises(InputError, match="'runs/a' is not a setting: write key=value"):
        evaluation.main(["runs/a"])
