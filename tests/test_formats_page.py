"""docs/reference/formats.md names every field that the commands write."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from demo_models import run

PAGE = Path(__file__).resolve().parent.parent / "docs/reference/formats.md"
WRITING = {
    "translate": "translate checkpoint=runs/attend input=new.en output=o.jsonl format=jsonl likeliest=2 weights=true "
    "prefix=new.es attribution=integrated contrast=Tengo/un",
    "score": "score checkpoint=runs/attend sources=new.en references=new.es output=o.jsonl format=jsonl",
    "rescore": "rescore nbest=lists.jsonl checkpoint=runs/attend tune=new.en output=o.jsonl format=jsonl",
    "caption": "caption checkpoint=runs/scenes images=data/scenes/test/00000.png output=o.jsonl format=jsonl "
    "likeliest=2 weights=true attribution=occlusion",
    "generate": "generate checkpoint=runs/text prompt=the output=o.jsonl format=jsonl max_length=5",
    "eval of translations": "eval checkpoint=runs/attend format=json bootstrap=10",
    "eval of seeds": "eval seeds=runs/attend,runs/fixed baseline=runs/fixed,runs/attend format=json bootstrap=10",
    "eval of lines": "eval checkpoint=runs/attend format=jsonl bootstrap=0",
    "eval of captions": "eval checkpoint=runs/scenes format=json bootstrap=10",
    "eval of texts": "eval checkpoint=runs/text format=json bootstrap=10",
    "frequencies": "eval task=captioning references=captions.jsonl save_document_frequencies=o.jsonl",
}
FREE = ("decoding", "scores", "document_frequencies")  # settings, labels and n-grams are the names of their values


def names(value: Any) -> Iterator[str]:
    """The names of the fields in a record and the records within it."""
    if isinstance(value, list):
        for item in value:
            yield from names(item)
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from names(inner) if name not in FREE or isinstance(inner, list) else ()


@pytest.mark.parametrize("command", WRITING)
def test_the_page_names_every_field(
    command: str, shown_runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(shown_runs)
    Path("new.en").write_text("I have a cat.\n")
    Path("new.es").write_text("Tengo\n")
    Path("lists.jsonl").write_text('{"source": "a cat", "translations": [{"text": "un gato", "score": -1}]}\n')
    Path("captions.jsonl").write_text('{"file": "a.jpg", "caption": "a cat"}\n')
    Path("o.jsonl").unlink(missing_ok=True)
    arguments = WRITING[command].split()
    assert run(*arguments, *(["device=cpu", "threads=1"] if command != "frequencies" else [])) == 0
    text = Path("o.jsonl").read_text() if Path("o.jsonl").exists() else capsys.readouterr().out
    is_lines = command != "frequencies" and "format=json " not in f"{WRITING[command]} "
    records = [json.loads(line) for line in text.splitlines()] if is_lines else [json.loads(text)]
    page = set(re.findall(r"`(\w+)`", PAGE.read_text("utf-8")))
    assert set(names(records)) <= page


def test_the_page_names_what_is_recorded_of_a_run(shown_runs: Path) -> None:
    page = set(re.findall(r"`(\w+)`", PAGE.read_text("utf-8")))
    lines = (shown_runs / "runs/attend/metrics.jsonl").read_text().splitlines()
    assert set(names([json.loads(line) for line in lines])) <= page
