"""JSON lines say what was cut off, what the model does not know, and what was forced; names keep their dots."""

import contextlib
import json
import math
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from demo_models import run
from PIL import Image
from test_report import blocks

SOURCES = ["I have a big cat.", "", "the old 🐈 sees 猫 " * 9, "She sees the house."]
PREFIXES = ["La casa", "", "", "La 🐈"]
QUIET = ["device=cpu", "threads=1"]


@pytest.fixture(autouse=True)
def place(shown_runs: Path) -> Iterator[Path]:
    with contextlib.chdir(shown_runs):
        yield shown_runs


def lines(*words: str, capsys: pytest.CaptureFixture[str]) -> list[Any]:
    assert run(*words, *QUIET) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def write(name: str, texts: list[str]) -> str:
    Path(name).write_text("".join(f"{text}\n" for text in texts))
    return name


@pytest.mark.parametrize("checkpoint", ["runs/attend", "runs/fixed"])
def test_what_was_cut_and_what_is_unknown(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a source, in `translate`: the tokens left out at its end, and its unknown pieces as they are written."""
    files = [f"checkpoint={checkpoint}", f"input={write('long.txt', SOURCES)}", "format=jsonl", "beam=1"]
    long = lines("translate", *files, "max_length=200", capsys=capsys)
    short = lines("translate", *files, "max_length=12", capsys=capsys)
    assert [one["source_cut"] for one in long] == [0] * 4
    assert [one["source_cut"] > 0 for one in short] == [False, False, True, False]
    for found in (long, short):
        assert [{piece.strip("▁") for piece in one["source_unknown"]} for one in found] == [
            set(),
            set(),
            {"🐈", "猫"},
            set(),
        ]


@pytest.mark.parametrize(
    ("checkpoint", "settings"),
    [
        ("runs/attend", "length_penalty=average"),
        ("runs/fixed", "length_penalty=gnmt length_alpha=1"),
        ("runs/attend,runs/fixed", "length_penalty=none"),
        ("runs/attend", "sample=true n_best=2"),
    ],
)
def test_a_forced_beginning(checkpoint: str, settings: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Log-probability and score of what follows, and of the whole, which is what its tokens have together."""
    files = [f"input={write('begun.txt', SOURCES)}", f"prefix={write('begins.txt', PREFIXES)}", "format=jsonl"]
    command = ["translate", f"checkpoint={checkpoint}", *files, *settings.split()]
    found, explained = lines(*command, capsys=capsys), lines(*command, "likeliest=1", capsys=capsys)
    for line, again, prefix in zip(found, explained, PREFIXES, strict=True):
        for one, other in zip(line["translations"], again["translations"], strict=True):
            assert ("prefix_tokens" in one) == bool(prefix)
            if not prefix:
                continue
            count, log_p = one["prefix_tokens"], [math.log(token["probability"]) for token in other["predicted"]]
            assert one["text"].startswith(prefix) and one["prefix_unknown"] == ("🐈" in prefix)
            assert one["log_probability_with_prefix"] == pytest.approx(sum(log_p), abs=1e-3)
            assert one["log_probability"] == pytest.approx(sum(log_p[count:]), abs=1e-3)
            divisor = divided_by(settings, len(log_p))
            assert one["score_with_prefix"] == pytest.approx(sum(log_p) / divisor, abs=1e-3)
            assert one["score"] == pytest.approx(
                sum(log_p[count:]) / divided_by(settings, len(log_p) - count), abs=1e-3
            )


def divided_by(settings: str, length: int) -> float:
    return length if "average" in settings else (5 + length) / 6 if "gnmt" in settings else 1


def test_unknown_pieces_of_given_texts(capsys: pytest.CaptureFixture[str]) -> None:
    """In `score` of pairs and of texts, and of a prompt in `generate`."""
    references = ["Tengo 🐈 un gato.", "", "Quizás.", "La 猫."]
    pairs = [f"sources={write('sources.txt', SOURCES)}", f"references={write('references.txt', references)}"]
    for one, reference, source in zip(
        lines("score", "checkpoint=runs/attend", *pairs, "format=jsonl", capsys=capsys),
        references,
        SOURCES,
        strict=True,
    ):
        assert "".join(one["unknown"]).strip("▁") == "".join(letter for letter in reference if letter in "🐈猫")
        assert bool(one["source_unknown"]) == ("🐈" in source)
    texts = lines("score", "checkpoint=runs/text", pairs[1], "format=jsonl", capsys=capsys)
    assert "🐈" in texts[0]["unknown"] and not texts[1]["unknown"] and "source_unknown" not in texts[0]
    prompts = f"input={write('prompts.txt', ['the 猫', 'the'])}"
    written = lines("generate", "checkpoint=runs/text", prompts, "format=jsonl", "max_length=3", capsys=capsys)
    assert [one["unknown"] for one in written] == [["猫"], []]


NAMED = ["v1.2", "a.b"]


@pytest.mark.parametrize("name", NAMED)
def test_a_run_keeps_the_dots_of_its_name(name: str) -> None:
    """In the title of a report of an evaluation, of translations and of captions, and in charts."""
    for kind in ("fixed", "scenes"):
        copied = Path("named", kind, name)
        shutil.copytree(Path("runs", kind), copied)
        assert run("eval", f"checkpoint={copied}", "split=test", "bootstrap=2", "report=r.html", *QUIET) == 0
        assert title().endswith(f" of {name}")


@pytest.mark.parametrize(
    ("system", "baseline", "names"),
    [
        ("v1.2", "w1.3", ["v1.2", "w1.3"]),
        ("ours.v1.de", "theirs.v2.de", ["ours.v1", "theirs.v2"]),
        ("ours.de", "theirs.de", ["ours", "theirs"]),
        ("same.de", "same.txt", ["same.de", "same.txt"]),
        ("epoch.10", "epoch.20", ["epoch.10", "epoch.20"]),
    ],
)
def test_files_keep_what_is_no_suffix(system: str, baseline: str, names: list[str]) -> None:
    for file in (system, baseline, "reference.txt"):
        write(file, ["Tengo un gato grande.", "La casa."])
    files = [f"hypotheses={system}", f"baseline={baseline}", "references=reference.txt"]
    assert run("eval", *files, "bootstrap=2", "report=r.html") == 0
    assert title() == f"Translations of {names[0]}"
    assert next(one for one in report()["sections"] if one["kind"] == "sentences")["systems"] == names


def report() -> Any:
    return blocks(Path("r.html"))["report"]


def title() -> str:
    found = re.search("<title>(.*)</title>", Path("r.html").read_text())
    assert found is not None and found[1] == report()["title"]
    return found[1]


def test_pictures_and_counts_keep_what_is_no_suffix(capsys: pytest.CaptureFixture[str]) -> None:
    """Files drawn of images, and the name of document frequencies in a signature."""
    for name in ("IMG.0001", "IMG.0002"):
        Image.new("RGB", (64, 64), "red").save(name, "PNG")
    assert run("caption", "checkpoint=runs/scenes", "images=IMG.0001,IMG.0002", "plot=drawn", *QUIET) == 0
    assert sorted(path.name for path in Path("drawn").iterdir()) == [f"caption-000{i}-IMG.000{i}.png" for i in (1, 2)]
    captions = {"images": [{"id": 1}], "annotations": [{"image_id": 1, "caption": "a red cat sits"}]}
    Path("references.json").write_text(json.dumps(captions))
    Path("ours.json").write_text(json.dumps([{"image_id": 1, "caption": "a cat sits"}]))
    files = ["task=captioning", "references=references.json"]
    for name in ("counts.2014", "counts.2015", "counts.json"):
        assert run("eval", *files, f"save_document_frequencies={name}") == 0
        capsys.readouterr()
        assert run("eval", *files, "hypotheses=ours.json", f"document_frequencies={name}", "bootstrap=2") == 0
        assert name.removesuffix(".json") in capsys.readouterr().out


def test_a_title_has_no_marks_of_direction() -> None:
    copied = Path("named", "a\u202eb\u2067c\u200fd")
    shutil.copytree("runs/fixed", copied)
    assert run("report", str(copied), "output=r.html") == 0
    assert "<title>a\\u202eb\\u2067c\\u200fd</title>" in Path("r.html").read_text()
