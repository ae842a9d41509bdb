import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seqtool import caption_evaluation
from seqtool.caption_evaluation import evaluate_caption_files, java_scores, read_hypotheses, read_references
from seqtool.errors import InputError
from seqtool.metrics.captioning import NAMES
from seqtool.metrics.document_frequencies import DocumentFrequencies

RESULTS = [{"image_id": 1, "caption": "A dog runs."}, {"image_id": 2, "caption": "Two cats."}]
ANNOTATIONS = {
    "images": [{"id": 1}, {"id": 2}],
    "annotations": [
        {"id": 10, "image_id": 1, "caption": "A dog is running."},
        {"id": 11, "image_id": 2, "caption": "Two cats sleep"},
        {"id": 12, "image_id": 1, "caption": "A dog runs on grass."},
    ],
}


def write(path: Path, data: Any) -> Path:
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return path


def test_formats_are_one(tmp_path: Path) -> None:
    """COCO's two formats and the plain one hold the same captions, whether ids are numbers or text."""
    references = {"1": ["A dog is running.", "A dog runs on grass."], "2": ["Two cats sleep"]}
    text_ids = [{**entry, "image_id": str(entry["image_id"])} for entry in RESULTS]
    hypotheses = [RESULTS, text_ids, {"1": "A dog runs.", "2": "Two cats."}, {"1": ["A dog runs."], "2": ["Two cats."]}]
    records = []
    for i, data in enumerate(hypotheses):
        for j, other in enumerate((ANNOTATIONS, references)):
            files = write(tmp_path / f"h{i}.json", data), write(tmp_path / f"r{j}.json", other)
            scores = evaluate_caption_files(*files, tokenize="ptb", document_frequencies=None)
            records.append(scores.record())
    assert all(record == records[0] for record in records)
    assert set(records[0]) == {*NAMES, "signature"}
    assert read_references(tmp_path / "r0.json") == references


def test_golden_files(shared: Path) -> None:
    directory = shared / "golden"
    files = directory / "fakecap_hyps_raw.json", directory / "fakecap_refs_ptb.json"
    scores = evaluate_caption_files(*files, tokenize="none", document_frequencies=None)
    assert scores.cider_d == pytest.approx(0.5997905185184199, abs=1e-9)
    assert "cider_d      0.5998" in scores.text()


def test_document_frequencies_of_a_file(tmp_path: Path) -> None:
    files = write(tmp_path / "h.json", RESULTS), write(tmp_path / "r.json", ANNOTATIONS)
    DocumentFrequencies(100, {"a": 90, "dog": 3}, "ptb", "").save(tmp_path / "coco.json")
    scores = evaluate_caption_files(*files, tokenize="ptb", document_frequencies=tmp_path / "coco.json")
    assert "|df:coco(100)|" in scores.signature


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("{", r"f\.json line 1 is not JSON \(Expecting property name enclosed in double quotes\): expected a list of "),
        ("3", r"f\.json holds no captions: expected a list of \{\"image_id\": …, \"caption\": …\}, an object "),
        ([3], r"f\.json: entry 0 is not an object: expected a list"),
        ([{"caption": "a"}], r"f\.json: entry 0\.image_id is null: expected an image id, a whole number or text\.$"),
        ([{"image_id": 1.5, "caption": "a"}], r"f\.json: entry 0\.image_id is 1\.5: expected an image id"),
        ([{"image_id": 1}], r"f\.json: entry 0\.caption is null: expected a caption\.$"),
        ({"annotations": 3}, r"f\.json: images and annotations must be lists\.$"),
        ({"annotations": [{"image_id": True}]}, r"f\.json: annotations\[0\]\.image_id is true: expected an image id"),
        ({"images": [{}], "annotations": []}, r"f\.json: images\[0\]\.id is null: expected an image id"),
        ({"1": [3]}, r"f\.json: image 1 is 3: expected a caption\.$"),
        ('{"1": "a", "1": "b"}', r"f\.json has '1' twice in one object: every image must stand once\.$"),
    ],
)
def test_files_of_other_shapes(tmp_path: Path, data: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_references(write(tmp_path / "f.json", data))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no\.json does not exist\.$"):
        read_references(tmp_path / "no.json")
    (tmp_path / "latin.json").write_bytes('{"1": "é"}'.encode("latin-1"))
    with pytest.raises(InputError, match=r"latin\.json is not UTF-8 \(byte 7\): expected JSON\.$"):
        read_references(tmp_path / "latin.json")


def test_two_captions_of_an_image(tmp_path: Path) -> None:
    """Also where one of the two ids is a number and the other text."""
    twice = [{"image_id": 1, "caption": "a"}, {"image_id": "1", "caption": "b"}]
    with pytest.raises(InputError, match=r"h\.json has 2 captions for image 1: expected one an image\.$"):
        read_hypotheses(write(tmp_path / "h.json", twice))


def test_images_that_are_missing(tmp_path: Path) -> None:
    hypotheses, references = write(tmp_path / "h.json", RESULTS[:1]), write(tmp_path / "r.json", ANNOTATIONS)
    with pytest.raises(InputError, match=r"h\.json has no caption for image 2 of .*r\.json: every image must have one"):
        evaluate_caption_files(hypotheses, references, tokenize="ptb", document_frequencies=None)
    write(references, {"images": [{"id": 1}, {"id": 5}, {"id": 6}], "annotations": ANNOTATIONS["annotations"]})
    with pytest.raises(
        InputError, match=r"r\.json has no caption for 2 images, such as 5,: every image needs at least"
    ):
        evaluate_caption_files(hypotheses, references, tokenize="ptb", document_frequencies=None)


class Scorer:
    """Stands for pycocoevalcap's scorers."""

    def compute_score(
        self, references: dict[str, list[str]], results: dict[str, list[str]]
    ) -> tuple[float, list[float]]:
        assert (references, results) == ({"1": ["a dog"]}, {"1": ["a cat"]})
        return 0.25, [0.25]


class Broken(Scorer):
    def __init__(self) -> None:
        raise subprocess.CalledProcessError(1, "java")


def scores_with(monkeypatch: pytest.MonkeyPatch, meteor: type, *, java: str, version: str) -> Any:
    for name, scorer in (("meteor", meteor), ("spice", Scorer)):
        module = SimpleNamespace(**{name.capitalize(): scorer})
        monkeypatch.setitem(sys.modules, f"pycocoevalcap.{name}.{name}", module)
    monkeypatch.setattr(caption_evaluation.shutil, "which", lambda _: java or None)
    answer = SimpleNamespace(stderr=f'openjdk version "{version}" 2025-04-15')
    monkeypatch.setattr(caption_evaluation.subprocess, "run", lambda *_, **__: answer)
    return java_scores({"1": "A cat."}, {"1": ["A dog!"]}, tokenize="ptb")


def test_java_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    old = scores_with(monkeypatch, Scorer, java="/usr/bin/java", version="1.8.0_392")
    assert old == ({"meteor": 0.25, "spice": 0.25}, [])
    new = scores_with(monkeypatch, Scorer, java="/usr/bin/java", version="17.0.15")
    assert new == ({"meteor": 0.25}, ["SPICE does not run on Java 17: it needs 14 or older."])
    broken = scores_with(monkeypatch, Broken, java="/usr/bin/java", version="17.0.15")
    assert broken[1][0] == "METEOR failed in Java: Command 'java' returned non-zero exit status 1."
    none = scores_with(monkeypatch, Scorer, java="", version="")
    assert none == ({}, ["METEOR and SPICE need Java, which is not on the PATH."])


def test_without_pycocoevalcap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycocoevalcap.meteor.meteor", None)
    assert java_scores({"1": "a"}, {"1": ["a"]}, tokenize="ptb") == (
        {},
        ["METEOR and SPICE need pycocoevalcap: pip install pycocoevalcap."],
    )
