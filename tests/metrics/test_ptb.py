"""Truth is Stanford's tokenizer itself: `java -cp stanford-corenlp-3.4.1.jar edu.stanford.nlp.process.PTBTokenizer
-preserveLines -lowerCase FILE` (the jar is pycocoevalcap's), then coco-caption's punctuation left out."""

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from seqtool.metrics import ptb
from seqtool.metrics.ptb import tokenize

# Hard lines written by hand, each with what Java makes of it when the next line starts with "A".
PAIRS = [json.loads(line) for line in (Path(__file__).parent / "ptb_pairs.jsonl").read_text("utf-8").splitlines()]

# The golden pairs that differ, with the reason.
DIFFERENT = {
    "Peculiar street sign showing intersection of 23 3/4 St and 8th Ave/CTH D.": "Java read the first word of the next "
    "line of its file to decide that 'D.' is an initial; here a caption is tokenised by itself",
}


@pytest.mark.parametrize(("caption", "expected"), PAIRS)
def test_hard_lines(caption: str, expected: str) -> None:
    assert " ".join(tokenize(caption)) == expected


def test_golden_pairs(shared: Path) -> None:
    """At most 1 in 10,000 differs, and those are known."""
    pairs = [json.loads(line) for line in (shared / "golden" / "ptb_pairs.jsonl").read_text("utf-8").splitlines()]
    tokens = [tokenize(caption) for caption, _ in pairs]
    different = {caption for (caption, wanted), found in zip(pairs, tokens, strict=True) if " ".join(found) != wanted}
    assert different == set(DIFFERENT)
    assert len(pairs) == 29_948
    assert len(different) <= len(pairs) / 10_000


def test_parts_alone_read_as_in_their_caption(shared: Path) -> None:
    """The fast path, one part between spaces at a time, is the plain path."""
    pairs = [json.loads(line) for line in (shared / "golden" / "ptb_pairs.jsonl").read_text("utf-8").splitlines()]
    for caption in [pair[0] for pair in PAIRS] + [pair[0] for pair in pairs[::10]]:
        assert tokenize(caption) == ptb._lex(caption)


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("", []),
        (" \t\n ", []),
        (". ! ? , : ; - -- ... ' \" ` ``", []),
        ("(a)", ["-lrb-", "a", "-rrb-"]),  # lower-cased before the punctuation is left out, and so kept
        ("!! ?! ??", ["!!", "?!", "??"]),
        ("22 3/4 in", ["22\u00a03/4", "in"]),
        ("A K.", ["a", "k"]),  # ends the caption
        ("a\nb\r\nc", ["a", "b", "c"]),
        ("\u00a0a\u00a0b", ["a", "b"]),
        ("👍", []),
    ],
)
def test_edges(caption: str, expected: list[str]) -> None:
    assert tokenize(caption) == expected


def test_a_long_caption_takes_no_longer_than_its_words() -> None:
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
    lines.write_text("".join(f"{caption}\nA line\n" for caption, _ in PAIRS), encoding="utf-8")
    command = ["java", "-cp", str(jar), "edu.stanford.nlp.process.PTBTokenizer", "-preserveLines", "-lowerCase"]
    output = subprocess.run([*command, str(lines)], capture_output=True, check=True, timeout=60).stdout.decode()
    for (caption, _), line in zip(PAIRS, output.split("\n")[::2], strict=False):
        assert tokenize(caption) == [token for token in line.split(" ") if token and token not in ptb.PUNCTUATION]
