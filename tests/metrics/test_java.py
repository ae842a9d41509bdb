import os
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from seqtool.metrics import java
from seqtool.metrics.java import java_scores


class Scorer:
    """Stands for pycocoevalcap's scorers."""

    def compute_score(
        self, references: dict[str, list[str]], results: dict[str, list[str]]
    ) -> tuple[float, list[float]]:
        assert (references, results) == ({"1": ["a dog"]}, {"1": ["a cat"]})
        os.write(1, b"Parsing captions\n")  # as SPICE's program does
        return 0.25, [0.25]


class Broken(Scorer):
    def __init__(self) -> None:
        raise subprocess.CalledProcessError(1, "java")


class Dying(Scorer):
    """As METEOR's, whose end waits for a lock that its failure left locked."""

    made: "Dying"

    def __init__(self) -> None:
        self.lock = threading.Lock()
        Dying.made = self

    def compute_score(self, references: Any, results: Any) -> tuple[float, list[float]]:
        self.lock.acquire()
        return float(""), []


def scores_with(monkeypatch: pytest.MonkeyPatch, meteor: type, *, path: str, version: str) -> Any:
    for name, scorer in (("meteor", meteor), ("spice", Scorer)):
        module = SimpleNamespace(**{name.capitalize(): scorer})
        monkeypatch.setitem(sys.modules, f"pycocoevalcap.{name}.{name}", module)
    monkeypatch.setattr(java.shutil, "which", lambda _: path or None)
    answer = SimpleNamespace(stderr=f'openjdk version "{version}" 2025-04-15')
    monkeypatch.setattr(java.subprocess, "run", lambda *_, **__: answer)
    return java_scores({"1": "A cat."}, {"1": ["A dog!"]}, tokenize="ptb")


def test_java_scores(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    old = scores_with(monkeypatch, Scorer, path="/usr/bin/java", version="1.8.0_392")
    assert old == ({"meteor": 0.25, "spice": 0.25}, [])
    new = scores_with(monkeypatch, Scorer, path="/usr/bin/java", version="17.0.15")
    assert new == ({"meteor": 0.25}, ["SPICE does not run on Java 17: it needs Java 14 or older."])
    broken = scores_with(monkeypatch, Broken, path="/usr/bin/java", version="17.0.15")
    assert broken[1][0] == "METEOR failed in Java: Command 'java' returned non-zero exit status 1."
    none = scores_with(monkeypatch, Scorer, path="", version="")
    assert none == ({}, ["METEOR and SPICE need Java, which is not on the PATH."])
    assert capfd.readouterr() == ("", "Parsing captions\n" * 3)


def test_a_scorer_that_dies_can_end(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, problems = scores_with(monkeypatch, Dying, path="/usr/bin/java", version="17")
    assert scores == {} and problems[0] == "METEOR failed in Java: could not convert string to float: ''."
    assert not Dying.made.lock.locked()


def test_captions_keep_to_their_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """METEOR reads a line an image, and ||| between texts."""
    assert java._lines(["a  ||| b\nc", ""], "none") == ["a b c", ""]


def test_without_pycocoevalcap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycocoevalcap.meteor.meteor", None)
    assert java_scores({"1": "a"}, {"1": ["a"]}, tokenize="ptb") == (
        {},
        ["METEOR and SPICE need pycocoevalcap: pip install pycocoevalcap."],
    )
