"""Tests of METEOR and SPICE, with stand-ins for Java and for pycocoevalcap's scorers."""

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
    """A stand-in for pycocoevalcap's scorers."""

    def compute_score(
        self, references: dict[str, list[str]], results: dict[str, list[str]]
    ) -> tuple[float, list[float]]:
        assert (references, results) == ({"1": ["a dog"]}, {"1": ["a cat"]})
        os.write(1, b"Parsing captions\n")  # as SPICE's program does
        return 0.25, [0.25]


class BrokenScorer(Scorer):
    def __init__(self) -> None:
        raise subprocess.CalledProcessError(1, "java")


class DyingScorer(Scorer):
    """A scorer like METEOR's, whose destructor waits for a lock that its failure has left locked."""

    instance: "DyingScorer"

    def __init__(self) -> None:
        self.lock = threading.Lock()
        DyingScorer.instance = self

    def compute_score(self, references: Any, results: Any) -> tuple[float, list[float]]:
        self.lock.acquire()
        return float(""), []


def compute_scores(monkeypatch: pytest.MonkeyPatch, meteor: type, *, path: str, version: str) -> Any:
    for name, scorer in (("meteor", meteor), ("spice", Scorer)):
        module = SimpleNamespace(**{name.capitalize(): scorer})
        monkeypatch.setitem(sys.modules, f"pycocoevalcap.{name}.{name}", module)
    monkeypatch.setattr(java.shutil, "which", lambda _: path or None)
    answer = SimpleNamespace(stderr=f'openjdk version "{version}" 2025-04-15')
    monkeypatch.setattr(java.subprocess, "run", lambda *_, **__: answer)
    return java_scores({"1": "A cat."}, {"1": ["A dog!"]}, tokenize="ptb")


def test_scores_need_a_suitable_java(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    with_java_8 = compute_scores(monkeypatch, Scorer, path="/usr/bin/java", version="1.8.0_392")
    assert with_java_8 == ({"meteor": 0.25, "spice": 0.25}, [])
    with_java_17 = compute_scores(monkeypatch, Scorer, path="/usr/bin/java", version="17.0.15")
    assert with_java_17 == ({"meteor": 0.25}, ["SPICE does not run on Java 17: it needs Java 14 or older."])
    _, problems = compute_scores(monkeypatch, BrokenScorer, path="/usr/bin/java", version="17.0.15")
    assert problems[0] == "METEOR failed in Java: Command 'java' returned non-zero exit status 1."
    without_java = compute_scores(monkeypatch, Scorer, path="", version="")
    assert without_java == ({}, ["METEOR and SPICE need Java, which is not on the PATH."])
    assert capfd.readouterr() == ("", "Parsing captions\n" * 3)


def test_the_lock_of_a_failed_scorer_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, problems = compute_scores(monkeypatch, DyingScorer, path="/usr/bin/java", version="17")
    assert scores == {} and problems[0] == "METEOR failed in Java: could not convert string to float: ''."
    assert not DyingScorer.instance.lock.locked()


def test_captions_stay_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """METEOR reads one line for each image, and ||| separates captions."""
    assert java._lines(["a  ||| b\nc", ""], "none") == ["a b c", ""]


def test_a_missing_pycocoevalcap_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycocoevalcap.meteor.meteor", None)
    assert java_scores({"1": "a"}, {"1": ["a"]}, tokenize="ptb") == (
        {},
        ["METEOR and SPICE need pycocoevalcap: pip install pycocoevalcap."],
    )
