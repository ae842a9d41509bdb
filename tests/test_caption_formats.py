"""Files of captions, as they are published, written by other programs and by hand: one reader for every command."""

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from test_report import blocks

from seqtool.cli import main as cli
from seqtool.runtime.files import config_directory

IMAGES = ("1000.jpg", "1001.jpg", "1002.jpg", "1003.jpg")
CAPTIONS = {
    name: [f"a {colour} dog runs", f"one {colour} dog, it is running"]
    for name, colour in zip(IMAGES, ("red", "big", "old", "wet"), strict=True)
}
PAIRS = [(name, caption) for name, captions in CAPTIONS.items() for caption in captions]
NUMBERED = [(name, number, caption) for name, captions in CAPTIONS.items() for number, caption in enumerate(captions)]
HYPOTHESES = {name: captions[0] for name, captions in CAPTIONS.items()}

Capture = pytest.CaptureFixture[str]


def run(*arguments: str) -> int:
    return cli.run(list(arguments), config_directory())


def table(separator: str, header: tuple[str, str], quote: str = '"', end: str = "\n") -> str:
    rows = [header, *((name, f"{quote}{caption}{quote}") for name, caption in PAIRS)]
    return "".join(separator.join(row) + end for row in rows)


def lines(*records: Any) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def coco(**more: Any) -> dict[str, Any]:
    images = [{"id": i, "file_name": name, "height": 8, "width": 8} for i, name in enumerate(CAPTIONS)]
    annotations = [
        {"id": k, "image_id": IMAGES.index(name), "caption": text, **more} for k, (name, text) in enumerate(PAIRS)
    ]
    return {"info": {}, "licenses": [], "images": images, "annotations": annotations}


def karpathy(splits: tuple[str, ...] = ("train",) * 4) -> dict[str, Any]:
    images = [
        {
            "filename": name,
            "imgid": i,
            "split": split,
            "sentences": [{"raw": text, "tokens": text.split()} for text in CAPTIONS[name]],
        }
        for i, (name, split) in enumerate(zip(IMAGES, splits, strict=True))
    ]
    return {"dataset": "flickr8k", "images": images}


def textcaps() -> dict[str, Any]:
    data = [
        {"image_id": name[:4], "image_name": name[:4], "image_path": f"train/{name}", "set_name": "train"}
        | {"caption_id": k, "caption_str": text, "reference_strs": CAPTIONS[name], "reference_tokens": []}
        for k, (name, text) in enumerate(PAIRS)
    ]
    return {"dataset_name": "textcaps", "dataset_type": "train", "dataset_version": "0.1", "data": data}


def vizwiz() -> dict[str, Any]:
    content = coco(is_rejected=False, is_precanned=False, text_detected=False)
    bad = {"image_id": 0, "caption": "Quality issues are too severe to recognize visual content."}
    flags = ({"is_rejected": True, "is_precanned": False}, {"is_rejected": False, "is_precanned": True})
    content["annotations"] += [{"id": 90 + i, **bad, **flag} for i, flag in enumerate(flags)]
    return content


def nocaps() -> dict[str, Any]:
    content = coco()
    for image in content["images"]:
        image |= {"open_images_id": image["file_name"][:4], "domain": "near-domain", "coco_url": ""}
    return content


PUBLISHED: dict[str, tuple[str, str]] = {
    "Flickr8k": ("Flickr8k.token.txt", "".join(f"{name}#{number}\t{text}\n" for name, number, text in NUMBERED)),
    "Flickr30k": (
        "results.csv",
        "image_name| comment_number| comment\n"
        + "".join(f"{name}| {n}{'|' if (name, n) != ('1003.jpg', 1) else '  '} {text}\n" for name, n, text in NUMBERED),
    ),
    "Kaggle": ("captions.txt", table(",", ("image", "caption"))),
    "Karpathy": ("dataset_flickr8k.json", json.dumps(karpathy())),
    "COCO": ("captions_val.json", json.dumps(coco(), indent=1)),
    "TextCaps": ("TextCaps_0.1_train.json", json.dumps(textcaps())),
    "VizWiz": ("val.json", json.dumps(vizwiz())),
    "nocaps": ("nocaps_val_4500_captions.json", json.dumps(nocaps())),
    "lists of BLIP": (
        "coco.json",
        json.dumps([{"image": f"val/{name}", "caption": texts} for name, texts in CAPTIONS.items()]),
    ),
    "neuraltalk": (
        "raw.json",
        json.dumps(
            [{"file_path": name, "captions": texts, "id": i} for i, (name, texts) in enumerate(CAPTIONS.items())]
        ),
    ),
    "File,Caption": ("a.csv", table(",", ("File", "Caption"))),
    "file_name": ("a.csv", table(",", ("file_name", "comment"))),
    "File Name": ("a.csv", table(",", ("File Name", "Description"))),
    "semicolons": ("a.csv", table(";", ("filename", "caption"), quote="")),
    "tabs": ("a.tsv", table("\t", ("image_path", "caption"), quote="")),
    "bars": ("a.txt", table("|", ("file", "caption"), quote="")),
    "a mark and \\r\\n": ("a.csv", "\ufeff" + table(",", ("image", "caption"), end="\r\n")),
    "\\r alone": ("a.csv", table(",", ("image", "caption"), end="\r")),
    "a space before the quote": ("a.csv", table(", ", ("file", "caption"))),
    "a space before the comma": ("a.csv", table(" ,", ("file", "caption"))),
    "quoted names": ("a.csv", "".join(f'"{a}","{b}"\n' for a, b in (("file", "caption"), *PAIRS))),
    "lines without a suffix": (
        "captions",
        lines(*({"file": name, "captions": texts} for name, texts in CAPTIONS.items())),
    ),
    "lines in .json": ("captions.json", lines(*({"image": name, "caption": text} for name, text in PAIRS))),
    "tabs without a header": ("a.csv", "".join(f"{name}\t{text}\n" for name, text in PAIRS)),
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with photos/ and hypotheses, which are the first caption of each image."""
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    for number, name in enumerate(IMAGES):
        Image.new("RGB", (8, 8), (50 * number, 3, 4)).save(Path("photos", name))
    Path("h.json").write_text(json.dumps([{"image_id": name, "caption": text} for name, text in HYPOTHESES.items()]))
    return tmp_path


def written(name: str, content: str) -> str:
    Path(name).write_bytes(content.encode())
    return name


def score(hypotheses: str, references: str, *more: str) -> int:
    return run("eval", "task=captioning", f"hypotheses={hypotheses}", f"references={references}", "bootstrap=2", *more)


def segments(capsys: Capture) -> dict[str, Any]:
    return {line["image"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}


def prepare(train: str, *more: str) -> int:
    data = [f"data.train={train}", "data.valid_share=0.25", "data.test_share=0", "data.vocabulary.minimum_count=1"]
    common = ["data=photos", "data.directory=photos", "data.processes=1", "device=cpu", "model.encoder.size=32"]
    return run("prepare", "model=show_tell", *common, *data, *more)


def prepared(capsys: Capture) -> list[dict[str, Any]]:
    """The images in the only cache."""
    assert "Prepared in" in capsys.readouterr().out
    files = Path("cache").glob("photos-*/*.images.jsonl")
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.mark.parametrize("form", PUBLISHED)
def test_every_form_is_scored(form: str, capsys: Capture) -> None:
    assert score("h.json", written(*PUBLISHED[form]), "format=jsonl") == 0
    rows = list(segments(capsys).values())
    assert [row["references"] for row in rows] == list(CAPTIONS.values())
    assert [row["hypothesis"] for row in rows] == list(HYPOTHESES.values())


@pytest.mark.parametrize("form", ["Flickr30k", "Karpathy", "TextCaps", "VizWiz"])
def test_every_form_is_prepared(form: str, capsys: Capture) -> None:
    assert prepare(written(*PUBLISHED[form])) == 0
    images = sorted(prepared(capsys), key=lambda image: str(image["file"]))
    assert [(image["file"], image["captions"]) for image in images] == [(f"photos/{n}", c) for n, c in CAPTIONS.items()]


STRAY = {
    "two stray quotes": (
        'file,caption\n1000.jpg,"A dog\n1001.jpg,A cat\n1002.jpg,A sign that says "\n1003.jpg,A bus\n',
        "line 2 opens a quote (\") that has not closed in line 3, which names 1001.jpg",
    ),
    "with other separators": (
        'image;caption\n1000.jpg;"A dog\n1001.jpg;A cat\n1002.jpg;A sign that says "\n1003.jpg;A bus\n',
        "line 2 opens a quote (\") that has not closed in line 3, which names 1001.jpg",
    ),
    "tabs, \\r\\n": (
        'image\tcaption\r\n1000.jpg\tA dog\r\n1001.jpg\t"A cat\r\n1002.jpg\tA "sign"\r\n1003.jpg\tA bus"\r\n',
        "line 3 opens a quote (\") that does not close",
    ),
    "the caption first": (
        'caption,file\n"A dog,1000.jpg\nA cat,1001.jpg\nA sign ",1002.jpg\n',
        "line 2 opens a quote (\") that has not closed in line 3, which names 1001.jpg",
    ),
    "ids": (
        'image_id,caption\n1,"A dog\n2,A cat\n3,A sign "\n',
        "line 2 opens a quote (\") that has not closed in line 3, which names 2",
    ),
    "names without a suffix": (
        'file,caption\nab,"A dog\ncd,A cat\nef,A sign "\n',
        "line 2 opens a quote (\") that has not closed in line 3, which names cd",
    ),
    "paths with spaces": (
        'file,caption\ndir one/a b,"A dog\ndir one/c d,A cat\ndir one/e f,A sign "\n',
        "line 2 opens a quote (\") that has not closed in line 3, which names dir one/c d",
    ),
    "other kinds of images": (
        'file,caption\na.png,"A dog\n1001.jpg,A cat\n1002.jpg,A sign "\n',
        "line 2 opens a quote (\") that has not closed in line 3, which names 1001.jpg",
    ),
    "with more columns": (
        'file,caption,note\n1000.jpg,"A dog,\n1001.jpg,A cat,\n1002.jpg,A sign that says ",x\n',
        "line 2 opens a quote (\") that has not closed in line 3, which names 1001.jpg",
    ),
    "a space before it": (
        'file,caption\n1000.jpg, "A dog\n1001.jpg,A cat\n1002.jpg,A sign that says "\n',
        "line 2 opens a quote (\") that has not closed in line 3, which names 1001.jpg",
    ),
    "never closed": ('file,caption\n1000.jpg,A dog\n1001.jpg,"A cat\n1002.jpg,A sign\n', "line 3 opens a quote (\")"),
    "closed by another's": (
        'file,caption\n1000.jpg,A dog\n1001.jpg,"A cat\n1002.jpg,"A sign, too"\n',
        "line 3 opens a quote (\")",
    ),
    "a comma": ("file,caption\n1000.jpg,A dog, running\n", "line 2 has 3 columns but the header has 2"),
    "a semicolon": ("file;caption\n1000.jpg;A dog; running\n", "a caption that has a semicolon must be in double"),
    "empty captions": (
        "file,caption\n1000.jpg,\n1001.jpg,A cat\n1002.jpg, \n1003.jpg,\"\"\n",
        "line 2, 4, 5 have empty captions (1000.jpg, 1002.jpg, 1003.jpg)",
    ),
    "empty captions in JSON lines": (
        lines(*({"file": name, "caption": " "} for name in IMAGES[:2])),
        "line 1, 2 have empty captions (1000.jpg, 1001.jpg)",
    ),
    "a header of which half is known": (
        "url\tcaption\nhttp://a/1000.jpg\thello\n", "line 1 has the columns url, caption: call the column"
    ),
    "the other half": ("image\talt text\n1000.jpg\thello\n", "line 1 has the columns image, alt text: call the column"),
    "no header": ("1000.jpg,A dog\n", "line 1 is '1000.jpg,A dog': expected a file of captions"),
    "a strange header": ("dog;cat\n", "line 1 is 'dog;cat': expected a file of captions"),
}  # fmt: skip


@pytest.mark.parametrize("kind", STRAY)
def test_what_was_found_is_said_with_its_line(kind: str, capsys: Capture) -> None:
    """By every command; nothing is swallowed."""
    content, message = STRAY[kind]
    assert prepare(written("own.csv", content)) == 2
    said = capsys.readouterr().err
    assert said.startswith("seqtool: own.csv ") and message in said and said.count("\n") == 1
    assert score("h.json", "own.csv") == 2
    assert message in capsys.readouterr().err


def test_quoted_captions_may_have_lines_commas_and_quotes(capsys: Capture) -> None:
    rows = '1000.jpg,"A dog,\nand ""two""\ncats, red"\n1001.jpg, "A cat, black" \n'
    rows += '1002.jpg,A "red" dog\n1003.jpg, "No" sign\n'
    assert prepare(written("own.csv", f"file,caption\n{rows}")) == 0
    found = {Path(image["file"]).name: image["captions"] for image in prepared(capsys)}
    expected = ['A dog, and "two" cats, red', "A cat, black", 'A "red" dog', '"No" sign']
    assert found == {name: [caption] for name, caption in zip(IMAGES, expected, strict=True)}


def test_a_quoted_caption_of_a_numbered_image_may_have_lines(capsys: Capture) -> None:
    written("own.csv", 'image_id,caption\n12,"A dog runs.\nWow, nice"\n13,A cat\n')
    assert score(written("h.csv", "image_id,caption\n12,a dog\n13,a cat\n"), "own.csv", "format=jsonl") == 0
    assert [row["references"] for row in segments(capsys).values()] == [["A dog runs. Wow, nice"], ["A cat"]]


def test_what_caption_writes_may_have_bars_and_numbers(capsys: Capture) -> None:
    file = written("h.txt", "1000.jpg\ta sign that says | 3 dogs\n1001.jpg\ta dog\n")
    assert score(file, written(*PUBLISHED["Kaggle"]), "format=jsonl") == 0
    assert segments(capsys)["1000.jpg"]["hypothesis"] == "a sign that says | 3 dogs"


UNKNOWN: dict[str, Any] = {
    "an object of other things": ({"model": "x", "outputs": {"a": {"score": 1}}}, "the keys 'model', 'outputs'"),
    "questions": ({"info": "x", "questions": [{"question": "x"}]}, "the keys 'info', 'questions'"),
    "images without annotations": ({"images": coco()["images"], "info": {}}, "has no 'annotations'"),
    "records of other things": (
        [{"file": "1000.jpg", "label": 3}],
        "has no caption of 1000.jpg: it has the keys 'file', 'label'",
    ),
    "records without an image": ({"data": [{"caption": "a dog", "score": 1}]}, "data[0] does not name an image"),
}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_an_unknown_object_is_described_by_its_keys(kind: str, capsys: Capture) -> None:
    content, message = UNKNOWN[kind]
    written("strange.json", json.dumps(content))
    assert score("h.json", "strange.json") == 2
    said = capsys.readouterr().err
    assert "strange.json" in said and message in said and said.count("\n") == 1
    assert prepare("strange.json") == 2
    assert message in capsys.readouterr().err


def n_best(text: str) -> dict[str, Any]:
    return {"captions": [{"text": text, "score": -1.0}, {"text": "no", "score": -2.0}]}


RESULTS = [{"image_id": name, "caption": text} for name, text in HYPOTHESES.items()]
SYSTEMS: dict[str, tuple[str, str]] = {
    "predictions": ("h.json", json.dumps({"model": "x", "predictions": RESULTS})),
    "results": ("h.json", json.dumps({"results": RESULTS})),
    "predictions by image": ("h.json", json.dumps({"predictions": HYPOTHESES})),
    "coco-caption's own": ("h.json", json.dumps({name: [{"caption": text}] for name, text in HYPOTHESES.items()})),
    "predicted": ("h.json", json.dumps([{"filename": name, "prediction": text} for name, text in HYPOTHESES.items()])),
    "a table of ids": (
        "h.csv",
        "image_id,caption\n" + "".join(f"{n},{text}\n" for n, text in enumerate(HYPOTHESES.values())),
    ),
    "a table, with an empty one": ("h.tsv", "image\tcaption\n" + "".join(f"{n}\t{t}\n" for n, t in HYPOTHESES.items())),
    "text in .csv": ("h.csv", "".join(f"photos/{name}\t{text}\n" for name, text in HYPOTHESES.items())),
    "text in .json": ("h.json", "".join(f"photos/{name}\t{text}\n" for name, text in HYPOTHESES.items())),
    "n best in .jsonl": (
        "h.jsonl",
        "".join(f"{n}\t{t}\t-0.5\n{n}\tno\t-1.5\tnot ended\n" for n, t in HYPOTHESES.items()),
    ),
    "JSON lines in .json": ("h.json", lines(*({"image": f"photos/{n}", **n_best(t)} for n, t in HYPOTHESES.items()))),
    "JSON lines in .txt": ("h.txt", lines(*({"image": n, "captions": [{"text": t}]} for n, t in HYPOTHESES.items()))),
    "COCO's results in .csv": ("h.csv", json.dumps(RESULTS)),
    "one line": ("h.csv", lines({"image": "1000.jpg", "captions": [{"text": HYPOTHESES["1000.jpg"]}]})),
}


@pytest.mark.parametrize("form", SYSTEMS)
def test_systems_are_read_by_content(form: str, capsys: Capture) -> None:
    """As hypotheses and as a baseline."""
    references = written("references.json", json.dumps(coco()))
    file = written(*SYSTEMS[form])
    assert score(file, references, "format=jsonl", f"baseline={file}") == 0
    rows = segments(capsys)
    assert len(rows) == (1 if form == "one line" else 4)
    for i, row in rows.items():
        assert row["hypothesis"] == row["baseline"]["hypothesis"] == HYPOTHESES[IMAGES[int(i)]]


@pytest.mark.parametrize("form", ["COCO", "Kaggle", "lines in .json"])
def test_the_images_of_the_results_are_scored(form: str, capsys: Capture, caplog: pytest.LogCaptureFixture) -> None:
    """In every form: as if the references were of these images alone, also for CIDEr's document frequencies."""
    references = written(*PUBLISHED[form])
    two = dict.fromkeys(IMAGES[:2], "a red dog sits")
    written("h.json", json.dumps(two))
    written("more.json", json.dumps(HYPOTHESES))
    assert score("h.json", references, "format=json", "baseline=more.json") == 0
    found = json.loads(capsys.readouterr().out)
    assert f"h.json has captions for 2 of the 4 images of {references}: only these are scored." in caplog.messages
    written("few.json", json.dumps({name: CAPTIONS[name] for name in two}))
    assert score("h.json", "few.json", "format=json", "baseline=more.json") == 0
    assert json.loads(capsys.readouterr().out) == found
    written("h.json", json.dumps({**two, "2000.jpg": "a dog"}))
    assert score("h.json", references) == 2
    assert "h.json has captions for image 2000.jpg that" in capsys.readouterr().err
    written("h.json", json.dumps(two))
    written("more.json", json.dumps({"1000.jpg": "a dog"}))
    assert score("h.json", references, "baseline=more.json") == 2
    assert "more.json has no caption for image" in capsys.readouterr().err


def test_translations_in_any_file_are_no_captions(capsys: Capture) -> None:
    written("o.json", lines(*({"source": "x", "translations": [{"text": text}]} for text in ("a b c d", "e f g h"))))
    written("r.txt", "a b c d\ne f g h\n")
    both = ["hypotheses=o.json", "references=r.txt", "baseline=o.json", "beside=o.json", "format=json", "report=r.html"]
    assert run("eval", *both) == 0
    assert json.loads(capsys.readouterr().out)["system"]["bleu"]["value"] == pytest.approx(100)
    for file in ("h.json", written("h.txt", "image,caption\n1000.jpg,a dog\n")):
        assert run("eval", f"hypotheses={file}", "references=r.txt") == 2
        assert (
            f"hypotheses={file} contains captions: add task=captioning, or task=translation" in capsys.readouterr().err
        )


BEGINNINGS = (
    '[["Laughter"]] and so on',
    "{",
    "Image, Text",
    "[[File:a.jpg]]",
    '["',
    '["a", "b"]',
    '{"name": "x"}',
    "[]",
)


@pytest.mark.parametrize("first", BEGINNINGS)
def test_sentences_that_begin_as_captions_might_are_scored(first: str, capsys: Capture) -> None:
    file = written("h.txt", f"{first}\nHello, a dog runs there\n")
    assert run("eval", f"hypotheses={file}", f"references={file}", "format=json", "bootstrap=0") == 0
    assert "bleu" in capsys.readouterr().out


@pytest.mark.parametrize("form", ["COCO", "Kaggle", "Karpathy", "lines without a suffix", "Flickr30k", "quoted names"])
def test_captions_are_told_from_sentences(form: str, capsys: Capture) -> None:
    file = written(*PUBLISHED[form])
    assert run("eval", f"hypotheses={file}", f"references={file}") == 2
    assert "contains captions: add task=captioning" in capsys.readouterr().err
    assert run("eval", "task=translation", f"hypotheses={file}", f"references={file}", "bootstrap=0") == 0


COMPOSED, DECOMPOSED = (unicodedata.normalize(form, "Köln été.jpg") for form in ("NFC", "NFD"))
NAMES = {  # in the folder, in the captions
    "normal form": (COMPOSED, DECOMPOSED),
    "the other normal form": (DECOMPOSED, COMPOSED),
    "case of the suffix": ("IMG_1.JPG", "IMG_1.jpg"),
    "backslashes": ("sub/b.jpg", "sub\\b.jpg"),
    "a folder in front": ("b.jpg", "photos/b.jpg"),
    "a Windows path": ("b.jpg", "C:\\Users\\me\\Photos\\b.jpg"),
    "an absolute path": ("b.jpg", "/home/me/photos/b.jpg"),
    "a folder less": ("Images/b.jpg", "b.jpg"),
    "no suffix": ("b.jpg", "b"),
    "no suffix, a folder and another case": ("Images/IMG_1.PNG", "img_1"),
    "everything": (f"Images/{DECOMPOSED}", f"images\\{COMPOSED.upper()}"),
}


@pytest.mark.parametrize("kind", NAMES)
def test_names_that_differ_are_matched(kind: str, capsys: Capture) -> None:
    """In the folder of the photos, and between the files of an evaluation, in both directions."""
    there, named = NAMES[kind]
    Path("photos", there).parent.mkdir(exist_ok=True)
    Path("photos/1000.jpg").rename(Path("photos", there))
    written("own.jsonl", lines(*({"file": name, "caption": "a dog runs"} for name in (named, *IMAGES[1:]))))
    assert prepare("own.jsonl", "data.valid_share=0.3") == 0
    assert f"photos/{there}" in {image["file"] for image in prepared(capsys)}
    for mine, theirs in ((there, named), (named, there)):
        written("h.json", json.dumps([{"image_id": mine, "caption": "a dog"}]))
        written("r.json", json.dumps([{"image_id": theirs, "caption": "a dog"}, {"image_id": "x", "caption": "y"}]))
        assert score("h.json", "r.json", "format=jsonl") == 0
        assert list(segments(capsys)) == [theirs]


def test_empty_captions_of_a_system_are_said(capsys: Capture) -> None:
    written("h.csv", "image_id,caption\n12,a dog runs\n14,\n15,  \n")
    written("r.json", json.dumps({name: ["a dog", "a cat"] for name in ("12.jpg", "14.jpg", "15.jpg")}))
    assert score("h.csv", "r.json", "bootstrap=0") == 0
    assert "h.csv has 2 empty captions, such as that of 14.jpg: they are scored too." in capsys.readouterr().out


def test_names_that_could_be_several_images_or_none(capsys: Capture) -> None:
    """How each side names its images is said."""
    for folder in ("a", "b"):
        Path("photos", folder).mkdir()
        Image.new("RGB", (8, 8)).save(Path("photos", folder, "x.jpg"))
    assert prepare(written("own.csv", "file,caption\nx.jpg,a dog\n1000.jpg,a dog\n")) == 2
    assert "own.csv names x.jpg, which could be photos/a/x.jpg or b/x.jpg." in capsys.readouterr().err
    assert prepare(written("own.csv", "file,caption\nIMG_7.jpg,a dog\nIMG_8.jpg,a cat\n")) == 2
    said = capsys.readouterr().err
    assert "IMG_" in said and "photos has other images, such as 1000.jpg." in said
    assert prepare(written("own.csv", "file,caption\n1000.JPG,a dog\n1000.Jpg,a cat\n")) == 2
    assert "own.csv names 1000.JPG and 1000.Jpg, but photos has only 1000.jpg." in capsys.readouterr().err
    written("own.csv", "file,caption\na/x.jpg,a dog\nb/x.jpg,a cat\n1000.jpg,a dog\n")
    written("h.json", json.dumps({"x.jpg": "a dog", "1000.jpg": "a dog"}))
    assert score("h.json", "own.csv") == 2
    assert "h.json has captions for image x.jpg that own.csv does not have" in capsys.readouterr().err
    written("h.json", json.dumps({"IMG_7.jpg": "a dog"}))
    assert score("h.json", "own.csv") == 2
    said = "h.json has image IMG_7.jpg; own.csv has 3 images, such as a/x.jpg."
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "names", [("1000.JPG", *IMAGES), ("sub/1000.jpg", *IMAGES), ("val/1000.jpg", "train/1001.jpg")]
)
def test_an_image_is_not_taken_for_one_of_another_folder_or_name(names: tuple[str, ...], capsys: Capture) -> None:
    """The image that is missing is reported, and the others are used."""
    Path("photos").rename("train")
    written("own.csv", "file,caption\n" + "".join(f"{name},a dog runs\n" for name in names))
    written("valid.csv", f"file,caption\n{IMAGES[3]},a dog runs\n")
    assert prepare("own.csv", "data.directory=train", "data.valid=valid.csv") == 0
    used = {Path(name).name for name in names[1:]} | {IMAGES[3]}
    assert {image["file"] for image in prepared(capsys)} == {f"train/{name}" for name in used}
    assert names[0] in next(Path("cache").glob("photos-*/refused.txt")).read_text()


def test_how_each_side_names_an_image_is_said(capsys: Capture, caplog: pytest.LogCaptureFixture) -> None:
    written("own.csv", "file,caption\n" + "".join(f"val/{name},a dog runs\n" for name in IMAGES))
    assert prepare("own.csv") == 0
    said = "own.csv calls one val/1000.jpg, photos has 1000.jpg."
    assert [message for message in caplog.messages if message.startswith("4 of the 4 images") and said in message]


def test_a_validation_share_is_taken_beside_a_test_file(capsys: Capture) -> None:
    written("own.jsonl", lines(*({"file": name, "caption": "a dog runs"} for name in IMAGES[:3])))
    written("test.jsonl", lines({"file": IMAGES[3], "caption": "a dog runs"}))
    assert prepare("own.jsonl", "data.test=test.jsonl") == 0
    splits = json.loads(next(Path("cache").glob("photos-*/summary.json")).read_text())["splits"]
    assert {name: split["images"] for name, split in splits.items()} == {"train": 2, "valid": 1, "test": 1}


@pytest.mark.parametrize(
    "data",
    [
        "data=photos data.directory=photos data.train=own.jsonl data.test=own.jsonl data.valid_share=0 model=show_tell",
        "data=karpathy data.directory=photos data.annotations=karpathy.json model=show_tell",
        "data=parallel data.train=own.tsv data.valid=null model=bahdanau",
    ],
)
def test_training_without_validation_data_ends_before_any_is_read(data: str, capsys: Capture) -> None:
    written("own.jsonl", lines(*({"file": name, "caption": "a dog runs"} for name in IMAGES)))
    written("own.tsv", "a dog\tein Hund\n")
    written("karpathy.json", json.dumps(karpathy(("train", "train", "train", "test"))))
    assert run("train", *data.split(), "run=r", "device=cpu", "train.steps=1", "data.processes=1") == 2
    assert "The data have no split 'valid', only train" in capsys.readouterr().err
    assert not list(Path("cache").glob("*-*"))


def test_splits_of_karpathys_file_are_kept(capsys: Capture) -> None:
    written("karpathy.json", json.dumps(karpathy(("val", "train", "restval", "test"))))
    assert prepare("karpathy.json", "data.test_share=0.1") == 0
    assert [image["file"] for image in prepared(capsys)].count("photos/1000.jpg") == 1
    valid = next(Path("cache").glob("photos-*/valid.images.jsonl")).read_text()
    assert json.loads(valid)["file"] == "photos/1000.jpg"


def test_flickr8k_with_kaggles_captions(capsys: Capture) -> None:
    Path("photos").rename("Images")
    written(*PUBLISHED["Kaggle"])
    written("Flickr_8k.trainImages.txt", "1000.jpg\n1001.jpg\n")
    written("Flickr_8k.devImages.txt", "1002.jpg\n")
    settings = [
        "data=flickr8k",
        "data.directory=.",
        "data.vocabulary.minimum_count=1",
        "data.processes=1",
        "device=cpu",
    ]
    assert run("prepare", "model=show_tell", *settings) == 0
    assert "Prepared in" in capsys.readouterr().out


@pytest.mark.parametrize("form", ["text in .csv", "JSON lines in .json", "predictions"])
def test_a_report_shows_the_captions_of_every_form(form: str, capsys: Capture) -> None:
    file = written(*SYSTEMS[form])
    assert score(file, written(*PUBLISHED["Kaggle"]), "report=r.html") == 0
    page = json.dumps(blocks(Path("r.html")))
    assert ("data:image/jpeg;base64," in page) == (form != "predictions")  # which names no file that is there
    assert "a red dog runs" in page
