"""Tests of captioned images: data sets are read as they are published, and errors name the file and line."""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from seqtool.data.corpora.caption_files import read_captions, read_list
from seqtool.data.corpora.caption_sources import Coco, Flickr8k, Flickr30k, Karpathy
from seqtool.data.corpora.corpus import Captioned, ImageCorpus
from seqtool.data.corpora.photos import Photos
from seqtool.data.images.finding import image_id
from seqtool.errors import InputError
from seqtool.settings.classes import build

ROOT = Path(__file__).resolve().parent.parent.parent


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def write_json(path: Path, content: object) -> Path:
    return write(path, json.dumps(content))


def token_lines(*images: str, captions: int = 2) -> str:
    return "".join(f"{image}#{n}\tCaption {n}  of {image} .\n" for image in images for n in range(captions))


def image_names(images: Sequence[Captioned]) -> list[str]:
    return [image.identifier for image in images]


def fingerprint(corpus: ImageCorpus) -> dict[str, Any]:
    return corpus.fingerprint(lambda path: hashlib.sha256(path.read_bytes()).hexdigest())


def refusal(action: Any, *arguments: Any) -> str:
    with pytest.raises(InputError) as error:
        action(*arguments)
    return str(error.value)


@pytest.mark.parametrize("name", ["flickr8k", "flickr30k", "coco", "karpathy", "photos"])
def test_configurations_build_their_source(name: str) -> None:
    settings = OmegaConf.load(ROOT / "configs" / "data" / f"{name}.yaml")
    del settings["defaults"]
    if name == "photos":
        assert OmegaConf.missing_keys(settings) == {"train"}
        settings["train"] = "captions.jsonl"
    corpus = build(settings, trusted=False)
    assert isinstance(corpus, ImageCorpus) and corpus.name == name


@pytest.fixture
def flickr8k(tmp_path: Path) -> Path:
    write(tmp_path / "Flickr8k.token.txt", token_lines("a.jpg", "b.jpg", "c.jpg", "odd.jpg.1"))
    write(tmp_path / "Flickr_8k.trainImages.txt", "c.jpg\na.jpg\n")
    write(tmp_path / "Flickr_8k.devImages.txt", "b.jpg")
    (tmp_path / "Flicker8k_Dataset").mkdir()
    return tmp_path


def test_flickr8k_is_read(flickr8k: Path) -> None:
    corpus = Flickr8k(directory=str(flickr8k))
    corpus.fetch()
    assert corpus.splits() == ("train", "valid")
    images = corpus.images("train")
    assert images[1] == Captioned(
        flickr8k / "Flicker8k_Dataset" / "a.jpg", "a.jpg", ("Caption 0 of a.jpg .", "Caption 1 of a.jpg .")
    )
    assert (image_names(images), image_names(corpus.images("valid"))) == (["c.jpg", "a.jpg"], ["b.jpg"])
    before = fingerprint(corpus)
    write(flickr8k / "Flickr_8k.testImages.txt", "odd.jpg.1\n")
    corpus = Flickr8k(directory=str(flickr8k))
    assert corpus.splits() == ("train", "valid", "test")
    assert image_names(corpus.images("test")) == ["odd.jpg.1"]
    assert fingerprint(corpus) != before
    (flickr8k / "Images").mkdir()
    assert corpus.images("train")[0].file == flickr8k / "Images" / "c.jpg"


def test_missing_files_of_flickr8k_are_named(flickr8k: Path) -> None:
    corpus = Flickr8k(directory=str(flickr8k))
    (flickr8k / "Flicker8k_Dataset").rmdir()
    assert refusal(corpus.fetch) == (
        f"{flickr8k} has no folder Images or Flicker8k_Dataset or Flickr8k_Dataset: put the images there."
    )
    (flickr8k / "Flickr_8k.devImages.txt").unlink()
    assert refusal(corpus.fetch) == (
        f"{flickr8k}/Flickr_8k.devImages.txt does not exist: "
        "it is in Flickr8k_text.zip; set data.directory to where its files are."
    )
    assert refusal(Flickr8k(directory=f"{flickr8k}/no").fetch) == (
        f"{flickr8k}/no is not a directory: set data.directory to where the images are."
    )


def test_lists_of_flickr8k_must_match_its_captions(flickr8k: Path) -> None:
    path = write(flickr8k / "Flickr_8k.devImages.txt", "b.jpg\nz.jpg\n")
    corpus = Flickr8k(directory=str(flickr8k))
    assert refusal(corpus.images, "valid") == (
        f"{path} line 2 names z.jpg, which has no caption in {flickr8k}/Flickr8k.token.txt."
    )
    write(path, "b.jpg\n\nb.jpg\n")
    assert refusal(corpus.images, "valid") == f"{path} line 3 names b.jpg again."


def test_the_published_flickr8k_is_read(shared: Path) -> None:
    corpus = Flickr8k(directory=str(shared / "data" / "flickr8k"))
    corpus.fetch()
    splits = {split: corpus.images(split) for split in corpus.splits()}
    assert {split: len(images) for split, images in splits.items()} == {"train": 6_000, "valid": 1_000}
    everything = [image for images in splits.values() for image in images]
    assert {len(image.captions) for image in everything} == {5}
    assert len({image.identifier for image in everything}) == 7_000
    assert all(image.file.is_file() for image in everything)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a#0\tx\na#1 x\n", "line 2 must be a file name, # and a number, one tab, a caption."),
        ("a#0\tx\nb#0\ty\na#0\tz\n", "line 3 has caption 0 of a again."),
        (b"a#0\tx\na#1\tcaf\xe9\n", "line 2 is not valid UTF-8 (byte 8 of the line): convert the file to UTF-8."),
    ],
)
def test_malformed_token_files_are_refused(content: str | bytes, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "tokens", content)
    assert refusal(read_captions, path) == f"{path} {message}"
    assert refusal(read_captions, write(path, "")) == f"{path} is empty."


@pytest.mark.parametrize("caption", ["", "  ", "\u00a0\t"])
def test_an_empty_caption_is_refused_where_its_image_is_used(caption: str, flickr8k: Path) -> None:
    path = write(flickr8k / "Flickr8k.token.txt", f"{token_lines('a.jpg', 'c.jpg')}b.jpg#0\t{caption}\n")
    corpus = Flickr8k(directory=str(flickr8k))
    assert image_names(corpus.images("train")) == ["c.jpg", "a.jpg"]
    assert refusal(corpus.images, "valid") == f"{path} line 5 has an empty caption of b.jpg."


@pytest.mark.parametrize("name", ["../a.jpg", "/etc/passwd", "a/../../b", "..", ".", "a\0b"])
def test_names_outside_the_directory_are_refused(name: str, tmp_path: Path) -> None:
    write(tmp_path / "Flickr8k.token.txt", token_lines(name))
    write(tmp_path / "Flickr_8k.trainImages.txt", name)
    (tmp_path / "Images").mkdir()
    assert refusal(Flickr8k(directory=str(tmp_path)).images, "train") == (
        f"{tmp_path}/Flickr8k.token.txt line 1 names the image {name!r}: "
        f"it must be the name of a file in {tmp_path}/Images."
    )


def karpathy_entry(split: str, name: str, *captions: str, **more: object) -> dict[str, object]:
    return {"split": split, "filename": name, "sentences": [{"raw": text, "tokens": []} for text in captions], **more}


def make_karpathy(directory: Path, content: object) -> Karpathy:
    path = write_json(directory / "dataset.json", content)
    return Karpathy(directory=str(directory), annotations=str(path))


def test_karpathys_splits_of_flickr_are_read(tmp_path: Path) -> None:
    images = [
        karpathy_entry("test", "c.jpg", "x"),
        karpathy_entry("train", "a.jpg", " A  dog .\n", "z"),
        karpathy_entry("val", "b.jpg", "y"),
    ]
    corpus = make_karpathy(tmp_path, {"images": images, "dataset": "flickr8k"})
    corpus.fetch()
    assert corpus.splits() == ("train", "valid", "test")
    assert corpus.images("train") == [Captioned(tmp_path / "a.jpg", "a.jpg", ("A dog .", "z"))]
    assert (image_names(corpus.images("valid")), image_names(corpus.images("test"))) == (["b.jpg"], ["c.jpg"])
    assert make_karpathy(tmp_path, {"images": images[1:]}).splits() == ("train", "valid")


def test_karpathys_splits_of_coco_are_read(tmp_path: Path) -> None:
    images = [
        karpathy_entry("restval", "v1.jpg", "x", filepath="val2014", cocoid=7),
        karpathy_entry("train", "t1.jpg", "y", filepath="train2014", cocoid=9),
        karpathy_entry("test", "v2.jpg", "z", filepath="val2014", cocoid=8),
    ]
    corpus = make_karpathy(tmp_path, {"images": images})
    assert corpus.splits() == ("train", "test")
    assert corpus.images("train") == [
        Captioned(tmp_path / "val2014" / "v1.jpg", "7", ("x",)),
        Captioned(tmp_path / "train2014" / "t1.jpg", "9", ("y",)),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "{} has no captions."),
        ({"image": []}, "{} line 1: 'image' must be text, not []."),
        ({"images": {}}, "{} has no captions."),
        ({"images": [3]}, "{} images[0] must be an object, not 3."),
        ({"images": [{"filename": "a"}]}, "{} has no 'annotations'."),
        (
            {"images": [{"filename": "a", "sentences": [{"raw": "x"}]}]},
            "{} images[0] has no split: it must be one of train, restval, val, test.",
        ),
        (
            {"images": [karpathy_entry("trian", "a", "x")]},
            "{} images[0] has the split 'trian': it must be one of train, restval, val, test.",
        ),
        (
            {"images": [karpathy_entry("train", "a")]},
            "{} images[0] has no caption of a: it has the keys 'split', 'filename', 'sentences'.",
        ),
        ({"images": [karpathy_entry("train", "a", " ")]}, "{} images[0] has an empty caption of a."),
        (
            {"images": [karpathy_entry("train", "a", "x"), karpathy_entry("val", "a", "y")]},
            "{} images[1] is a second entry of image a: remove one.",
        ),
        (
            {"images": [karpathy_entry("train", "a", "\ud800")]},
            "{} images[0] has a caption of a that is not valid text: '\\ud800'.",
        ),
        ({"images": [karpathy_entry("val", "a", "x")]}, "{} has no image in the split 'train'."),
        ({"images": []}, "{} has no captions."),
    ],
)
def test_malformed_files_of_karpathy_are_refused(content: object, message: str, tmp_path: Path) -> None:
    corpus = make_karpathy(tmp_path, content)
    assert refusal(corpus.splits) == message.format(tmp_path / "dataset.json")


def test_karpathys_names_outside_the_directory_are_refused(tmp_path: Path) -> None:
    for name, folder in (("../a.jpg", ""), ("a.jpg", "../val2014"), ("a.jpg", "/etc")):
        corpus = make_karpathy(tmp_path, {"images": [karpathy_entry("train", name, "x", filepath=folder)]})
        message = refusal(corpus.splits)
        assert message.startswith(f"{tmp_path}/dataset.json images[0] names the image ")
        assert message.endswith(f": it must be the name of a file in {tmp_path}.")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty."),
        (b"\xef\xbb\xbf{]", "line 1 is not JSON (column 2: Expecting property name enclosed in double quotes)."),
        (b'{"images": [\n{"id": 1}\n', "line 3 is not JSON (column 1: Expecting ',' delimiter)."),
        (b'{\n"a": "\xff"}', "line 2 is not valid UTF-8 (byte 7 of the line): convert the file to UTF-8."),
        (b"[" + b"9" * 5_000, "cannot be read as JSON ({})."),
        (b"null", "holds no captions: expected {}."),
    ],
)
def test_files_that_are_not_json_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", content)
    assert re.fullmatch(re.escape(f"{path} {message}").replace(r"\{\}", ".+"), refusal(read_captions, path))


def test_a_byte_order_mark_is_ignored_and_a_missing_file_named(tmp_path: Path) -> None:
    assert list(read_captions(write(tmp_path / "a.json", b'\xef\xbb\xbf{"a": "x"}'))) == ["a"]
    assert refusal(read_captions, tmp_path / "b.json") == f"{tmp_path}/b.json does not exist."
    corpus = Karpathy(directory=str(tmp_path), annotations=str(tmp_path / "b.json"))
    assert refusal(corpus.fetch) == (
        f"{tmp_path}/b.json does not exist: "
        "set data.annotations to a JSON file of Karpathy's splits (caption_datasets.zip)."
    )


FLICKR30K_CSV = (
    "image_name| comment_number| comment\na.jpg| 0| A dog , a | and a cat .\na.jpg| 1   A dog .\nb.jpg| 0| x\n"
)


@pytest.fixture
def flickr30k(tmp_path: Path) -> Path:
    images = [karpathy_entry("train", "a.jpg", "not this one"), karpathy_entry("test", "b.jpg", "nor this")]
    write_json(tmp_path / "dataset_flickr30k.json", {"images": images})
    (tmp_path / "flickr30k-images").mkdir()
    return tmp_path


def make_flickr30k(directory: Path) -> Flickr30k:
    return Flickr30k(directory=str(directory), split_file=str(directory / "dataset_flickr30k.json"))


def test_flickr30k_is_read(flickr30k: Path) -> None:
    write(flickr30k / "results.csv", FLICKR30K_CSV)
    corpus = make_flickr30k(flickr30k)
    corpus.fetch()
    assert corpus.splits() == ("train", "test")
    captions = "A dog , a | and a cat .", "A dog ."
    assert corpus.images("train") == [Captioned(flickr30k / "flickr30k-images" / "a.jpg", "a.jpg", captions)]
    write(flickr30k / "results_20130124.token", token_lines("a.jpg", "b.jpg"))
    corpus = make_flickr30k(flickr30k)
    assert corpus.images("test")[0].captions == ("Caption 0 of b.jpg .", "Caption 1 of b.jpg .")


def test_missing_and_malformed_files_of_flickr30k_are_named(flickr30k: Path) -> None:
    assert refusal(make_flickr30k(flickr30k).fetch) == (
        f"{flickr30k}/results_20130124.token does not exist: "
        "it or results.csv has Flickr30k's captions; set data.directory to where it is."
    )
    path = write(flickr30k / "results.csv", f"{FLICKR30K_CSV}nothing\n")
    expected = f"{path} line 5 must be a file name | a number | a caption."
    assert refusal(make_flickr30k(flickr30k).images, "train") == expected
    write(path, f"{FLICKR30K_CSV}a.jpg| 1| again\n")
    assert refusal(read_captions, path) == f"{path} line 5 has caption 1 of a.jpg again."
    write(path, FLICKR30K_CSV.replace("b.jpg", "c.jpg"))
    splits = flickr30k / "dataset_flickr30k.json"
    assert refusal(make_flickr30k(flickr30k).images, "test") == (
        f"{splits} names b.jpg, which has no caption in {path}."
    )
    splits.unlink()
    assert refusal(make_flickr30k(flickr30k).fetch) == (
        f"{splits} does not exist: "
        "set data.split_file to dataset_flickr30k.json of Karpathy's splits (caption_datasets.zip)."
    )


def make_coco(directory: Path, content: object) -> Coco:
    for stem in ("train2014", "val2014"):
        (directory / stem).mkdir(exist_ok=True)
        write_json(directory / "annotations" / f"captions_{stem}.json", content)
    return Coco(directory=str(directory), year=2014)


COCO_IMAGES = [{"id": 9, "file_name": "COCO_9.jpg"}, {"id": 7, "file_name": "COCO_7.jpg"}]


def annotation(image: object, caption: object) -> dict[str, object]:
    return {"id": 1, "image_id": image, "caption": caption}


def test_coco_is_read(tmp_path: Path) -> None:
    annotations = [annotation(7, "A cat."), annotation(9, "A dog.\n"), annotation(7, " Cats ")]
    corpus = make_coco(tmp_path, {"images": COCO_IMAGES, "annotations": annotations})
    corpus.fetch()
    assert corpus.splits() == ("train", "valid")
    assert corpus.images("valid") == [
        Captioned(tmp_path / "val2014" / "COCO_9.jpg", "9", ("A dog.",)),
        Captioned(tmp_path / "val2014" / "COCO_7.jpg", "7", ("A cat.", "Cats")),
    ]
    before = fingerprint(corpus)
    assert set(before) == {"train", "valid"}
    assert fingerprint(make_coco(tmp_path, {"images": [], "annotations": []})) != before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"annotations": []}, "{} has no captions."),
        ({"images": COCO_IMAGES}, "{} has no 'annotations'."),
        (
            {"images": [COCO_IMAGES[0], {**COCO_IMAGES[1], "id": 9}], "annotations": []},
            "{} images[1] has the id 9 again.",
        ),
        (
            {"images": [{"id": True, "file_name": "a"}], "annotations": []},
            "{} images[0]: 'id' must be a whole number or text, not true.",
        ),
        (
            {"images": COCO_IMAGES, "annotations": [annotation(8, "x")]},
            "{} annotations[0] is a caption of image 8, which is not among the images.",
        ),
        ({"images": COCO_IMAGES, "annotations": [annotation(9, "x")]}, "{} has no caption of image 7."),
        (
            {"images": COCO_IMAGES[:1], "annotations": [annotation(9, "\n")]},
            "{} annotations[0] has an empty caption of COCO_9.jpg.",
        ),
        (
            {"images": COCO_IMAGES[:1], "annotations": [annotation(9, 3)]},
            "{} annotations[0]: 'caption' must be text, not 3.",
        ),
        ({"images": [], "annotations": []}, "{} has no captions."),
    ],
)
def test_malformed_coco_files_are_refused(content: object, message: str, tmp_path: Path) -> None:
    corpus = make_coco(tmp_path, content)
    path = tmp_path / "annotations" / "captions_train2014.json"
    assert refusal(corpus.images, "train") == message.format(path)


def test_names_of_coco_images_become_numbers() -> None:
    assert image_id("COCO_val2014_000000000042.jpg") == image_id("000000000042.jpg") == image_id("42") == 42
    for name in ("042", "a.jpg", "²", "42.jpg", "x/b.jpg"):
        assert image_id(name) == name


def test_missing_files_of_coco_are_named(tmp_path: Path) -> None:
    corpus = make_coco(tmp_path, {})
    (tmp_path / "val2014").rmdir()
    assert refusal(corpus.fetch) == f"{tmp_path} has no folder val2014: put the images there."
    corpus = Coco(directory=str(tmp_path), year=2017)
    assert refusal(corpus.fetch) == (
        f"{tmp_path}/annotations/captions_train2017.json does not exist: it is in annotations_trainval2017.zip "
        "of cocodataset.org; set data.directory to where annotations/ is."
    )
    with pytest.raises(InputError, match=r"^data\.year is 2015; choose from 2014, 2017\.$"):
        Coco(directory="x", year=2015)


def make_photos(
    directory: Path, train: str, valid: str | None = None, test: str | None = None, shares: tuple[float, float] = (0, 0)
) -> Photos:
    names = {"train": train, "valid": valid, "test": test}
    files: dict[str, Any] = {split: name and str(directory / name) for split, name in names.items()}
    return Photos(directory=str(directory), **files, valid_share=shares[0], test_share=shares[1])


def test_jsonl_and_csv_files_give_the_same_photos(tmp_path: Path) -> None:
    lines = [
        {"file": "a b.jpg", "caption": "A dog, and\na cat ."},
        {"file": "./x/b.jpg", "captions": [" One ", 'Two "2"']},
        {"file": "a b.jpg", "caption": "Köln"},
    ]
    write(tmp_path / "a.jsonl", "\n\n".join(json.dumps(line) for line in lines))
    csv = 'caption,note,file\r\n"A dog, and\na cat .",,a b.jpg\r\n\r\nOne,,x/b.jpg\r\n'
    csv += '"Two ""2""",,x/b.jpg\r\nKöln,,a b.jpg\r\n'
    write(tmp_path / "b.csv", b"\xef\xbb\xbf" + csv.encode())
    expected = [
        Captioned(tmp_path / "a b.jpg", "a b.jpg", ("A dog, and a cat .", "Köln")),
        Captioned(tmp_path / "x" / "b.jpg", "x/b.jpg", ("One", 'Two "2"')),
    ]
    corpus = make_photos(tmp_path, "a.jsonl", "b.csv", shares=(0.5, 0.2))
    corpus.fetch()
    assert corpus.splits() == ("train", "valid")
    assert corpus.images("train") == corpus.images("valid") == expected


def test_photos_are_divided_by_shares(tmp_path: Path) -> None:
    lines = [json.dumps({"file": f"{n}.jpg", "caption": str(n)}) for n in range(40)]
    write(tmp_path / "a.jsonl", "\n".join(lines))
    write(tmp_path / "b.jsonl", "\n".join(reversed(lines)))
    splits = {}
    for name in ("a.jsonl", "b.jsonl"):
        corpus = make_photos(tmp_path, name, shares=(0.1, 0.2))
        assert corpus.splits() == ("train", "valid", "test")
        splits[name] = {split: image_names(corpus.images(split)) for split in corpus.splits()}
    first, second = splits.values()
    assert {split: len(split_names) for split, split_names in first.items()} == {"train": 28, "valid": 4, "test": 8}
    all_names = [name for split_names in first.values() for name in split_names]
    assert sorted(all_names) == sorted(f"{n}.jpg" for n in range(40))
    assert {split: split_names[::-1] for split, split_names in first.items()} == second
    assert first["train"] == [f"{n}.jpg" for n in range(40) if f"{n}.jpg" in first["train"]]
    small_share = make_photos(tmp_path, "a.jsonl", shares=(0.001, 0))
    assert small_share.splits() == ("train", "valid") and len(small_share.images("valid")) == 1
    assert make_photos(tmp_path, "a.jsonl").splits() == ("train",)
    assert fingerprint(small_share) != fingerprint(make_photos(tmp_path, "a.jsonl"))


def test_photos_without_a_split_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    splits = {"a.jpg": "train", "b.jpg": "val", "c.jpg": "test", "d.jpg": "extra", "e.jpg": ""}
    images = [karpathy_entry(split, name, "x") for name, split in splits.items()]
    write(tmp_path / "a.json", json.dumps({"images": images}))
    corpus = make_photos(tmp_path, "a.json", shares=(0.1, 0.1))
    divided = {split: image_names(corpus.images(split)) for split in corpus.splits()}
    assert divided == {"train": ["a.jpg"], "valid": ["b.jpg"], "test": ["c.jpg"]}
    assert caplog.messages[1:] == [
        f"{tmp_path / 'a.json'} has 2 images without a split (one of train, restval, val, test), such as d.jpg: "
        "they are left out."
    ]


def test_splits_that_lack_one_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    images = [karpathy_entry("val" if n < 30 else "train", f"{n}.jpg", "x") for n in range(100)]
    write(tmp_path / "a.json", json.dumps({"images": images}))
    assert len(make_photos(tmp_path, "a.json", shares=(0.1, 0)).images("valid")) == 30 and not caplog.messages
    other_test = make_photos(tmp_path, "a.json", test="a.json", shares=(0.1, 0))
    assert len(other_test.images("valid")) == 30 and not caplog.messages
    assert len(make_photos(tmp_path, "a.json", shares=(0.1, 0.1)).images("valid")) == 10
    assert caplog.messages == [
        f"{tmp_path / 'a.json'} has splits but no images for test: they are not used, and names decide which images "
        "are held out. data.valid_share=0 or data.test_share=0 leaves out a split that you do not need."
    ]


def test_few_photos_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The advice is given once for each preparation, and not for 100 photos or for the file of another split."""
    for name, count in (("99.jsonl", 99), ("100.jsonl", 100)):
        write(tmp_path / name, "\n".join(json.dumps({"file": f"{n}.jpg", "caption": "a cat"}) for n in range(count)))
    few, enough = (
        make_photos(tmp_path, "99.jsonl", valid="100.jsonl"),
        make_photos(tmp_path, "100.jsonl", valid="99.jsonl"),
    )
    for corpus in (few, few, enough):
        assert corpus.images("train") and corpus.images("valid")
    assert caplog.messages == [
        f"{tmp_path / '99.jsonl'} has captions of 99 images: "
        "too few, unless the run starts from a model of more photos (init_from=RUN)."
    ]


def test_too_few_photos_cannot_be_divided(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "file,caption\na,x\nb,y\n")
    corpus = make_photos(tmp_path, "a.csv", shares=(0.1, 0.1))
    assert refusal(corpus.images, "train") == (
        f"{path} has captions of 2 images: too few to divide into splits, each of which needs at least 1. Add images "
        "(at least 3), or give another file of captions with data.valid=FILE."
    )
    one = write(tmp_path / "b.csv", "file,caption\na,x\n")
    message = refusal(make_photos(tmp_path, "b.csv", test="a.csv", shares=(0.1, 0)).images, "train")
    assert message.startswith(f"{one} has captions of 1 image") and "(at least 2)" in message
    for shares in ((0.5, 0.5), (-0.1, 0.2)):
        assert refusal(make_photos, tmp_path, "a.csv", None, None, shares) == (
            f"data.valid_share is {shares[0]:g} and data.test_share {shares[1]:g}: "
            "they must be at least 0 and leave something to train on."
        )


def test_missing_files_of_photos_are_named(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "file,caption\na,x\n")
    assert refusal(make_photos(tmp_path, "a.csv", "b.csv").fetch) == (
        f"{tmp_path}/b.csv does not exist: set data.valid to a file of captions."
    )
    assert refusal(make_photos(tmp_path / "no", "a.csv").fetch) == (
        f"{tmp_path}/no is not a directory: set data.directory to where the images are."
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "{} is not JSON (column 2: Expecting property name enclosed in double quotes)."),
        ("[]", "{} must be an object, not []."),
        (
            '{"caption": "x"}',
            "{} does not name an image, for example by 'file' or 'image_id': it has the keys 'caption'.",
        ),
        ('{"file": 1, "caption": "x"}', "{}: 'file' must be text, not 1."),
        ('{"file": "a"}', "{} has no caption of a: it has the keys 'file'."),
        ('{"file": "a", "caption": "x", "captions": ["y"]}', "{} must have either 'caption' or 'captions'."),
        ('{"file": "a", "captions": []}', "{} has no caption of a: it has the keys 'file', 'captions'."),
        ('{"file": "a", "captions": ["x", null]}', "{}: a caption must be text, not null."),
        ('{"file": "a", "caption": " "}', "{} has an empty caption of a."),
        ('{"file": "../a", "caption": "x"}', "{} names the image '../a': it must be the name of a file in DIRECTORY."),
        ('{"file": "", "caption": "x"}', "{} names the image '.': it must be the name of a file in DIRECTORY."),
        (
            '{"file": "\\udcff", "caption": "x"}',
            "{} names the image '\\udcff': it must be the name of a file in DIRECTORY.",
        ),
        (b'{"file": "\xff"}', "{} is not valid UTF-8 (byte 11 of the line): convert the file to UTF-8."),
    ],
)
def test_malformed_jsonl_lines_are_refused(line: str | bytes, message: str, tmp_path: Path) -> None:
    valid_line = b'{"file": "b", "caption": "y"}\n'
    path = write(tmp_path / "a.jsonl", valid_line + (line.encode() if isinstance(line, str) else line))
    expected = message.replace("{}", f"{path} line 2").replace("DIRECTORY", str(tmp_path))
    assert refusal(make_photos(tmp_path, "a.jsonl").images, "train") == expected


UNCLOSED_QUOTE = (
    'opens a quote (") that does not close at the end of a column: close it or leave it out; within quotes a quote is '
    'written "".'
)
WRONG_COLUMNS = "columns but the header has 2: a caption that has a comma must be in double quotes."


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("file,caption\na,x\nb,A dog, running\n", f"line 3 has 3 {WRONG_COLUMNS}"),
        ("file,caption\na\n", f"line 2 has 1 {WRONG_COLUMNS}"),
        ('file,caption\na,"x" y\n', f"line 2 {UNCLOSED_QUOTE}"),
        ('file,caption\na,"x\n', f"line 2 {UNCLOSED_QUOTE}"),
        ("file,caption\na,\n", "line 2 has an empty caption of a."),
        ("file,caption\n", "has no captions."),
        ("", "is empty."),
    ],
)
def test_malformed_csv_files_are_refused(content: str, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", content)
    assert refusal(make_photos(tmp_path, "a.csv").images, "train") == f"{path} {message}"


def test_unknown_kinds_of_caption_files_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "a x\n")
    assert refusal(read_captions, path).startswith(
        f"{path} line 1 is 'a x': expected a file of captions: JSON, a table"
    )


def test_the_byte_order_mark_of_a_list_is_ignored(tmp_path: Path) -> None:
    assert list(read_list(write(tmp_path / "list", b"\xef\xbb\xbfa.jpg\r\n b.jpg \n"))) == ["a.jpg", "b.jpg"]
