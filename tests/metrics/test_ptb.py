"""Tests of PTB tokenisation against Stanford's tokenizer, without coco-caption's punctuation.

Expected tokens come from `java -cp stanford-corenlp-3.4.1.jar edu.stanford.nlp.process.PTBTokenizer -preserveLines
-lowerCase FILE`, with the jar of pycocoevalcap.
"""

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from seqtool.metrics import ptb
from seqtool.metrics.ptb import tokenize

# Difficult captions written by hand, each with Java's tokens when the next line starts with "A".
DIFFICULT_LINES = (Path(__file__).parent / "ptb_pairs.jsonl").read_text("utf-8").splitlines()
DIFFICULT_PAIRS = [json.loads(line) for line in DIFFICULT_LINES]

# Captions of the golden pairs whose tokens differ, with the reason
DIFFERENT_CAPTIONS = {
    "Peculiar street sign showing intersection of 23 3/4 St and 8th Ave/CTH D.": "Java read the first word of the next "
    "line of its file to decide that 'D.' is an initial; here each caption is tokenised separately",
}


@pytest.mark.parametrize(("caption", "expected"), DIFFICULT_PAIRS)
def test_difficult_captions_match_java(caption: str, expected: str) -> None:
    assert " ".join(tokenize(caption)) == expected


def test_golden_captions_match_java(shared: Path) -> None:
    """At most 1 caption in 10,000 differs, and the reason for each is stated above."""
    pairs = [json.loads(line) for line in (shared / "golden" / "ptb_pairs.jsonl").read_text("utf-8").splitlines()]
    tokens = [tokenize(caption) for caption, _ in pairs]
    joined = [" ".join(tokens_of_caption) for tokens_of_caption in tokens]
    different = {caption for (caption, expected), actual in zip(pairs, joined, strict=True) if actual != expected}
    assert different == set(DIFFERENT_CAPTIONS)
    assert len(pairs) == 29_948
    assert len(different) <= len(pairs) / 10_000


def test_the_fast_path_equals_the_plain_path(shared: Path) -> None:
    """The fast path tokenises one part between spaces at a time."""
    pairs = [json.loads(line) for line in (shared / "golden" / "ptb_pairs.jsonl").read_text("utf-8").splitlines()]
    for caption in [pair[0] for pair in DIFFICULT_PAIRS] + [pair[0] for pair in pairs[::10]]:
        assert tokenize(caption) == ptb._lex(caption)


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("", []),
        (" \t\n ", []),
        (". ! ? , : ; - -- ... ' \" ` ``", []),
        ("(a)", ["-lrb-", "a", "-rrb-"]),  # kept because it is lower-cased before punctuation is removed
        ("!! ?! ??", ["!!", "?!", "??"]),
        ("22 3/4 in", ["22\u00a03/4", "in"]),
        ("A K.", ["a", "k"]),  # the full stop ends the caption
        ("a\nb\r\nc", ["a", "b", "c"]),
        ("\u00a0a\u00a0b", ["a", "b"]),
        ("👍", []),
    ],
)
def test_edge_cases(caption: str, expected: list[str]) -> None:
    assert tokenize(caption) == expected


def test_long_captions_are_tokenised_in_linear_time() -> None:
    assert len(tokenize("a dog's 5 bones, " * 2_000)) == 10_000
    assert tokenize("a" * 20_000) == ["a" * 20_000]
    assert tokenize("(" * 2_000) == ["-lrb-"] * 2_000


@pytest.mark.skipif(
    shutil.which("java") is None or importlib.util.find_spec("pycocoevalcap") is None,
    reason="needs Java and pycocoevalcap",
)
def test_java_agrees(tmp_path: Path) -> None:
    package = importlib.util.find_spec("pycocoevalcap")
    assert package is not None and package.submodule_search_locations
    jar = Path(package.submodule_search_locations[0]) / "tokenizer" / "stanford-corenlp-3.4.1.jar"
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"{caption}\nA line\n" for caption, _ in DIFFICULT_PAIRS), encoding="utf-8")
    command = ["java", "-cp", str(jar), "edu.stanford.nlp.process.PTBTokenizer", "-preserveLines", "-lowerCase"]
    output = subprocess.run([*command, str(lines)], capture_output=True, check=True, timeout=60).stdout.decode()
    for (caption, _), line in zip(DIFFICULT_PAIRS, output.split("\n")[::2], strict=False):
        assert tokenize(caption) == [token for token in line.split(" ") if token and token not in ptb.PUNCTUATION]
