"""Tests of JSON lines, which tell what was cut off, unknown or forced, and of names with dots, which are kept."""

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
MACHINE = ["device=cpu", "threads=1"]


@pytest.fixture(autouse=True)
def workspace(shown_runs: Path) -> Iterator[Path]:
    with contextlib.chdir(shown_runs):
        yield shown_runs


def run_json(*words: str, capsys: pytest.CaptureFixture[str]) -> list[Any]:
    assert run(*words, *MACHINE) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def write(name: str, texts: list[str]) -> str:
    Path(name).write_text("".join(f"{text}\n" for text in texts))
    return name


@pytest.mark.parametrize("checkpoint", ["runs/attend", "runs/fixed"])
def test_cut_and_unknown_source_tokens_are_in_json_lines(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`translate` gives the number of tokens left out at the end, and unknown pieces as they are written."""
    files = [f"checkpoint={checkpoint}", f"input={write('long.txt', SOURCES)}", "format=jsonl", "beam=1"]
    long = run_json("translate", *files, "max_length=200", capsys=capsys)
    short = run_json("translate", *files, "max_source_length=12", capsys=capsys)
    assert [record["source_cut"] for record in long] == [0] * 4
    assert [record["source_cut"] > 0 for record in short] == [False, False, True, False]
    for records in (long, short):
        unknown = [{piece.strip("▁") for piece in record["source_unknown"]} for record in records]
        assert unknown == [set(), set(), {"🐈", "猫"}, set()]


@pytest.mark.parametrize(
    ("checkpoint", "settings"),
    [
        ("runs/attend", "length_penalty=average"),
        ("runs/fixed", "length_penalty=gnmt length_alpha=1"),
        ("runs/attend,runs/fixed", "length_penalty=none"),
        ("runs/attend", "sample=true n_best=2"),
    ],
)
def test_scores_with_and_without_a_prefix(checkpoint: str, settings: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`score_with_prefix` is the score of all tokens, and `score` that of the tokens after the prefix."""
    files = [f"input={write('begun.txt', SOURCES)}", f"prefix={write('begins.txt', PREFIXES)}", "format=jsonl"]
    command = ["translate", f"checkpoint={checkpoint}", *files, *settings.split()]
    plain, detailed = run_json(*command, capsys=capsys), run_json(*command, "likeliest=1", capsys=capsys)
    for line, detailed_line, prefix in zip(plain, detailed, PREFIXES, strict=True):
        for translation, details in zip(line["translations"], detailed_line["translations"], strict=True):
            assert ("prefix_tokens" in translation) == bool(prefix)
            if not prefix:
                continue
            count = translation["prefix_tokens"]
            log_p = [math.log(token["probability"]) for token in details["predicted"]]
            assert translation["text"].startswith(prefix) and len(translation["prefix_unknown"]) == ("🐈" in prefix)
            assert translation["log_probability_with_prefix"] == pytest.approx(sum(log_p), abs=1e-3)
            assert translation["log_probability"] == pytest.approx(sum(log_p[count:]), abs=1e-3)
            score_with_prefix = sum(log_p) / length_divisor(settings, len(log_p))
            assert translation["score_with_prefix"] == pytest.approx(score_with_prefix, abs=1e-3)
            score = sum(log_p[count:]) / length_divisor(settings, len(log_p) - count)
            assert translation["score"] == pytest.approx(score, abs=1e-3)


def length_divisor(settings: str, length: int) -> float:
    return length if "average" in settings else (5 + length) / 6 if "gnmt" in settings else 1


def test_unknown_pieces_of_given_texts_are_in_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """`score` gives the unknown pieces of pairs and texts, and `generate` those of a prompt."""
    references = ["Tengo 🐈 un gato.", "", "Quizás.", "La 猫."]
    pairs = [f"sources={write('sources.txt', SOURCES)}", f"references={write('references.txt', references)}"]
    scored = run_json("score", "checkpoint=runs/attend", *pairs, "format=jsonl", capsys=capsys)
    for record, reference, source in zip(scored, references, SOURCES, strict=True):
        assert "".join(record["unknown"]).strip("▁") == "".join(letter for letter in reference if letter in "🐈猫")
        assert bool(record["source_unknown"]) == ("🐈" in source)
    texts = run_json("score", "checkpoint=runs/text", pairs[1], "format=jsonl", capsys=capsys)
    assert "🐈" in texts[0]["unknown"] and not texts[1]["unknown"] and "source_unknown" not in texts[0]
    prompts = f"input={write('prompts.txt', ['the 猫', 'the'])}"
    generated = run_json("generate", "checkpoint=runs/text", prompts, "format=jsonl", "max_length=3", capsys=capsys)
    assert [record["unknown"] for record in generated] == [["猫"], []]


DOTTED_NAMES = ["v1.2", "a.b"]


@pytest.mark.parametrize("name", DOTTED_NAMES)
def test_a_run_keeps_the_dots_of_its_name(name: str) -> None:
    """The title of a report has the whole name, for translations and for captions."""
    for kind in ("fixed", "scenes"):
        copy = Path("named", kind, name)
        shutil.copytree(Path("runs", kind), copy)
        assert run("eval", f"checkpoint={copy}", "split=test", "bootstrap=2", "report=r.html", *MACHINE) == 0
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
def test_system_names_lose_only_common_suffixes(system: str, baseline: str, names: list[str]) -> None:
    for file in (system, baseline, "reference.txt"):
        write(file, ["Tengo un gato grande.", "La casa."])
    files = [f"hypotheses={system}", f"baseline={baseline}", "references=reference.txt"]
    assert run("eval", *files, "bootstrap=2", "report=r.html") == 0
    assert title() == f"Translations of {names[0]}"
    assert next(part for part in report()["sections"] if part["kind"] == "sentences")["systems"] == names


def report() -> Any:
    return blocks(Path("r.html"))["report"]


def title() -> str:
    match = re.search("<title>(.*)</title>", Path("r.html").read_text())
    assert match is not None and match[1] == report()["title"]
    return match[1]


def test_names_of_pictures_and_counts_keep_their_dots(capsys: pytest.CaptureFixture[str]) -> None:
    """The names are those of the figures of captions and of the document frequencies in a signature."""
    for name in ("IMG.0001", "IMG.0002"):
        Image.new("RGB", (64, 64), "red").save(name, "PNG")
    assert run("caption", "checkpoint=runs/scenes", "images=IMG.0001,IMG.0002", "plot=drawn", *MACHINE) == 0
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


def test_direction_marks_are_escaped_in_a_title() -> None:
    copy = Path("named", "a\u202eb\u2067c\u200fd")
    shutil.copytree("runs/fixed", copy)
    assert run("report", str(copy), "output=r.html") == 0
    assert "<title>a\\u202eb\\u2067c\\u200fd</title>" in Path("r.html").read_text()
