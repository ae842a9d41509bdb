"""Tests of what `prepare` checks: each problem is found where it was planted, and nowhere else."""

import gzip
import logging
import os
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from seqtool.cli import main as cli
from seqtool.data import checking, preparation
from seqtool.data.cache import Cache
from seqtool.data.checking import Checks
from seqtool.data.corpora.multi30k import Multi30k
from seqtool.data.corpora.parallel import Toy
from seqtool.data.corpora.plain_text import BUILT_IN, PlainText
from seqtool.data.corpora.toy import generate
from seqtool.data.preparation import PairSteps, TextSteps, prepare_pairs, prepare_text
from seqtool.errors import InputError
from seqtool.models.tokens import UNK
from seqtool.runtime.configs import defaults
from seqtool.runtime.files import config_directory

Pairs = list[tuple[str, str]]
SHARED = Path(os.environ.get("SEQTOOL_SHARED", "../shared"))
ROWS = range(300, 310)  # where problems are planted
GERMAN = [f"Der Hund Nummer {row} ist nicht in dem Haus, und ich sehe ihn auch nicht." for row in ROWS]


@pytest.fixture(scope="module")
def splits() -> dict[str, Pairs]:
    """Correct pairs of English and Spanish sentences."""
    generated = generate(seed=1, train=450, valid=50, test=0)
    return {split: [(pair.source, pair.target) for pair in generated[split]] for split in ("train", "valid")}


def write(path: Path, pairs: Pairs) -> str:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
    return str(path)


def config(
    directory: Path, train: Pairs, valid: Pairs, languages: tuple[str, str] = ("en", "es"), **settings: Any
) -> Any:
    return {
        **defaults("preparation"),
        "_target_": "seqtool.data.corpora.parallel.ParallelFiles",
        "train": write(directory / "train.tsv", train),
        "valid": write(directory / "valid.tsv", valid),
        "test": None,
        "source_language": languages[0],
        "target_language": languages[1],
        "vocabulary": {**defaults("preparation")["vocabulary"], "kind": "char"},
        "limits": {"minimum": 1, "maximum": None, "ratio": None},
        "cache": str(directory / "cache"),
        "processes": 1,
        **settings,
    }


def findings(cache: Cache) -> dict[tuple[str, str], int]:
    return {(finding["split"], finding["kind"]): finding["count"] for finding in cache.summary["findings"]}


PLANTED: dict[str, Callable[[int, str, str], tuple[str, str]]] = {
    "segmented": lambda row, source, target: (source.replace("e", "e@@ "), target),
    "escaped": lambda row, source, target: (source, f"&quot;{target}&quot;"),
    "identical": lambda row, source, target: (source, source),
    "lengths": lambda row, source, target: (source, f"{target} " * 9),
    "swapped": lambda row, source, target: (
        f"{target} El gato {row} está en la casa.",
        f"{source} The cat {row} is his.",
    ),
    "language": lambda row, source, target: (source, GERMAN[row - ROWS[0]]),
}


@pytest.mark.parametrize("kind", ["held_out", "duplicates", "shifted", *PLANTED])
def test_a_planted_problem_is_found_and_left_out(
    kind: str, splits: dict[str, Pairs], tmp_path: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found as often as it was planted, only these pairs can be left out, and strict data refuse it."""
    monkeypatch.setattr(checking, "BLOCK", 225)
    train, rows = list(splits["train"]), list(ROWS)
    if kind == "shifted":  # a missing line in the middle
        rows = list(range(225, 450))
        train = [*train[:225], *((train[i][0], train[min(i + 2, 449)][1]) for i in rows)]
    for row in rows if kind != "shifted" else []:
        if kind == "held_out":
            train[row] = splits["valid"][row - rows[0]]
        else:
            train[row] = train[row - 200] if kind == "duplicates" else PLANTED[kind](row, *train[row])
    strict = config(tmp_path, train, splits["valid"], strict=True)
    with pytest.raises(
        InputError,
        match=rf"^data\.strict=true refuses these data: {len(rows):,} of .*: correct them, or see data.clean\.$",
    ):
        prepare_pairs(strict)
    assert not (tmp_path / "cache").exists()
    with caplog.at_level(logging.WARNING, "seqtool"):
        cache = prepare_pairs({**strict, "strict": False})
    split = "valid" if kind == "held_out" else "train"
    assert findings(cache) == {(split, kind): len(rows)}
    (message,) = caplog.messages
    quoted = f"“{train[rows[0]][0][:30]}"
    total = "50 different pairs of valid" if kind == "held_out" else "450 pairs of train"
    place = f" such as line {rows[0] + 1:,}{' of train' * (kind == 'held_out')}"
    assert message.startswith(f"{len(rows):,} of {total} (") and f"{place}{'' if kind == 'shifted' else ','}" in message
    assert quoted in message and message.endswith(f"; data.clean={kind} leaves them out of training.")
    number = total.split()[0]
    assert cache.describe().splitlines()[-1] == f"Found in {split}: {kind} ({len(rows):,} of {number})"
    with pytest.raises(InputError, match="refuses these data"):
        prepare_pairs(strict)  # the cache exists
    cleaned = prepare_pairs({**strict, "clean": kind})
    assert cleaned.summary["findings"] == [] and cleaned.summary["splits"]["train"]["dropped"] == {kind: len(rows)}
    kept = [pair for row, pair in enumerate(train) if row not in rows]
    split_train, encode = cleaned.split("train"), cleaned.target_vocabulary.encode
    assert [split_train.target(i).tolist() for i in range(len(split_train))] == [encode(target) for _, target in kept]


def lines_of(alphabet: str, space: str, number: int = 1_200) -> Pairs:
    """Distinct lines of two languages whose lengths correlate."""
    rng = random.Random(1)
    pairs = []
    for row in range(number):
        words = ["".join(rng.choices(alphabet, k=rng.randint(2, 6))) for _ in range(rng.randint(3, 12))]
        pairs.append((f"the {row} and {' of the '.join(str(len(word)) for word in words)}", space.join(words)))
    return pairs


CLEAN: dict[str, tuple[Pairs, tuple[str, str]]] = {
    "Cyrillic": (lines_of("абвгдежзиклмнопрст", " "), ("en", "ru")),
    "Chinese": (lines_of("的一是不了人我在有他这中大来上", ""), ("en-GB", "zh_CN")),
    "unknown languages": (lines_of("abcdefg", " "), ("source", "target")),
    "empty lines": ([*lines_of("abcdef", " "), *[("", "")] * 5, ("", "a b"), ("a b", "")], ("en", "source")),
    "huge lines": ([*lines_of("abcdef", " ", 300), ("the a " * 30_000, "b c " * 40_000)], ("en", "en")),
    "few lines": ([("Yes.", "Sí, por supuesto que sí."), ("No.", "No.")], ("en", "es")),
}


@pytest.mark.parametrize("name", CLEAN)
def test_nothing_is_found_in_clean_data(name: str, tmp_path: Path) -> None:
    pairs, languages = CLEAN[name]
    held_out = [("one of the 17", "б 的 b")]
    found = findings(prepare_pairs(config(tmp_path, pairs, held_out, languages)))
    assert found == ({("train", "identical"): 1} if name == "few lines" else {})


@pytest.mark.parametrize(
    ("alphabet", "languages"), [("абвгдежзи", ("en", "ru")), ("的一是不了人我在有他", ("en", "zh"))]
)
def test_swapped_scripts_are_found(alphabet: str, languages: tuple[str, str], tmp_path: Path) -> None:
    pairs = lines_of(alphabet, " ", 300)
    swapped = [(target, source) for source, target in pairs]
    count = findings(prepare_pairs(config(tmp_path, swapped, pairs[:3], languages)))["train", "swapped"]
    assert count > 280  # few lines have under ten letters


@pytest.mark.parametrize(
    ("names", "languages", "expected"),
    [
        (("train.en", "train.ru"), ("source", "target"), 280),
        (("pairs.ru-en.en.gz", "pairs.ru-en.ru.gz"), ("source", "target"), 280),
        (("train.en", "train.txt"), ("source", "ru-RU"), 280),
        (("train.en", "train.txt"), ("source", "target"), 0),
        (("train.en", "train.ru"), ("source", "Ural"), 0),  # what is named is not read off the file
    ],
)
def test_languages_are_read_off_the_names_of_files(
    names: tuple[str, str], languages: tuple[str, str], expected: int, tmp_path: Path
) -> None:
    swapped = [(target, source) for source, target in lines_of("абвгдежзи", " ", 300)]
    settings = config(tmp_path, swapped, swapped[:3], languages)
    for name, texts in zip(names, zip(*swapped, strict=True), strict=True):
        content = "".join(f"{text}\n" for text in texts).encode()
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    settings["train"] = [str(tmp_path / name) for name in names]
    count = findings(prepare_pairs(settings)).get(("train", "swapped"), 0)
    assert count >= expected if expected else count == 0


def test_several_kinds_are_left_out_after_an_interruption(
    splits: dict[str, Pairs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The findings and the reasons are those of an uninterrupted preparation; a pair has the first of its reasons."""
    train = [
        *splits["train"][:300],
        *splits["valid"][:9],
        *splits["train"][:5],
        ("a", "a"),
        ("a", "a"),
        ("&lt;", "b@@ c"),
    ]
    both = config(tmp_path, train, splits["valid"], clean=["identical", "duplicates", "segmented"])
    whole = prepare_pairs({**both, "cache": str(tmp_path / "whole")})
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "_write_split", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
        with pytest.raises(OSError, match="full"):
            prepare_pairs(both)
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "_vocabularies", None)  # they are not learnt again
        with pytest.raises(InputError, match="refuses these data: 9 of 50 different pairs of valid"):
            prepare_pairs({**both, "strict": True})
        resumed = prepare_pairs(both)
    assert resumed.summary == whole.summary and findings(resumed) == {("valid", "held_out"): 9}
    assert resumed.summary["splits"]["train"]["dropped"] == {"duplicates": 5, "identical": 2, "segmented": 1}
    reasons = (resumed.directory / "train.left_out.txt").read_text().splitlines()
    assert reasons == [
        *(f"{line} duplicates" for line in range(310, 315)),
        "315 identical",
        "316 identical",
        "317 segmented",
    ]
    with pytest.raises(InputError) as error:
        prepare_pairs({**both, "train": write(tmp_path / "same.tsv", [("a", "a")] * 9), "valid": both["valid"]})
    assert str(error.value) == "data.clean leaves out all 9 training pairs: identical, duplicates, segmented."


@pytest.mark.parametrize(
    ("languages", "clean", "message"),
    [
        (("en", "es"), "dups", "Unknown data.clean 'dups'; choose from held_out, duplicates, segmented, escaped, "),
        (("en", "es"), ["captions"], "Unknown data.clean 'captions'; choose from "),
        (
            ("en", "target"),
            "swapped",
            "Unknown data.clean 'swapped' (the languages of the data are not known); choose ",
        ),
        (("en", "es"), 5, "Unknown data.clean '5'; choose from "),
    ],
)
def test_unknown_kinds_are_refused(languages: tuple[str, str], clean: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        prepare_pairs(config(tmp_path, [("a", "b")], [("c", "d")], languages, clean=clean))
    assert str(error.value).startswith(message) and not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    "rows, number, place",
    [
        (range(200, 420), 200, "line 251 (its target is line 250)"),  # most of the second part of a block
        (range(1, 440), 450, "line 2 (its target is line 1)"),  # most of the block; line 1 has no target
    ],
)
def test_shifts_of_parts_of_a_block_are_found(
    splits: dict[str, Pairs], rows: range, number: int, place: str, tmp_path: Path
) -> None:
    train = [*splits["train"]]
    for row in rows:
        train[row] = (splits["train"][row][0], splits["train"][row + 1][1])
    cache = prepare_pairs(config(tmp_path, train, splits["valid"]))
    (shifted,) = (finding for finding in cache.summary["findings"] if finding["kind"] == "shifted")
    assert shifted["count"] == number
    assert f"such as {place}, “{train[int(place.split()[1]) - 1][0][:20]}" in shifted["problem"]


def test_commands_take_and_show_the_settings(
    splits: dict[str, Pairs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, caplog: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("train.tsv"), [*splits["train"][:200], *splits["train"][:4], ("a", "a")])
    write(Path("valid.tsv"), splits["valid"][:1])
    data = ["data=parallel", "data.train=train.tsv", "data.valid=valid.tsv", "data.vocabulary.kind=char"]

    def run(*arguments: str) -> int:
        return cli.run(list(arguments), config_directory())

    assert run("prepare", *data, "data.strict=true") == 2 and not Path("cache").exists()
    assert "refuses these data: 4 of 205 pairs of train (1.95%) repeat an earlier one" in capsys.readouterr().err
    assert run("prepare", *data) == 0
    assert "data.clean=duplicates leaves them out" in caplog.text
    assert "Found in train: duplicates (4 of 205)" in capsys.readouterr().out
    (directory,) = Path("cache").glob("parallel-*")
    assert run("inspect", str(directory)) == 0
    assert "Found in train: duplicates (4 of 205)" in capsys.readouterr().out
    assert run("prepare", *data, "data.strict=true", "data.clean=duplicates,identical") == 0
    assert "1 identical" in capsys.readouterr().out


def test_a_vocabulary_knows_nothing_that_is_left_out(splits: dict[str, Pairs], tmp_path: Path) -> None:
    train = [*splits["train"][:300], *[("&lt; ж", "ш")] * 90]
    for sample in (None, 1_000):
        vocabulary = {**defaults("preparation")["vocabulary"], "kind": "bpe", "size": 60, "sample": sample}
        data = config(tmp_path, train, splits["valid"][:5], vocabulary=vocabulary)
        for clean in ([], ["escaped"]):
            cache = prepare_pairs({**data, "clean": clean})
            texts = {"source": "ж", "target": "ш"}.items()
            knows = [UNK not in cache.vocabularies[side].encode(text) for side, text in texts]
            assert knows == [not clean] * 2


def test_words_are_counted_without_what_is_left_out(splits: dict[str, Pairs], tmp_path: Path) -> None:
    data = config(tmp_path, [*splits["train"][:200], *[("&lt; a", "once b")] * 9], splits["valid"][:5])
    for clean in ([], ["escaped"]):
        lines = (prepare_pairs({**data, "clean": clean}).directory / "train.words.txt").read_text().splitlines()
        assert ("9\tonce" in lines) == (not clean)


def test_the_usual_ratio_is_not_that_of_a_short_last_block(
    splits: dict[str, Pairs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last block has one good pair and one bad one, or the bad one alone."""
    monkeypatch.setattr(checking, "BLOCK", 100)
    source, target = splits["train"][202]
    for count in (200, 201):
        train = [*splits["train"][:count], (source, f"{target} " * 9)]
        cache = prepare_pairs(config(tmp_path, train, splits["valid"][:5], clean=["lengths"]))
        assert (cache.directory / "train.left_out.txt").read_text() == f"{count + 1} lengths\n"


@pytest.mark.parametrize(
    ("pair", "kind"),
    [
        (("Der Mann ist auf der Straße", "The man is on the street"), "swapped"),
        (("Kurz gesagt", "The man is on the street and he has a dog"), "language"),
        (("Der Mann ist auf der Straße und er hat einen Hund", "Fine"), "language"),
    ],
)
def test_sides_are_swapped_if_both_are_clear(pair: tuple[str, str], kind: str) -> None:
    assert checking._problems(pair, ["en", "de"]) == [kind]


def test_lines_of_joined_files_are_said_to_be(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("".join(f"Line {row} of file {name} &amp; no other file\n" for row in range(30)))
    files = {"train": [str(tmp_path / name) for name in "ab"], "cache": str(tmp_path / "cache")}
    cache = prepare_text({**defaults("data/text"), **files, "valid_share": 0.25})
    problems = {finding["split"]: finding["problem"] for finding in cache.summary["findings"]}
    assert "such as line 1 of the joined files, “" in problems["train"]
    assert "such as line 1 of the part for validation, “" in problems["valid"]


def test_a_corpus_may_return_a_list(splits: dict[str, Pairs], tmp_path: Path) -> None:
    steps = toy()
    steps.texts = lambda split: splits[split]  # type: ignore[assignment, return-value, method-assign]
    assert len(list(Checks(steps, tmp_path / "none").watch("valid"))) == 50


def test_only_long_lines_of_a_running_text_are_compared(tmp_path: Path) -> None:
    """In text whose lines are sequences of their own, all are."""
    long = "This sentence has so many characters that nobody writes it again"
    lines = [*(f"A line that has the number {row} and no other line has it.\nHAMLET:" for row in range(50)), long, long]
    (tmp_path / "train").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "valid").write_text(f"HAMLET:\n{long}\nOh &amp; no.\n")
    files = {"train": str(tmp_path / "train"), "valid": str(tmp_path / "valid"), "cache": str(tmp_path / "cache")}
    running = prepare_text({**defaults("data/text"), **files})
    assert findings(running) == {("valid", "escaped"): 1, ("valid", "held_out"): 1, ("train", "duplicates"): 1}
    problems = [finding["problem"].partition(" (")[0] for finding in running.summary["findings"]]
    assert "1 of 1 different lines of valid with 40 characters or more" in problems
    assert "1 of 52 lines of train with 40 characters or more" in problems
    single = prepare_text({**defaults("data/text"), **files, "lines": True})
    assert findings(single)["train", "duplicates"] == 50 and findings(single)["valid", "held_out"] == 2
    cleaned = prepare_text({**defaults("data/text"), **files, "clean": ["held_out"]})
    train = cleaned.summary["splits"]["train"]
    assert train["dropped"] == {"held_out": 2}
    assert train["characters"] == running.summary["splits"]["train"]["characters"] - 2 * (len(long) + 1)
    assert cleaned.describe().splitlines()[2].split()[-2:] == ["2", "held_out"]


def test_many_examples_are_remembered_in_a_fixed_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "FILTERS", (17, 19))
    monkeypatch.setattr(checking, "ROOM", (1_000, 5_000))
    memory, hashes = checking.Memory(), np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 9_000)
    assert not any(memory.add(block).any() for block in np.split(hashes, 90))
    assert all(memory.add(block).all() for block in np.split(hashes[:5_000], 50))
    assert not memory.add(hashes[5_000:]).any()  # the filters are full: these are forgotten
    assert memory.add(np.array([7, 8, 7])).tolist() == [False, False, True]


def toy(**settings: Any) -> PairSteps:
    return PairSteps(Toy(**{"seed": 1, "train": 1_500, "valid": 200, "test": 200, "longest": 25, **settings}), SETTINGS)


def multi30k() -> PairSteps:
    directory = SHARED / "data/multi30k"
    if not directory.is_dir():
        pytest.skip("SEQTOOL_SHARED has no Multi30k")
    languages = {"source_language": "en", "target_language": "de"}
    return PairSteps(
        Multi30k(directory=str(directory), **languages, test_set="test_2016_flickr", download=False), SETTINGS
    )


SETTINGS: Any = SimpleNamespace(clean=[])
CORPORA: dict[str, Callable[[], Any]] = {
    "toy": toy,
    "long toy": lambda: toy(longest=100, train=500),
    "continuous toy": lambda: toy(continuous=True),
    "text": lambda: TextSteps(PlainText(train=None, valid=None, test=None, valid_share=0.1), SETTINGS),
    "Multi30k": multi30k,
}


@pytest.mark.parametrize("name", CORPORA)
def test_nothing_is_found_in_built_in_and_published_corpora(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Multi30k repeats three of its 29,000 training pairs, far fewer than one in a hundred."""
    monkeypatch.setitem(BUILT_IN, "train", 1_200)
    steps = CORPORA[name]()
    checks = Checks(steps, tmp_path / "none")
    for split in reversed(steps.corpus.splits()):
        assert len(list(checks.watch(split))) > 100
    assert checks.findings == []
