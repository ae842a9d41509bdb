"""Reports: one file that holds all it needs, shows every text as text, and is the same when it is made again."""

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
from seqtool.view.report import SIZE, Details, bundle, packed, write

COMMON = [
    "data.processes=1",
    "device=cpu",
    "threads=1",
    "train.minutes=null",
    "train.steps=4",
    "train.validate_every=2",
    "train.log_every=1",
]
SIZES = [f"model.{one}=8" for one in ("embedding", "encoder_hidden", "decoder_hidden", "alignment", "maxout")]
HOSTILE = ["<img src=x onerror=alert(1)>", "</script><script>alert(1)</script>", "<!-- </body> & \u2028 ‮abc", "\ud800"]
BLOCK = re.compile(r'<script type="application/gzip" id="([\w-]+)">(.*?)</script>', re.DOTALL)


def run(*arguments: str) -> int:
    return cli.run(arguments, config_directory())


def blocks(path: Path) -> dict[str, Any]:
    """The data in a report, by the name of their block."""
    found = BLOCK.findall(path.read_text())
    return {name: json.loads(gzip.decompress(base64.b64decode(text))) for name, text in found}


def sections(path: Path) -> dict[str, Any]:
    return {one["title"]: one for one in blocks(path)["report"]["sections"]}


def addresses(page: str) -> list[str]:
    """Those that the page's tags name."""
    found: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            found.extend(value or "" for name, value in attributes if name in ("src", "href", "action", "data"))

    Reader().feed(page)
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with a translator with attention and one without, and a language model."""
    with contextlib.chdir(tmp_path_factory.mktemp("place")):
        data = ["data.train=200", "data.valid=5", "data.test=5", "data.vocabulary.size=200"]
        assert run("train", *COMMON, *data, *SIZES, "run=attend", "train.show=2", "train.gradient_flow=true") == 0
        fixed = ["model=sutskever", "model.embedding=8", "model.hidden=8", "model.layers=1"]
        assert run("train", *COMMON, *data, *fixed, "run=fixed") == 0
        Path("text.txt").write_text("the cat sees the dog\n" * 50)
        text = ["data=text", "data.train=text.txt", "model=language_model", "model.embedding=8", "model.hidden=8"]
        assert run("train", *COMMON, *text, "run=text") == 0
        yield Path.cwd()


def test_a_report_holds_all_it_needs_and_nothing_runs_in_it(tmp_path: Path) -> None:
    """No address, one script and one style, which the policy names by their hashes; texts cannot end their block."""
    report = {"title": HOSTILE[0], "sections": [{"lines": HOSTILE}]}
    write(tmp_path / "a.html", report, [packed(HOSTILE)])
    text = (tmp_path / "a.html").read_text()
    assert addresses(text) == []
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "") and "https://" not in text
    (style,), (script,) = (re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL) for tag in ("style", "script"))
    for content in (style, script):
        assert f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'" in text
    assert "default-src 'none'" in text and "unsafe" not in text
    found = blocks(tmp_path / "a.html")
    assert found["report"] == report and found["details-0"] == HOSTILE
    assert "<img" not in text and text.count("</script>") == 3
    write(tmp_path / "b.html", report, [packed(HOSTILE)])
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_modules_are_put_together_once_each_after_those_that_they_need() -> None:
    script = bundle("report.js")
    assert "import " not in script.replace("important", "") and "export " not in script
    names = re.findall(r"^(?:const|let|(?:async )?function) (\w+)", script, re.MULTILINE)
    assert len(names) == len(set(names)) and script.index("function h(") < script.index("function table(")


def test_details_are_packed() -> None:
    """In chunks, with as many digits as the page shows."""
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
    shown = {"token": "ein", "probability": 0.512, "entropy": 2.0, "likeliest": [["ein", 0.512], ["der", 0.000123]]}
    assert first["predicted"] == [shown, predicted[1]]
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
def test_repeated_words(text: str, repeated: bool) -> None:
    assert repeats(text) == repeated


def test_flags() -> None:
    assert find_flags(" ", ended=False) == [EMPTY, CUT]
    assert find_flags("the the the", unknown=True) == [REPEATED, UNKNOWN]
    assert find_flags("a house", source="a house") == ["copied"] and find_flags("no", source="no") == []
    looked = np.array([[0.99, 0.01, 0.0]])
    assert find_flags("x", attention=(looked, ["a", "house", "."])) == [UNATTENDED]
    assert find_flags("x", attention=(looked[:, [0, 2]], ["a", "."])) == []


def test_f1_of_words_by_their_count() -> None:
    """By hand: of the words that stand three times, one of two is found, and one is written besides."""
    counts = {"dog": 3, "cat": 3, "the": 1000}
    found = {
        one.label: one
        for one in f1_by_count(["The dog. the", "the rat"], [["no", "the cat, a dog"], ["the cat"]], counts)
    }
    assert list(found) == list(LABELS) and found["2–4"].words == 3
    assert found["2–4"].f1 is not None and found["2–4"].f1.value == pytest.approx(200 * 1 / (1 + 3))
    assert found["1,000+"].f1 is not None and found["1,000+"].f1.value == pytest.approx(200 * 2 / (3 + 2))
    assert found["0"].words == 1 and found["0"].f1 is not None and found["0"].f1.value == 0
    assert found["10–99"].f1 is None


def test_words_are_counted_when_data_are_prepared(place: Path) -> None:
    (directory,) = {one.parent for one in Path("cache").glob("toy-*/train.words.txt")}
    cache = Cache(directory)
    counts = cache.word_counts()
    assert counts is not None and counts["el"] > counts["gato"] > 0 and "." not in counts
    (directory / "train.words.txt").rename(directory / "elsewhere")
    assert cache.word_counts() is None
    (directory / "elsewhere").rename(directory / "train.words.txt")


def test_a_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Settings, curves, gradients, checkpoints with scores and samples; two runs beside each other in one file."""
    assert run("report", "runs/attend") == 0
    assert capsys.readouterr().out == "Report: runs/attend/report.html\n"
    first = Path("runs/attend/report.html").read_bytes()
    found = sections(Path("runs/attend/report.html"))
    assert dict(found["Run attend"]["rows"])["trained"].startswith("4 steps")
    assert {one["title"]: [line["name"] for line in one["series"]] for one in found["Learning curves"]["panels"]}[
        "nats per token"
    ] == ["validation loss", "training loss"]
    flow = found["Gradients through time"]["panels"]
    assert any("encoder.back" in one["title"] for one in flow) and all(one["log"] for one in flow)
    assert [len(step["samples"]) for step in found["Samples of attend"]["steps"]] == [2, 2]
    assert ["model.encoder_hidden", "8"] in found["Settings"]["rows"]
    assert "Settings that differ" not in found
    assert any("BLEU" in row[3] for row in found["Checkpoints of attend"]["rows"])
    assert run("report", "runs/attend") == 0 and Path("runs/attend/report.html").read_bytes() == first
    assert run("report", "runs/attend", "runs/fixed", "output=both.html") == 0
    both = sections(Path("both.html"))
    names = [line["name"] for line in both["Learning curves"]["panels"][0]["series"]]
    assert "attend: validation loss" in names and "fixed: validation loss" in names
    differing = {row[0]: row[1:] for row in both["Settings that differ"]["rows"]}
    assert differing["model.encoder_hidden"] == ["8", "–"] and differing["run"] == ['"attend"', '"fixed"']
    assert both["Settings"]["columns"] == ["setting", "attend", "fixed"]
    assert {"seed", *differing} <= {row[0] for row in both["Settings"]["rows"]} and "seed" not in differing


def test_an_evaluation(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scores with intervals and signatures, by length and by words' counts, and all of every sentence."""
    common = ["checkpoint=runs/attend", "split=test", "bootstrap=3", "beam=2", "device=cpu", "max_length=12"]
    assert run("report", *common, "output=test.html") == 0
    captured = capsys.readouterr()
    assert "BLEU" in captured.out and "Report: test.html" in captured.err
    found, data = sections(Path("test.html")), blocks(Path("test.html"))
    assert found["Scores"]["columns"] == ["score", "attend", "signature"] and "[" in found["Scores"]["rows"][0][1]
    assert found["BLEU by source length"]["series"][0]["name"] == "attend"
    assert len(found["F1 of words by their count in training"]["bins"]) == len(LABELS)
    sentences = found["Sentences"]
    assert len(sentences["sources"]) == len(sentences["hypotheses"][0]) == len(data["details-0"]) == 5
    assert [one["label"] for one in sentences["scores"]][:2] == ["BLEU", "chrF2"]
    for detail, text in zip(data["details-0"], sentences["hypotheses"][0], strict=True):
        tokens = [expected["token"] for expected in detail["predicted"]]
        assert "".join(tokens).replace("<end>", "").replace("▁", " ").strip() == text
        assert np.shape(detail["weights"]) == (len(detail["target"]), len(detail["source"]))
        assert all(len(expected["likeliest"]) == 5 for expected in detail["predicted"])
    first = Path("test.html").read_bytes()
    assert run("eval", *common, "report=test.html") == 0 and Path("test.html").read_bytes() == first
    assert run("eval", "checkpoint=runs/fixed", *common[1:], "report=fixed.html") == 0
    assert "weights" not in blocks(Path("fixed.html"))["details-0"][0]


def test_several_systems(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Differences with paired bootstrap for every score, and every sentence of all systems."""
    lines = {"a": ["the cat sat here", "x y"], "b": ["the cat sat there", "x"], "c": ["no", HOSTILE[1]]}
    for name, some in lines.items():
        Path(f"{name}.txt").write_text("".join(f"{line}\n" for line in some))
    files = ["hypotheses=a.txt", "references=b.txt", "baseline=b.txt", "beside=c.txt", "sources=c.txt", "bootstrap=5"]
    assert run("report", *files, "output=systems.html") == 0
    found = sections(Path("systems.html"))
    expected = {
        "hypotheses": "a.txt",
        "references": "b.txt",
        "sources": "c.txt",
        "baseline": "b.txt",
        "beside": "c.txt",
    }
    assert dict(found["Origin"]["rows"]) == expected
    assert found["Scores"]["columns"] == ["score", "a", "b", "difference", "p", "c", "difference", "p", "signature"]
    assert found["Sentences"]["systems"] == ["a", "b", "c"] and found["Sentences"]["details"] is None
    assert found["Sentences"]["hypotheses"][2] == lines["c"] and len(found["Sentences"]["values"]) == 3
    assert [one["name"] for one in found["BLEU by source length"]["series"]] == ["a", "b", "c"]


def test_a_text(place: Path) -> None:
    Path("new.txt").write_text("the cat\nsees <b>\n")
    assert run("report", "checkpoint=runs/text", "text=new.txt", "bootstrap=3", "device=cpu", "output=text.html") == 0
    found, data = sections(Path("text.html")), blocks(Path("text.html"))
    assert found["Lines"]["hypotheses"] == [["the cat", "sees <b>"]] and len(data["details-0"]) == 2
    assert dict(found["Text"]["rows"])["characters"] == "17"


def test_captions(place: Path) -> None:
    """Pictures inside the file, where each word looked, and another system's captions beside."""
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
    found = sections(Path("captions.html"))["Pictures"]
    assert found["systems"] == ["photos", "hard"] and set(found["orders"]) >= {"best twelve", "worst twelve"}
    for card in found["pictures"]:
        assert card["picture"].startswith("data:image/png;base64,") and len(card["captions"]) == 2
        for one in card["captions"]:
            rows, columns = one["grid"]
            assert np.shape(one["weights"]) == (len(one["words"]), rows * columns)
        soft, hard = card["captions"]
        assert "chosen" not in soft and len(hard["words"]) - len(hard["chosen"]) in (0, 1)
    rows = [row[0] for row in sections(Path("captions.html"))["Scores"]["rows"]]
    assert rows[:4] == ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4"] and "CIDEr-D" in rows
    table, data = sections(Path("captions.html"))["Captions"], blocks(Path("captions.html"))
    assert len(table["names"]) == len(table["flags"]) == len(data["details-0"]) == len(table["hypotheses"][1]) == 5
    assert "F1 of words by their count in training" in sections(Path("captions.html"))
    for detail, text in zip(data["details-0"], table["hypotheses"][0], strict=True):
        tokens = [expected["token"] for expected in detail["predicted"]]
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
def test_what_has_no_report(place: Path, arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(place.iterdir())
    assert run("report", *arguments.split()) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert sorted(place.iterdir()) == before


def test_damaged_samples_are_said(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A last line that was cut short is left out."""
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    samples = tmp_path / "samples.jsonl"
    samples.write_text('{"step": 1, "samples": [{"text": "a"}]}\n{"step": 2, "sam')
    assert run("report", str(tmp_path), "output=a.html") == 0
    assert len(sections(Path("a.html"))[f"Samples of {tmp_path.name}"]["steps"]) == 1
    samples.write_text('{"step": 1, "samples": [3]}\n\n')
    assert run("report", str(tmp_path), "output=a.html") == 2
    assert "samples.jsonl line 1 holds no samples." in capsys.readouterr().err
