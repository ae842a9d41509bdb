"""The commands of the README and of docs/ that need no data but the built-in ones work, with two steps of training."""

import os
import re
import shutil
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import jaxtyping
import pytest
from hydra.utils import get_class
from test_readme import EXAMPLES, configuration

import seqtool
from seqtool.cli import main as cli
from seqtool.data.corpora import plain_text
from seqtool.data.corpora.parallel import Toy
from seqtool.data.corpora.plain_text import PlainText
from seqtool.data.corpora.scenes import Scenes
from seqtool.runtime.files import config_directory
from seqtool.training.runs import located
from seqtool.view import plots

DOCS = Path(__file__).resolve().parents[1] / "docs"
ENGLISH = "I have a big cat.\nThe dog sleeps.\nI see the red house.\n"
SPANISH = "Tengo un gato grande.\nEl perro duerme.\nVeo la casa roja.\n"
FILES = {  # that pages tell their readers to write
    **dict.fromkeys(("new.en", "test.en", "valid.en", "new.txt", "other.txt"), ENGLISH),
    **dict.fromkeys(("new.es", "test.es", "valid.es"), SPANISH),
    "begins.es": "Tengo\n\n\n",
    "long.txt": 40 * ENGLISH,
    "like.en": f"{ENGLISH}The dog sees the cat.\n",
}
READ = ("input", "prefix", "sources", "references", "hypotheses", "baseline", "beside", "text", "images", "checkpoint")
READ += ("seeds", "nbest", "tune", "weights", "reverse", "lm")
SIZES: dict[type, list[str]] = {
    Toy: ["data.train=400", "data.valid=2", "data.test=2", "validation.max_length=4"],
    Scenes: ["data.train=8", "data.valid=2", "data.test=8", "validation.max_length=4"],
    PlainText: [],
}
STEPS = ["device=cpu", "precision=fp32", "train.steps=2", "train.minutes=null", "train.epochs=1", "schedule.warmup=0"]


def value(words: list[str], name: str) -> str | None:
    """The value of a setting in a command line; None if it is not given."""
    return next((word.removeprefix(f"{name}=") for word in words if word.startswith(f"{name}=")), None)


def with_settings(words: list[str], *settings: str) -> list[str]:
    """The command line with these settings, which replace those of the page."""
    names = {setting.split("=")[0] for setting in settings}
    return [*(word for word in words if word.split("=")[0] not in names), *settings]


@cache
def corpus(choices: tuple[str, ...]) -> type:
    """The class of the corpus, given the settings `experiment=` and `data=` of a command line."""
    return get_class(configuration(["train", *choices])["data"]["_target_"])


def training_commands() -> Iterator[list[str]]:
    """Yield the command lines that train on built-in data, with few examples, two steps and different run names."""
    runs: set[str] = set()
    for words in {line: words for _, line, words in EXAMPLES if words[0] == "train"}.values():
        if value(words, "data.train") or value(words, "train.resume"):
            continue
        sizes = SIZES.get(corpus(tuple(word for word in words if word.startswith(("experiment=", "data=")))))
        if sizes is None:
            continue
        brief = with_settings(words, *sizes, *STEPS, "train.batch_size=2", "data.processes=1")
        if (name := value(words, "run")) is not None and name in runs:
            brief = with_settings(brief, f"run={name}-again")
        runs.add(name or "")
        yield brief


def other_commands() -> Iterator[list[str]]:
    """Yield the other command lines, with short outputs, if their files and runs exist by then."""
    for words in {line: words for _, line, words in EXAMPLES if words[0] not in ("train", "prepare", "demo")}.values():
        if words[0] == "translate" and value(words, "input") is None:
            words = [*words, "input=new.en"]  # pages write the text before a pipe
        reads = [part for name in READ for part in (value(words, name) or "").split(",") if part]
        reads += [word for word in words[1:] if "=" not in word]
        has_scenes = words[0] == "eval" and value(words, "checkpoint") in ("builtin/soft", "builtin/hard")
        if has_scenes or not all(located(Path(path)).exists() for path in reads):
            continue  # the scenes here are fewer than those of the built-in models
        if value(words, "checkpoint") not in (None, "runs/grammar") and words[0] not in ("export", "score", "rescore"):
            words = with_settings(words, "max_length=6", *["bootstrap=0"] * (words[0] == "eval"))
        if value(words, "bound") is not None:
            words = with_settings(words, "bound=2")
        if words[0] == "export":
            shutil.rmtree(value(words, "output") or "", ignore_errors=True)
        yield words


def test_commands_on_built_in_data_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(plain_text.BUILT_IN, "train", 300)
    # What takes a third of the time and is tested elsewhere: two figures, sharp figures, fsync and the shapes.
    for name in ("gradient_flow", "heads"):
        monkeypatch.setattr(plots, name, lambda *_, **__: None)
    monkeypatch.setattr(plots, "DPI", 30)
    monkeypatch.setattr(os, "fsync", lambda file: None)
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    for name, text in FILES.items():
        Path(name).write_text(text, encoding="utf-8")
    failed, count = [], 0
    for words in chain(training_commands(), other_commands()):
        count += 1
        if cli.run(words, config_directory()) != 0:
            failed.append(" ".join(words))
    assert not failed
    assert count >= 80, count


def test_python_on_built_in_models_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pages = [path.read_text("utf-8") for path in sorted(DOCS.rglob("*.md"))]
    blocks = [block for page in pages for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL)]
    alone = [block for block in blocks if "builtin/" in block and not re.search(r"runs/|\brun\.", block)]
    assert len(alone) == 4
    for block in alone:
        exec(compile(block, block, "exec"), {"seqtool": seqtool})
