"""Tests of caption files: all commands read the formats of published corpora, of other programs and of users."""

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
TRIPLES = [(name, number, caption) for name, captions in CAPTIONS.items() for number, caption in enumerate(captions)]
HYPOTHESES = {name: captions[0] for name, captions in CAPTIONS.items()}

Capture = pytest.CaptureFixture[str]


def run(*arguments: str) -> int:
    return cli.run(list(arguments), config_directory())


def table(separator: str, header: tuple[str, str], quote: str = '"', end: str = "\n") -> str:
    """Return a table of all images and captions."""
    rows = [header, *((name, f"{quote}{caption}{quote}") for name, caption in PAIRS)]
    return "".join(separator.join(row) + end for row in rows)


def lines(*records: Any) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def coco(**fields: Any) -> dict[str, Any]:
    images = [{"id": i, "file_name": name, "height": 8, "width": 8} for i, name in enumerate(CAPTIONS)]
    annotations = [
        {"id": k, "image_id": IMAGES.index(name), "caption": text, **fields} for k, (name, text) in enumerate(PAIRS)
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
    rejected = {"image_id": 0, "caption": "Quality issues are too severe to recognize visual content."}
    flags = ({"is_rejected": True, "is_precanned": False}, {"is_rejected": False, "is_precanned": True})
    content["annotations"] += [{"id": 90 + i, **rejected, **flag} for i, flag in enumerate(flags)]
    return content


def nocaps() -> dict[str, Any]:
    content = coco()
    for image in content["images"]:
        image |= {"open_images_id": image["file_name"][:4], "domain": "near-domain", "coco_url": ""}
    return content


PUBLISHED: dict[str, tuple[str, str]] = {
    "Flickr8k": ("Flickr8k.token.txt", "".join(f"{name}#{number}\t{text}\n" for name, number, text in TRIPLES)),
    "Flickr30k": (
        "results.csv",
        "image_name| comment_number| comment\n"
        + "".join(f"{name}| {n}{'|' if (name, n) != ('1003.jpg', 1) else '  '} {text}\n" for name, n, text in TRIPLES),
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
    "a byte order mark and \\r\\n": ("a.csv", "\ufeff" + table(",", ("image", "caption"), end="\r\n")),
    "line ends \\r": ("a.csv", table(",", ("image", "caption"), end="\r")),
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
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with photos/ and h.json, whose hypotheses are the first caption of each image."""
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    for number, name in enumerate(IMAGES):
        Image.new("RGB", (8, 8), (50 * number, 3, 4)).save(Path("photos", name))
    Path("h.json").write_text(json.dumps([{"image_id": name, "caption": text} for name, text in HYPOTHESES.items()]))
    return tmp_path


def write(name: str, content: str) -> str:
    """Write a file and return its name."""
    Path(name).write_bytes(content.encode())
    return name


def score(hypotheses: str, references: str, *settings: str) -> int:
    """Run `eval` on captions, and return its status."""
    files = [f"hypotheses={hypotheses}", f"references={references}"]
    return run("eval", "task=captioning", *files, "bootstrap=2", *settings)


def read_segments(capsys: Capture) -> dict[str, Any]:
    """Return the records that `eval` has printed, by image."""
    return {line["image"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}


def prepare(train: str, *settings: str) -> int:
    data = [f"data.train={train}", "data.valid_share=0.25", "data.test_share=0", "data.vocabulary.minimum_count=1"]
    common = ["data=photos", "data.directory=photos", "data.processes=1", "device=cpu", "model.encoder.size=32"]
    return run("prepare", "model=show_tell", *common, *data, *settings)


def read_prepared(capsys: Capture) -> list[dict[str, Any]]:
    """Return the images in the only cache."""
    assert "Prepared in" in capsys.readouterr().out
    files = Path("cache").glob("photos-*/*.images.jsonl")
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.mark.parametrize("form", PUBLISHED)
def test_every_published_format_is_scored(form: str, capsys: Capture) -> None:
    assert score("h.json", write(*PUBLISHED[form]), "format=jsonl") == 0
    rows = list(read_segments(capsys).values())
    assert [row["references"] for row in rows] == list(CAPTIONS.values())
    assert [row["hypothesis"] for row in rows] == list(HYPOTHESES.values())


@pytest.mark.parametrize("form", ["Flickr30k", "Karpathy", "TextCaps", "VizWiz"])
def test_published_formats_are_prepared(form: str, capsys: Capture) -> None:
    assert prepare(write(*PUBLISHED[form])) == 0
    images = sorted(read_prepared(capsys), key=lambda image: str(image["file"]))
    assert [(image["file"], image["captions"]) for image in images] == [(f"photos/{n}", c) for n, c in CAPTIONS.items()]


BAD_TABLES = {
    "two stray quotes": (
        'file,caption\n1000.jpg,"A dog\n1001.jpg,A cat\n1002.jpg,A sign that says "\n1003.jpg,A bus\n',
        "line 2 opens a quote (\") that has not closed in line 3, which names 1001.jpg",
    ),
    "semicolons as separators": (
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
    "two image formats": (
        'file,caption\na.png,"A dog\n1001.jpg,A cat\n1002.jpg,A sign "\n',
        "line 2 opens a quote (\") that has not closed in line 3, which names 1001.jpg",
    ),
    "an additional column": (
        'file,caption,note\n1000.jpg,"A dog,\n1001.jpg,A cat,\n1002.jpg,A sign that says ",x\n',
        "line 2 opens a quote (\") that has not closed in line 3, which names 1001.jpg",
    ),
    "a space before it": (
        'file,caption\n1000.jpg, "A dog\n1001.jpg,A cat\n1002.jpg,A sign that says "\n',
        "line 2 opens a quote (\") that has not closed in line 3, which names 1001.jpg",
    ),
    "never closed": ('file,caption\n1000.jpg,A dog\n1001.jpg,"A cat\n1002.jpg,A sign\n', "line 3 opens a quote (\")"),
    "closed by the quote of another caption": (
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
    "a header without images": (
        "url\tcaption\nhttp://a/1000.jpg\thello\n", "line 1 has the columns url, caption: call the column"
    ),
    "a header without captions": (
        "image\talt text\n1000.jpg\thello\n", "line 1 has the columns image, alt text: call the column"
    ),
    "no header": ("1000.jpg,A dog\n", "line 1 is '1000.jpg,A dog': expected a file of captions"),
    "an unknown header": ("dog;cat\n", "line 1 is 'dog;cat': expected a file of captions"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD_TABLES)
def test_bad_tables_are_refused_with_their_line(kind: str, capsys: Capture) -> None:
    """Both `prepare` and `eval` refuse the file."""
    content, message = BAD_TABLES[kind]
    assert prepare(write("own.csv", content)) == 2
    error = capsys.readouterr().err
    assert error.startswith("seqtool: own.csv ") and message in error and error.count("\n") == 1
    assert score("h.json", "own.csv") == 2
    assert message in capsys.readouterr().err


def test_quoted_captions_may_have_lines_commas_and_quotes(capsys: Capture) -> None:
    rows = '1000.jpg,"A dog,\nand ""two""\ncats, red"\n1001.jpg, "A cat, black" \n'
    rows += '1002.jpg,A "red" dog\n1003.jpg, "No" sign\n'
    assert prepare(write("own.csv", f"file,caption\n{rows}")) == 0
    captions = {Path(image["file"]).name: image["captions"] for image in read_prepared(capsys)}
    expected = ['A dog, and "two" cats, red', "A cat, black", 'A "red" dog', '"No" sign']
    assert captions == {name: [caption] for name, caption in zip(IMAGES, expected, strict=True)}


def test_a_quoted_caption_of_a_numbered_image_may_have_lines(capsys: Capture) -> None:
    write("own.csv", 'image_id,caption\n12,"A dog runs.\nWow, nice"\n13,A cat\n')
    assert score(write("h.csv", "image_id,caption\n12,a dog\n13,a cat\n"), "own.csv", "format=jsonl") == 0
    assert [row["references"] for row in read_segments(capsys).values()] == [["A dog runs. Wow, nice"], ["A cat"]]


def test_output_of_caption_may_contain_bars_and_numbers(capsys: Capture) -> None:
    file = write("h.txt", "1000.jpg\ta sign that says | 3 dogs\n1001.jpg\ta dog\n")
    assert score(file, write(*PUBLISHED["Kaggle"]), "format=jsonl") == 0
    assert read_segments(capsys)["1000.jpg"]["hypothesis"] == "a sign that says | 3 dogs"


UNKNOWN_OBJECTS: dict[str, Any] = {
    "an object without captions": ({"model": "x", "outputs": {"a": {"score": 1}}}, "the keys 'model', 'outputs'"),
    "questions": ({"info": "x", "questions": [{"question": "x"}]}, "the keys 'info', 'questions'"),
    "images without annotations": ({"images": coco()["images"], "info": {}}, "has no 'annotations'"),
    "records without captions": (
        [{"file": "1000.jpg", "label": 3}],
        "has no caption of 1000.jpg: it has the keys 'file', 'label'",
    ),
    "records without an image": ({"data": [{"caption": "a dog", "score": 1}]}, "data[0] does not name an image"),
}


@pytest.mark.parametrize("kind", UNKNOWN_OBJECTS)
def test_an_unknown_object_is_described_by_its_keys(kind: str, capsys: Capture) -> None:
    content, message = UNKNOWN_OBJECTS[kind]
    write("strange.json", json.dumps(content))
    assert score("h.json", "strange.json") == 2
    error = capsys.readouterr().err
    assert "strange.json" in error and message in error and error.count("\n") == 1
    assert prepare("strange.json") == 2
    assert message in capsys.readouterr().err


def n_best(text: str) -> dict[str, Any]:
    return {"captions": [{"text": text, "score": -1.0}, {"text": "no", "score": -2.0}]}


COCO_RESULTS = [{"image_id": name, "caption": text} for name, text in HYPOTHESES.items()]
SYSTEM_OUTPUTS: dict[str, tuple[str, str]] = {
    "predictions": ("h.json", json.dumps({"model": "x", "predictions": COCO_RESULTS})),
    "results": ("h.json", json.dumps({"results": COCO_RESULTS})),
    "predictions by image": ("h.json", json.dumps({"predictions": HYPOTHESES})),
    "coco-caption": ("h.json", json.dumps({name: [{"caption": text}] for name, text in HYPOTHESES.items()})),
    "predicted": ("h.json", json.dumps([{"filename": name, "prediction": text} for name, text in HYPOTHESES.items()])),
    "a table of ids": (
        "h.csv",
        "image_id,caption\n" + "".join(f"{n},{text}\n" for n, text in enumerate(HYPOTHESES.values())),
    ),
    "a table of names": ("h.tsv", "image\tcaption\n" + "".join(f"{n}\t{t}\n" for n, t in HYPOTHESES.items())),
    "text in .csv": ("h.csv", "".join(f"photos/{name}\t{text}\n" for name, text in HYPOTHESES.items())),
    "text in .json": ("h.json", "".join(f"photos/{name}\t{text}\n" for name, text in HYPOTHESES.items())),
    "n best in .jsonl": (
        "h.jsonl",
        "".join(f"{n}\t{t}\t-0.5\n{n}\tno\t-1.5\tnot ended\n" for n, t in HYPOTHESES.items()),
    ),
    "JSON lines in .json": ("h.json", lines(*({"image": f"photos/{n}", **n_best(t)} for n, t in HYPOTHESES.items()))),
    "JSON lines in .txt": ("h.txt", lines(*({"image": n, "captions": [{"text": t}]} for n, t in HYPOTHESES.items()))),
    "COCO's results in .csv": ("h.csv", json.dumps(COCO_RESULTS)),
    "one line": ("h.csv", lines({"image": "1000.jpg", "captions": [{"text": HYPOTHESES["1000.jpg"]}]})),
}


@pytest.mark.parametrize("form", SYSTEM_OUTPUTS)
def test_the_content_decides_the_format_of_a_systems_output(form: str, capsys: Capture) -> None:
    """The format is recognised whatever the suffix is, for hypotheses and for a baseline."""
    references = write("references.json", json.dumps(coco()))
    file = write(*SYSTEM_OUTPUTS[form])
    assert score(file, references, "format=jsonl", f"baseline={file}") == 0
    rows = read_segments(capsys)
    assert len(rows) == (1 if form == "one line" else 4)
    for i, row in rows.items():
        assert row["hypothesis"] == row["baseline"]["hypothesis"] == HYPOTHESES[IMAGES[int(i)]]


@pytest.mark.parametrize("form", ["COCO", "Kaggle", "lines in .json"])
def test_only_images_with_hypotheses_are_scored(form: str, capsys: Capture, caplog: pytest.LogCaptureFixture) -> None:
    """The scores, and CIDEr's document frequencies, are as if no other images had references."""
    references = write(*PUBLISHED[form])
    two_hypotheses = dict.fromkeys(IMAGES[:2], "a red dog sits")
    write("h.json", json.dumps(two_hypotheses))
    write("more.json", json.dumps(HYPOTHESES))
    assert score("h.json", references, "format=json", "baseline=more.json") == 0
    scores = json.loads(capsys.readouterr().out)
    assert f"h.json has captions for 2 of the 4 images of {references}: only these are scored." in caplog.messages
    write("few.json", json.dumps({name: CAPTIONS[name] for name in two_hypotheses}))
    assert score("h.json", "few.json", "format=json", "baseline=more.json") == 0
    assert json.loads(capsys.readouterr().out) == scores
    assert score("h.json", references) == 0
    assert "only these are scored" not in capsys.readouterr().out  # standard error has it already
    write("h.json", json.dumps({**two_hypotheses, "2000.jpg": "a dog"}))
    assert score("h.json", references) == 2
    message = capsys.readouterr().err
    assert "h.json has captions for image 2000.jpg that" in message and ".jpg.\n" in message
    write("h.json", json.dumps(two_hypotheses))
    write("more.json", json.dumps({"1000.jpg": "a dog"}))
    assert score("h.json", references, "baseline=more.json") == 2
    assert "more.json has no caption for image" in capsys.readouterr().err


def test_translations_and_captions_are_told_apart_by_content(capsys: Capture) -> None:
    write("o.json", lines(*({"source": "x", "translations": [{"text": text}]} for text in ("a b c d", "e f g h"))))
    write("r.txt", "a b c d\ne f g h\n")
    files = ["hypotheses=o.json", "references=r.txt", "baseline=o.json", "beside=o.json"]
    assert run("eval", *files, "format=json", "report=r.html") == 0
    assert json.loads(capsys.readouterr().out)["system"]["bleu"]["value"] == pytest.approx(100)
    for file in ("h.json", write("h.txt", "image,caption\n1000.jpg,a dog\n")):
        assert run("eval", f"hypotheses={file}", "references=r.txt") == 2
        message = f"hypotheses={file} contains captions: add task=captioning, or task=translation"
        assert message in capsys.readouterr().err


FIRST_LINES = (
    '[["Laughter"]] and so on',
    "{",
    "Image, Text",
    "[[File:a.jpg]]",
    '["',
    '["a", "b"]',
    '{"name": "x"}',
    "[]",
)


@pytest.mark.parametrize("first_line", FIRST_LINES)
def test_sentences_that_begin_like_caption_files_are_scored(first_line: str, capsys: Capture) -> None:
    file = write("h.txt", f"{first_line}\nHello, a dog runs there\n")
    assert run("eval", f"hypotheses={file}", f"references={file}", "format=json", "bootstrap=0") == 0
    assert "bleu" in capsys.readouterr().out


@pytest.mark.parametrize("form", ["COCO", "Kaggle", "Karpathy", "lines without a suffix", "Flickr30k", "quoted names"])
def test_caption_files_are_refused_as_sentences(form: str, capsys: Capture) -> None:
    file = write(*PUBLISHED[form])
    assert run("eval", f"hypotheses={file}", f"references={file}") == 2
    assert "contains captions: add task=captioning" in capsys.readouterr().err
    assert run("eval", "task=translation", f"hypotheses={file}", f"references={file}", "bootstrap=0") == 0


COMPOSED, DECOMPOSED = (unicodedata.normalize(form, "Köln été.jpg") for form in ("NFC", "NFD"))
NAMES = {  # in the directory, in the captions
    "decomposed in the captions": (COMPOSED, DECOMPOSED),
    "decomposed in the directory": (DECOMPOSED, COMPOSED),
    "case of the suffix": ("IMG_1.JPG", "IMG_1.jpg"),
    "backslashes": ("sub/b.jpg", "sub\\b.jpg"),
    "a directory added": ("b.jpg", "photos/b.jpg"),
    "a Windows path": ("b.jpg", "C:\\Users\\me\\Photos\\b.jpg"),
    "an absolute path": ("b.jpg", "/home/me/photos/b.jpg"),
    "a directory left out": ("Images/b.jpg", "b.jpg"),
    "no suffix": ("b.jpg", "b"),
    "no suffix, no directory, another case": ("Images/IMG_1.PNG", "img_1"),
    "all differences": (f"Images/{DECOMPOSED}", f"images\\{COMPOSED.upper()}"),
}


@pytest.mark.parametrize("kind", NAMES)
def test_different_spellings_of_image_names_match(kind: str, capsys: Capture) -> None:
    """Names match between captions and the directory of photos, and between hypotheses and references."""
    in_directory, in_captions = NAMES[kind]
    Path("photos", in_directory).parent.mkdir(exist_ok=True)
    Path("photos/1000.jpg").rename(Path("photos", in_directory))
    write("own.jsonl", lines(*({"file": name, "caption": "a dog runs"} for name in (in_captions, *IMAGES[1:]))))
    assert prepare("own.jsonl", "data.valid_share=0.3") == 0
    assert f"photos/{in_directory}" in {image["file"] for image in read_prepared(capsys)}
    for hypothesis_name, reference_name in ((in_directory, in_captions), (in_captions, in_directory)):
        write("h.json", json.dumps([{"image_id": hypothesis_name, "caption": "a dog"}]))
        references = [{"image_id": reference_name, "caption": "a dog"}, {"image_id": "x", "caption": "y"}]
        write("r.json", json.dumps(references))
        assert score("h.json", "r.json", "format=jsonl") == 0
        assert list(read_segments(capsys)) == [reference_name]


def test_empty_hypotheses_are_counted_and_scored(capsys: Capture, caplog: pytest.LogCaptureFixture) -> None:
    write("h.csv", "image_id,caption\n12,a dog runs\n14,\n15,  \n")
    write("r.json", json.dumps({name: ["a dog", "a cat"] for name in ("12.jpg", "14.jpg", "15.jpg")}))
    assert score("h.csv", "r.json", "bootstrap=0") == 0
    assert "h.csv has 2 empty captions, such as that of 14.jpg: they are scored too." in caplog.messages
    assert "Warning" not in capsys.readouterr().out  # standard error has it already


def test_names_that_match_several_images_or_none_are_refused(capsys: Capture) -> None:
    """The message quotes names of both files, or of the file and the directory."""
    for folder in ("a", "b"):
        Path("photos", folder).mkdir()
        Image.new("RGB", (8, 8)).save(Path("photos", folder, "x.jpg"))
    assert prepare(write("own.csv", "file,caption\nx.jpg,a dog\n1000.jpg,a dog\n")) == 2
    assert "own.csv names x.jpg, which could be photos/a/x.jpg or b/x.jpg." in capsys.readouterr().err
    assert prepare(write("own.csv", "file,caption\nIMG_7.jpg,a dog\nIMG_8.jpg,a cat\n")) == 2
    error = capsys.readouterr().err
    assert "IMG_" in error and "photos has other images, such as 1000.jpg." in error
    assert prepare(write("own.csv", "file,caption\n1000.JPG,a dog\n1000.Jpg,a cat\n")) == 2
    assert "own.csv names 1000.JPG and 1000.Jpg, but photos has only 1000.jpg." in capsys.readouterr().err
    write("own.csv", "file,caption\na/x.jpg,a dog\nb/x.jpg,a cat\n1000.jpg,a dog\n")
    write("h.json", json.dumps({"x.jpg": "a dog", "1000.jpg": "a dog"}))
    assert score("h.json", "own.csv") == 2
    assert "h.json has captions for image x.jpg that own.csv does not have" in capsys.readouterr().err
    write("h.json", json.dumps({"IMG_7.jpg": "a dog"}))
    assert score("h.json", "own.csv") == 2
    message = "h.json has image IMG_7.jpg; own.csv has 3 images, such as a/x.jpg."
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "names", [("1000.JPG", *IMAGES), ("sub/1000.jpg", *IMAGES), ("val/1000.jpg", "train/1001.jpg")]
)
def test_a_missing_image_is_not_replaced_by_a_similar_name(
    names: tuple[str, ...], capsys: Capture, caplog: pytest.LogCaptureFixture
) -> None:
    """The missing image is reported once, and the remaining images are used."""
    Path("photos").rename("train")
    write("own.csv", "file,caption\n" + "".join(f"{name},a dog runs\n" for name in names))
    write("valid.csv", f"file,caption\n{IMAGES[3]},a dog runs\n")
    assert prepare("own.csv", "data.directory=train", "data.valid=valid.csv") == 0
    used = {Path(name).name for name in names[1:]} | {IMAGES[3]}
    assert (capsys.readouterr().out + caplog.text).count("refused.txt") == 1
    assert prepare("own.csv", "data.directory=train", "data.valid=valid.csv") == 0
    assert {image["file"] for image in read_prepared(capsys)} == {f"train/{name}" for name in used}
    assert names[0] in next(Path("cache").glob("photos-*/refused.txt")).read_text()


def test_training_names_the_file_of_refused_images(caplog: pytest.LogCaptureFixture) -> None:
    write("own.csv", "file,caption\n" + "".join(f"{name},a dog runs\n" for name in ("no.jpg", *IMAGES)))
    data = ["data=photos", "data.directory=photos", "data.train=own.csv", "data.valid=own.csv", "data.test_share=0"]
    model = ["model=show_tell", "model.embedding=4", "model.hidden=4", "model.encoder.size=32", "train.steps=1"]
    assert run("train", *data, *model, "data.vocabulary.minimum_count=1", "device=cpu", "run=r") == 0
    (file,) = Path("cache").glob("photos-*/refused.txt")
    assert f"2 images cannot be used: {file} has the reasons." in caplog.messages


def test_differing_image_names_are_logged(capsys: Capture, caplog: pytest.LogCaptureFixture) -> None:
    write("own.csv", "file,caption\n" + "".join(f"val/{name},a dog runs\n" for name in IMAGES))
    assert prepare("own.csv") == 0
    example = "own.csv calls one val/1000.jpg, photos has 1000.jpg."
    assert any(message.startswith("4 of the 4 images") and example in message for message in caplog.messages)


def test_a_validation_share_may_be_combined_with_a_test_file(capsys: Capture) -> None:
    write("own.jsonl", lines(*({"file": name, "caption": "a dog runs"} for name in IMAGES[:3])))
    write("test.jsonl", lines({"file": IMAGES[3], "caption": "a dog runs"}))
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
def test_training_without_validation_data_is_refused_before_reading(data: str, capsys: Capture) -> None:
    write("own.jsonl", lines(*({"file": name, "caption": "a dog runs"} for name in IMAGES)))
    write("own.tsv", "a dog\tein Hund\n")
    write("karpathy.json", json.dumps(karpathy(("train", "train", "train", "test"))))
    assert run("train", *data.split(), "run=r", "device=cpu", "train.steps=1", "data.processes=1") == 2
    assert "The data have no split 'valid', only train" in capsys.readouterr().err
    assert not list(Path("cache").glob("*-*"))


def test_the_validation_split_of_karpathys_file_is_kept(capsys: Capture) -> None:
    write("karpathy.json", json.dumps(karpathy(("val", "train", "restval", "test"))))
    assert prepare("karpathy.json", "data.test_share=0.1") == 0
    assert [image["file"] for image in read_prepared(capsys)].count("photos/1000.jpg") == 1
    valid = next(Path("cache").glob("photos-*/valid.images.jsonl")).read_text()
    assert json.loads(valid)["file"] == "photos/1000.jpg"


def test_flickr8k_is_prepared_with_kaggles_captions(capsys: Capture) -> None:
    Path("photos").rename("Images")
    write(*PUBLISHED["Kaggle"])
    write("Flickr_8k.trainImages.txt", "1000.jpg\n1001.jpg\n")
    write("Flickr_8k.devImages.txt", "1002.jpg\n")
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
def test_reports_show_the_captions_of_every_format(form: str, capsys: Capture) -> None:
    file = write(*SYSTEM_OUTPUTS[form])
    assert score(file, write(*PUBLISHED["Kaggle"]), "report=r.html") == 0
    page = json.dumps(blocks(Path("r.html")))
    assert ("data:image/jpeg;base64," in page) == (form != "predictions")  # these name images without their directory
    assert "a red dog runs" in page
