"""Tests of reports: a file holds all it needs, shows every text as text, and is the same when it is made again."""

import base64
import contextlib
import gzip
import hashlib
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from seqtool.cli import main as cli
from seqtool.data.cache import Cache
from seqtool.evaluation import CUT, EMPTY, REPEATED, UNATTENDED, UNKNOWN, find_flags
from seqtool.metrics.words import LABELS, f1_by_count, repeats
from seqtool.runtime.files import config_directory
from seqtool.view.report import SIZE, Details, bundle, pack, write

COMMON = [
    "data.processes=1",
    "device=cpu",
    "threads=1",
    "train.minutes=null",
    "train.steps=4",
    "train.validate_every=2",
    "train.log_every=1",
]
SIZES = [f"model.{size}=8" for size in ("embedding", "encoder_hidden", "decoder_hidden", "alignment", "maxout")]
HOSTILE = ["<img src=x onerror=alert(1)>", "</script><script>alert(1)</script>", "<!-- </body> & \u2028 ‮abc", "\ud800"]
BLOCK = re.compile(r'<script type="application/gzip" id="([\w-]+)">(.*?)</script>', re.DOTALL)


def run(*arguments: str) -> int:
    return cli.run(arguments, config_directory())


def blocks(path: Path) -> dict[str, Any]:
    """Return the data in a report, by the names of their blocks."""
    contents = BLOCK.findall(path.read_text())
    return {name: json.loads(gzip.decompress(base64.b64decode(content))) for name, content in contents}


def sections(path: Path) -> dict[str, Any]:
    return {section["title"]: section for section in blocks(path)["report"]["sections"]}


def addresses(page: str) -> list[str]:
    """Return the addresses in the tags of a page."""
    urls: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            urls.extend(value or "" for name, value in attributes if name in ("src", "href", "action", "data"))

    Reader().feed(page)
    return urls


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a directory with a translator with attention and one without, and a language model."""
    with contextlib.chdir(tmp_path_factory.mktemp("workspace")):
        data = ["data.train=200", "data.valid=5", "data.test=5", "data.vocabulary.size=200"]
        assert run("train", *COMMON, *data, *SIZES, "run=attend", "train.show=2", "train.gradient_flow=true") == 0
        fixed = ["model=sutskever", "model.embedding=8", "model.hidden=8", "model.layers=1"]
        assert run("train", *COMMON, *data, *fixed, "run=fixed") == 0
        Path("text.txt").write_text("the cat sees the dog\n" * 50)
        text = ["data=text", "data.train=text.txt", "model=language_model", "model.embedding=8", "model.hidden=8"]
        assert run("train", *COMMON, *text, "run=text") == 0
        yield Path.cwd()


def test_a_report_needs_no_other_file_and_runs_no_text(tmp_path: Path) -> None:
    """A page has no address, its policy allows one script and one style by their hashes, and no text ends its block."""
    report = {"title": HOSTILE[0], "sections": [{"lines": HOSTILE}]}
    write(tmp_path / "a.html", report, [pack(HOSTILE)])
    page = (tmp_path / "a.html").read_text()
    assert addresses(page) == []
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "") and "https://" not in page
    (style,), (script,) = (re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL) for tag in ("style", "script"))
    for content in (style, script):
        assert f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'" in page
    assert "default-src 'none'" in page and "unsafe" not in page
    data = blocks(tmp_path / "a.html")
    assert data["report"] == report and data["details-0"] == HOSTILE
    assert "<img" not in page and page.count("</script>") == 3
    write(tmp_path / "b.html", report, [pack(HOSTILE)])
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_modules_are_bundled_once_after_the_modules_they_import() -> None:
    script = bundle("report.js")
    assert "import " not in script.replace("important", "") and "export " not in script
    names = re.findall(r"^(?:const|let|(?:async )?function) (\w+)", script, re.MULTILINE)
    assert len(names) == len(set(names)) and script.index("function h(") < script.index("function table(")


def test_details_are_packed() -> None:
    """Details come in chunks, with as many digits as the page shows."""
    details, generator = Details(), np.random.default_rng(0)
    weights = generator.random((2, 3)).astype(np.float32)
    predicted = [
        {"token": "ein", "probability": 0.51239, "entropy": 2.0, "likeliest": [["ein", 0.51239], ["der", 0.00012345]]},
        {"token": "<end>", "probability": 1.0, "entropy": 0.0, "likeliest": [["<end>", 1.0], ["der", 0.0]]},
    ]
    details.add(source=["a", "b", "<end>"], target=["ein", "<end>"], weights=weights, predicted=predicted)
    details.add()
    for _ in range(SIZE):
        details.add(predicted=predicted)
    chunks = [json.loads(gzip.decompress(base64.b64decode(chunk))) for chunk in details.chunks()]
    assert list(map(len, chunks)) == [SIZE, 2] and chunks[0][1] == {}
    first = chunks[0][0]
    assert first["source"] == ["a", "b", "<end>"] and first["target"] == ["ein", "<end>"]
    assert np.allclose(first["weights"], weights, rtol=0, atol=0.0005001)
    rounded = {"token": "ein", "probability": 0.512, "entropy": 2.0, "likeliest": [["ein", 0.512], ["der", 0.000123]]}
    assert first["predicted"] == [rounded, predicted[1]]
    assert len(chunks[1][1]["predicted"]) == 2


@pytest.mark.parametrize(
    ("text", "repeated"),
    [
        ("a a", False),
        ("a a a", True),
        ("a b a b", True),
        ("a b c a b", False),
        ("x a b c d a b c d", True),
        ("", False),
    ],
)
def test_repeated_words_are_noticed(text: str, repeated: bool) -> None:
    assert repeats(text) == repeated


def test_flags_name_faults_of_outputs() -> None:
    assert find_flags(" ", ended=False) == [EMPTY, CUT]
    assert find_flags("the the the", unknown=True) == [REPEATED, UNKNOWN]
    assert find_flags("a house", source="a house") == ["copied"] and find_flags("no", source="no") == []
    attention = np.array([[0.99, 0.01, 0.0]])
    assert find_flags("x", attention=(attention, ["a", "house", "."])) == [UNATTENDED]
    assert find_flags("x", attention=(attention[:, [0, 2]], ["a", "."])) == []


def test_f1_of_words_by_their_count() -> None:
    """Computed by hand. Of words that occur 3 times in training, the outputs have 1, the references 3, and both 1."""
    counts = {"dog": 3, "cat": 3, "the": 1000}
    bins = {
        f1_bin.label: f1_bin
        for f1_bin in f1_by_count(["The dog. the", "the rat"], [["no", "the cat, a dog"], ["the cat"]], counts)
    }
    assert list(bins) == list(LABELS) and bins["2–4"].words == 3
    assert bins["2–4"].f1 is not None and bins["2–4"].f1.value == pytest.approx(200 * 1 / (1 + 3))
    assert bins["1,000+"].f1 is not None and bins["1,000+"].f1.value == pytest.approx(200 * 2 / (3 + 2))
    assert bins["0"].words == 1 and bins["0"].f1 is not None and bins["0"].f1.value == 0
    assert bins["10–99"].f1 is None


def test_words_are_counted_when_data_are_prepared(workspace: Path) -> None:
    (directory,) = {path.parent for path in Path("cache").glob("toy-*/train.words.txt")}
    cache = Cache(directory)
    counts = cache.word_counts()
    assert counts is not None and counts["el"] > counts["gato"] > 0 and "." not in counts
    (directory / "train.words.txt").rename(directory / "elsewhere")
    assert cache.word_counts() is None
    (directory / "elsewhere").rename(directory / "train.words.txt")


def test_a_report_of_runs_shows_settings_and_curves(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Gradients, samples and the scores of checkpoints are shown as well. Two runs stand side by side in one file."""
    assert run("report", "runs/attend") == 0
    assert capsys.readouterr().out == "Report: runs/attend/report.html\n"
    first = Path("runs/attend/report.html").read_bytes()
    report = sections(Path("runs/attend/report.html"))
    assert dict(report["Run attend"]["rows"])["trained"].startswith("4 steps")
    panels = {panel["title"]: panel["series"] for panel in report["Learning curves"]["panels"]}
    assert [line["name"] for line in panels["loss in nats per token\n(lower is better)"]] == [
        "validation loss",
        "training loss",
    ]
    flow = report["Gradients through time"]["panels"]
    assert any("encoder.back" in panel["title"] for panel in flow) and all(panel["log"] for panel in flow)
    assert [len(step["samples"]) for step in report["Samples of attend"]["steps"]] == [2, 2]
    assert ["model.encoder_hidden", "8"] in report["Settings"]["rows"]
    assert "Settings that differ" not in report
    assert any("BLEU" in row[3] for row in report["Checkpoints of attend"]["rows"])
    assert run("report", "runs/attend") == 0 and Path("runs/attend/report.html").read_bytes() == first
    assert run("report", "runs/attend", "runs/fixed", "output=both.html") == 0
    joint_report = sections(Path("both.html"))
    names = [line["name"] for line in joint_report["Learning curves"]["panels"][0]["series"]]
    assert "attend: validation loss" in names and "fixed: validation loss" in names
    differing = {row[0]: row[1:] for row in joint_report["Settings that differ"]["rows"]}
    assert differing["model.encoder_hidden"] == ["8", "–"] and differing["run"] == ['"attend"', '"fixed"']
    assert joint_report["Settings"]["columns"] == ["setting", "attend", "fixed"]
    assert {"seed", *differing} <= {row[0] for row in joint_report["Settings"]["rows"]} and "seed" not in differing


def test_an_evaluation_report_shows_scores_and_sentences(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scores have intervals and signatures, and are also given by length and by word counts. Sentences have details."""
    common = ["checkpoint=runs/attend", "split=test", "bootstrap=3", "beam=2", "device=cpu", "max_length=12"]
    assert run("report", *common, "output=test.html") == 0
    captured = capsys.readouterr()
    assert "BLEU" in captured.out and "Report: test.html" in captured.err
    report, data = sections(Path("test.html")), blocks(Path("test.html"))
    assert report["Scores"]["columns"] == ["score", "attend", "signature"] and "[" in report["Scores"]["rows"][0][1]
    assert report["BLEU by source length"]["series"][0]["name"] == "attend"
    assert len(report["F1 of words by their count in training"]["bins"]) == len(LABELS)
    sentences = report["Sentences"]
    assert len(sentences["sources"]) == len(sentences["hypotheses"][0]) == len(data["details-0"]) == 5
    assert [score["label"] for score in sentences["scores"]][:2] == ["BLEU", "chrF2"]
    for detail, text in zip(data["details-0"], sentences["hypotheses"][0], strict=True):
        tokens = [prediction["token"] for prediction in detail["predicted"]]
        assert "".join(tokens).replace("<end>", "").replace("▁", " ").strip() == text
        assert np.shape(detail["weights"]) == (len(detail["target"]), len(detail["source"]))
        assert all(len(prediction["likeliest"]) == 5 for prediction in detail["predicted"])
    first = Path("test.html").read_bytes()
    assert run("eval", *common, "report=test.html") == 0 and Path("test.html").read_bytes() == first
    assert run("eval", "checkpoint=runs/fixed", *common[1:], "report=fixed.html") == 0
    assert "weights" not in blocks(Path("fixed.html"))["details-0"][0]


def test_a_report_compares_several_systems(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The differences of every score, by paired bootstrap, and the sentences of all systems are shown."""
    lines = {"a": ["the cat sat here", "x y"], "b": ["the cat sat there", "x"], "c": ["no", HOSTILE[1]]}
    for name, sentences in lines.items():
        Path(f"{name}.txt").write_text("".join(f"{line}\n" for line in sentences))
    files = ["hypotheses=a.txt", "references=b.txt", "baseline=b.txt", "beside=c.txt", "sources=c.txt", "bootstrap=5"]
    assert run("report", *files, "output=systems.html") == 0
    report = sections(Path("systems.html"))
    expected = {
        "hypotheses": "a.txt",
        "references": "b.txt",
        "sources": "c.txt",
        "baseline": "b.txt",
        "beside": "c.txt",
    }
    assert dict(report["Origin"]["rows"]) == expected
    assert report["Scores"]["columns"] == ["score", "a", "b", "difference", "p", "c", "difference", "p", "signature"]
    assert report["Sentences"]["systems"] == ["a", "b", "c"] and report["Sentences"]["details"] is None
    assert report["Sentences"]["hypotheses"][2] == lines["c"] and len(report["Sentences"]["values"]) == 3
    assert [series["name"] for series in report["BLEU by source length"]["series"]] == ["a", "b", "c"]


def test_a_report_of_a_text_shows_its_lines(workspace: Path) -> None:
    Path("new.txt").write_text("the cat\nsees <b>\n")
    assert run("report", "checkpoint=runs/text", "text=new.txt", "bootstrap=3", "device=cpu", "output=text.html") == 0
    report, data = sections(Path("text.html")), blocks(Path("text.html"))
    assert report["Lines"]["hypotheses"] == [["the cat", "sees <b>"]] and len(data["details-0"]) == 2
    assert dict(report["Text"]["rows"])["characters"] == "17"


def test_a_report_of_captions_shows_pictures_and_attention(workspace: Path) -> None:
    """The pictures are inside the file. The captions of another system are beside those of the model."""
    photos, generator, rows = Path("photos"), np.random.default_rng(0), []
    photos.mkdir()
    for i in range(12):
        Image.fromarray(generator.integers(0, 255, (20, 30, 3), dtype=np.uint8)).save(photos / f"{i}.png")
        rows.append({"file": f"{i}.png", "captions": ["a dog runs", f"the {i}"]})
    (photos / "captions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = ["data=photos", "data.directory=photos", "data.train=photos/captions.jsonl", "data.valid_share=0.2"]
    data += ["data.test_share=0.4", "data.vocabulary.minimum_count=1"]
    sizes = ["model=show_attend_tell", "model.embedding=8", "model.hidden=8", "model.alignment=8"]
    assert run("train", *COMMON, "train.steps=1", *data, *sizes, "run=photos", "validation.max_length=5") == 0
    decoding = ["checkpoint=runs/photos", "device=cpu", "beam=2", "max_length=6"]
    images = ["images=photos", "format=jsonl", "weights=true", "hard_attention=argmax", "output=hard.jsonl"]
    assert run("caption", *decoding, *images) == 0
    common = [*decoding, "split=test", "bootstrap=2", "baseline=hard.jsonl"]
    assert run("eval", *common, "report=captions.html") == 0
    section = sections(Path("captions.html"))["Pictures"]
    assert section["systems"] == ["photos", "hard"] and set(section["orders"]) >= {"best twelve", "worst twelve"}
    for card in section["pictures"]:
        assert card["picture"].startswith("data:image/png;base64,") and len(card["captions"]) == 2
        for caption in card["captions"]:
            rows, columns = caption["grid"]
            assert np.shape(caption["weights"]) == (len(caption["words"]), rows * columns)
        soft, hard = card["captions"]
        assert "chosen" not in soft and len(hard["words"]) - len(hard["chosen"]) in (0, 1)
    rows = [row[0] for row in sections(Path("captions.html"))["Scores"]["rows"]]
    assert rows[:4] == ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4"] and "CIDEr-D" in rows
    table, data = sections(Path("captions.html"))["Captions"], blocks(Path("captions.html"))
    assert len(table["names"]) == len(table["flags"]) == len(data["details-0"]) == len(table["hypotheses"][1]) == 5
    assert "F1 of words by their count in training" in sections(Path("captions.html"))
    for detail, text in zip(data["details-0"], table["hypotheses"][0], strict=True):
        tokens = [prediction["token"] for prediction in detail["predicted"]]
        assert "".join(tokens).replace("<end>", "").replace("▁", " ").strip() == text
    first = Path("captions.html").read_bytes()
    assert run("eval", *common, "report=captions.html") == 0 and Path("captions.html").read_bytes() == first
    files = ["hypotheses=hard.jsonl", "references=photos/captions.jsonl", "task=captioning", "bootstrap=2"]
    assert run("report", *files, "output=files.html") == 0
    assert len(sections(Path("files.html"))["Pictures"]["pictures"]) == 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("runs/none", "There is no run at runs/none."),
        ("builtin/words", "builtin/words is not a run: it has no metrics.jsonl."),
        ("runs/attend runs/fixed", "A report of several runs needs a file name: output=FILE.html."),
        ("checkpoint=runs/attend", "The report of an evaluation needs a file name: output=FILE.html."),
        ("", "report needs runs: seqtool report RUN … [output=FILE.html], or what to evaluate"),
        ("runs/attend checkpoint=runs/attend output=a.html", "takes only output=FILE.html, not checkpoint=runs/attend"),
        ("runs/attend outptu=a.html", "Unknown setting 'outptu'; did you mean 'output'?"),
        ("runs/attend output=a.pdf", "a.pdf: a report is an HTML file, so its name must end in .html."),
        ("hypotheses=text.txt references=text.txt output=a.es", "a.es: a report is an HTML file"),
        ("hypotheses=text.txt references=text.txt output=text.txt", "report=text.txt is the same file as"),
        ("hypotheses=text.txt references=text.txt output=none/a.html", "none"),
    ],
)
def test_unfit_arguments_of_report_are_refused(
    workspace: Path, arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(workspace.iterdir())
    assert run("report", *arguments.split()) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert sorted(workspace.iterdir()) == before


def test_damaged_samples_are_refused(workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A last line that was cut short is left out instead."""
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    samples = tmp_path / "samples.jsonl"
    samples.write_text('{"step": 1, "samples": [{"text": "a"}]}\n{"step": 2, "sam')
    assert run("report", str(tmp_path), "output=a.html") == 0
    assert len(sections(Path("a.html"))[f"Samples of {tmp_path.name}"]["steps"]) == 1
    looked = {"source": ["a", "<end>"], "target": ["b"], "weights": [[1.0]]}  # a column is missing
    for damaged in ("[3]", json.dumps([{"attention": looked}])):
        samples.write_text(f'{{"step": 1, "samples": {damaged}}}\n\n')
        assert run("report", str(tmp_path), "output=a.html") == 2
        assert "samples.jsonl line 1 holds no samples." in capsys.readouterr().err
    (tmp_path / "config.yaml").write_text("a: [")
    assert run("report", str(tmp_path), "output=a.html") == 2
    assert f"seqtool: {tmp_path / 'config.yaml'} is not YAML: " in capsys.readouterr().err
