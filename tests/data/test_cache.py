"""Tests of the cache: it holds what was prepared, it is complete or absent, and it is made once."""

import copy
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from seqtool.data import directories, preparation
from seqtool.data.cache import SUMMARY, Cache, is_cache
from seqtool.data.corpora.corpus import TextCorpus
from seqtool.data.directories import Digests
from seqtool.data.preparation import LimitSettings, make_corpus, prepare_pairs
from seqtool.errors import InputError

Config = dict[str, Any]
VALID_LINES = ["a cat\tein Kater", "two  cats.\t zwei Katzen .", "\tnichts", "a\u2028cat\tein\u2028Kater"]


def train_lines() -> list[str]:
    lines = [f"{size} {noun}.\t{noun} {size} !" for size in ("big", "small", "red") for noun in "abcdefgh"]
    return [*lines, "\tempty", "empty too\t ", "one\t" + "x " * 30, "a b c d e f\tg"]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "train.tsv").write_text("\n".join(train_lines()) + "\n", encoding="utf-8")
    (tmp_path / "valid.tsv").write_text("\n".join(VALID_LINES) + "\n", encoding="utf-8")
    return {
        "_target_": "seqtool.data.corpora.parallel.ParallelFiles",
        "train": str(tmp_path / "train.tsv"),
        "valid": str(tmp_path / "valid.tsv"),
        "test": None,
        "source_language": "en",
        "target_language": "de",
        "vocabulary": {
            "kind": "word",
            "size": 100,
            "source_size": None,
            "target_size": None,
            "joint": False,
            "minimum_count": 1,
            "sample": 1000,
            "normalization": "nfc",
            "lowercase": False,
            "reuse": None,
        },
        "limits": {"minimum": 1, "maximum": 20, "ratio": 5.0},
        "cache": str(tmp_path / "cache"),
        "processes": 1,
    }


def with_settings(config: Config, **settings: Any) -> Config:
    """Return the configuration with these changes, such as `vocabulary_size=3` for `vocabulary.size`."""
    result = copy.deepcopy(config)
    for name, value in settings.items():
        group, _, key = name.partition("_")
        if group in ("vocabulary", "limits"):
            assert key in result[group]
            result[group][key] = value
        else:
            result[name] = value
    return result


def file_contents(cache: Cache) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in cache.directory.iterdir() if path.name != SUMMARY}


def cache_entries(config: Config) -> list[str]:
    """Return the names in the directory of caches, except that of the remembered digests."""
    return sorted(path.name for path in Path(config["cache"]).glob("*") if path.name != "digests.json")


@pytest.mark.parametrize("kind", ["word", "char"])
def test_ids_encode_the_text(config: Config, kind: str) -> None:
    cache = prepare_pairs(with_settings(config, vocabulary_kind=kind))
    kept = [line.split("\t") for line in train_lines()[:24]]  # the others are outside the limits
    train, valid = cache.split("train"), cache.split("valid")
    assert len(train) == 24 and len(valid) == 4
    for i, (source, target) in enumerate(kept):
        assert train.source(i).tolist() == cache.source_vocabulary.encode(source)
        assert train.target(i).tolist() == cache.target_vocabulary.encode(target)
        assert train.lengths(np.array([i])) == (len(train.source(i)), len(train.target(i)))
        assert train.lengths()[1][i] == len(train.target(i))
    for i, line in enumerate(VALID_LINES):
        assert valid.source(i).tolist() == cache.source_vocabulary.encode(line.split("\t")[0])
    with pytest.raises(IndexError):
        train.source(24)


def test_validation_text_is_kept_unchanged(config: Config) -> None:
    valid = prepare_pairs(config).split("valid")
    assert valid.texts("source") == [line.split("\t")[0] for line in VALID_LINES]
    assert valid.texts("target") == [line.split("\t")[1] for line in VALID_LINES]
    assert valid.alignments() is None


def test_training_pairs_outside_the_limits_are_dropped_and_counted(config: Config) -> None:
    cache = prepare_pairs(config)
    assert cache.summary["splits"]["train"]["dropped"] == {"empty": 2, "ratio": 1, "too long": 1}
    assert cache.summary["splits"]["valid"]["dropped"] == {}
    lines = cache.describe().splitlines()
    assert lines[0].startswith("parallel, en → de; vocabulary: en ")
    assert lines[2].split()[:2] == ["train", "24"] and lines[2].endswith("2 empty, 1 ratio, 1 too long")
    assert lines[3].split()[:2] == ["valid", "4"] and lines[3].endswith("none")
    unlimited = prepare_pairs(with_settings(config, limits_maximum=None, limits_ratio=None))
    assert unlimited.summary["splits"]["train"]["pairs"] == 26


def test_limits_give_a_reason_for_dropping_a_pair() -> None:
    limits = LimitSettings(minimum=2, maximum=10, ratio=2.0)
    dropped = {(0, 3): "empty", (1, 3): "too short", (5, 11): "too long", (2, 5): "ratio"}
    kept = {(5, 10): None, (2, 2): None}
    for (source_length, target_length), reason in (dropped | kept).items():
        assert limits.reason(source_length, target_length) == reason
        assert limits.reason(target_length, source_length) == reason


def toy_config(config: Config) -> Config:
    common = {"longest": 25} | {key: config[key] for key in ("vocabulary", "limits", "cache", "processes")}
    return {"_target_": "seqtool.data.corpora.parallel.Toy", "seed": 3, "train": 60, "valid": 9, "test": 8, **common}


def test_gold_alignments_are_kept(config: Config) -> None:
    cache = prepare_pairs(toy_config(config))
    assert cache.directory.name.startswith("toy-en-es-") and cache.name == "toy" and not cache.has_images
    alignments = cache.split("test").alignments()
    assert alignments is not None and len(alignments) == len(cache.split("test")) == 8
    assert cache.split("train").alignments() is None


def test_a_joint_vocabulary_serves_both_sides(config: Config) -> None:
    cache = prepare_pairs(with_settings(config, vocabulary_joint=True))
    assert cache.source_vocabulary is cache.target_vocabulary
    assert [path.name for path in cache.vocabulary_files] == ["joint.vocabulary"]
    assert "joint" in cache.describe().splitlines()[0]


def test_vocabularies_can_be_reused(config: Config, tmp_path: Path) -> None:
    first = prepare_pairs(config)
    (tmp_path / "train.tsv").write_text("a new cat\tein neuer Kater\n" * 3, encoding="utf-8")
    second = prepare_pairs(with_settings(config, vocabulary_reuse=str(first.directory)))
    assert second.directory != first.directory
    assert second.source_vocabulary.fingerprint == first.source_vocabulary.fingerprint
    assert second.summary["splits"]["train"]["source"]["unknown"] > 0


def test_ids_of_a_large_vocabulary_take_four_bytes(config: Config, tmp_path: Path) -> None:
    text = "".join(f"s{i} s{i + 35_000}\tt{i} t{i + 35_000}\n" for i in range(35_000))
    (tmp_path / "train.tsv").write_text(text, encoding="utf-8")
    cache = prepare_pairs(with_settings(config, vocabulary_size=300_000))
    assert len(cache.target_vocabulary) == 70_004
    train = cache.split("train")
    assert train.target(34_999).tolist() == cache.target_vocabulary.encode("t34999 t69999")
    assert max(int(train.target(i).max()) for i in range(len(train))) == 70_003
    assert train.source(0).dtype == np.uint32


def test_the_name_of_a_cache_depends_on_settings_and_text(config: Config, tmp_path: Path) -> None:
    first = prepare_pairs(config).directory
    assert prepare_pairs(config).directory == first
    assert prepare_pairs(with_settings(config, processes=2)).directory == first
    assert prepare_pairs(with_settings(config, vocabulary_size=99)).directory != first
    assert prepare_pairs(with_settings(config, limits_maximum=19)).directory != first
    unusual = prepare_pairs(with_settings(config, target_language="Köln (1)/x")).directory
    assert unusual.name.startswith("parallel-en-Köln_1_x-") and unusual.parent == first.parent
    moved = tmp_path / "moved.tsv"
    (tmp_path / "train.tsv").rename(moved)
    assert prepare_pairs(with_settings(config, train=str(moved))).directory == first
    with moved.open("a") as file:
        file.write("one more\tnoch eins\n")
    assert prepare_pairs(with_settings(config, train=str(moved))).directory != first


def test_an_existing_cache_is_not_made_again(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare_pairs(config)
    monkeypatch.setattr(preparation, "_fill", None)
    prepare_pairs(config)


def test_more_processes_change_nothing(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "CHUNK", 3)
    single_process = prepare_pairs(config)
    monkeypatch.setattr(preparation, "MIN_PARALLEL", 0)
    two_processes = prepare_pairs(with_settings(config, processes=2, cache=str(tmp_path / "other")))
    assert file_contents(single_process) == file_contents(two_processes)
    assert single_process.summary == two_processes.summary


def test_a_vocabulary_is_learnt_from_a_sample(config: Config) -> None:
    cache = prepare_pairs(with_settings(config, vocabulary_kind="char", vocabulary_sample=1))
    assert len(cache.source_vocabulary) < 4 + 20
    assert len(prepare_pairs(with_settings(config, vocabulary_kind="char")).source_vocabulary) > 4 + 12


def raise_disk_full(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("module", "function", "partial_count"),
    [(preparation, "write_lines", 1), (preparation, "_write_split", 1), (preparation, "train", 0)],
)
def test_a_failed_preparation_can_be_resumed(
    config: Config, module: Any, function: str, partial_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A preparation that fails before it has vocabularies leaves no partial cache."""
    with monkeypatch.context() as patch:
        patch.setattr(module, function, raise_disk_full)
        with pytest.raises(OSError, match="No space left on device"):
            prepare_pairs(toy_config(config))
    assert [name.rpartition(".")[2] for name in cache_entries(config)] == ["partial"] * partial_count
    cache = prepare_pairs(toy_config(config))
    assert cache_entries(config) == [cache.directory.name]


KILLED_SCRIPT = """
import json, os, signal, sys
from seqtool.data import preparation
from seqtool.data.preparation import prepare_pairs

write, splits = preparation._write_split, []
def write_one_and_die(*arguments):
    if splits:
        os.kill(os.getpid(), signal.SIGKILL)
    splits.append(1)
    return write(*arguments)
preparation._write_split = write_one_and_die
prepare_pairs(json.loads(sys.argv[1]))
"""


def test_a_partial_cache_of_a_killed_process_is_not_used(config: Config) -> None:
    result = subprocess.run([sys.executable, "-c", KILLED_SCRIPT, json.dumps(config)], check=False)
    assert result.returncode == -9
    entries = cache_entries(config)
    assert [name.rpartition(".")[2] for name in entries] == ["lock", "partial"]
    assert not is_cache(Path(config["cache"]) / entries[1])
    cache = prepare_pairs(config)
    assert len(cache.split("valid")) == 4
    assert cache_entries(config) == [cache.directory.name]


KILLED_WHILE_ENCODING_SCRIPT = """
import json, os, signal, sys
from seqtool.data import directories, preparation
from seqtool.data.preparation import prepare_pairs

preparation.CHUNK, directories.RECORDING_SECONDS = 3, 0
append, times = preparation.ColumnsWriter._append, []
def append_and_die(self, name, values):
    append(self, name, values)
    times.append(1)
    if len(times) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
preparation.ColumnsWriter._append = append_and_die
prepare_pairs(json.loads(sys.argv[1]))
"""


@pytest.mark.parametrize(("writes", "pairs_done"), [(3, 0), (6, 3), (10, 6), (18, 12), (19, 12), (36, 24), (42, 28)])
def test_a_killed_preparation_is_resumed(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int, pairs_done: int
) -> None:
    """Each chunk of three of the 28 pairs takes four writes, and progress is recorded after each chunk."""
    uninterrupted = prepare_pairs(with_settings(config, cache=str(tmp_path / "whole")))
    command = [sys.executable, "-c", KILLED_WHILE_ENCODING_SCRIPT, json.dumps(config), str(writes)]
    assert subprocess.run(command, check=False).returncode == -9
    chunk_sizes: list[int] = []
    encode = preparation.encode_chunk

    def encode_and_count(pairs: Any, **settings: Any) -> Any:
        chunk_sizes.append(len(pairs))
        return encode(pairs, **settings)

    monkeypatch.setattr(preparation, "encode_chunk", encode_and_count)
    monkeypatch.setattr(preparation, "_vocabularies", None)  # they are not learnt again
    cache = prepare_pairs(config)
    assert sum(chunk_sizes) == 28 - pairs_done + len(VALID_LINES)
    assert file_contents(cache) == file_contents(uninterrupted)
    assert cache.summary == uninterrupted.summary
    assert cache_entries(config) == [cache.directory.name]


def test_a_second_process_waits_for_the_first(
    config: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made_directories: list[Path] = []
    fill: Callable[..., dict[str, Any]] = preparation._fill
    waiting = threading.Event()

    def fill_slowly(unfinished: Path, *arguments: Any) -> dict[str, Any]:
        made_directories.append(unfinished.with_suffix(""))
        assert waiting.wait(timeout=10)
        return fill(unfinished, *arguments)

    def print_and_release(*values: str, file: Any) -> None:
        print(*values, file=file)
        waiting.set()

    monkeypatch.setattr(preparation, "_fill", fill_slowly)
    monkeypatch.setattr(directories, "print", print_and_release, raising=False)
    threads = [threading.Thread(target=prepare_pairs, args=(config,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made_directories) == 1 and cache_entries(config) == [made_directories[0].name]
    lines = {line for line in capsys.readouterr().err.splitlines() if line and "Encoding" not in line}
    assert lines == {f"Waiting for another process that is preparing {made_directories[0]}."}


def test_a_damaged_cache_is_refused(config: Config, tmp_path: Path) -> None:
    directory = prepare_pairs(config).directory
    tokens = directory / "train.source.tokens.bin"
    intact = tokens.read_bytes()
    tokens.write_bytes(intact[:-2])
    with pytest.raises(InputError) as error:
        Cache(directory)
    size = len(intact)
    assert str(error.value) == (
        f"{tokens} has {size - 2:,} bytes instead of {size:,}: remove {directory} and prepare again."
    )
    summary = (directory / SUMMARY).read_text()
    assert '"target.vocabulary"' in summary
    for damaged in (
        '{"files": ',
        *(summary.replace("target.vocabulary", name) for name in ("../a", "/a", "a/../../a")),
    ):
        (directory / SUMMARY).write_text(damaged)
        with pytest.raises(InputError) as error:
            Cache(directory)
        assert str(error.value) == f"{directory / SUMMARY} is damaged: remove {directory} and prepare again."
    (directory / SUMMARY).write_text(summary.replace("target.vocabulary", "more/a"))
    with pytest.raises(InputError, match=r"/more/a has 0 bytes instead of [0-9,]+: remove"):
        Cache(directory)
    with pytest.raises(InputError) as error:
        Cache(tmp_path)
    assert str(error.value) == f"{tmp_path} is not a cache: seqtool prepare makes them."


def test_a_missing_split_is_refused(config: Config) -> None:
    cache = prepare_pairs(config)
    with pytest.raises(InputError) as error:
        cache.split("test")
    assert str(error.value).startswith(f"{cache.directory} has no split 'test'; it has train, valid.")


def test_a_held_out_split_without_text_is_named(config: Config, tmp_path: Path) -> None:
    (tmp_path / "valid.tsv").write_text("\n")
    with pytest.raises(InputError, match=r"^The split 'valid' has no pairs\.$"):
        prepare_pairs(config)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"processes": 0}, "data.processes must be at least 1, not 0."),
        ({"limits_minimum": 0}, "data.limits.minimum must be at least 1, not 0."),
        (
            {"limits_minimum": 9, "limits_maximum": 5},
            "data.limits.maximum is 5, less than data.limits.minimum, 9.",
        ),
        ({"limits_ratio": 0.5}, "data.limits.ratio must be at least 1, not 0.5."),
        (
            {"limits_minimum": 15, "limits_maximum": 15},
            "None of the 28 training pairs is within data.limits: 26 too short, 2 empty.",
        ),
        (
            {"vocabulary_kind": "bpe", "vocabulary_size": 4000},
            "data.vocabulary.size=4,000 is more than is possible with the source side of the training text: set it to ",
        ),
        (
            {"vocabulary_reuse": "/nowhere"},
            "/nowhere has no vocabulary: expected a directory with source.vocabulary and ",
        ),
    ],
)
def test_unusable_settings_leave_no_cache(config: Config, settings: Config, message: str) -> None:
    with pytest.raises(InputError) as error:
        prepare_pairs(with_settings(config, **settings))
    assert str(error.value).startswith(message)
    assert not Path(config["cache"]).exists()


def test_unknown_settings_are_named_in_full(config: Config) -> None:
    config["vocabulary"]["sise"] = config["vocabulary"].pop("size")
    with pytest.raises(InputError) as error:
        prepare_pairs(OmegaConf.create({"data": config}).data)
    assert "nknown setting 'data.vocabulary.sise' (did you mean 'data.vocabulary.size'?)" in str(error.value)
    with pytest.raises(InputError, match=r"[Uu]nknown setting 'data\.tset'"):
        make_corpus(OmegaConf.create({"data": with_settings(config, tset="x")}).data, TextCorpus, trusted=True)


def test_an_untrusted_configuration_names_only_built_in_corpora(config: Config) -> None:
    with pytest.raises(InputError, match=r"^The configuration names 'os\.system'"):
        make_corpus(with_settings(config, _target_="os.system"), TextCorpus, trusted=False)


def test_digests_are_remembered_until_size_or_time_change(tmp_path: Path) -> None:
    path, memory = tmp_path / "text", tmp_path / "digests.json"
    path.write_text("one")
    digest = Digests(memory)(path)
    assert not memory.exists()  # the file is so new that it may change without a new time
    old = time.time_ns() - 10**11  # 100 seconds ago
    os.utime(path, ns=(old, old))
    assert Digests(memory)(path) == digest
    path.write_text("two")
    os.utime(path, ns=(old, old))
    assert Digests(memory)(path) == digest  # the remembered digest
    os.utime(path, ns=(old + 1, old + 1))
    assert Digests(memory)(path) != digest
    memory.write_text("{")
    assert Digests(memory)(path) != digest
