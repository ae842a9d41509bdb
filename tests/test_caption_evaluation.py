"""Tests of `eval` on captions: file formats, checkpoints, document frequencies, baselines and scores per image."""

import contextlib
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from evaluation_settings import evaluation_settings
from omegaconf import OmegaConf
from PIL import Image
from pycocotools.coco import COCO

from seqtool.cli import main as cli
from seqtool.data.corpora.caption_files import Captions
from seqtool.data.corpora.caption_sources import Coco
from seqtool.errors import InputError
from seqtool.evaluation import EvaluationData, captions
from seqtool.evaluation.captions import CaptionEvaluator, read_hypotheses, read_references
from seqtool.metrics.captions import DocumentFrequencies
from seqtool.predict.captioner import Captioner
from seqtool.runtime.files import config_directory
from seqtool.training import checkpoint

Capture = pytest.CaptureFixture[str]
RESULTS = [{"image_id": 1, "caption": "A dog runs."}, {"image_id": 2, "caption": "Two cats."}]
ANNOTATIONS = {
    "images": [{"id": 1}, {"id": 2}],
    "annotations": [
        {"id": 10, "image_id": 1, "caption": "A dog is running."},
        {"id": 11, "image_id": 2, "caption": "Two cats sleep"},
        {"id": 12, "image_id": 1, "caption": "A dog runs on grass."},
    ],
}


SCORE_NAMES = ["bleu1", "bleu2", "bleu3", "bleu4", "bleu4_no_bp", "rouge_l", "cider_d", "cider"]
RECORD_KEYS = [*SCORE_NAMES, "brevity_penalty", "length_ratio", "images", "signature", "intervals"]


def evaluator(*files: Path, **settings: Any) -> CaptionEvaluator:
    """Return an evaluator for a file of hypotheses and a file of references, or for none."""
    file_settings = {"hypotheses": str(files[0]), "references": [str(files[1])]} if files else {}
    common = {"split": "valid", "tokenize": "ptb", "bootstrap": 10}
    return CaptionEvaluator(evaluation_settings(**{**common, **file_settings, **settings}))


def write(path: Path, data: Any) -> Path:
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return path


def test_all_formats_give_the_same_scores(tmp_path: Path) -> None:
    """COCO's two formats and plain objects hold the same captions, whether ids are numbers or text."""
    references = {"1": ["A dog is running.", "A dog runs on grass."], "2": ["Two cats sleep"]}
    text_ids = [{**entry, "image_id": str(entry["image_id"])} for entry in RESULTS]
    hypotheses = [RESULTS, text_ids, {"1": "A dog runs.", "2": "Two cats."}, {"1": ["A dog runs."], "2": ["Two cats."]}]
    records = []
    for i, hypothesis_data in enumerate(hypotheses):
        for j, reference_data in enumerate((ANNOTATIONS, references)):
            files = write(tmp_path / f"h{i}.json", hypothesis_data), write(tmp_path / f"r{j}.json", reference_data)
            records.append(evaluator(*files).evaluate_files().record())
    assert all(record == records[0] for record in records)
    assert list(records[0]) == RECORD_KEYS
    assert read_references(tmp_path / "r0.json") == references


def test_golden_files_have_the_golden_cider_d(shared: Path) -> None:
    directory = shared / "golden"
    files = directory / "fakecap_hyps_raw.json", directory / "fakecap_refs_ptb.json"
    scores = evaluator(*files, tokenize="none").evaluate_files()
    assert scores.record()["cider_d"] == pytest.approx(0.5997905185184199, abs=1e-9)
    assert "cider_d      0.5998 [" in scores.text()


def test_the_signature_names_the_document_frequencies(tmp_path: Path) -> None:
    files = write(tmp_path / "h.json", RESULTS), write(tmp_path / "r.json", ANNOTATIONS)
    DocumentFrequencies(100, {"a": 90, "dog": 3}, "ptb", "").save(tmp_path / "coco.json")
    scores = evaluator(*files, document_frequencies=str(tmp_path / "coco.json")).evaluate_files()
    assert "|df:coco(100)|" in scores.record()["signature"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("{", r"f\.json line 1 is not JSON \(column 2: Expecting property name enclosed in double quotes\)\.$"),
        ("3", r"f\.json holds no captions: expected a list of \{\"image_id\": …, \"caption\": …\} or "),
        ([3], r"f\.json entry 0 must be an object, not 3\.$"),
        (
            [{"caption": "a"}],
            r"f\.json entry 0 does not name an image, for example by .*: it has the keys 'caption'\.$",
        ),
        (
            [{"image_id": 1.5, "caption": "a"}],
            r"f\.json entry 0: 'image_id' must be a whole number or text, not 1\.5\.$",
        ),
        ([{"image_id": 1}], r"f\.json entry 0 has no caption of 1: it has the keys 'image_id'\.$"),
        ({"annotations": 3}, r"f\.json holds no captions under 'annotations': it is an object with the keys"),
        (
            {"annotations": [{"image_id": True}]},
            r"f\.json annotations\[0\]: 'image_id' must be a whole number or text, not true",
        ),
        ({"images": [{}], "annotations": []}, r"f\.json images\[0\]: 'id' must be a whole number or text, not null\.$"),
        ({"1": [3]}, r"f\.json holds no captions under '1': it is an object with the keys '1'\. Exp"),
        ('{"1": "a", "1": "b"}', r"f\.json has '1' twice in one object: keys must be unique\.$"),
    ],
)
def test_json_that_holds_no_captions_is_refused(tmp_path: Path, data: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_references(write(tmp_path / "f.json", data))


def test_compressed_files_are_read_like_plain_files(tmp_path: Path) -> None:
    captions = {"1": ["A dog is running.", "A dog runs on grass."], "2": ["Two cats sleep"]}
    for name, content in (("r.json.gz", json.dumps(ANNOTATIONS)), ("r.gz", json.dumps(captions))):
        (tmp_path / name).write_bytes(gzip.compress(content.encode()))
        assert read_references(tmp_path / name) == captions
    (tmp_path / "r.json.gz").write_bytes((tmp_path / "r.gz").read_bytes()[:-9])
    with pytest.raises(InputError, match=r"r\.json\.gz is not an intact gzip file: copy or download it again\.$"):
        read_references(tmp_path / "r.json.gz")


def test_a_compressed_file_may_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqtool.runtime.files.MAX_GZIP_BYTES", 1 << 10)
    (tmp_path / "r.json.gz").write_bytes(gzip.compress(bytes(1 << 20)))
    with pytest.raises(InputError, match=r"r\.json\.gz has 0 GB or more: decompress it\.$"):
        read_references(tmp_path / "r.json.gz")


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no\.json does not exist\.$"):
        read_references(tmp_path / "no.json")
    (tmp_path / "latin.json").write_bytes('{"1": "é"}'.encode("latin-1"))
    with pytest.raises(InputError, match=r"latin\.json line 1 is not valid UTF-8 \(byte 8 of the line\): convert"):
        read_references(tmp_path / "latin.json")


def test_two_hypotheses_for_an_image_are_refused(tmp_path: Path) -> None:
    """The image is the same, although one id is a number and the other is text."""
    results = [{"image_id": 1, "caption": "a"}, {"image_id": "1", "caption": "b"}]
    with pytest.raises(InputError, match=r"h\.json has 2 captions for image 1: expected one per image\.$"):
        read_hypotheses(str(write(tmp_path / "h.json", results)), Captions({}, {}))


def scored_images(hypotheses: Path, references: Path) -> list[Any]:
    return [segment.name for segment in evaluator(hypotheses, references).evaluate_files().segments]


def test_only_images_with_hypotheses_and_references_are_scored(tmp_path: Path) -> None:
    hypotheses, references = write(tmp_path / "h.json", RESULTS[:1]), write(tmp_path / "r.json", ANNOTATIONS)
    assert scored_images(hypotheses, references) == ["1"]
    write(references, {"images": [{"id": 1}, {"id": 5}, {"id": 6}], "annotations": ANNOTATIONS["annotations"]})
    assert scored_images(hypotheses, references) == ["1"]
    write(hypotheses, [*RESULTS, {"image_id": 5, "caption": "a"}])
    with pytest.raises(InputError, match=r"r\.json has no caption for image 5: every image needs at least one\.$"):
        evaluator(hypotheses, references).evaluate_files()


def run(*arguments: str) -> int:
    return cli.run(["eval", *arguments], config_directory())


class StubCaptioner:
    """Stands in for a captioner, and counts the images that it captions."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}
        self.trust: list[str] = []
        self.captioned = 0
        self.name = "describer"

    def caption_each(self, names: list[str]) -> Iterator[tuple[str, Any, Any]]:
        for name in names:
            self.captioned += 1
            yield name, None, [SimpleNamespace(text="A dog runs.")]


def write_coco(directory: Path) -> Any:
    """Write a small corpus in COCO's layout, with the images 1 and 2 in both splits, and return its settings."""
    for split in ("train", "val"):
        (directory / f"{split}2017").mkdir(parents=True)
        images = [{"id": i, "file_name": f"{i:012d}.jpg"} for i in (1, 2)]
        annotations = {**ANNOTATIONS, "images": images}
        (directory / "annotations").mkdir(exist_ok=True)
        write(directory / "annotations" / f"captions_{split}2017.json", annotations)
    return OmegaConf.create(
        {"_target_": "seqtool.data.corpora.caption_sources.Coco", "directory": str(directory), "year": 2017}
    )


def test_coco_tools_read_the_output_of_eval(tmp_path: Path, capsys: Capture) -> None:
    data = write_coco(tmp_path / "coco")
    captioner: Any = StubCaptioner()
    evaluator(output=str(tmp_path / "results.json")).evaluate_checkpoint(captioner, EvaluationData(data))
    results = COCO(tmp_path / "coco" / "annotations" / "captions_val2017.json").loadRes(str(tmp_path / "results.json"))
    assert sorted(results.getImgIds()) == [1, 2]


def test_evaluating_a_checkpoint_downloads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    captioner: Any = StubCaptioner()
    captioner.config = {"data": write_coco(tmp_path / "coco")}
    monkeypatch.setattr(Coco, "fetch", pytest.fail)
    assert evaluator().evaluate_checkpoint(captioner, EvaluationData()) and captioner.captioned == 2


def test_mismatched_document_frequencies_are_refused_before_decoding(tmp_path: Path) -> None:
    DocumentFrequencies(100, {"a": 90}, "none", "").save(tmp_path / "df.json")
    captioner: Any = StubCaptioner()
    data = EvaluationData(write_coco(tmp_path / "coco"))
    with pytest.raises(InputError, match=r"^The document frequencies df were counted with tokenize=none: they cannot"):
        evaluator(document_frequencies=str(tmp_path / "df.json")).evaluate_checkpoint(captioner, data)
    assert captioner.captioned == 0


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with h.json and r.json."""
    write(tmp_path / "h.json", RESULTS)
    write(tmp_path / "r.json", ANNOTATIONS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


FILES = ("task=captioning", "hypotheses=h.json", "references=r.json", "format=json")


def test_java_scores_are_added_on_request(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, caplog: pytest.LogCaptureFixture
) -> None:
    """With java=true, Java's scores are added to the others, and a warning names the scores that are missing."""

    def scores(hypotheses: Any, references: Any, *, tokenize: str) -> tuple[dict[str, float], list[str]]:
        assert (hypotheses["1"], len(references["1"]), tokenize) == ("A dog runs.", 2, "ptb")
        return {"meteor": 0.25}, ["SPICE is not there."]

    monkeypatch.setattr(captions, "java_scores", scores)
    assert run(*FILES) == 0
    plain = json.loads(capsys.readouterr().out)
    assert list(plain) == RECORD_KEYS
    assert run(*FILES, "java=true") == 0
    assert json.loads(capsys.readouterr().out) == {**plain, "meteor": 0.25}
    assert run(*FILES[:3], "java=true") == 0
    assert "meteor       0.2500\n" in capsys.readouterr().out and caplog.messages[-1] == "SPICE is not there."


def test_saved_document_frequencies_give_the_same_scores(files: Path, capsys: Capture) -> None:
    """Document frequencies that were saved from the scored references change no score."""
    assert run(*FILES) == 0
    expected = json.loads(capsys.readouterr().out)
    assert run("task=captioning", "references=r.json", "save_document_frequencies=df.json", "format=json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary == {"document_frequencies": "df.json", "images": 2, "ngrams": 27, "tokenize": "ptb"}
    assert run(*FILES, "document_frequencies=df.json") == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores.pop("signature") == expected.pop("signature").replace("df:corpus", "df:df(2)")
    assert scores == expected
    assert run("task=captioning", "references=r.json", "save_document_frequencies=df.json", "tokenize=none") == 0
    assert capsys.readouterr().out == "df.json: 27 n-grams in the references of 2 images\n"
    assert DocumentFrequencies.load(files / "df.json").tokenize == "none"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            "task=captioning hypotheses=h.json references=r.json split=nosuch data=flickr8k beam=3 sample=true",
            "data=, split=, beam=, sample= can only be given with checkpoint=PATH.",
        ),
        (
            "task=captioning hypotheses=h.json references=r.json hard_attention=argmax",
            "hard_attention= can only be given with checkpoint=PATH.",
        ),
        ("hypotheses=h.json references=h.json data=toy seed=2", "data=, seed= can only be given with checkpoint=PATH."),
        ("hypotheses=h.json references=h.json java=true", "java= is for captions: add task=captioning."),
        ("task=captioning hypotheses=h.json references=r.json gold=h.json", "gold= means nothing for captions."),
        (
            "task=captioning hypotheses=h.json references=r.json output=x",
            "output= is for the captions of checkpoint=PATH: leave it out with hypotheses=FILE.",
        ),
        ("checkpoint=[]", "checkpoint= is empty: write checkpoint=PATH, where PATH is a run or a checkpoint."),
        (
            "task=captioning hypotheses=h.json references=r.json save_document_frequencies=x",
            "save_document_frequencies=FILE takes one references=FILE, and no setting of scoring.",
        ),
        (
            "task=captioning references=r.json,r.json save_document_frequencies=x",
            "save_document_frequencies=FILE takes one references=FILE, and no setting of scoring.",
        ),
        (
            "task=captioning references=empty.json save_document_frequencies=x",
            "empty.json has no caption for image 1: every image needs at least one.",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(files: Path, settings: str, message: str, capsys: Capture) -> None:
    write(files / "empty.json", {"1": []})
    assert run(*settings.split()) == 2
    assert capsys.readouterr() == ("", f"seqtool: {message}\n")
    assert not (files / "x").exists()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with photos of noise and `runs/noise`, whose model trained for a single step and rarely ends."""
    directory = tmp_path_factory.mktemp("evaluation")
    with contextlib.chdir(directory):
        photos = directory / "photos"
        photos.mkdir()
        generator, rows = np.random.default_rng(0), []
        for i in range(12):
            Image.fromarray(generator.integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(photos / f"{i}.png")
            rows.append({"file": f"{i}.png", "captions": ["a dog runs", "two cats sit on it", f"the {i}"]})
        (photos / "captions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        data = ["data=photos", f"data.directory={photos}", f"data.train={photos}/captions.jsonl", "data.processes=1"]
        data += ["data.vocabulary.minimum_count=1", "data.valid_share=0.2", "data.test_share=0.4"]
        sizes = ["model.embedding=8", "model.hidden=8", "model.alignment=8", "train.steps=1", "validation.max_length=5"]
        train = ["train", "model=show_attend_tell", *data, *sizes, "run=noise", "device=cpu"]
        assert cli.run(train, config_directory()) == 0
        yield directory


@pytest.mark.parametrize(
    ("arguments", "expected_settings"),
    [
        ([], {}),
        (["max_length=200"], {"max_length": 200}),  # the default of configs/decoding.yaml, stated explicitly
        (["hard_attention=argmax", "beam=1"], {"hard_attention": "argmax", "beam": 1}),
    ],
)
def test_eval_and_caption_write_the_same_captions(
    directory: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected_settings: dict[str, Any]
) -> None:
    loads: list[dict[str, Any]] = []
    load = Captioner.load
    monkeypatch.setattr(Captioner, "load", lambda names, **settings: loads.append(settings) or load(names, **settings))
    assert run("checkpoint=runs/noise", "split=test", "output=eval.json", "device=cpu", *arguments) == 0
    assert loads == [{"device": "cpu", **expected_settings}]
    captions = {result["image_id"]: result["caption"] for result in json.loads(Path("eval.json").read_text())}
    assert len(captions) == 5
    images = ",".join(f"photos/{name}" for name in captions)
    command = ["caption", "checkpoint=runs/noise", f"images={images}", "format=coco", "output=caption.json"]
    assert cli.run([*command, "device=cpu", *arguments], config_directory()) == 0
    results = json.loads(Path("caption.json").read_text())
    assert captions == {result["image_id"]: result["caption"] for result in results}


@pytest.mark.parametrize("kind", ["text", "jsonl", "coco"])
def test_output_of_caption_is_scored_against_user_captions(directory: Path, kind: str, capsys: Capture) -> None:
    file = {"text": "a.txt", "jsonl": "a.jsonl", "coco": "a.json"}[kind]
    images = "images=photos/3.png,photos/7.png"
    arguments = ["caption", "checkpoint=runs/noise", images, "max_length=5", "device=cpu"]
    assert cli.run([*arguments, f"format={kind}", f"output={file}"], config_directory()) == 0
    settings = ["task=captioning", f"hypotheses={file}", "references=photos/captions.jsonl", "format=jsonl"]
    capsys.readouterr()
    assert run(*settings) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["image"] for line in lines] == ["3.png", "7.png"] and len(lines[0]["references"]) == 3


def test_hard_attention_is_accepted_for_captions_only(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert run("checkpoint=runs/noise", "split=test", "hard_attention=most") == 2
    assert "Unknown hard_attention 'most'; choose from expected, argmax, sample." in capsys.readouterr().err
    monkeypatch.setattr(checkpoint, "find", lambda path, trust: SimpleNamespace(task="translation", trust=()))
    assert run("checkpoint=runs/words", "hard_attention=argmax") == 2
    assert capsys.readouterr().err == "seqtool: hard_attention= is for captions.\n"


USER_CAPTIONS = [("a.jpg", "A dog runs."), ("a.jpg", "A dog is running."), ("sub/b.jpg", "Two cats")]
USER_CAPTIONS += [("c.jpg", "An old house")]


@pytest.fixture
def user_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with user captions of three images, and captions of two of them in all output formats."""
    monkeypatch.chdir(tmp_path)
    rows = (json.dumps({"file": file, "caption": text}) for file, text in USER_CAPTIONS)
    write(Path("own.jsonl"), "".join(row + "\n" for row in rows))
    write(Path("own.csv"), "file,caption\n" + "".join(f'{file},"{text}"\n' for file, text in USER_CAPTIONS))
    hypotheses = {"photos/a.jpg": ["a dog runs", "a dog"], "photos/sub/b.jpg": ["two cats run", "a cat"]}
    best = {name: captions[0] for name, captions in hypotheses.items()}
    records = [{"image": name, "captions": [{"text": text} for text in texts]} for name, texts in hypotheses.items()]
    write(Path("out.txt"), "".join(f"{name}\t{text}\n" for name, text in best.items()))
    marks = "", "\tnot ended"
    ranked = [(name, i, text) for name, texts in hypotheses.items() for i, text in enumerate(texts)]
    write(Path("n-best"), "".join(f"{name}\t{text}\t-{i}.5{marks[i]}\n" for name, i, text in ranked))
    write(Path("out.jsonl"), "".join(json.dumps(record) + "\n" for record in records))
    write(Path("coco.json"), [{"image_id": Path(name).name, "caption": text} for name, text in best.items()])
    return tmp_path


@pytest.mark.parametrize("references", ["own.jsonl", "own.csv"])
def test_user_captions_are_scored_in_every_format(
    user_files: Path, references: str, capsys: Capture, caplog: pytest.LogCaptureFixture
) -> None:
    """References are in formats that `prepare` reads, and hypotheses in formats that `caption` writes."""
    records = []
    for hypotheses in ("out.txt", "n-best", "out.jsonl", "coco.json"):
        caplog.clear()
        assert run("task=captioning", f"hypotheses={hypotheses}", f"references={references}", "format=json") == 0
        records.append(json.loads(capsys.readouterr().out))
        assert caplog.messages == [
            f"{hypotheses} has captions for 2 of the 3 images of {references}: only these are scored."
        ]
    assert all(record == records[0] for record in records)
    assert records[0]["signature"].startswith("nrefs:1-2|") and records[0]["bleu1"] == pytest.approx(5 / 6, abs=1e-6)
    assert run("task=captioning", "hypotheses=own.csv", f"references={references}") == 2
    assert "own.csv has 2 captions for image a.jpg: expected one per image." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "photos/a.jpg\tone\nphotos/a.jpg\tother\n",
            "h has 2 captions for image photos/a.jpg: expected one per image.",
        ),
        ("a.jpg\tone\nold/a.jpg\tother\n", "h has captions for a.jpg and old/a.jpg: both are image a.jpg."),
        ("a.jpg\tone\nd.jpg\tother\n", "h has captions for image d.jpg that own.jsonl does not have: remove them, or"),
        (
            "d.jpg\tother\n",
            "own.jsonl have no image in common: h has image d.jpg; own.jsonl has 3 images, such as a.jpg.",
        ),
        *(
            (line + "\n", "h line 1 must be an image, a tab and its caption (and for the n best, a tab and its")
            for line in ("a.jpg\tone\tx", "a.jpg\tone\t-1.5\tended", "a.jpg\tone\t-1.5\tnot ended\t2")
        ),
    ],
)
def test_hypotheses_that_do_not_match_the_references_are_refused(
    user_files: Path, content: str, message: str, capsys: Capture
) -> None:
    write(user_files / "h", content)
    assert run("task=captioning", "hypotheses=h", "references=own.jsonl") == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "h.jsonl line 2 is not JSON (column 1: Expecting property name"),
        ('{"image": 3, "captions": []}', "h.jsonl line 1: 'image' must be text, not 3."),
        ('{"image": "a.jpg"}', "h.jsonl line 1 has no caption of a.jpg: it has the keys 'image'."),
        ('{"image": "a.jpg", "captions": [3]}', "h.jsonl line 1: a caption must be text, not 3."),
    ],
)
def test_json_lines_without_captions_are_refused(user_files: Path, line: str, message: str, capsys: Capture) -> None:
    write(user_files / "h.jsonl", line + "\n")
    assert run("task=captioning", "hypotheses=h.jsonl", "references=own.jsonl") == 2
    assert message in capsys.readouterr().err


def test_captions_are_compared_with_a_baseline(files: Path, capsys: Capture) -> None:
    """Both systems have intervals, and their difference has a p-value; a baseline may describe additional images."""
    generator = np.random.default_rng(0)

    def corrupt(caption: list[str], share: float) -> str:
        """Keep this share of a caption's words, and replace the others by random words."""
        return " ".join(word if generator.random() < share else str(generator.choice(words)) for word in caption)

    words = ["dog", "cat", "runs", "sits", "red", "old", "on", "grass"]
    references = {str(i): list(map(str, generator.choice(words, 6))) for i in range(60)}
    write(files / "r.json", {image: [" ".join(text), corrupt(text, 0.8)] for image, text in references.items()})
    write(files / "h.json", {image: corrupt(text, 0.8) for image, text in references.items()})
    worse = {image: corrupt(text, 0.4) for image, text in references.items()}
    write(files / "b.json", {**worse, "60": "more"})
    assert run(*FILES, "baseline=b.json", "bootstrap=200") == 0
    record = json.loads(capsys.readouterr().out)
    differences = {difference["name"]: difference for difference in record["comparison"]["differences"]}
    assert list(differences) == SCORE_NAMES
    for name, difference in differences.items():
        assert difference["system"] == record["intervals"][name] and difference["system"]["value"] == record[name]
        baseline = difference["baseline"]
        assert baseline["low"] < baseline["value"] < baseline["high"] < difference["system"]["low"]
        assert difference["p_value"] < 0.01
        assert difference["signature"].startswith("nrefs:2|bs:200|seed:12345|tok:ptb")
    assert run(*FILES[:3], "baseline=b.json", "bootstrap=200") == 0
    table = capsys.readouterr().out.split("\n\n")[-2]
    assert table.splitlines()[0].replace(" ", "") == "|score|baseline|system|difference|p|"
    assert f"| cider_d     | {differences['cider_d']['baseline']['value']:.4f} [" in table
    write(files / "b.json", {"0": "a dog"})
    assert run(*FILES, "baseline=b.json") == 2
    assert "b.json has no caption for 59 images, such as 1, of the references" in capsys.readouterr().err


def test_jsonl_lists_the_scores_of_each_image(files: Path, capsys: Capture) -> None:
    write(files / "b.json", {"1": "A dog", "2": "No cats"})
    write(files / "half.json", {"1": "\ud83d dog", "2": "é"})
    assert run("task=captioning", "hypotheses=half.json", "references=r.json", "format=jsonl") == 0
    assert [json.loads(line)["hypothesis"] for line in capsys.readouterr().out.splitlines()] == ["\ud83d dog", "é"]
    assert run(*FILES[:3], "baseline=b.json", "format=jsonl") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["image"] for line in lines] == ["1", "2"]
    assert lines[0]["references"] == ["A dog is running.", "A dog runs on grass."]
    assert lines[0]["hypothesis"] == "A dog runs." and list(lines[0]["scores"]) == SCORE_NAMES
    assert lines[1]["baseline"]["hypothesis"] == "No cats"
    assert lines[1]["baseline"]["scores"]["bleu1"] == pytest.approx(0.5 * np.exp(-0.5), abs=1e-6)
    assert run(*FILES) == 0
    record = json.loads(capsys.readouterr().out)
    for name in ("rouge_l", "cider_d", "cider"):
        assert record[name] == pytest.approx(np.mean([line["scores"][name] for line in lines]))
